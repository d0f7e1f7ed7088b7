"""What all tests share: which of them reach the kernels, and where xdist runs them.

A test that reaches kernels says so (``kernels``) or fails, and says where it is quick without the
compiler too (``uncompiled``). Without the compiler these run, and what reaches no kernel; with it
all tests do. With `NEST_TESTS_ONCE` set, as in `.ci/run`, each runs once: compiled, most in a
quarter of the time, but for the quick ones of ``INDEXED``, because an index out of range is an
error only without the compiler.

`-m fast` selects what is quick without the compiler but for the files of `slow.txt`, which are not
even imported then. `NEST_TESTS_SECONDS=FILE` writes the seconds of a processor that each file
takes, from which `slow.txt` is chosen; each process of xdist a file with its name added.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from slow_files import SLOW

WITHOUT_JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
APART = ("test_exact.py", "test_exact_graphs.py", "test_golden_plans.py", "test_guarantees.py",
         "test_guarantees_graphs.py")
"""Long files whose tests share nothing but results of :mod:`shared`."""
ONCE = "NEST_TESTS_ONCE" in os.environ
INDEXED = ("kernels", "guarantees")
"""Folders whose tests run without the compiler where they are quick."""
SECONDS = os.environ.get("NEST_TESTS_SECONDS")
_seconds: Counter[str] = Counter()
_folders: list[tempfile.TemporaryDirectory[str]] = []


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of :mod:`shared` before xdist starts its workers, which inherit its name."""
    if not hasattr(config, "workerinput"):
        _folders.append(tempfile.TemporaryDirectory(prefix="nest-tests-"))
        os.environ["NEST_TEST_SHARED"] = _folders[0].name


def pytest_unconfigure(config: pytest.Config) -> None:
    if SECONDS:
        Path(SECONDS + os.environ.get("PYTEST_XDIST_WORKER", "")).write_text("".join(
            f"{name} {seconds:.1f}\n" for name, seconds in _seconds.most_common()), "utf-8")
    while _folders:
        _folders.pop().cleanup()


@pytest.hookimpl(trylast=True)
def pytest_sessionstart() -> None:
    """Load the kernels with their cache of compiled code, before tests import them by name."""
    from nest.search import compiled

    compiled._import(None if WITHOUT_JIT else compiled.cache_folder())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no slow file for the fast tests alone."""
    return True if config.option.markexpr == "fast" and collection_path.name in SLOW else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the fast tests."""
    if _quick(item) and item.path.name not in SLOW:
        item.add_marker("fast")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is slow without the compiler, and what the other run of two has."""
    if WITHOUT_JIT or ONCE:
        kept, left = list[pytest.Item](), list[pytest.Item]()
        for item in items:
            here = _indexed(item) == WITHOUT_JIT if ONCE else _quick(item)
            (kept if here else left).append(item)
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def _quick(item: pytest.Item) -> bool:
    """Whether a test is quick without the compiler."""
    reaches = item.get_closest_marker("kernels")
    return reaches is None or reaches.kwargs.get("uncompiled", False)


def _indexed(item: pytest.Item) -> bool:
    """Whether a test runs without the compiler where each runs once."""
    return (_quick(item) and item.get_closest_marker("kernels") is not None
            and item.path.parent.name in INDEXED)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test that reaches kernels, itself or by its fixtures, and does not say so."""
    from nest.search import compiled

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("reaches the kernels: needs pytest.mark.kernels")

    start = sum(os.times()[:4])
    try:
        if any(item.iter_markers("kernels")):
            return (yield)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled, "load", refuse)
            return (yield)
    finally:
        _seconds[item.path.name] += sum(os.times()[:4]) - start


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file in one process, for what they share, but for files in ``APART``."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return nodeid if file.endswith(APART) else file

    return Scheduling(config, log) if config.option.dist == "loadfile" else None
