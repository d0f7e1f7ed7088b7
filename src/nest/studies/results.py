"""Answers of a study: figures, Pareto front, best of each group, effect of each axis."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nest.studies.questions import STATUSES, About, Outcome, Proof
from nest.studies.store import Store, Stored
from nest.studies.study import ObjectiveName, Study, Train
from nest.units import shorten

if TYPE_CHECKING:
    from nest.studies.points import Point


class Objective(NamedTuple):
    """A figure, and its direction."""

    title: str
    most: bool
    """The more the better."""
    decimals: int = 3
    """Digits in tables."""


OBJECTIVES: Mapping[ObjectiveName, Objective] = {
    "tokens_per_s": Objective("tokens/s", True),
    "tokens_per_day": Objective("tokens/day", True),
    "tokens_per_money": Objective("tokens per {currency}", True),
    "tokens_per_joule": Objective("tokens per joule", True),
    "mfu": Objective("MFU", True),
    "step_time_s": Objective("step (s)", False),
    "devices": Objective("devices", False),
    "days": Objective("days", False),
    "money": Objective("{currency} in all", False),
}


class Figures(NamedTuple):
    """All figures of a plan; None: what they need is not given."""

    tokens_per_s: float
    step_time_s: float
    mfu: float
    devices: int
    money_per_hour: float | None
    watts: float | None
    tokens_per_money: float | None
    tokens_per_joule: float | None
    days: float | None
    money: float | None
    days_low: float | None
    """In 9 of 10 cases, by the expected range of the step time; None: it has none."""
    days_high: float | None
    money_low: float | None
    money_high: float | None
    tokens_per_day: float
    """Of days in which `productive` of the time trains."""
    productive: float
    """Share of the time that trains."""
    spares: int
    """Spare devices."""
    in_time: bool
    """The training ends in the days it may take; True without such."""


def figures(answer: Outcome, about: About, train: Train | None) -> Figures:
    """Figures of an answer that has a plan.

    Parameters
    ----------
    about : devices, and money for an hour and power of the cluster; None or 0: not known.
    train : the whole training.

    Raises
    ------
    ValueError : the answer has no plan.
    """
    speed, step, mfu = answer.tokens_per_s, answer.step_time_s, answer.mfu
    if not speed or step is None or mfu is None:
        raise ValueError(f"got an answer {answer.status} without a plan")
    watts, productive = about.watts, answer.productive or about.productive
    spares = about.spares if answer.spares is None else answer.spares
    hour = about.hour and about.hour * (1.0 + spares) / (1.0 + about.spares)
    days = None if train is None else train.tokens / speed / productive / 86400.0
    spent = [None if days is None or found is None else days * found / step
             for found in (step, answer.low_s, answer.high_s)]
    paid = [hour * 24.0 * one if hour and one is not None else None for one in spent]
    return Figures(
        tokens_per_s=speed, step_time_s=step, mfu=mfu, devices=about.devices,
        money_per_hour=hour, watts=watts,
        tokens_per_money=speed * 3600.0 / hour if hour else None,
        tokens_per_joule=speed / watts if watts else None, days=days,
        money=paid[0], days_low=spent[1], days_high=spent[2], money_low=paid[1],
        money_high=paid[2], tokens_per_day=speed * 86400.0 * productive,
        productive=productive, spares=round(spares * about.devices),
        in_time=train is None or train.days is None or days is None or days <= train.days)


def figures_at(answer: Outcome, point: Point, train: Train | None) -> Figures:
    """Figures of an answer at a point that is not stored."""
    assert point.question is not None
    hour, watts, _ = point.bill or (None, None, 0)
    return figures(answer, About(devices=point.question.cluster.size, hour=hour, watts=watts,
                                 **point.run._asdict()), train)


# ---------------------------------------------------------------- results


FEWEST = 3
"""Points from which a rank correlation is given."""
WITH_PLAN = ("ok", "near")
"""Statuses of points that have a plan."""
MOST_TOLD = 1000
"""Reasons of a status that are told apart (chosen): a million points may have as many."""
MOST_REASONS = 5
"""Reasons that a report names (chosen)."""
LONGEST = 400
"""Characters of a reason (chosen)."""


class Row(NamedTuple):
    """A point of a study, with its answer."""

    number: int
    labels: tuple[Any, ...]
    question: str | None
    status: str
    """Of :data:`nest.studies.questions.STATUSES`, or ``open``: not asked yet."""
    message: str | None
    plan: str | None
    """Degrees, a line."""
    peak_memory_bytes: float | None
    optimal: bool | None
    gap: float | None
    seconds: float
    """Of a processor."""
    figures: Figures | None
    """None: there is no plan."""
    proof: Proof | None = None
    """Why it was not asked."""


class Light(NamedTuple):
    """What is kept of a row with a plan while others are read."""

    number: int
    labels: tuple[Any, ...]
    values: tuple[float, ...]
    """One for each objective, turned so that less is better; infinite where it is not known."""


class Effect(NamedTuple):
    """How an objective changes along an axis, all else equal."""

    axis: str
    objective: ObjectiveName
    ratio: float | None
    """Geometric mean, over all settings of the other axes, of the best value over the worst; None:
    no two points differ in this axis alone."""
    elasticity: float | None
    """Per cent that the objective grows when the axis grows by 1 %, between neighbours; None: no
    numbers."""
    rank: float | None
    """Spearman's rank correlation over all points, -1 to 1; None: no numbers, or a constant."""
    better: Any
    """Value at which the geometric mean of the objective, of points that differ in this axis alone,
    is best; None: no such points."""


