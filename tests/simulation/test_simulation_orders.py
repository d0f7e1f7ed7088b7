"""Schedules that are the longest path through their order, against the simulated events."""

from __future__ import annotations

from random import Random

import pytest
from linked import arranged
from plain import stack

import nest
from nest.errors import InputError, KernelError
from nest.evaluation.even import even_configuration
from nest.inputs import Configuration
from nest.schedules.registry import chunks_at, copies
from nest.simulation.tasks import _row

SCHEDULES = ("zb1p", "interleaved-zb", "zb-v", "v-half", "v-min", "dualpipev", "dualpipe",
             "looped-bfs", "combined", "interleaved")
BESIDE = ("combined", "dualpipe")
"""Schedules with passes beside each other."""
OVERLAPS = ("overlap_zero3", "overlap_grad_reduce", "overlap_param_gather", "overlap_p2p")


def drawn(rng: Random, schedule: str) -> nest.Plan | None:
    """A plan of alike stages, with its traffic partly hidden; None: it is not legal."""
    experts = schedule == "combined" or rng.random() < 0.3
    model = nest.load_model("mixtral-8x7b" if experts else "llama3-8b")
    software = stack(**{name: rng.random() for name in OVERLAPS})
    pp = rng.choice((1, 2, 4) if schedule == "combined" else (2, 4, 8))
    outer_dp = rng.choice((1, 2, 4))
    ep = rng.choice((2, 4)) if experts else 1
    m = rng.randint(1, 24)
    vpp = 1 if schedule == "zb1p" or pp == 1 else rng.choice((2, 4))
    if schedule in ("zb-v", "v-half", "v-min", "dualpipev", "dualpipe"):
        vpp = 2
    group = rng.choice((None, rng.randint(1, m)))
    if schedule not in ("interleaved", "interleaved-zb", "combined") or vpp == 1:
        group = None
    cluster = nest.load_cluster("dgx-h100", devices=64)
    job = nest.Job(global_batch=m * outer_dp * ep, seq_len=2048, stack=software)
    try:
        even = even_configuration(
            model, cluster, job, pp=pp, vpp=vpp, ep=ep, dp_in=ep, tp=2 if ep == 1 else 1,
            outer_dp=outer_dp, schedule=schedule, group=group,
            zero=rng.choice((0, 1) if schedule in BESIDE else (0, 1, 2)),
            recompute=rng.choice(("none", "selective" if schedule == "combined" else "full")))
        return nest.evaluate(
            model, cluster, job, uneven(even, rng) if vpp > 1 and rng.random() < 0.5 else even)
    except InputError:
        return None


def uneven(plan: Configuration, rng: Random) -> Configuration:
    """The same with any chunks, of which some are empty."""
    layers = max(span[1] for stage in plan.stages for span in stage.chunks)
    parts = plan.pp * plan.vpp // copies(plan.schedule)
    cuts = [0, *sorted(rng.randint(0, layers) for _ in range(parts - 1)), layers]
    return plan.replace(stages=[
        stage.replace(chunks=spans, layers=(spans[0][0], spans[-1][1]))
        for stage, spans in zip(plan.stages, chunks_at(cuts, plan.pp, plan.schedule), strict=True)])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_prices_are_those_of_the_events(schedule: str) -> None:
    rng, seen = Random(schedule), 0
    while seen < 25:
        plan = drawn(rng, schedule)
        if plan is None:
            continue
        seen += 1
        found = nest.simulate(plan)
        assert abs(found.relative_difference) < 1e-9, (plan.parallelism, plan.stages[0].zero)
        for stage in found.stages:
            assert stage.peak_memory_bytes <= stage.closed_form_memory_bytes * (1 + 1e-12)
        seconds = plan.breakdown_s.model_dump().values()
        assert min(seconds) >= 0.0
        assert sum(seconds) == pytest.approx(plan.step_time_s)


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe"])
def test_neighbours_in_a_v_hand_over_between_their_nearest_devices(schedule: str) -> None:
    """On a ring, from the far end of a stage to the far end of the next one is a longer way."""
    model, cluster = nest.load_model("llama3-8b"), arranged("torus:dims=64")
    job = nest.Job(global_batch=32, seq_len=2048)
    plan = nest.evaluate(model, cluster, job, even_configuration(
        model, cluster, job, pp=4, tp=4, vpp=2, schedule=schedule, outer_dp=1, dp_in=4,
        micro_batch=4))
    assert abs(nest.simulate(plan).relative_difference) < 1e-9


@pytest.mark.parametrize(("codes", "problem"), [
    ([0, 2, 3], ""), ([2, 0, 3], "before another"), ([0, 3, 2], "before another"),
    ([0, 2], "missing"), ([0, 0, 1, 1, 1], "before another"),
])
def test_rows_are_checked(codes: list[int], problem: str) -> None:
    """Codes of one chunk: 0 forward, 1 backward, 2 for inputs, 3 for weights."""
    if not problem:
        assert len(_row(codes, 1, 1)) == 3
        return
    with pytest.raises(KernelError, match=problem):
        _row(codes, 1, 1)
