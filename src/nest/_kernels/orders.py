"""The order of passes of a pipeline, and the longest path through it.

Both are called by address: compiled once each, in a process of their own, and not with each part of
``alike`` that calls them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import numpy as np

from nest._kernels import called, form, leaf
from nest.records import FIGURES, Floats3, Rows
from nest.schedules import orders, passes
from nest.schedules.closed import Closed
from nest.schedules.passes import Order, Room
from nest.schedules.path import Path
from nest.schedules.registry import SCHEDULES

leave_out, step_seconds = form(orders.leave_out), form(passes.step_seconds)


def _which(holds: Callable[[Any], bool]) -> int:
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
def is_in(schedule: int, some: int) -> bool:
    """Whether a schedule is one of those of ``some``, one of the numbers above."""
    return some >> schedule & 1 == 1


@leaf
def split_of(schedule: int) -> bool:
    """Whether backwards are in two parts."""
    return is_in(schedule, SPLIT)


@leaf
def together_of(schedule: int) -> bool:
    """Whether forwards run beside backwards."""
    return is_in(schedule, TOGETHER)


@leaf
def is_looped(schedule: int) -> bool:
    """Whether chunks lie in rounds over the stages, and a path through passes is the step."""
    return is_in(schedule, LOOPED)


@leaf
def copies_of(schedule: int) -> int:
    """Copies of the model, each of which takes as many of the micro-batches."""
    return 2 if is_in(schedule, CROSSED) else 1


@leaf
def is_all_forward(schedule: int) -> bool:
    """Whether all micro-batches run forward before one runs backward."""
    return is_in(schedule, ALL_AHEAD)


def order_of(p: int, positions: int, passes: int) -> Order:
    """Room for the order of p ranks with so many positions and passes."""
    ints: Any = partial(np.empty, dtype=np.int64)
    return Order(
        codes=ints(passes), rows=ints(p + 1), at=ints(positions), ahead=ints(positions),
        back=ints(positions), more=0 * ints(2), stops=ints(2 * p))


def room_of(p: int, positions: int, passes: int) -> Room:
    """Room for ``step_seconds`` of p ranks with so many positions and passes of a way."""
    ints: Any = partial(np.empty, dtype=np.int64)
    floats: Any = np.empty
    return Room(
        arrives=floats(2 * passes), came=ints(2 * positions), run=ints(2 * positions),
        hop=floats(positions), gap=floats(positions), took=floats(4 * positions),
        late=floats(positions), links=floats(2 * positions), ends=floats(positions),
        place=ints(p), stop=ints(p), begun=ints(p), traffic=ints(p), clock=floats(p),
        scattered=floats(p), fresh=floats(p), was=floats(2 * (p + positions)), unsure=floats(1))


Write = Callable[..., None]
Count = Callable[..., int]


def _or_write(number: int, write: Write, others: Write) -> Write:
    """A function that writes the order of a schedule, or leaves that to another one."""
    @leaf
    def written(schedule: int, p: int, v: int, m: int, group: int, order: Order) -> None:
        if schedule == number:
            write(p, v, m, group, order)
        else:
            others(schedule, p, v, m, group, order)

    return written


def _or_count(number: int, count: Count, others: Count) -> Count:
    """The same of the forwards before a backward."""
    @leaf
    def counted(schedule: int, p: int, v: int, m: int, group: int, s: int, d: int) -> int:
        if schedule == number:
            return count(p, v, m, group, s, d)
        return others(schedule, p, v, m, group, s, d)

    return counted


@leaf
def _no_order(schedule: int, p: int, v: int, m: int, group: int, order: Order) -> None:
    """Schedules in closed form have none."""


@leaf
def ahead_of(schedule: int, p: int, v: int, m: int, group: int, s: int, d: int) -> int:
    """Micro-batches of chunk d whose forwards stage s runs before its first backward."""
    return m


_write = _no_order
for _number, _one in enumerate(SCHEDULES.values()):
    if isinstance(_one, Path):
        _write = _or_write(
            _number, form(orders.write_folded if _one.listed else _one.write), _write)
    if _one.ahead not in (None, orders.all_ahead):
        ahead_of = _or_count(_number, form(_one.ahead), ahead_of)


@called
def write_order(schedule: int, p: int, v: int, m: int, group: int, out: int, order: Order) -> None:
    """Fill ``order`` with the passes of a pipeline, which has ``out`` groups more."""
    _write(schedule, p, v, m, group, order)
    order.more[0] = 0
    if out > 0:
        leave_out(p, v, m, group, out, order)


@called
def longest_path(
    costs: Annotated[Rows, 2, FIGURES], hops: Floats3, p: int, v: int, m: int, depth: int,
    order: Order, room: Room, limit: float,
) -> float:
    """:func:`nest.schedules.passes.step_seconds`."""
    return step_seconds(costs, hops, p, v, m, depth, order, room, limit)
