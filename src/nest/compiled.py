"""Load the kernels with a cache of compiled code that is never stale.

numba's own cache does not see that a kernel called from another file has changed, so the folder
is named by a digest of numba's version and all kernel sources. It lies below ``NUMBA_CACHE_DIR``
or the user's cache folder; with neither writable the kernels are compiled in every process.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nest.tables import Blocks, Tables

MODULES = ("nest._kernels.routes", "nest._kernels.dominance", "nest._kernels.options",
           "nest._kernels.pipeline", "nest._kernels.interleaved")

_lock = threading.Lock()
_loaded: tuple[Kernels, float] | None = None
announce: Callable[[str], None] | None = None
"""Told, before anything that takes seconds, what is going on; the CLI prints it."""


class Kernels(NamedTuple):
    """Entry points and the types of their arguments."""

    routes: tuple[Callable[..., Any], ...]
    """``ways``, ``unrouted``, ``rates``."""
    undominated: Callable[..., Any]
    select: Callable[..., Any]
    solve: Callable[..., Any]
    interleave: Callable[..., Any]
    Problem: type[Any]
    Rings: type[Any]


def load() -> tuple[Kernels, float]:
    """Kernels ready to run, and the seconds that compiling or loading them took (0 if loaded)."""
    global _loaded
    with _lock:
        if _loaded is not None:
            return _loaded[0], 0.0
        started = time.perf_counter()
        kernels = _import()
        _warm(kernels)
        _loaded = kernels, time.perf_counter() - started
        return _loaded


def cache_folder() -> Path | None:
    """Folder for compiled code, made if need be; None where nothing can be written."""
    import numba

    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted((Path(__file__).parent / "_kernels").glob("*.py")):
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


def _import() -> Kernels:
    import nest._kernels

    config: Any = importlib.import_module("numba.core.config")

    folder = cache_folder()
    jit = not config.DISABLE_JIT
    if folder is None:
        nest._kernels.CACHE = False
        if jit:
            _say("No folder for compiled code can be written; compiling for this process only ...")
    elif jit and not any(folder.rglob("*.nbc")):
        _say("Compiling the kernels, once (about 45 s) ...")
    before = config.CACHE_DIR
    try:
        if folder is not None:
            config.CACHE_DIR = str(folder)
        routes, dominance, options, pipeline, interleaved = map(
            importlib.import_module, MODULES)
    finally:
        config.CACHE_DIR = before
    return Kernels(
        (routes.ways, routes.unrouted, routes.rates), dominance.undominated, options.select,
        pipeline.solve, interleaved.interleave, pipeline.Problem, interleaved.Rings)


def _say(text: str) -> None:
    if announce is not None:
        announce(text)
    else:
        print(text, file=sys.stderr)


def _warm(kernels: Kernels) -> None:
    """Run each kernel once on the smallest problem, so that all compiling happens here."""
    zero, one = np.zeros(1, np.int64), np.ones(1)
    flag, no = np.ones(1, np.bool_), np.zeros(1, np.bool_)
    tables = Tables(
        ahead=np.ones((1, 1, 2)), back=np.ones((1, 1, 1, 4)), state=np.ones((1, 1, 1, 9)),
        body=zero, held=zero, price=zero, weight=one, shards=one, relayed=one, hybrid=no,
        shard=zero, forbidden=no, keep_none=True, full=-1, first_layers=no, most_layers=1,
        last=zero, part=zero - 1, counts=zero[None], marked=zero, ancestor=zero[None], kinds=zero,
        relay=0 * one, cap=zero + 1, whole=0,
        limit_bytes=1e9, micro_batches=1, least=one, overlaps=np.zeros(3), root=zero,
        second=zero - 1, third=zero - 1, children=zero, begin=np.array([0, 1, 1]),
        before=zero - 1, depth=zero + 1, gpipe=False,
    )
    ways, unrouted, rates = kernels.routes
    ways(np.zeros(2, np.int64), zero, zero, np.zeros((1, 1), np.int32), one, zero, zero)
    unrouted(np.ones(1, np.int32), 1, *(zero, zero, zero, zero), 1, zero, zero)
    rates(np.ones(1, np.int32), 1, *(zero, zero, zero), np.arange(2), np.zeros(1, np.int32),
          *(one, one, one, one), *(zero, zero, zero, zero), 1, zero, zero, 1.0)
    kernels.undominated(Blocks(
        **{name: getattr(tables, name) for name in Blocks._fields[:9]}, choices=zero + 1,
        begin=np.array([0, 1])))
    first, _, options = kernels.select(tables, 1e9)
    problem = kernels.Problem(
        1, zero + 1, one, np.array([[0, -1]]), np.array([[-1, 0], [-1, -1]]), True, False,
        first, options, np.zeros(2), np.zeros(2), np.zeros(2), 1.0, np.array([False, True]),
    )
    kernels.solve(problem, 1e9, 1, False)
    rings = kernels.Rings(
        zero, zero[None], zero[None], *np.ones((4, 1, 2)), 1.0, np.zeros(2), flag, flag,
        zero, zero + 1, np.zeros(2, np.int64), 0, 1,
    )
    kernels.interleave(tables, rings, 1e9, False)
