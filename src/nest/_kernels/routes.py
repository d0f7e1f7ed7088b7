"""Shortest ways between nodes, split evenly at each node, and what messages on them take.

``ways`` is the twin of ``Routes._ways``; ``rates`` that of the class ``Messages`` of
:mod:`nest.costs.network.paths`, with the same sums in the same order.

Shapes: V nodes, E links, A targets that hops are known to, P pairs of a node and a target; N
devices, B blocks of a tile, K blocks asked for, M messages of a block, Q patterns.
"""

from __future__ import annotations

import numpy as np

from nest._kernels import entry, leaf
from nest._kernels.growing import longer


@entry
def ways(first, head, link, hops, latency, node, place):
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
def _sends(low, high, stride, one, other):
    """Whether devices ``low`` to ``high`` - 1 of a block send a message."""
    if high - low >= stride:
        return True
    return low <= one % stride < high and low <= other % stride < high


@entry
def rates(ends, known, tile, own, stride, patterns):
    """Pairs of anchors without a way, or else what patterns of blocks that start at ``own`` take.

    Returns the pairs, by one * anchors + other, between which some block sends, each once; its
    number is -1 then, and the rest means nothing. Without any: seconds per byte (K, Q + 1) and
    seconds (K, Q). Each pattern runs by itself, in all blocks at once; in the end, those that have
    a share at once, so much of each. The blocks of a ``tile`` begin again every ``stride`` devices.
    ``own`` (K,) are some of the tile's blocks, in its order. ``ends``, ``known``, ``tile``,
    ``patterns``: see ``nest.costs.network.records``.
    """
    number, first, link, part = known.number, known.first, known.link, known.part
    anchors, anchor, up, down = ends.anchors, ends.anchor, ends.up, ends.down
    start, low, high = tile.start, tile.low, tile.high
    source, target, begin, share = (
        patterns.source, patterns.target, patterns.begin, patterns.share)
    bandwidth, delay, latency = ends.bandwidth, ends.latency, known.latency
    Q = len(share)
    load, most = np.zeros((Q + 1, len(bandwidth))), np.zeros(Q + 1)
    way = np.zeros((len(start), len(source)), np.int32)  # looking a number up takes longest
    lacking, lacks = np.empty(1024, np.int64), 0
    for q in range(Q):
        for b in range(len(start)):
            for m in range(begin[q], begin[q + 1]):
                if not _sends(low[b], high[b], stride, source[m], target[m]):
                    continue
                one, other = start[b] + source[m], start[b] + target[m]
                if up[one] >= 0:
                    load[q, up[one]] += 1.0
                if down[other] >= 0:
                    load[q, down[other]] += 1.0
                if anchor[one] != anchor[other]:
                    pair = anchor[one] * anchors + anchor[other]
                    row = way[b, m] = number[pair]
                    if row > 0:
                        for k in range(first[row - 1], first[row]):
                            load[q, link[k]] += part[k]
                    elif row == 0:
                        number[pair] = -1
                        if lacks == len(lacking):
                            lacking = longer(lacking, 2 * lacks)
                        lacking[lacks] = pair
                        lacks += 1
        for k in range(len(bandwidth)):
            load[q, k] /= bandwidth[k]
            most[q] = max(most[q], load[q, k])
            load[Q, k] += share[q] * load[q, k]
    for k in range(len(bandwidth)):
        most[Q] = max(most[Q], load[Q, k])
    per_byte, slowest = np.zeros((len(own), Q + 1)), np.zeros((len(own), Q))
    if lacks:
        return lacking[:lacks], per_byte, slowest
    b = 0
    for n in range(len(own)):
        while start[b] != own[n]:
            b += 1
        for q in range(Q):
            both = Q if share[q] > 0.0 else q
            alone, beside = 0.0, per_byte[n, both]
            for m in range(begin[q], begin[q + 1]):
                one, other, row = own[n] + source[m], own[n] + target[m], way[b, m]
                seconds = 0.0
                if up[one] >= 0:
                    seconds += delay[up[one]]
                    alone = max(alone, load[q, up[one]])
                    beside = max(beside, load[both, up[one]])
                if down[other] >= 0:
                    seconds += delay[down[other]]
                    alone = max(alone, load[q, down[other]])
                    beside = max(beside, load[both, down[other]])
                if row:
                    seconds += latency[row - 1]
                slowest[n, q] = max(slowest[n, q], seconds)
                if row and (alone < most[q] or beside < most[both]):  # else no link is fuller
                    for k in range(first[row - 1], first[row]):
                        alone = max(alone, load[q, link[k]])
                        beside = max(beside, load[both, link[k]])
            per_byte[n, both] = beside
            per_byte[n, q] = alone
    return lacking[:0], per_byte, slowest
