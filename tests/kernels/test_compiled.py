"""The gate into compiled code: same fields, one signature each, a cache of its own."""

from __future__ import annotations

import importlib
import itertools
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest
from instances import instance
from plain import stack

import nest
from nest import _kernels
from nest._kernels import (
    Called,
    fold,
    form,
    options,
    orders,
    pipeline,
    spans,
)
from nest._kernels.option_work import OptionWork
from nest._kernels.private import Part
from nest._kernels.signatures import argument_types, type_of
from nest._kernels.uniform import fits
from nest.costs.choices import Site, bodies, exchange_of, states
from nest.costs.layer import layer_costs
from nest.costs.network.fabric import Fabric
from nest.costs.network.paths import LinkPrices
from nest.costs.network.placement import aligned_starts, tile_of
from nest.costs.stage import chunk_costs, layer_seconds
from nest.network.network import load_network
from nest.records import FIGURES, LAYER, OPTION, columns
from nest.records.links import Twins
from nest.records.tables import Tables
from nest.schedules import gpipe as gpipe_form
from nest.schedules import one_f_one_b
from nest.schedules import orders as schedule_orders
from nest.schedules.chunk import ChunkCosts, LayerSeconds
from nest.schedules.registry import SCHEDULES
from nest.schedules.stage import StageSeconds
from nest.schedules.traits import Hop
from nest.search import compiled
from nest.search.formulating import formulate
from nest.search.query import Query

pytestmark = pytest.mark.kernels(uncompiled=True)


WORK_OF = options.work_of


@pytest.mark.kernels
def test_every_kernel_is_compiled_once() -> None:
    """In a process of its own: other tests give kernels what no search makes."""
    with ProcessPoolExecutor(1, get_context("spawn"), compiled._import,
                             (compiled.cache_folder(),)) as alone:
        found = alone.submit(compiled_for).result()
    assert found
    for name, signatures in found:
        assert len(signatures) == 1, (name, signatures)


def compiled_for() -> list[tuple[str, list[str]]]:
    """Signatures of each kernel after searches of all kinds."""
    kernels, _ = compiled.load()
    job = nest.Job(global_batch=16, seq_len=512)
    free = nest.SearchSpace(schedule=("1f1b", "interleaved", "gpipe"))
    for model, devices, space, top in (
        ("llama2-7b", 8, nest.SearchSpace(), 1), ("bert-large", 4, free, 3),
        ("bert-large", 4, nest.SearchSpace(tp=2, pp=2, vpp=2), 1),
    ):
        cluster = nest.load_cluster("dgx-a100", devices=devices)
        nest.plan(nest.load_model(model), cluster, job, space, top=top, beyond_stack=True)
    # Layers with branches have other cuts.
    branched = next(x for x in map(instance, range(100)) if not x.chain.is_chain)
    with suppress(nest.InfeasibleError):
        nest.plan(branched.model, branched.cluster, branched.job, branched.space, beyond_stack=True)
    nest.plan(nest.load_model("bert-large"), nest.load_network("torus:dims=2x3"),
              nest.Job(global_batch=12, seq_len=512), nest.SearchSpace(recompute=("none",)),
              beyond_stack=True)
    # The types that annotations name are those of what the search makes.
    return [(name, [*map(str, part.signatures)]) for name, parts in kernels.entries.items()
            for part in parts if hasattr(part, "signatures")]


def test_annotations_name_the_types_of_what_they_annotate() -> None:
    x = instance(0)
    tables = formulate(Query(x.chain, x.cluster, x.job, x.space)).tables(0, False)
    work = options.work_of(tables, all_wanted(tables))
    assert type_of(OptionWork) == numba.typeof(work)
    types = argument_types(getattr(options.fill, "py_func", options.fill))
    assert types == tuple(map(numba.typeof, (tables, work, 0, 1.0)))
    with pytest.raises(TypeError, match="arrays with their axes"):
        type_of(list[int])
    with pytest.raises(TypeError, match="arrays without gaps"):
        numba.typeof(tables._replace(shard=tables.shard[::-1]))


