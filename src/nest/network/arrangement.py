"""Device orders of any network in which near devices have near numbers, and groups of devices.

Devices need numbers, and blocks need groups to align with, also if a network is not a hierarchy.
Groups are found from the inside: devices that are all nearest to each other form one (the GPUs of a
node, the devices of a router). Where no such groups remain, as in a torus, several orders may be
good.

Shapes: N devices, C cells (groups found so far).

Orders of devices of several types: every super-pipeline takes the same share of each.

A super-pipeline consists of one range per type, so that a stage has devices of one type, the same
in every replica. The plan chooses the types and their order.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from nest.inputs import Cluster, Level, Links
from nest.network.routing import Hops, Routes
from nest.network.topology import Ints, Topology

MOST_IDLE = 0.25
"""Share of the devices that may be left out so that the innermost groups are equal (chosen)."""
MOST_APART = 64
"""Most devices for which an order of all without groups is tried too, if groups leave some idle."""
LARGEST = 8
"""Parts of a group that the network does not divide (chosen: divisors of a node of 8)."""
MOST_LEVELS, MOST_DIMENSIONS = 8, 6
MOST_CLUSTERED = 4096
"""Cells up to which an order by hierarchical clustering is tried: it takes cells^2 memory."""


@dataclass(frozen=True, eq=False)
class Arrangement:
    """A network with its devices in an order.

    Attributes
    ----------
    cluster : with ``links``, except for a single device; its levels define the groups.
    order_N : int64, shape (N,) or shorter
        Number in the topology of each device of the cluster; those not in it are left idle.
    """

    cluster: Cluster
    order_N: Ints


def arrangements(
    topology: Topology, numbering: Sequence[int] | None = None
) -> Iterator[Arrangement]:
    """Orders of the devices of each type alone, each with its groups; the given order first.

    If groups leave devices idle, all devices without groups come before. Orders that are tried if
    nothing groups the cells: as given; along a snake, if the cells are a grid or torus that is
    numbered row by row (its numbers then follow a Hamiltonian path, the last dimension first); else
    that of a hierarchical clustering by hops (average linkage, R. R. Sokal and C. D. Michener 1958,
    as in ``scipy.cluster.hierarchy``). Devices of other types stay idle.

    Parameters
    ----------
    topology : a network.
    numbering : of its devices, by which those without groups are ordered, as they would be if the
        others were not there; default: as given.
    """
    routes = Routes(topology)
    known = np.arange(len(topology.device_N)) if numbering is None else np.asarray(numbering)
    every = routes.hop_matrix()
    for number in range(len(topology.types)):
        own = np.flatnonzero(topology.type_V[topology.device_N] == number)
        hops = every[np.ix_(own, own)]
        cells, sizes = _groups(hops)
        first = cells[:, 0]
        found = set()
        if cells.size < len(hops) <= MOST_APART:
            yield arranged(topology, routes, own[np.argsort(known[own])], [len(hops)])
        for order, factors in _orders(hops[np.ix_(first, first)]):
            numbers = own[cells[order].ravel()]
            if tuple(numbers) not in found:
                found.add(tuple(numbers))
                yield arranged(topology, routes, numbers, [*sizes, *factors])


def nearest(hops: NDArray[np.int32]) -> Ints:
    """Devices of each innermost group; int64 of shape (C, devices)."""
    return _groups(hops, 1)[0]


def products(number: int, most: int) -> Iterator[tuple[int, ...]]:
    """Ordered factors from 2 on that multiply to a number, at most so many."""
    if number == 1 or most == 0:
        return
    yield (number,)
    for first in range(2, number // 2 + 1):
        if number % first == 0:
            for rest in products(number // first, most - 1):
                yield (first, *rest)


def _groups(
    hops: NDArray[np.int32], most: int = MOST_LEVELS
) -> tuple[Ints, list[int]]:
    """Devices of each cell, int64 of shape (C, devices), and sizes of at most so many levels.

    Each cell joins its nearest ones if the relation is mutual; cells of unequal size are cut, and
    the remainder stays idle, at the first level only.
    """
    cells: Ints = np.arange(len(hops))[:, None]
    sizes: list[int] = []
    while len(cells) > 1 and len(sizes) < most:
        first = cells[:, 0]
        away = hops[np.ix_(first, first)].astype(np.float64)
        np.fill_diagonal(away, np.inf)
        near = away <= away.min(axis=1)[:, None]
        near &= near.T  # a device whose neighbours failed is nearest to some that have nearer ones
        np.fill_diagonal(near, True)
        label = near.argmax(axis=1)
        if not (near == near[label]).all():  # not mutual, as in a ring
            run = _run(near) if _grid(hops[np.ix_(first, first)]) is None else 1
            label = np.arange(len(cells)) // run
        parts = [np.flatnonzero(label == one) for one in np.unique(label)]
        size = _common([len(part) for part in parts])
        if size < 2 or (sizes and any(len(part) != size for part in parts)):
            break
        pieces = [part[k : k + size] for part in parts
                  for k in range(0, len(part) - size + 1, size)]
        cells = np.array([cells[piece].ravel() for piece in pieces])
        sizes.append(size)
    return cells, sizes


def _run(near: NDArray[np.bool_]) -> int:
    """The longest equal runs of cells, as they are numbered, that are all nearest to each other.

    An example are the routers of a group of a dragonfly, whose global links are equally short.
    Pairs do not count: in a ring they have no meaning.
    """
    count = len(near)
    for size in range(count // 2, 2, -1):
        if count % size == 0:
            first = np.arange(0, count, size)[:, None, None]
            one, other = np.ix_(np.arange(size), np.arange(size))
            if near[first + one, first + other].all():
                return size
    return 1


def _common(counts: list[int]) -> int:
    """The largest piece size that leaves few devices out when groups are cut."""
    for size in sorted(Counter(counts), reverse=True):
        left = sum(count % size if count >= size else count for count in counts)
        if left <= MOST_IDLE * sum(counts):
            return size
    return 1


def _orders(hops: NDArray[np.int32]) -> Iterator[tuple[Ints, list[int]]]:
    """Orders of C cells that nothing groups, and the sizes of groups of each."""
    count = len(hops)
    dims, alike = _grid(hops), bool((np.sort(hops, axis=1) == np.sort(hops[0])).all())
    # If cells have different numbers of neighbours, as after a failure, any may share a block.
    sizes = [f for size in reversed(dims or (count,)) for f in _factors(size)] if (
        alike or dims) else [count]
    yield np.arange(count), sizes
    if dims is not None:
        if len(dims) > 1:
            yield _snake(dims), sizes
    elif 2 < count <= MOST_CLUSTERED:
        apart = squareform(np.maximum(hops, hops.T).astype(np.float64), checks=False)
        yield leaves_list(linkage(apart, "average")).astype(np.int64), sizes


def _grid(hops: NDArray[np.int32]) -> tuple[int, ...] | None:
    """Dimensions of a grid or torus that is numbered row by row, the last one fastest."""
    count = len(hops)
    unit = hops[hops > 0].min(initial=1)
    for dims in products(count, MOST_DIMENSIONS):
        place = np.stack(np.unravel_index(np.arange(count), dims))
        for ring in (True, False):
            if (_distance(place, place[:, :1], dims, ring) * unit == hops[0]).all() and all(
                    (_distance(place, place[:, n : n + 1], dims, ring) * unit == hops[n]).all()
                    for n in range(count)):
                return dims
    return None


def _distance(one: Ints, other: Ints, dims: tuple[int, ...], ring: bool) -> Ints:
    """Steps between places of a torus, or of a grid, of shape (dimensions, C)."""
    away = np.abs(one - other)
    if ring:
        away = np.minimum(away, np.array(dims)[:, None] - away)
    total: Ints = away.sum(axis=0)
    return total


def _snake(dims: tuple[int, ...]) -> Ints:
    """A path through a grid from neighbour to neighbour, lines of the last dimension first."""
    path = np.zeros((1, 0), dtype=np.int64)
    for size in reversed(dims):
        turns = [path if k % 2 == 0 else path[::-1] for k in range(size)]
        path = np.concatenate([
            np.column_stack([np.full(len(turn), k), turn]) for k, turn in enumerate(turns)])
    order: Ints = np.asarray(np.ravel_multi_index(tuple(path.T), dims), dtype=np.int64)
    return order


def _factors(number: int) -> list[int]:
    """Factors of a number, the largest up to ``LARGEST`` first; a rest without them is one."""
    found = []
    while number > 1:
        factor = next((f for f in range(LARGEST, 1, -1) if number % f == 0), number)
        found.append(factor)
        number //= factor
    return found


def _merged(sizes: list[int]) -> list[int]:
    """Sizes of at most so many levels as a cluster may have; the smallest neighbours join."""
    sizes = [size for size in sizes if size > 1] or [1]
    while len(sizes) > MOST_LEVELS:
        n = min(range(len(sizes) - 1), key=lambda k: sizes[k] * sizes[k + 1])
        sizes[n : n + 2] = [sizes[n] * sizes[n + 1]]
    return sizes


# ---------------------------------------------------------------- clusters


def arranged(
    topology: Topology, routes: Routes, numbers: Ints, sizes: list[int]
) -> Arrangement:
    """Some devices in an order, in groups of groups of the sizes given."""
    number_V = np.full(len(topology.nodes), -1, dtype=np.int64)
    number_V[topology.device_N[numbers]] = np.arange(len(numbers))
    others = np.flatnonzero(number_V < 0)
    number_V[others] = len(numbers) + np.arange(len(others))
    links = None if not len(topology.source_E) else Links(  # a single device has none
        switches=len(others), source=number_V[topology.source_E].tolist(),
        target=number_V[topology.target_E].tolist(),
        bandwidth=topology.bandwidth_E.tolist(), latency=topology.latency_E.tolist(),
    )
    levels, inner = [], 1
    for n, size in enumerate(_merged(sizes)):
        levels.append(_level(topology, routes, numbers, f"level{n}", size, inner))
        inner *= size
    order = numbers.tolist()
    numbers_T, type_N = np.unique(topology.type_V[topology.device_N[numbers]], return_inverse=True)
    device, *types = (topology.types[number] for number in numbers_T)
    cluster = Cluster(
        name=topology.name, device=device, types=types, levels=tuple(levels), links=links,
        type_numbers=type_N.tolist() if types else None,
        order=None if order == list(range(len(topology.device_N))) else order,
        names=[topology.nodes[node] for node in topology.device_N[numbers]],
    )
    return Arrangement(cluster, numbers)


def _level(
    topology: Topology, routes: Routes, numbers: Ints, name: str, size: int, inner: int
) -> Level:
    """A level with the rate of each device when all send to the next part of their own group."""
    together = np.arange(len(numbers)) // (inner * size)
    within = together[:-inner] == together[inner:]
    source, target = numbers[:-inner][within], numbers[inner:][within]
    if not len(source):
        source, target = numbers[:1], numbers[-1:]
    load_E = routes.loads(source, target, np.ones(len(source)))
    used = load_E > 0
    passed = np.unique(topology.target_E[used])
    narrowest = (topology.bandwidth_E[used] / load_E[used]).min(initial=topology.bandwidth_E.max(
        initial=1e9))
    return Level(
        name=name, size=size, bandwidth=float(narrowest),
        latency=float(routes.latency(source, target).max(initial=0.0)),
        base_time=float(topology.base_time_V[passed].max(initial=0.0)),
        ramp=float(topology.ramp_V[passed].max(initial=0.0)),
        source="from the links: what each device gets when all send to the next part of a group",
    )


# ---------------------------------------------------------------- mixture


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