class Reason(NamedTuple):
    """Why points have no plan."""

    status: str
    message: str
    """As the rows have it, its end cut off where it is very long."""
    points: int
    """How many."""


class Shared(NamedTuple):
    """A cluster on which several trainings run one after another."""

    labels: tuple[Any, ...]
    """Of all axes but that of the trainings."""
    numbers: tuple[int, ...]
    """Points of the trainings."""
    days: float
    money: float | None
    in_time: bool


class Results:
    """Answers of a study, read from its store as they are needed.

    Parameters
    ----------
    study : says what is wanted.
    store : stays open as long as rows are read.
    """

    def __init__(self, study: Study, store: Store) -> None:
        self.study, self._store, self._digest = study, store, study.digest
        self.counts: Counter[str] = Counter()
        """Points by status."""
        self.late: list[int] = []
        """Numbers of the points whose plans take longer than the training may."""
        self.seconds = 0.0
        """Of processors, of all answers."""
        self.within = 0.0
        """Share by which points that were not asked may be better than known ones."""
        self.light: list[Light] = []
        """Plans in the race."""
        self.all_reasons = True
        """There are not more than are told apart."""
        self._messages: dict[str, Counter[str]] = {}  # points by status and message
        for row in self.rows():
            self.counts[row.status] += 1
            self._note(row)
            self.seconds += row.seconds
            if row.proof is not None:
                self.within = max(self.within, row.proof.within)
            if row.figures is not None and not row.figures.in_time:
                self.late.append(row.number)
            elif row.figures is not None:
                self.light.append(Light(row.number, row.labels, self._values(row.figures)))
        self._front: frozenset[int] | None = None

    def _note(self, row: Row) -> None:
        """Count the message of a row."""
        if row.message is None:
            return
        known = self._messages.setdefault(row.status, Counter())
        cut = len(row.message) > LONGEST
        text = f"{row.message[:LONGEST - 3]}..." if cut else row.message
        if text in known or len(known) < MOST_TOLD:
            known[text] += 1
        else:
            self.all_reasons = False

    @property
    def reasons(self) -> list[Reason]:
        """Why points have no plan, the most frequent reason first.

        That nothing fits is an answer like a plan: it comes last, and only where there is no plan.
        """
        found = [Reason(status, message, points) for status, known in self._messages.items()
                 if status not in ("proved", *WITH_PLAN) and (
                     status != "infeasible" or not self.planned)
                 for message, points in known.items()]
        return sorted(found, key=lambda one: (one.status == "infeasible", -one.points))

    @property
    def planned(self) -> int:
        """Points that have a plan."""
        return sum(self.counts[status] for status in WITH_PLAN)

    @property
    def doubts(self) -> Mapping[str, int]:
        """Why prices may be far off, and of how many points."""
        return sum((Counter(self._messages.get(status, {})) for status in WITH_PLAN), Counter())

    @property
    def no_question(self) -> bool:
        """There are points, and all are invalid."""
        return 0 < self.counts["invalid"] == self.counts.total()

    def rows(self) -> Iterator[Row]:
        """All points in order, one after the other."""
        for stored in self._store.rows(self._digest):
            with self._store.reading(f"point {stored.number}"):
                row = self._row(stored)
            yield row

    def _row(self, stored: Stored) -> Row:
        about = About.parse(json.loads(stored.about), "about")
        answer = None if stored.answer is None else Outcome.parse(json.loads(stored.answer),
                                                                 "answer")
        labels = tuple(map(_hashable, json.loads(stored.labels)))
        proof = about.proof if stored.status is None else None
        status = ("invalid" if about.problem is not None else "proved" if proof is not None
                  else stored.status or "open")
        if len(labels) != len(self.study.axes) or status not in (*STATUSES, "open"):
            raise ValueError(f"got {len(labels)} labels and the status {shorten(status)}")
        known = answer or Outcome(status="failed")
        return Row(
            stored.number, labels, stored.question, status,
            about.problem or (known.message if proof is None else str(proof)),
            known.plan, known.peak_memory_bytes, known.optimal, known.gap, known.seconds,
            figures(known, about, self.study.train) if status in WITH_PLAN else None, proof)

    @property
    def shared(self) -> list[Shared]:
        """Clusters on which all trainings of ``together`` have a plan, the cheapest first."""
        study, asked = self.study, self.study.together
        if asked is None:
            return []
        place = [*study.axes].index(asked.axis)
        rows: dict[tuple[Any, ...], list[tuple[int, float, float | None]]] = {}
        for row in self.rows():
            tokens = asked.tokens.get(str(row.labels[place]))
            if row.figures is None or tokens is None:
                continue
            days = tokens / row.figures.tokens_per_s / row.figures.productive / 86400.0
            hour = row.figures.money_per_hour
            rows.setdefault(row.labels[:place] + row.labels[place + 1:], []).append(
                (row.number, days, hour * 24.0 * days if hour else None))
        latest = study.train.days if study.train else None
        found = []
        for labels, parts in rows.items():
            if len(parts) == len(asked.tokens):
                whole = math.fsum(days for _, days, _ in parts)
                money = [spent for _, _, spent in parts if spent is not None]
                found.append(Shared(
                    labels, tuple(number for number, _, _ in parts), whole,
                    math.fsum(money) if len(money) == len(parts) else None,
                    latest is None or whole <= latest))
        return sorted(found, key=lambda one: (not one.in_time, one.money or 0.0, one.days))

    def _values(self, found: Figures) -> tuple[float, ...]:
        values = []
        for name in self.study.wanted:
            value = getattr(found, name)
            values.append(math.inf if value is None else
                          -value if OBJECTIVES[name].most else value)
        return tuple(values)

    def group(self, labels: Sequence[Any]) -> tuple[Any, ...]:
        """The group of a point: its values on the axes of the study's ``groups``."""
        names = [*self.study.axes]
        return tuple(labels[names.index(name)] for name in self.study.groups)

    @property
    def groups(self) -> dict[tuple[Any, ...], list[Light]]:
        """Plans in the race, by group, in order of first occurrence."""
        found: dict[tuple[Any, ...], list[Light]] = {}
        for one in self.light:
            found.setdefault(self.group(one.labels), []).append(one)
        return found

    @property
    def front(self) -> frozenset[int]:
        """Numbers of the points that no other of their group beats in one objective without being
        worse in another; of equals the first."""
        if self._front is None:
            self._front = frozenset(
                number for group in self.groups.values() for number in _undominated(group))
        return self._front

    def best(self, objective: ObjectiveName) -> dict[tuple[Any, ...], Light]:
        """The best point of each group by an objective; of equals the first."""
        place = self.study.wanted.index(objective)
        return {group: min(found, key=lambda one: (one.values[place], one.number))
                for group, found in self.groups.items()
                if any(one.values[place] < math.inf for one in found)}

    def chosen(self, numbers: frozenset[int] | set[int]) -> list[Row]:
        """Rows of some points, in order."""
        return [row for row in self.rows() if row.number in numbers]

    def value(self, one: Light, objective: ObjectiveName) -> float:
        """An objective of a plan as it is, not turned."""
        value = one.values[self.study.wanted.index(objective)]
        return -value if OBJECTIVES[objective].most else value

    def sensitivity(self) -> list[Effect]:
        """The effect of each axis on each objective; none where points were not asked."""
        if self.counts["proved"]:
            return []
        return [self._effect(place, axis, name) for place, axis in enumerate(self.study.axes)
                for name in self.study.wanted]

    def _effect(self, place: int, axis: str, objective: ObjectiveName) -> Effect:
        known = {one.labels[place]: None for one in self.light}
        order = {label: rank for rank, label in enumerate(known)}
        numbers = {label: number_of(label) for label in known}
        lines: dict[tuple[Any, ...], list[tuple[Any, float]]] = {}
        for one in self.light:
            value = self.value(one, objective)
            if 0.0 < value < math.inf:
                others = one.labels[:place] + one.labels[place + 1:]
                lines.setdefault(others, []).append((one.labels[place], value))
        ratios, slopes = [], []
        alike: dict[Any, list[float]] = {}
        for line in lines.values():
            if len(line) < 2:
                continue
            values = [value for _, value in line]
            mean = math.fsum(map(math.log, values)) / len(values)
            ratios.append(math.log(max(values) / min(values)))
            for label, value in line:
                alike.setdefault(label, []).append(math.log(value) - mean)
            slopes += _slopes([(numbers[label], value) for label, value in line])
        better = None
        if alike:
            sign = -1.0 if OBJECTIVES[objective].most else 1.0
            better = min(alike, key=lambda label: (sign * _mean(alike[label]), order[label]))
        pairs = [(number, self.value(one, objective)) for one in self.light
                 if (number := numbers[one.labels[place]]) is not None]
        return Effect(axis, objective, math.exp(_mean(ratios)) if ratios else None,
                      _mean(slopes) if slopes else None, _rank(pairs), better)


