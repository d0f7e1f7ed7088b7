"""All that is used of numba's private interface, and what a numba without it does instead.

Tried with 0.61.0 and 0.68.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import typeof
from numba.core import options

UNCOUNTED: dict[str, Any] = {"_nrt": False} if hasattr(options.DefaultOptions, "_nrt") else {}
"""Compiles a function that allocates nothing without references to count.

numba counts one for each array that is passed, atomically and also where nothing can be freed
(numba issue 2345): two thirds of the time of a short function, a fifth of the first answer with an
empty cache. A numba that does not know the option counts them.
"""


def entry_point(function: Any, arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """A compiled function for such arguments, without the look at their types; itself, where
    numba does not hand it out."""
    try:
        found: Callable[..., Any] = function.overloads[
            tuple(map(typeof, arguments))].entry_point
    except (AttributeError, KeyError):
        return function
    return found
