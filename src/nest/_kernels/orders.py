"""The order of passes of a pipeline, and the longest path through it.

Both are called by address: compiled once each, in a process of their own, and not with each part of
``alike`` that calls them.
"""

from __future__ import annotations

import numpy as np
from numba import float64, int64, typeof, void

from nest._kernels import called, form, leaf
from nest.forms import orders, passes
from nest.forms.passes import BESIDE, FORWARD, Order, Room
from nest.records import FIGURES

in_turn, looped, folded = form(orders.in_turn), form(orders.looped), form(orders.folded)
leave_out, crossed = form(orders.leave_out), form(orders.crossed)
breadth_first, dual_pipe = form(orders.breadth_first), form(orders.dual_pipe)
zero_bubble, zero_bubble_v = form(orders.zero_bubble), form(orders.zero_bubble_v)
step_seconds = form(passes.step_seconds)

(ONE_F_ONE_B, GPIPE, INTERLEAVED, COMBINED, ZB1P, INTERLEAVED_ZB, ZB_V, DUALPIPEV, DUALPIPE,
 LOOPED_BFS) = range(10)
"""Numbers of schedules, as in ``nest.search.alike.SCHEDULES``."""


@leaf
def split_of(schedule):
    """Whether backwards are in two parts."""
    return ZB1P <= schedule <= DUALPIPE


@leaf
def together_of(schedule):
    """Whether forwards run beside backwards."""
    return schedule in (COMBINED, DUALPIPE)


@leaf
def is_looped(schedule):
    """Whether chunks lie in rounds over the stages, and a path through passes is the step."""
    return INTERLEAVED <= schedule <= INTERLEAVED_ZB or schedule == LOOPED_BFS


@leaf
def copies_of(schedule):
    """Copies of the model, each of which takes as many of the micro-batches."""
    return 2 if schedule == DUALPIPE else 1


def order_of(p, positions, passes):
    """Room for the order of p ranks with so many positions and passes."""
    return Order(
        codes=np.empty(passes, np.int64), rows=np.empty(p + 1, np.int64),
        at=np.empty(positions, np.int64), ahead=np.empty(positions, np.int64),
        back=np.empty(positions, np.int64), more=np.zeros(2, np.int64),
        stops=np.empty(2 * p, np.int64))


def room_of(p, positions, passes):
    """Room for ``step_seconds`` of p ranks with so many positions and passes of a way."""
    return Room(
        arrives=np.empty(2 * passes), came=np.empty(2 * positions, np.int64),
        run=np.empty(2 * positions, np.int64), hop=np.empty(positions), gap=np.empty(positions),
        took=np.empty(4 * positions), late=np.empty(positions), links=np.empty(2 * positions),
        ends=np.empty(positions),
        place=np.empty(p, np.int64), stop=np.empty(p, np.int64), begun=np.empty(p, np.int64),
        traffic=np.empty(p, np.int64), clock=np.empty(p), scattered=np.empty(p), fresh=np.empty(p),
        was=np.empty(2 * (p + positions)), unsure=np.empty(1))


ORDER, ROOM, COSTS = map(typeof, (
    order_of(1, 1, 1), room_of(1, 1, 1), np.zeros((1, 1), FIGURES)))


@called(void(int64, int64, int64, int64, int64, int64, ORDER))
def write_order(schedule, p, v, m, group, out, order):
    """Fill ``order`` with the passes of a pipeline, which has ``out`` groups more."""
    if schedule == DUALPIPE:
        crossed(p, order)
    elif schedule in (ZB_V, DUALPIPEV):
        folded(p, order)
    else:
        looped(p, v, order)
    if schedule in (INTERLEAVED, COMBINED):
        in_turn(p, v, m, group, 2, np.int64(schedule == COMBINED), order)
    elif schedule in (ZB1P, INTERLEAVED_ZB):
        zero_bubble(p, v, m, group, order)
    elif schedule == ZB_V:
        zero_bubble_v(p, m, order)
    elif schedule == DUALPIPEV:
        dual_pipe(p, m, p, FORWARD, order)
    elif schedule == DUALPIPE:
        dual_pipe(p // 2, m, p, BESIDE, order)
    else:
        breadth_first(p, v, m, order)
    order.more[0] = 0
    if out > 0:
        leave_out(p, v, m, group, out, order)


@called(float64(COSTS, float64[:, :, ::1], int64, int64, int64, int64, ORDER, ROOM, float64))
def longest_path(costs, hops, p, v, m, depth, order, room, limit):
    """:func:`nest.forms.passes.step_seconds`."""
    return step_seconds(costs, hops, p, v, m, depth, order, room, limit)
