"""Shortest ways between nodes, split evenly at each node, and what messages on them take.

``ways`` is the twin of ``Routes._ways``; ``unrouted`` and ``rates`` those of the class ``Messages``
of :mod:`nest.costs.paths`, with the same sums in the same order.

Shapes: V nodes, E links, A targets that hops are known to, P pairs of a node and a target; N
devices, B blocks of a tile, K blocks asked for, M messages of a block.
"""

from __future__ import annotations

import numpy as np

from nest._kernels import entry, leaf
from nest._kernels.room import longer


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
def unrouted(number, anchors, anchor, start, low, high, stride, source, target):
    """Pairs of anchors without a ``number``, by one * anchors + other, between which blocks send.

    Each comes once; its number is -1 then. ``anchor`` (N,) of devices. Blocks begin at ``start``
    (B,), and again every ``stride`` devices; ``source`` and ``target`` (M,) of messages, from there
    on. Of a block, devices ``low`` to ``high`` - 1 send to each other.
    """
    found = np.empty(1024, np.int64)
    count = 0
    for b in range(len(start)):
        for m in range(len(source)):
            if not _sends(low[b], high[b], stride, source[m], target[m]):
                continue
            one, other = anchor[start[b] + source[m]], anchor[start[b] + target[m]]
            if one != other and number[one * anchors + other] == 0:
                number[one * anchors + other] = -1
                if count == len(found):
                    found = longer(found, 2 * len(found))
                found[count] = one * anchors + other
                count += 1
    return found[:count]


@entry
def rates(
    number, anchors, anchor, up, down, first, link, part, latency, bandwidth, delay,
    start, low, high, own, stride, source, target, weight,
):
    """Seconds per byte and seconds (K,) of all messages of blocks that start at ``own``.

    Those of all blocks run meanwhile, see :func:`unrouted`. A message goes ``up`` (N,) to an anchor
    and ``down`` (N,) from another, -1: it is there. The way n - 1 between them has ``link[first[n -
    1] : first[n]]``, each with a ``part``, and takes ``latency[n - 1]`` seconds; ``bandwidth`` and
    ``delay`` (E,) of links.
    """
    load = np.zeros(len(bandwidth))
    for b in range(len(start)):
        for m in range(len(source)):
            if not _sends(low[b], high[b], stride, source[m], target[m]):
                continue
            one, other = start[b] + source[m], start[b] + target[m]
            if up[one] >= 0:
                load[up[one]] += 1.0
            if down[other] >= 0:
                load[down[other]] += 1.0
            if anchor[one] != anchor[other]:
                row = number[anchor[one] * anchors + anchor[other]] - 1
                for k in range(first[row], first[row + 1]):
                    load[link[k]] += part[k]
    for k in range(len(load)):
        load[k] = weight * load[k] / bandwidth[k]
    per_byte, slowest = np.zeros(len(own)), np.zeros(len(own))
    for n in range(len(own)):
        for m in range(len(source)):
            one, other = own[n] + source[m], own[n] + target[m]
            seconds = 0.0
            if up[one] >= 0:
                seconds += delay[up[one]]
                per_byte[n] = max(per_byte[n], load[up[one]])
            if down[other] >= 0:
                seconds += delay[down[other]]
                per_byte[n] = max(per_byte[n], load[down[other]])
            if anchor[one] != anchor[other]:
                row = number[anchor[one] * anchors + anchor[other]] - 1
                seconds += latency[row]
                for k in range(first[row], first[row + 1]):
                    per_byte[n] = max(per_byte[n], load[link[k]])
            slowest[n] = max(slowest[n], seconds)
    return per_byte, slowest
