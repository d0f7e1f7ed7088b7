"""Keep the configurations of a stage that some plan could want.

Shapes: T layer kinds, C candidates, U bodies, V states, R recompute policies, Z ways of ZeRO, G
signatures, P prices, O options kept.
"""

from __future__ import annotations

import numpy as np

from nest._kernels import entry, leaf
from nest._kernels.fold import fill_whole, layer_sums, recomputed, set_alone, walk
from nest._kernels.option_work import OptionWork, wider, work_of
from nest._kernels.spans import PART, Wanted
from nest.records import Ints, Ints2, Row, Rows
from nest.records.tables import Tables


@leaf
def in_flight(limit_bytes: float, resident: float, activations: float, cap: int) -> int:
    """Most micro-batches in flight that fit, up to ``cap``; 0 where none does."""
    if resident + activations > limit_bytes:
        return 0
    if resident + cap * activations <= limit_bytes:
        return cap
    held = int((limit_bytes - resident) / activations)
    # The quotient is rounded: settle by the sum that the limit is checked with.
    while resident + held * activations > limit_bytes:
        held -= 1
    while resident + (held + 1) * activations <= limit_bytes:
        held += 1
    return held


@leaf
def _may_be_wanted(tables: Tables, work: OptionWork, price: int, g: int, limit: float) -> bool:
    """Whether a plan below ``limit`` may have the new option of g.

    No step takes less than its own micro-batches, what comes before and after.
    """
    new = work.new[0]
    time = new.forward + new.backward - new.late
    return time < work.wanted.slowest[price, g] and (
        new.wait + tables.micro_batches * time + new.left + new.later < limit)


@leaf
def _no_worse(a: Row, b: Row) -> bool:
    """Whether option ``a`` is as good as ``b`` in everything that decides."""
    return (a.forward <= b.forward and a.ready <= b.ready and a.backward <= b.backward
            and a.waited <= b.waited and a.last <= b.last and a.turn <= b.turn
            and a.paced <= b.paced and a.chased <= b.chased and a.queued <= b.queued
            and a.queued_back <= b.queued_back and a.later <= b.later
            and a.held >= b.held and a.shards >= b.shards)


@leaf
def _dominated(kept: Rows, n: int, count: int, new: Row) -> bool:
    """Whether an option at place n is as good as a new one."""
    o = 0
    while o < count and not _no_worse(kept[n, o], new):
        o += 1
    return o < count


@leaf
def _keep(kept: Rows, tally: Ints, n: int, new: Row) -> bool:
    """Add a new option at place n unless dominated, drop those it dominates; False: no room."""
    count = tally[n]
    if _dominated(kept, n, count, new):
        return True
    if count == kept.shape[1]:
        return False
    left = 0
    for o in range(count):
        if not _no_worse(new, kept[n, o]):
            if left != o:
                kept[n, left] = kept[n, o]
            left += 1
    kept[n, left] = new
    tally[n] = left + 1
    return True


@leaf
def _sort(work: OptionWork, n: int, start: int) -> None:
    """Write the options at place n from ``start`` on, by ascending t; equal ones in their order."""
    kept, sequence, count = work.kept[n], work.sequence, work.tally[n]
    for o in range(count):
        time, y = kept[o].forward + kept[o].backward, o
        while y and kept[sequence[y - 1]].forward + kept[sequence[y - 1]].backward > time:
            sequence[y] = sequence[y - 1]
            y -= 1
        sequence[y] = o
    for y in range(count):
        work.options[start + y] = kept[sequence[y]]


@leaf
def _offer(tables: Tables, work: OptionWork, c: int, z: int, limit: float, slack: float) -> bool:
    """Keep options of candidate c and way of ZeRO z; False: ``work.kept`` has no room."""
    layer_sums(tables, tables.body[c], tables.held[c], z, 0, work.layers)
    work.new[0].shards = tables.shards[c]
    traffic = 0.0
    for kind in range(tables.ahead.shape[1]):
        traffic = max(traffic, work.layers[0, kind].gathered, work.layers[0, kind].scattered)
    busy = traffic > 0.0
    code = (c * len(tables.shard) + z) * tables.back.shape[1]
    reached = walk(tables, work, c, limit, slack)
    shorts = _offer_whole(tables, work, c, z, busy, code, reached, limit)
    if shorts > 0 and tables.back.shape[1] > 1:
        return _offer_recomputed(tables, work, c, z, busy, code, shorts, limit, slack)
    return shorts >= 0


