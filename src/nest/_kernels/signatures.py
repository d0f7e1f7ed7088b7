"""Types that kernels are compiled for, from their annotations.

An array is annotated with its axes, and one of records with their dtype (:mod:`nest.records`); what
is called by its address, with itself.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np
from numba import from_dtype, types

from nest._kernels.bundles import bundle_of

SCALARS = {
    int: types.int64, float: types.float64, bool: types.boolean, type(None): types.void}


def signature(function: Callable[..., Any]) -> Any:
    """What a function returns, of what it takes: a signature of numba."""
    hints = get_type_hints(function, include_extras=True)
    returned = SCALARS[hints.pop("return")]
    return returned(*map(type_of, hints.values()))


def argument_types(function: Callable[..., Any]) -> tuple[Any, ...]:
    """numba's types of what a function takes.

    Raises
    ------
    TypeError : an annotation that says too little.
    """
    hints = get_type_hints(function, include_extras=True)
    hints.pop("return", None)
    return tuple(map(type_of, hints.values()))


def type_of(kind: Any) -> Any:
    """numba's type of what an annotation describes."""
    if kind in SCALARS:
        return SCALARS[kind]
    if get_origin(kind) is Annotated:
        array, what, *dtype = get_args(kind)
        if not isinstance(what, int):  # called by its address
            return types.FunctionType(what.signature())
        element = dtype[0] if dtype else get_args(get_args(array)[1])[0]
        return types.Array(from_dtype(np.dtype(element)), what, "C")
    if get_origin(kind) is MutableSequence:
        return types.Array(SCALARS[get_args(kind)[0]], 1, "C")
    if isinstance(kind, type) and hasattr(kind, "_fields"):
        fields = get_type_hints(kind, include_extras=True)
        return bundle_of(kind, tuple(map(type_of, fields.values())))
    raise TypeError(f"{kind}: an annotation of a kernel names its numbers, arrays with their axes, "
                    "or a named tuple of these")
