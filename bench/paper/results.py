"""Comparison of answers: throughput relative to the expert's, and NEST's gain over each planner."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from paper.answers import PlannerRun
from paper.published import Published
from paper.questions import PaperQuestion

OWN, BASE = "nest", "manual"
"""The planner whose gains are reported, and the one that throughputs are relative to."""


class Result(NamedTuple):
    """An answer, compared with the others to its question."""

    asked: PlannerRun
    base: PaperQuestion | None
    """Where throughput 1 is: the smallest point of part and model at which the base fits."""
    relative: float | None
    """Throughput over that of the base there; None: there is no base, or this one is infeasible."""
    gain: float | None
    """Throughput of NEST over this one's; None: one of the two is infeasible."""

    @property
    def a_device(self) -> float | None:
        """Relative throughput per device: :attr:`relative` without the gain of more devices."""
        if self.relative is None or self.base is None:
            return None
        return self.relative * self.base.devices / self.asked.question.devices


class Gain(NamedTuple):
    """NEST's throughput over a planner's, over some questions; None: nothing to compare."""

    mean: float | None
    """Geometric."""
    least: float | None
    most: float | None
    infeasible: int
    """Questions to which the planner has no answer that fits, or none is published."""


def results(asked: Sequence[PlannerRun]) -> list[Result]:
    """Compare answers.

    Parameters
    ----------
    asked : of ``ask`` in answers.py; of one model, throughputs in samples compare as
        throughputs in tokens do.
    """
    speed = {(one.question, one.planner): one.answer.tokens_per_s
             for one in asked if one.answer.feasible}
    bases: dict[tuple[str, str], PaperQuestion] = {}
    for one in sorted(asked, key=lambda one: one.question.point):
        if one.planner == BASE and one.answer.feasible:
            bases.setdefault((one.question.part, one.question.model), one.question)
    found = []
    for one in asked:
        base = bases.get((one.question.part, one.question.model))
        here = speed.get((one.question, one.planner))
        there = None if base is None else speed[base, BASE]
        own = speed.get((one.question, OWN))
        found.append(Result(one, base, here / there if here and there else None,
                            own / here if own and here else None))
    return found


def gain(found: Iterable[Result]) -> Gain:
    """NEST's gain over the planner of some results."""
    chosen = list(found)
    gains = [one.gain for one in chosen if one.gain is not None]
    return _gain(gains, sum(not one.asked.answer.feasible for one in chosen))


def published_gain(found: Iterable[Published], planner: str) -> Gain:
    """The published gain of NEST over a planner of the published comparison."""
    relatives = [one.relative for one in found]
    return _gain([relative[OWN] / relative[planner] for relative in relatives
                  if OWN in relative and planner in relative],
                 sum(planner not in relative for relative in relatives))


def best_point_gain(found: Iterable[Result], planner: str) -> float | None:
    """NEST's gain over a planner where each has the point that is best for it.

    Parameters
    ----------
    found : results of one part and model, such as all micro-batches.
    """
    best = {OWN: 0.0, planner: 0.0}
    for one in found:
        if one.asked.planner in best and one.asked.answer.feasible:
            here = one.asked.answer.tokens_per_s or 0.0
            best[one.asked.planner] = max(best[one.asked.planner], here)
    return best[OWN] / best[planner] if best[OWN] and best[planner] else None


def _gain(gains: Sequence[float], infeasible: int) -> Gain:
    if not gains:
        return Gain(None, None, None, infeasible)
    mean = math.exp(math.fsum(map(math.log, gains)) / len(gains))
    return Gain(mean, min(gains), max(gains), infeasible)


def select(
    found: Iterable[Result], part: str | None = None, model: str | None = None,
    planner: str | None = None,
) -> list[Result]:
    """Results of a part, a model and a planner; None: any."""
    return [one for one in found
            if part in (None, one.asked.question.part)
            and model in (None, one.asked.question.model) and planner in (None, one.asked.planner)]


def distinct(values: Iterable[str]) -> list[str]:
    """Distinct values, in order of first occurrence."""
    return list(dict.fromkeys(values))
