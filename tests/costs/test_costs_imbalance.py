"""Experts of which the busiest device gets more than the mean."""

from __future__ import annotations

import json

import pytest
from command_line import run
from plain import block, cost, mixture

import nest


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


def test_a_plan_states_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", "mixtral-8x7b", "dgx-h100", "--devices", "64", "--global-batch", "64",
             "--seq-len", "4096", "--ep", "8", "--zero", "1", "--tp", "2", "--etp", "1"]
    even = json.loads(run(capsys, *words, "--json")[0])
    out, _ = run(capsys, *words, "--expert-imbalance", "1.25")
    assert "gets 1.25 times" in " ".join(out.split())
    uneven = json.loads(run(capsys, *words, "--expert-imbalance", "1.25", "--json")[0])
    assert uneven["inputs"]["job"]["expert_imbalance"] == 1.25
    assert uneven["step_time_s"] > even["step_time_s"]
    with pytest.raises(nest.InputError, match="expert_imbalance"):
        nest.Job(global_batch=1, seq_len=1, expert_imbalance=0.5)
