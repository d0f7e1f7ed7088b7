"""Compiled kernels: NumPy and numba only, arrays in, arrays out.

``CACHE`` is read when the kernels are decorated; :mod:`nest.search.compiled` clears it where no
folder can be written.
"""

from numba import njit

CACHE = True


def kernel(function):
    """Compile; other threads run meanwhile."""
    return njit(function, cache=CACHE, nogil=True)


def leaf(function):
    """Compile what allocates nothing, without references to count.

    numba counts one for each array that is passed, atomically and also where nothing can be freed
    (numba issue 2345): two thirds of the time of a function as short as these.
    """
    return njit(function, cache=CACHE, nogil=True, _nrt=False)