OTHER_NUMBA = """
import sys, typing
import numpy as np
from numba.core import codegen, options, registry
del options.DefaultOptions._nrt, codegen.JITCodeLibrary, registry.CPUDispatcher
import numba
from nest import _kernels
from nest._kernels import private

_kernels.CACHE = False
half = _kernels.leaf(lambda x: x / 2)
print(numba.njit(lambda x: half(x))(3), type(half) is private.Part, private.LINKED,
      private.UNCOUNTED, private.entry_point(len, ()) is len)

from nest._kernels.signatures import type_of
from nest.records.tables import Floats
Pair = typing.NamedTuple("Pair", [("numbers", Floats), ("more", float)])
pair = Pair(np.ones(3), 2.0)
added = numba.njit([(type_of(Pair),)])(lambda pair: pair.numbers[1] + pair.more)
before = sys.getrefcount(pair.numbers)
print(sum(added(pair) for _ in range(9)), sys.getrefcount(pair.numbers) - before)
"""


@pytest.mark.kernels
def test_a_numba_without_its_private_options_compiles_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", OTHER_NUMBA], text=True, capture_output=True)
    assert (done.returncode, done.stdout) == (0, "1.5 False {} {} True\n27.0 0\n"), done.stderr


def named_in(package: ModuleType) -> Iterator[tuple[str, Any]]:
    """All that the modules of a package define or import, with their names."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            yield f"{module.name}.{name}", value


@pytest.mark.kernels
def test_python_calls_entry_points_alone() -> None:
    """There is no code that takes Python's arguments for a part: numba would jump to none."""
    entries = [part for parts in compiled.load([])[0].entries.values() for part in parts]
    parts = 0
    for name, value in named_in(_kernels):
        if isinstance(value, Called) or (hasattr(value, "py_func") and value not in entries):
            parts += 1
            with pytest.raises(TypeError, match=r"part of kernels|not callable"):
                value(np.zeros(1))
            assert isinstance(value, Called | Part), name
    assert parts > 100


@pytest.mark.kernels
def test_constants_compile_a_part_once() -> None:
    more = _kernels.leaf(lambda x, y: x + y)
    assert numba.njit(lambda x: more(x, 1) + more(x, y=2) + more(3, x))(1) == 9
    assert len(more.signatures) == 1  # type: ignore[attr-defined]


# ---------------------------------------------------------------- twins of the costs


