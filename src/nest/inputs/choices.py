"""What a person chooses of training software besides degrees: graphs, dispatchers, formats."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from nest.inputs.base import Description, Flag, Freeze, Name, at_most

ChoiceName = Literal["cuda_graphs", "dispatcher", "fused_experts", "fp8_attention", "fp8_head",
                     "fp8_gather", "tp_overlap", "loss"]
CHOICES: tuple[ChoiceName, ...] = get_args(ChoiceName)
"""Dimensions of a search space whose values a stack lists (``choices``)."""


class ChoiceValue(Description):
    """A value of a choice: what it makes of the figures of a stack."""

    figures: Annotated[dict[Name, Any], Freeze, at_most(20)] | None = Field(
        None, description="figures of the stack that it replaces; default: the figure of the "
        "choice's name")
    devices: Annotated[tuple[Name, ...], at_most(100)] | None = Field(
        None, description="beginnings of the names of devices that have it; null: all")
    named: Flag = Field(
        False, description="tried only where a space names it, as it needs other software besides")
    since: Name | None = Field(None, description="first version that has it; null: not known")
    source: Annotated[str, Field(max_length=1000)] = Field("", description="source")

    def is_on(self, device: str) -> bool:
        """Whether devices of a name have it."""
        return self.devices is None or device.casefold().startswith(
            tuple(start.casefold() for start in self.devices))


def word(value: object) -> str:
    """A value as text: YAML reads true and false as flags."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def parsed(text: str) -> str | bool:
    """The figure that a value stands for."""
    return {"true": True, "false": False}.get(text, text)


def _worded(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {word(key): one or {} for key, one in value.items()}


Values = Annotated[
    dict[Name, ChoiceValue], BeforeValidator(_worded), Freeze, Field(min_length=1, max_length=20)]
"""Values of a choice by name, the first of which the software has by itself."""
ChosenValues = Annotated[
    dict[ChoiceName, Annotated[Name, BeforeValidator(word)]], Freeze]
"""A value for some choices."""
