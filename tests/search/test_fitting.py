"""Bounds of memory rule out only what the search finds no plan for."""

from __future__ import annotations

import pytest
from instances import instance

import nest
from nest.search import compiled
from nest.search.fitting import Fitting
from nest.search.formulating import formulate
from nest.search.query import Query
from nest.search.tensors import Formulation

pytestmark = pytest.mark.kernels
SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0)
"""Shares of the memory of an instance: from nothing fits to everything does."""


def fits(f: Formulation, kernels, task) -> bool:
    """Whether the search itself finds a plan for a task."""
    number, schedule = task
    tables = f.tables(number, schedule == "gpipe")
    ends, wanted = kernels.useful(f.spans(number), float("inf"))
    options = kernels.select(tables, wanted, float("inf"))
    if not len(options[1]):
        return False
    _, arrays = f.problem(number, ends, options, schedule == "gpipe")
    best, *_ = kernels.solve(arrays, float("inf"), 1, False)
    return bool((best < float("inf")).any())


def test_what_may_not_fit_does_not():
    kernels, _ = compiled.load()
    ruled_out = kept = missed = 0
    for seed in range(0, 90):
        x = instance(seed)
        if not x.chain.is_chain:
            continue
        full = formulate(Query(x.chain, x.cluster, x.job, x.space))
        for share in SHARES:
            f = full.within(share * full.limit)
            fitting = Fitting(f, kernels)
            for number in range(0, len(f.outers), 3):
                for schedule in ("1f1b", "gpipe"):
                    may = fitting.may_fit((number, schedule), f.limit)
                    does = fits(f, kernels, (number, schedule))
                    assert may or not does, (seed, share, number, schedule)
                    ruled_out += not may
                    kept += does
                    missed += may and not does
    assert kept > 500
    assert ruled_out > 500
    assert missed < 0.1 * ruled_out, "the bound is too weak to be of use"


def test_an_outer_choice_without_bounds_has_no_plan():
    """The least bytes of all layers, over all devices, are no more than a plan that fits needs."""
    for seed in range(40):
        x = instance(seed)
        try:
            plan = nest.plan(x.model, x.cluster, x.job, x.space, reorder=False, beyond_stack=True)
        except nest.NestError:
            continue
        f = formulate(Query(x.chain, x.cluster, x.job, x.space))
        way = plan.configuration
        number = next(n for n, outer in enumerate(f.outers) if (
            outer.outer_dp, outer.stride, outer.micro_batch) == (
                way.outer_dp, way.stride, way.micro_batch))
        assert f.needs[number] <= max(s.memory_bytes.total for s in plan.stages)
