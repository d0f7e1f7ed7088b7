"""The answer to a question as a document."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from nest.evaluation.plans import Plan
from nest.inputs.base import Written
from nest.questions.question import Id

SCHEMA = "nest.answer/1.0"
SCHEMAS = r"^nest\.answer/1(\.\d{1,9})?$"


class Answer(Written):
    """A plan, and which question it answers."""

    schema_: Annotated[str, Field(alias="schema", pattern=SCHEMAS)] = SCHEMA
    id: Id | None = Field(None, description="of the question")
    notes: tuple[str, ...] = Field((), description="fields of the question that were ignored")
    plan: Plan

    def to_json(self) -> str:
        """The answer as one line of JSON."""
        return self.model_dump_json(by_alias=True, ensure_ascii=True)
