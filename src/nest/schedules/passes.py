"""The step of a pipeline as the longest path through an order of passes, which is data.

A rank runs its row of passes one after another, each as soon as its input is there. A pass takes
one micro-batch through one chunk of layers: forward; backward; or backward in two, for inputs and,
later, for weights. :mod:`nest.schedules.orders` writes the rows of the published schedules.
Nothing is assumed of an order but that a chunk takes its micro-batches in one sequence. The step is
exact for any of them, and no time that grows makes it shorter.

Chunks have *positions* in the model. A chain of positions begins with the embedding and ends with
the loss; there is one of them, or two where micro-batches enter at both ends of the pipeline. A
chunk without layers leaves parameters and gradients to the passes around it.

Shapes: p ranks, v chunks a rank, Q = p v positions, m micro-batches of a chain.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import NamedTuple

from nest.schedules.chunk import ChunkCosts, delayed, empty, longer

Chunks = Sequence[Sequence[ChunkCosts]]
"""Figures of each chunk of each rank."""
Links = Sequence[Sequence[Sequence[float]]]
"""Seconds there and back, and of a message, behind each chunk of each rank: on the way to the next
position."""
Floats = MutableSequence[float]
Ints = MutableSequence[int]
NEVER = -float("inf")

# Passes; a code is the number of the chunk times PASSES plus which it is. INPUTS and WEIGHTS
# are the two parts of a backward, BESIDE is a forward beside the whole backward of the next code.
FORWARD, BACKWARD, INPUTS, WEIGHTS, BESIDE = range(5)
PASSES = 8
SURE = 1e-13
"""Part of a step that may be unsure where groups are left out: no more than sums are rounded."""
LOOKS = 16
"""Sweeps over the ranks from one look at the limit to the next."""
# How the data-parallel traffic of a rank meets its passes: not at all, by scattering gradients
# behind them (ZeRO-2), by gathering parameters in front of them as well (ZeRO-3).
PLAIN, TRAILS, GATHERS = range(3)


class Order(NamedTuple):
    """What each rank runs, and where its chunks are."""

    codes: Ints
    """(passes,) rank after rank, each row in the order of execution."""
    rows: Ints
    """(p+1,) where each row begins in ``codes``, and where the last one ends."""
    at: Ints
    """(Q,) position of chunk n of rank s, at number s v + n."""
    ahead: Ints
    """(Q,) link on which a position hands over to the next one, by position."""
    back: Ints
    """(Q,) link on which it gets the gradient of that; links number 2 Q at the most."""
    more: Ints
    """(2,) groups of micro-batches that were left out, and the size of each."""
    stops: Ints
    """(2 p,) where groups are left out: where each row begins the group in front, then where it
    ends it. No pass in front of them waits for one behind."""


class Room(NamedTuple):
    """What :func:`step_seconds` fills, at the least; by position, or by way and position."""

    arrives: Floats
    """(2 Q m,) when the input of the k-th forward and backward of a position is there."""
    came: Ints
    """(2 Q,) inputs of which that is known."""
    run: Ints
    """(2 Q,) passes run."""
    hop: Floats
    """(Q,) seconds one way to the next position."""
    gap: Floats
    """(Q,) seconds of a message to it."""
    took: Floats
    """(4 Q,) seconds of a pass, by which it is and its position."""
    late: Floats
    """(Q,) part of a backward that a pass behind may shorten."""
    links: Floats
    """(2 Q,) when the last message of a link arrived."""
    ends: Floats
    """(Q,) end of the last backward."""
    place: Ints
    """(p,) next pass of a rank, as index of ``codes``."""
    stop: Ints
    """(p,) pass that it is to run up to."""
    begun: Ints
    """(p,) chunks that have run a forward."""
    traffic: Ints
    """(p,) PLAIN, TRAILS or GATHERS."""
    clock: Floats
    """(p,) end of its last pass."""
    scattered: Floats
    """(p,) when what a backward left to scatter is through (ZeRO-2; ZeRO-3: of single layers)."""
    fresh: Floats
    """(p,) when the parameters of the chunks that have begun would be gathered at the start of the
    step, had the rank never waited; -inf: no chunk with layers has begun."""
    was: Floats
    """(2 p + 2 Q,) ``clock``, ``scattered`` and ``links`` a group before."""
    unsure: Floats
    """(1,) seconds that the step may take longer, where groups were left out."""


def step_seconds(
    ranks: Chunks, hops: Links, p: int, v: int, m: int, depth: int, order: Order,
    room: Room, limit: float,
) -> float:
    """Seconds of a step; inf where the rows wait for each other.

    As soon as it is known that a step takes ``limit`` seconds or more, a number that is no less,
    and no more than the step.

    Where groups were left out (:func:`nest.schedules.orders.leave_out`), no step with them takes
    less. Between them and the groups in front the same passes have run, and all that comes behind
    began later by so many seconds at the least; each group left out adds as many. What it may add
    besides is in ``room.unsure``: nothing, as a rule.

    Messages of a link arrive in the order of the passes, no two closer than the link takes for one.
    Afterwards ``room.clock`` has the end of the last pass of each rank. ``depth`` is the number of
    positions of a chain.
    """
    for s in range(p):
        _begin(ranks[s], hops[s], s, p, v, m, depth, order, room)
    sweeps, out, added = 0, order.more[0] * order.more[1], 0.0
    room.unsure[0] = 0.0
    for part in range(0 if out else 2, 3):
        left = 0
        for s in range(p):
            room.stop[s] = order.rows[s + 1] if part == 2 else order.stops[part * p + s]
            left += room.stop[s] - room.place[s]
        while left:
            before, sweeps = left, sweeps + 1
            if sweeps % LOOKS == 0 and limit < -NEVER:
                for s in range(p):
                    least = added + _least(
                        ranks[s], s, p, v, m + out if part < 2 else m, depth, order, room)
                    if least >= limit:
                        return least
            for s in range(p):
                left -= _run(ranks[s], s, p, v, m, depth, order, room)
            if left == before:
                return -NEVER
        if part < 2:
            least, most = _risen(p, p * v, m, depth, order, room)
            if part == 1:
                added, room.unsure[0] = order.more[0] * least, order.more[0] * (most - least)
    done = together = exchange = 0.0
    copies = False
    for s in range(p):
        room.clock[s] += added
        tied = update = 0.0
        for n in range(v):
            tied += ranks[s][n].tied
            update += ranks[s][n].update
        ready = _reduced(ranks[s], s, v, p * v, order, room)
        # Copies of a tied embedding are exchanged when all ranks that hold one are ready.
        if tied > 0.0:
            copies = True
            together, exchange = max(together, ready), max(exchange, tied + update)
        else:
            done = max(done, ready + update)
    return added + (max(done, together + exchange) if copies else done)


def _risen(
    p: int, positions: int, m: int, depth: int, order: Order, room: Room
) -> tuple[float, float]:
    """Seconds by which all that later passes wait for is later than it was a group before: the
    least, the most.

    Ends of passes, traffic and links of each rank, which are noted for the next time; inputs that
    have come and not been used, but for those that are there from the start.
    """
    least, most = -NEVER, 0.0
    for x in range(2 * (p + positions)):
        now = room.clock[x] if x < p else room.scattered[x - p] if x < 2 * p else room.links[
            x - 2 * p]
        if now > NEVER:  # nothing was there before: inf
            most = max(most, now - room.was[x])
        if room.was[x] > NEVER:
            least = min(least, now - room.was[x])
        room.was[x] = now
    for x in range(2 * positions):
        for k in range(room.run[x], room.came[x] if x >= positions or x % depth else 0):
            later = room.arrives[x * m + k]
            before = k - order.more[1]
            least = min(least, later - room.arrives[x * m + max(0, before)])
            most = max(most, later - room.arrives[x * m + before] if before >= 0 else -NEVER)
    return least, most


def _least(
    chunks: Sequence[ChunkCosts], s: int, p: int, v: int, m: int, depth: int, order: Order,
    room: Room,
) -> float:
    """No step is shorter, given the passes that rank s has run: it runs the others in a row.

    A whole backward at its end is followed by those of the positions in front. One in two parts
    takes no less than a whole one, and parts for weights alone that are left do not count. Passes
    beside each other hide no more than if all that are left were such.
    """
    positions, seconds, update = p * v, room.clock[s], 0.0
    away = back_away = busy = back_busy = 0.0
    for n in range(v):
        c, q = chunks[n], order.at[s * v + n]
        ahead, back = m - room.run[q], m - room.run[positions + q]
        seconds += ahead * room.took[q] + back * (c.backward - c.late)
        away, busy = away + ahead * c.exchanged_forward, busy + ahead * c.busy_forward
        back_away += back * c.exchanged_backward
        back_busy += back * c.busy_backward
        update += c.update
    seconds -= min(away, back_busy) + min(back_away, busy)
    code, behind = order.codes[order.rows[s + 1] - 1], 0.0
    q = order.at[s * v + code // PASSES]
    for front in range(q - q % depth, q if code % PASSES == BACKWARD else 0):
        behind += room.took[positions + front] - room.late[front]
    return seconds + max(behind, update)


def _begin(
    chunks: Sequence[ChunkCosts], hops: Sequence[Sequence[float]], s: int, p: int, v: int,
    m: int, depth: int, order: Order, room: Room,
) -> None:
    """A rank and its positions before the first pass."""
    positions, traffic = p * v, PLAIN
    for n in range(v):
        c, q = chunks[n], order.at[s * v + n]
        back = positions + q
        room.hop[q], room.gap[q] = hops[n][0] / 2, hops[n][1]
        room.took[q] = c.forward
        # Under ZeRO-3 the end of a backward waits for what the next pass gathers: _behind.
        room.took[back], room.late[q] = c.backward, c.late
        room.took[INPUTS * positions + q] = c.inputs
        room.took[WEIGHTS * positions + q] = c.weights
        room.run[q] = room.run[back] = room.came[q] = room.came[back] = 0
        room.links[q] = room.links[back] = NEVER
        if q % depth == 0:
            room.came[q] = m
            for k in range(m):
                room.arrives[q * m + k] = 0.0
        if c.largest > 0.0:
            traffic = GATHERS
        elif c.trailing > 0.0:
            traffic = max(traffic, TRAILS)
    room.place[s], room.begun[s], room.traffic[s] = order.rows[s], 0, traffic
    room.clock[s], room.scattered[s], room.fresh[s] = 0.0, NEVER, NEVER


def _run(
    chunks: Sequence[ChunkCosts], s: int, p: int, v: int, m: int,
    depth: int, order: Order, room: Room,
) -> int:
    """Run the passes of a rank whose input is there; their number."""
    i, stop, clock, traffic = room.place[s], room.stop[s], room.clock[s], room.traffic[s]
    positions, fresh = p * v, room.begun[s] < v
    while i < stop:
        code = order.codes[i]
        n, which = code // PASSES, code % PASSES
        q = order.at[s * v + n]
        if which == WEIGHTS:
            start, trails = clock, traffic > 0 and not empty(chunks[n])
            if trails:
                start = max(start, room.scattered[s] - chunks[n].trails_weights)
            clock = room.ends[q] = start + room.took[WEIGHTS * positions + q]
            if trails:
                room.scattered[s] = clock + chunks[n].trailing
            i += 1
            continue
        way = 1 if which in (BACKWARD, INPUTS) else 0
        x = way * positions + q
        k = room.run[x]
        if k == room.came[x]:
            break
        start = max(clock, room.arrives[x * m + k])
        if which == BESIDE:
            other = order.codes[i + 1] // PASSES
            y = positions + order.at[s * v + other]
            back = room.run[y]
            if back == room.came[y]:
                break
            start = max(start, room.arrives[y * m + back])
        if traffic:
            held_up = other if which == BESIDE else n
            start = max(start, _free(chunks, held_up, which, s, i, clock, order, room))
        if fresh and not way:
            if k == 0:
                start = max(start, _first(chunks[n], s, room))
                fresh = room.begun[s] < v
            room.fresh[s] += chunks[n].forward - chunks[n].hides_gather
        room.run[x] = k + 1
        if which == BESIDE:
            clock = start + beside(chunks[n], chunks[other])
            room.run[y] = back + 1
            room.ends[y - positions] = clock
            _send(q, 0, k, positions, m, depth, clock, order, room)
            _send(y - positions, 1, back, positions, m, depth, clock, order, room)
            if traffic and not empty(chunks[other]):
                room.scattered[s] = clock + chunks[other].trailing
            i += 2
            continue
        clock = start + room.took[which * positions + q]
        if traffic:
            clock = _behind(chunks, n, which, s, i, clock, order, room)
        if way:
            room.ends[q] = clock
        _send(q, way, k, positions, m, depth, clock, order, room)
        i += 1
    count = i - room.place[s]
    room.place[s], room.clock[s] = i, clock
    return count


def beside(ahead: ChunkCosts, back: ChunkCosts) -> float:
    """Seconds of a forward and a backward that hide each other's all-to-alls of experts."""
    return (ahead.forward - min(ahead.exchanged_forward, back.busy_backward)
            + back.backward - min(back.exchanged_backward, ahead.busy_forward))