@leaf
def _offer_whole(
    tables: Tables, work: OptionWork, c: int, z: int, busy: bool, code: int, reached: int,
    limit: float,
) -> int:
    """The same without recompute; how many signatures hold too little so, -1: no room."""
    new, price = work.new[0], tables.price[c]
    shorts = 0
    for x in range(reached):
        g = work.order[x]
        total = work.totals[g]
        cap = min(tables.cap[g], work.wanted.most[price, g])
        if cap == 0 or (tables.forbidden[z] and g != tables.whole):
            continue
        held = 0
        if tables.keep_none:
            held = in_flight(
                tables.limit_bytes, total.resident + total.work + total.buffers
                + tables.received[g] / tables.shards[c],
                total.activations + tables.relay[g] * tables.relayed[c], cap)
        work.held[g] = held
        if held >= work.wanted.least[price, g]:
            if g == tables.whole:  # a single stage, whose traffic may overlap more
                recomputed(tables, work, g, 0, 0)
            elif busy:
                fill_whole(tables, work, g)
            else:
                new.forward, new.backward = total.forward, total.backward
                set_alone(new, total.left, total.wait, total.tied, total.update)
            new.degrees, new.held = code * len(tables.first_layers), held
            if _may_be_wanted(tables, work, price, g, limit) and not _keep(
                    work.kept, work.tally, work.place[price, g], new):
                return -1
        if held < cap:
            work.short[shorts] = g
            shorts += 1
    return shorts


@leaf
def _best_changes(tables: Tables, work: OptionWork) -> float:
    """Fill in the least that a policy but full changes of each kind; the least of one layer."""
    least = np.inf
    for at in range(len(tables.kinds)):
        kind = tables.kinds[at]
        work.best_back[kind], work.best_held[kind] = np.inf, 0.0
        for r in range(1, tables.back.shape[1]):
            back = work.changes[r, kind].backward
            least = min(least, back)
            if r != tables.full:
                work.best_back[kind] = min(work.best_back[kind], back)
                work.best_held[kind] = min(work.best_held[kind], work.changes[r, kind].activations)
    return least


@leaf
def _offer_recomputed(
    tables: Tables, work: OptionWork, c: int, z: int, busy: bool, code: int, shorts: int,
    limit: float, slack: float,
) -> bool:
    """The same with recompute, for the signatures that hold too little without."""
    m, R = tables.micro_batches, tables.back.shape[1]
    weight, price = tables.weight[c], tables.price[c]
    radix = len(tables.first_layers)
    policy_changes(tables, work, c, z, busy)
    least = _best_changes(tables, work)
    for x in range(shorts):
        g = work.short[x]
        total = work.totals[g]
        cap, base = min(tables.cap[g], work.wanted.most[price, g]), work.base[g]
        best, slowest = max(work.held[g],
            work.wanted.least[price, g] - 1), work.wanted.slowest[price, g]
        unchanged = total.forward + total.backward
        # No policy costs less than the cheapest does in one layer.
        most_time = min(limit / m, (slack + base) / weight, slowest)
        if tables.keep_none and unchanged + least >= most_time:
            continue
        resident = total.resident + total.buffers + tables.received[g] / tables.shards[c]
        workspace = total.work
        activations = total.activations + tables.relay[g] * tables.relayed[c]
        time, least_kept = unchanged, activations
        for at in range(tables.among[g, 0], tables.among[g, 1]):
            kind = tables.kinds[at]
            layers = layers_of(tables, g, kind)
            if layers:
                time += layers * work.best_back[kind]
                least_kept += layers * work.best_held[kind]
        more = resident + workspace + (best + 1) * least_kept
        some = time < most_time and more <= tables.limit_bytes * (1.0 + 1e-12)
        most = tables.marked[g]
        for r in range(1, R - (tables.full > 0) if some else 0):
            back, held_bytes, work_bytes = changed(tables, work.changes, g, r)
            time = unchanged + back
            if m * time >= limit or weight * time - base > slack or time >= slowest:
                continue
            held = in_flight(tables.limit_bytes, resident + max(workspace, work_bytes),
                             activations + held_bytes, cap)
            if held > best and not _offer_policy(
                    tables, work, c, g, r, most, back, held, busy, (code + r) * radix, limit):
                return False
        if tables.full < 0:
            continue
        # The first layers in full: for each number in flight the fewest of them.
        layer = min(most, 1)
        while best < cap:
            if most:
                room = (tables.limit_bytes - resident - workspace) / (best + 1)
                layer = first_that_may_hold(
                    tables, work.changes, g, room - activations + 1e-9 * tables.limit_bytes, layer,
                    most)
            if layer > most:
                break
            back, held_bytes, work_bytes = changed(
                tables, work.changes, tables.ancestor[tables.way[g], layer], tables.full)
            time = unchanged + back
            if m * time >= limit or weight * time - base > slack or time >= slowest:
                break
            held = in_flight(tables.limit_bytes, resident + max(workspace, work_bytes),
                             activations + held_bytes, cap)
            allowed = tables.first_layers[layer] if layer < most else most <= tables.most_layers
            if allowed and held > best:
                best = held
                option = (code + tables.full) * radix + (0 if layer == most else layer)
                if not _offer_policy(
                        tables, work, c, g, tables.full, layer, back, held, busy, option, limit):
                    return False
            layer += 1
    return True


