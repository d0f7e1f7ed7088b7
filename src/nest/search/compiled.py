"""Load the kernels with a cache of compiled code that is never stale.

Where the folder of :mod:`nest.search.kept_code` cannot be written, or what is there cannot be
read, the kernels are compiled for the process alone, and a line on stderr names the folder.

What a question does not need is not compiled for it. On two processors or more a second process
compiles half of it meanwhile.
"""

from __future__ import annotations

import gc
import importlib
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

from nest.errors import InputError
from nest.search import carried
from nest.search.kept_code import PACE, SECONDS, cache_folder, uncompiled
from nest.search.threads import thread_count

ENTRIES = {
    "routes": ("routes.ways", "routes.rates"), "undominated": ("dominance._mark",),
    "ask": ("uniform.asked._ask",), "see": ("uniform.layouts.see",),
    "useful": ("spans.fill", "spans.add_parts", "spans.least_seconds", "spans.look"),
    "select": ("options.fill",), "solve": ("pipeline.run",), "may_fit": ("fitting.may_fit",),
    "longest_path": ("orders.longest_path",), "write_order": ("orders.write_order",),
    "alike": ("uniform.search.try_all",)}
"""What is compiled for an entry point, in `nest._kernels`; in this order."""
CALLS = {
    "undominated": "dominance.undominated", "useful": "spans.useful", "select": "options.select",
    "solve": "pipeline.solve", "alike": "uniform.search.alike", "may_fit": "fitting.may_fit",
    "see": "uniform.layouts.see", "ask": "uniform.asked.ask"}
"""What Python calls of them."""
ALIKE = ("alike", "longest_path", "write_order", "may_fit", "undominated", "see", "ask")
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
    entries: dict[str, tuple[Any, ...]]
    """See :data:`ENTRIES`."""
    compile_now: Callable[[Any], None]


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
        _compile(_import(folder), names)


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
        _compile(kernels, names)
    return kernels


def _cached(kernels: Kernels, folder: Path, names: Collection[str]) -> Kernels:
    """The kernels, compiled into a folder or loaded from there."""
    other = None
    slow = [name for name in uncompiled(folder) if name in names]
    if slow and _taken(folder):
        slow = [name for name in uncompiled(folder) if name in names]
    if slow:
        beside = _half(slow) if thread_count() > 1 else []
        slow = [name for name in slow if name not in beside]
        longest = max(sum(SECONDS[name] for name in half) for half in (slow, beside))
        seconds = longest * pace() / PACE
        _say(f"Compiling the kernels, once (about {5 * math.ceil(seconds / 5)} s on this machine "
             "when idle, which no time limit counts) ...")
        if beside:
            other = _compiling_beside(beside)
    try:
        _compile(kernels, slow)
        if other is not None:
            other.wait()  # should it have failed, this process compiles what is missing
        _compile(kernels, names)
    finally:
        if other is not None:
            other.kill()
    with suppress(OSError):
        for name in names:
            (folder / name).touch()
    return kernels


def _taken(folder: Path) -> bool:
    """Whether there is compiled code that was carried here, which is now in the folder."""
    archive = carried.beside()
    if archive is None:
        return False
    try:
        carried.take(archive, folder)
    except InputError as error:
        _say(str(error))
        return False
    return True


def pace() -> float:
    """Seconds of a processor that some work takes which is like compiling; the least of some."""
    lines = "".join(f"    c[{n}] = [a + {n} * b, (a - {n}) / (b + 1), str(a)]\n"
                    for n in range(400))
    text, taken = f"def f(a, b):\n    c = {{}}\n{lines}    return c\n", []
    for _ in range(10):
        started = time.process_time()
        compile(text, "pace", "exec")
        taken.append(time.process_time() - started)
    return 5.0 * min(taken)


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


def _import(folder: Path | None) -> Kernels:
    """The kernels as they are decorated: to be kept in a folder, or not at all."""
    decorators: Any = importlib.import_module("nest._kernels")
    decorators.CACHE = folder is not None
    with nullcontext() if folder is None else decorators.kept_in(str(folder)):
        entries = {name: tuple(map(_part, parts)) for name, parts in ENTRIES.items()}
        calls = {name: _part(part) for name, part in CALLS.items()}
    return Kernels(routes=entries["routes"], entries=entries, compile_now=decorators.compile_now,
                   **calls)


def movable() -> bool:
    """Whether this numba finds compiled code whose sources lie elsewhere."""
    found: bool = importlib.import_module("nest._kernels.private").MOVABLE
    return found


def _part(name: str) -> Any:
    """Something of the kernels by its module and its name."""
    module, _, part = name.rpartition(".")
    return getattr(importlib.import_module(f"nest._kernels.{module}"), part)


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
def _compile(kernels: Kernels, names: Collection[str]) -> None:
    """Compile entry points, or load them, for the types that their annotations name."""
    for name, parts in kernels.entries.items():
        if name in names:
            for part in parts:
                kernels.compile_now(part)
