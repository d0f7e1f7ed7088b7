"""The least value of an axis for which a goal holds, and what a step takes along an axis.

Both ask few of the values: what no plan of one takes less than holds for all that it dominates
(docs/proofs.md, Lemma 54 (dominating questions)), and a step between two equal ones is known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from nest.errors import InputError, did_you_mean
from nest.evaluation.evaluate import chain_of
from nest.inputs.base import Description
from nest.search.question_bound import least_seconds
from nest.studies.axes import quantity
from nest.studies.points import BETTER, Point, Points, combinations
from nest.studies.proving import SURE
from nest.studies.questions import NEVER, Answered, Outcome, VersionedQuestion, ask
from nest.studies.results import OBJECTIVES, figures_at, number_of
from nest.studies.standing import Standing, standing, wider
from nest.studies.study import ObjectiveName, Study
from nest.units import shorten

Ask = Callable[[VersionedQuestion], Answered]
_GOAL = re.compile(r"\s*(\w+)\s*(<=|>=)\s*(\S.*?)\s*", re.ASCII)


class Goal(NamedTuple):
    """An objective that a plan has to reach."""

    objective: ObjectiveName
    value: float

    @classmethod
    def of(cls, text: str, study: Study) -> Goal:
        """Read ``tokens_per_s >= 1e6`` or ``days <= 30``.

        Raises
        ------
        InputError : no goal, or an objective that the study does not have.
        """
        found = _GOAL.fullmatch(text)
        value = None if found is None else number_of(_number(found[3]))
        if found is None or value is None or not 0 < value < math.inf:
            raise InputError(f"goal: got {shorten(text)}; allowed: an objective and a number above "
                             'it, such as "tokens_per_s >= 1e6" or "days <= 30"')
        name = found[1]
        if name not in OBJECTIVES:
            raise InputError(f"goal: got {shorten(name)}; {did_you_mean(name, OBJECTIVES)}allowed: "
                             f"{', '.join(OBJECTIVES)}")
        known = OBJECTIVES[cast(ObjectiveName, name)]
        if known.most != (found[2] == ">="):
            raise InputError(f"goal: got {shorten(text)}; allowed: {name} "
                             f"{'>=' if known.most else '<='} {found[3]}")
        return cls(cast(ObjectiveName, name), value)

    def seconds(self, point: Point, study: Study) -> float:
        """Seconds of a step up to which a point reaches it; 0: never.

        Raises
        ------
        InputError : the study says too little for the objective.
        """
        study.need_waiting("goal")
        assert point.question is not None
        job = point.question.job
        chain = chain_of(point.question.subject)
        from nest.costs.compute import peak_flops
        from nest.model import model_flop

        cluster = point.question.cluster
        peak = cluster.size * peak_flops(cluster.device, job.precision)
        answer = Outcome(status="ok", step_time_s=1.0, tokens_per_s=job.tokens,
                         mfu=model_flop(chain, job.seq_len, job.samples)
                         * job.global_batch / peak)
        value = getattr(figures_at(answer, point, study.train), self.objective)
        if value is None:
            raise InputError(f"goal: got {self.objective} of a study without what it needs; "
                             "allowed: with prices for money, and train for days")
        if self.objective == "devices":
            return math.inf if value <= self.value else 0.0
        most = OBJECTIVES[self.objective].most
        return float(value / self.value if most else self.value / value)


class AxisValue(Description):
    """What is known of a step at a value of an axis."""

    value: Any
    low_s: float
    high_s: float
    asked: bool = False
    """False: both follow from other values."""
    holds: bool | None = None
    """Whether the goal holds; None: without a goal."""
    elasticity: float | None = None
    """Per cent that a step gets longer where the axis grows by 1 %, to the next value that was
    asked; None: it was not asked, or nothing fits."""


class AxisLine(Description):
    """One setting of the other axes."""

    labels: dict[str, Any]
    least: Any = None
    """Least value for which the goal holds; None: for none."""
    values: tuple[AxisValue, ...]
    """From the best on."""


class _Known:
    """Values of an axis at one setting of the others, from the least on, and their bounds."""

    def __init__(self, points: Sequence[Point], answer: Ask) -> None:
        self.points, self._ask = points, answer
        self._standing = [standing(self.question(n)) for n in range(len(points))]
        self.low = [self._total(n) for n in range(len(points))]
        self.high = [math.inf] * len(points)
        self.asked = [False] * len(points)

    def question(self, number: int) -> VersionedQuestion:
        found = self.points[number].question
        assert found is not None
        return found

    def _total(self, number: int) -> float:
        one = self.question(number)
        return least_seconds(chain_of(one.subject), one.cluster, one.job) / (1.0 + SURE)

    def ask(self, number: int, below: float = math.inf) -> None:
        """Ask for a plan below a limit, and note what follows for the other values.

        Raises
        ------
        InputError : the question is not valid, or the planner failed.
        """
        limit = below * (1.0 + SURE)
        found = self._ask(self.question(number).unchecked(below=limit))
        answer = Outcome.model_validate_json(found.answer)
        self.asked[number] = True
        if answer.status in ("invalid", "failed", "limit"):
            raise InputError(f"point {self.points[number].number}: {answer.message}")
        step = answer.step_time_s
        low = math.inf if answer.status == "infeasible" else (
            answer.low if answer.low is not None else step or 0.0)
        for other in range(len(self.points)):
            if other == number or self._dominates(number, other):
                self.low[other] = max(self.low[other], low)
            if step is not None and (other == number or self._dominates(other, number)):
                self.high[other] = min(self.high[other], step)

    def _dominates(self, one: int, other: int) -> bool:
        first, second = self._standing[one], self._standing[other]
        return dominates(first, second)

    def value(self, number: int, axis: int, holds: bool | None) -> AxisValue:
        return AxisValue(value=self.points[number].labels[axis], low_s=min(self.low[number], NEVER),
                     high_s=min(self.high[number], NEVER), asked=self.asked[number], holds=holds)


def dominates(one: Standing, other: Standing) -> bool:
    """Whether no plan of another question takes less than the best of one."""
    return one.same == other.same and wider(one.space, other.space) and all(
        a >= b for a, b in zip(one.figures, other.figures, strict=True))


def least(study: Study, axis: str, goal: Goal, answer: Ask = ask) -> list[AxisLine]:
    """The least value of an axis for which a goal holds, with proof, at each setting of the others.

    The least bandwidth, memory or number of devices; the most latency or oversubscription. Values
    below it are refuted: by totals, by a value that dominates them, or by a search that finds no
    plan fast enough.

    Parameters
    ----------
    answer : how questions are answered, for tests.

    Raises
    ------
    InputError : no such axis, one without numbers, or a goal that the study cannot tell.
    """
    found = []
    for labels, points, place in _lines(study, axis):
        known, limits = _Known(points, answer), [goal.seconds(one, study) for one in points]
        fails = [low > limit * (1.0 + SURE) for low, limit in zip(known.low, limits, strict=True)]
        hit = len(points)
        while left := [n for n in range(hit) if not fails[n]]:
            number = left[len(left) // 2]
            known.ask(number, limits[number])
            if known.high[number] <= limits[number] * (1.0 + SURE):
                hit = number
            else:
                fails[number] = True
            fails = [fail or low >= limit * (1.0 + SURE / 2) for fail, low, limit in zip(
                fails, known.low, limits, strict=True)]
        found.append(AxisLine(
            labels=labels, least=points[hit].labels[place] if hit < len(points) else None,
            values=tuple(known.value(n, place, True if n == hit else None if n > hit else False)
                         for n in range(len(points)))))
    return found


def curve(study: Study, axis: str, within: float = 0.0, answer: Ask = ask) -> list[AxisLine]:
    """What a step takes along an axis, with its shadow price, at each setting of the other axes.

    Parameters
    ----------
    within : values between two whose steps differ by at most this share are not asked; where no
        value dominates its neighbour, all are.
    answer : how questions are answered, for tests.

    Raises
    ------
    InputError : as :func:`least`.
    """
    found = []
    for labels, points, place in _lines(study, axis):
        known = _Known(points, answer)
        for number in dict.fromkeys((len(points) - 1, 0)):
            known.ask(number)
        while left := [n for n in range(len(points))
                       if known.high[n] > known.low[n] * (1.0 + within + SURE)
                       and not known.asked[n]]:
            known.ask(left[len(left) // 2])
        values = [known.value(n, place, None) for n in range(len(points))]
        asked = [n for n in range(len(points)) if known.asked[n]]
        for n, behind in zip(asked, asked[1:], strict=False):
            values[n] = values[n].unchecked(elasticity=_elasticity(values[n], values[behind]))
        found.append(AxisLine(labels=labels, values=tuple(values)))
    return found


def _elasticity(one: AxisValue, behind: AxisValue) -> float | None:
    x, y = number_of(one.value), number_of(behind.value)
    if not x or not y or min(x, y) <= 0 or x == y or max(one.high_s, behind.high_s) >= NEVER:
        return None
    return math.log(behind.high_s / one.high_s) / math.log(y / x)


def _lines(study: Study, axis: str) -> Iterator[tuple[dict[str, Any], list[Point], int]]:
    """Points along an axis, those that need least first, at each setting of the others."""
    names = [*study.axes]
    if axis not in names:
        raise InputError(f"axis: got {shorten(axis)}; {did_you_mean(axis, names)}allowed: "
                         f"{', '.join(names)}")
    place, points = names.index(axis), Points(study)
    lines: dict[tuple[Any, ...], list[Point]] = {}
    for number, choices in combinations(study):
        point = points.point(number, choices)
        if point is not None and point.question is not None:
            others = tuple(label for n, label in enumerate(point.labels) if n != place)
            lines.setdefault(others, []).append(point)
    sign = BETTER.get(axis.rpartition(".")[2], (None, 1))[1]

    def need(point: Point) -> float:
        value = number_of(point.labels[place])
        if value is None:
            raise InputError(f"axis: got {shorten(axis)} with the value "
                             f"{shorten(point.labels[place])}; allowed: an axis of numbers")
        return sign * value

    for others, found in lines.items():
        labels = dict(zip((name for name in names if name != axis), others, strict=True))
        yield labels, sorted(found, key=need), place


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return quantity(text)


