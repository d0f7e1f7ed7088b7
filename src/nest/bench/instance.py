"""Planning problems as self-contained documents, each with its best configuration.

``instances.yaml`` lists the problems, `read_problems` reads it. An :class:`Instance` is what a file
holds: the problem with all names of the catalog resolved, the answer, and how that was found.
"""

from __future__ import annotations

import os
import re
from importlib import resources
from itertools import groupby
from typing import Annotated

from pydantic import Field, StringConstraints

from nest.describe import Configuration
from nest.describe.base import Flag, Number, Written
from nest.describe.files import parse_text, read_description
from nest.errors import InputError
from nest.graph import Chain
from nest.questions import Question, read_question
from nest.units import shorten

SCHEMA = "nest.instance/1.0"
SCHEMAS = r"^nest\.instance/1(\.\d{1,9})?$"
FOLDER = "nest-instances"
"""Where the files are by default."""
InstanceName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{0,99}$")]
"""Also the name of the file, without its suffix."""
Positive = Annotated[Number, Field(gt=0)]


class Optimum(Written):
    """The best configuration that is known."""

    step_time_s: Positive = Field(description="seconds of a training step")
    proved: Flag = Field(description="no configuration that is searched in the space is faster")
    lower_bound_s: Positive = Field(description="none of those takes less")
    gap: Annotated[Number, Field(ge=0)] = Field(
        description="step_time_s / lower_bound_s, less 1; 0 where it is proved")
    configuration: Configuration = Field(description="reaches step_time_s")


class Layers(Written):
    """Consecutive layers of one kind, in the order that the ranges of stages count in."""

    name: str
    count: int
    parameters: int | None = Field(description="of one of them; null: measured, see the profile")


class Made(Written):
    """How an optimum was found."""

    version: str = Field(description="of NEST")
    command: str = Field(description="that finds it again")
    seconds: Annotated[Number, Field(ge=0)] = Field(description="of a processor")
    time_limit: Positive | None = Field(description="seconds of the search; null: none")


class Instance(Written):
    """A problem and its best known answer."""

    schema_: Annotated[str, Field(alias="schema", pattern=SCHEMAS)] = SCHEMA
    name: InstanceName
    question: Question = Field(description="model or profile, cluster, job, space, search")
    layers: tuple[Layers, ...] = Field(description="of the model or profile, the first ones first")
    optimum: Optimum
    made: Made

    @property
    def beyond_stack(self) -> bool:
        """Whether configurations count that the job's stack cannot run."""
        return self.question.search.beyond_stack

    @property
    def kind(self) -> str:
        """What is asked: where, and of which space."""
        cluster = self.question.cluster
        network = ("mixed devices" if cluster.types else "links" if cluster.links is not None
                   else "levels")
        return f"{network}, {'everything' if self.beyond_stack else 'stack'}"


def layers_of(chain: Chain) -> tuple[Layers, ...]:
    """The layers of a chain, those of one kind that follow each other together."""
    found = []
    for number, same in groupby(chain.order):
        kind = chain.kinds[number]
        found.append(Layers(name=kind.name, count=len([*same]),
                            parameters=None if kind.measured else kind.parameters))
    return tuple(found)


def read_problems() -> dict[str, Question]:
    """The problems of ``instances.yaml`` by name, in its order, with all names resolved."""
    text = resources.files("nest.bench").joinpath("instances.yaml").read_text(encoding="utf-8")
    table = parse_text(text, ".yaml", "instances.yaml")
    found = {}
    for row in table["instances"]:
        if "profile" in row:
            row = {**row, "profile": table["profiles"][row["profile"]]}
        search = {"reorder": False, **row.get("search", {})}
        question, _ = read_question({**row, "search": search}, f"instances.yaml: {row['id']}")
        stack = question.job.stack
        if stack.capabilities is not None:  # its own table is written out, one of a name is not
            own = stack.unchecked(capabilities=stack.capabilities.unchecked(name=""))
            question = question.unchecked(job=question.job.unchecked(stack=own))
        found[row["id"]] = question
    return found


def load_instances(folder: str) -> dict[str, Instance]:
    """The instances of a folder by name.

    Raises
    ------
    InputError : no such folder, none in it, or a file that is no instance.
    """
    shown = shorten(folder, 300)[1:-1]
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"instances: {shown} cannot be read ({reason}); allowed: a folder that "
                         "`nest bench instances` has written") from None
    if not names:
        raise InputError(f"instances: got {shown} without any .json file; allowed: a folder that "
                         "`nest bench instances` has written")
    found = [load_instance(os.path.join(folder, name)) for name in names]
    return {one.name: one for one in found}


def load_instance(path: str) -> Instance:
    """Read an instance from its file.

    Raises
    ------
    InputError : it cannot be read, is no instance, or is not named after it.
    """
    shown = shorten(path, 300)[1:-1]
    data = read_description(path)
    schema = data.get("schema")
    if not (isinstance(schema, str) and re.fullmatch(SCHEMAS, schema)):
        raise InputError(f'{shown}: schema: got {shorten(schema)}; allowed: "{SCHEMA}" or another '
                         "minor version")
    found, _ = Instance.parse_known(data, shown)
    if f"{found.name}.json" != os.path.basename(path):
        raise InputError(f"{shown}: name: got {found.name}; allowed: that of the file")
    return found