@leaf
def _offer_policy(
    tables: Tables, work: OptionWork, c: int, g: int, r: int, most: int, back: float, held: float,
    busy: bool, option: int, limit: float,
) -> bool:
    """The same of one signature and policy r for its first ``most`` layers."""
    new, n, first, total = work.new[0], work.place[tables.price[c], g], work.layers[0,
        tables.root[g]], work.totals[g]
    new.forward, new.backward = total.forward, total.backward + back
    new.degrees, new.held = option, held
    left, wait = first.scattered + first.sync, total.wait
    if busy:
        wait += first.gathered
    else:
        left = left_seconds(tables, work.layers, g, r, most)
    # With ZeRO traffic it is no better than this, which is often enough to drop it.
    set_alone(new, left, wait, total.tied, total.update)
    if busy:
        if _dominated(work.kept, n, work.tally[n], new):
            return True
        recomputed(tables, work, g, r, most)
    return not _may_be_wanted(tables, work, tables.price[c], g, limit) or _keep(work.kept,
        work.tally, n, new)


@leaf
def _fill(tables: Tables, work: OptionWork, begin: int, limit: float) -> int:
    """Fill ``first`` and ``options``, from candidate and way of ZeRO ``begin`` on.

    Ways are counted candidate by candidate. Returns the one whose options found no room, to begin
    with once there is more, and the number of all where all did.
    """
    C, G, Z, m = len(tables.price), len(tables.part), len(tables.shard), tables.micro_batches
    for g in range(G):
        work.base[g] = tables.least[tables.last[g]]
        if tables.part[g] >= 0:
            work.base[g] += work.base[tables.part[g]]
    slack = limit * (1.0 + 1e-12) - work.base[tables.whole]
    now = begin
    while now < C * Z:
        c, z = now // Z, now % Z
        body, price = tables.body[c], tables.price[c]
        # Without ZeRO traffic and recompute: what a single layer cannot stay below, none can.
        alive = False
        for kind in range(tables.ahead.shape[1]):
            time = tables.ahead[body, kind].seconds + tables.back[body, 0, kind].seconds
            alive |= m * time < limit and tables.weight[c] * time - tables.least[kind] <= slack
        # Options that found a place are offered once more in vain: none is better than itself.
        if alive and (tables.hybrid[c] or not tables.shard[z]) and not _offer(tables, work, c, z,
                limit, slack):
            return now
        if z == Z - 1 and (c == C - 1 or tables.price[c + 1] > price):
            total = work.first[price, 0]
            for n in range(len(work.tally)):
                total += work.tally[n]
            if total > len(work.options):
                return now
            total = work.first[price, 0]
            for g in range(G):
                n = work.place[price, g]
                if work.wanted.most[price, g] > PART and work.tally[n]:
                    _sort(work, n, total)
                    total += work.tally[n]
                    work.tally[n] = 0
                work.first[price, g + 1] = total
            if c < C - 1:
                work.first[price + 1, 0] = total
        now += 1
    return now


@entry
def fill(tables: Tables, work: OptionWork, begin: int, limit: float) -> int:
    """``_fill`` for Python: without references to count, unpacking an array takes longer."""
    return _fill(tables, work, begin, limit)


