"""The answer to a question as a document."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import Field

from nest.describe.base import Written
from nest.pricing.plans import Plan
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
        head = {"schema": self.schema_, "id": self.id, "notes": self.notes}
        return f'{json.dumps(head)[:-1]}, "plan": {self.plan.to_json(None)}}}'
