"""Runs of layers for the second price of a plan, with plain numbers: see :mod:`oracle_plain`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from nest.costs.layer import LayerCosts
from nest.describe import Stack


class Figures:
    """Seconds and bytes of one layer; attributes as in :class:`nest.costs.layer.LayerCosts`."""

    def __init__(self, costs: LayerCosts) -> None:
        self.costs = costs

    def __getattr__(self, name: str) -> float:
        return float(getattr(self.costs, name).item())


@dataclass(frozen=True)
class PlainRun:
    """Layers that run one after the other."""

    layers: Sequence[Figures]
    stack: Stack
    relayed: float

    def total(self, *names: str) -> float:
        return math.fsum(getattr(x, name) for x in self.layers for name in names)

    def most(self, name: str) -> float:
        return float(max(getattr(x, name) for x in self.layers))

    @cached_property
    def gathers(self) -> bool:
        return self.most("gathered") > 0.0

    def ahead(self, i: int) -> float:
        """ZeRO traffic while layer ``i`` goes forward."""
        x = self.layers
        found = x[i].regathered if i == len(x) - 1 else x[i + 1].gathered
        return found + x[0].scattered if i == 0 and self.gathers else found

    def back(self, i: int) -> float:
        """ZeRO traffic while layer ``i`` goes backward."""
        x = self.layers
        found = 0.0 if i == len(x) - 1 else x[i + 1].scattered
        return found + (x[0].gathered if i == 0 else x[i - 1].regathered)

    def ahead_waited(self, i: int) -> float:
        """The same after the device has waited: only layers behind the second are gathered."""
        return self.layers[i + 1].gathered if 0 < i < len(self.layers) - 1 else 0.0

    def back_waited(self, i: int) -> float:
        """After the device has waited: scatters, and gathers again behind the second layer."""
        x = self.layers
        if i == len(x) - 1:
            return 0.0
        return x[i + 1].scattered + (x[i - 1].regathered if i > 0 else 0.0)

    def shown_f(self, i: int, traffic: float) -> float:
        """What of this traffic layer ``i`` does not hide going forward."""
        return max(0.0, traffic - self.stack.overlap_zero3 * self.layers[i].free_forward)

    def shown_b(self, i: int, traffic: float) -> float:
        return max(0.0, traffic - self.stack.overlap_zero3 * self.layers[i].free_backward)

    @property
    def all(self) -> range:
        return range(len(self.layers))

    @cached_property
    def f(self) -> float:
        names = ("forward", "tp_forward", "cp_forward", "ep_forward")
        return self.total(*names) + sum(self.shown_f(i, self.ahead_waited(i)) for i in self.all)

    @cached_property
    def b(self) -> float:
        names = ("backward", "recompute", "tp_backward", "cp_backward", "ep_backward")
        return self.total(*names) + sum(self.shown_b(i, self.back_waited(i)) for i in self.all)

    @cached_property
    def chase_f(self) -> float:
        return sum(self.shown_f(i, self.ahead(i)) for i in self.all) - sum(
            self.shown_f(i, self.ahead_waited(i)) for i in self.all)

    @cached_property
    def chase_b(self) -> float:
        return sum(self.shown_b(i, self.back(i)) for i in self.all) - sum(
            self.shown_b(i, self.back_waited(i)) for i in self.all)

    @cached_property
    def turn(self) -> float:
        last = len(self.layers) - 1
        again = self.shown_f(last, self.layers[last].regathered)
        return again + self.shown_b(last, self.back(last)) if last else again

    @cached_property
    def trailing(self) -> float:
        return 0.0 if self.gathers else self.layers[0].scattered

    @cached_property
    def under_f(self) -> float:
        return self.stack.overlap_zero3 * self.total("free_forward")

    @cached_property
    def under_b(self) -> float:
        return self.stack.overlap_zero3 * self.layers[-1].free_backward

    @cached_property
    def pace(self) -> float:
        trails = max(0.0, self.trailing - (self.under_f + self.under_b))
        return self.chase_f + self.chase_b + trails

    def spare(self, i: int) -> float:
        o, free = self.stack.overlap_zero3, self.layers[i].free_backward
        return free if o == 0.0 else max(0.0, free - self.back(i) / o)

    @cached_property
    def left(self) -> float:
        """Gradient reduction after the last backward, without that of every micro-batch."""
        r = self.stack.overlap_grad_reduce
        return max(0.0, *(
            sum(x.sync for x in self.layers[: i + 1]) - r * sum(self.spare(j) for j in range(i))
            for i in range(len(self.layers))))

    @cached_property
    def wait(self) -> float:
        """For parameters before the first forward, without those gathered each time."""
        q = self.stack.overlap_param_gather
        second = self.shown_f(0, self.layers[1].gathered) if len(self.layers) > 1 else 0.0
        return second + max(0.0, *(
            sum(x.gather for x in self.layers[: i + 1])
            - q * sum(x.free_forward for x in self.layers[:i])
            for i in range(len(self.layers))))

    @cached_property
    def whole_left(self) -> float:
        return self.layers[0].scattered + self.left

    @cached_property
    def whole_wait(self) -> float:
        return self.layers[0].gathered + self.wait

    @cached_property
    def hidden_f(self) -> float:
        return self.stack.overlap_param_gather * self.total("free_forward")

    @cached_property
    def hidden_b(self) -> float:
        o, free = self.stack.overlap_zero3, self.layers[-1].free_backward
        lost = max(0.0, free) - max(0.0, free - self.trailing / o) if o > 0.0 else 0.0
        return self.stack.overlap_grad_reduce * (sum(self.spare(i) for i in self.all) - lost)


@dataclass(frozen=True)
class Hand:
    """A hand-over: there and back, and what one message fills its lanes."""

    hop: float
    gap: float


Runs = Sequence[Sequence[PlainRun]]
"""By stage and its chunk."""
Hands = Sequence[Sequence[Hand]]
