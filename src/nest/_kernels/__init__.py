"""Compiled kernels: NumPy and numba only, arrays in, arrays out.

``CACHE`` is read when the kernels are decorated; :mod:`nest.compiled` clears it where no folder
can be written.
"""

from numba import njit

CACHE = True

# Python calls no part of a kernel: without the code that unpacks Python's arguments, and without
# files of their own, which no process would load, compiling takes a third less.
PART = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def entry(function):
    """Compile what Python calls, and keep it in a file; other threads run meanwhile."""
    return njit(function, cache=CACHE, nogil=True)


def leaf_entry(function):
    """The same for what allocates nothing, see :func:`leaf`."""
    return njit(function, cache=CACHE, nogil=True, _nrt=False)


def kernel(function):
    """Compile a part of other kernels."""
    return njit(function, **PART)


def leaf(function):
    """Compile a part that allocates nothing, without references to count.

    numba counts one for each array that is passed, atomically and also where nothing can be freed
    (numba issue 2345): two thirds of the time of a function as short as these.
    """
    return njit(function, _nrt=False, **PART)


def inlined(function):
    """The same, put into its callers before they are compiled.

    For what takes whole records where it is called often: a call hands over each number of each
    array of a record.
    """
    return njit(function, _nrt=False, inline="always", **PART)
