"""The answers of planners, one line each in a growing file: a run can be interrupted and resumed.

A line is JSON, schema `nest.answer/1`. It holds a digest of all that was asked, so that an answer
is used again only for the same question to the same planner of the same version of NEST.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from nest import __version__
from nest.bench.paper import Described
from nest.describe.base import Description, Flag, Name, Number, Whole
from nest.describe.files import parse_text, read_text, write_text_atomic
from nest.errors import InputError, OutputError

FILE = "answers.jsonl"
START = '{"schema":"nest.answer/1",'
"""What every line starts with."""
Text = Annotated[str, Field(max_length=4000)]
Positive = Annotated[Number, Field(gt=0)]


class Answer(Description):
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


def digest(described: Described, planner: str, options: Mapping[str, Any]) -> str:
    """SHA-256 of all that an answer depends on, as 64 hexadecimal digits.

    Parameters
    ----------
    described : what is asked.
    planner : of :data:`nest.planners.PLANNERS`.
    options : of the planner; plain data.
    """
    asked = [__version__, *(one.as_dict() for one in described), planner, dict(options)]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


class Answers:
    """The answers of a folder, by digest; new ones are written at once.

    Parameters
    ----------
    folder : is made if it does not exist.

    Raises
    ------
    InputError
        The folder cannot be written, or its file of answers holds something else. A last line that
        was cut off is dropped.
    """

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, FILE)
        try:
            os.makedirs(folder, exist_ok=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"output: {folder[:200]} cannot be made ({reason})") from None
        self._found: dict[str, Answer] = {}
        if os.path.exists(self.path):
            self._read()

    def _read(self) -> None:
        text = read_text(self.path)
        *lines, last = text.split("\n")
        for number, line in enumerate(lines, 1):
            answer = _parsed(line, f"{self.path}: line {number}")
            self._found[answer.question] = answer
        if last:  # was being written when the run was interrupted
            if not (last.startswith(START) or START.startswith(last)):
                raise _no_answer(f"{self.path}: line {len(lines) + 1}")
            write_text_atomic(self.path, text[: len(text) - len(last)])

    def get(self, question: str) -> Answer | None:
        """The answer to a question by its digest; None: not asked yet."""
        return self._found.get(question)

    def add(self, answer: Answer) -> None:
        """Store an answer, also on disk.

        Raises
        ------
        OutputError : the file cannot be written.
        """
        line = answer.model_dump_json(by_alias=True)
        try:
            with open(self.path, "a", encoding="utf-8") as stream:
                stream.write(line + "\n")
                stream.flush()
        except OSError as error:
            reason = error.strerror or error
            raise OutputError(f"{self.path}: cannot be written ({reason})") from None
        self._found[answer.question] = answer


def _parsed(line: str, where: str) -> Answer:
    data = parse_text(line, ".json", where)
    if not isinstance(data, dict) or data.get("schema") != "nest.answer/1":
        raise _no_answer(where)
    return Answer.parse(data, where)


def _no_answer(where: str) -> InputError:
    return InputError(f"{where}: got no answer of a planner; allowed: lines with the schema "
                      "nest.answer/1 (another -o FOLDER starts anew)")
