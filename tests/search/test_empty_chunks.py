"""Chunks without layers, which Megatron-Core takes: where a stage has fewer layers than chunks."""

from __future__ import annotations

from typing import Any

import pytest
from oracle_stack import solve
from test_alike import EXPERTS, MODEL, cluster

import nest
from nest.inputs import Job, Model, SearchSpace, load_stack
from nest.inputs.capabilities import Rule
from nest.model import build_chain
from nest.model.layouts import layout_cuts
from nest.schedules.registry import chunks_at

SPACE: dict[str, Any] = {"tp": 1, "cp": 1, "mbs": 1, "recompute": "none", "zero": "0,1"}
FIVE = {**MODEL, "layers": 5}
SPARSE = {**EXPERTS, "layers": 5, "mtp_layers": 0}


def job(stack: str = "megatron-core", **changes: Any) -> Job:
    return Job(global_batch=8, seq_len=256, stack=stack, **changes)


def empty(plan: nest.Plan) -> int:
    """Chunks of a plan that have no layers."""
    return sum(first == end for stage in plan.stages for first, end in stage.chunks)


@pytest.mark.kernels(uncompiled=True)
@pytest.mark.parametrize(("description", "space"), [
    (FIVE, {"pp": 4, "schedule": "interleaved"}), (SPARSE, {"pp": 4, "schedule": "interleaved"}),
    ({**EXPERTS, "layers": 4}, {"pp": 4, "schedule": "interleaved"}),
    ({**SPARSE, "layers": 3}, {"pp": 2, "vpp": 3, "mbs": 2, "ep": 2, "schedule": "combined"})])
def test_no_division_with_empty_chunks_is_faster(description: dict, space: dict) -> None:
    model, where = Model.parse(description), cluster("4 GiB")
    bounds = SearchSpace(**{**SPACE, **space})
    best = solve(build_chain(model), where, job(), bounds, 10**5)
    found = nest.plan(model, where, job(), bounds, threads=1)
    assert found.step_time_s == pytest.approx(best.seconds, rel=1e-9)
    assert found.optimal and found.runnable
    again = nest.evaluate(model, where, job(), found.configuration)
    assert again.step_time_s == found.step_time_s


@pytest.mark.kernels
def test_empty_chunks_gain() -> None:
    """63 layers in 64 chunks: 16 stages of three chunks wait longer for each other.

    Another division into 64 chunks, two of them empty, took 3.479 s where this one took 3.465
    (pipelines hid their reductions).
    """
    asked = (nest.load_model("kimi-k2"), nest.load_cluster("dgx-b200", devices=1024),
             Job(global_batch=2048, seq_len=4096))
    found = nest.plan(*asked, SearchSpace(pp=16, tp=1, cp=1))
    assert empty(found) > 0 and "||" in str(found.layout) and found.runnable
    assert found.step_time_s < 3.87


@pytest.mark.kernels(uncompiled=True)
def test_the_layout_is_read_back() -> None:
    model, where = Model.parse(FIVE), cluster("4 GiB")
    space = SearchSpace(**SPACE, pp=4, schedule="interleaved")
    found = nest.plan(model, where, job(), space, threads=1)
    assert empty(found) > 0 and "||" in str(found.layout)
    cuts = layout_cuts(build_chain(model), str(found.layout), 4)
    stages = found.configuration.stages
    assert chunks_at(cuts, 4, "interleaved") == [stage.chunks for stage in stages]
    simulated = nest.simulate(found)
    assert simulated.step_time_s == pytest.approx(found.step_time_s, rel=0.05)


@pytest.mark.kernels(uncompiled=True)
def test_a_stack_without_empty_chunks_has_none() -> None:
    model, where = Model.parse(FIVE), cluster("4 GiB")
    space = SearchSpace(**SPACE, pp=4, schedule="interleaved")
    way = nest.plan(model, where, job(), space, threads=1).configuration
    priced = nest.evaluate(model, where, job("torchtitan"), way)
    assert not priced.runnable
    assert any("needs parameters" in one.sentence for one in priced.not_runnable)
    with pytest.raises(nest.InfeasibleError):
        nest.plan(model, where, job("torchtitan"), space, threads=1)


def ruled(allowed: str) -> Job:
    """A job whose stack has a rule of how many chunks are empty."""
    rules = load_stack("megatron-core").capabilities
    assert rules is not None
    rule = Rule.parse({"fields": "empty_chunks", "allowed": allowed, "sentence": "own",
                       "source": "own"}, "rule")
    plain = job("megatron-core")
    return plain.replace(stack=plain.stack.replace(
        capabilities=rules.replace(name="", rules={**rules.rules, "own": rule})))


@pytest.mark.kernels(uncompiled=True)
@pytest.mark.parametrize(("layers", "allowed"), [(5, "2.."), (5, "1.."), (6, "1")])
def test_rules_about_how_many_chunks_are_empty(layers: int, allowed: str) -> None:
    """Without one, without two, or with none: pipelines of one chunk a stage have none, and those
    of as many chunks as leave some empty are searched whichever numbers a rule allows."""
    own = ruled(allowed)
    model, where = Model.parse({**FIVE, "layers": layers}), cluster("4 GiB")
    space = SearchSpace(**SPACE, pp=(2, 4), vpp=(1, 2))
    best = solve(build_chain(model), where, own, space, 10**5)
    found = nest.plan(model, where, own, space, threads=1)
    assert found.step_time_s == pytest.approx(best.seconds, rel=1e-9)
    assert found.optimal and found.runnable and empty(found) > 0


@pytest.mark.kernels(uncompiled=True)
def test_stages_of_one_chunk_are_never_empty() -> None:
    model, where = Model.parse({**FIVE, "layers": 2}), cluster("4 GiB")
    with pytest.raises(nest.InfeasibleError):
        nest.plan(model, where, ruled("1.."), SearchSpace(**SPACE, pp=4, vpp=1), threads=1)
