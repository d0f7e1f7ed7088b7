"""Measured runs as evidence: which are like a question, and what they say of its price.

The logarithm of measured over priced seconds is taken as a Gaussian process: all runs of a stack
share an error, and those that are alike share more of it. Its mean and spread at a question give
the range of a price. A question is the nearer to a run, the fewer properties differ.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.inputs import catalog

Array = NDArray[Any]


class Properties(NamedTuple):
    """What of a priced question, or of a measured run, decides how near it is to others."""

    device: str
    experts: bool
    """A mixture of experts."""
    precision: str
    parameters: float
    devices: int
    tp: int
    pp: int
    cp: int
    ep: int
    seq_len: int


class MeasuredConfiguration(NamedTuple):
    """A measured configuration, the median of its runs."""

    group: str
    """Of the table of runs: source of the measurement."""
    model: str
    ratio: float
    """Measured over priced seconds."""
    fitted: bool
    """Of the table that figures are fitted to; other runs took no part in any figure."""
    question: Properties


FAMILIES = (("a100", "a800"), ("h100", "h200", "h800", "h20", "gh200"),
            ("b200", "b300", "gb200", "gb300"), ("mi300", "mi325"), ("mi350", "mi355"),
            ("tpu-v4",), ("tpu-v5",), ("tpu-v6", "tpu-v7"), ("trainium",))
"""Devices of one generation, by the beginnings of their names."""

DIFFERS = {"source": 0.15, "device": 0.4, "family": 1.0, "experts": 1.0,
           "precision": 0.1, "pipeline": 0.3, "model": 0.3}
"""Distance between a question and a run where one of these differs; the source of a new question
is always another one."""
DOUBLED = {"parameters": 0.3, "devices": 0.1, "tp": 0.3, "cp": 0.3, "ep": 0.3, "seq_len": 0.2}
"""Distance for each doubling of one of these.

