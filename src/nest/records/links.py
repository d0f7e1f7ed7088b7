"""Compiled functions that replace NumPy ones if they are loaded, and the records that both take.

Shapes: N devices, E links, B blocks of all T tiles, Q patterns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from nest.records import Floats, Int32s, Ints


class Tiles(NamedTuple):
    """Blocks that do the same at the same time, tile by tile; int64, each of shape (B,) but one."""

    start: Ints
    low: Ints
    """Of the devices of a block, numbered from 0, ``low`` to ``high`` - 1 send to each other."""
    high: Ints
    first: Ints
    """(T + 1,): where the blocks of each tile begin, and the end."""


class Patterns(NamedTuple):
    """Messages among the members of a group, numbered from 0; a byte each."""

    source: Ints
    target: Ints
    begin: Ints
    """int64, shape (Q + 1,): where the messages of each pattern begin, and the end."""
    share: Floats
    """float64, shape (Q,): how much of each runs beside others; 0: it does not."""


class Ends(NamedTuple):
    """Links, and how devices hang on anchors, the nodes between which ways are looked for."""

    anchors: int
    anchor: Ints
    """(N,)"""
    up: Ints
    """(N,) link from a device to its anchor, -1: it is there."""
    down: Ints
    """(N,) link back."""
    bandwidth: Floats
    """(E,) bytes per second."""
    latency: Floats
    """(E,) seconds."""


class KnownWays(NamedTuple):
    """Ways between anchors that were looked for; arrays grow with their number."""

    number: Int32s
    """(anchors ** 2,) 1 + number of the way from one anchor to another, at one * anchors + other;
    0: it was not looked for."""
    first: Ints
    """Where the links of each way begin, and the end."""
    link: Int32s
    part: Floats
    """Part of a message on each."""
    latency: Floats
    """Seconds of each way."""


class Twins(NamedTuple):
    """Compiled functions of :mod:`nest._kernels.routes`."""

    ways: Callable[..., Any]
    rates: Callable[..., Any]