@cache
def compiled_call(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A part of a kernel, which Python cannot call, as a function of its own."""
    def call(*arguments):  # type: ignore[no-untyped-def]
        return kernel(*arguments)
    return numba.njit(call)


def test_forms_are_the_same_compiled() -> None:
    """As in Python, to rounding: what is added up in an order of its own is nothing."""
    rng = np.random.default_rng(1)
    for one, kernel in ((one_f_one_b, pipeline.add_stage), (gpipe_form, pipeline.add_gpipe_stage)):
        put = compiled_call(kernel)
        for _ in range(2000):
            n, m = int(rng.integers(0, 9)), int(rng.integers(1, 30))
            # No figure is always the longest.
            old = np.array(one.NOTHING)
            if n:
                old = rng.random(one.FIGURES) * rng.choice((0.1, 1.0, 3.0), one.FIGURES)
            both, gap, *figures = rng.random(12) * (n > 0)
            counts = (n, m, m // 2) if one is one_f_one_b else (n, m)
            wanted, found = [0.0] * one.FIGURES, np.zeros(one.FIGURES)
            one.add_stage(old.tolist(), StageSeconds(*figures), both, gap, *counts, wanted)
            put(old, StageSeconds(*figures), both, gap, *counts, found)
            assert found == pytest.approx(np.array(wanted), rel=1e-12)


@pytest.mark.parametrize(("network", "lost"), [
    ("spine-leaf:leaves=3,per_leaf=16,node=4,spines=2", "node1"),
    ("spine-leaf:leaves=3,per_leaf=16,node=4,spines=2", "node1,node5"),
    ("spine-leaf:leaves=3,per_leaf=16", "gpu1..4,gpu33..36")])
def test_prices_of_links_are_the_same_compiled(network: str, lost: str) -> None:
    """Of all tiles at once, as NumPy prices them one by one; also where devices are left over."""
    cluster = load_network(network, without=lost)
    sizes = cluster.group_sizes
    some, plain = (LinkPrices(cluster, twins)
                   for twins in (Twins(*compiled.load()[0].routes), None))
    tiles = 0
    for block, distance, size in ((4, 2, 2), (8, 1, 8), (8, 2, 2), (12, 3, 4), (16, 4, 4)):
        starts = np.arange(cluster.size - block + 1)
        starts = starts[aligned_starts(starts, block, sizes)]
        every = some.inside(starts, block, distance, size, True)
        for tile in set(tile_of(starts, block, sizes).tolist()):
            rows = tile_of(starts, block, sizes) == tile
            assert (plain.inside(starts[rows], block, distance, size, True) == every[rows]).all()
            tiles += 1
        assert (every[:, : 2 * len(sizes)].any(axis=1)).all()
        for inner, outer_dp, stride in ((1, 2, 20), (2, 2, 16), (distance, 1, cluster.size)):
            here = starts[starts + block <= stride]
            groups = (here, block, inner, outer_dp, stride)
            assert (some.over_replicas(*groups) == plain.over_replicas(*groups)).all()
        # Groups over one replica are groups inside.
        alone = Fabric(cluster).over_replicas(
            *(np.array([n]) for n in (0, block, 1, cluster.size, 2))).paths
        assert alone is not None
        assert np.concatenate([np.ravel(figure) for figure in alone]).tolist() == (
            plain.over_replicas(starts[:1], block, 2, 1, cluster.size)[0].tolist())
    assert tiles > 10


def random_layers(rng: np.random.Generator, kinds: int, zero: int) -> np.ndarray:
    """(2 policies, kinds) layers; traffic is the same under both policies."""
    found = np.zeros((2, kinds), LAYER)
    for name in LAYER.names:
        found[name] = rng.random((2, kinds)) * 10.0 ** rng.integers(-2, 2)
    for name in ("gathered", "regathered", "scattered", "sync", "gather", "maxima", "buffers",
                 "update", "tied"):
        found[name][1] = found[name][0]
    found["regathered"] = found["gathered"] * rng.integers(2)
    for name, zeros in (("gathered", (3,)), ("regathered", (3,)), ("scattered", (2, 3)),
                        ("gather", (1, 2))):
        if zero not in zeros:
            found[name] = 0.0
    return found


def plain(
    figures: np.ndarray, kinds: list[int], again: list[int], software: nest.Stack
) -> ChunkCosts:
    run = [LayerSeconds(*(float(figures[r, kind][name]) for name in LayerSeconds._fields))
           for kind, r in zip(kinds, again, strict=True)]
    update, tied = (sum(figures[name][0, kind] for kind in kinds) for name in ("update", "tied"))
    return chunk_costs(run, update, tied, software)


def stack_of(overlaps: np.ndarray) -> nest.Stack:
    zero, reduce, refresh = overlaps.tolist()
    return stack(overlap_zero3=zero, overlap_grad_reduce=reduce, overlap_param_gather=refresh)


def test_chunk_costs() -> None:
    rng = np.random.default_rng(2)
    out, chunk_costs_of = np.zeros(1, FIGURES), compiled_call(fold.chunk_costs)
    for _ in range(1000):
        figures = random_layers(rng, 3, int(rng.integers(4)))
        count, overlaps = int(rng.integers(1, 7)), rng.random(3) * (rng.random(3) < 0.8)
        kinds, again = rng.integers(0, 3, 8), rng.integers(0, 2, 8)
        chunk_costs_of(figures, kinds, again, 1, 1 + count, overlaps, out[0])
        wanted = plain(figures, kinds[1 : 1 + count].tolist(), again[1 : 1 + count].tolist(),
                       stack_of(overlaps))._replace(update=0.0, tied=0.0)
        found = [float(out[name][0]) for name in ChunkCosts._fields]
        assert found == pytest.approx([float(value) for value in wanted], rel=1e-9, abs=1e-12)


def test_interleaved_seconds() -> None:
    rng, early = np.random.default_rng(2), 0
    twin = SCHEDULES["interleaved"]
    step_seconds = compiled_call(orders.step_seconds)
    write, held = map(compiled_call, (form(schedule_orders.write_interleaved), fits.held))
    for _ in range(100):
        p, v = int(rng.integers(2, 9)), int(rng.integers(2, 6))
        m = p * int(rng.integers(1, 5))
        # The arrays have room for the deepest pipeline.
        wide = np.zeros((p + 1, v + 1), FIGURES)
        costs = wide[:p, :v]
        for name in ChunkCosts._fields:
            costs[name] = rng.random((p, v)) * 10.0 ** rng.integers(-3, 2)
        costs["tied"] *= rng.random((p, 1)) < 0.3
        costs["gather"] *= rng.random() < 0.5
        costs["largest"] *= (rng.random((p, v)) < 0.5) * (rng.random((p, 1)) < 0.8)
        costs["alone"] = rng.random((p, v)) < 0.4
        links = rng.random((p, v, 2)) * 10.0 ** rng.integers(-3, 2, 2)
        stages = [[ChunkCosts(*(chunk[name].item() for name in ChunkCosts._fields))
                   for chunk in stage] for stage in costs]
        hops = [[Hop(*pair) for pair in pairs] for pairs in links.tolist()]
        order = orders.order_of(p + 1, p * v + 1, 2 * p * m * v + 1)
        room = orders.room_of(p + 1, p * v + 1, p * m * v + 1)
        write(p, v, m, p, order)
        total = twin.step_time(stages, hops, m).total
        for part in (np.inf, 1.0 + 1e-9, 0.99, 0.5):
            found = step_seconds(
                wide, links, p, v, m, p * v, order, room, part * total)
            if part > 1.0:
                assert found == pytest.approx(total, rel=1e-12)
            else:
                assert part * total <= found <= total * (1 + 1e-12)
                early += found < total * (1 - 1e-12)
        sizes = rng.random(v)
        for s in range(p):
            assert held(sizes, sizes, s, order, np.inf) == pytest.approx(
                twin.held(sizes.tolist(), s, p, m))
    assert early > 30


@pytest.mark.parametrize("seed", range(22))
def test_layer_sums(seed: int) -> None:
    """What kernels make of the tables is what the costs say of one layer and one configuration."""
    x = instance(seed)
    f = formulate(Query(x.chain, x.cluster, x.job, x.space))
    rng = np.random.default_rng(seed)
    figures = np.zeros((len(f.choices.policies), len(x.chain.kinds)), LAYER)
    layer_sums = compiled_call(fold.layer_sums)
    for number in rng.permutation(len(f.outers))[:2].tolist():
        outer, span = f.outers[number], f.span(number)
        tables = f.tables(number, False)
        for c in rng.permutation(span.stop - span.start)[:2].tolist():
            start = int(f.listing.rows.start[span][c])
            ways = [*itertools.product(range(len(f.choices.zeros)), range(len(f.choices.policies)))]
            for z, r in rng.permutation(ways)[:12].tolist():
                (zero, shard), policy = f.choices.zeros[z], f.choices.policies[r]
                code = ((c * len(f.choices.zeros) + z) * len(f.choices.policies) + r) * (
                    f.choices.signatures.longest + 1)
                d = f.degrees(number, code)
                site = Site(*(np.array([value]) for value in (
                    start, d["block"], outer.outer_dp, outer.stride)))
                body = bodies(f.choices.candidates.fabric, site, *(np.array([v]) for v in (
                    outer.micro_batch // d["dp_in"], d["tp"], d["sp"], d["cp"],
                    *exchange_of(d["cp_comm"], d["cp"], d["cp_a2a"]), d["ep"], d["etp"])),
                    recompute=np.array([policy]))
                state = states(f.choices.candidates.fabric, site, *(np.array([v]) for v in (
                    d["tp"], d["ep"] * d["etp"], zero, shard)), x.job.reduces_maxima)
                layer_sums(tables, tables.body[c], tables.held[c], z, r, figures)
                for kind, found in zip(x.chain.kinds, figures[r], strict=True):
                    costs = layer_costs(kind, body, state, f.prices.settings[0])
                    resident = costs.parameters + costs.gradients + costs.optimizer
                    wanted = [*layer_seconds(costs), *(float(value[0]) for value in (
                        costs.buffers, costs.update, costs.tied, resident,
                        costs.activations, costs.work))]
                    assert [float(found[name]) for name in LAYER.names] == pytest.approx(
                        wanted, rel=1e-12, abs=1e-18)


@pytest.mark.parametrize("seed", range(12))
def test_options_of_a_signature(seed: int) -> None:
    """Folded along the tree of signatures, or from scratch under a policy, as in the costs."""
    x = instance(seed)
    f = formulate(Query(x.chain, x.cluster, x.job, x.space))
    rng = np.random.default_rng(seed)
    s, kinds = f.choices.signatures, len(x.chain.kinds)
    walk, close, recomputed, left_seconds = map(compiled_call, (
        fold.walk, fold.fill_whole, fold.recomputed, options.left_seconds))
    for gpipe in (False, True):
        for zero in range(4):
            tables = f.tables(0, gpipe)._replace(
                overlaps=rng.random(3) * (rng.random(3) < 0.8), overlaps_alone=rng.random(3),
                least=np.zeros(kinds))
            figures = random_layers(rng, kinds, zero)
            for kind, one in enumerate(x.chain.kinds):
                if not one.checkpointed:
                    figures[1, kind] = figures[0, kind]
            w = options.work_of(tables, all_wanted(tables))._replace(layers=figures)
            w.base[:] = 0.0
            reached = walk(tables, w, 0, np.inf, np.inf)
            assert reached == len(s.part)
            for g in rng.permutation(reached)[:30].tolist():
                sequence, at = [], g
                while at >= 0:
                    sequence, at = [int(s.last[at]), *sequence], int(s.part[at])
                close(tables, w, g)
                check_option(w.new[0], plain(figures, sequence, [0] * len(sequence),
                                        stack_of(tables.overlaps)), gpipe)
                first = int(rng.integers(s.marked[g] + 1))
                recomputed(tables, w, g, 1, first)
                seen, again = 0, []
                for kind in sequence:
                    seen += x.chain.kinds[kind].checkpointed
                    again.append(int(seen <= first))
                one = tables.overlaps_alone if g == tables.whole else tables.overlaps
                found = plain(figures, sequence, again, stack_of(one))
                check_option(w.new[0], found, gpipe)
                if zero < 2:
                    left = left_seconds(tables, figures, g, 1, first)
                    assert left == pytest.approx(found.left, rel=1e-9, abs=1e-12)


def all_wanted(tables: Tables) -> spans.Wanted:
    return spans.everything(
        int(tables.price[-1]) + 1, len(tables.part), tables.micro_batches)


@pytest.mark.parametrize("seed", range(6))
def test_faster_options_come_first(seed: int) -> None:
    """Of plans that take the same, the first one found is taken."""
    x = instance(seed)
    tables = formulate(Query(x.chain, x.cluster, x.job, x.space)).tables(0, False)
    first, *_, found = options.select(tables, all_wanted(tables), 1e9)
    time = found["forward"] + found["backward"]
    begins = np.isin(np.arange(1, len(time)), first)
    assert ((np.diff(time) >= 0.0) | begins).all()


def test_room_for_options_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    grown = 0
    wider = options.wider

    def counted(w: OptionWork) -> OptionWork:
        nonlocal grown
        grown += 1
        return wider(w)

    monkeypatch.setattr(options, "wider", counted)
    for x in map(instance, range(6)):
        f = formulate(Query(x.chain, x.cluster, x.job, x.space))
        tables = f.tables(0, False)
        found = []
        for room in ((1, 1), (2, 1000), (5000, 1), (5000, 1000)):
            monkeypatch.setattr(options, "work_of", partial(WORK_OF, options=room[0], each=room[1]))
            kept = options.select(tables, all_wanted(tables), 1e9)
            found.append([array.tolist() for array in kept])
        assert all(one == found[0] for one in found)
    assert grown > 1


def check_option(new: np.ndarray, c: ChunkCosts, gpipe: bool) -> None:
    """An option holds what the schedules take of a stage."""
    end = c.backward - c.late
    late = c.late_back if gpipe else c.late
    chase = 0.0 if gpipe else c.pace - c.turn
    queue = c.queue + c.late - late
    left, later = (c.left, c.tied + c.update) if c.tied else (c.left + c.update, 0.0)
    wanted = {
        "forward": c.forward, "backward": end + late, "late": late, "last": end, "turn": c.turn,
        "chase": chase, "chased": c.forward + end + late + chase,
        "paced": c.forward + end + late + chase + c.turn, "queue_forward": c.queue_forward,
        "queued": c.forward + c.queue_forward, "queue_backward": queue,
        "queued_back": end + late + queue,
        "wait": c.wait, "waited": c.forward + c.wait, "left": left, "later": later,
        "ready": end + left,
    }
    for name, value in wanted.items():
        assert new[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


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


LOAD = """
import sys
from nest.search import compiled
{before}
compiled.load(["undominated"])
print(len(sys.modules["nest._kernels.dominance"]._mark.stats.cache_hits))
"""
FULL = """
import errno, os
def full(*args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
os.replace = full
"""


def load_one(folder: Path, before: str = "") -> tuple[int, str]:
    """Cache hits of a new process that loads the smallest kernel from a folder; what it says."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD.format(before=before)], text=True, capture_output=True,
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder), "NEST_THREADS": "1"}, check=True)
    return int(done.stdout), done.stderr


