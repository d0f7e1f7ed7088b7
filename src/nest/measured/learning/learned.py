"""`nest.learned/1`: the runs that a stack learned from, and the stack with what they taught."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from nest.errors import InputError
from nest.evaluation.evidence import NINE_OF_TEN
from nest.inputs.arguments import need_path
from nest.inputs.base import Written
from nest.inputs.files import read_description
from nest.inputs.job import Calibration, Factors, Stack
from nest.inputs.space import Precision
from nest.measured.learning.observations import Observation
from nest.measured.learning.posterior import BYTES, SECONDS, Posterior

SCHEMA = "nest.learned/1"
NINE_BELOW = 1.2816
"""Standard deviations that nine of ten lie below."""
FOLDS = 40
"""Parts that many runs are left out in, one after another."""
TELLS = 0.9
"""A factor is determined where its doubt is below this share of the prior's."""
CEILING = 0.5
"""Largest memory margin that learning asks for."""


class LearnedFigure(Written):
    """A factor as runs determine it."""

    value: float = Field(description="seconds or bytes over those priced")
    doubt: float = Field(description="nine of ten lie within this factor up and down")
    told_by: str | None = Field(description="run that determines it most; null: none does")


class LeftOutRun(NamedTuple):
    """A run priced by what the others taught."""

    name: str
    verdict: str
    seconds: float | None
    """Measured."""
    priced: float
    """Before anything was learned."""
    expected: float
    low: float
    high: float
    fits: float
    """Chance to fit."""


class Learned(Written):
    """What runs taught of one software on one kind of cluster."""

    schema_: Annotated[str, Field(alias="schema", pattern=r"^nest\.learned/1(\.\d+)?$")] = SCHEMA
    stack: Stack = Field(description="before anything was learned")
    devices: tuple[str, ...] = Field(min_length=1, description="types of device that ran")
    precisions: tuple[Precision, ...] = Field(min_length=1)
    experts: bool = Field(description="mixtures of experts ran")
    observations: tuple[Observation, ...] = Field(min_length=1)
    figures: dict[str, LearnedFigure] = Field(
        default_factory=dict, description="made from the observations; not read")

    @classmethod
    def of(
        cls, observations: Sequence[Observation], stack: Stack, devices: Iterable[str],
        precisions: Iterable[Precision], experts: bool,
    ) -> Learned:
        """Learn from runs of one stack.

        Parameters
        ----------
        observations : runs beside their prices with this stack; at least one has a verdict.
        devices, precisions : of the runs.
        experts : whether mixtures of experts ran.

        Raises
        ------
        InputError : nothing was measured.
        """
        own = tuple(one for one in observations if one.verdict is not None)
        if not own:
            raise InputError("runs: got none that ran or ran out of memory; needed: at least one")
        found = cls(stack=stack, devices=tuple(devices), precisions=tuple(precisions),
                    experts=experts, observations=own)
        return found.model_copy(update={"figures": _figures(found)})

    def as_data(self) -> dict[str, Any]:
        """The document as plain data, without fields that are as by default."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True) | {
            "schema": self.schema_}

    @cached_property
    def posterior(self) -> Posterior:
        """What the observations determine."""
        return Posterior(self.observations)

    @cached_property
    def left_out(self) -> tuple[LeftOutRun, ...]:
        """Each run, priced without it; many are left out in parts."""
        own = self.observations
        folds = min(FOLDS, len(own))
        found: dict[int, LeftOutRun] = {}
        for fold in range(folds):
            here = range(fold, len(own), folds)
            rest = [one for n, one in enumerate(own) if n % folds != fold]
            at = Posterior(rest).forecast([own[n] for n in here])
            for i, n in enumerate(here):
                found[n] = LeftOutRun(
                    own[n].name, own[n].verdict or "", own[n].seconds, own[n].step_s,
                    *(float(column[i]) for column in (at.seconds, at.low, at.high, at.fits)))
        return tuple(found[n] for n in sorted(found))

    @property
    def margin(self) -> float:
        """Share of a device's memory to keep free, so that nine of ten such plans fit."""
        at = self.posterior.forecast(self.observations)
        doubt = float(np.median(at.doubt))
        return round(min(CEILING, 1.0 - math.exp(-NINE_BELOW * doubt)), 3)

    def taught(self) -> Stack:
        """The stack with what was learned: factors on its costs, and the range of its prices."""
        factors = {name: min(100.0, max(0.01, value))
                   for name, (value, _) in self.posterior.factors().items()}
        misses = [math.log(one.seconds / one.expected) for one in self.left_out if one.seconds]
        widths = [math.log(one.high / one.expected) for one in self.left_out if one.seconds]
        half = max(float(np.median(widths)) if widths else NINE_OF_TEN * max(SECONDS.values()),
                   float(np.quantile(np.abs(misses), 0.9)) if misses else 0.0)
        known = Calibration(
            configurations=len(self.observations), low=math.exp(-half), high=math.exp(half),
            expert_low=math.exp(-half) if self.experts else None,
            expert_high=math.exp(half) if self.experts else None, devices=self.devices,
            most_devices=round(2.0 ** max(one.sizes[1] for one in self.observations)),
            precisions=self.precisions, experts=self.experts,
            pipelines=any(one.degrees[1] > 0.0 for one in self.observations))
        return self.stack.replace(learned=Factors(**factors), calibration=known)


def _figures(found: Learned) -> dict[str, LearnedFigure]:
    """Each factor with the run without which it is least known."""
    prior, own = Posterior().factors(), found.posterior.factors()
    without: dict[str, dict[str, tuple[float, float]]] = {}
    if len(found.observations) <= FOLDS:
        for one in found.observations:
            rest = [other for other in found.observations if other is not one]
            without[one.name] = Posterior(rest).factors()
    figures = {}
    for name in (*SECONDS, *BYTES):
        value, doubt = own[name]
        told = math.log(doubt) < TELLS * math.log(prior[name][1])
        most = max(without, key=lambda run: without[run][name][1], default=None)
        figures[name] = LearnedFigure(value=round(value, 4), doubt=round(doubt, 4),
                                      told_by=most if told else None)
    return figures


def load_learned(path: str | os.PathLike[str]) -> Learned:
    """Read what `nest learn` wrote.

    Raises
    ------
    InputError : the file cannot be read, or is none.
    """
    need_path("path", path)
    data: Any = read_description(path)
    return Learned.parse(data, os.fspath(path))
