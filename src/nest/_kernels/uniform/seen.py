"""What a list of layouts is sorted and looked at by; no price counts here.

Shapes: W layouts, p stages, v chunks a stage, T layer kinds, N layers.
"""

from __future__ import annotations

from nest._kernels import entry, leaf
from nest._kernels.uniform.layouts import BEHIND, FIRST, FRONT, LAST, REST
from nest.records import Int16s2, Int16s4, Ints, Ints2

MIX, MOST = 1_000_003, 1 << 31
"""Numbers that hash the layers of a stage: two stages that share one are looked at as one run."""


@leaf
def _within(cut: int, body: Ints) -> int:
    """Layers of the body in front of a cut."""
    return min(max(cut, body[0]), body[1]) - body[0]


@leaf
def _see(
    cuts: Ints2, places: Ints2, front: Int16s2, body: Ints, heaviest: Ints, seen: Int16s4,
) -> None:
    """Fill in ``seen`` of a layout; its heaviest stage is known."""
    p, v = places.shape
    for x in range(len(seen)):
        s = heaviest if x == 0 else 0 if x == 1 else p - 1
        begin, end = cuts[places[s, 0]], cuts[places[s, v - 1] + 1]
        for kind in range(len(front)):
            for d in range(v):
                at = places[s, d]
                layers = front[kind, cuts[at + 1]] - front[kind, cuts[at]]
                if d == 0:
                    seen[x, FIRST, kind] = layers
                if d == v - 1 and v > 1:
                    seen[x, LAST, kind] = layers
                else:
                    seen[x, REST, kind] += layers
            seen[x, FRONT, kind] = front[kind, begin]
            seen[x, BEHIND, kind] = front[kind, -1] - front[kind, end]


@entry
def see(
    cuts: Ints2, places: Ints2, front: Int16s2, body: Ints, load: Ints, heaviest: Ints,
    seconds: Ints, stage: Ints, seen: Int16s4,
) -> None:
    """Fill in what is known of each layout from its cuts, int64 (W, chunks + 1).

    Parameters
    ----------
    places : int64 (p, v) places in the model of the chunks of each stage.
    front : int16 (T, N+1) layers of each kind in front of each cut.
    body : int64 (2,) layers [i, j) that layouts divide.
    load : int64 (W,) layers of the body in the heaviest stage.
    heaviest : int64 (W,) the stage with most of them, about.
    seconds : int64 (W,) about how long the layout takes, in parts of a layer of the body.
    stage : int64 (W,) number of the heaviest stage: equal where its layers and its place are.
    seen : int16 (W, stages, 5, T) see ``Pipelines.seen``; zeros before.
    """
    p, v = places.shape
    for n in range(len(cuts)):
        most = -1
        for s in range(p):
            own = 0
            for d in range(v):
                at = places[s, d]
                own += _within(cuts[n, at + 1], body) - _within(cuts[n, at], body)
            # A forward takes 1, a backward 2, for many micro-batches.
            takes = 12 * p * own + 3 * _within(cuts[n, s], body)
            load[n], seconds[n] = max(load[n], own), max(seconds[n], takes)
            if own * 12 * p * front.shape[1] + takes > most:
                most, heaviest[n] = own * 12 * p * front.shape[1] + takes, s
        _see(cuts[n], places, front, body, heaviest[n], seen[n])
        mixed = 0
        for x in range(min(1, seen.shape[1])):
            for field in (REST, FIRST, LAST):
                for kind in range(len(front)):
                    mixed = (mixed * MIX + int(seen[n, x, field, kind])) % MOST
        stage[n] = mixed * p + heaviest[n]
