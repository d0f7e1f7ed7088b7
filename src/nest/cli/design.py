"""`nest design`: the best cluster of a family for one training or several."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

from nest.cli import options, output
from nest.cli.options import text

if TYPE_CHECKING:
    from nest.studies.design import Design, Looked
    from nest.studies.study import Study

MOST = 8
"""Other designs of a report (chosen); JSON has all that were solved."""


def design(
    study: Annotated[str, options.argument("File of a study.", "STUDY")],
    *,
    want: Annotated[str, text("What is least: money (default) or days.", "NAME")] = "money",
    budget: Annotated[float | None, options.amount("Most money for all trainings.")] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the best cluster that the axes of a study describe.

    All trainings of `together`, or that of `train`, run on it one after another, within
    `train.days` and the budget. Shows why no other cluster of the family is better.
    """
    from nest.studies.design import design as found
    from nest.studies.sweep import load_study

    given = load_study(study)
    shows = not quiet and sys.stderr is not None and sys.stderr.isatty()

    def follow(asked: int, designs: int) -> None:
        if shows:
            output.say(f"nest: {asked:,} questions asked about {designs:,} clusters")

    best = found(given, want, budget, follow=follow)  # type: ignore[arg-type]
    output.emit(json.dumps({"schema": "nest.design/1", "study": given.name, **best.as_dict()},
                           indent=2) if as_json else report(best, given))


def report(best: Design, study: Study) -> str:
    """The best cluster, its trainings, and the certificate."""
    from nest.report.page import Page
    from nest.studies.text import shown
    from nest.units import format_seconds

    page, currency = Page(**output.page()), study.prices.currency if study.prices else ""

    def worth(one: Looked) -> list[str]:
        return [shown(one.days or 0.0), "" if one.money is None else shown(one.money)]

    page.paragraph(f"{study.name}: the cluster with the least {best.want} of {best.designs:,}",
                   "bold")
    for name, value in best.best.labels.items():
        page.fact(name.rpartition(".")[2], shown(value))
    page.fact("Devices", f"{best.best.devices:,}")
    page.fact("Days", shown(best.best.days or 0.0))
    if best.best.money is not None:
        page.fact("Money", f"{shown(best.best.money)} {currency} ({best.hour:,.0f} an hour)")
    if best.watts:
        page.fact("Power", f"{best.watts / 1e3:,.0f} kW")
    page.blank()
    page.table("Trainings", ["training", "step", "days", "plan"], [
        [one.name, format_seconds(one.step_time_s), shown(one.days), one.plan or ""]
        for one in best.trainings], [0, 3])
    page.blank()
    least = "no other one meets the limits" if best.next_bound is None else (
        f"no other one takes less than {shown(best.next_bound)} "
        f"{currency if best.want == 'money' else 'days'}")
    page.fact("Proof", f"{least}: {best.solved:,} solved, {best.refuted:,} refuted by a search, "
              f"{best.pruned:,} ruled out unasked; {best.questions:,} questions asked")
    if best.excluded:
        page.fact("Left out", f"{best.excluded:,} clusters whose descriptions are not valid")
    if best.others:
        page.blank()
        heads = [*(name.rpartition(".")[2] for name in best.best.labels), "days", "money"]
        rows: list[list[Any]] = [[*map(shown, one.labels.values()), *worth(one)]
                                 for one in best.others[:MOST]]
        page.table("Others that were solved", heads, rows, [])
    return page.text()
