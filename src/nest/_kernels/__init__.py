"""Compiled kernels: NumPy, numba and plain functions, arrays in, arrays out.

Identical stages, which is what a stack can run: `uniform`, a folder with its own paragraph. Stages
that may differ (`beyond_stack`): `options` keeps the configurations of a stage that some plan could
want, in the arrays of `option_work` (`dominance` drops candidates, `spans` and `fitting` rule out
stages), and
`pipeline` puts stages together, with `labels`, below the `bounds` of the stages in front. Both:
`fold` adds up the figures of layers and stages, `orders` puts passes in order. `routes` are for
networks of links. `signatures` says for which types kernels are compiled, `bundles` how they take
named tuples, `private` what of numba is not public. Read `uniform`, then `options`, then
`pipeline`.

Where to find: dominance of candidates in `dominance`, of options in `options` (`_keep`), of partial
plans, which are labels, in `labels` (`insert`).

``CACHE`` is read when the kernels are decorated; :mod:`nest.search.compiled` clears it where no
folder can be written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from types import FunctionType
from typing import Any, TypeVar

import numpy as np
from numba import cfunc, njit, types
from numba.core import config as settings
from numba.experimental import function_type  # noqa: F401 (numba takes a Called with it alone)

from nest._kernels.private import LINKED, UNCOUNTED, entry_point, kept_in, only_compiled
from nest._kernels.signatures import argument_types, signature

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

config: Any = settings
CACHE = True

# Python calls no part of a kernel: without the code that unpacks Python's arguments, and without
# files of their own, which no process would load, compiling takes a third less.
PART = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, **LINKED}


def entry(function: Kernel) -> Kernel:
    """Compile what Python calls, and keep it in a file; other threads run meanwhile."""
    return _compiled(function, cache=CACHE, nogil=True)


def _compiled(function: Kernel, **options: Any) -> Kernel:
    found: Any = njit(function, **options)
    return found


def compile_now(kernel: Any) -> None:
    """Compile an entry point, or load it, for the types that its annotations name."""
    if isinstance(kernel, Called):
        kernel.__wrapper_address__()
    else:
        kernel.compile(argument_types(kernel.py_func))


def known(function: Kernel) -> Kernel:
    """An entry point that is called often, without numba's look at the types of its arguments.

    That takes 0.5 ms for 80 arrays in tuples. Types follow from the little that is looked at here.
    """
    ways: dict[Any, Callable[..., Any]] = {}

    def call(*arguments: Any) -> Any:
        key = _kind(arguments)
        if key in ways:
            return ways[key](*arguments)
        result = function(*arguments)
        ways[key] = entry_point(function, arguments)
        return result

    found: Any = function if config.DISABLE_JIT else call
    return found


def _kind(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return argument.dtype, argument.ndim, argument.flags.num
    if isinstance(argument, tuple):
        return type(argument), *map(_kind, argument)
    return argument if isinstance(argument, Called) else type(argument)


def kernel(function: Kernel) -> Kernel:
    """Compile a part of other kernels, which these alone can call."""
    found: Kernel = only_compiled(_compiled(function, **PART))
    return found


def leaf(function: Kernel, **options: Any) -> Kernel:
    """Compile a part that allocates nothing, without references to count (`private`)."""
    found: Kernel = only_compiled(_compiled(function, **options, **UNCOUNTED, **PART))
    return found


def inlined(function: Kernel) -> Kernel:
    """A leaf whose code stands where it is called, in the inmost loops.

    A call passes seven numbers for each array, through memory: a quarter of a transition's time.
    """
    return leaf(function, forceinline=True)


class Called(types.WrapperAddressProtocol):
    """A function that kernels call by its address, compiled when that is first asked for."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.folder = config.CACHE_DIR if CACHE else ""

    def signature(self) -> Any:
        """Types of what it takes and returns."""
        return signature(self.function)

    @cached_property
    def compiled(self) -> Any:
        """The function with an address."""
        if not self.folder:
            return cfunc(self.signature(), **UNCOUNTED)(self.function)
        with kept_in(self.folder):
            return cfunc(self.signature(), cache=True, **UNCOUNTED)(self.function)

    def __wrapper_address__(self) -> int:
        address: int = self.compiled.address
        return address


def called(function: Kernel) -> Kernel:
    """Compile a part by itself, for kernels that get it as an argument and call it by its address.

    It is not compiled again with each part that calls it.
    """
    found: Any = function if config.DISABLE_JIT else Called(function)
    return found


@cache
def form(function: Any, compiled: Callable[..., Any] = inlined) -> Any:
    """A plain function of :mod:`nest.schedules`, compiled with those that it calls."""
    names = function.__globals__
    called = {name: form(names[name]) for name in function.__code__.co_names
              if isinstance(names.get(name), FunctionType)}
    return compiled(FunctionType(
        function.__code__, {**names, **called}, function.__name__, function.__defaults__))
