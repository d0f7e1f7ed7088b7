"""What is left out before combined passes are priced is no faster than the best step known."""

from __future__ import annotations

import numpy as np
import pytest
from test_alike import EXPERTS, cluster

import nest
from nest.inputs import Cluster, Job, SearchSpace, load_model, load_stack
from nest.model import build_chain
from nest.search import combined as module
from nest.search import compiled
from nest.search.alike import Alike, pipelines
from nest.search.cache import Cache
from nest.search.combined import COMBINED, combined
from nest.search.formulating import formulate
from nest.search.query import Query
from nest.search.runnable import SpacePart
from nest.search.tensors import Formulation

pytestmark = pytest.mark.kernels


def job(**changes: float) -> Job:
    return Job(**{"global_batch": 8, "seq_len": 256, "memory_margin": 0.0,
                  "stack": load_stack("megatron-core").replace(workspace=0), **changes})


def split(where: Cluster, batch: Job, space: SearchSpace, limit: float) -> Formulation:
    """The formulation of combined passes, derived from that of all others."""
    chain = build_chain(load_model(EXPERTS))
    rules = batch.stack.capabilities
    listed = pipelines(chain, space, where.size, True, rules)
    plain = tuple(one for one in listed if one.schedule != COMBINED)
    f = formulate(Query(chain, where, batch, space), SpacePart(rules, plain, tuple(listed)))
    return combined(f, [one for one in listed if one.schedule == COMBINED], limit, Cache())


def least(f: Formulation, limit: float) -> float:
    """Best step below a limit; inf: none."""
    alike, kernel = Alike(f), compiled.load(compiled.ALIKE)[0].alike
    found = [plan.step_time for number in range(len(f.outers))
             if f.span(number).start < f.span(number).stop
             for plan in alike.solve(kernel, number, limit, True, False)[0]]
    return min(found, default=np.inf)


SPACE = SearchSpace(cp=1, tp=(1, 2), shard="dp", recompute=("none", "selective"),
                    recompute_modules="core_attn")


@pytest.mark.parametrize(("memory", "places"), [("4 GiB", 1), ("150 MiB", 1), ("4 GiB", 3)])
def test_a_limit_leaves_out_nothing_faster(memory: str, places: int) -> None:
    """Blocks begin at the first device of a group, or at several places of it."""
    where, batch = cluster(memory), job()
    if places > 1:
        first, *others = where.levels
        where = where.replace(levels=(first.replace(size=6), *others))
        batch = job(global_batch=12)
    assert split(where, batch, SPACE, np.inf).listing.rows.start.any() == (places > 1)
    best = least(split(where, batch, SPACE, np.inf), np.inf)
    assert best < np.inf
    space = SPACE.replace(schedule=COMBINED)
    named = nest.plan(load_model(EXPERTS), where, batch, space, threads=1)
    assert best == pytest.approx(named.step_time_s, rel=1e-9)
    near = split(where, batch, SPACE, best * (1 + 1e-6))
    assert least(near, best * (1 + 1e-6)) == pytest.approx(best, rel=1e-12)
    assert len(near.listing.rows.block) < len(split(where, batch, SPACE, np.inf).listing.rows.block)


def test_floors_are_no_higher_than_any_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every outer choice is looked at alone; floors a tenth too high would be seen."""
    where, batch = cluster("4 GiB"), job()
    every = split(where, batch, SPACE, np.inf)
    alike, kernel = Alike(every), compiled.load(compiled.ALIKE)[0].alike
    floors, close = alike.bounds(), 0.0
    for number in range(len(every.outers)):
        if every.span(number).start == every.span(number).stop:
            continue
        found = alike.solve(kernel, number, np.inf, True, False)[0]
        for plan in found:
            floor = floors[number]
            assert floor <= plan.step_time * (1 + 1e-9)
            close = max(close, floor / plan.step_time)
            kept = split(where, batch, SPACE, plan.step_time * (1 + 1e-6))
            assert kept.span(number).start < kept.span(number).stop
    assert close > 1 / 1.1  # such floors would leave out this one
    monkeypatch.setattr(module, "_near", lambda other, *_: np.zeros(0, dtype=np.int64))
    assert not len(split(where, batch, SPACE, 1e9).listing.rows.block)


@pytest.mark.parametrize("default", [True, False])
def test_combined_is_in_the_default_space(default: bool) -> None:
    chain = build_chain(load_model(EXPERTS))
    space = SearchSpace() if default else SearchSpace(schedule="interleaved")
    names = {one.schedule for one in pipelines(chain, space, 8, True, job().stack.capabilities)}
    assert (COMBINED in names) == default
