"""Load the kernels with a cache of compiled code that is never stale.

numba's own cache does not see that a kernel called from another file has changed, so the folder
is named by a digest of numba's version and all sources of kernels and forms. It lies below
``NUMBA_CACHE_DIR`` or the user's cache folder. Where nothing can be written, or what is there
cannot be read, the kernels are compiled for the process alone, and a line on stderr names the
folder.

What a question does not need is not compiled for it. On two processors or more a second process
compiles half of it meanwhile. A file with the name of an entry point says that the folder has it.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nest.costs.network.records import Ends, KnownWays, Patterns, Tiles
from nest.records import (
    AHEAD,
    BACK,
    CANDIDATE,
    EXCHANGED,
    LINK,
    OPTION,
    PARTS,
    PIPE,
    STATE,
    columns,
)
from nest.search.problems import Legal, Pipelines, Problem, Rings, Spans, Sums
from nest.search.tables import Blocks, Degrees, Tables
from nest.search.threads import thread_count
from nest.search.wide_rules import NONE

MODULES = ("nest._kernels.routes", "nest._kernels.dominance", "nest._kernels.spans",
           "nest._kernels.options", "nest._kernels.pipeline", "nest._kernels.uniform.search",
           "nest._kernels.uniform.fits", "nest._kernels.orders", "nest._kernels.fitting",
           "nest._kernels.uniform.seen", "nest._kernels.uniform.asked")

SECONDS = {"alike": 13, "select": 9, "routes": 6, "solve": 5, "fits": 4, "longest_path": 3,
           "useful": 3, "may_fit": 2, "write_order": 2, "undominated": 1, "see": 1,
           "ask": 1}
"""About what compiling an entry point takes, the longest first: what two processes divide; of
``alike`` without ``fits``, a part of it."""
ALIKE = ("alike", "fits", "longest_path", "write_order", "may_fit", "undominated", "see", "ask")
UNLIKE = ("select", "solve", "useful")
LINKS = ("routes",)
"""What plans of alike stages need, what others need besides, and what clusters with links do."""

_lock = threading.Lock()
_loaded: Kernels | None = None
_ready: set[str] = set()
"""Entry points that are compiled."""
announce: Callable[[str], None] | None = None
"""Told, before anything that takes seconds, what is going on; the CLI prints it."""


class Kernels(NamedTuple):
    """Entry points."""

    routes: tuple[Callable[..., Any], ...]
    """``ways``, ``rates``."""
    undominated: Callable[..., Any]
    useful: Callable[..., Any]
    select: Callable[..., Any]
    solve: Callable[..., Any]
    alike: Callable[..., Any]
    may_fit: Callable[..., Any]
    see: Callable[..., Any]
    ask: Callable[..., Any]
    work_of: Callable[..., Any]
    fits: Any
    """A part of ``alike``, and what makes its arrays."""
    by_address: dict[str, Any]
    """Those that ``alike`` calls by their address, by name."""


def load(names: Collection[str] = ALIKE + UNLIKE) -> tuple[Kernels, float]:
    """Kernels, and the seconds that compiling or loading them took (0 if loaded).

    Those of ``names`` are ready to run; others are compiled when they are called.

    Raises
    ------
    InputError : a variable of the environment that sets threads, which numba would stumble over.
    """
    global _loaded
    thread_count()
    with _lock:
        missing = [name for name in names if name not in _ready]
        if _loaded is not None and not missing:
            return _loaded, 0.0
        started = time.perf_counter()
        _loaded = _prepared(_loaded, missing)
        _ready.update(missing)
        return _loaded, time.perf_counter() - started


def compile_into_cache(names: Collection[str]) -> None:
    """Compile entry points, so that other processes load them."""
    folder = cache_folder()
    if folder is not None:
        _warm(_import(folder), names)


def _prepared(loaded: Kernels | None, names: Collection[str]) -> Kernels:
    """Kernels of which ``names`` are compiled, with a cache if its folder is any good."""
    config: Any = importlib.import_module("numba.core.config")
    folder = None if config.DISABLE_JIT else cache_folder()
    reason: Exception | None = None
    for _ in range(2):
        if folder is None:
            break
        try:
            return _cached(loaded or _import(folder), folder, names)
        except Exception as error:  # of numba's files: whatever reading half of one may raise
            reason, loaded = error, None
            for name in [name for name in sys.modules if name.startswith("nest._kernels")]:
                del sys.modules[name]  # to be decorated anew
            if isinstance(error, OSError):
                break
            shutil.rmtree(folder, ignore_errors=True)
    if reason is not None:
        _say(f"Compiled code cannot be kept in {folder} ({type(reason).__name__}: {reason}); "
             "compiling for this process only ...")
    elif loaded is None and not config.DISABLE_JIT:
        _say("No folder for compiled code can be written; compiling for this process only ...")
    kernels = loaded or _import(None)
    if not config.DISABLE_JIT:
        _warm(kernels, names)
    return kernels


def _cached(kernels: Kernels, folder: Path, names: Collection[str]) -> Kernels:
    """The kernels, compiled into a folder or loaded from there."""
    other = None
    slow = [name for name in SECONDS if name in names and not (folder / name).exists()]
    if slow:
        beside = _half(slow) if thread_count() > 1 else []
        seconds = sum(SECONDS[name] for name in slow) / (2 if beside else 1)
        _say(f"Compiling the kernels, once (about {5 * math.ceil(seconds / 5)} s on two idle "
             "cores, which no time limit counts) ...")
        if beside:
            other = _compiling_beside(beside)
            slow = [name for name in slow if name not in beside]
    try:
        _warm(kernels, slow)
        if other is not None:
            other.wait()  # should it have failed, this process compiles what is missing
        _warm(kernels, [name for name in names if name != "fits"])  # of which `alike` has a copy
    finally:
        if other is not None:
            other.kill()
    with suppress(OSError):
        for name in names:
            (folder / name).touch()
    return kernels


def _half(names: Sequence[str]) -> list[str]:
    """Of entry points those that a second process compiles: about half of the seconds."""
    halves: tuple[list[str], list[str]] = ([], [])
    for name in names:
        min(halves, key=lambda half: sum(SECONDS[one] for one in half)).append(name)
    return halves[1]


def _compiling_beside(names: Collection[str]) -> subprocess.Popen[bytes]:
    """Another process that compiles entry points into the cache."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    code = f"from nest.search.compiled import compile_into_cache as run; run({tuple(names)!r})"
    return subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def cache_folder() -> Path | None:
    """Folder for compiled code, made if need be; None where nothing can be written."""
    import numba

    digest = hashlib.sha256(numba.__version__.encode())
    here = Path(__file__).parent.parent
    for source in sorted((*(here / "_kernels").rglob("*.py"), *(here / "schedules").glob("*.py"),
                          here / "records.py")):
        digest.update(source.read_bytes())
    roots = [os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME"), "~/.cache"]
    for root in filter(None, roots):
        folder = Path(root).expanduser() / "nest-planner" / digest.hexdigest()[:16]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return None


def _import(folder: Path | None) -> Kernels:
    """The kernels as they are decorated: to be kept in a folder, or not at all."""
    config: Any = importlib.import_module("numba.core.config")
    decorators: Any = importlib.import_module("nest._kernels")
    decorators.CACHE = folder is not None
    before = config.CACHE_DIR
    try:
        if folder is not None:
            config.CACHE_DIR = str(folder)
        (routes, dominance, spans, options, pipeline, alike, fits, orders, fitting, seen,
         asked) = map(importlib.import_module, MODULES)
    finally:
        config.CACHE_DIR = before
    return Kernels(
        (routes.ways, routes.rates), dominance.undominated, spans.useful,
        options.select,
        pipeline.solve, alike.alike, fitting.may_fit, seen.see, asked.ask,
        alike.work_of, fits.fits,
        {"longest_path": orders.longest_path, "write_order": orders.write_order})


def _say(text: str) -> None:
    if announce is not None:
        announce(text)
    else:
        print(text, file=sys.stderr)


@contextmanager
def _without_collecting() -> Iterator[None]:
    """No search for garbage, which takes a tenth of the time of compiling and finds little."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@_without_collecting()
def _warm(kernels: Kernels, names: Collection[str]) -> None:
    """Run kernels once on the smallest problem, so that all compiling happens here."""
    from numba import typeof

    zero, one = np.zeros(1, np.int64), np.ones(1)
    no = np.zeros(1, np.bool_)
    tables = Tables(
        ahead=np.zeros((1, 1), AHEAD), back=np.zeros((1, 1, 1), BACK),
        state=np.zeros((1, 1, 1), STATE), body=zero, held=zero, price=zero, weight=one,
        shards=zero + 1, relayed=one, hybrid=no,
        shard=zero, forbidden=no, keep_none=True, full=-1, first_layers=no, most_layers=1,
        last=zero, part=zero - 1, seen=np.array([[0], [1]], np.int32),
        stretch=np.array([[0, 1]]), among=zero[None] + np.array([0, 1]), marked=zero, way=zero,
        ancestor=zero[None].astype(np.int32), kinds=zero,
        relay=0 * one, received=0 * one, cap=zero + 1, whole=0,
        limit_bytes=1e9, micro_batches=1, least=one, overlaps=np.zeros(4),
        overlaps_alone=np.zeros(4), root=zero,
        second=zero - 1, third=zero - 1, children=zero, begin=np.array([0, 1, 1]),
        before=zero - 1, depth=zero + 1, gpipe=False,
    )
    yes = np.ones((1, 1), np.bool_)
    degrees = Degrees(
        exchanged=np.zeros((0, 1, 2), EXCHANGED),
        candidate=columns(CANDIDATE, body=0, held=0, shards=1, relayed=0.0),
        **{name: getattr(tables, name) for name in Degrees._fields if name in Tables._fields})
    rings = Rings(
        size=zero, alike=zero[None], place=zero[None, None], hop=np.zeros((1, 2), LINK),
        wrap=np.zeros((1, 2), LINK), twin=np.zeros(0, LINK), both=1.0, handed=np.zeros(2),
        received=np.zeros(2), marked_before=np.zeros(2, np.int64))
    pipelines = Pipelines(
        pipe=columns(
            PIPE, schedule=0, pp=1, vpp=1, group=1, row=0, smallest=0, warm=1.0, free=True, first=0,
            last=0, longest=0, widest=0),
        apart=np.zeros((1, 1, 2), PARTS), repeated=np.zeros(2, np.bool_), begin=zero,
        load=zero, layouts=zero, body=np.arange(2),
        given=np.zeros(1, np.int8), given_from=zero,
        asked=zero, floor=one, cut=np.ones((1, 2), np.bool_),
        heaviest=zero, seen=np.zeros((1, 3, 5, 2), np.int16),
        run=zero, until=zero, least_seen=np.zeros((1, 3, 5, 2), np.int16),
        signature=np.array([[-1, 0], [-1, -1]]),
        order=zero, whole=zero, least_handed=0.0, grows=True, most=1)
    legal = Legal(
        row_pipeline=yes, way_pipeline=yes, policy_pipeline=yes,
        first_pipeline=yes, wide=NONE)
    if "fits" in names:  # first: another process waits for it
        kernels.fits.compile(tuple(map(typeof, (
            degrees, rings, pipelines, kernels.work_of(degrees, rings, pipelines), 1, 1.0))))
    if "routes" in names:
        ways, rates = kernels.routes
        number, link, two = np.ones(1, np.int32), np.zeros(1, np.int32), np.arange(2)
        ways(0 * two, zero, zero, link[None], one, zero, zero)
        tiles = Tiles(start=zero, low=zero, high=zero, first=two)
        rates(Ends(anchors=1, anchor=zero, up=zero, down=zero, bandwidth=one, latency=one),
              KnownWays(number=number, first=two, link=link, part=one, latency=one), tiles, zero, 1,
              Patterns(source=zero, target=zero, begin=0 * two, share=one), False)
    if "undominated" in names:
        kernels.undominated(Blocks(
            **{name: getattr(tables, name) for name in Blocks._fields[:9]}, choices=zero + 1,
            begin=np.array([0, 1])))
    if "ask" in names:
        kernels.ask(Sums(
            own=np.ones((2, 1, 1)), slower=one[None], held=one[None], kept=np.ones((1, 1, 1)),
            resident=np.ones((1, 1, 1)), first=zero, second=zero, counts=zero + 1, body=zero,
            state=zero, most=zero + 1, fast=zero, lean=zero, row_way=yes, row_policy=yes,
            way_policy=yes, warm=np.ones((2, 3, 3)), deepest=1, copies=1, micro_batches=1,
            limit_bytes=1e9), 1e9, zero + 0, np.ones((1, 3)), np.zeros((1, 2), np.int64))
    if "see" in names:
        kernels.see(np.arange(2)[None], zero[None], np.zeros((1, 2), np.int16), np.arange(2),
                    *np.zeros((4, 1), np.int64), np.zeros((1, 3, 5, 1), np.int16))
    problem = Problem(
        micro_batches=1, sizes=zero + 1, lanes=zero + 1, price=np.array([[0, -1]]),
        signature=np.array([[-1, 0], [-1, -1]]), gpipe=False,
        ends=np.array([[[1, 0]], [[2, 0]]]), first=np.array([[0, 1]]),
        option=columns(OPTION, **dict.fromkeys(OPTION.names or (), 1)),
        hop_bytes=np.zeros(2), hop_per_byte=np.zeros(2), hop_latency=np.zeros(2), both=1.0,
        depths=np.array([False, True]))
    spans = Spans(
        micro_batches=1, sizes=zero + 1, price=problem.price, share=np.arange(2.0),
        seconds=np.array([[0.0, 1.0]]), fits=np.array([[1, 1]]), work=np.arange(2.0),
        signature=problem.signature, part=tables.part, whole=0, chain=True)
    if "useful" in names:
        kernels.useful(spans, 1e9, tables, 0)
    if "select" in names:
        kernels.select(tables, kernels.useful(spans, np.inf)[1], 1e9)
    if "solve" in names:
        kernels.solve(problem, 1e9, 1, False)
    if "may_fit" in names:
        kernels.may_fit(tables, problem.signature, problem.sizes, problem.price, problem.depths)
    for name, part in kernels.by_address.items():
        if name in names:
            part.__wrapper_address__()
    if "alike" in names:
        kernels.alike(degrees, rings, pipelines, legal, 1e9, False)
