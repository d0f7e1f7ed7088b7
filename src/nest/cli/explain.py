"""`nest explain`: the effect of each resource on a plan, and simpler plans."""

from __future__ import annotations

from typing import Annotated

import typer

from nest.cli import options, output
from nest.cli.output import say
from nest.errors import InputError


def explain(
    file: Annotated[
        str, typer.Argument(metavar="PLAN.json", help="A plan, as `nest plan -o` writes it.")
    ],
    time_limit: Annotated[
        float | None, options.seconds("Limit for all searches together; default 30.")
    ] = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Show which resources limit a plan, and what simpler plans lose.

    Memory, FLOP/s and the bandwidth of each level grow by 1 %, one at a time. If `nest plan` proved
    the plan optimal, the search is repeated under each change; any other plan is priced unchanged.
    """
    from nest.cli.inputs import check_counts
    from nest.cli.present import progress
    from nest.evaluation.plan_file import looks_like_file, reread
    from nest.evaluation.problems import told

    check_counts(threads=threads)
    if not looks_like_file(file):
        raise InputError(f"explain: got {file[:60]!r}, which is not a file; allowed: PLAN.json as "
                         "`nest plan -o` writes it")
    plan, notes = reread(file)
    for note in notes:
        say(f"nest: note: {note}")
    from nest.explanation import explanation

    with progress(quiet=False), told(file):
        found = explanation.explain(plan, threads=threads,
                                    time_limit=time_limit or explanation.TIME_LIMIT)
    if as_json:
        output.emit(found.to_json())
        return
    from nest.report.explanation_text import explanation_text

    output.emit(explanation_text(plan, found, **output.page()))
