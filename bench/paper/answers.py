"""Planners asked, each question once; answers are stored: a run can be interrupted and resumed.

An answer is JSON, schema `nest.answer/1`. It holds a digest of all that was asked, so that an
answer is used again only for the same question to the same planner of the same version of NEST.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from nest import __version__
from nest.errors import InputError
from nest.inputs.base import Description, Flag, Name, Number, Whole
from nest.inputs.files import parse_text
from nest.planners.compare import ComparedPlan, compare, peak_memory
from nest.report.comparison_text import in_a_line
from nest.studies.store import FILE, Store, make_folder
from paper.questions import OPTIONS, PaperQuestion, PlannerInputs

Text = Annotated[str, Field(max_length=4000)]
Positive = Annotated[Number, Field(gt=0)]


class PlannerAnswer(Description):
    """What one planner chose, priced by `nest.evaluate`."""

    schema_: Annotated[Literal["nest.answer/1"], Field(alias="schema")] = Field(
        description="nest.answer/1"
    )
    question: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] = Field(
        description="SHA-256 of model, cluster, job, space, planner, its options, and the version"
    )
    model: Name = Field(description="for people; the digest decides")
    cluster: Name = Field(description="its name")
    devices: Whole = Field(description="of the cluster")
    mbs: Whole = Field(description="samples that a device takes at once")
    planner: Name = Field(description="of `nest compare`")
    feasible: Flag = Field(description="there is a plan, and it fits")
    reason: Text | None = Field(description="why not; null: feasible")
    step_time_s: Positive | None = Field(description="seconds; null: there is no plan")
    samples_per_s: Positive | None = Field(description="throughput; null: there is no plan")
    tokens_per_s: Positive | None = Field(description="throughput; null: there is no plan")
    peak_memory_bytes: Positive | None = Field(description="bytes on the fullest device")
    search_seconds: Annotated[Number, Field(ge=0)] = Field(
        description="seconds to choose, without compiling kernels"
    )
    plan: Text | None = Field(description="degrees of the plan, a line")

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.feasible and (self.step_time_s is None or self.tokens_per_s is None):
            raise ValueError("feasible: got true without step_time_s and tokens_per_s; allowed: "
                             "false, or both of them")
        if not self.feasible and self.reason is None:
            raise ValueError("reason: got null without feasible; allowed: why there is no plan")
        return self


def digest(described: PlannerInputs, planner: str, options: Mapping[str, Any]) -> str:
    """SHA-256 of all that an answer depends on, as 64 hexadecimal digits.

    Parameters
    ----------
    described : what is asked.
    planner : of :func:`nest.planners.registered`.
    options : of the planner; plain data.
    """
    asked = [__version__, *(one.as_dict() for one in described), planner, dict(options)]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


class StoredAnswers:
    """The answers of a folder, by digest; new ones are stored at once.

    Parameters
    ----------
    folder : is made if it does not exist.

    Raises
    ------
    InputError
        The folder cannot be made, or its file of answers holds something else.
    OutputError
        The file cannot be written.
    """

    def __init__(self, folder: str) -> None:
        make_folder(folder)
        self.path = os.path.join(folder, FILE)
        self._store = Store(self.path)

    def get(self, question: str) -> PlannerAnswer | None:
        """The answer to a question by its digest; None: not asked yet.

        Raises
        ------
        InputError : what is stored is no answer of a planner.
        """
        text = self._store.answer(question)
        if text is None:
            return None
        where = f"{self.path}: answer to {question[:8]}"
        data = parse_text(text, ".json", where)
        if not isinstance(data, dict) or data.get("schema") != "nest.answer/1":
            raise InputError(f"{where}: got no answer of a planner; allowed: the schema "
                             "nest.answer/1 (another -o FOLDER starts anew)")
        return PlannerAnswer.parse(data, where)

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    def add(self, answer: PlannerAnswer) -> None:
        """Store an answer, also on disk.

        Raises
        ------
        OutputError : the file cannot be written.
        """
        self._store.add(answer.question, "ok" if answer.feasible else "infeasible",
                        answer.model_dump_json(by_alias=True))


class PlannerRun(NamedTuple):
    """A question, a planner and its answer."""

    question: PaperQuestion
    planner: str
    answer: PlannerAnswer


def ask(
    questions: Sequence[PaperQuestion], planners: Sequence[str], answers: StoredAnswers,
    tell: Callable[[PlannerRun], object] = lambda run: None,
) -> list[PlannerRun]:
    """Give every answer; ask only for those that are missing.

    Parameters
    ----------
    questions, planners : each planner is asked each question, in this order.
    answers : those there are; new ones are added one by one.
    tell : is called with each answer.

    Raises
    ------
    InputError : model or cluster of a question cannot be read, or they are incompatible.
    """
    found: list[PlannerRun] = []
    for question in questions:
        described = question.described()
        for planner in planners:
            key = digest(described, planner, OPTIONS.get(planner, {}))
            answer = answers.get(key)
            if answer is None:
                entry, = compare(
                    *described, [planner], {**OPTIONS, "nest": {"beyond_stack": True}})
                answer = _answer(question, key, entry)
                answers.add(answer)
            found.append(PlannerRun(question, planner, answer))
            tell(found[-1])
    return found


def _answer(question: PaperQuestion, key: str, entry: ComparedPlan) -> PlannerAnswer:
    plan = entry.plan
    return PlannerAnswer.parse({
        "schema": "nest.answer/1", "question": key, "model": question.model,
        "cluster": question.cluster, "devices": question.devices, "mbs": question.mbs,
        "planner": entry.planner, "feasible": entry.feasible,
        "reason": None if entry.reason is None else " ".join(entry.reason.split())[:4000],
        "step_time_s": None if plan is None else plan.step_time_s,
        "samples_per_s": None if plan is None else plan.samples_per_s,
        "tokens_per_s": None if plan is None else plan.tokens_per_s,
        "peak_memory_bytes": None if plan is None else peak_memory(plan),
        "search_seconds": max(entry.search_seconds, 0.0),
        "plan": None if plan is None else in_a_line(plan)}, "answer")
