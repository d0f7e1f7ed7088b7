"""Errors of prices: per group of runs, and overall; as JSON, and as a table of rows.

A configuration counts once per software version, with the median of its measurements.

Ranges are those that nine of ten measured steps of models that nobody priced before lie in. For
each stack, dense models and mixtures apart, the logarithms of measured over priced seconds have a
center, the mean of the models' medians, and a spread about it. A model counts with the square root
of its configurations, because those of one model err alike; and a few models as usual, that err by
nothing in the mean and by the usual spread, count besides, so that a single model does not promise
what it cannot.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from nest.inputs.files import csv_cell
from nest.measured.validation.pricing import PricedRun


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


# ---------------------------------------------------------------- statistics


DIFFERENT = 0.05
"""Runs whose measured seconds differ by no more are equal: repeats of one run differ by 2 to 8 %
(chosen below the upper end of that)."""
FEWEST = 3  # fewest configurations for an order


def median(values: Iterable[float]) -> float | None:
    """Median; None: there are no values."""
    found = list(values)
    return statistics.median(found) if found else None


def mean(values: Iterable[float]) -> float | None:
    """Mean; None: there are no values."""
    found = list(values)
    return statistics.fmean(found) if found else None


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share their mean."""
    from scipy.stats import rankdata  # takes long to import, and not all who read runs need it

    return [float(rank) for rank in rankdata(values)]


def spearman(measured: Sequence[float], predicted: Sequence[float]) -> float | None:
    """Spearman's rank correlation, -1 to 1.

    None for fewer than three values, for measurements that are all equal, or if all values of one
    side are equal.
    """
    if len(measured) < FEWEST or max(measured) <= min(measured) * (1.0 + DIFFERENT):
        return None
    if len(set(predicted)) == 1:
        return None
    return float(np.corrcoef(ranks(measured), ranks(predicted))[0, 1])


def ordered(measured: Sequence[float], predicted: Sequence[float]) -> tuple[int, int]:
    """Pairs that predictions order correctly, and pairs that measurements distinguish.

    Measurements distinguish two runs if they differ by more than ``DIFFERENT`` of the smaller.
    """
    right = told = 0
    for (m, p), (n, q) in combinations(zip(measured, predicted, strict=True), 2):
        if max(m, n) > min(m, n) * (1.0 + DIFFERENT):
            told += 1
            right += (m - n) * (p - q) > 0
    return right, told


# ---------------------------------------------------------------- document


SCHEMA = "nest.validation/1"
GIB = 2.0**30
COLUMNS = ("run_id", "group", "model", "framework", "stack", "measured_s", "predicted_s", "low_s",
           "high_s", "error",
           "memory_measured_gb", "memory_predicted_gb", "fits", "reason", "remarks", "source")


def to_json(report: Report) -> str:
    """The report as the text of one JSON document, schema `nest.validation/1`.

    Errors are shares (0.05 is 5 %), memory is in GiB.
    """
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "groups": {name: as_dict(found) for name, found in report.groups.items()},
        "without_anomalous": {name: as_dict(found)
                              for name, found in report.without_anomalous.items()},
        "overall": as_dict(report.overall),
        "rows": [_row(row) for row in report.rows],
    }
    return json.dumps(document, indent=2)


def _row(row: PricedRun) -> dict[str, Any]:
    return {
        "run_id": row.run.run_id,
        "measured_s": row.run.measured_s,
        "predicted_s": row.predicted_s,
        "low_s": row.low_s,
        "high_s": row.high_s,
        "error": row.error,
        "memory_measured_gb": _gib(row.run.measured_memory),
        "memory_predicted_gb": _gib(row.predicted_memory),
        "reason": row.reason,
    }


def _gib(size: float | None) -> float | None:
    return None if size is None else size / GIB


def to_csv(report: Report) -> str:
    """All rows with their prices as CSV text, in the order of the table."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in report.rows:
        cells = {
            **_row(row), "group": row.run.group, "model": row.run.model,
            "framework": row.run.framework, "stack": row.stack, "source": row.run.source,
            "fits": {None: "", True: "1", False: "0"}[row.fits],
            "remarks": "; ".join(row.remarks),
        }
        writer.writerow([_cell(cells[column]) for column in COLUMNS])
    return stream.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(csv_cell(value))
