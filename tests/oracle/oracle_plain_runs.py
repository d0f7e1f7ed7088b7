"""Runs of layers for the second price of a plan, with plain numbers: see :mod:`oracle_plain`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from nest.costs.layer import LayerCosts
from nest.inputs import Stack


class Figures:
    """Seconds and bytes of one layer; attributes as in :class:`nest.costs.layer.LayerCosts`."""

    def __init__(self, costs: LayerCosts) -> None:
        self.costs = costs

    def __getattr__(self, name: str) -> float:
        return float(getattr(self.costs, name).item())


NO_TIME = Figures(LayerCosts(**{field.name: np.zeros(1) for field in fields(LayerCosts)}))
"""Stands for the layers of a chunk that has none."""


@dataclass(frozen=True)
class PlainRun:
    """Layers that run one after the other."""

    layers: Sequence[Figures]
    stack: Stack
    relayed: float
    received: float = 0.0

    @property
    def hollow(self) -> bool:
        return self.layers[0] is NO_TIME

    def total(self, *names: str) -> float:
        return math.fsum(getattr(x, name) for x in self.layers for name in names)

    def most(self, name: str) -> float:
        return float(max(getattr(x, name) for x in self.layers))

    @cached_property
    def gathers(self) -> bool:
        return self.most("gathered") > 0.0

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
        """Forward, when the parameters of its first two layers are there."""
        names = ("forward", "tp_forward", "cp_forward", "ep_forward", "slowed_forward")
        inner = range(1, len(self.layers) - 1)
        return self.layers[0].maxima + self.total(*names) + sum(
            self.shown_f(i, self.layers[i + 1].gathered) for i in inner)

    @cached_property
    def b(self) -> float:
        """Backward with nothing behind it: only of its last two layers parameters are there."""
        names = ("backward", "recompute", "tp_backward", "cp_backward", "ep_backward",
                 "slowed_backward")
        x, shown = self.layers, 0.0
        for i in self.all[:-1]:
            # The parameters of the next layer but one come first, then these gradients.
            again = x[i - 1].regathered if i else 0.0
            shown += self.shown_b(i, again + x[i + 1].scattered)
        return self.layers[0].maxima + self.total(*names) + shown

    @property
    def single(self) -> bool:
        return len(self.layers) == 1

    def needs(self, kind: str) -> float:
        """What a pass gathers for its first layer; kinds are f and b."""
        return self.layers[0].gathered if kind == "f" else self.layers[-1].regathered

    def late(self, needed: float) -> float:
        """What a backward waits more at its end, the next pass needing so much to begin.

        The gradients of the second layer have to be through by then, and in front of them in the
        stream is what is needed.
        """
        if self.single:
            return 0.0
        gradients = self.layers[1].scattered
        return self.shown_b(0, needed + gradients) - self.shown_b(0, gradients)

    def behind(self, front: PlainRun, before: str, kind: str) -> float:
        """What a pass begins later than the end of one through other layers right in front.

        What it needs first comes beside the last layer in front, what its second layer needs
        beside its own first one. A backward leaves its last scatter behind the first of these.
        """
        x, need, rest = self.layers, self.needs(kind), 0.0
        if before == "f":
            shown = front.shown_f(len(front.layers) - 1, need)
        else:
            shown, rest = 0.0, front.layers[0].scattered
            if front.single:  # else its end has waited for that
                shown = front.shown_b(0, need)
        if self.single:
            return shown
        if kind == "b":
            return shown + self.shown_b(len(x) - 1, x[-2].regathered + rest)
        if len(x) == 2:
            return shown + self.shown_f(0, x[1].gathered + rest)
        # The third layer's parameters come behind the scatter; some of that is in the forward.
        both = x[1].gathered + rest + x[2].gathered
        hidden = self.stack.overlap_zero3 * (x[0].free_forward + x[1].free_forward)
        return shown + max(self.shown_f(0, x[1].gathered),
                           max(0.0, both - hidden) - self.shown_f(1, x[2].gathered))

    def longer(self, before: str, kind: str) -> float:
        """The same between passes through these layers alone, which go on in the same way."""
        if not self.gathers:
            return 0.0
        found = self.behind(self, before, kind)
        if not self.single or before == "f":
            return found
        # The scatter of a single layer runs beside the passes behind it.
        x = self.layers[0]
        if kind == "b":
            return max(found, self.shown_b(0, x.regathered + x.scattered))
        traffic = x.gathered + x.regathered + x.scattered
        hidden = self.stack.overlap_zero3 * (x.free_forward + x.free_backward)
        return max(found, max(0.0, traffic - hidden) - self.longer("f", "b"))

    @property
    def late_f(self) -> float:
        """In front of a forward."""
        return self.late(self.needs("f")) if self.gathers else 0.0

    @property
    def late_b(self) -> float:
        return self.late(self.needs("b")) if self.gathers else 0.0

    @cached_property
    def trailing(self) -> float:
        """Gradients of the first layer that no gather follows (ZeRO-2)."""
        return 0.0 if self.gathers else self.layers[0].scattered

    @cached_property
    def under_f(self) -> float:
        return self.stack.overlap_zero3 * self.total("free_forward")

    @cached_property
    def under_b(self) -> float:
        return self.stack.overlap_zero3 * self.layers[-1].free_backward

    @cached_property
    def in_turn(self) -> float:
        """What a forward adds to its stage right behind a backward, with what trails that."""
        return self.longer("b", "f") + max(0.0, self.trailing - (self.under_f + self.under_b))

    @cached_property
    def in_a_row(self) -> float:
        """From the end of a backward to that of the next right behind it, less :attr:`b`."""
        return self.late_b + self.longer("b", "b") + max(0.0, self.trailing - self.under_b)

    def spare(self, i: int, beside: float = 0.0) -> float:
        """Computing of layer ``i`` going backward without ZeRO traffic, ``beside`` some more."""
        x, o, free = self.layers, self.stack.overlap_zero3, self.layers[i].free_backward
        if i < len(x) - 1:
            beside += x[i + 1].scattered
        beside += x[i - 1].regathered if i else x[0].gathered
        if beside == 0.0:
            return free
        return max(0.0, free - beside / o) if o > 0.0 else 0.0

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
        """Gradient reduction beside a backward that is in the middle of others."""
        x, last, found = self.layers, len(self.layers) - 1, 0.0
        for i in self.all:
            more = x[0].scattered if i == last else 0.0
            if i == 0:  # the gather of the larger pass behind
                more += max(0.0, self.needs("b") - self.needs("f"))
            found += self.spare(i, more)
        return self.stack.overlap_grad_reduce * found


@dataclass(frozen=True)
class Hand:
    """A hand-over: there and back, and what one message fills its lanes."""

    hop: float
    gap: float


Runs = Sequence[Sequence[PlainRun]]
"""By stage and its chunk."""
Hands = Sequence[Sequence[Hand]]
