"""What no step is shorter than, by what is known of one stage of a layout."""

from __future__ import annotations

from typing import NamedTuple

from nest._kernels import inlined, leaf
from nest._kernels.orders import (
    GATHERS,
    copies_of,
    is_all_forward,
    is_in,
    is_looped,
    split_of,
    together_of,
)
from nest._kernels.uniform.work import UniformWork
from nest.records import BodyRow, Pipe


class PassWay(NamedTuple):
    """How a pipeline runs its passes."""

    micro_batches: int
    """Of each copy of the model."""
    copies: int
    split: bool
    """Backwards are in two parts."""
    together: bool
    """Forwards run beside backwards."""
    loops: bool
    """Chunks lie in rounds, and the first micro-batch passes all of them before a backward."""
    looped: bool
    """Chunks lie in rounds."""
    group: int
    """Micro-batches that pass a chunk in a row; those of the last of these groups."""
    rest: int
    uneven: bool
    """The last of the groups is smaller, so that other chunks have the last backwards."""
    in_a_row: bool
    """Passes are priced behind each other, each with what it gathers (ZeRO-3)."""


@inlined
def way_of(pipe: Pipe, micro_batches: int) -> PassWay:
    """How a pipeline runs so many micro-batches."""
    schedule, copies = pipe.schedule, copies_of(pipe.schedule)
    m, loops = micro_batches // copies, pipe.pp > 1 and is_looped(schedule) and not (
        split_of(schedule) or is_all_forward(schedule))
    return PassWay(m, copies, split_of(schedule), together_of(schedule), loops, is_looped(schedule),
               group_of(schedule, m, pipe.group), last_group(schedule, m, pipe.group),
               loops and m % pipe.group > 0, gathers(schedule))


class StageSums(NamedTuple):
    """Layers of a stage and around it at the least; seconds of a micro-batch unless noted."""

    front: float
    """Forward, in front of it; backward, in front of it; backward, or its part for inputs, behind.
    """
    after: float
    behind: float
    own: float
    """Its own passes."""
    left: float
    """Of a step: what it leaves behind its last pass."""
    ran: float
    """Of a step: its forwards in front of its first backward, with what these may have waited."""
    spared: float
    """What its first pass may not have waited for."""
    away: float
    """Of a step: all-to-alls of its passes that run beside others, and what hides these."""
    back_away: float
    busy: float
    back_busy: float


class StageBound(NamedTuple):
    """No step is shorter than ``max(first, trip_bound()) + own + last``; seconds."""

    first: float
    """Before its first pass."""
    own: float
    """All its passes."""
    last: float
    """Behind its last pass."""


@inlined
def stage_bound(
    work: UniformWork, way: PassWay, s: int, sums: StageSums, begin: float, end: float,
) -> StageBound:
    """Bound a step by stage s; ``begin`` is in front of the first pass of all and ``end`` behind
    the last one of any stage."""
    near, own, last = work.rank[s].near, way.micro_batches * sums.own, sums.left
    if way.together:
        own -= hidden_of(sums.away, sums.back_away, sums.busy, sums.back_busy)
    if not way.split:
        last = max(sums.after + near / 2 + end - begin, last)
    return StageBound(begin + sums.front + near / 2 - sums.spared, own, last)


@inlined
def trip_bound(
    work: UniformWork, pipe: Pipe, way: PassWay, s: int, sums: StageSums, layers: int, begin: float,
) -> float:
    """Least seconds before the first pass of stage s, had it run all that it may in front of its
    first backward, which the first micro-batch has to come back for; ``layers``: of the model."""
    if way.loops:
        near, all_near = work.rank[s].near, work.rank[pipe.pp - 1].near
        return (begin + work.before[layers].forward + pipe.vpp * all_near / 2 + sums.behind
                + (all_near - near) / 2 - sums.ran)
    if way.split:  # the first backward for inputs waits for those of all stages behind
        return begin + work.before[layers].forward + sums.behind - sums.ran
    return 0.0


@leaf
def hidden_of(away: float, back_away: float, busy: float, back_busy: float) -> float:
    """Most seconds that passes beside each other hide, forwards beside backwards.

    Given the sums over all of them of their all-to-alls, and of what hides those of the others.
    """
    return min(away, back_busy) + min(back_away, busy)


@leaf
def waits_of(two: float, three: float, chunks: int, most_two: float, most_three: float) -> float:
    """Least seconds that passes wait for ZeRO traffic between layers of the body.

    Given the sums over layers, of which those that begin a chunk have none below, and the next
    ones only one.
    """
    return max(0.0, two - chunks * most_two) + max(0.0, three - 2.0 * chunks * most_three)


@leaf
def gathers(schedule: int) -> bool:
    """Whether passes are priced behind each other, each with what it gathers (ZeRO-3)."""
    return is_in(schedule, GATHERS)


@leaf
def ends_of(schedule: int, body: BodyRow) -> float:
    """Least seconds before the first pass of all and behind the last one of any rank."""
    if not is_looped(schedule):
        return 0.0
    return body.begin + (0.0 if split_of(schedule) else body.end)


@leaf
def group_of(schedule: int, m: int, size: int) -> int:
    """Micro-batches that pass a chunk of a looped layout in a row."""
    return m if is_all_forward(schedule) else min(size, m)


@leaf
def last_group(schedule: int, m: int, size: int) -> int:
    """Micro-batches of the last of these groups."""
    group = group_of(schedule, m, size)
    return m - (m - 1) // group * group
