"""What layers take at least wherever they lie, and whether that leaves a pipeline a chance."""

from __future__ import annotations

import numpy as np

from nest._kernels import leaf
from nest._kernels.alike.layouts import (
    ends_of,
    gathers,
    hidden_of,
    waits_of,
)
from nest._kernels.alike.work import (
    AHEAD,
    BACK,
    GATHER,
    HELD,
    INPUTS,
    KEPT,
    LEFT,
    MORE,
    REDUCE,
    REFRESH,
    REGATHER,
    ROOM,
    SCATTER,
)
from nest._kernels.layers import (
    ACTIVATIONS,
    BACKWARD,
    BUFFERS,
    EXCHANGED_BACKWARD,
    EXCHANGED_FORWARD,
    FORWARD,
    FREE_BACKWARD,
    FREE_FORWARD,
    GATHERED,
    REGATHERED,
    RESIDENT,
    SCATTERED,
    SYNC,
    TIED,
    UPDATE,
    WEIGHTS,
    WORK,
    layer_sums,
)
from nest._kernels.layers import GATHER as REFRESHED
from nest._kernels.orders import copies_of, together_of
from nest._kernels.pipeline import SLACK


@leaf
def fill_layers(t, q, w, c, z, policies):
    """Fill in the layers of a candidate with a way of ZeRO, under policies."""
    for y in range(q.alike.shape[1]):
        if q.alike[c, y] < 0:
            continue
        for policy in policies:
            layer_sums(t, q.alike[c, y], z, policy, w.layers[y])
            if len(q.twin):
                _add_exchange(t.exchanged[t.held[c], z], q.twin[y % len(q.twin)],
                              w.layers[y, policy])


@leaf
def sum_up(t, q, a, w, c, policies, saving):
    """What each layer takes at least under any of some policies, wherever it is; bytes of
    activations are those under any of the ``saving`` ones. What the two differ in (``MORE``,
    ``w.layer[1]``) is that of the first of both."""
    w.least[:], w.free[:] = np.inf, 0.0
    for y in range(q.alike.shape[1]):
        if q.alike[c, y] < 0:
            continue
        for kind in range(w.least.shape[1]):
            for r in policies:
                own = w.layers[y, r, kind]
                w.least[AHEAD, kind] = min(w.least[AHEAD, kind], own[FORWARD])
                w.least[BACK, kind] = min(w.least[BACK, kind], own[BACKWARD])
                w.least[LEFT, kind] = min(w.least[LEFT, kind], own[UPDATE] + own[TIED])
                w.least[HELD, kind] = min(w.least[HELD, kind], own[RESIDENT])
                w.least[ROOM, kind] = min(w.least[ROOM, kind], own[WORK] + own[BUFFERS])
                w.least[GATHER, kind] = min(w.least[GATHER, kind], own[GATHERED])
                w.least[REGATHER, kind] = min(w.least[REGATHER, kind], own[REGATHERED])
                w.least[SCATTER, kind] = min(w.least[SCATTER, kind], own[SCATTERED])
                w.least[REDUCE, kind] = min(w.least[REDUCE, kind], own[SYNC])
                w.least[REFRESH, kind] = min(w.least[REFRESH, kind], own[REFRESHED])
                w.free[0, kind] = max(w.free[0, kind], own[FREE_FORWARD])
                w.free[1, kind] = max(w.free[1, kind], own[FREE_BACKWARD])
            own = w.layers[y, policies[0], kind]
            for r in saving:
                least = w.layers[y, r, kind]
                w.least[ROOM, kind] = min(w.least[ROOM, kind], least[WORK] + least[BUFFERS])
                w.least[KEPT, kind] = min(w.least[KEPT, kind], least[ACTIVATIONS])
                w.least[MORE, kind] = min(
                    w.least[MORE, kind], own[ACTIVATIONS] - least[ACTIVATIONS])
    w.layer[:], w.saved[:], w.weights[:] = np.inf, 0.0, 0.0
    away = back_away = busy = back_busy = 0.0
    w.marked[:] = False
    for y in range(q.alike.shape[1]):
        if q.alike[c, y] >= 0:
            for n in range(2):
                own = w.layers[y, policies[0], a.whole[0] if n else a.order[0]]
                w.layer[10] = min(w.layer[10], own[REFRESHED])
                w.layer[11] = min(w.layer[11], own[SYNC] + own[UPDATE] + own[TIED])
    for y in range(q.alike.shape[1] if len(a.apart) else 0):
        if q.alike[c, y] >= 0:
            apart = a.apart[t.body[q.alike[c, y]]]
            for kind in range(apart.shape[1]):
                for r in policies:
                    own = apart[r, kind]
                    if own[EXCHANGED_FORWARD] > 0.0:
                        w.saved[0, kind] = max(w.saved[0, kind], own[EXCHANGED_FORWARD])
                        w.saved[1, kind] = max(w.saved[1, kind], own[EXCHANGED_BACKWARD])
                        w.saved[2, kind], w.saved[3, kind] = w.free[0, kind], w.free[1, kind]
                    w.weights[kind] = max(w.weights[kind], own[WEIGHTS])
    for kind in range(w.least.shape[1]):
        w.least[INPUTS, kind] = max(0.0, w.least[BACK, kind] - w.weights[kind])
    for n in range(len(a.order)):
        kind, whole = a.order[n], a.whole[n]
        if q.marked_before[n + 1] > q.marked_before[n]:
            w.marked[kind] = w.marked[whole] = True
            w.layer[3] = min(w.layer[3], max(
                0.0, min(w.least[MORE, kind], w.least[MORE, whole])))
        ahead = min(w.least[AHEAD, kind], w.least[AHEAD, whole])
        back = min(w.least[BACK, kind], w.least[BACK, whole])
        resident = min(w.least[HELD, kind], w.least[HELD, whole])
        activations = min(w.least[KEPT, kind], w.least[KEPT, whole])
        for x in range(4):
            w.saved[x, -1] += max(w.saved[x, kind], w.saved[x, whole])
        if a.body[0] <= n < a.body[1]:
            w.layer[0] = min(w.layer[0], ahead + back)
            away = max(away, w.saved[0, kind], w.saved[0, whole])
            back_away = max(back_away, w.saved[1, kind], w.saved[1, whole])
            busy = max(busy, w.saved[2, kind], w.saved[2, whole])
            back_busy = max(back_busy, w.saved[3, kind], w.saved[3, whole])
            w.layer[8], w.layer[9] = min(w.layer[8], resident), min(w.layer[9], activations)
            for y in range(q.alike.shape[1]):
                if q.alike[c, y] >= 0:
                    again, own = w.layers[y, saving[0], kind], w.layers[y, policies[0], kind]
                    w.layer[1] = min(w.layer[1], again[FORWARD] + again[BACKWARD]
                                     - own[FORWARD] - own[BACKWARD])
        w.ahead[n + 1], w.back[n + 1] = w.ahead[n] + ahead, w.back[n] + back
        w.inputs[n + 1] = w.inputs[n] + max(0.0, back - max(w.weights[kind], w.weights[whole]))
        w.resident[n + 1] = w.resident[n] + resident
        w.kept[n + 1] = w.kept[n] + activations
    w.layer[2] = hidden_of(away, back_away, busy, back_busy)
    _sum_up_waits(t, a, w)


