"""All that is used of numba's private interface, and what a numba without it does instead.

Tried with 0.61.0 and 0.68.1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from numba import typeof, types
from numba.core import caching, codegen, compiler, config, options, registry

UNCOUNTED: dict[str, Any] = {"_nrt": False} if hasattr(options.DefaultOptions, "_nrt") else {}
"""Compiles a function that allocates nothing without references to count.

numba counts one for each array that is passed, atomically and also where nothing can be freed
(numba issue 2345): two thirds of the time of a short function, a fifth of the first answer with an
empty cache. A numba that does not know the option counts them.
"""
# Any: what numba has types of, or has not, differs by its version.
Compiler: Any = compiler.Compiler
unliteral: Any = types.unliteral
Library: Any = getattr(codegen, "JITCodeLibrary", object)
Dispatcher: Any = getattr(registry, "CPUDispatcher", object)
Locator: Any = getattr(caching, "UserProvidedCacheLocator", None) or getattr(
    caching, "_UserProvidedCacheLocator", object)
Kept: Any = getattr(caching, "CompileResultCacheImpl", None)
settings: Any = config


class PartLibrary(Library):  # type: ignore[misc]
    """Code that waits to be linked into its callers, in place of a library that can be run.

    numba optimises each function with all that it calls, emits machine code of that, and does both
    once more for each caller. Here that is done once, for the entry point with all of its parts.
    """

    def _optimize_final_module(self) -> None:
        """Leave that to the entry point."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """0: there is none."""
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> PartLibrary:
        """Who is told of the environment of what is run: nobody."""
        return self

    def set_env(self, name: str, env: Any) -> None:
        """See :attr:`codegen`."""


class Linked(Compiler):  # type: ignore[misc]
    """Compiles a function into a :class:`PartLibrary`."""

    def compile_extra(self, function: Any) -> Any:
        """Called by numba, before anything else."""
        target = self.state.targetctx.codegen()
        self.state.library = PartLibrary(target, function.__qualname__)
        return super().compile_extra(function)


LINKED: dict[str, Any] = {"pipeline_class": Linked} if all(hasattr(Library, name) for name in (
    "_optimize_final_module", "_finalize_final_module", "_finalize_dynamic_globals",
    "_verify_declare_only_symbols")) else {}
"""Compiles a part of kernels: without it the first answer takes two thirds more. A numba that has
other names for these steps optimises each part."""


class Part(Dispatcher):  # type: ignore[misc]
    """A function that compiled code alone calls."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Refuse: there is no code that takes Python's arguments, and numba would jump to it.

        Raises
        ------
        TypeError : always.
        """
        raise TypeError(
            f"{self.py_func.__module__}.{self.py_func.__qualname__} is a part of kernels, which "
            "compiled code alone can call; its `py_func` is plain Python, and so are all kernels "
            "with NUMBA_DISABLE_JIT=1")

    def get_call_template(self, arguments: Any, named: Any) -> Any:
        """Types of a call: constants as any number of their type, or each is compiled for."""
        return super().get_call_template(
            tuple(map(unliteral, arguments)),
            {name: unliteral(kind) for name, kind in named.items()})


class Movable(Locator):  # type: ignore[misc]
    """Files of compiled code by the name of the source alone, not by its path and its age.

    The folder is named by a digest of all sources (`nest.search.kept_code`), so installations may
    share it, and it may be copied to another machine, where nothing needs to be written.
    """

    def __init__(self, function: Any, file: str) -> None:
        super().__init__(function, file)
        self._cache_path = os.path.join(
            settings.CACHE_DIR, os.path.basename(os.path.dirname(file)))

    def ensure_cache_path(self) -> None:
        """Make the folder; one that is there may be read alone."""
        os.makedirs(self.get_cache_path(), exist_ok=True)

    def get_source_stamp(self) -> str:
        """The folder's name says it."""
        return ""


MOVABLE = Locator is not object and hasattr(Kept, "_locator_classes")
"""Whether compiled code can be carried to other machines with this numba."""


@contextmanager
def kept_in(folder: str) -> Iterator[None]:
    """Keep the code of what is decorated meanwhile in a folder; other users of numba go on."""
    before, settings.CACHE_DIR = settings.CACHE_DIR, folder
    locators = getattr(Kept, "_locator_classes", None)
    try:
        if MOVABLE:
            Kept._locator_classes = [Movable]
        yield
    finally:
        settings.CACHE_DIR = before
        if MOVABLE:
            Kept._locator_classes = locators


def only_compiled(function: Any) -> Any:
    """The same compiled function as a :class:`Part`, if numba knows the class."""
    if type(function) is Dispatcher:
        function.__class__ = Part
    return function


def entry_point(function: Any, arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """A compiled function for such arguments, without the look at their types; itself, where
    numba does not hand it out."""
    try:
        found = function.overloads[tuple(map(typeof, arguments))].entry_point
    except (AttributeError, KeyError):
        found = function
    return cast(Callable[..., Any], found)
