"""Planning problems as self-contained documents, each with its best configuration.

``instances.yaml`` lists the problems, `read_problems` reads it. An :class:`Instance` is what a file
holds: the problem with all names of the catalog resolved, the answer, and how that was found.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from importlib import resources
from itertools import groupby
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from nest.errors import InputError
from nest.inputs import Configuration
from nest.inputs.base import Flag, Number, Written
from nest.inputs.files import parse_text, read_description
from nest.model import Chain
from nest.questions import Question, read_question
from nest.units import shorten

SCHEMA = "nest.instance/1.1"
SCHEMAS = r"^nest\.instance/1(\.\d{1,9})?$"
FOLDER = "nest-instances"
"""Where the files are by default."""
InstanceName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{0,99}$")]
"""Also the name of the file, without its suffix."""
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
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


class Solving(Written):
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
    made: Solving
    digest: Digest | None = Field(
        None, description="SHA-256 of all other fields but `made`; null: of a file of 1.0")

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


def digest_of(data: Mapping[str, Any]) -> str:
    """SHA-256 of an instance, as 64 hexadecimal digits.

    Parameters
    ----------
    data : as in its file. All fields but ``digest`` and ``made`` count, as JSON with sorted keys
        and without spaces, other letters than ASCII escaped.
    """
    counted = {name: value for name, value in data.items() if name not in ("digest", "made")}
    text = json.dumps(counted, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of_set(instances: Mapping[str, Instance]) -> str:
    """SHA-256 of a set: of a line ``NAME DIGEST`` for each instance, sorted."""
    lines = sorted(f"{name} {one.digest}\n" for name, one in instances.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


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
    InputError : it cannot be read, is no instance, is not named after it, or was changed after it
        was written.
    """
    shown = shorten(path, 300)[1:-1]
    data = read_description(path)
    schema = data.get("schema")
    if not (isinstance(schema, str) and re.fullmatch(SCHEMAS, schema)):
        raise InputError(f'{shown}: schema: got {shorten(schema)}; allowed: "{SCHEMA}" or another '
                         "minor version")
    found, _ = Instance.parse_known(data, shown)
    if found.digest not in (None, digest := digest_of(data)):
        raise InputError(f"{shown}: digest: got {found.digest}, and its content has {digest}; "
                         "allowed: a file as `nest bench instances` wrote it")
    if f"{found.name}.json" != os.path.basename(path):
        raise InputError(f"{shown}: name: got {found.name}; allowed: that of the file")
    return found.unchecked(digest=digest)
