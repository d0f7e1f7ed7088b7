"""All that is used of numba's private interface, and what a numba without it does instead.

Tried with 0.61.0 and 0.68.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from numba import typeof, types
from numba.core import codegen, compiler, options, registry

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
