"""Shortest ways between nodes, split evenly at each node, and what messages on them take.

``ways`` is the twin of ``Routes._ways``; ``rates`` that of the class ``Messages`` of
:mod:`nest.costs.network.paths`, with the same sums in the same order.

Shapes: V nodes, E links, A targets that hops are known to, P pairs of a node and a target; N
devices, B blocks of a tile, K blocks asked for, M messages of a block, Q patterns.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from nest._kernels import entry, kernel, leaf
from nest.records import Floats, Floats2, Int32s2, Ints
from nest.records.links import Ends, KnownWays, Patterns, Tiles

Scalar = TypeVar("Scalar", bound=np.generic)


@kernel
def longer(array: NDArray[Scalar], rows: int) -> NDArray[Scalar]:
    """The same with room for ``rows``; what is behind those that it had is not set."""
    found = np.empty((rows, *array.shape[1:]), array.dtype)
    # Element by element: slices that are assigned come with the code of their error messages.
    for x in range(array.size):
        found.flat[x] = array.flat[x]
    return found


@entry
def ways(
    first: Ints, head: Ints, link: Ints, hops: Int32s2, latency: Floats, node: Ints, place: Ints,
) -> tuple[Ints, Ints, Floats, Floats]:
    """Links on the ways of each pair, the part of its messages on each, and its latency.

    ``first`` (V+1,) says where the links out of a node begin in ``head`` (nodes they lead to) and
    ``link`` (their numbers); ``hops`` (A, V); ``latency`` (E,) of links; ``node`` and ``place``
    (P,) are the ends.
    """
    size = hops.shape[1]
    amount, longest = np.zeros(size), np.zeros(size)
    begin = np.zeros(len(node) + 1, np.int64)
    slowest = np.zeros(len(node))
    links = np.empty(1024, np.int64)
    parts = np.empty(1024)
    now, later = np.empty(size, np.int64), np.empty(size, np.int64)
    count = 0
    for p in range(len(node)):
        ahead = hops[place[p]]
        now[0], width = node[p], 1
        amount[node[p]] = 1.0
        for away in range(ahead[node[p]], 0, -1):
            found = 0
            for n in range(width):
                at = now[n]
                near = 0
                for k in range(first[at], first[at + 1]):
                    near += ahead[head[k]] == away - 1
                share = amount[at] / near
                if count + near > len(links):
                    rows = 2 * (count + near)
                    links, parts = longer(links, rows), longer(parts, rows)
                for k in range(first[at], first[at + 1]):
                    to = head[k]
                    if ahead[to] != away - 1:
                        continue
                    if amount[to] == 0.0:
                        later[found] = to
                        found += 1
                    amount[to] += share
                    longest[to] = max(longest[to], longest[at] + latency[link[k]])
                    links[count], parts[count] = link[k], share
                    count += 1
                amount[at] = longest[at] = 0.0
            now, later, width = later, now, found
        slowest[p] = longest[now[0]]
        amount[now[0]] = longest[now[0]] = 0.0
        begin[p + 1] = count
    return begin, links[:count].copy(), parts[:count].copy(), slowest


@leaf
def _sends(low: int, high: int, stride: int, one: int, other: int) -> bool:
    """Whether devices ``low`` to ``high`` - 1 of a block send a message."""
    if high - low >= stride:
        return True
    return low <= one % stride < high and low <= other % stride < high


@leaf
def _load(load: Floats, link: int, amount: float, used: Ints, count: int) -> int:
    """Add to the load of a link; those that had none before are listed. Returns their number."""
    if load[link] == 0.0:
        used[count] = link
        count += 1
    load[link] += amount
    return count


@leaf
def _fullest(
    load: Floats, most: float, ends: Ends, known: KnownWays, patterns: Patterns, q: int, own: int,
    way: Int32s2, b: int,
) -> float:
    """Of the links that messages of a pattern pass, the largest load; none is above ``most``.

    The block starts at ``own``; ``way`` has in row b the numbers of its messages' ways, 0: none.
    """
    up, down, first, link = ends.up, ends.down, known.first, known.link
    source, target, begin = patterns.source, patterns.target, patterns.begin
    found = 0.0
    for m in range(begin[q], begin[q + 1]):
        if found >= most:
            break
        one, other, row = own + source[m], own + target[m], way[b, m]
        if up[one] >= 0:
            found = max(found, load[up[one]])
        if down[other] >= 0:
            found = max(found, load[down[other]])
        if row:
            for k in range(first[row - 1], first[row]):
                found = max(found, load[link[k]])
    return found


@leaf
def _slowest(
    ends: Ends, known: KnownWays, patterns: Patterns, q: int, own: int, way: Int32s2, b: int,
) -> float:
    """The longest latency of messages of a pattern in such a block."""
    up, down, delay, latency = ends.up, ends.down, ends.latency, known.latency
    source, target, begin = patterns.source, patterns.target, patterns.begin
    found = 0.0
    for m in range(begin[q], begin[q + 1]):
        one, other, row = own + source[m], own + target[m], way[b, m]
        seconds = 0.0
        if up[one] >= 0:
            seconds += delay[up[one]]
        if down[other] >= 0:
            seconds += delay[down[other]]
        if row:
            seconds += latency[row - 1]
        found = max(found, seconds)
    return found


@entry
def rates(
    ends: Ends, known: KnownWays, tiles: Tiles, own: Ints, stride: int, patterns: Patterns,
    marks: bool,
) -> tuple[Ints, Floats2, Floats2]:
    """Pairs of anchors without a way, or else what patterns of the blocks ``own`` take.

    Returns the pairs, by one * anchors + other, between which some block sends, each once; its
    number is -1 then, and the rest means nothing. Without ``marks`` it writes no number and returns
    the first of them alone, while others may add ways. Without any: seconds per byte (K, Q + 1) and
    seconds (K, Q). Each pattern runs by itself, in all blocks of a tile at once; in the end, those
    that have a share at once, so much of each. The blocks begin again every ``stride`` devices.
    ``own`` (K,) are numbers of blocks of ``tiles``. ``ends``, ``known``, ``tiles``, ``patterns``:
    see ``nest.records.links``.
    """
    number, first, link, part = known.number, known.first, known.link, known.part
    anchors, anchor, up, down = ends.anchors, ends.anchor, ends.up, ends.down
    start, low, high, tile = tiles.start, tiles.low, tiles.high, tiles.first
    source, target, begin, share = (
        patterns.source, patterns.target, patterns.begin, patterns.share)
    bandwidth = ends.bandwidth
    Q = len(share)
    per_byte, slowest = np.zeros((len(own), Q + 1)), np.zeros((len(own), Q))
    asked = np.full(len(start), -1)
    for n in range(len(own)):
        asked[own[n]] = n
    # Of one pattern at a time, so that they stay in a core's cache; most use few of the links.
    load, both = np.zeros(len(bandwidth)), np.zeros(len(bandwidth))
    used = np.empty(len(bandwidth), np.int64)
    # Looking a number up takes longest.
    way = np.empty((np.diff(tile).max(), len(source)), np.int32)
    lacking, lacks = np.empty(1024, np.int64), 0
    for t in range(len(tile) - 1):
        both[:], way[:] = 0.0, 0
        for q in range(Q):
            count, most = 0, 0.0
            for b in range(tile[t], tile[t + 1]):
                for m in range(begin[q], begin[q + 1]):
                    if not _sends(low[b], high[b], stride, source[m], target[m]):
                        continue
                    one, other = start[b] + source[m], start[b] + target[m]
                    if up[one] >= 0:
                        count = _load(load, up[one], 1.0, used, count)
                    if down[other] >= 0:
                        count = _load(load, down[other], 1.0, used, count)
                    if anchor[one] == anchor[other]:
                        continue
                    pair = anchor[one] * anchors + anchor[other]
                    row = way[b - tile[t], m] = number[pair]
                    if not marks and (row <= 0 or row >= len(first)):
                        lacking[0] = pair
                        return lacking[:1], per_byte, slowest
                    if row > 0 and not lacks:
                        for k in range(first[row - 1], first[row]):
                            count = _load(load, link[k], part[k], used, count)
                    elif row == 0:
                        number[pair] = -1
                        if lacks == len(lacking):
                            lacking = longer(lacking, 2 * lacks)
                        lacking[lacks] = pair
                        lacks += 1
            for k in range(count):
                load[used[k]] /= bandwidth[used[k]]
                most = max(most, load[used[k]])
                both[used[k]] += share[q] * load[used[k]]
            for b in range(tile[t], tile[t + 1]):
                n = asked[b]
                if n >= 0 and not lacks:
                    per_byte[n, q] = _fullest(
                        load, most, ends, known, patterns, q, start[b], way, b - tile[t])
                    slowest[n, q] = _slowest(
                        ends, known, patterns, q, start[b], way, b - tile[t])
            for k in range(count):
                load[used[k]] = 0.0
        most = both.max()
        for b in range(tile[t], tile[t + 1]):
            n = asked[b]
            for q in range(Q):
                if n >= 0 and not lacks and share[q] > 0.0:
                    per_byte[n, Q] = max(per_byte[n, Q], _fullest(
                        both, most, ends, known, patterns, q, start[b], way, b - tile[t]))
    return lacking[:lacks], per_byte, slowest
