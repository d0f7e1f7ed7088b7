"""Small networks with round figures, for tests of the oracle worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from oracle_links import Fabric
from oracle_rules import Spread

from nest.inputs.links import Links

Row = tuple[int, int, float, float]
"""Nodes, bytes/s and seconds of one direction."""


def both(a: int, b: int, bandwidth: float = 2.0, latency: float = 1.0) -> list[Row]:
    return [(a, b, bandwidth, latency), (b, a, bandwidth, latency)]


def links_of(rows: Sequence[Row]) -> dict[str, tuple[float, ...]]:
    names = ("source", "target", "bandwidth", "latency")
    return dict(zip(names, zip(*rows, strict=True), strict=True))


def graph(sizes: tuple[int, ...], rows: Sequence[Row], switches: int = 0) -> Fabric:
    return Fabric(Links(switches=switches, **links_of(rows)), tuple(np.cumprod(sizes).tolist()))


def one(number: int) -> Spread:
    """A group of so many members on one level."""
    return (number,), True


RING = [row for n in range(4) for row in both(n, (n + 1) % 4)]
"""Four devices, 2 bytes/s and 1 s between neighbours."""
THIN = [row for n in range(4) for row in both(n, 4 + n // 2, 4.0, 1.0)] + both(4, 5, 1.0, 3.0)
"""Two devices at each of two switches: 4 bytes/s and 1 s; 1 byte/s and 3 s between switches."""
ODD = [row for n in range(5) for row in both(n, 5 + n % 2, 100.0, 0.0)] + both(5, 6, 1.0, 1.0)
"""Even devices at one switch, odd ones at another, 1 byte/s between them."""
