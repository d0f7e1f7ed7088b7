"""Compiled kernels: NumPy, numba and plain functions, arrays in, arrays out.

Identical stages, which is what a stack can run: `uniform`, a folder with its own paragraph. Stages
that may differ (`beyond_stack`): `options` keeps the configurations of a stage that some plan could
want (`recompute_changes` has what recompute changes of their figures, `dominance` drops candidates,
`spans`, `flights` and `fitting` rule out stages), and `pipeline` puts stages together, below the
`bounds` of the stages in front. Both: `layers` and `fold` add up the figures of layers and stages,
`orders` puts passes in order, `growing` has arrays that grow; `routes` are for networks of links;
`linked` is how parts of kernels are compiled. Read `uniform`, then `options`, then `pipeline`.

Where to find: dominance of candidates in `dominance`, of options in `options` (`_keep`), of partial
plans, which are labels, in `pipeline` (`insert`).

``CACHE`` is read when the kernels are decorated; :mod:`nest.search.compiled` clears it where no
folder can be written.
"""

from functools import cache, cached_property
from types import FunctionType

import numpy as np
from numba import cfunc, njit, typeof, types
from numba.core import config
from numba.experimental import function_type  # noqa: F401 (numba takes a Called with it alone)

from nest._kernels.linked import Linked

CACHE = True

# Python calls no part of a kernel: without the code that unpacks Python's arguments, and without
# files of their own, which no process would load, compiling takes a third less; without machine
# code of their own another fifth.
PIECE = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
PART = {**PIECE, "pipeline_class": Linked}


def entry(function):
    """Compile what Python calls, and keep it in a file; other threads run meanwhile."""
    return njit(function, cache=CACHE, nogil=True)


def known(function):
    """An entry point that is called often, without numba's look at the types of its arguments.

    That takes 0.5 ms for 80 arrays in tuples. Types follow from the little that is looked at here.
    """
    ways = {}

    def call(*arguments):
        key = _kind(arguments)
        if key in ways:
            return ways[key](*arguments)
        result = function(*arguments)
        ways[key] = function.overloads[tuple(map(typeof, arguments))].entry_point
        return result

    return function if config.DISABLE_JIT else call


def _kind(argument):
    if isinstance(argument, np.ndarray):
        return argument.dtype, argument.ndim, argument.flags.num
    if isinstance(argument, tuple):
        return type(argument), *map(_kind, argument)
    return argument if isinstance(argument, Called) else type(argument)


def kernel(function):
    """Compile a part of other kernels."""
    return njit(function, **PART)


def leaf(function):
    """Compile a part that allocates nothing, without references to count.

    numba counts one for each array that is passed, atomically and also where nothing can be freed
    (numba issue 2345): two thirds of the time of a function as short as these.
    """
    return njit(function, _nrt=False, **PART)


def piece(function):
    """Compile a leaf and keep it in a file: another process may compile it for its caller."""
    return njit(function, cache=CACHE, _nrt=False, **PIECE)


def inlined(function):
    """A leaf whose code stands where it is called, in the inmost loops; Python cannot call it.

    A call passes seven numbers for each array, through memory: a quarter of a transition's time.
    """
    return njit(function, _nrt=False, forceinline=True, **PART)


class Called(types.WrapperAddressProtocol):
    """A function that kernels call by its address, compiled when that is first asked for."""

    def __init__(self, function, signature):
        self.function, self.types = function, signature
        self.cached, self.folder = CACHE, config.CACHE_DIR

    def signature(self):
        """Types of what it takes and returns."""
        return self.types

    @cached_property
    def compiled(self):
        """The function with an address."""
        before, config.CACHE_DIR = config.CACHE_DIR, self.folder
        try:
            return cfunc(self.types, cache=self.cached, _nrt=False)(self.function)
        finally:
            config.CACHE_DIR = before

    def __wrapper_address__(self):
        return self.compiled.address


def called(signature):
    """Compile a part by itself, for kernels that get it as an argument and call it by its address.

    It is not compiled again with each part that calls it.
    """
    return lambda function: function if config.DISABLE_JIT else Called(function, signature)


@cache
def form(function, compiled=inlined):
    """A plain function of :mod:`nest.schedules`, compiled with those that it calls."""
    names = function.__globals__
    called = {name: form(names[name]) for name in function.__code__.co_names
              if isinstance(names.get(name), FunctionType)}
    return compiled(FunctionType(
        function.__code__, {**names, **called}, function.__name__, function.__defaults__))
