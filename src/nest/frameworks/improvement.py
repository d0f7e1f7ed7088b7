"""What a launch script takes now, and the faster plan that its software can run."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from nest.evaluation.plans import Plan
from nest.inputs.base import Freeze, Shown, Written

SCHEMA = "nest.improvement/1.1"
SCHEMAS = r"^nest\.improvement/1(\.\d{1,9})?$"


class Change(Written):
    """One line of a difference."""

    name: str
    before: str = Field(description="empty: it is not there")
    after: str = Field(description="empty: it is taken out")


class Improvement(Shown):
    """A launch script priced, and the fastest plan for it."""

    schema_: Annotated[str, Field(alias="schema", pattern=SCHEMAS)] = SCHEMA
    target: str = Field("megatron", description="what the file is for, a name of nest read --from")
    script: str = Field(description="name of the file")
    line: int = Field(description="of the command in a script; 1 of other files")
    notes: tuple[str, ...] = Field(description="what was assumed, and what has no price")
    before: Plan | None = Field(description="what the script takes; null: it is no configuration "
                                "of these devices")
    problems: tuple[str, ...] = Field(description="why the script's own configuration cannot run")
    plan: Plan | None = Field(description="the faster plan; null: there is none")
    faster: float | None = Field(
        description="seconds of a step before / after, less 1; null: nothing to compare")
    options: tuple[Change, ...] = Field(description="the difference in the words of plans")
    arguments: tuple[Change, ...] = Field(
        description="the difference in arguments of the script, with their hyphens, and in "
        "settings of the file")
    refused: tuple[str, ...] = Field(
        (), description="why the plan is not written, a sentence each")
    files: Annotated[dict[str, str], Freeze] = Field(
        description="texts of the new file and of lists of nodes or ranks, by name")

    def to_json(self, indent: int | None = 2) -> str:
        """The result as the text of one JSON document."""
        return self.model_dump_json(by_alias=True, indent=indent)
