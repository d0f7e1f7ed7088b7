"""Interleaved pipelines whose chunks hold any numbers of layers, or none."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from descriptions import MODEL
from instances import THEMES, instance
from oracle import price
from oracle_drawn import drawn

from nest.errors import InputError
from nest.evaluation.evaluate import evaluate
from nest.evaluation.even import even_configuration
from nest.evaluation.plans import Plan
from nest.inputs import (
    Configuration,
    Job,
    Model,
    StageConfiguration,
    load_cluster,
    load_model,
)
from nest.model import build_chain
from nest.model.layouts import family
from nest.simulation import simulate


def some(count: int) -> list[tuple[int, Configuration]]:
    """Interleaved plans with unequal chunks, each with the number of its instance."""
    found = []
    for seed in range(THEMES.index("chunks"), 40 * len(THEMES), len(THEMES)):
        x, rng = instance(seed), Random(f"unequal {seed}")
        for _ in range(8):
            plan = drawn(x, rng)
            if plan is not None and plan.vpp > 1 and len(sizes(plan)) > 2:
                found.append((seed, plan))
    assert len(found) >= count
    return found


def sizes(plan: Configuration) -> set[int]:
    return {stop - start for stage in plan.stages for start, stop in stage.chunks}


def test_prices_are_those_of_the_oracle() -> None:
    seen = set()
    for seed, plan in some(100):
        x = instance(seed)
        priced, wanted = evaluate(x.model, x.cluster, x.job, plan), price(
            x.chain, x.cluster, x.job, plan)
        assert priced.step_time_s == pytest.approx(wanted.seconds, rel=1e-9), (seed, plan)
        assert [s.memory_bytes.total for s in priced.stages] == pytest.approx(
            wanted.memory, rel=1e-9), (seed, plan)
        seen |= {f"zero {plan.stages[0].zero}", f"pp {plan.pp}", f"vpp {plan.vpp}",
                 f"empty {0 in sizes(plan)}"}
    assert {"zero 0", "zero 1", "zero 2", "zero 3", "pp 2", "pp 3", "vpp 2", "vpp 3",
            "empty True", "empty False"} <= seen


def test_steps_take_what_their_events_do() -> None:
    """Exact, but with ZeRO traffic beside passes.

    Computing that hides the traffic of cp hides no gradients in the form; in the events it does.
    """
    exact, context, partly, other = [], [], [], []
    for seed, plan in some(100):
        x = instance(seed)
        found = simulate(evaluate(x.model, x.cluster, x.job, plan))
        kind = other if plan.stages[0].zero > 1 else context if plan.stages[0].cp > 1 else exact
        if kind is exact and x.cluster.devices is not None:
            kind = partly
        kind.append(found.relative_difference)
        for stage in found.stages:
            assert stage.peak_memory_bytes <= stage.closed_form_memory_bytes * (1 + 1e-9)
    assert len(exact) > 40 and len(context) > 5 and len(other) > 20
    assert np.abs(exact).max() < 1e-9
    assert min(context) > -1e-9 and max(context) < 0.03
    # Where groups are partly filled replicas differ, and wait for each other when they reduce.
    assert np.abs(partly).max(initial=0.0) < 0.001
    assert np.abs(other).max() < 0.05


@pytest.mark.parametrize(("name", "pp", "vpp"), [
    ("llama3-8b", 4, 3), ("llama3.1-405b", 8, 4), ("qwen3-235b-a22b", 4, 12),
    ("deepseek-v3", 8, 2),
])
def test_layouts_of_the_family_take_what_their_events_do(name: str, pp: int, vpp: int) -> None:
    model = load_model(name)
    chain, rng = build_chain(model), Random(name)
    listed = family(chain, pp, vpp)
    cluster = load_cluster("dgx-h100", devices=8 * pp)
    for _ in range(4):
        cuts, m = listed[rng.randrange(len(listed))].tolist(), pp * rng.choice((1, 3))
        tp, zero = rng.choice((2, 4)), rng.choice((0, 1))
        experts = {"ep": 4, "etp": 1} if chain.experts else {}
        way = Configuration(micro_batch=8 // tp, vpp=vpp, stages=[
            StageConfiguration(
                layers=(spans[0][0], spans[-1][1]), chunks=spans, devices=(8 * s, 8 * s + 8),
                tp=tp, dp_in=8 // tp, zero=zero, **experts)
            for s in range(pp) for spans in [list(pairwise(cuts))[s::pp]]])
        job = Job(global_batch=m * 8 // tp, seq_len=2048)
        found = simulate(evaluate(model, cluster, job, way))
        assert found.relative_difference == pytest.approx(0.0, abs=1e-9)
        for stage in found.stages:  # the work of the largest layer may not be at the peak
            share = stage.peak_memory_bytes / stage.closed_form_memory_bytes
            assert 0.98 < share < 1 + 1e-9


@pytest.mark.parametrize(("chunks", "said"), [
    ([[(0, 2)], [(2, 4), (4, 6)]], "stages.0.chunks: got 1 chunks; allowed: vpp 2"),
    ([[(0, 2), (3, 5)], [(2, 4), (5, 6)]],
     "stages.0.chunks.1: got [3, 5); allowed: to start at layer 4, where stages.1.chunks.0 ends"),
    ([[(1, 2), (3, 5)], [(2, 3), (5, 6)]],
     "stages.0.chunks.0: got [1, 2); allowed: to start at layer 0"),
    ([[(0, 2), (2, 2)], [(2, 2), (2, 5)]],
     "stages.1.chunks.1: ends at 5; allowed: 6, the number of layers of tiny with embedding"),
])
def test_chunks_that_do_not_follow_each_other(chunks, said: str) -> None:
    model = Model.parse({**MODEL, "name": "tiny", "layers": 4})
    way = Configuration(micro_batch=1, vpp=2, stages=[
        StageConfiguration(layers=(spans[0][0], spans[-1][1]), chunks=spans, devices=(s, s + 1))
        for s, spans in enumerate(chunks)])
    with pytest.raises(InputError) as error:
        evaluate(model, load_cluster("dgx-h100", devices=8), Job(global_batch=4, seq_len=64), way)
    assert str(error.value).startswith(said)
    assert len(error.value.problems) == 1


def test_an_empty_chunk_costs_its_hand_over() -> None:
    """Stage 1 of 2 holds nothing in its first chunk: its passes take what their messages do."""
    model = Model.parse({**MODEL, "layers": 4})
    cluster, job = load_cluster("dgx-h100", devices=8), Job(global_batch=4, seq_len=64)

    def priced(cuts: list[int]) -> Plan:
        return evaluate(model, cluster, job, Configuration(micro_batch=1, vpp=2, stages=[
            StageConfiguration(layers=(spans[0][0], spans[-1][1]), chunks=spans, devices=(s, s + 1))
            for s in range(2) for spans in [list(pairwise(cuts))[s::2]]]))

    one, two = priced([0, 3, 3, 6, 6]), priced([0, 3, 4, 6, 6])
    assert one.stages[1].time_s.total == one.stages[1].time_s.handover > 0.0
    assert one.stages[1].memory_bytes.total == 0.0
    assert one.stages[1].collectives == {}
    assert two.stages[1].time_s.total > one.stages[1].time_s.total


@pytest.mark.parametrize(("name", "devices", "batch", "seq_len", "given", "seconds", "layout"), [
    ("qwen3-235b-a22b", 256, 256, 4096,
     {"vpp": 12, "cp": 2, "dp_in": 4, "ep": 8, "etp": 1}, 2.573, "E|(t|)*94L"),
    ("llama3.1-405b", 512, 128, 8192, {"vpp": 16, "cp": 2, "tp": 8}, 9.914, "E|(t|)*126L"),
])
def test_each_layer_and_each_end_a_chunk(
    name: str, devices: int, batch: int, seq_len: int, given: dict[str, int], seconds: float,
    layout: str,
) -> None:
    """Equal chunks do not exist for these two: 8 divides neither 94 nor 126."""
    model, cluster = load_model(name), load_cluster("dgx-h100", devices=devices)
    job = Job(global_batch=batch, seq_len=seq_len, memory_margin=0)
    plan = evaluate(model, cluster, job, even_configuration(
        model, cluster, job, pp=8, zero=1, recompute="selective",
        recompute_modules=("norm", "mlp_act"), **given))
    assert plan.feasible and plan.layout == layout
    assert plan.step_time_s == pytest.approx(seconds, rel=0.01)
    assert simulate(plan).step_time_s == pytest.approx(plan.step_time_s, rel=1e-9)
