"""Whether the stages of one outer choice may fit at all, however long a step takes.

Shapes: T layer kinds, C candidates, G signatures, P prices, L layers of a chain, K positions, B
block sizes.
"""

from __future__ import annotations

import numpy as np

from nest._kernels import entry, kernel
from nest._kernels.options import in_flight
from nest.records import LAYER_BYTES, Bools, Ints, Ints2
from nest.records.tables import Tables


@kernel
def _holds(t: Tables) -> Ints2:
    """int64 (P, G): most micro-batches in flight of a signature under a price; none: 0.

    No option holds more: of each layer the policy counts that keeps least, and what it needs while
    it recomputes does not.
    """
    T, G, R = t.ahead.shape[1], len(t.part), t.back.shape[1]
    holds = np.zeros((int(t.price[-1]) + 1, G), np.int64)
    own, sums = np.zeros(T, LAYER_BYTES), np.zeros(G, LAYER_BYTES)
    for c in range(len(t.price)):
        body, state, price = t.body[c], t.held[c], t.price[c]
        for z in range(len(t.shard)):
            if t.shard[z] and not t.hybrid[c]:
                continue
            for kind in range(T):
                layer, held = own[kind], t.state[state, z, kind]
                layer.resident, layer.buffers = held.resident, held.buffers
                layer.work = t.back[body, 0, kind].work
                layer.activations = t.back[body, 0, kind].activations
                for r in range(1, R):
                    layer.activations = min(layer.activations, t.back[body, r, kind].activations)
            for g in range(G):
                part, layer, total = t.part[g], own[t.last[g]], sums[g]
                total.resident, total.activations = layer.resident, layer.activations
                total.buffers, total.work = layer.buffers, layer.work
                if part >= 0:
                    total.resident += sums[part].resident
                    total.activations += sums[part].activations
                    total.buffers = max(total.buffers, sums[part].buffers)
                    total.work = max(total.work, sums[part].work)
                cap = t.cap[g]
                if holds[price, g] < cap and (g == t.whole or not t.forbidden[z]):
                    holds[price, g] = max(holds[price, g], in_flight(
                        t.limit_bytes, total.resident + total.buffers + total.work,
                        total.activations + t.relay[g] * t.relayed[c], cap))
    return holds


@entry
def may_fit(t: Tables, index: Ints2, sizes: Ints, price: Ints2, depths: Bools) -> bool:
    """Whether some pipeline of a chain may fit; False is a proof that none does.

    A shorter stage fits where a longer one does. So s stages on the devices from k on hold all
    layers from some cut on, and the least such cut decides: it is the best of all block sizes,
    each in front of the least cut of s - 1 stages.

    Parameters
    ----------
    t : ``nest.records.tables.Tables``.
    index : int64 (L+1, L+1), signature of each stage.
    sizes : int64 (B,), block sizes in positions.
    price : int64 (B, K+1), -1 where no block may start.
    depths : bool (L+1,), numbers of stages allowed.
    """
    holds = _holds(t)
    L, K = len(depths) - 1, price.shape[1] - 1
    deepest = 0
    for s in range(1, L + 1):
        if depths[s]:
            deepest = s
    behind, front = np.full(K + 1, L), np.full(K + 1, L)
    least = np.empty((len(holds), L + 1), np.int64)
    for s in range(1, deepest + 1):
        flight = t.micro_batches if t.gpipe else min(s, t.micro_batches)
        # The least cut at which a stage up to cut j may begin; never less for a later j.
        for x in range(len(holds)):
            i = 0
            for j in range(1, L + 1):
                # Only a stage of all layers may hold more than a part of it does.
                if j == L and holds[x, index[0, L]] >= flight:
                    i = 0
                else:
                    i = max(i, 1) if j == L else i
                    while i < j and holds[x, index[i, j]] < flight:
                        i += 1
                least[x, j] = i
        some = False
        for k in range(K + 1):
            front[k] = L
            for b in range(len(sizes)):
                stop = k + sizes[b]
                if stop > K or price[b, k] < 0 or (s > 1 and behind[stop] == L):
                    continue
                front[k] = min(front[k], least[price[b, k], max(behind[stop], 1)])
            some |= front[k] < L
        if front[0] == 0 and depths[s]:
            return True
        if not some:
            return False
        for k in range(K + 1):  # for a copy of slices numba compiles what says their shapes differ
            behind[k] = front[k]
    return False