def _first(c: ChunkCosts, s: int, room: Room) -> float:
    """Earliest start of the first forward of a chunk, for its parameters have to be there.

    Gathers of parameters run from the start of the step, at the full rate while the rank waits and
    at their share of it while it computes: the forwards before.
    """
    room.begun[s] += 1
    if empty(c):
        return 0.0
    first = room.fresh[s] == NEVER
    if first:
        room.fresh[s] = 0.0
    start = room.fresh[s] + c.wait if first or c.gather > 0.0 else 0.0
    room.fresh[s] += c.gather
    return start


def _free(
    chunks: Sequence[ChunkCosts], n: int, which: int, s: int, i: int,
    clock: float, order: Order, room: Room,
) -> float:
    """When a pass may begin, as far as the rank goes; its traffic goes on while it waits."""
    c = chunks[n]
    if empty(c):
        return clock
    if room.traffic[s] == TRAILS:
        if which == BESIDE:  # its computing hides other traffic
            return max(clock, room.scattered[s])
        return max(clock, room.scattered[s] - c.trails_backward) if which == BACKWARD else clock
    code = _near(chunks, s, i, -1, order)
    if code < 0:
        return clock
    x, way_before = code // PASSES, code % PASSES
    front = chunks[x]
    start = clock + longer(front, way_before, c, which)
    if not front.alone:
        room.scattered[s] = clock + front.scattered if way_before else NEVER
        return start
    # What an earlier backward left is in front of what this pass gathers.
    room.scattered[s] += (c.regathered if which else c.gathered) + (
        front.backward - front.under_first if way_before
        else front.forward - front.under_last)
    start = max(start, room.scattered[s])
    if way_before:
        room.scattered[s] = start + front.scattered
    return start


