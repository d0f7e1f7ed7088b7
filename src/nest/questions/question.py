"""A question to the planner and its answer, as documents.

Questions of all minor versions are read; fields that this version does not know are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, StrictInt, StrictStr, WrapValidator, model_validator

from nest.errors import InputError
from nest.evaluation.plans import Plan
from nest.inputs import Cluster, Job, Model, Profile, SearchSpace
from nest.inputs.base import Description, Flag, Problems, Whole, Written
from nest.inputs.files import parse_text
from nest.inputs.space import Preference
from nest.limits import MOST
from nest.questions.network import cluster_of, model_of
from nest.units import Seconds, shorten

SCHEMA = "nest.question/1.0"
"""What is written, MAJOR.MINOR; read are all of this major version, a missing minor is 0."""
SCHEMAS = r"^nest\.question/1(\.\d{1,9})?$"
ANSWER = "nest.answer/1.0"
ANSWERS = r"^nest\.answer/1(\.\d{1,9})?$"
Id = Annotated[StrictStr, Field(max_length=200)] | Annotated[
    StrictInt, Field(ge=-(2**63), lt=2**64)]
"""What a question is called by whoever asks it."""


class Search(Description):
    """How the planner searches: arguments of :func:`nest.plan`."""

    beyond_stack: Flag = Field(False, description="also what the job's stack cannot run")
    time_limit: Seconds | None = Field(
        None, description="seconds for a question; null: none. With it, answers depend on the "
        "speed of the machine")
    reorder: Flag = Field(True, description="try other orders of the devices of a graph")
    fillings: Flag = Field(False, description="try other fillings of groups partly used")


class Question(Description):
    """A question to the planner, and all that its answer depends on besides NEST's version."""

    schema_: Annotated[str, Field(alias="schema", pattern=SCHEMAS)] = SCHEMA
    id: Id | None = Field(None, description="comes back with the answer")
    model: Annotated[
        Model, WrapValidator(model_of, json_schema_input_type=Model | str | dict[str, Any])
    ] | None = Field(
        None, description="a catalog name, a mapping, one with `base` and changes, or the content "
        "of a config.json")
    profile: Profile | None = Field(None, description="measured layers in the place of a model")
    cluster: Annotated[
        Cluster, WrapValidator(cluster_of, json_schema_input_type=Cluster | str | dict[str, Any])
    ] = Field(
        description="a catalog name, a network to generate, a mapping, a graph, or a mapping with "
        "`base` and changes, `devices`, `filling`, `without`, `degrade`")
    job: Job = Field(description="what a step trains, and with which software")
    space: SearchSpace = Field(
        default_factory=SearchSpace, description="bounds; default: everything legal")
    search: Search = Field(default_factory=Search, description="how the planner searches")
    top: Annotated[Whole, Field(ge=1, le=MOST["top"])] = Field(
        1, description="distinct plans wanted; those after the best are its `alternatives`")
    near_batches: Flag = Field(False, description="look for a batch that fits the devices better")
    prefer: Preference = Field(
        "fastest", description="of plans that are slower than the fastest by less than the error "
        "of prices: the fastest, or the one that is nearest to measured runs, and then the safest "
        "in memory")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.model is None) == (self.profile is None):
            given = "neither" if self.model is None else "both"
            raise Problems([("model", f"got {given} of model and profile; allowed: one of them")])
        return self

    @property
    def subject(self) -> Model | Profile:
        """What is trained."""
        found = self.model or self.profile
        assert found is not None  # kept by the validator
        return found


def read_question(
    source: str | bytes | Mapping[str, Any], where: str = "question"
) -> tuple[Question, tuple[str, ...]]:
    """Read a question from the text of a JSON document or from its data.

    Parameters
    ----------
    source : at most 16 MiB of text, or plain data. Nothing in it is read as the name of a file.
    where : start of messages.

    Returns
    -------
    The question, and a note for each field that was ignored.

    Raises
    ------
    InputError : no JSON object, another version, or fields that are missing or not allowed.
    """
    data = plain(source, where) if isinstance(source, (str, bytes)) else _object(source, where)
    found = data.get("schema", SCHEMA)
    if not (isinstance(found, str) and re.fullmatch(SCHEMAS, found)):
        raise InputError(f'{where}: schema: got {shorten(found)}; allowed: "{SCHEMA}" or another '
                         "minor version")
    return Question.parse_known(data, where)


def plain(text: str | bytes, where: str = "question") -> dict[str, Any]:
    """The data of the text of a JSON document.

    Raises
    ------
    InputError : no JSON, or no object.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{where}: {error.reason} at byte {error.start}; allowed: UTF-8"
                             ) from None
    return _object(parse_text(text, ".json", where), where)


def _object(found: object, where: str) -> dict[str, Any]:
    if not isinstance(found, Mapping):
        raise InputError(f"{where}: got {shorten(found)}; allowed: a JSON object")
    return dict(found)


def id_of(data: object) -> str | int | None:
    """The id of what may be no question; None: it has no usable one."""
    found = data.get("id") if isinstance(data, Mapping) else None
    short = isinstance(found, str) and len(found) <= 200 and _whole(found)
    whole = type(found) is int and -(2**63) <= found < 2**64
    return found if short or whole else None


def _whole(text: str) -> bool:
    """Whether a text has whole characters, not halves of pairs of UTF-16."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


class Answer(Written):
    """A plan, and which question it answers."""

    schema_: Annotated[str, Field(alias="schema", pattern=ANSWERS)] = ANSWER
    id: Id | None = Field(None, description="of the question")
    notes: tuple[str, ...] = Field((), description="fields of the question that were ignored")
    plan: Plan

    def to_json(self) -> str:
        """The answer as one line of JSON."""
        return self.model_dump_json(by_alias=True, ensure_ascii=True)
