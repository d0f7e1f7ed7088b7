"""Priced runs as the table of evidence, which gives prices their ranges.

A configuration of a software version counts once. Measurements that contradict their neighbours are
left out, stacks without ``runs``, and other devices than ``runs_on``: figures that were never meant
for the software of a run are no evidence.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from nest.evaluation.confidence import question_of
from nest.evaluation.evaluate import chain_of
from nest.evaluation.evidence import MeasuredConfiguration, Runs, Spread
from nest.measured.validation.pricing import PricedRun
from nest.measured.validation.score import compare

COLUMNS = ("stack", "group", "model", "ratio", "fitted", "device", "experts", "precision",
           "parameters", "devices", "tp", "pp", "cp", "ep", "seq_len")
COMMENT = """\
# Measured over priced seconds of published runs (ratio), a configuration a row: what ranges of
# prices rest on (src/nest/evaluation/evidence.py). fitted: of the table that figures of stacks are
# fitted to. Written by tests/measured/validation/refresh_accuracy.py.
"""

Evidence = Mapping[str, Sequence[MeasuredConfiguration]]
"""Measured configurations by the ``runs`` of their stack."""


class Tried(NamedTuple):
    """A measured configuration under a range that it took no part in."""

    measured: MeasuredConfiguration
    spread: Spread

    @property
    def misfit(self) -> float:
        """Logarithm of its ratio less the center of the range, in halves of the range."""
        return (math.log(self.measured.ratio) - self.spread.center) / self.spread.half


def evidence(priced: Iterable[PricedRun], fitted: bool) -> dict[str, list[MeasuredConfiguration]]:
    """Measured configurations of stacks that have ``runs``, by these.

    Parameters
    ----------
    fitted : whether figures may be fitted to these runs.
    """
    found: dict[str, list[MeasuredConfiguration]] = {}
    for one in compare(row for row in priced if not row.run.anomalous):
        model, cluster, job, way = one.members[0].key[2]  # type: ignore[index]
        if job.stack.runs is None or not cluster.device.name.startswith(
                job.stack.runs_on or "") or getattr(model, "trainable", None) is not None:
            continue  # of training that has no evidence of its own
        found.setdefault(job.stack.runs, []).append(MeasuredConfiguration(
            one.group, one.model, one.measured_s / one.predicted_s, fitted,
            question_of(chain_of(model), cluster, job, way)))
    return found


def kind_of(one: MeasuredConfiguration) -> Hashable:
    """What is left out together: a group's runs on one device, with or without experts."""
    return one.group, one.question.device, one.question.experts


def left_out(measured: Sequence[MeasuredConfiguration]) -> list[Tried]:
    """Each configuration of a stack under the range of the others of its stack, less its kind."""
    found = []
    for kind in dict.fromkeys(map(kind_of, measured)):
        others = Runs.of([one for one in measured if kind_of(one) != kind])
        for one in measured:
            if kind_of(one) == kind:
                found.append(Tried(one, others.spread(one.question, others.far(one.question))))
    return found


def to_csv(found: Evidence) -> str:
    """The table of the catalog."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for stack, measured in found.items():
        for one in measured:
            cells = {**one._asdict(), **one.question._asdict(), "stack": stack,
                     "experts": int(one.question.experts), "fitted": int(one.fitted),
                     "ratio": f"{one.ratio:.4f}",
                     "parameters": f"{one.question.parameters:.4g}"}
            writer.writerow([cells[column] for column in COLUMNS])
    return COMMENT + stream.getvalue()
