"""What is left out before combined passes are priced is no faster than the best step known."""

from __future__ import annotations

import numpy as np
import pytest
from test_alike import EXPERTS, cluster

import nest
from nest.inputs import Cluster, Job, SearchSpace, load_model, load_stack
from nest.model import build_chain
from nest.search import beside as module
from nest.search import compiled
from nest.search.alike import Alike, pipelines
from nest.search.beside import BESIDE, beside
from nest.search.signatures import signatures
from nest.search.tensors import Builder

pytestmark = pytest.mark.kernels


def job(**changes: float) -> Job:
    return Job(**{"global_batch": 8, "seq_len": 256, "memory_margin": 0.0,
                  "stack": load_stack("megatron-core").replace(workspace=0), **changes})


def split(where: Cluster, batch: Job, space: SearchSpace, limit: float) -> Builder:
    """The builder of combined passes beside that of all others."""
    chain = build_chain(load_model(EXPERTS))
    rules = batch.stack.capabilities
    listed = pipelines(chain, space, where.size, True, rules)
    plain = [one for one in listed if one.schedule != BESIDE]
    builder = Builder(chain, where, batch, space, signatures(chain, batch), rules=rules,
                      pipelines=plain, behind=listed)
    return beside(builder, [one for one in listed if one.schedule == BESIDE], rules, limit)


def least(builder: Builder, limit: float) -> float:
    """Best step below a limit; inf: none."""
    alike, kernel = Alike(builder), compiled.load(compiled.ALIKE)[0].alike
    found = [plan.step_time for number in range(len(builder.outers))
             if builder.span(number).start < builder.span(number).stop
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
    assert split(where, batch, SPACE, np.inf).rows.start.any() == (places > 1)
    best = least(split(where, batch, SPACE, np.inf), np.inf)
    assert best < np.inf
    named = nest.plan(load_model(EXPERTS), where, batch, SPACE.replace(schedule=BESIDE), threads=1)
    assert best == pytest.approx(named.step_time_s, rel=1e-9)
    near = split(where, batch, SPACE, best * (1 + 1e-6))
    assert least(near, best * (1 + 1e-6)) == pytest.approx(best, rel=1e-12)
    assert len(near.rows.block) < len(split(where, batch, SPACE, np.inf).rows.block)


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
    assert not len(split(where, batch, SPACE, 1e9).rows.block)


@pytest.mark.parametrize("default", [True, False])
def test_combined_is_in_the_default_space(default: bool) -> None:
    chain = build_chain(load_model(EXPERTS))
    space = SearchSpace() if default else SearchSpace(schedule="interleaved")
    names = {one.schedule for one in pipelines(chain, space, 8, True, job().stack.capabilities)}
    assert (BESIDE in names) == default
