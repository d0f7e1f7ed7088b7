"""Experts of which the busiest device gets more than the mean, and experts of a capacity."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from command_line import run
from plain import B, S, block, cost, mixture

import nest
from nest.measured.validation.runs import inferred


@pytest.mark.parametrize("dispatcher", ["alltoall", "hybridep"])
def test_the_busiest_device_sets_the_pace(dispatcher: str) -> None:
    # Half as many tokens again: traffic in proportion, products and permutation more, and what the
    # experts keep; parameters are as many.
    layer = block(mixture())
    even, uneven = (
        cost(layer, dp=2, ep=2, dispatcher=dispatcher, imbalance=f) for f in (1.0, 1.5))
    assert uneven.ep_forward == pytest.approx(1.5 * even.ep_forward)
    assert uneven.forward > even.forward and uneven.backward > even.backward
    assert uneven.activations > even.activations
    assert uneven.parameters == even.parameters


def test_where_imbalance_changes_nothing() -> None:
    # All-gathers send every token anyway; without expert parallelism every device runs its own.
    layer = block(mixture())
    gathered = [cost(layer, dp=2, ep=2, dispatcher="allgather", imbalance=f) for f in (1.0, 1.5)]
    assert gathered[0].ep_forward == pytest.approx(gathered[1].ep_forward)
    alone = [cost(layer, imbalance=f) for f in (1.0, 1.5)]
    assert alone[0].forward == alone[1].forward
    assert alone[0].activations == alone[1].activations


def test_routing_says_how_uneven_experts_are() -> None:
    for routing, most in (("forced", 1.0), ("loss", 1.1), ("none", 2.0)):
        assert nest.Job(global_batch=1, seq_len=1, routing=routing).expert_imbalance == most
    job = nest.Job(global_batch=1, seq_len=1, routing="none", expert_imbalance=1.5)
    assert job.expert_imbalance == 1.5


@pytest.mark.parametrize(("cells", "found"), [
    ({"notes": "real routing with aux loss (not forced)"}, "loss"),
    ({"notes": "no forced balance"}, "none"), ({"routing": "none"}, None), ({}, None)])
def test_routing_of_a_measured_run(cells: dict[str, str], found: str | None) -> None:
    known = inferred({"run_id": "a", "model": "m", "framework": "f", "n_experts": "8"} | cells)
    assert (known["routing"].value if "routing" in known else None) == found


def test_a_plan_states_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", "mixtral-8x7b", "dgx-h100", "--devices", "64", "--global-batch", "64",
             "--seq-len", "4096", "--ep", "8", "--zero", "1", "--tp", "2", "--etp", "1"]
    even = json.loads(run(capsys, *words, "--json")[0])
    out, _ = run(capsys, *words, "--expert-imbalance", "1.25", "--details")
    assert "gets 1.25 times" in " ".join(out.split())
    assert "experts get equally many tokens (--routing)" in run(capsys, *words)[0]
    out, _ = run(capsys, *words, "--routing", "loss", "--details")
    assert "gets 1.1 times" in " ".join(out.split())
    uneven = json.loads(run(capsys, *words, "--expert-imbalance", "1.25", "--json")[0])
    assert uneven["inputs"]["job"]["expert_imbalance"] == 1.25
    assert uneven["step_time_s"] > even["step_time_s"]
    with pytest.raises(nest.InputError, match="expert_imbalance"):
        nest.Job(global_batch=1, seq_len=1, expert_imbalance=0.5)


# ---------------------------------------------------------------- capacity
# A rank routes 2 samples of 64 tokens to 2 of 4 experts each: 64 copies for each expert.

LAYER = block(mixture())


def share(**given: Any) -> float:
    """Token copies of a device over those of even routing, by their all-to-all."""
    spread = {"dp": 2, "ep": 2}
    one, even = cost(LAYER, **spread, **given), cost(LAYER, **spread)
    return float(one.ep_forward[0] / even.ep_forward[0])


@pytest.mark.parametrize(("factor", "copies"), [
    (1.0, 64), (1.25, 80), (1.01, 65), (1.3, 84), (0.5, 32)])
def test_padded_experts_take_what_megatron_calculates(factor: float, copies: int) -> None:
    # get_capacity: 256 copies / 4 experts x the factor, rounded up.
    assert copies == math.ceil(B * S * 2 / 4 * factor)
    for imbalance in (1.0, 1.5):  # of no matter: each expert takes exactly that
        assert share(capacity=factor, padded=True, imbalance=imbalance) == pytest.approx(
            copies / 64)


@pytest.mark.parametrize(("factor", "imbalance", "wanted"), [
    (1.25, 1.5, 1.25), (1.25, 1.1, 1.1), (1.25, 1.0, 1.0), (0.5, 1.0, 0.5), (1.01, 2.0, 65 / 64)])
def test_a_capacity_bounds_the_imbalance(
    factor: float, imbalance: float, wanted: float
) -> None:
    assert share(capacity=factor, imbalance=imbalance) == pytest.approx(wanted)


def test_padding_costs_what_as_many_tokens_cost() -> None:
    # Time, traffic and memory of a device with half as many tokens again; as many parameters.
    padded = cost(LAYER, dp=2, ep=2, capacity=1.5, padded=True)
    uneven = cost(LAYER, dp=2, ep=2, imbalance=1.5)
    for name in ("forward", "backward", "ep_forward", "ep_backward", "activations", "work",
                 "parameters"):
        assert getattr(padded, name) == pytest.approx(getattr(uneven, name)), name
    # Without expert parallelism too, where imbalance changes nothing.
    alone, wide = cost(LAYER), cost(LAYER, capacity=1.5, padded=True)
    assert wide.forward > alone.forward and wide.activations > alone.activations
    less = cost(LAYER, capacity=0.5)
    assert less.forward < alone.forward and less.activations < alone.activations


def test_all_gathers_send_every_token_to_experts_of_a_capacity() -> None:
    spread = {"dp": 2, "ep": 2, "dispatcher": "allgather"}
    even, padded = cost(LAYER, **spread), cost(LAYER, **spread, capacity=1.5, padded=True)
    assert padded.ep_forward == pytest.approx(even.ep_forward)
    assert padded.forward > even.forward


@pytest.mark.parametrize(("dispatcher", "padded", "waits"), [
    ("alltoall", True, False), ("hybridep", True, False), ("allgather", True, True),
    ("alltoall", False, True), ("deepep", False, True)])
def test_nothing_waits_for_the_host_where_experts_are_padded(
    dispatcher: str, padded: bool, waits: bool
) -> None:
    given = {"dp": 2, "ep": 2, "capacity": 1.0, "padded": padded, "dispatcher": dispatcher}
    plain, gap = (cost(LAYER, **given, expert_gap=one) for one in (0.0, 1.0))
    assert gap.forward - plain.forward == pytest.approx([float(waits)])
    assert bool(cost(LAYER, **given, expert_overhead=9.0).backward > 17.0) == waits


def test_a_plan_states_its_capacity(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", "mixtral-8x7b", "dgx-h100", "--devices", "64", "--global-batch", "64",
             "--seq-len", "4096", "--ep", "8", "--zero", "1", "--tp", "2", "--etp", "1"]
    assert "Capacity" not in run(capsys, *words, "--details")[0]
    out, _ = run(capsys, *words, "--expert-capacity", "1.25", "--details")
    assert "an expert takes at most 1.25 times the mean" in " ".join(out.split())
    out, _ = run(capsys, *words, "--expert-capacity", "1.25", "--expert-padding", "--details")
    assert "an expert takes exactly 1.25 times the mean" in " ".join(out.split())
    found = json.loads(run(capsys, *words, "--expert-capacity", "1.25", "--json")[0])
    assert found["inputs"]["job"]["expert_capacity"] == 1.25
    _, error = run(capsys, *words, "--expert-padding", code=2)
    assert "--expert-padding: got true without expert_capacity" in error
    with pytest.raises(nest.InputError, match="expert_capacity"):
        nest.Job(global_batch=1, seq_len=1, expert_capacity=0.0)
