"""The time that profiling measures for each stage of Alpa: a stage alone, compiled as a whole.

arXiv:2201.12023, section 5.2: the latency of a stage comes from compiling it and running it on its
mesh, forward and backward (``generate_training_stages_2d`` and ``profile_all`` of its authors'
program, alpa-projects/alpa, alpa/pipeline_parallel/stage_profiling.py). It includes the overlap of
the software: the formulas here are those of :func:`nest.costs.stage.chunk_costs`, for all stages at
once.

Shapes: K kinds of layers, C options, S stages that grow together, each from its own first layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from nest.costs.layer import LayerCosts
from nest.inputs.job import Stack
from nest.planners.flat import Array, Ints


class AlpaLayerSeconds(NamedTuple):
    """Seconds of a layer, :class:`nest.schedules.chunk.LayerSeconds`; (C,), stacked (K, C)."""

    free_forward: Array
    forward: Array
    free_backward: Array
    backward: Array
    gathered: Array
    regathered: Array
    scattered: Array
    sync: Array
    gather: Array
    once: Array
    """Per step: optimizer, and exchange of gradients with other copies of a tied embedding."""


def figures(c: LayerCosts) -> AlpaLayerSeconds:
    """One layer under C options."""
    return AlpaLayerSeconds(
        free_forward=c.free_forward,
        forward=c.forward + c.tp_forward + c.cp_forward + c.ep_forward + c.slowed_forward,
        free_backward=c.free_backward,
        backward=(c.backward + c.recompute + c.tp_backward + c.cp_backward + c.ep_backward
                  + c.slowed_backward),
        gathered=c.gathered, regathered=c.regathered, scattered=c.scattered, sync=c.sync,
        gather=c.gather, once=c.update + c.tied,
    )


def alone(
    each: AlpaLayerSeconds, order: Ints, starts: Ints, batches: int, stack: Stack
) -> Iterator[Array]:
    """Seconds of a micro-batch on stages of 1, 2, ... layers, alone on their meshes.

    A stage runs the B micro-batches of a step, each forward and then backward, from the gather of
    its parameters to the end of its optimizer; 1/B of that is the latency of a micro-batch. Alpa
    has the gradients reduced once for all micro-batches (``get_grad_sync_channel_ids``, and
    ``num_micro_batches`` of its cost model), here the part that the backward does not hide.

    Parameters
    ----------
    each : layers by kind.
    order : kind of each layer; shape (L,).
    starts : first layers, ascending; shape (S,).
    batches : B.

    Yields
    ------
    Array
        For n = 1, 2, ..., all stages of n layers: those of a first part of ``starts``; shape (at
        most S, C).
    """
    walk = _Walk(each, order, starts, stack)
    for n in range(len(order) - int(starts[0])):
        if n:
            walk.grow(n, int(np.searchsorted(starts, len(order) - n)))
        yield walk.latency(batches)


class _Walk:
    """Stages that grow by one layer at a time, without the terms of the last layer.

    :meth:`latency` adds them: the traffic during the last layer, and between passes.
    """

    def __init__(self, each: AlpaLayerSeconds, order: Ints, starts: Ints, stack: Stack) -> None:
        self._each, self._order, self._starts, self._stack = each, order, starts, stack
        self._last = 0
        first = self._seen(0)
        self._gathers = first("gathered") > 0.0
        self._forward, self._backward = first("forward"), first("backward")
        self._balance = self._left = first("sync")
        self._begun = self._wait = first("gather")
        self._free, self._once = first("free_forward"), first("once")

    def _seen(self, n: int) -> Callable[[str], Array]:
        """Figures of the layers ``n`` after the first ones."""
        kinds = self._order[self._starts + n]
        return lambda name: np.asarray(getattr(self._each, name)[kinds])

    def grow(self, n: int, count: int) -> None:
        """Add layer ``n`` to the first ``count`` stages, which have one."""
        self._last, self._starts = n, self._starts[:count]
        for name in ("gathers", "forward", "backward", "balance", "left", "begun", "wait", "free",
                     "once"):
            setattr(self, f"_{name}", getattr(self, f"_{name}")[:count])
        new, last = self._seen(n), self._seen(n - 1)
        o, r, q = (self._stack.overlap_zero3, self._stack.overlap_grad_reduce,
                   self._stack.overlap_param_gather)
        x, y = o * last("free_forward"), o * last("free_backward")
        self._gathers = self._gathers | (new("gathered") > 0.0)
        beside = new("scattered")
        waited = beside + self._seen(n - 2)("regathered") if n > 1 else beside
        self._backward = self._backward + _more(waited, y) + new("backward")
        self._forward = self._forward + new("forward")
        if n > 1:
            self._forward = self._forward + _more(new("gathered"), x)
        # Compute that hides ZeRO traffic hides no reduction.
        beside = waited if n > 1 else beside + last("gathered")
        spare = last("free_backward")
        spare = _more(spare, beside / o) if o else np.where(beside > 0.0, 0.0, spare)
        self._balance = self._balance - r * spare + new("sync")
        self._left = np.maximum(self._left, self._balance)
        self._begun = self._begun - q * last("free_forward") + new("gather")
        self._wait = np.maximum(self._wait, self._begun)
        self._free = self._free + new("free_forward")
        self._once = self._once + new("once")

    def latency(self, batches: int) -> Array:
        """1/B of a step of the current stages."""
        first, o = self._seen(0), self._stack.overlap_zero3
        late, turn, chase = (np.where(self._gathers, figure, 0.0) for figure in self._borders())
        wait = self._wait + first("gathered")
        if self._last:
            wait = wait + _more(self._seen(1)("gathered"), o * first("free_forward"))
        trailing = np.where(self._gathers, 0.0, first("scattered"))
        pace = turn + chase + _more(
            trailing, o * self._free + o * self._seen(self._last)("free_backward"))
        step = (wait + batches * (self._forward + self._backward) + turn
                + (batches - 1) * (late + pace)
                + self._left + first("scattered") + self._once)
        return np.asarray(step / batches)

    def _borders(self) -> tuple[Array, Array, Array]:
        """``late``, ``turn``, ``chase`` of :class:`nest.schedules.chunk.ChunkCosts` with ZeRO-3."""
        first, last, o = self._seen(0), self._seen(self._last), self._stack.overlap_zero3
        x, y = o * first("free_forward"), o * first("free_backward")
        turn = _more(last("regathered"), o * last("free_forward"))
        if not self._last:
            both = _more(first("gathered") + first("regathered") + first("scattered"), x + y)
            return 0.0 * x, turn, np.maximum(_more(first("gathered"), y), both - turn)
        second, below = self._seen(1), self._seen(self._last - 1)
        late = (_more(second("scattered") + first("gathered"), y)
                - _more(second("scattered"), y))
        turn = turn + _more(below("regathered"), o * last("free_backward"))
        ahead = second("gathered") + first("scattered")
        if self._last == 1:
            return late, turn, _more(ahead, x)
        third, under = self._seen(2)("gathered"), o * second("free_forward")
        chase = np.maximum(_more(second("gathered"), x),
                           _more(ahead + third, x + under) - _more(third, under))
        return late, turn, chase


def _more(traffic: Array, hidden: Array) -> Array:
    """The exposed part of traffic."""
    return np.maximum(0.0, traffic - hidden)
