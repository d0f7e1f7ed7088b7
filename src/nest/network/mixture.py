"""Orders of devices of several types: every super-pipeline takes the same share of each.

A super-pipeline consists of one range per type, so that a stage has devices of one type, the same
in every replica. The plan chooses the types and their order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from nest.network.arrangement import Arrangement, arranged, nearest
from nest.network.routing import Hops, Routes
from nest.network.topology import Ints, Topology

MOST_TYPES = 3
"""Most types in a super-pipeline, those of most devices (chosen): k types have k! orders."""


def together(topology: Topology) -> Arrangement:
    """All devices of a network, one type after the other."""
    routes = Routes(topology)
    members, sizes = _types(topology, routes.hop_matrix())
    inner = math.gcd(*sizes, *map(len, members))
    numbers = np.concatenate(members)
    return arranged(topology, routes, numbers, [inner, len(numbers) // inner])


def mixtures(
    topology: Topology, replicas: Sequence[int]
) -> Iterator[tuple[Arrangement, int]]:
    """A network with its devices in orders for numbers of super-pipelines; each order of the types.

    Nearest devices of one type form a group; whole groups are distributed if there are enough of
    them, else devices. Devices beyond equal shares stay idle, as do types that an order leaves out.
    Two or more types share a super-pipeline; :func:`nest.network.arrangements` has the orders of
    single types.

    Parameters
    ----------
    topology : a network.
    replicas : numbers of super-pipelines.

    Yields
    ------
    An arrangement, and the number of super-pipelines that it is for.
    """
    routes = Routes(topology)
    members, sizes = _types(topology, routes.hop_matrix())
    largest = sorted(range(len(members)), key=lambda number: -len(members[number]))[:MOST_TYPES]
    for outer_dp in replicas:
        shares = [len(own) // (size * outer_dp) * size or len(own) // outer_dp
                  for own, size in zip(members, sizes, strict=True)]
        used = sorted(number for number in largest if shares[number])
        for count in range(len(used), 1, -1):
            for order in itertools.permutations(used, count):
                inner = math.gcd(*(math.gcd(sizes[number], shares[number]) for number in order))
                numbers = [members[number][r * shares[number] : (r + 1) * shares[number]]
                           for r in range(outer_dp) for number in order]
                each = sum(shares[number] for number in order) // inner
                yield arranged(topology, routes, np.concatenate(numbers),
                               [inner, each, outer_dp]), outer_dp


def _types(topology: Topology, hops: Hops) -> tuple[list[Ints], list[int]]:
    """Devices of each type, near ones together, and how many are in a group of near ones."""
    members, sizes = [], []
    for number in range(len(topology.types)):
        own = np.flatnonzero(topology.type_V[topology.device_N] == number)
        cells = nearest(hops[np.ix_(own, own)])
        left = np.setdiff1d(np.arange(len(own)), cells)
        members.append(own[np.concatenate([cells.ravel(), left])])
        sizes.append(cells.shape[1])
    return members, sizes
