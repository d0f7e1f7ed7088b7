"""What layers take at least wherever they lie, and whether that leaves a pipeline a chance."""

from __future__ import annotations

import numpy as np

from nest._kernels import leaf
from nest._kernels.fold import layer_sums
from nest._kernels.labels import SLACK
from nest._kernels.orders import copies_of, together_of
from nest._kernels.uniform.bound import ends_of, gathers, hidden_of, waits_of
from nest._kernels.uniform.work import UniformWork
from nest.records import Ints, KindRow, LinkRow, Row, Rows
from nest.records.problems import Pipelines, Rings
from nest.records.tables import Degrees


@leaf
def fill_layers(
    degrees: Degrees, places: Rings, work: UniformWork, c: int, z: int, policies: Ints,
) -> None:
    """Fill in the layers of a candidate with a way of ZeRO, under policies."""
    for y in range(places.alike.shape[1]):
        if places.alike[c, y] < 0:
            continue
        one = degrees.candidate[places.alike[c, y]]
        for policy in policies:
            layer_sums(degrees, one.body, one.held, z, policy, work.layers[y])
            if len(places.twin):
                _add_exchange(degrees.exchanged[degrees.candidate[c].held, z],
                    places.twin[y % len(places.twin)],
                              work.layers[y, policy])


@leaf
def _add_exchange(exchanged: Rows, twin: LinkRow, layers: Rows) -> None:
    """Add what the two holders of a layer exchange, over a way between them."""
    for kind in range(len(exchanged)):
        both = exchanged[kind]
        layers[kind].sync += (
            both.gradient_bytes * twin.per_byte + both.gradient_times * twin.latency)
        layers[kind].gather += (
            both.parameter_bytes * twin.per_byte + both.parameter_times * twin.latency)


@leaf
def sum_up(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, c: int,
    policies: Ints, saving: Ints,
) -> None:
    """What each layer takes at least under any of some policies, wherever it is; bytes of
    activations are those under any of the ``saving`` ones. What the two differ in (``freed``,
    ``recompute``) is that of the first of both."""
    # The last rows are what there is before the first look.
    for kind in range(len(work.kind) - 1):
        work.kind[kind] = work.kind[-1]
    work.body[0] = work.body[1]
    for y in range(places.alike.shape[1]):
        if places.alike[c, y] < 0:
            continue
        for kind in range(len(work.kind) - 1):
            for r in policies:
                _look_at(work.kind[kind], work.layers[y, r, kind])
            for r in saving:
                _look_at_bytes(work.kind[kind], work.layers[y, policies[0], kind],
                    work.layers[y, r, kind])
        for n in range(2):
            own = work.layers[y, policies[0], pipelines.whole[0] if n else pipelines.order[0]]
            work.body[0].begin = min(work.body[0].begin, own.gather)
            work.body[0].end = min(work.body[0].end, own.sync + own.update + own.tied)
        if len(pipelines.apart):
            apart = pipelines.apart[degrees.candidate[places.alike[c, y]].body]
            for kind in range(apart.shape[1]):
                for r in policies:
                    _look_at_parts(work.kind[kind], apart[r, kind])
    for kind in range(len(work.kind) - 1):
        least = work.kind[kind]
        least.inputs = max(0.0, least.backward - least.weights)
        if least.exchanged_forward > 0.0:
            least.busy_forward, least.busy_backward = least.free_forward, least.free_backward
    _sum_up_model(places, pipelines, work)
    for n in range(pipelines.body[0], pipelines.body[1]):
        for y in range(places.alike.shape[1]):
            if places.alike[c, y] >= 0:
                again = work.layers[y, saving[0], pipelines.order[n]]
                own = work.layers[y, policies[0], pipelines.order[n]]
                work.body[0].recompute = min(
                    work.body[0].recompute,
                    again.forward + again.backward - own.forward - own.backward)
    _sum_up_waits(degrees, pipelines, work)


@leaf
def _look_at(least: KindRow, own: Row) -> None:
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
def _look_at_bytes(least: KindRow, own: Row, saving: Row) -> None:
    """The same of bytes, under a policy that saves some of the layer's ``own``."""
    least.room = min(least.room, saving.work + saving.buffers)
    least.activations = min(least.activations, saving.activations)
    least.freed = min(least.freed, own.activations - saving.activations)


@leaf
def _look_at_parts(least: KindRow, own: Row) -> None:
    """The same of what passes beside each other save, and of backwards in two parts."""
    least.exchanged_forward = max(least.exchanged_forward, own.exchanged_forward)
    if own.exchanged_forward > 0.0:
        least.exchanged_backward = max(least.exchanged_backward, own.exchanged_backward)
    least.weights = max(least.weights, own.weights)


