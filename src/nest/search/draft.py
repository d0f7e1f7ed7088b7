"""The draft: a part of the space that is searched first, for a plan that sets the first limit."""

from __future__ import annotations

from typing import Any

from nest.inputs.space import LARGEST, IntSet, SearchSpace
from nest.model import Chain

DRAFT: dict[str, Any] = {
    "sp": (True,), "cp_comm": ("p2p",), "etp": IntSet.of(1), "shard": ("dp",),
    "recompute": ("none", "full"), "recompute_layers": IntSet.of(LARGEST),
}
"""Bounds of the draft on dimensions that the space leaves free."""


def narrowed(space: SearchSpace, bounds: dict[str, Any], chain: Chain) -> SearchSpace:
    """The space with bounds on the dimensions that it leaves free."""
    free = {name: value for name, value in bounds.items() if getattr(space, name) is None}
    if chain.experts is None:
        free.pop("etp", None)  # it stands for tp then
    return space.replace(**free) if free else space


def draft_of(space: SearchSpace, chain: Chain) -> SearchSpace | None:
    """A part of the space that holds good plans; None where it is the space itself."""
    part = narrowed(space, DRAFT, chain)
    if "1f1b" in space.schedules and len(space.schedules) > 1:
        part = part.replace(schedule="1f1b")
    return None if part is space else part
