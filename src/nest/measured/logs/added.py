"""Logs that readers of other packages know (`nest.plugins`, group ``nest.logs``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from nest import plugins
from nest.errors import InputError
from nest.inputs.base import Description, Flag, Name, Number, Whole
from nest.units import shorten

_Bytes = Mapping[Annotated[Whole, Field(ge=0)], Annotated[Whole, Field(ge=0)]]


class AddedLog(Description):
    """What a reader of another package says of a log."""

    framework: Name = Field(description="Training software.")
    version: str = Field("", max_length=100, description="Of the software.")
    device: str = Field("", max_length=200, description="Name of the device.")
    steps: tuple[Annotated[Number, Field(gt=0.0)], ...] = Field(
        (), max_length=10**6, description="Seconds of each step, in their order.")
    out_of_memory: Flag = Field(False, description="Whether it ran out of memory.")
    allocated_by_rank: _Bytes = Field(
        default_factory=dict, description="Largest allocated bytes by rank.")
    reserved_by_rank: _Bytes = Field(
        default_factory=dict, description="Largest bytes that the allocator held, by rank.")
    printed: Mapping[str, dict[str, Any]] = Field(
        default_factory=dict, max_length=10, description=(
            "Printed settings by name, by the kind of software that has these names, such as "
            "`megatron`, with `world_size`, or `maxtext`."))
    notes: tuple[str, ...] = Field((), max_length=100, description="What is in doubt.")


def added_log(path: str | os.PathLike[str]) -> AddedLog | None:
    """The log by the first reader that knows it; None: none does.

    A reader that fails is told in a warning, and the next one is asked.
    """
    def read(reader: Any) -> AddedLog | None:
        found = reader(path)
        if found is None:
            return None
        if not isinstance(found, Mapping):
            raise ValueError(f"got {shorten(found)}; needed: a mapping, or None")
        log = AddedLog.parse(dict(found), "its answer")
        if not (log.steps or log.printed or log.out_of_memory):
            raise ValueError("its answer: got no steps, no settings and no lack of memory; "
                             "needed: one of them, or None")
        return log

    for one in plugins.registered(plugins.LOGS).values():
        try:
            log: AddedLog | None = one.use(read)
        except InputError as error:
            plugins.tell(str(error))
            continue
        if log is not None:
            return log
    return None
