"""A study as a person writes it: one problem, the axes along which it varies, what is wanted."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from nest.errors import InputError, did_you_mean
from nest.inputs.base import Description, Freeze, Name, Number, Problems, Whole, at_most
from nest.studies.axes import AnyAxis, Choice
from nest.studies.expressions import Expression
from nest.studies.prices import PriceList
from nest.studies.version import VERSION
from nest.units import shorten

SECTIONS = ("model", "cluster", "job", "space", "search")
"""Parts of a question that paths begin with."""
MOST_POINTS = 10**6
"""Points of one study; larger grids are sampled."""
ObjectiveName = Literal["tokens_per_s", "tokens_per_money", "tokens_per_joule", "mfu",
                        "step_time_s", "devices", "days", "money"]

_NEEDS: Mapping[str, Mapping[str, str]] = {
    "prices": {"money": "{device_hour: 2.5}", "tokens_per_money": "{device_hour: 2.5}",
               "tokens_per_joule": "{device_watts: 1000}"},
    "train": {"money": "{tokens: 15e12}", "days": "{tokens: 15e12}"},
}
"""Parts of a study that objectives need, and an example of each."""


class Sample(Description):
    """Some points instead of the whole grid."""

    method: Literal["random", "latin-hypercube"] = Field(
        "latin-hypercube", description="random, or one sample in each of `count` equal parts of "
        "every axis")
    count: Annotated[Whole, Field(ge=1, le=MOST_POINTS)] = Field(
        description="samples; those drawn twice and those that a constraint excludes drop out")
    seed: Annotated[Whole, Field(ge=0, lt=2**32)] = Field(
        0, description="of the random numbers: the same seed gives the same points")


class Train(Description):
    """The whole training that the step is part of."""

    tokens: Annotated[Number, Field(gt=0, le=1e18)] = Field(description="tokens to train on")
    days: Annotated[Number, Field(gt=0, le=1e5)] | None = Field(
        None, description="days it may take; null: any. Slower plans are out of the race")
    productive: Annotated[Number, Field(gt=0, le=1)] = Field(
        1.0, description="share of the time that trains: the rest is failures and restarts")


class Together(Description):
    """Several trainings, one after another on the same cluster."""

    axis: Name = Field(description="axis of the models or jobs that are trained")
    tokens: Annotated[dict[Name, Annotated[Number, Field(gt=0, le=1e18)]], Field(min_length=1),
                      Freeze, at_most(100)] = Field(
        description="tokens to train on, by the values of the axis that are trained")


class Study(Description):
    """Questions to the planner that differ along axes.

    ``model``, ``cluster``, ``job``, ``space`` and ``search`` are the problem; each key of ``axes``
    is the path of a field of it, such as ``cluster.levels.0.bandwidth``, or a name of choices that
    set several fields each.
    """

    name: Name = Field("study", description="name of the study; default: that of its file")
    model: Any = Field(None, description="catalog name, file, or mapping; may say `base`")
    cluster: Any = Field(None, description="catalog name, file, network to generate, or mapping; "
                         "may say `base`, `devices` and `filling`")
    job: Annotated[dict[str, Any], Freeze] = Field(description="fields of a job")
    space: Annotated[dict[str, Any], Freeze] = Field(
        default_factory=dict, description="bounds of the search space")
    search: Annotated[dict[str, Any], Freeze] = Field(
        default_factory=dict, description="how the planner searches")
    axes: Annotated[dict[Name, AnyAxis], Field(min_length=1), Freeze, at_most(30)] = Field(
        description="values of fields, by path, or choices by a name")
    constraints: Annotated[tuple[str, ...], at_most(100)] = Field(
        (), description="expressions that hold at each point; others are left out")
    sample: Sample | None = Field(None, description="some points; null: the whole grid")
    prices: PriceList | None = Field(None, description="price list; null: no figures of money")
    train: Train | None = Field(None, description="the whole training; null: steps alone")
    together: Together | None = Field(
        None, description="trainings that share a cluster; null: each has its own")
    objectives: Annotated[tuple[ObjectiveName, ...], Field(min_length=1), at_most(8)] | None = (
        Field(None, description="what is wanted; null: tokens_per_s, and with prices "
              "tokens_per_money"))
    groups: Annotated[tuple[Name, ...], at_most(30)] = Field(
        (), description="axes: the front and the best are found for each of their values")
    _listed: dict[str, tuple[Choice, ...]] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = []
        for name, axis in self.axes.items():
            for path in self.paths(name):
                if path.split(".")[0] not in SECTIONS:
                    near = did_you_mean(path.split(".")[0], SECTIONS)
                    problems.append((f"axes.{name}", f"got the path {shorten(path)}; {near}"
                                     f"allowed: fields of {', '.join(SECTIONS)}"))
            if axis.continuous and self.sample is None:
                problems.append((f"axes.{name}", "got a range without values of its own; allowed: "
                                 "count, step or times, or a sample of the study"))
        names = self.names
        for number, text in enumerate(self.constraints):
            try:
                Expression(text, names)
            except InputError as error:
                problems.append((f"constraints.{number}", str(error)))
        problems += [("groups", f"got {shorten(name)}; {did_you_mean(name, self.axes)}allowed: "
                      f"{', '.join(self.axes)}") for name in self.groups if name not in self.axes]
        problems += [*self._wanting(), *self._apart()]
        if not problems and self.sample is None and self.size > MOST_POINTS:
            problems.append(("axes", f"got a grid of {self.size} points; allowed: at most "
                             f"{MOST_POINTS}, or a sample"))
        if problems:
            raise Problems(problems)
        return self

    def _wanting(self) -> Iterator[tuple[str, str]]:
        """Objectives that need what is not given."""
        for name in self.objectives or ():
            needs = [part for part, wanted in _NEEDS.items()
                     if name in wanted and getattr(self, part) is None]
            if needs:
                added = " and ".join(f"{part} (such as {part}: {_NEEDS[part][name]})"
                                     for part in needs)
                yield "objectives", (f"got {name} without {' and '.join(needs)}; allowed: {name} "
                                     f"in a study with {added}, or other objectives")

    def _apart(self) -> Iterator[tuple[str, str]]:
        """Trainings that cannot share a cluster."""
        if self.together is None:
            return
        name = self.together.axis
        if name not in self.axes:
            yield "together.axis", (f"got {shorten(name)}; {did_you_mean(name, self.axes)}allowed: "
                                    f"{', '.join(self.axes)}")
        elif self.axes[name].continuous or any(
                path.split(".")[0] == "cluster" for path in self.paths(name)):
            yield "together.axis", (f"got {shorten(name)}; allowed: an axis with values of its own "
                                    "that changes no field of the cluster")
        else:
            labels = [str(choice.label) for choice in self.listed(name)]
            for label in self.together.tokens:
                if label not in labels:
                    yield f"together.tokens.{label}", (
                        f"got {shorten(label)}; {did_you_mean(label, labels)}allowed: values of "
                        f"the axis {name}, such as {', '.join(labels[:5])}")

    def paths(self, name: str) -> set[str]:
        """Paths of the fields that an axis sets, by its name."""
        choices = self.axes[name].choices
        return {name} if choices is None else {path for one in choices.values() for path in one}

    @property
    def names(self) -> tuple[str, ...]:
        """What constraints may name: sections, the number of devices, axes of choices."""
        return (*SECTIONS, "devices", *(name for name in self.axes if name.isidentifier()))

    @property
    def wanted(self) -> tuple[ObjectiveName, ...]:
        """The objectives, or those by default."""
        if self.objectives is not None:
            return self.objectives
        return ("tokens_per_s",) if self.prices is None else ("tokens_per_s", "tokens_per_money")

    def listed(self, name: str) -> tuple[Choice, ...]:
        """All values of an axis, by its name."""
        if name not in self._listed:
            self._listed[name] = self.axes[name].listed(name)
        return self._listed[name]

    @property
    def size(self) -> int:
        """Points of the grid, or samples, before constraints."""
        if self.sample is not None and any(axis.continuous for axis in self.axes.values()):
            return self.sample.count
        whole = math.prod(len(self.listed(name)) for name in self.axes)
        return whole if self.sample is None else min(whole, self.sample.count)

    @property
    def digest(self) -> str:
        """SHA-256 of the whole study and the version of NEST, as 64 hexadecimal digits."""
        data = self.as_dict()
        if self.together is None:
            del data["together"]  # as before there was such a field
        text = json.dumps([VERSION, data], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
