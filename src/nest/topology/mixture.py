"""Orders of devices of several types: every super-pipeline takes the same share of each.

A super-pipeline is one range of each type after the other, so that a stage has devices of one type
and the same stage of every replica has the same. Which type comes first is for the plan to choose.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from nest.topology.arrangement import Arrangement, arranged, nearest
from nest.topology.routing import Routes
from nest.topology.topology import Ints, Topology


def mixtures(topology: Topology, outer_dp: int) -> Iterator[Arrangement]:
    """A network with its devices in an order for so many super-pipelines; each order of the types.

    Devices nearest to each other that are of one type form a group; whole groups are dealt out
    where there are enough of them, else devices. What does not go into equal shares stays idle.
    No arrangement where a super-pipeline would have no device.

    Parameters
    ----------
    topology : a network, also of one type.
    outer_dp : super-pipelines.
    """
    routes = Routes(topology)
    kind_N = topology.type_V[topology.device_N]
    cells = nearest(routes.hop_matrix(), kind_N)
    size = cells.shape[1]
    members, shares = [], []
    for kind in range(len(topology.types)):
        own = cells[kind_N[cells[:, 0]] == kind].ravel()
        whole = len(own) // (size * outer_dp) * size
        members.append(own)
        shares.append(whole or len(own) // outer_dp)
    used = [kind for kind, share in enumerate(shares) if share]
    inner = math.gcd(size, *(shares[kind] for kind in used))
    together = sum(shares)
    for order in itertools.permutations(used) if used else ():
        numbers: list[Ints] = [
            members[kind][r * shares[kind] : (r + 1) * shares[kind]]
            for r in range(outer_dp) for kind in order]
        sizes = [inner, together // inner, outer_dp]
        yield arranged(topology, routes, np.concatenate(numbers), [s for s in sizes if s > 1])
