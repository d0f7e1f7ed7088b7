"""Orders of devices of several types: every super-pipeline takes the same share of each.

A super-pipeline is one range of each type after the other, so that a stage has devices of one type
and the same stage of every replica has the same. Which type comes first is for the plan to choose.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from nest.topology.arrangement import Arrangement, arranged, nearest
from nest.topology.routing import Routes
from nest.topology.topology import Ints, Topology


def mixtures(
    topology: Topology, replicas: Sequence[int]
) -> Iterator[tuple[Arrangement, int]]:
    """A network with its devices in orders for numbers of super-pipelines; each order of the types.

    Devices nearest to each other that are of one type form a group; whole groups are dealt out
    where there are enough of them, else devices. What does not go into equal shares stays idle.
    No arrangement where a super-pipeline would have no device.

    Parameters
    ----------
    topology : a network, also of one type.
    replicas : numbers of super-pipelines.

    Yields
    ------
    An arrangement, and the number of super-pipelines that it is for.
    """
    routes = Routes(topology)
    kind_N = topology.type_V[topology.device_N]
    cells = nearest(routes.hop_matrix(), kind_N)
    size = cells.shape[1]
    members = [cells[kind_N[cells[:, 0]] == kind].ravel() for kind in range(len(topology.types))]
    for outer_dp in replicas:
        shares = [len(own) // (size * outer_dp) * size or len(own) // outer_dp for own in members]
        used = [kind for kind, share in enumerate(shares) if share]
        inner = math.gcd(size, *(shares[kind] for kind in used))
        sizes = [inner, sum(shares) // inner, outer_dp]
        for order in itertools.permutations(used) if used else ():
            numbers: list[Ints] = [
                members[kind][r * shares[kind] : (r + 1) * shares[kind]]
                for r in range(outer_dp) for kind in order]
            yield arranged(topology, routes, np.concatenate(numbers),
                           [s for s in sizes if s > 1]), outer_dp
