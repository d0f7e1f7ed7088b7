"""The best cluster of a family for its trainings, by branch and bound, with a certificate.

A *design* is a setting of all axes but that of the trainings. Its money and days are sums over its
trainings of known multiples of the seconds of a step, so lower bounds of these bound them
(docs/proofs.md, Lemma 54 (dominating questions)). The design with the least bound is looked
at first, its trainings one after another, each below the seconds that leave it better than the best
design so far. None is better once no bound is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.errors import InfeasibleError, InputError
from nest.evaluation.evaluate import chain_of
from nest.inputs.base import Description
from nest.studies.points import Point, Points, best_first
from nest.studies.proving import SURE, Bounds, LeastSteps
from nest.studies.questions import NEVER, Answered, Outcome, VersionedQuestion, ask
from nest.studies.standing import standing
from nest.studies.study import Study
from nest.units import shorten

Ask = Callable[[VersionedQuestion], Answered]
Floats = NDArray[np.float64]
Want = Literal["money", "days"]
DAY = 86400.0


class Training(Description):
    """A training on the best design."""

    name: str
    point: int
    days: float
    step_time_s: float
    plan: str | None


class Looked(Description):
    """What is known of a design."""

    labels: dict[str, Any]
    devices: int
    money: float | None = None
    """In all; None: not the bound but the value is unknown."""
    days: float | None = None
    bound: float
    """What is wanted is no less."""


class Design(Description):
    """The best cluster of a family, and why no other one is better."""

    want: Want
    best: Looked
    hour: float
    """Money."""
    watts: float
    trainings: tuple[Training, ...]
    designs: int
    """Of the family, less those that constraints or descriptions exclude."""
    excluded: int
    """Whose descriptions are not valid."""
    solved: int
    """All of whose trainings have a plan that is known."""
    refuted: int
    """Of one of whose trainings a search found no plan that is fast enough."""
    pruned: int
    """That totals or designs which are no worse in anything rule out, unasked."""
    questions: int
    """That were asked."""
    next_bound: float | None
    """No other design does better than this; None: no other one can meet the limits."""
    others: tuple[Looked, ...]
    """Designs that were solved, the best first."""


class _Site(NamedTuple):
    """A design: its points, by training, and days of each for a second of a step."""

    points: tuple[Point, ...]
    weights: Floats
    hour: float
    watts: float


class _Family:
    """All designs of a study."""

    def __init__(self, study: Study) -> None:
        study.need_waiting("design")
        names = [*study.axes]
        asked, train = study.together, study.train
        place = names.index(asked.axis) if asked is not None else -1
        if asked is not None:
            tokens = dict(asked.tokens)
        elif train is not None:
            tokens = {"": train.tokens}
        else:
            raise InputError("design: got a study without train and together; allowed: with the "
                             "tokens of its trainings, such as train: {tokens: 15e12}")
        self.names = (*tokens,)
        self.axes = [name for n, name in enumerate(names) if n != place]
        points, found, self.excluded = Points(study), dict[Any, dict[str, Point]](), 0
        for number, choices in best_first(study):
            point = points.point(number, choices)
            if point is None:
                continue
            name = str(point.labels[place]) if asked is not None else ""
            if name in tokens:
                key = tuple(label for n, label in enumerate(point.labels) if n != place)
                found.setdefault(key, {})[name] = point
        self.sites, self.labels = list[_Site](), list[tuple[Any, ...]]()
        for labels, parts in found.items():
            if len(parts) < len(tokens) or any(one.question is None for one in parts.values()):
                self.excluded += 1
                continue
            each = [parts[name] for name in tokens]
            bill = each[0].bill
            weights = []
            for name, point in zip(tokens, each, strict=True):
                job = _question(point).job
                weights.append(tokens[name] / job.tokens / DAY / point.run.productive)
            self.sites.append(_Site(tuple(each), np.array(weights), bill.hour if bill else 0.0,
                                    bill.watts if bill else 0.0))
            self.labels.append(labels)
        if not self.sites:
            raise InputError(f"design: got no valid cluster ({self.excluded:,} are not); allowed: "
                             "a study of which `nest sweep` can ask something")


def _question(point: Point) -> VersionedQuestion:
    assert point.question is not None
    return point.question


class _Designing:
    """Branch and bound over the designs of a family."""

    def __init__(self, family: _Family, study: Study, want: Want, budget: float, answer: Ask,
                 follow: Callable[[int, int], object]) -> None:
        self.family, self.want, self._ask, self._follow = family, want, answer, follow
        self.trainings = len(family.names)
        totals, low, stands = LeastSteps(), [], []
        chains: dict[Any, Any] = {}
        for site in family.sites:
            for point in site.points:
                question = _question(point)
                if question.model not in chains:
                    chains[question.model] = chain_of(question.subject)
                low.append(totals.of(chains[question.model], question))
                stands.append(standing(question))
        self.bounds = Bounds(stands, np.array(low))
        shape = (len(family.sites), self.trainings)
        self.weights = np.array([site.weights for site in family.sites])
        self.hour = np.array([site.hour for site in family.sites])
        limit = study.train.days if study.train is not None and study.train.days else math.inf
        with np.errstate(divide="ignore"):
            most = np.where(self.hour > 0, budget / (self.hour * 24.0), math.inf)
        self.most_days: Floats = np.minimum(limit, most)
        """(D,) days that a design may take."""
        self.known = np.zeros(shape, dtype=np.bool_)
        self.refuted = np.zeros(len(family.sites), dtype=np.bool_)
        self.at_least = np.zeros(len(family.sites))
        """(D,) what is wanted is no less, of those that are refuted; inf: they miss the limits."""
        self.answers: dict[int, Outcome] = {}
        self.best, self.best_value, self.questions = -1, math.inf, 0
        self._touched: set[int] = set()

    def days(self) -> Floats:
        """(D,) no design takes fewer."""
        seconds = np.exp(self.bounds.low).reshape(self.weights.shape)
        found: Floats = (seconds * self.weights).sum(axis=1)
        return found

    def values(self, days: Floats) -> Floats:
        """(D,) what is wanted, for so many days; inf: they are too many."""
        wanted = days * self.hour * 24.0 if self.want == "money" else days
        return np.where(days <= self.most_days * (1.0 + SURE), wanted, math.inf)

    def run(self) -> None:
        """Look at designs until no bound is below the best."""
        while True:
            bound = self.values(self.days())
            bound[self.refuted | self.known.all(axis=1)] = math.inf
            site = int(np.argmin(bound))
            if not bound[site] * (1.0 + SURE) < self.best_value:
                return
            self._look(site)

    def _look(self, site: int) -> None:
        """Ask the most expensive open training of a design."""
        self._touched.add(site)
        low = np.exp(self.bounds.low).reshape(self.weights.shape)[site]
        days = low * self.weights[site]
        training = int(np.argmax(np.where(self.known[site], -1.0, days)))
        rate = self.hour[site] * 24.0 if self.want == "money" else 1.0
        most = min(self.most_days[site], self.best_value / rate if rate else math.inf)
        below = (most - (days.sum() - days[training])) / self.weights[site][training]
        place = site * self.trainings + training
        point = self.family.sites[site].points[training]
        found = self._ask(_question(point).unchecked(below=below * (1.0 + SURE)))
        answer = Outcome.model_validate_json(found.answer)
        self.questions += 1
        if answer.status in ("failed", "limit"):
            raise InputError(f"point {point.number}: {answer.message}")
        if answer.status in ("ok", "near") and answer.step_time_s:
            step = answer.step_time_s
            self.bounds.raise_low(place, math.log(answer.low or step))
            self.bounds.low[place] = math.log(step)
            self.known[site, training], self.answers[place] = True, answer
        else:
            self.refuted[site] = True
            self.at_least[site] = self.best_value if most < self.most_days[site] else math.inf
            low_s = answer.low if answer.status == "proved" else math.inf
            if answer.status == "invalid":
                self.bounds.low[place] = math.inf
            elif low_s:
                self.bounds.raise_low(place, math.log(low_s))
        if self.known[site].all():
            value = float(self.values(self.days())[site])
            if value < self.best_value:
                self.best, self.best_value = site, value
        self._follow(self.questions, len(self.family.sites))

    def looked(self, site: int) -> Looked:
        days = float(self.days()[site])
        bound = float(self.values(self.days())[site])
        solved = bool(self.known[site].all())
        hour = float(self.hour[site])
        return Looked(
            labels=dict(zip(self.family.axes, self.family.labels[site], strict=True)),
            devices=_question(self.family.sites[site].points[0]).cluster.size,
            money=hour * 24.0 * days if solved and hour else None,
            days=days if solved else None, bound=min(bound, NEVER))

    def found(self) -> Design:
        """The best design and its certificate."""
        best, solved = self.best, self.known.all(axis=1)
        bound = self.values(self.days())
        refuted = self.refuted & ~solved
        bound[refuted] = np.maximum(bound, self.at_least)[refuted]
        others = np.delete(bound, best)
        order = sorted(np.flatnonzero(solved).tolist(), key=lambda one: (bound[one], one))
        least = float(others.min()) if len(others) else math.inf
        parts = [self.answers[best * self.trainings + n] for n in range(self.trainings)]
        site = self.family.sites[best]
        return Design(
            want=self.want, best=self.looked(best), hour=site.hour, watts=site.watts,
            trainings=tuple(_training(name, point, part, float(weight)) for (
                name, point, part, weight) in zip(
                self.family.names, site.points, parts, site.weights, strict=True)),
            designs=len(self.family.sites), excluded=self.family.excluded,
            solved=int(solved.sum()), refuted=int(refuted.sum()),
            pruned=len(self.family.sites) - int((solved | refuted).sum()),
            questions=self.questions, next_bound=least if least < math.inf else None,
            others=tuple(map(self.looked, [one for one in order if one != best])))


def _training(name: str, point: Point, answer: Outcome, weight: float) -> Training:
    assert answer.step_time_s is not None
    return Training(name=name or "training", point=point.number, days=weight * answer.step_time_s,
                    step_time_s=answer.step_time_s, plan=answer.plan)


def design(
    study: Study, want: Want = "money", budget: float | None = None, *, answer: Ask = ask,
    follow: Callable[[int, int], object] = lambda asked, designs: None,
) -> Design:
    """The best cluster among all that a study's axes describe.

    Parameters
    ----------
    study : with prices, and ``train`` or ``together``; ``train.days`` limits the days of all
        trainings, one after another.
    want : what is least: ``money`` in all, or ``days``.
    budget : most money in all; None: any.
    answer : how questions are answered, for tests.
    follow : told after each answer, of questions and of designs.

    Raises
    ------
    InputError : the study lacks prices or tokens, or samples its axes; a question failed.
    InfeasibleError : no design meets the limits.
    """
    if want not in ("money", "days"):
        raise InputError(f"want: got {shorten(want)}; allowed: money, days")
    if study.prices is None and (want == "money" or budget is not None):
        raise InputError("design: got a study without prices; allowed: with prices, such as "
                         "prices: {device_hour: 2.5}, or --want days without a budget")
    if budget is not None and not 0 < budget < math.inf:
        raise InputError(f"budget: got {shorten(budget)}; allowed: money above 0")
    search = _Designing(_Family(study), study, want, math.inf if budget is None else budget, answer,
                     follow)
    search.run()
    if search.best < 0:
        limits = [*_limits(study, budget)]
        least = float(search.days().min())
        raise InfeasibleError(
            f"design: none of {len(search.family.sites):,} clusters has plans for all trainings"
            + (f" in {' and '.join(limits)}" if limits else "")
            + (f"; at the least {least:.4g} days are needed" if least < math.inf else
               ": they do not fit"))
    return search.found()


def _limits(study: Study, budget: float | None) -> Iterator[str]:
    if study.train is not None and study.train.days is not None:
        yield f"{study.train.days:g} days"
    if budget is not None:
        currency = study.prices.currency if study.prices is not None else ""
        yield f"{budget:g} {currency}".strip()
