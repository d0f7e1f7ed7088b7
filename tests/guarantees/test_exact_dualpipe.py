"""The search of everything with DualPipe in it finds the best of all plans (docs/schedules.md)."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest
from instances import Instance, instance
from oracle import solve
from oracle_crossed import listed
from oracle_listing import Question

from nest.search.query import Control, Query
from nest.search.ways import search

MOST = 1500


def drawn(seed: int) -> Instance | None:
    """An instance in whose space some, not too many, pipelines are DualPipe."""
    x, rng = instance(seed), Random(f"dualpipe {seed}")
    free = dict.fromkeys(("pp", "vpp", "outer_dp", "micro_batch", "mbs"))
    names = (*x.space.schedules, "dualpipe") if rng.random() < 0.5 else ("dualpipe",)
    job = x.job.replace(global_batch=4 * x.job.global_batch) if rng.random() < 0.7 else x.job
    space = x.space.replace(schedule=names, **free)
    question = Question(x.chain, x.cluster, job, space)
    if not x.chain.is_chain or question.counts()[0] > 100_000:
        return None
    if not 0 < sum(1 for _ in islice(listed(question), MOST + 1)) <= MOST:
        return None
    return Instance(seed, x.theme, x.model, x.chain, x.cluster, job, space)


@pytest.mark.kernels
def test_everything_with_dualpipe() -> None:
    found = []
    for seed in range(30):
        x = drawn(seed)
        if x is None:
            continue
        wanted = solve(x.chain, x.cluster, x.job, x.space)
        got = search(Query(x.chain, x.cluster, x.job, x.space, True), Control(1))
        if wanted.seconds is None:
            assert got.configuration is None, seed
            continue
        assert got.step_time == pytest.approx(wanted.seconds, rel=1e-9), seed
        assert got.lower_bound == got.step_time
        assert got.configuration is not None
        found.append(got.configuration.schedule)
        # Under a limit just above the best, floors that are too high leave it out.
        near = search(Query(x.chain, x.cluster, x.job, x.space, True), Control(1),
                          wanted.seconds * (1 + 1e-6))
        assert near.step_time == got.step_time, seed
    assert min(found.count("dualpipe"), len(found) - found.count("dualpipe")) >= 2
