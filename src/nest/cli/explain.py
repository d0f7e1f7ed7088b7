"""`nest explain`: what each resource is worth to a plan, and why simpler plans take longer."""

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
        float | None, options.seconds("For all searches together; default 30.")
    ] = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Say what 1 % more of each resource would change, and why simpler plans are slower.

    A plan that `nest plan` proved optimal is compared with the best plans under each change; one
    that was only evaluated, or edited, is priced again as it stands.
    """
    from nest.cli.inputs import check_threads
    from nest.cli.plan_file import looks_like_file, reread
    from nest.cli.present import progress
    from nest.cli.problems import told

    check_threads(threads)
    if not looks_like_file(file):
        raise InputError(f"explain: got {file[:60]!r}, which is no file; allowed: PLAN.json as "
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
