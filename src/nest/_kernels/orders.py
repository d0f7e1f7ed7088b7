"""The order of passes of a pipeline, and the longest path through it.

Both are called by address: compiled once each, in a process of their own, and not with each part of
``alike`` that calls them.
"""

from __future__ import annotations

import numpy as np
from numba import float64, int64, typeof, void

from nest._kernels import called, form, leaf
from nest.records import FIGURES
from nest.schedules import orders, passes
from nest.schedules.closed import Closed
from nest.schedules.passes import Order, Room
from nest.schedules.path import Path
from nest.schedules.registry import SCHEDULES

leave_out, step_seconds = form(orders.leave_out), form(passes.step_seconds)


def _which(holds):
    """Schedules of which something holds, a bit each, by their numbers."""
    return sum(1 << number for number, one in enumerate(SCHEDULES.values()) if holds(one))


CLOSED = _which(lambda one: isinstance(one, Closed))
ALL_AHEAD = _which(lambda one: one.ahead is orders.all_ahead)
SPLIT, TOGETHER = _which(lambda one: one.split), _which(lambda one: one.together)
GROUPED = _which(lambda one: isinstance(one, Path) and one.grouped)
LOOPED = _which(lambda one: isinstance(one, Path) and one.placement == "looped")
FOLDED = _which(lambda one: one.placement == "folded")
CROSSED = _which(lambda one: one.placement == "crossed")
LISTED = _which(lambda one: isinstance(one, Path) and one.listed)
GATHERS = _which(lambda one: isinstance(one, Path) and one.most_zero > 2)


@leaf
def is_in(schedule, some):
    """Whether a schedule is one of those of ``some``, one of the numbers above."""
    return some >> schedule & 1 == 1


@leaf
def split_of(schedule):
    """Whether backwards are in two parts."""
    return is_in(schedule, SPLIT)


@leaf
def together_of(schedule):
    """Whether forwards run beside backwards."""
    return is_in(schedule, TOGETHER)


@leaf
def is_looped(schedule):
    """Whether chunks lie in rounds over the stages, and a path through passes is the step."""
    return is_in(schedule, LOOPED)


@leaf
def copies_of(schedule):
    """Copies of the model, each of which takes as many of the micro-batches."""
    return 2 if is_in(schedule, CROSSED) else 1


@leaf
def is_all_forward(schedule):
    """Whether all micro-batches run forward before one runs backward."""
    return is_in(schedule, ALL_AHEAD)


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


def _or_write(number, write, others):
    """A function that writes the order of a schedule, or leaves that to another one."""
    @leaf
    def written(schedule, p, v, m, group, order):
        if schedule == number:
            write(p, v, m, group, order)
        else:
            others(schedule, p, v, m, group, order)

    return written


def _or_count(number, count, others):
    """The same of the forwards before a backward."""
    @leaf
    def counted(schedule, p, v, m, group, s, d):
        if schedule == number:
            return count(p, v, m, group, s, d)
        return others(schedule, p, v, m, group, s, d)

    return counted


@leaf
def _no_order(schedule, p, v, m, group, order):
    """Schedules in closed form have none."""


@leaf
def ahead_of(schedule, p, v, m, group, s, d):
    """Micro-batches of chunk d whose forwards stage s runs before its first backward."""
    return m


_write = _no_order
for _number, _one in enumerate(SCHEDULES.values()):
    if isinstance(_one, Path):
        _write = _or_write(
            _number, form(orders.write_folded if _one.listed else _one.write), _write)
    if _one.ahead not in (None, orders.all_ahead):
        ahead_of = _or_count(_number, form(_one.ahead), ahead_of)


@called(void(int64, int64, int64, int64, int64, int64, ORDER))
def write_order(schedule, p, v, m, group, out, order):
    """Fill ``order`` with the passes of a pipeline, which has ``out`` groups more."""
    _write(schedule, p, v, m, group, order)
    order.more[0] = 0
    if out > 0:
        leave_out(p, v, m, group, out, order)


@called(float64(COSTS, float64[:, :, ::1], int64, int64, int64, int64, ORDER, ROOM, float64))
def longest_path(costs, hops, p, v, m, depth, order, room, limit):
    """:func:`nest.schedules.passes.step_seconds`."""
    return step_seconds(costs, hops, p, v, m, depth, order, room, limit)