@leaf
def _add_exchange(exchanged, twin, layers):
    """Add what the two holders of a layer exchange, over a way between them."""
    for kind in range(len(exchanged)):
        layers[kind, SYNC] += exchanged[kind, 0] * twin[0] + exchanged[kind, 1] * twin[1]
        layers[kind, REFRESHED] += exchanged[kind, 2] * twin[0] + exchanged[kind, 3] * twin[1]


@leaf
def _sum_up_waits(t, a, w):
    """Fill in what passes wait at least for ZeRO traffic between two layers of the body, or more
    with a third one in front of them; by the kind of the last. Then for what is gathered of a
    layer, wherever it is, forward and backward."""
    hides, traffic, w.layer[12] = 0.0, 0.0, 0.0
    for kind in range(w.least.shape[1]):
        w.layer[12] = max(w.layer[12], w.least[GATHER, kind])
        traffic = max(traffic, w.least[GATHER, kind], w.least[REGATHER, kind],
                      w.least[SCATTER, kind])
    if traffic == 0.0:
        w.waits[:], w.waited[:], w.layer[4:8] = 0.0, 0.0, 0.0
        return
    w.waits[:] = np.inf
    for kind in range(w.least.shape[1]):
        hides = max(hides, t.overlaps[0] * w.free[0, kind], t.overlaps[0] * w.free[1, kind])
    for kind in range(w.least.shape[1]):
        for x in range(2):
            w.waits[2 + x, kind] = max(0.0, w.least[REGATHER if x else GATHER, kind] - hides)
    for n in range(len(a.order)):
        for x in range(4):
            kind, below = (a.whole[n], a.whole[n - 1]) if x % 2 else (a.order[n], a.order[n - 1])
            if not a.body[0] <= n < a.body[1]:
                w.waits[:2, kind] = 0.0
            elif n > a.body[0]:
                back = w.least[SCATTER, kind] - t.overlaps[0] * w.free[1, below]
                w.waits[0, kind] = min(w.waits[0, kind], max(0.0, back))
                if n > a.body[0] + 1:
                    kinds = a.whole if x // 2 else a.order
                    w.waits[1, kind] = min(w.waits[1, kind], max(
                        0.0, back + w.least[REGATHER, kinds[n - 2]]) + max(
                        0.0, w.least[GATHER, kind] - t.overlaps[0] * w.free[0, below])
                        - max(0.0, back))
    w.layer[4:8] = 0.0
    for kind in range(w.least.shape[1]):
        for x in range(4):
            w.waits[x, kind] = w.waits[x, kind] if w.waits[x, kind] < np.inf else 0.0
            w.layer[4 + x] = max(w.layer[4 + x], w.waits[x, kind])
    w.waited[:] = 0.0
    for n in range(len(a.order)):
        for x in range(0 if a.body[0] <= n < a.body[1] else 2, 4):
            w.waited[x] += min(w.waits[x, a.order[n]], w.waits[x, a.whole[n]])


@leaf
def may_be_below(t, a, w, k, top):
    """Whether pipeline k may take less than ``top`` somewhere, by its seconds and its bytes."""
    N = len(a.order)
    least = w.ahead[N] + w.back[N]
    if together_of(a.schedule[k]):
        least -= hidden_of(w.saved[0, -1], w.saved[1, -1], w.saved[2, -1], w.saved[3, -1])
    top -= ends_of(a.schedule[k], w)
    held = copies_of(a.schedule[k]) * (w.resident[N] + w.kept[N])
    if a.warm[k] * least >= top * SLACK or held > a.pp[k] * t.limit_bytes:
        return False
    if gathers(a.schedule[k]) and t.micro_batches / a.pp[k] * (
            least + w.waited[2] + w.waited[3]) - w.layer[6] >= top * SLACK:
        return False
    least += waits_of(w.waited[0], w.waited[1], a.pp[k] * a.vpp[k], w.layer[4], w.layer[5])
    return a.warm[k] * least < top * SLACK