Both: rounded from the most likely values for 720 measured configurations; source, device and length
of samples (0.05) chosen larger, so that ranges hold for groups that are left out
(docs/accuracy.md#ranges).
"""
NEAR = 1.0
"""A run within this distance is like the question: their errors correlate by 0.37 and more."""
COMMON, SHARED = 0.03, 0.075
"""Spreads of the error that all runs of a stack share, and of the one that runs alike share (of the
same configurations)."""
NOISE = {False: 0.04, True: 0.07}
"""Spread of single configurations without and with experts; of a stack with few runs (the same)."""
WEIGHT = 4.0
"""Configurations of that spread that count beside those of a stack (chosen)."""
OUTLIER = 2.5
"""A misfit counts as this many spreads at the most, and a run that errs by more has a larger spread
of its own, so that a single run neither sets a range nor moves it (chosen)."""
ROUNDS = 2
"""Times that spreads follow misfits (chosen; later ones change little)."""
FARTHEST = 0.6
"""Largest logarithm of a ratio that counts, for the same reason."""
NINE_OF_TEN = 1.645
FEWEST = 3
"""Configurations that figures were not fitted to, from which on these alone say what prices missed
(chosen)."""


def products(precision: str) -> str:
    """A number format, whose products do not depend on whether scales are delayed."""
    return precision.removesuffix("-delayed")


def chip(device: str) -> str:
    """A device without its variant: h100 of h100-sxm and h100-90gb."""
    found = re.match(r"(?:tpu-)?[a-z0-9]+", device.casefold())
    return found[0] if found else device


def family(device: str) -> str:
    """The generation of a device: the first name of its row, else its own name."""
    name = device.casefold()
    return next((row[0] for row in FAMILIES if name.startswith(row)), name)


class Features(NamedTuple):
    """Properties of N questions, as their distances take them."""

    words: Array
    """Of each of ``COMPARED``; shape (5, N)."""
    sizes: Array
    """Logarithms to base 2 of each of ``DOUBLED``; float64, shape (6, N)."""

    @classmethod
    def of(cls, questions: Sequence[Properties]) -> Features:
        """Those of some questions; there may be none."""
        return cls(np.array([[word(q) for q in questions] for word in COMPARED.values()]),
                   np.log2([[getattr(q, name) for q in questions] for name in DOUBLED]))


COMPARED: dict[str, Callable[[Properties], object]] = {
    "device": lambda q: chip(q.device), "family": lambda q: family(q.device),
    "experts": lambda q: str(q.experts), "precision": lambda q: products(q.precision),
    "pipeline": lambda q: str(q.pp > 1)}
"""Words of a question of which each that differs counts as :data:`DIFFERS` says."""


def distances(questions: Features, others: Features) -> Array:
    """How far questions are from others: float64, shape (questions, others)."""
    far = np.zeros((questions.words.shape[1], others.words.shape[1]))
    for name, own, theirs in zip(COMPARED, questions.words, others.words, strict=True):
        far += DIFFERS[name] * (own[:, None] != theirs[None, :])
    for (name, weight), own, theirs in zip(
            DOUBLED.items(), questions.sizes, others.sizes, strict=True):
        apart = np.abs(own[:, None] - theirs[None, :])
        far += weight * apart
        if name == "parameters":
            far += DIFFERS["model"] * (apart > 0.1)
    return far


class Spread(NamedTuple):
    """The error that evidence lets expect, as logarithms of measured over priced seconds."""

    center: float
    half: float
    """Half the width of the range of nine of ten."""


@dataclass(frozen=True)
class Runs:
    """Measured configurations of one stack, prepared for questions.

    Attributes
    ----------
    features : of the configurations; each price asks how far they are.
    inverse : float64, shape (N, N): of the covariance of the configurations.
    weights : float64, shape (N,): inverse times their errors.
    noise : of single configurations, without and with experts.
    """

    measured: tuple[MeasuredConfiguration, ...]
    features: Features
    inverse: Array
    weights: Array
    noise: tuple[float, float]

    @classmethod
    def of(cls, measured: Sequence[MeasuredConfiguration]) -> Runs:
        """Prepare configurations of one stack; there may be none."""
        questions = [one.question for one in measured]
        features = Features.of(questions)
        if not measured:
            none = np.zeros(0)
            return cls((), features, np.zeros((0, 0)), none, (NOISE[False], NOISE[True]))
        errors = np.clip(np.log([one.ratio for one in measured]), -FARTHEST, FARTHEST)
        experts = np.array([q.experts for q in questions], dtype=bool)
        groups = np.array([one.group for one in measured])
        shared = _covariance(distances(features, features)
                             + DIFFERS["source"] * (groups[:, None] != groups[None, :]))
        noise, own = [NOISE[False], NOISE[True]], np.ones(len(questions))
        for _ in range(ROUNDS):
            inverse, weights = _solved(shared, np.where(experts, noise[1], noise[0]) * own, errors)
            # What of each the others do not explain, in spreads of that.
            misfits = np.abs(weights) / np.sqrt(np.diag(inverse)) * own
            own = np.maximum(1.0, misfits / OUTLIER)
            for kind in (False, True):
                each = np.minimum(misfits[experts == kind], OUTLIER) ** 2
                noise[kind] = math.sqrt((noise[kind] ** 2 * each.sum() + WEIGHT * NOISE[kind] ** 2)
                                        / (len(each) + WEIGHT))
        inverse, weights = _solved(shared, np.where(experts, noise[1], noise[0]) * own, errors)
        return cls(tuple(measured), features, inverse, weights, (noise[0], noise[1]))

    def far(self, question: Properties) -> Array:
        """How far the configurations are from a question: float64, shape (N,)."""
        far: Array = distances(Features.of([question]), self.features)[0]
        return far

    def spread(self, question: Properties, far: Array) -> Spread:
        """The error to expect of a question at these distances from the configurations."""
        shared = _covariance(far + DIFFERS["source"])
        left = COMMON**2 + SHARED**2 - float(shared @ self.inverse @ shared)
        own = self.noise[question.experts] ** 2
        return Spread(float(shared @ self.weights), NINE_OF_TEN * math.sqrt(max(left, 0.0) + own))


class Missed(NamedTuple):
    """What the prices of measured configurations missed."""

    error: float
    """Median of priced over measured seconds, less 1, without sign."""
    fitted: bool
    """Figures were fitted to some of the configurations that it is of."""


def missed(measured: Sequence[MeasuredConfiguration], apart: bool = True) -> Missed:
    """What prices missed; ``apart``: of new configurations alone, if these are ``FEWEST`` or more.
    """
    new = [one for one in measured if not one.fitted]
    told = new if apart and len(new) >= FEWEST else measured
    return Missed(statistics.median(abs(1.0 / one.ratio - 1.0) for one in told), told is not new)


def _solved(shared: Array, noise: Array, errors: Array) -> tuple[Array, Array]:
    """The inverse of a covariance with these spreads of single runs, and that times errors."""
    inverse = np.linalg.inv(shared + np.diag(noise**2))
    return inverse, inverse @ errors


def _covariance(far: Array) -> Array:
    return COMMON**2 + SHARED**2 * np.exp(-far)


@cache
def runs_of(stack: str) -> Runs:
    """The runs of the catalog that speak for a stack, by the name in its ``runs``."""
    return Runs.of([_measured(row) for row in catalog.evidence() if row["stack"] == stack])


def _measured(row: dict[str, str]) -> MeasuredConfiguration:
    known = Properties(
        row["device"], row["experts"] == "1", row["precision"], float(row["parameters"]),
        *(int(row[name]) for name in ("devices", "tp", "pp", "cp", "ep", "seq_len")))
    return MeasuredConfiguration(
        row["group"], row["model"], float(row["ratio"]), row["fitted"] == "1", known)
