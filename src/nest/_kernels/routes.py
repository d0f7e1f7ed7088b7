"""Shortest ways between nodes, split evenly at each node; the twin of ``Routes._ways``.

Shapes: V nodes, E links, A targets that hops are known to, P pairs of a node and a target.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from nest._kernels import CACHE


@njit(cache=CACHE, nogil=True)
def ways(first, head, link, hops, latency, node, place):
    """Links on the ways of each pair, the part of its messages on each, and its latency.

    ``first`` (V+1,) says where the links out of a node begin in ``head`` (nodes they lead to) and
    ``link`` (their numbers); ``hops`` (V, A); ``latency`` (E,) of links; ``node`` and ``place``
    (P,) are the ends.
    """
    size = hops.shape[0]
    amount, longest = np.zeros(size), np.zeros(size)
    begin = np.zeros(len(node) + 1, np.int64)
    slowest = np.zeros(len(node))
    links = np.empty(1024, np.int64)
    parts = np.empty(1024)
    now, later = np.empty(size, np.int64), np.empty(size, np.int64)
    count = 0
    for p in range(len(node)):
        target = place[p]
        now[0], width = node[p], 1
        amount[node[p]] = 1.0
        for away in range(hops[node[p], target], 0, -1):
            found = 0
            for n in range(width):
                at = now[n]
                near = 0
                for k in range(first[at], first[at + 1]):
                    near += hops[head[k], target] == away - 1
                share = amount[at] / near
                if count + near > len(links):
                    links, parts = _larger(links, count + near), _larger(parts, count + near)
                for k in range(first[at], first[at + 1]):
                    to = head[k]
                    if hops[to, target] != away - 1:
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


@njit(cache=CACHE, nogil=True)
def _larger(values, least):
    """The same with room for at least so many."""
    room = np.empty(2 * least, values.dtype)
    room[: len(values)] = values
    return room
