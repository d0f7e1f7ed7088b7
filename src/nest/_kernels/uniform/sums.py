"""What layers take at least wherever they lie, and whether that leaves a pipeline a chance."""

from __future__ import annotations

import numpy as np

from nest._kernels import leaf
from nest._kernels.layers import layer_sums
from nest._kernels.orders import copies_of, together_of
from nest._kernels.pipeline import SLACK
from nest._kernels.uniform.bound import ends_of, gathers, hidden_of, waits_of


@leaf
def fill_layers(t, q, w, c, z, policies):
    """Fill in the layers of a candidate with a way of ZeRO, under policies."""
    for y in range(q.alike.shape[1]):
        if q.alike[c, y] < 0:
            continue
        one = t.candidate[q.alike[c, y]]
        for policy in policies:
            layer_sums(t, one.body, one.held, z, policy, w.layers[y])
            if len(q.twin):
                _add_exchange(t.exchanged[t.candidate[c].held, z], q.twin[y % len(q.twin)],
                              w.layers[y, policy])


@leaf
def _add_exchange(exchanged, twin, layers):
    """Add what the two holders of a layer exchange, over a way between them."""
    for kind in range(len(exchanged)):
        both = exchanged[kind]
        layers[kind].sync += (
            both.gradient_bytes * twin.per_byte + both.gradient_times * twin.latency)
        layers[kind].gather += (
            both.parameter_bytes * twin.per_byte + both.parameter_times * twin.latency)


@leaf
def sum_up(t, q, a, w, c, policies, saving):
    """What each layer takes at least under any of some policies, wherever it is; bytes of
    activations are those under any of the ``saving`` ones. What the two differ in (``freed``,
    ``recompute``) is that of the first of both."""
    # The last rows are what there is before the first look.
    for kind in range(len(w.kind) - 1):
        w.kind[kind] = w.kind[-1]
    w.body[0] = w.body[1]
    for y in range(q.alike.shape[1]):
        if q.alike[c, y] < 0:
            continue
        for kind in range(len(w.kind) - 1):
            for r in policies:
                _look_at(w.kind[kind], w.layers[y, r, kind])
            for r in saving:
                _look_at_bytes(w.kind[kind], w.layers[y, policies[0], kind], w.layers[y, r, kind])
        for n in range(2):
            own = w.layers[y, policies[0], a.whole[0] if n else a.order[0]]
            w.body[0].begin = min(w.body[0].begin, own.gather)
            w.body[0].end = min(w.body[0].end, own.sync + own.update + own.tied)
        if len(a.apart):
            apart = a.apart[t.candidate[q.alike[c, y]].body]
            for kind in range(apart.shape[1]):
                for r in policies:
                    _look_at_parts(w.kind[kind], apart[r, kind])
    for kind in range(len(w.kind) - 1):
        least = w.kind[kind]
        least.inputs = max(0.0, least.backward - least.weights)
        if least.exchanged_forward > 0.0:
            least.busy_forward, least.busy_backward = least.free_forward, least.free_backward
    _sum_up_model(q, a, w)
    for n in range(a.body[0], a.body[1]):
        for y in range(q.alike.shape[1]):
            if q.alike[c, y] >= 0:
                again = w.layers[y, saving[0], a.order[n]]
                own = w.layers[y, policies[0], a.order[n]]
                w.body[0].recompute = min(
                    w.body[0].recompute,
                    again.forward + again.backward - own.forward - own.backward)
    _sum_up_waits(t, a, w)


@leaf
def _look_at(least, own):
    """Lower what a layer takes at the least to what it takes under a policy at some place."""
    least.forward = min(least.forward, own.forward)
    least.backward = min(least.backward, own.backward)
    least.left = min(least.left, own.update + own.tied)
    least.resident = min(least.resident, own.resident)
    least.room = min(least.room, own.work + own.buffers)
    least.gathered = min(least.gathered, own.gathered)
    least.regathered = min(least.regathered, own.regathered)
    least.scattered = min(least.scattered, own.scattered)
    least.sync, least.gather = min(least.sync, own.sync), min(least.gather, own.gather)
    least.free_forward = max(least.free_forward, own.free_forward)
    least.free_backward = max(least.free_backward, own.free_backward)


@leaf
def _look_at_bytes(least, own, saving):
    """The same of bytes, under a policy that saves some of the layer's ``own``."""
    least.room = min(least.room, saving.work + saving.buffers)
    least.activations = min(least.activations, saving.activations)
    least.freed = min(least.freed, own.activations - saving.activations)


@leaf
def _look_at_parts(least, own):
    """The same of what passes beside each other save, and of backwards in two parts."""
    least.exchanged_forward = max(least.exchanged_forward, own.exchanged_forward)
    if own.exchanged_forward > 0.0:
        least.exchanged_backward = max(least.exchanged_backward, own.exchanged_backward)
    least.weights = max(least.weights, own.weights)