def _near(
    chunks: Sequence[ChunkCosts], s: int, i: int, way: int, order: Order
) -> int:
    """Code of the next pass through layers behind the i-th (1) or in front of it (-1); -1: none."""
    i += way
    while order.rows[s] <= i < order.rows[s + 1]:
        if not empty(chunks[order.codes[i] // PASSES]):
            return order.codes[i]
        i += way
    return -1


def gathering(c: ChunkCosts, way: int, hidden: float) -> float:
    """Seconds that a pass takes longer at the least behind any other one, given how many of what
    it gathers that one hides at the most (ZeRO-3); unless it waited for its input."""
    if way:
        return max(0.0, c.regathered - hidden) + max(0.0, c.below - c.trails_backward)
    return max(0.0, c.gathered - hidden) + c.begun


def _behind(
    chunks: Sequence[ChunkCosts], n: int, which: int, s: int, i: int,
    end: float, order: Order, room: Room,
) -> float:
    """End of a pass that would end at ``end`` without data-parallel traffic behind it."""
    c = chunks[n]
    if empty(c):
        return end
    if room.traffic[s] == TRAILS:
        if which == BACKWARD:
            room.scattered[s] = end + c.trailing
        elif which == FORWARD:
            room.scattered[s] += c.forward - c.trails_forward
        else:
            room.scattered[s] += c.inputs - c.trails_inputs
        return end
    if which == FORWARD:
        return end
    code, gathered = _near(chunks, s, i, 1, order), 0.0
    if code >= 0:
        behind = chunks[code // PASSES]
        gathered = behind.regathered if code % PASSES else behind.gathered
    return end + (delayed(c, gathered) - c.late)


def _send(
    q: int, way: int, k: int, positions: int, m: int, depth: int, end: float, order: Order,
    room: Room,
) -> None:
    """Hand over what the k-th pass of a way has made of a position."""
    if way:
        to = positions + q - 1
        if q % depth == 0:
            return
        link, hop = order.back[q - 1], q - 1
    elif q % depth == depth - 1:  # the loss: its gradient is there at once
        room.arrives[(positions + q) * m + k] = end
        room.came[positions + q] = k + 1
        return
    else:
        to, link, hop = q + 1, order.ahead[q], q
    arrival = max(end + room.hop[hop], room.links[link] + room.gap[hop])
    room.links[link] = room.arrives[to * m + k] = arrival
    room.came[to] = k + 1


def _reduced(
    chunks: Sequence[ChunkCosts], s: int, v: int, positions: int, order: Order, room: Room
) -> float:
    """When all gradients of a rank are reduced.

    From the last backward of a chunk on, its gradients and those of the chunks that end later are
    reduced beside the backwards that follow. Forwards hide nothing of them.
    """
    ready = below = 0.0
    first, left, i = True, v, order.rows[s + 1] - 1
    while left and i >= order.rows[s]:
        n, which = order.codes[i] // PASSES, order.codes[i] % PASSES
        c, x = chunks[n], positions + order.at[s * v + n]
        if room.run[x] > 0 and which in (BACKWARD, WEIGHTS):
            room.run[x] = 0  # the last one of the chunk, as the row is read from its end
            ready = max(ready, room.ends[x - positions])
            if not empty(c):
                rest = c.left if which == BACKWARD else c.left_weights
                if not first:
                    rest -= c.scattered
                first = False
                ready = max(ready, room.ends[x - positions] + below + rest)
            below += c.sync
            left -= 1
        if which == BACKWARD:
            below += (c.backward + c.queue_backward + c.late_back - c.late
                      - c.hides_sync)
        elif which == INPUTS:
            below += c.inputs - c.hides_inputs
        elif which == WEIGHTS:
            below += c.weights - c.hides_weights
        i -= 1
    return ready
