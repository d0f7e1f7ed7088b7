"""Errors of prices: per group of runs, and overall.

A configuration counts once per software version, with the median of its measurements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from nest.measured.validation.pricing import PricedRun
from nest.measured.validation.statistics import mean, median, ordered, spearman


@dataclass(frozen=True)
class Compared:
    """A configuration under one software version: its price and its median measurement."""

    group: str
    model: str
    framework: str
    members: tuple[PricedRun, ...]
    measured_s: float
    predicted_s: float
    measured_memory: float | None
    """Bytes; None: not measured."""
    predicted_memory: float | None

    @property
    def error(self) -> float:
        """Predicted over measured seconds, less 1."""
        return self.predicted_s / self.measured_s - 1.0

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured bytes, less 1; None: not measured."""
        if self.measured_memory is None or self.predicted_memory is None:
            return None
        return self.predicted_memory / self.measured_memory - 1.0


@dataclass(frozen=True)
class Score:
    """Errors of a group. Errors are shares: 0.05 is 5 %. None: not determined."""

    rows: int
    priced: int
    configurations: int
    """Distinct ones among the rows priced, software versions apart; errors are over these."""
    median_abs_error: float | None
    mean_abs_error: float | None
    bias: float | None
    """Mean of the signed errors; below 0: prices are too low."""
    spearman: float | None
    """Median over models of the rank correlation between configurations of one version."""
    ordered: float | None
    """Share of pairs of one model and version, more than 5 % apart, in the right order."""
    memory_median_abs_error: float | None
    memory_configurations: int
    misfits: int
    """Configurations that ran and that NEST predicts not to fit."""


@dataclass(frozen=True)
class Report:
    """Errors of prices against a table of runs."""

    groups: dict[str, Score]
    """In the order of the table."""
    without_anomalous: dict[str, Score]
    """The same for groups with anomalous measurements, without these."""
    overall: Score
    rows: tuple[PricedRun, ...]
    compared: tuple[Compared, ...]

    @property
    def reasons(self) -> Counter[str]:
        """Why rows were not priced, with the number of rows."""
        return Counter(row.reason for row in self.rows if row.reason is not None)

    def worst(self, count: int, each: int | None = None) -> list[Compared]:
        """Configurations with the largest errors, the worst first.

        Parameters
        ----------
        count : at most this many.
        each : at most this many of every group; None: any number.
        """
        found: list[Compared] = []
        taken: Counter[str] = Counter()
        for one in sorted(self.compared, key=lambda one: -abs(one.error)):
            if len(found) < count and (each is None or taken[one.group] < each):
                found.append(one)
                taken[one.group] += 1
        return found


def score(priced: Sequence[PricedRun]) -> Report:
    """Compare prices with measurements.

    Parameters
    ----------
    priced : of :func:`nest.measured.validation.price`.
    """
    names = dict.fromkeys(row.run.group for row in priced)
    groups = {name: [row for row in priced if row.run.group == name] for name in names}
    return Report(
        groups={name: score_of(rows) for name, rows in groups.items()},
        without_anomalous={
            name: score_of([row for row in rows if not row.run.anomalous])
            for name, rows in groups.items() if any(row.run.anomalous for row in rows)},
        overall=score_of(priced),
        rows=tuple(priced),
        compared=tuple(compare(priced)),
    )


def compare(priced: Iterable[PricedRun]) -> list[Compared]:
    """Runs of one configuration and software version, put together."""
    together: dict[object, list[PricedRun]] = {}
    for row in priced:
        if row.error is not None:
            together.setdefault(row.key, []).append(row)
    return [_compared(rows) for rows in together.values()]


def _compared(rows: Sequence[PricedRun]) -> Compared:
    run = rows[0].run
    seconds = median(row.run.measured_s for row in rows if row.run.measured_s is not None)
    assert seconds is not None and rows[0].predicted_s is not None
    measured = [row for row in rows if row.run.measured_memory is not None]
    return Compared(
        run.group, run.model, run.framework, tuple(rows), seconds, rows[0].predicted_s,
        median(row.run.measured_memory or 0.0 for row in measured),
        measured[0].predicted_memory if measured else None,
    )


def score_of(rows: Sequence[PricedRun]) -> Score:
    """Score of some rows as one group."""
    found = compare(rows)
    errors = [one.error for one in found]
    memory = [abs(one.memory_error) for one in found if one.memory_error is not None]
    series: dict[tuple[str, str, str], list[Compared]] = {}
    for one in found:
        series.setdefault((one.group, one.model, one.framework), []).append(one)
    models: dict[tuple[str, str], list[float]] = {}
    right = told = 0
    for (group, model, _), members in series.items():
        pair = [one.measured_s for one in members], [one.predicted_s for one in members]
        rank = spearman(*pair)
        if rank is not None:
            models.setdefault((group, model), []).append(rank)
        counted = ordered(*pair)
        right, told = right + counted[0], told + counted[1]
    return Score(
        rows=len(rows),
        priced=sum(row.error is not None for row in rows),
        configurations=len(found),
        median_abs_error=median(abs(error) for error in errors),
        mean_abs_error=mean(abs(error) for error in errors),
        bias=mean(errors),
        spearman=median(mean(ranks) or 0.0 for ranks in models.values()),
        ordered=right / told if told else None,
        memory_median_abs_error=median(memory),
        memory_configurations=len(memory),
        misfits=sum(one.members[0].fits is False for one in found),
    )


def as_dict(found: Score) -> dict[str, float | int | None]:
    """A score as plain data."""
    return asdict(found)
