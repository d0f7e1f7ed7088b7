"""What recompute changes of the stages of a signature.

Shapes: T layer kinds, R recompute policies, G signatures. ``tables`` is a ``Tables``,
``work`` a ``nest._kernels.options.OptionWork``.
"""

from __future__ import annotations

from nest._kernels import leaf
from nest._kernels.fold import layer_sums
from nest._kernels.option_work import OptionWork
from nest.records import Rows
from nest.records.tables import Tables


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