def select(tables: Tables, wanted: Wanted, limit: float) -> tuple[Ints2, Ints, Rows]:
    """Non-dominated configurations of every (price, signature), by ascending t = f + b.

    One is dominated when another is no worse in the first fields of an option: forward, backward,
    with or without what it gathers for the pass behind it, either with what it takes longer behind
    another pass, with what it waits for at the start and leaves at the end of a step; what follows
    then; micro-batches in flight that fit, and shards. These suffice by docs/proofs.md, Lemma 22
    (dominated options). Of equal ones the first stays. Those that alone take ``limit`` seconds a
    step, take too much above the least to stay below it, or hold no micro-batch, are no options.

    Of recompute, each signature gets what its memory asks for: nothing where that holds all there
    is to hold, else also each policy that holds more, and of "the first r layers" the least r for
    every number in flight.

    Parameters
    ----------
    t : ``nest.records.tables.Tables``.
    wanted : ``nest._kernels.spans.Wanted``.
    limit : seconds of a step.

    Returns
    -------
    first : int64 (P, G+1), options of price p and signature g are first[p, g]..first[p, g+1].
    degrees : int64 (O,), see ``nest.search.tensors.Formulation.degrees``.
    options : OPTION (O,), see :mod:`nest.records`.
    """
    work, now, stop = work_of(tables, wanted), 0, len(tables.price) * len(tables.shard)
    while True:
        now = fill(tables, work, now, limit)
        if now == stop:
            break
        work = wider(work)
    total = work.first[-1, -1]
    options = work.options[:total].copy()
    return work.first, np.ascontiguousarray(options["degrees"]), options


@leaf
def policy_changes(tables: Tables, work: OptionWork, c: int, z: int, busy: bool) -> None:
    """Fill ``work.layers[1:]``, and ``work.changes``: backward at the least, activations, work.

    Backward and activations are those above the ones of ``layers[0]``. Longer computing hides more
    ZeRO traffic, at the share that the stack overlaps.
    """
    layers, changes = work.layers, work.changes
    overlap = tables.overlaps[0] if busy else 0.0
    for r in range(1, tables.back.shape[1]):
        layer_sums(tables, tables.body[c], tables.held[c], z, r, layers)
        for at in range(len(tables.kinds)):
            kind = tables.kinds[at]
            alone, again, change = layers[0, kind], layers[r, kind], changes[r, kind]
            hidden = again.free_backward - alone.free_backward
            change.backward = again.backward - alone.backward - overlap * hidden
            change.activations = again.activations - alone.activations
            change.work = again.work


@leaf
def layers_of(tables: Tables, q: int, kind: int) -> int:
    """Layers of a kind in signature q."""
    return tables.seen[tables.stretch[q, 1], kind] - tables.seen[tables.stretch[q, 0], kind]


@leaf
def changed(tables: Tables, changes: Rows, q: int, r: int) -> tuple[float, float, float]:
    """What policy r changes of all layers of signature q: backward, activations, work."""
    back = held = work = 0.0
    for at in range(tables.among[q, 0], tables.among[q, 1]):
        kind = tables.kinds[at]
        layers = layers_of(tables, q, kind)
        if layers:
            back += layers * changes[r, kind].backward
            held += layers * changes[r, kind].activations
            work = max(work, changes[r, kind].work)
    return back, held, work


@leaf
def left_seconds(tables: Tables, layers: Rows, g: int, r: int, most: int) -> float:
    """What is left to reduce of signature g, policy r for the first ``most`` layers; no ZeRO-2, 3.

    As in ``chunk_costs``, run by run of layers of one kind and policy, from the last to the first:
    after n of them what is left is the largest of n + 1 sums, which is the first or the last.
    """
    left, overlap = 0.0, (tables.overlaps_alone if g == tables.whole else tables.overlaps)[1]
    while g >= 0:
        kind, q = tables.last[g], tables.before[g]
        count, done = tables.depth[g], 0
        if q >= 0:
            count, done = tables.depth[g] - tables.depth[q], tables.marked[q]
        again = min(max(most - done, 0), count) if tables.marked[g] > done else 0
        sync = layers[0, kind].sync
        for policy in (0, r):
            n = again if policy else count - again
            if n:
                slope = sync - overlap * layers[policy, kind].free_backward
                left = max(left + n * slope, sync + max(0.0, (n - 1) * slope))
        g = q
    return left


@leaf
def first_that_may_hold(
    tables: Tables, changes: Rows, g: int, room: float, least: int, most: int,
) -> int:
    """Least number of first layers, from ``least`` on, whose change of activations is ``room``.

    Each layer more keeps no more, so that halving finds it; most + 1 where none does.
    """
    low, high = least, most + 1
    while low < high:
        middle = (low + high) // 2
        held = 0.0
        q = tables.ancestor[tables.way[g], middle]
        for at in range(tables.among[q, 0], tables.among[q, 1]):
            kind = tables.kinds[at]
            held += layers_of(tables, q, kind) * changes[tables.full, kind].activations
        if held <= room:
            high = middle
        else:
            low = middle + 1
    return low