@leaf
def _sum_up_model(q, a, w):
    """Fill ``w.before`` and ``w.body``: each layer is of one kind alone on a stage with all layers
    that share its parameters, and of another one elsewhere."""
    body, away, back_away, busy, back_busy = w.body[0], 0.0, 0.0, 0.0, 0.0
    for n in range(len(a.order)):
        one, other = w.kind[a.order[n]], w.kind[a.whole[n]]
        if q.marked_before[n + 1] > q.marked_before[n]:
            one.marked = other.marked = True
            body.freed = min(body.freed, max(0.0, min(one.freed, other.freed)))
        forward, backward = min(one.forward, other.forward), min(one.backward, other.backward)
        resident = min(one.resident, other.resident)
        activations = min(one.activations, other.activations)
        body.exchanged_forward += max(one.exchanged_forward, other.exchanged_forward)
        body.exchanged_backward += max(one.exchanged_backward, other.exchanged_backward)
        body.busy_forward += max(one.busy_forward, other.busy_forward)
        body.busy_backward += max(one.busy_backward, other.busy_backward)
        if a.body[0] <= n < a.body[1]:
            body.seconds = min(body.seconds, forward + backward)
            away = max(away, one.exchanged_forward, other.exchanged_forward)
            back_away = max(back_away, one.exchanged_backward, other.exchanged_backward)
            busy = max(busy, one.busy_forward, other.busy_forward)
            back_busy = max(back_busy, one.busy_backward, other.busy_backward)
            body.resident = min(body.resident, resident)
            body.activations = min(body.activations, activations)
        before, behind = w.before[n], w.before[n + 1]
        behind.forward, behind.backward = before.forward + forward, before.backward + backward
        behind.inputs = before.inputs + max(0.0, backward - max(one.weights, other.weights))
        behind.resident = before.resident + resident
        behind.activations = before.activations + activations
    body.hidden = hidden_of(away, back_away, busy, back_busy)


@leaf
def _sum_up_waits(t, a, w):
    """Fill in what passes wait at least for ZeRO traffic between two layers of the body, or more
    with a third one in front of them; by the kind of the last. Then for what is gathered of a
    layer, wherever it is, forward and backward."""
    o, hides, traffic, body = t.overlaps[0], 0.0, 0.0, w.body[0]
    for kind in range(len(w.kind) - 1):
        one = w.kind[kind]
        body.gathered = max(body.gathered, one.gathered)
        traffic = max(traffic, one.gathered, one.regathered, one.scattered)
        hides = max(hides, o * one.free_forward, o * one.free_backward)
    if traffic == 0.0:
        return
    for kind in range(len(w.kind) - 1):
        one = w.kind[kind]
        one.two = one.three = np.inf
        one.ahead, one.back = max(0.0, one.gathered - hides), max(0.0, one.regathered - hides)
    for n in range(len(a.order)):
        for x in range(4):
            one = w.kind[a.whole[n] if x % 2 else a.order[n]]
            if not a.body[0] <= n < a.body[1]:
                one.two = one.three = 0.0
            elif n > a.body[0]:
                below = w.kind[a.whole[n - 1] if x % 2 else a.order[n - 1]]
                back = one.scattered - o * below.free_backward
                one.two = min(one.two, max(0.0, back))
                if n > a.body[0] + 1:
                    third = w.kind[a.whole[n - 2] if x // 2 else a.order[n - 2]]
                    one.three = min(one.three, max(0.0, back + third.regathered) - max(0.0, back)
                                    + max(0.0, one.gathered - o * below.free_forward))
    for kind in range(len(w.kind) - 1):
        one = w.kind[kind]
        one.two, one.three = one.two if one.two < np.inf else 0.0, (
            one.three if one.three < np.inf else 0.0)
        body.two, body.three = max(body.two, one.two), max(body.three, one.three)
        body.ahead, body.back = max(body.ahead, one.ahead), max(body.back, one.back)
    for n in range(len(a.order)):
        one, other = w.kind[a.order[n]], w.kind[a.whole[n]]
        if a.body[0] <= n < a.body[1]:
            body.all_two += min(one.two, other.two)
            body.all_three += min(one.three, other.three)
        body.all_ahead += min(one.ahead, other.ahead)
        body.all_back += min(one.back, other.back)


@leaf
def may_be_below(t, a, w, k, top):
    """Whether pipeline k may take less than ``top`` somewhere, by its seconds and its bytes."""
    pipe, body, model = a.pipe[k], w.body[0], w.before[len(a.order)]
    least = model.forward + model.backward
    if together_of(pipe.schedule):
        least -= hidden_of(body.exchanged_forward, body.exchanged_backward, body.busy_forward,
                           body.busy_backward)
    top -= ends_of(pipe.schedule, body)
    held = copies_of(pipe.schedule) * (model.resident + model.activations)
    if pipe.warm * least >= top * SLACK or held > pipe.pp * t.limit_bytes:
        return False
    if gathers(pipe.schedule) and t.micro_batches / pipe.pp * (
            least + body.all_ahead + body.all_back) - body.ahead >= top * SLACK:
        return False
    least += waits_of(body.all_two, body.all_three, pipe.pp * pipe.vpp, body.two, body.three)
    return pipe.warm * least < top * SLACK
