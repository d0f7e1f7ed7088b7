"""Stages that layers and block alone rule out: no plan has them."""

from __future__ import annotations

import time
from random import Random

import numpy as np
import pytest
from instances import bounded, bounds_of, instance
from instances_hardware import need, random_cluster, random_job, shape
from oracle import solve

import nest
from nest._kernels import spans
from nest.model import Chain, profile_chain
from nest.search import compiled
from nest.search.formulating import formulate
from nest.search.query import Query
from nest.search.tensors import Formulation

pytestmark = pytest.mark.kernels


def noisy(
    rng: Random, layers: int, noise: float = 0.3, parameters: float = 1e8, kept: float = 1e8
) -> nest.Profile:
    """Layers that all differ, their seconds drawn one by one."""
    def layer(number: int) -> dict[str, object]:
        slower = 1.0 + rng.uniform(-noise, noise)
        return {"name": f"layer {number}", "output_bytes": 16e6, "tp": {degree: {
            "forward": 3e-3 * slower / degree**0.9, "backward": 6e-3 * slower / degree**0.9,
            "parameter_bytes": parameters / degree, "activation_bytes": kept / degree,
        } for degree in (1, 2, 4, 8)}}

    return nest.Profile.parse({"name": "noisy", "layers": [layer(n) for n in range(layers)]})


def best_of(
    f: Formulation, number: int, limit: float, gpipe: bool, everything: bool,
    many: int = spans.MANY,
) -> tuple[np.ndarray, int]:
    """Best step by number of stages, and how many options were listed."""
    kernels, _ = compiled.load()
    tables = f.tables(number, gpipe)
    ends, wanted = kernels.useful(
        f.spans(number), np.inf if everything else limit, tables, many)
    options = kernels.select(tables, wanted, limit)
    if not len(options[1]):
        return np.full(f.choices.deepest + 1, np.inf), len(options[1])
    _, problem = f.problem(number, ends, options, gpipe)
    best = kernels.solve(problem, limit, 1 << 62, True)[0]
    return best, len(options[1])


def small(seed: int) -> Formulation:
    """An instance of the oracle, or one of 5 to 11 layers that all differ on 2 to 16 devices."""
    if seed % 2:
        x = instance(seed)
        return formulate(Query(x.chain, x.cluster, x.job, x.space))
    rng = Random(f"spans {seed}")
    space = nest.SearchSpace.parse({"zero": [0, 1], "cp": [1]})
    sizes = (1e8, 1e8) if seed % 3 else (1e9, 4e9)  # where memory decides
    chain = profile_chain(noisy(rng, rng.randint(5, 11), 0.3, *sizes))
    cluster = nest.load_cluster("h100-spine-leaf", devices=2 ** rng.randint(1, 4))
    job = nest.Job(global_batch=2 ** rng.randint(2, 6), seq_len=1)
    return formulate(Query(chain, cluster, job, space))


def test_no_plan_below_the_limit_is_lost():
    fewer = fewest = compared = 0
    for seed in range(32):
        f = small(seed)
        for number in range(min(len(f.outers), 4)):
            for gpipe in (False, True):
                best, _ = best_of(f, number, np.inf, gpipe, True)
                for factor in (1.0 + 1e-6, 1.05, 1.3, 2.0):
                    limit = factor * best.min()
                    if limit == np.inf:
                        continue
                    all_, every = best_of(f, number, limit, gpipe, True)
                    found, some = best_of(f, number, limit, gpipe, False)
                    deep, least = best_of(f, number, limit, gpipe, False, many=0)
                    assert found.tolist() == all_.tolist(), (seed, number, gpipe, factor)
                    assert deep.tolist() == all_.tolist(), (seed, number, gpipe, factor)
                    assert least <= some <= every
                    compared, fewer = compared + 1, fewer + (some < every)
                    fewest += least < some
    assert compared > 330 and fewer > compared // 2 and fewest > compared // 20


@pytest.mark.kernels(uncompiled=True)
def test_few_layers_are_bounded_by_how_many_lie_behind_them():
    rng = Random("few layers")
    space = nest.SearchSpace(zero=(0, 1), cp=1, tp=1, mbs=1, recompute="none,full")
    cluster = nest.load_cluster("dgx-h100", devices=4)
    f = formulate(Query(profile_chain(noisy(rng, 5)), cluster, nest.Job(
        global_batch=4, seq_len=64), space))
    for number in range(len(f.outers)):
        best, every = best_of(f, number, np.inf, False, True)
        limit = 1.1 * best.min()
        if limit < np.inf:
            found, some = best_of(f, number, limit, False, False, many=0)
            assert found.min() == best.min() and some <= every


@pytest.mark.parametrize("seed", range(24))
def test_layers_that_all_differ_have_the_best_plan_of_all(seed: int):
    rng = Random(f"noisy {seed}")
    sizes = shape(rng, "pipeline")
    subject, job = noisy(rng, rng.randint(5, 11)), random_job(rng, "pipeline")
    chain: Chain = profile_chain(subject)
    cluster = random_cluster(rng, sizes, need(chain, job), "pipeline")
    bounds = bounds_of(rng, chain, cluster.size, "pipeline")
    space = bounded(rng, chain, cluster, job, bounds, 1e5, ())
    best = solve(chain, cluster, job, space, top=1).seconds
    try:
        found = nest.plan(subject, cluster, job, space, reorder=False, beyond_stack=True)
    except (nest.InfeasibleError, nest.InputError):
        assert best is None
    else:
        assert found.optimal and found.step_time_s == pytest.approx(best, rel=1e-9)


def test_layers_that_all_differ_take_seconds():
    job = nest.Job(global_batch=4096, seq_len=4096)
    cluster = nest.load_cluster("h100-spine-leaf", devices=1024)
    started = time.process_time()
    plan = nest.plan(noisy(Random(0), 250, 0.2), cluster, job, beyond_stack=True)
    assert plan.optimal and plan.search.transitions < 100_000
    assert time.process_time() - started < 30.0  # 3 s on an idle machine
