"""A job that runs today, of any software, and the faster plan that this software can run."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Annotated, NamedTuple

from pydantic import Field

from nest.evaluation.evaluate import evaluate
from nest.evaluation.plans import Plan
from nest.frameworks.capture.document import Capture
from nest.inputs.base import Freeze, Shown, Written
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job, Stack
from nest.inputs.model import Model
from nest.inputs.space import SearchSpace
from nest.model.operators import FURTHER_MODULES

SCHEMA = "nest.improvement/1.2"
SCHEMAS = r"^nest\.improvement/1(\.\d{1,9})?$"


class Change(Written):
    """One line of a difference."""

    name: str
    before: str = Field(description="empty: it is not there")
    after: str = Field(description="empty: it is taken out")
    line: str = Field("", description="of a document of nest capture: numbers of the script's "
                      "lines that name it; empty: none does")


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


UNSET = {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
"""Variables that mean this where they are not set (CUDA C++ Programming Guide, CUDA Environment
Variables)."""


class Now(NamedTuple):
    """What a job does."""

    plan: Plan | None
    """None: it is no configuration of these devices."""
    problems: tuple[str, ...] = ()
    """Why it cannot run."""
    notes: tuple[str, ...] = ()
    """What was assumed."""

    @property
    def seconds(self) -> float:
        """Of a step; infinite: it cannot run."""
        return math.inf if self.plan is None or self.problems else self.plan.step_time_s


class WrittenFiles(NamedTuple):
    """The files of a better plan."""

    files: Mapping[str, str] = {}
    """Texts by name; empty: they cannot say it."""
    changes: tuple[Change, ...] = ()
    """The difference, setting by setting."""
    refused: tuple[str, ...] = ()
    """Why there are no files, a sentence each."""
    notes: tuple[str, ...] = ()
    """What the launch needs besides them."""


@dataclass(frozen=True, kw_only=True)
class RunningJob(ABC):
    """A job that runs today, as its files say it."""

    target: str
    """A name of :data:`nest.frameworks.reader.TARGETS`."""
    where: str
    """The file, or the script that hands it over."""
    line: int
    """Of its command."""
    model: Model
    job: Job
    cluster: Cluster
    notes: tuple[str, ...]
    """What was assumed, and what has no price."""
    keeps: tuple[str, ...]
    """Names of what may be switched on, which the user may keep as it is."""

    @abstractmethod
    def now(self) -> Now:
        """What it takes now."""

    @abstractmethod
    def spaces(
        self, before: Plan | None, space: SearchSpace | None, keep: tuple[str, ...]
    ) -> Iterable[tuple[Stack, SearchSpace]]:
        """Where a plan is searched: ``space``, or by default everything.

        The stack is the job's, with what its software can switch on and computes no number
        otherwise.
        """

    @abstractmethod
    def lacks(self, plan: Plan) -> tuple[str, ...]:
        """Why its files cannot say a plan, a sentence each."""

    def narrower(self, space: SearchSpace, plan: Plan) -> Iterable[SearchSpace]:
        """Parts of a space to search where its best plan is one that the files cannot say."""
        return ()

    @abstractmethod
    def written(self, before: Plan | None, plan: Plan) -> WrittenFiles:
        """Its files with a better plan.

        Raises
        ------
        KernelError : read again they do not have the step time of the plan.
        """

    def priced(self, way: Configuration) -> Now:
        """A configuration of the job, priced.

        Raises
        ------
        InputError : it is none of its devices.
        """
        found = evaluate(self.model, self.cluster, self.job, way)
        return Now(found, (*found.problems, *(one.sentence for one in found.not_runnable)))


def placed(changes: Iterable[Change], capture: Capture | None) -> tuple[
        tuple[Change, ...], tuple[str, ...]]:
    """Changes of arguments with the lines of a captured script that name them, and what is to be
    looked for by hand, a sentence each; of another script as they are."""
    found, notes = [], []
    for one in changes:
        lines = capture.lines_of(one.name) if capture is not None else []
        found.append(one.replace(line=", ".join(map(str, lines[:5]))))
        script = "" if capture is None else os.path.basename(capture.script) or "the script"
        if capture is not None and one.before and len(lines) != 1:
            many = f"several lines of {script} name it, and which of them counts is not known"
            notes.append(f"{one.name}: {many if lines else f'no line of {script} names it'}")
    return tuple(found), tuple(notes)


def shown_words(given: Mapping[str, tuple[str, ...]], name: str) -> str:
    """An argument in a difference; empty: it is not there."""
    return (" ".join(given[name]) or "given") if name in given else ""


def with_overlap(
    own: Stack, base: Stack, overlaps: Mapping[str, str], keep: Iterable[str]
) -> Stack:
    """A stack with overlap switched on as its software has it.

    Parameters
    ----------
    own, base : the stack of a job, and that of the catalog which it is based on.
    overlaps : fields of a stack by the names of settings that switch them on.
    keep : names of those that stay as they are.
    """
    changes = {field: getattr(base, field) for name, field in overlaps.items()
               if name not in keep and getattr(own, field) != getattr(base, field)}
    return own.replace(**changes) if changes else own


def unsearched(before: Plan | None, space: SearchSpace | None) -> list[SearchSpace]:
    """The space asked for; if none is, also what the job does and no search tries by itself."""
    bounds = [space or SearchSpace()]
    if before is not None and space is None:
        way, stage = before.configuration, before.configuration.stages[0]
        if way.schedule == "combined":
            bounds.append(SearchSpace(schedule=("combined",)))
        if way.offload != "none":
            bounds.append(SearchSpace(offload=(way.offload,)))
        if {*FURTHER_MODULES} & {*stage.recompute_modules}:
            bounds.append(SearchSpace(recompute_modules=("+".join(stage.recompute_modules),)))
    return bounds


def parts(
    bounds: Iterable[SearchSpace], given: Iterable[Mapping[str, object]]
) -> list[SearchSpace]:
    """Each of several spaces, bounded in each of several ways, where it allows that.

    Parameters
    ----------
    given : the ways: a value of a dimension, or a tuple of several, by its name.
    """
    given = [*given]
    found = []
    for space, more in product(bounds, given):
        values = {name: [one for one in (value if isinstance(value, tuple) else (value,))
                         if space.allows(name, one)] for name, value in more.items()}
        if all(values.values()):
            found.append(space.replace(**values))
    return found
