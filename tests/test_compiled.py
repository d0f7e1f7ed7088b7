"""The gate into compiled code: same fields, one signature each, a cache of its own."""

from __future__ import annotations

import importlib
import itertools
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from instances import instance

import nest
from nest import compiled
from nest._kernels import interleaved, options, pipeline
from nest.costs.choices import bodies, states
from nest.costs.layer import layer_costs
from nest.costs.schedules import SCHEDULES
from nest.costs.schedules.one_f_one_b import add_stage
from nest.costs.stage import SUMMED, Sums, stage_costs, sums
from nest.tensors import Builder, Tables

WITHOUT_JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def test_kernels_and_tensors_agree_on_fields() -> None:
    assert options.Candidates._fields == Tables._fields
    for number, name in enumerate(Sums._fields):
        assert getattr(options, name.upper()) == number
    # The fields up to WORK add up over layers, in the kernels too.
    assert (len(Sums._fields), SUMMED) == (options.FIELDS, options.WORK)


@pytest.mark.skipif(WITHOUT_JIT, reason="nothing is compiled")
def test_every_kernel_is_compiled_once() -> None:
    kernels, _ = compiled.load()
    job = nest.Job(global_batch=16, seq_len=512)
    free = nest.SearchSpace(schedule=("1f1b", "interleaved", "gpipe"))
    for model, devices, space, top in (
        ("llama2-7b", 8, nest.SearchSpace(), 1), ("bert-large", 4, free, 3),
        ("bert-large", 4, nest.SearchSpace(tp=2, pp=2, vpp=2), 1),
    ):
        cluster = nest.load_cluster("dgx-a100", devices=devices)
        nest.plan(nest.load_model(model), cluster, job, space, top=top)
    # Layers with branches have other cuts.
    branched = next(x for x in map(instance, range(100)) if not x.chain.is_chain)
    with suppress(nest.InfeasibleError):
        nest.plan(branched.model, branched.cluster, branched.job, branched.space)
    for kernel in (kernels.undominated, kernels.select, kernels.solve, kernels.interleave):
        assert len(kernel.signatures) == 1


# ---------------------------------------------------------------- twins of the costs


def test_add_stage() -> None:
    rng = np.random.default_rng(1)
    for _ in range(2000):
        after, f, b, hop = rng.random(4)
        n, m = int(rng.integers(1, 9)), int(rng.integers(1, 30))
        rest = after + rng.random() * m
        assert pipeline.add_stage(rest, after, f, b, hop, n, m) == add_stage(
            rest, after, f, b, hop, n, m)[0]


def test_interleaved_seconds() -> None:
    rng = np.random.default_rng(2)
    twin = SCHEDULES["interleaved"]
    for _ in range(2000):
        p, v = int(rng.integers(2, 9)), int(rng.integers(2, 6))
        m = p * int(rng.integers(1, 5))
        f, b, finish, hops, traffic = rng.random((5, p)) * 10.0 ** rng.integers(-3, 2, (5, 1))
        overlap = float(rng.random())
        assert interleaved.step_seconds(p, f, b, finish, hops, m, v, traffic, overlap) == (
            pytest.approx(twin.step_time(f, b, finish, hops, m, v, traffic, overlap).total))
        for s in range(p):
            assert interleaved.in_flight(s, p, m, v) == twin.in_flight(s, p, m, v)


def test_finish_seconds() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        sync, exposed, gather = rng.uniform(-1.0, 1.0, 3)
        folded = Sums(*np.zeros((len(Sums._fields), 1)))._replace(
            sync=np.array([sync]), exposed=np.array([exposed]), gather=np.array([gather]))
        for chunks in (1, 2, 3):
            assert options.finish_seconds(sync, exposed, gather, chunks) == (
                stage_costs(folded, chunks).finish[0])