@pytest.mark.kernels
def test_damaged_compiled_code_is_compiled_again(tmp_path: Path) -> None:
    assert load_one(tmp_path)[0] == 0
    assert load_one(tmp_path) == (1, "")
    for suffix, half in (("nbi", 0), ("nbc", 2)):
        for file in tmp_path.rglob(f"*.{suffix}"):
            data = file.read_bytes()
            file.write_bytes(data[:half and len(data) // half])
        assert load_one(tmp_path)[0] == 0
        assert load_one(tmp_path) == (1, "")


@pytest.mark.kernels
def test_a_full_disk_costs_compiling_and_one_warning(tmp_path: Path) -> None:
    hits, said = load_one(tmp_path, FULL)
    *_, warning = said.strip().splitlines()
    assert hits == 0
    assert warning.startswith(f"Compiled code cannot be kept in {tmp_path}")
    assert "No space left on device" in warning


@pytest.mark.kernels
def test_a_process_beside_compiles_into_the_same_cache(tmp_path: Path) -> None:
    before = """
compiled._half, compiled.thread_count = list, lambda: 2
"""
    assert load_one(tmp_path, before)[0] == 1
    # One that fails is not missed.
    failing = before + "import subprocess\nsys.executable = '/bin/false'"
    assert load_one(tmp_path / "other", failing)[0] == 0


def test_only_an_option_worse_in_nothing_takes_another_s_place() -> None:
    keep = compiled_call(options._keep)
    kept, tally = np.zeros((1, 8), OPTION), np.zeros(1, np.int64)
    decide = ("forward", "ready", "backward", "waited", "last", "turn", "paced", "chased", "queued",
              "queued_back", "later", "held", "shards")

    def option(degrees: int, *changes: tuple[str, int]) -> np.ndarray:
        """An option some of whose fields are better, or worse where a change is below zero."""
        one = columns(OPTION, **{name: 10 * n + 10 for n, name in enumerate(OPTION.names)})[0]
        one.degrees = degrees
        for name, better in changes:
            one[name] += better if name in ("held", "shards") else -better
        return one

    assert keep(kept, tally, 0, option(0)) and keep(kept, tally, 0, option(1))
    assert tally[0] == 1 and kept[0, 0].degrees == 0, "of equal ones the first stays"
    for field in decide:
        # Better in one field and worse in another, whatever their sum: both stay.
        for other in set(decide) - {field}:
            new, count = option(1, (field, 1), (other, -1)), tally.copy()
            assert keep(kept.copy(), count, 0, new) and count[0] == 2
            assert not keep(kept[:, :1].copy(), tally.copy(), 0, new), "no room"
        changed, count = kept.copy(), tally.copy()
        new = option(7, (field, 1))
        assert keep(changed, count, 0, new) and count[0] == 1
        assert changed[0, 0] == new