def number_of(label: Any) -> float | None:
    """The number that a label begins with, in the base of its unit; None: it is no number."""
    from nest.studies.axes import quantity

    value = quantity(label) if isinstance(label, str) else label
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)


def _undominated(found: Sequence[Light]) -> Iterator[int]:
    """Numbers of points that no other one beats: sorted, only those before can beat one."""
    front: list[tuple[float, ...]] = []
    for one in sorted(found, key=lambda one: (one.values, one.number)):
        if not any(all(a <= b for a, b in zip(kept, one.values, strict=True)) for kept in front):
            front.append(one.values)
            yield one.number


def _slopes(line: Sequence[tuple[float | None, float]]) -> list[float]:
    """Elasticities between neighbours on a line of points."""
    points = sorted((x, y) for x, y in line if x is not None and x > 0)
    return [math.log(y2 / y1) / math.log(x2 / x1)
            for (x1, y1), (x2, y2) in zip(points, points[1:], strict=False) if x2 > x1]


def _rank(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation."""
    finite = [(x, y) for x, y in pairs if math.isfinite(y)]
    if len(finite) < FEWEST or any(len({pair[side] for pair in finite}) < 2 for side in (0, 1)):
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(*zip(*finite, strict=True)).statistic)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _hashable(label: Any) -> Any:
    return json.dumps(label) if isinstance(label, (list, dict)) else label


def summary(results: Results) -> Mapping[str, Any]:
    """What the answers show, as plain data."""
    study = results.study
    names = [*study.axes]
    return {
        "points": sum(results.counts.values()), "status": dict(results.counts),
        "reasons": [reason._asdict() for reason in results.reasons[:MOST_REASONS]],
        "proved_within": results.within if results.counts["proved"] else None,
        "late": len(results.late), "late_points": results.late, "front": sorted(results.front),
        "best": {name: [{**dict(zip(study.groups, group, strict=True)), "number": one.number,
                         "value": results.value(one, name)}
                        for group, one in results.best(name).items()] for name in study.wanted},
        "together": [one._asdict() for one in results.shared],
        "sensitivity": [effect._asdict() for effect in results.sensitivity()], "axes": names,
    }
