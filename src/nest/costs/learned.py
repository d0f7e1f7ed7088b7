"""What runs taught of a stack: factors on its costs (:class:`nest.inputs.job.Factors`)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from nest.costs.choices import StageSetting
from nest.model import Layer

CAUSES = {
    "compute": ("forward", "backward", "recompute", "free_forward", "free_backward"),
    "tp": ("tp_forward", "tp_backward"),
    "exchange": ("cp_forward", "cp_backward", "ep_forward", "ep_backward", "offload_forward",
                 "offload_backward"),
    "reduction": ("gathered", "regathered", "scattered", "slowed_forward", "slowed_backward",
                  "sync", "gather", "maxima", "update", "tied"),
    "activations": ("activations", "work", "host_activations"),
    "states": ("parameters", "gradients", "optimizer", "buffers", "host_states"),
}
"""Costs of a layer that each factor multiplies."""

Choices = TypeVar("Choices")
Costs = TypeVar("Costs")


def as_learned(
    price: Callable[[Layer, Choices, StageSetting], Costs],
) -> Callable[[Layer, Choices, StageSetting], Costs]:
    """Multiply what a pricing function returns by the factors of its setting's stack.

    Parameters
    ----------
    price : takes a layer, choices and a :class:`nest.costs.choices.StageSetting`, in this order,
        and returns a record of arrays.
    """
    @functools.wraps(price)
    def priced(layer: Layer, choices: Choices, setting: StageSetting) -> Costs:
        costs, factors = price(layer, choices, setting), setting.machine.stack.learned
        if factors is None:
            return costs
        found = vars(costs)
        return type(costs)(**found | {
            name: getattr(factors, factor) * found[name]
            for factor, names in CAUSES.items() for name in names if name in found})

    return priced