@leaf
def _sum_up_model(places: Rings, pipelines: Pipelines, work: UniformWork) -> None:
    """Fill ``work.before`` and ``work.body``: on a stage with all layers that share its parameters
    a layer is of one kind, elsewhere of another."""
    body, away, back_away, busy, back_busy = work.body[0], 0.0, 0.0, 0.0, 0.0
    for n in range(len(pipelines.order)):
        one, other = work.kind[pipelines.order[n]], work.kind[pipelines.whole[n]]
        if places.marked_before[n + 1] > places.marked_before[n]:
            one.marked = other.marked = True
            body.freed = min(body.freed, max(0.0, min(one.freed, other.freed)))
        forward, backward = min(one.forward, other.forward), min(one.backward, other.backward)
        resident = min(one.resident, other.resident)
        activations = min(one.activations, other.activations)
        body.exchanged_forward += max(one.exchanged_forward, other.exchanged_forward)
        body.exchanged_backward += max(one.exchanged_backward, other.exchanged_backward)
        body.busy_forward += max(one.busy_forward, other.busy_forward)
        body.busy_backward += max(one.busy_backward, other.busy_backward)
        if pipelines.body[0] <= n < pipelines.body[1]:
            body.seconds = min(body.seconds, forward + backward)
            away = max(away, one.exchanged_forward, other.exchanged_forward)
            back_away = max(back_away, one.exchanged_backward, other.exchanged_backward)
            busy = max(busy, one.busy_forward, other.busy_forward)
            back_busy = max(back_busy, one.busy_backward, other.busy_backward)
            body.resident = min(body.resident, resident)
            body.activations = min(body.activations, activations)
        before, behind = work.before[n], work.before[n + 1]
        behind.forward, behind.backward = before.forward + forward, before.backward + backward
        behind.inputs = before.inputs + max(0.0, backward - max(one.weights, other.weights))
        behind.resident = before.resident + resident
        behind.activations = before.activations + activations
    body.hidden = hidden_of(away, back_away, busy, back_busy)


@leaf
def _sum_up_waits(degrees: Degrees, pipelines: Pipelines, work: UniformWork) -> None:
    """Fill in what passes wait at least for ZeRO traffic between two layers of the body, or more
    with a third one in front of them; by the kind of the last. Then for what is gathered of a
    layer, wherever it is, forward and backward."""
    o, hides, traffic, body = degrees.overlaps[0], 0.0, 0.0, work.body[0]
    for kind in range(len(work.kind) - 1):
        one = work.kind[kind]
        body.gathered = max(body.gathered, one.gathered)
        traffic = max(traffic, one.gathered, one.regathered, one.scattered)
        hides = max(hides, o * one.free_forward, o * one.free_backward)
    if traffic == 0.0:
        return
    for kind in range(len(work.kind) - 1):
        one = work.kind[kind]
        one.two = one.three = np.inf
        one.ahead, one.back = max(0.0, one.gathered - hides), max(0.0, one.regathered - hides)
    for n in range(len(pipelines.order)):
        for x in range(4):
            one = work.kind[pipelines.whole[n] if x % 2 else pipelines.order[n]]
            if not pipelines.body[0] <= n < pipelines.body[1]:
                one.two = one.three = 0.0
            elif n > pipelines.body[0]:
                below = work.kind[pipelines.whole[n - 1] if x % 2 else pipelines.order[n - 1]]
                back = one.scattered - o * below.free_backward
                one.two = min(one.two, max(0.0, back))
                if n > pipelines.body[0] + 1:
                    third = work.kind[pipelines.whole[n - 2] if x // 2 else pipelines.order[n - 2]]
                    one.three = min(one.three, max(0.0, back + third.regathered) - max(0.0, back)
                                    + max(0.0, one.gathered - o * below.free_forward))
    for kind in range(len(work.kind) - 1):
        one = work.kind[kind]
        one.two, one.three = one.two if one.two < np.inf else 0.0, (
            one.three if one.three < np.inf else 0.0)
        body.two, body.three = max(body.two, one.two), max(body.three, one.three)
        body.ahead, body.back = max(body.ahead, one.ahead), max(body.back, one.back)
    for n in range(len(pipelines.order)):
        one, other = work.kind[pipelines.order[n]], work.kind[pipelines.whole[n]]
        if pipelines.body[0] <= n < pipelines.body[1]:
            body.all_two += min(one.two, other.two)
            body.all_three += min(one.three, other.three)
        body.all_ahead += min(one.ahead, other.ahead)
        body.all_back += min(one.back, other.back)


@leaf
def may_be_below(
    degrees: Degrees, pipelines: Pipelines, work: UniformWork, k: int, top: float,
) -> bool:
    """Whether pipeline k may take less than ``top`` somewhere, by its seconds and its bytes."""
    pipe, body, model = pipelines.pipe[k], work.body[0], work.before[len(pipelines.order)]
    least = model.forward + model.backward
    if together_of(pipe.schedule):
        least -= hidden_of(body.exchanged_forward, body.exchanged_backward, body.busy_forward,
                           body.busy_backward)
    top -= ends_of(pipe.schedule, body)
    held = copies_of(pipe.schedule) * (model.resident + model.activations)
    if pipe.warm * least >= top * SLACK or held > pipe.pp * degrees.limit_bytes:
        return False
    if gathers(pipe.schedule) and degrees.micro_batches / pipe.pp * (
            least + body.all_ahead + body.all_back) - body.ahead >= top * SLACK:
        return False
    least += waits_of(body.all_two, body.all_three, pipe.pp * pipe.vpp, body.two, body.three)
    return pipe.warm * least < top * SLACK
