"""What all tests share: which of them reach the kernels, and where xdist runs them.

`.ci/run` runs the tests that reach no kernel once, without the compiler, where it also counts
lines, and the others compiled. So a test that reaches kernels says so (``kernels``) or fails, and
says where it is quick without the compiler too (``uncompiled``).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from typing import Any

import pytest

_folders: list[tempfile.TemporaryDirectory[str]] = []


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of :mod:`shared` before xdist starts its workers, which inherit its name."""
    if not hasattr(config, "workerinput"):
        _folders.append(tempfile.TemporaryDirectory(prefix="nest-tests-"))
        os.environ["NEST_TEST_SHARED"] = _folders[0].name


def pytest_unconfigure(config: pytest.Config) -> None:
    while _folders:
        _folders.pop().cleanup()


@pytest.hookimpl(trylast=True)
def pytest_sessionstart() -> None:
    """Load the kernels with their cache of compiled code, before tests import them by name.

    Not earlier: pytest-cov counts lines from its own hook on.
    """
    from nest.search import compiled

    compiled._import(compiled.cache_folder())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose tests and processes.

    Without the compiler those that are slow then are left out. The tests of a file stay in one
    process, for what they share, but for those ``apart``.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        config.hook.pytest_deselected(items=[item for item in items if not _quick(item)])
        items[:] = filter(_quick, items)
    for item in items:
        if not any(item.iter_markers("apart")) and not any(item.iter_markers("xdist_group")):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def _quick(item: pytest.Item) -> bool:
    """Whether a test is quick without the compiler."""
    reaches = item.get_closest_marker("kernels")
    return reaches is None or reaches.kwargs.get("uncompiled", False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test that reaches kernels, itself or by its fixtures, and does not say so."""
    from nest.search import compiled

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("reaches the kernels: needs pytest.mark.kernels")

    if any(item.iter_markers("kernels")):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "load", refuse)
        return (yield)
