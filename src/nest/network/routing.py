"""Shortest paths by hops, split evenly over all next hops, and the load that traffic puts on links.

At each node, traffic to a device is divided evenly among all neighbours that are one hop nearer to
it (equal-cost multi-path, C. Hopps, RFC 2992, with an even split). Hops are counted, not seconds,
so that more bandwidth never reroutes. Devices forward, as those of a torus do.

Devices with one neighbour, a switch, are routed as that switch, their *anchor*. Shapes: V nodes,
E links, N devices, A anchors, T anchors of one round, K pairs of a node and an anchor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nest.errors import LimitError
from nest.network.topology import Flags, Floats, Ints, Topology

Hops = NDArray[np.int32]

ROUND = 4_000_000
"""Most nodes and links times anchors of one round, which limits memory to some 200 MB."""
MOST_KEPT = 2**26
"""Most nodes times anchors for which hops are cached between calls (256 MB)."""
MOST_BITS = 2**33
"""Most links times anchors for which the devices below all links are cached."""

MOST_TABLED = 2**14
"""Most devices of a table of hops between all of them (chosen: 8 GiB while devices are ordered)."""


class _Ways:
    """Links out of nodes, in one direction or the other.

    Attributes
    ----------
    first_V : int64, shape (V+1,)
        First place of each node in the lists below.
    link_E, head_E : int64, shape (E,) or fewer
        The links kept, by the node that they lead from, and the nodes they lead to.
    """

    def __init__(self, tail_E: Ints, head_E: Ints, size: int, kept_E: Flags) -> None:
        order = np.argsort(tail_E, kind="stable")
        order = order[kept_E[order]]
        self.link_E: Ints = order.astype(np.int64)
        self.head_E: Ints = head_E[order]
        self.first_V: Ints = np.searchsorted(tail_E[order], np.arange(size + 1)).astype(np.int64)

    def out_of(self, node_K: Ints) -> tuple[Ints, Ints]:
        """Places in the lists of all links out of some nodes, and the row in ``node_K`` of each."""
        first = self.first_V[node_K]
        count = self.first_V[node_K + 1] - first
        row = np.repeat(np.arange(len(node_K)), count)
        start = np.cumsum(count) - count
        return np.arange(len(row)) - start[row] + first[row], row


class Ways(NamedTuple):
    """Shortest paths between P pairs of nodes: concatenated lists of links."""

    first: Ints
    """(P+1,): where the entries of each pair begin."""
    link: Ints
    part: Floats
    """Share of the traffic on the link."""
    latency: Floats
    """(P,): seconds over the slowest of the shortest paths."""


class Routes:
    """Shortest paths of a network.

    Parameters
    ----------
    topology : the network.
    router : compiled twin of :meth:`_ways`; None: that itself.

    Attributes
    ----------
    anchor_N : int64, shape (N,)
        Number of each device's anchor, 0 to ``anchors`` - 1.
    up_N, down_N : int64, shape (N,)
        Link from each device to its anchor, and back; -1: the device is the anchor.
    """

    def __init__(self, topology: Topology, router: Callable[..., Any] | None = None) -> None:
        self._topology = topology
        small = len(topology.nodes) * len(topology.device_N) <= MOST_KEPT
        self._router = router if small else None  # it needs all hops at hand
        size = len(topology.nodes)
        source, target = topology.source_E, topology.target_E
        every = np.ones(len(source), dtype=np.bool_)
        ahead, back = _Ways(source, target, size, every), _Ways(target, source, size, every)
        device = topology.device_N
        out, into = ahead.first_V, back.first_V
        single = (out[device + 1] - out[device] == 1) & (into[device + 1] - into[device] == 1)
        single &= len(device) > 1
        if len(source):
            up = ahead.link_E[np.minimum(out[device], len(source) - 1)]
            down = back.link_E[np.minimum(into[device], len(source) - 1)]
            single &= (target[up] == source[down]) & (topology.type_V[target[up]] < 0)
            node = np.where(single, target[up], device)
        else:
            up = down = node = device
        self.up_N: Ints = np.where(single, up, -1)
        self.down_N: Ints = np.where(single, down, -1)
        core = every.copy()
        core[up[single]] = core[down[single]] = False
        self._ahead = _Ways(source, target, size, core)
        self._back = _Ways(target, source, size, core)
        self._anchor_A, place = np.unique(node, return_inverse=True)
        self.anchor_N: Ints = place.astype(np.int64)
        self.anchors = len(self._anchor_A)
        self._hops_VA: Hops | None = None
        self._hops_AV: Hops | None = None
        self._latency_E = topology.latency_E.copy()  # compiled code is for arrays to write to

    def loads(self, sources: ArrayLike, targets: ArrayLike, bytes: ArrayLike) -> Floats:
        """Bytes that each link carries, float64 of shape (E,).

        Parameters
        ----------
        sources, targets : int64, shape (M,)
            Device numbers of M messages; pairs may come several times. Messages of a device to
            itself load nothing.
        bytes : float64, shape (M,)
            Of each message, not below zero.

        Raises
        ------
        ValueError : device numbers out of range, or arrays of different lengths.
        """
        source_M, target_M = self._devices(sources), self._devices(targets)
        bytes_M = np.atleast_1d(np.asarray(bytes, dtype=np.float64))
        if not len(source_M) == len(target_M) == len(bytes_M):
            raise ValueError("sources, targets and bytes differ in length")
        moved = (source_M != target_M) & (bytes_M > 0)
        source_M, target_M, bytes_M = source_M[moved], target_M[moved], bytes_M[moved]
        links = len(self._topology.source_E)
        load_E = np.zeros(links)
        for link_N, end_M in ((self.up_N, source_M), (self.down_N, target_M)):
            link_M = link_N[end_M]
            own = link_M >= 0
            load_E += np.bincount(link_M[own], weights=bytes_M[own], minlength=links)[:links]
        node_M = self._anchor_A[self.anchor_N[source_M]]
        for hops, width, column_M in self._rounds(self.anchor_N[target_M]):
            here = np.flatnonzero(column_M >= 0)
            key_M = node_M[here] * width + column_M[here]
            load_E += self._flow(hops, width, key_M, bytes_M[here])
        return load_E

    def hops(self, sources: ArrayLike, targets: ArrayLike) -> Ints:
        """Links on a shortest path for each pair of devices, int64 of shape (M,)."""
        return self._along(sources, targets, np.ones(len(self._topology.source_E))).astype(np.int64)

    def hop_matrix(self) -> Hops:
        """Links on a shortest path from each device to each other, int32 of shape (N, N).

        Raises
        ------
        LimitError : more than ``MOST_TABLED`` devices.
        """
        if len(self.anchor_N) > MOST_TABLED:
            raise LimitError(
                f"{self._topology.name}: got {len(self.anchor_N)} devices in a network that is no "
                f"hierarchy, whose hops between all devices are needed; allowed: at most "
                f"{MOST_TABLED}, or a network with levels (docs/topologies.md)")
        between = self._hops_to(np.arange(self.anchors))[self._anchor_A]
        own = (self.up_N >= 0).astype(np.int32)
        found: Hops = between[self.anchor_N][:, self.anchor_N] + own[:, None] + own
        np.fill_diagonal(found, 0)
        return found

    def latency(self, sources: ArrayLike, targets: ArrayLike) -> Floats:
        """Seconds over the slowest of the shortest paths for each pair, float64 of shape (M,).

        Parameters
        ----------
        sources, targets : int64, shape (M,) or single numbers
            Device numbers.

        Raises
        ------
        ValueError : device numbers out of range, or arrays of different lengths.
        """
        return self._along(sources, targets, self._topology.latency_E)

    def _along(self, sources: ArrayLike, targets: ArrayLike, figure_E: Floats) -> Floats:
        source_M, target_M = self._devices(sources), self._devices(targets)
        if len(source_M) != len(target_M):
            raise ValueError("sources and targets differ in length")
        sum_M = np.zeros(len(source_M))
        padded = np.append(figure_E, 0.0)  # the last entry stands for no link
        sum_M += padded[self.up_N[source_M]] + padded[self.down_N[target_M]]
        node_M = self._anchor_A[self.anchor_N[source_M]]
        for hops, width, column_M in self._rounds(self.anchor_N[target_M]):
            here = np.flatnonzero(column_M >= 0)
            key_M = node_M[here] * width + column_M[here]
            sum_M[here] += self._slowest(hops, width, key_M, figure_E)
        sum_M[source_M == target_M] = 0.0
        return sum_M

    def ways(self, source_P: Ints, target_P: Ints) -> Ways:
        """Shortest ways between P pairs of anchors, which differ.

        Parameters
        ----------
        source_P, target_P : int64, shape (P,)
            Numbers as in ``anchor_N``.
        """
        if not self._router:
            return Ways(*self._ways(source_P, target_P))
        if self._hops_AV is None:  # hops to one anchor side by side
            self._hops_AV = np.ascontiguousarray(self._hops_to(np.arange(self.anchors)).T)
        ahead = self._ahead
        return Ways(*self._router(ahead.first_V, ahead.head_E, ahead.link_E, self._hops_AV,
                                  self._latency_E, self._anchor_A[source_P], target_P))

    def _ways(self, source_P: Ints, target_P: Ints) -> tuple[Ints, Ints, Floats, Floats]:
        """The arrays of :class:`Ways`."""
        node_P = self._anchor_A[source_P]
        rows, links, parts = [none := np.zeros(0, dtype=np.int64)], [none], [np.zeros(0)]
        latency_P = np.zeros(len(node_P))
        for start in range(0, len(node_P), self._round):
            stop = min(start + self._round, len(node_P))
            width = stop - start
            every, column = np.unique(target_P[start:stop], return_inverse=True)
            hops = self._hops_to(every)[:, column].ravel()
            key_M = node_P[start:stop] * width + np.arange(width)
            amount = np.zeros(len(hops))
            amount[key_M] = 1.0
            for key_K, link, row, end in self._visits(self._ahead, key_M, hops, width):
                share = (amount[key_K] / np.bincount(row, minlength=len(key_K)))[row]
                np.add.at(amount, end, share)
                rows.append(start + end % width)
                links.append(link)
                parts.append(share)
            latency_P[start:stop] = self._slowest(hops, width, key_M, self._topology.latency_E)
        row_ = np.concatenate(rows)
        order = np.argsort(row_, kind="stable")
        first = np.searchsorted(row_[order], np.arange(len(node_P) + 1)).astype(np.int64)
        return first, np.concatenate(links)[order], np.concatenate(parts)[order], latency_P

    def sources(self, link: int) -> Ints:
        """Devices that reach some device over a link, sorted."""
        return self._members(link, 0)

    def targets(self, link: int) -> Ints:
        """Devices that some device reaches over a link, sorted."""
        return self._members(link, 1)

    def below(self, link: int) -> Ints:
        """Devices below a link: its sources or its targets, whichever are fewer."""
        source, target = self.sources(link), self.targets(link)
        return source if len(source) <= len(target) else target

    def _members(self, link: int, side: int) -> Ints:
        own_N, other_N = (self.up_N, self.down_N)[:: 1 if side == 0 else -1]
        device = np.flatnonzero(own_N == link)
        if len(device):
            return device
        other = np.flatnonzero(other_N == link)
        if len(other):
            return np.delete(np.arange(len(own_N)), other)
        row = np.unpackbits(self._sides[side][link], count=self.anchors)
        return np.flatnonzero(row[self.anchor_N])

    @cached_property
    def _sides(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Anchors of the sources and of the targets of each link, as packed bits."""
        links, anchors = len(self._topology.source_E), self.anchors
        if links * anchors > MOST_BITS:
            raise LimitError(
                f"devices below each link: got {links} links and {anchors} switches with devices "
                f"or devices with several links; allowed: a product of at most {MOST_BITS}"
            )
        found = []
        for ahead in (self._back, self._ahead):
            bits = np.zeros((links, -(-anchors // 8)), dtype=np.uint8)
            step = max(1, self._round // 8) * 8
            for start in range(0, anchors, step):
                chosen_T = self._anchor_A[start : start + step]
                used = self._used(ahead, chosen_T)
                packed = np.packbits(used, axis=1)
                bits[:, start // 8 : start // 8 + packed.shape[1]] = packed
            found.append(bits)
        return found[0], found[1]

    @property
    def _round(self) -> int:
        """Anchors of one round."""
        size = len(self._topology.nodes) + len(self._topology.source_E)
        return max(1, ROUND // max(size, 1))

    def _devices(self, numbers: ArrayLike) -> Ints:
        found = np.atleast_1d(np.asarray(numbers, dtype=np.int64))
        if len(found) and not (found.min() >= 0 and found.max() < len(self.anchor_N)):
            raise ValueError(f"device numbers are 0 to {len(self.anchor_N) - 1}")
        return found

    def _rounds(self, place_M: Ints) -> Iterator[tuple[Hops, int, Ints]]:
        """Hops to the anchors of each round, their number, and the column of each message's target.

        Hops have the shape (V * T,); a column is -1 if the target belongs to another round.
        """
        wanted = np.unique(place_M)
        for start in range(0, len(wanted), self._round):
            part = wanted[start : start + self._round]
            column_A = np.full(self.anchors, -1, dtype=np.int64)
            column_A[part] = np.arange(len(part))
            yield self._hops_to(part).ravel(), len(part), column_A[place_M]

    def _hops_to(self, part: Ints) -> Hops:
        """Hops from every node to some anchors, cached if there is room."""
        shape = (len(self._topology.nodes), self.anchors)
        if shape[0] * shape[1] > MOST_KEPT:
            return self._distances(self._ahead, self._anchor_A[part])
        if self._hops_VA is None:
            self._hops_VA = np.full(shape, -1, dtype=np.int32)
        missing = part[self._hops_VA[self._anchor_A[part], part] < 0]
        if len(missing) == shape[1]:
            self._hops_VA = self._distances(self._ahead, self._anchor_A)
        elif len(missing):
            self._hops_VA[:, missing] = self._distances(self._ahead, self._anchor_A[missing])
        return self._hops_VA if len(part) == shape[1] else self._hops_VA[:, part]

    def _distances(self, ahead: _Ways, chosen_T: Ints) -> Hops:
        """Hops from every node to each of some anchors, int32 of shape (V, T); -1: no way.

        Breadth first to many anchors at once, a bit for each (M. Then et al., "The More the
        Merrier", VLDB 2014).
        """
        hops = np.zeros((len(self._topology.nodes), len(chosen_T)), dtype=np.int32)
        begin_V, end_V = ahead.first_V[:-1], ahead.first_V[1:]
        leading = np.flatnonzero(begin_V < end_V)
        step = 64 * max(1, ROUND // max(1, len(ahead.head_E)))
        for start in range(0, len(chosen_T), step):
            width = min(step, len(chosen_T) - start)
            reached = np.zeros((len(hops), -(-width // 64) * 8), dtype=np.uint8)
            at = np.arange(width)
            reached[chosen_T[start : start + width], at // 8] = 128 >> at % 8
            words, part = reached.view(np.uint64), hops[:, start : start + width]
            while True:
                away, before = np.unpackbits(~reached, axis=1, count=width), words.copy()
                if len(leading):
                    words[leading] |= np.bitwise_or.reduceat(
                        before[ahead.head_E], begin_V[leading], axis=0)
                if (words == before).all():
                    part[away > 0] = -1
                    break
                part += away
        return hops

    def _nearer(
        self, ways: _Ways, key_K: Ints, hops: Hops, width: int
    ) -> tuple[Ints, Ints, Ints]:
        """Links from nodes to those one hop nearer: link, row in ``key_K``, key of the end."""
        place, row = ways.out_of(key_K // width)
        end = ways.head_E[place] * width + key_K[row] % width
        nearer = hops[end] == hops[key_K[row]] - 1
        return ways.link_E[place[nearer]], row[nearer], end[nearer]

    def _visits(
        self, ways: _Ways, key_M: Ints, hops: Hops, width: int
    ) -> Iterator[tuple[Ints, Ints, Ints, Ints]]:
        """All nodes on the paths from some nodes to their anchors, the farthest ones first.

        Gives the keys (node * width + column) at one distance, and of the links that lead nearer:
        the link, the row of its key, and the key of its end.
        """
        owner = np.empty(len(hops), dtype=np.int64)
        key_M = _first_of_each(key_M, owner)
        key_M = key_M[np.argsort(-hops[key_M], kind="stable")]
        away = -hops[key_M]
        arrived = key_M[:0]
        for distance in range(-int(away.min(initial=0)), 0, -1):
            low, high = np.searchsorted(away, [-distance, 1 - distance])
            key_K = _first_of_each(np.concatenate([key_M[low:high], arrived]), owner)
            link, row, arrived = self._nearer(ways, key_K, hops, width)
            yield key_K, link, row, arrived

    def _flow(self, hops: Hops, width: int, key_M: Ints, bytes_M: Floats) -> Floats:
        links = len(self._topology.source_E)
        amount, load_E = np.zeros(len(hops)), np.zeros(links)
        np.add.at(amount, key_M, bytes_M)
        for key_K, link, row, end in self._visits(self._ahead, key_M, hops, width):
            share = (amount[key_K] / np.bincount(row, minlength=len(key_K)))[row]
            load_E += np.bincount(link, weights=share, minlength=links)
            np.add.at(amount, end, share)
        return load_E

    def _slowest(self, hops: Hops, width: int, key_M: Ints, figure_E: Floats) -> Floats:
        """Largest sum of a figure over the shortest paths from each node to its anchor."""
        most = np.zeros(len(hops))
        for key_K, link, row, end in reversed(
            list(self._visits(self._ahead, key_M, hops, width))
        ):
            best = np.zeros(len(key_K))
            np.maximum.at(best, row, figure_E[link] + most[end])
            most[key_K] = best
        return most[key_M]

    def _used(self, ahead: _Ways, chosen_T: Ints) -> Flags:
        """Links on some shortest path from any anchor to each of some, bool of shape (E, T)."""
        width = len(chosen_T)
        hops = self._distances(ahead, chosen_T).ravel()
        used = np.zeros((len(self._topology.source_E), width), dtype=np.bool_)
        key_M = (self._anchor_A[:, None] * width + np.arange(width)).ravel()
        for _, link, _, end in self._visits(ahead, key_M, hops, width):
            used[link, end % width] = True
        return used


def _first_of_each(keys: Ints, owner: Ints) -> Ints:
    """Keys without those given before; ``owner`` is scratch space as long as there are keys."""
    owner[keys] = np.arange(len(keys))
    first: Ints = keys[owner[keys] == np.arange(len(keys))]
    return first
