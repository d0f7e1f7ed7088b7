"""The points of a study: all combinations of its axes, or samples of them, less the excluded."""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nest.errors import InputError
from nest.evaluation.evaluate import chain_of
from nest.model import Chain
from nest.replanning.renewal import WHOLE, Expected, expected
from nest.studies.axes import Choice, Expression
from nest.studies.questions import Resolver, VersionedQuestion
from nest.studies.study import SECTIONS, Bill, Sample, Study, bill
from nest.units import parse_bandwidth, parse_bytes, parse_seconds

BETTER: Mapping[str, tuple[Callable[[Any], float], int]] = {
    "bandwidth": (parse_bandwidth, 1), "memory": (parse_bytes, 1), "latency": (parse_seconds, -1),
    "oversubscription": (float, -1),
}
"""Fields of a cluster, how they are read, and whether more of them is better (1) or worse (-1)."""


class Point(NamedTuple):
    """A combination of the axes, and what is asked there."""

    number: int
    """Place among all combinations, from 0 on; excluded ones count."""
    labels: tuple[Any, ...]
    """Values of the axes as tables show them."""
    question: VersionedQuestion | None
    """None: the descriptions are not valid there."""
    key: str | None
    """Of the question."""
    problem: str | None
    """Why there is no question."""
    bill: Bill | None
    """What the cluster costs, with the spares of ``run``; None: no price list, or no question."""
    run: Expected = WHOLE
    """What failures leave of the time, and the spares beside."""


def combinations(study: Study) -> Iterator[tuple[int, tuple[Choice, ...]]]:
    """All points, numbered, before constraints; the last axis changes fastest."""
    if study.sample is None:
        listed = [study.listed(name) for name in study.axes]
        yield from enumerate(itertools.product(*listed))
        return
    seen = set()
    for number, choices in enumerate(_samples(study, study.sample)):
        labels = tuple(choice.label for choice in choices)
        if labels not in seen:
            seen.add(labels)
            yield number, choices


def best_first(study: Study) -> Iterator[tuple[int, tuple[Choice, ...]]]:
    """The same points in the order in which they are asked about.

    Of the axes in ``BETTER`` the best values come first: planners know from them much of what comes
    behind (:mod:`nest.search.lower_bounds`).
    """
    if study.sample is not None:
        yield from combinations(study)
        return
    listed = [study.listed(name) for name in study.axes]
    orders = [_order(name, choices) for name, choices in zip(study.axes, listed, strict=True)]
    for places in itertools.product(*orders):
        number = 0
        for place, choices in zip(places, listed, strict=True):
            number = number * len(choices) + place
        yield number, tuple(choices[place]
                            for place, choices in zip(places, listed, strict=True))


def _order(name: str, choices: Sequence[Choice]) -> Sequence[int]:
    """Places of the values of an axis, the best first where that is known."""
    read, sign = BETTER.get(name.rpartition(".")[2], (None, 0))
    if read is None or not name.startswith("cluster."):
        return range(len(choices))
    try:
        figures = [sign * read(choice.fields[name]) for choice in choices]
    except (KeyError, ValueError, TypeError):
        return range(len(choices))
    return sorted(range(len(choices)), key=lambda place: -figures[place])


def _samples(study: Study, sample: Sample) -> Iterator[tuple[Choice, ...]]:
    names = [*study.axes]
    lengths = [len(study.listed(name)) for name in names]
    whole = math.prod(lengths)
    if sample.method == "random" and whole:
        for number in _chosen(random.Random(sample.seed), whole, min(sample.count, whole)):
            places = []
            for length in reversed(lengths):
                number, place = divmod(number, length)
                places.append(place)
            yield tuple(study.listed(name)[place]
                        for name, place in zip(names, reversed(places), strict=True))
        return
    for shares in _shares(sample, len(names)):
        yield tuple(
            study.listed(name)[int(share * length)] if length else study.axes[name].at(name, share)
            for name, length, share in zip(names, lengths, shares, strict=True))


def _chosen(numbers: random.Random, whole: int, count: int) -> Sequence[int]:
    """Different numbers below ``whole``."""
    if whole <= sys.maxsize:
        return numbers.sample(range(whole), count)
    found = dict[int, None]()  # `sample` takes no larger range
    while len(found) < count:
        found[numbers.randrange(whole)] = None
    return [*found]


def _shares(sample: Sample, axes: int) -> Iterator[Sequence[float]]:
    """Samples of the unit cube."""
    if sample.method == "random":
        numbers = random.Random(sample.seed)
        for _ in range(sample.count):
            yield [numbers.random() for _ in range(axes)]
        return
    from scipy.stats.qmc import LatinHypercube

    for row in LatinHypercube(axes, rng=sample.seed).random(sample.count):
        yield row.tolist()


class Points:
    """Turns combinations of a study into points.

    Parameters
    ----------
    study : whose constraints and prices hold.
    """

    def __init__(self, study: Study) -> None:
        self._study, self._resolver = study, Resolver(study)
        self._chains: dict[Any, Chain] = {}
        self._constraints = [Expression(text, study.names) for text in study.constraints]

    def point(self, number: int, choices: tuple[Choice, ...]) -> Point | None:
        """What is asked at a combination; None: a constraint excludes it."""
        labels = tuple(choice.label for choice in choices)
        try:
            question, key = self._resolver.question(choices)
            names = {**{name: getattr(question, name) for name in SECTIONS},
                     "devices": question.cluster.size,
                     **dict(zip(self._study.axes, labels, strict=True))}
            if not all(one.value(names) for one in self._constraints):
                return None
            prices = self._study.prices
            costs = None if prices is None else bill(
                prices, {**names, "cluster": question.cluster})  # an axis may have its name
            run = self._run(question)
            if costs is not None:
                costs = costs._replace(hour=costs.hour * (1.0 + run.spares))
        except InputError as error:
            return Point(number, labels, None, None, " ".join(str(error).split())[:4000], None)
        return Point(number, labels, question, key, None, costs, run)

    def _run(self, question: VersionedQuestion) -> Expected:
        """What failures leave of the time at a point."""
        train = self._study.train
        if train is None or train.failures is None:
            return WHOLE._replace(productive=(train and train.productive) or 1.0)
        if question.model not in self._chains:
            self._chains[question.model] = chain_of(question.subject)
        return expected(train.failures, question.cluster, question.job,
                        self._chains[question.model])
