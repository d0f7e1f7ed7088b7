"""What a planner hands in: a configuration for each instance that it takes, as a document."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, WrapValidator

from nest.bench.instance import Digest
from nest.errors import InputError, did_you_mean
from nest.inputs import Configuration
from nest.inputs.base import Description, Name, Number
from nest.inputs.files import read_description
from nest.units import shorten

SCHEMA = "nest.submission/1.1"
SCHEMAS = r"^nest\.submission/1(\.\d{1,9})?$"
Unread = Annotated[Any, WrapValidator(
    lambda value, _: value, json_schema_input_type=Configuration | None)]
"""Read when it is priced, so that one bad configuration does not spoil the others."""


class SubmittedAnswer(Description):
    """The answer to one instance."""

    instance: str = Field(description="its name", max_length=100)
    digest: Digest | None = Field(
        None, description="`digest` of the instance that was answered; null: unchecked")
    configuration: Unread = Field(
        None, description="what to train with, as `nest schema configuration` says; null: none")
    seconds: Annotated[Number, Field(ge=0)] | None = Field(
        None, description="of a processor, that the planner took; for people")
    reason: Annotated[str, Field(max_length=4000)] | None = Field(
        None, description="why there is no configuration")


class PlannerSubmission(Description):
    """The answers of one planner."""

    schema_: Annotated[str, Field(alias="schema", pattern=SCHEMAS)] = SCHEMA
    planner: Name = Field(description="name and version of the planner")
    note: Annotated[str, Field(max_length=4000)] = Field("", description="for people")
    answers: tuple[SubmittedAnswer, ...] = Field(description="at most one for each instance")


def load_submission(
    path: str, instances: Mapping[str, str | None]
) -> tuple[PlannerSubmission, tuple[str, ...]]:
    """Read the answers of a planner.

    Parameters
    ----------
    instances : names of those that there are, and their digests.

    Returns
    -------
    The submission, and a note for each field that was ignored.

    Raises
    ------
    InputError : the file cannot be read, is something else, or answers an instance that does not
        exist, or one twice, or another one than that of its name.
    """
    shown = shorten(path, 300)[1:-1]
    data = read_description(path)
    schema = data.get("schema", SCHEMA)
    if not (isinstance(schema, str) and re.fullmatch(SCHEMAS, schema)):
        raise InputError(f'{shown}: schema: got {shorten(schema)}; allowed: "{SCHEMA}" or another '
                         "minor version")
    found, notes = PlannerSubmission.parse_known(data, shown)
    known = list(instances)
    problems = []
    for number, one in enumerate(found.answers):
        if one.instance not in known:
            problems.append(
                f"{shown}: answers.{number}.instance: got {shorten(one.instance)}; "
                f"{did_you_mean(one.instance, known)}allowed: names of the {len(known)} instances")
        elif one.digest not in (None, instances[one.instance]):
            problems.append(
                f"{shown}: answers.{number}.digest: got {one.digest}, and {one.instance} has "
                f"{instances[one.instance]}; allowed: answers to the same instances")
    counts = Counter(one.instance for one in found.answers)
    problems += [f"{shown}: answers: got {count} for {shorten(name)}; allowed: one"
                 for name, count in counts.items() if count > 1]
    if problems:
        raise InputError("\n".join(problems), tuple(problems))
    return found, notes
