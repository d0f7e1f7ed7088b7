"""Compiled functions that replace NumPy ones if they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Twins(NamedTuple):
    """Compiled functions of :mod:`nest._kernels.routes`."""

    ways: Callable[..., Any]
    unrouted: Callable[..., Any]
    rates: Callable[..., Any]
