"""Plans that differ from a plan in one choice, priced without a search.

What a choice is worth: the same configuration with another recompute policy, ZeRO stage, size of
micro-batches, schedule or tensor parallel degree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from nest.errors import InputError
from nest.evaluation.evaluate import evaluate
from nest.evaluation.plans import Plan
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.schedules.registry import SCHEDULES


class Neighbour(NamedTuple):
    """A plan that differs in one choice."""

    change: str
    step_time_s: float
    slower: float
    """step_time_s over that of the plan, less 1; below 0: faster."""
    memory_share: float
    """Of its limit that the fullest device holds; above 1: it does not fit."""
    feasible: bool
    runnable: bool | None
    """The stack can run it; None: not known."""
    why_not: str
    """Why it cannot be used where the plan can, a sentence; empty: it can."""


def neighbours(plan: Plan) -> tuple[Neighbour, ...]:
    """Price the legal plans that differ from a plan in one choice, fastest first.

    Parameters
    ----------
    plan : as :func:`nest.plan` or :func:`nest.evaluate` gives it.
    """
    found, broken = [], {one.rule for one in plan.not_runnable}
    for change, changed in _changes(plan.configuration):
        try:
            priced = evaluate(
                plan.inputs.subject, plan.inputs.cluster, plan.inputs.job, changed())
        except InputError:  # not legal for this model or schedule
            continue
        new = [one.sentence for one in priced.not_runnable if one.rule not in broken]
        why = priced.problems[0] if not priced.feasible else "; ".join(new[:1])
        found.append(Neighbour(
            change, priced.step_time_s, priced.step_time_s / plan.step_time_s - 1.0,
            priced.memory_share, priced.feasible, priced.runnable, why))
    return tuple(sorted(found, key=lambda one: (bool(one.why_not), one.step_time_s)))


def _changes(way: Configuration) -> Iterator[tuple[str, Callable[[], Configuration]]]:
    """Changes in words, and what makes the configurations; some are not legal."""
    stages = way.stages

    def each(figures: Callable[[StageConfiguration], dict[str, Any]]) -> Configuration:
        return way.replace(stages=tuple(one.replace(**figures(one)) for one in stages))

    for recompute in ("none", "selective", "full"):
        if any(one.recompute != recompute for one in stages):
            figures = {"recompute": recompute, "recompute_layers": None, "recompute_modules":
                       ("core_attn",) if recompute == "selective" else ()}
            yield f"recompute {recompute}", partial(each, partial(_same, figures))
    for zero in range(4):
        if any(one.zero != zero for one in stages):
            yield f"ZeRO {zero}", partial(each, partial(_same, {"zero": zero}))
    for size in sorted({way.micro_batch // 2, way.micro_batch * 2} - {0, way.micro_batch}):
        yield (f"micro-batch of a pipeline {size} instead of {way.micro_batch}",
               partial(way.replace, micro_batch=size))
    for name, entry in SCHEDULES.items():
        if name != way.schedule:
            yield f"schedule {entry.label}", partial(way.replace, schedule=name)
    for up, down, word in ((2, 1, "doubled"), (1, 2, "halved")):
        if all(one.tp % down == 0 and one.dp_in % up == 0 for one in stages):
            yield f"tensor parallel {word}, data parallel to match", partial(
                each, partial(_tensor, up, down))


def _same(figures: dict[str, Any], one: StageConfiguration) -> dict[str, Any]:
    return figures


def _tensor(up: int, down: int, one: StageConfiguration) -> dict[str, Any]:
    tp = one.tp * up // down
    return {"tp": tp, "dp_in": one.dp_in * down // up, "sp": one.sp and tp > 1,
            "etp": tp if one.etp == one.tp else one.etp}