@pytest.mark.parametrize("seed", range(22))
def test_layer_sums(seed: int) -> None:
    """What kernels make of the tables is what the costs say of one layer and one configuration."""
    x = instance(seed)
    sizes, stack = x.cluster.group_sizes, x.job.stack
    builder = Builder(x.chain, x.cluster, x.job, x.space)
    rng = np.random.default_rng(seed)
    kinds = len(x.chain.kinds)
    layers, changes = np.zeros((kinds, options.FIELDS)), np.zeros(
        (len(builder.policies), kinds, 4))
    for number in rng.permutation(len(builder.outers))[:2].tolist():
        outer, span = builder.outers[number], builder._span(number)
        tables = options.Candidates(*builder.tables(number, False))
        level = builder.candidates.places(outer).span
        for c in rng.permutation(span.stop - span.start)[:2].tolist():
            start = int(builder.rows.start[span][c])
            for z, (zero, shard) in enumerate(builder.zeros):
                wanted = []
                for r, policy in enumerate(builder.policies):
                    code = ((c * len(builder.zeros) + z) * len(builder.policies) + r) * (
                        builder.signatures.longest + 1)
                    d = builder.degrees(number, code)
                    body = bodies(sizes, *(np.array([value]) for value in (
                        d["block"], outer.micro_batch // d["dp_in"], d["tp"], d["sp"], d["cp"],
                        d["cp_comm"] == "a2a", d["ep"], d["etp"], policy)))
                    state = states(sizes, *(np.array([value]) for value in (
                        start, d["block"], d["tp"], d["ep"] * d["etp"], outer.outer_dp,
                        outer.stride, level, zero, shard)))
                    wanted.append(np.array([
                        sums(layer_costs(kind, body, state, builder.setting), stack)
                        for kind in x.chain.kinds])[:, :, 0])
                options.layer_sums(tables, c, z, 0, layers)
                assert layers == pytest.approx(wanted[0], rel=1e-12, abs=1e-18)
                changes[:] = 0.0
                options.policy_changes(tables, c, z, layers, changes)
                for r, kind in itertools.product(range(1, len(wanted)), tables.kinds.tolist()):
                    more = wanted[r][kind] - wanted[0][kind]
                    for field, number_of in ((options.D_BACK, options.BACKWARD),
                                             (options.D_SYNC, options.SYNC),
                                             (options.D_HELD, options.ACTIVATIONS)):
                        rounding = 1e-12 * abs(wanted[r][kind, number_of])
                        assert changes[r, kind, field] == pytest.approx(
                            more[number_of], rel=1e-9, abs=rounding)
                    assert changes[r, kind, options.D_WORK] == pytest.approx(
                        wanted[r][kind, options.WORK])


# ---------------------------------------------------------------- the cache


def test_compiled_code_is_kept_below_the_folder_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    folder = compiled.cache_folder()
    assert folder is not None
    assert folder.parent == tmp_path / "nest-planner"
    config = importlib.import_module("numba.core.config")
    assert str(folder.parent.parent) != config.CACHE_DIR, "numba's own setting is left alone"


def test_without_a_folder_to_write_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, "/proc/nest")
    assert compiled.cache_folder() is None


def test_only_an_option_worse_in_nothing_takes_another_s_place() -> None:
    kept, who = np.empty((1, 8, 6)), np.empty((1, 8), np.int64)
    # Forward, backward, all of a step, in flight, shards; the finish alone is not compared.
    base = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 0.5])
    better = np.array([-0.5, -0.5, -0.5, 1.0, 1.0])
    count = options._keep(kept, who, 0, 0, base, 0)
    assert options._keep(kept, who, 0, count, base, 1) == 1, "of equal ones the first stays"
    for field in range(5):
        # Better in one field and worse in another, whatever their sum: both stay.
        for other in set(range(5)) - {field}:
            new = base.copy()
            new[field] += better[field]
            new[other] -= better[other]
            assert options._keep(kept.copy(), who.copy(), 0, 1, new, 1) == 2
        new = base.copy()
        new[field] += better[field]
        changed, names = kept.copy(), who.copy()
        assert options._keep(changed, names, 0, 1, new, 7) == 1
        assert names[0, 0] == 7
