"""Texts of instances and of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nest.bench.instance import Instance
from nest.bench.score import STATUSES, Scored, summary
from nest.report.page import Page
from nest.units import format_seconds


def instances_text(
    found: Mapping[str, Instance], unsolved: Mapping[str, str], folder: str, width: int = 80,
    colour: bool = False, unicode: bool = True,
) -> str:
    """A line for each instance: what is asked, the best step, what is proved, how long it took."""
    page = Page(width, colour, unicode)
    page.table("", ("instance", "devices", "kind", "best step", "gap", "seconds"), [
        (name, f"{one.question.cluster.size:,}", one.kind, format_seconds(one.optimum.step_time_s),
         "proved" if one.optimum.proved else f"{one.optimum.gap:.2%}", f"{one.made.seconds:.2f}")
        for name, one in found.items()], (0, 2))
    page.blank()
    for name, why in unsolved.items():
        page.fact(name, f"no file: {why}", 28)
    proved = sum(one.optimum.proved for one in found.values())
    seconds = sum(one.made.seconds for one in found.values())
    page.paragraph(f"{len(found)} instances, {proved} proved, {seconds:.0f} s of a processor; "
                   f"written to {folder}")
    return page.text()


def score_text(
    scores: Mapping[str, Sequence[Scored]], width: int = 80, colour: bool = False,
    unicode: bool = True,
) -> str:
    """A line for each answer where there is one planner, and a table of all planners.

    Parameters
    ----------
    scores : by planner.
    """
    page = Page(width, colour, unicode)
    for planner, found in scores.items() if len(scores) == 1 else ():
        page.table(planner, ("instance", "devices", "kind", "step", "best step", "slower"), [
            (one.instance.name, f"{one.instance.question.cluster.size:,}", one.instance.kind,
             "-" if one.step_time_s is None else format_seconds(one.step_time_s),
             format_seconds(one.instance.optimum.step_time_s), _distance(one))
            for one in found], (0, 2))
        page.blank()
        for one in found:
            if one.why is not None:
                page.fact(one.instance.name, f"{STATUSES[one.status]}: {one.why}", 28)
    lines = []
    for planner, found in scores.items():
        whole = summary(found)
        mean = whole.mean_distance
        lines.append((
            planner, *(f"{part:.3f}" for part in (whole.score, whole.stack, whole.everything)),
            f"{whole.counted} of {whole.instances}", str(whole.best),
            "-" if mean is None else f"{mean:.1%}"))
    page.blank()
    page.table("Best step over step, mean over all instances; 0 for each that does not count",
               ("planner", "score", "stack", "everything", "count", "best", "slower, mean"),
               lines, (0,))
    for planner, found in scores.items():
        for one in found:
            if one.beats:
                why = (f"NEST's searches do not try {one.untried}" if one.untried else
                       "a defect of NEST: please report it with the file")
                page.fact(one.instance.name, f"{planner} is {1.0 - 1.0 / one.ratio:.2%} faster "
                          f"than the proved bound: {why}", 28)
    return page.text()


def _distance(one: Scored) -> str:
    """How much longer a step takes than the best, or why it does not count."""
    return one.status if one.distance is None else f"{one.distance:+.2%}"
