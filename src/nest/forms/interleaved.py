"""Interleaved 1F1B: every device holds several chunks of layers, far apart in the model.

arXiv:2104.04473, section 2.2.2; the order of Megatron-Core's interleaved schedule: micro-batches in
groups of p, each stage warms up with 2 (p - s - 1) + (v - 1) p chunk forwards, then runs one
forward and one backward in turn. All stages hold v chunks; p divides the micro-batches m.

There are few such pipelines, since all stages have one configuration. So the step is no closed form
but the longest path through all passes, which a stage runs in that order: it is exact, and no time
that grows makes it shorter.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import NamedTuple

from nest.forms.chunk import (
    C_BACKWARD,
    C_FORWARD,
    C_GATHER,
    C_GATHERED,
    C_HIDES_GATHER,
    C_HIDES_SYNC,
    C_LARGEST,
    C_LATE,
    C_LATE_BACK,
    C_LEFT,
    C_QUEUE_BACKWARD,
    C_REGATHERED,
    C_SCATTERED,
    C_SYNC,
    C_TIED,
    C_TRAILING,
    C_TRAILS_BACKWARD,
    C_TRAILS_FORWARD,
    C_UNDER_FIRST,
    C_UNDER_LAST,
    C_UPDATE,
    C_WAIT,
    delayed,
    empty,
    longer,
)

Chunks = Sequence[Sequence[Sequence[float]]]
"""Figures of each chunk of each stage; see :mod:`nest.forms.chunk`."""
Links = Sequence[Sequence[Sequence[float]]]
"""Seconds there and back, and of a message, behind each chunk of each stage: to the next stage,
from the last one to the next chunk of the first."""
Alone = Sequence[Sequence[bool]]
"""Whether each chunk of each stage is a single layer."""
Floats = MutableSequence[float]
Ints = MutableSequence[int]
NEVER = -float("inf")


class Room(NamedTuple):
    """What :func:`step_seconds` fills of p stages, v chunks and m micro-batches at the least."""

    arrives: Sequence[Floats]
    """(2, p m v) when the input of the k-th forward and backward of stage s is there, at number
    s m v + k; -inf: not known yet."""
    links: Sequence[Floats]
    """(2, p) when the last message of a way arrived."""
    run: Sequence[Ints]
    """(2, p) passes of each way that a stage has run."""
    front: Sequence[Ints]
    """(2, p) chunk and way of its last pass, -1: none."""
    gathers: Ints
    """(p,) whether a chunk of it has ZeRO-3."""
    clock: Floats
    """(p,) end of its last pass."""
    scattered: Floats
    """(p,) when what a backward left to scatter is through (ZeRO-2; ZeRO-3: of single layers)."""
    starts: Sequence[Floats]
    """(p, v) earliest start of the first forward of each chunk: its parameters have to be there."""
    ends: Sequence[Floats]
    """(p, v) end of the last backward of each chunk."""


def warm_up(s: int, p: int, m: int, v: int) -> int:
    """Chunk forwards that stage s runs before its first backward."""
    return min(m * v, p - s - 1 if v == 1 else 2 * (p - s - 1) + (v - 1) * p)


def held(activations: Sequence[float], s: int, p: int, m: int, v: int) -> float:
    """Most bytes of activations that stage s holds at once, given those of each chunk.

    The order of passes says which chunks are held when. It repeats itself with every group of p
    micro-batches, so that a few groups show the most.
    """
    m = min(m, 4 * p)
    warm = warm_up(s, p, m, v)
    now = most = 0.0
    for k in range(m * v):
        now += activations[k // p % v]
        most = max(most, now)
        if k >= warm:
            now -= activations[v - 1 - (k - warm) // p % v]
    return most


def step_seconds(
    stages: Chunks, alone: Alone, hops: Links, p: int, m: int, v: int, room: Room
) -> float:
    """Seconds of a step of p stages, first stage first, each with its v chunks.

    Messages of one direction arrive in the order of the passes, no two closer than the link takes
    for one. Afterwards ``room.clock`` has the end of the last pass of each stage.
    """
    total = m * v
    for s in range(p):
        _begin(stages[s], s, p, v, total, room)
    left = 2 * p * total
    while left:
        for s in range(p):
            left -= _run(stages[s], alone[s], hops, s, p, m, v, room)
    done = together = exchange = 0.0
    copies = False
    for s in range(p):
        tied = update = 0.0
        for n in range(v):
            tied += stages[s][n][C_TIED]
            update += stages[s][n][C_UPDATE]
        ready = _reduced(stages[s], room.ends[s], p, v)
        # Copies of a tied embedding are exchanged when all stages that hold one are ready.
        if tied > 0.0:
            copies = True
            together, exchange = max(together, ready), max(exchange, tied + update)
        else:
            done = max(done, ready + update)
    return max(done, together + exchange) if copies else done


def _begin(
    chunks: Sequence[Sequence[float]], s: int, p: int, v: int, total: int, room: Room
) -> None:
    """A stage before its first pass.

    Gathers of parameters run from the start of the step, at the full rate while the stage waits and
    at their share of it while it computes: the p forwards of each chunk before.
    """
    for way in range(2):
        room.links[way][s], room.run[way][s], room.front[way][s] = NEVER, 0, -1
        for k in range(total):
            room.arrives[way][s * total + k] = 0.0 if way == s == k // p % v == 0 else NEVER
    room.clock[s], room.scattered[s], room.gathers[s] = 0.0, NEVER, 0
    before, first = 0.0, True
    for n in range(v):
        c = chunks[n]
        if c[C_LARGEST] > 0.0:
            room.gathers[s] = 1
        room.starts[s][n] = before + c[C_WAIT] if c[C_GATHER] or first else 0.0
        first = first and empty(c)
        before += c[C_GATHER] + p * (c[C_FORWARD] - c[C_HIDES_GATHER])


def _reduced(
    chunks: Sequence[Sequence[float]], ends: Sequence[float], p: int, v: int
) -> float:
    """When all gradients of a stage are reduced; ``ends`` of the last backward of each chunk.

    From there on the gradients of a chunk and of those below it are to be reduced, beside the p
    backwards of each chunk below.
    """
    ready, below, first = ends[0], 0.0, True
    for n in range(v):
        c = chunks[n]
        ready = max(ready, ends[n] + below + c[C_LEFT] - (0.0 if first else c[C_SCATTERED]))
        first = first and empty(c)
        back = c[C_BACKWARD] + c[C_QUEUE_BACKWARD] + c[C_LATE_BACK] - c[C_LATE]
        below += c[C_SYNC] + p * (back - c[C_HIDES_SYNC])
    return ready


def _coming(ahead: int, back: int, warm: int, total: int) -> int:
    """Way of the next pass of a stage that has run so many of each."""
    return 0 if ahead < total and (ahead < warm or ahead - warm == back) else 1


def _run(
    chunks: Sequence[Sequence[float]], alone: Sequence[bool], hops: Links, s: int, p: int, m: int,
    v: int, room: Room,
) -> int:
    """Run the passes of a stage whose input is there; their number."""
    total, count, warm = m * v, 0, warm_up(s, p, m, v)
    while room.run[1][s] < total:
        way = _coming(room.run[0][s], room.run[1][s], warm, total)
        k = room.run[way][s]
        arrival = room.arrives[way][s * total + k]
        if arrival == NEVER:
            break
        n = v - 1 - k // p % v if way else k // p % v
        c = chunks[n]
        hollow = empty(c)  # leaves parameters and gradients to the passes around it
        start = room.clock[s] if hollow else _free(chunks, alone, n, way, s, room)
        start = max(start, arrival)
        if way == 0 and k == n * p:
            start = max(start, room.starts[s][n])
        room.run[way][s] += 1
        end = start + (c[C_BACKWARD] if way else c[C_FORWARD])
        if not hollow:
            room.front[0][s], room.front[1][s] = n, way
            if room.gathers[s]:
                if way:
                    behind = _gathered_behind(chunks, s, p, m, v, room)
                    end += delayed(c, alone[n], behind) - c[C_LATE]
            elif way:
                room.scattered[s] = end + c[C_TRAILING]
            else:
                room.scattered[s] += c[C_FORWARD] - c[C_TRAILS_FORWARD]
        room.clock[s] = end
        if way:
            room.ends[s][n] = end
        _send(hops, s, n, way, k, p, v, total, end, room)
        count += 1
    return count


def _free(
    chunks: Sequence[Sequence[float]], alone: Sequence[bool], n: int, way: int, s: int, room: Room
) -> float:
    """When a pass may begin, as far as the stage goes; its traffic goes on while it waits."""
    c, clock = chunks[n], room.clock[s]
    if not room.gathers[s]:
        return max(clock, room.scattered[s] - c[C_TRAILS_BACKWARD]) if way else clock
    if room.front[0][s] < 0:
        return clock
    x, way_before = room.front[0][s], room.front[1][s]
    front = chunks[x]
    start = clock + longer(front, alone[x], way_before, c, alone[n], way)
    if not alone[x]:
        room.scattered[s] = clock + front[C_SCATTERED] if way_before else NEVER
        return start
    # What an earlier backward left is in front of what this pass gathers.
    room.scattered[s] += (c[C_REGATHERED] if way else c[C_GATHERED]) + (
        front[C_BACKWARD] - front[C_UNDER_FIRST] if way_before
        else front[C_FORWARD] - front[C_UNDER_LAST])
    start = max(start, room.scattered[s])
    if way_before:
        room.scattered[s] = start + front[C_SCATTERED]
    return start


def _gathered_behind(
    chunks: Sequence[Sequence[float]], s: int, p: int, m: int, v: int, room: Room
) -> float:
    """What the next pass of a stage through layers gathers first."""
    ahead, back, warm, total = room.run[0][s], room.run[1][s], warm_up(s, p, m, v), m * v
    while back < total:
        way = _coming(ahead, back, warm, total)
        c = chunks[v - 1 - back // p % v if way else ahead // p % v]
        if not empty(c):
            return c[C_REGATHERED] if way else c[C_GATHERED]
        if way:
            back += 1
        else:
            ahead += 1
    return 0.0


def _send(
    hops: Links, s: int, n: int, way: int, k: int, p: int, v: int, total: int, end: float,
    room: Room,
) -> None:
    """Hand over what the k-th pass of a way has made of chunk n of stage s."""
    if s == (0 if way else p - 1):  # from one end of the pipeline to the other, and the next chunk
        to, other, k = p - 1 - s, n - 1 if way else n + 1, k + p
    else:
        to, other = s - 1 if way else s + 1, n
    if other == v:  # the loss: its gradient is there at once
        room.arrives[1][s * total + k - v * p] = end
    elif other >= 0:
        link, hop = (to, hops[to][other]) if way else (s, hops[s][n])
        room.links[way][link] = max(end + hop[0] / 2, room.links[way][link] + hop[1])
        room.arrives[way][to * total + k] = room.links[way][link]
