"""`nest replan`: the next plan after a loss of devices."""

from __future__ import annotations

from typing import Annotated

import typer

from nest.cli import options, output
from nest.cli.follow import Follow
from nest.cli.output import say
from nest.errors import InputError


def replan(
    file: Annotated[
        str, typer.Argument(metavar="PLAN.json", help="The plan that runs, as `nest plan -o` "
                            "writes it.")
    ],
    *,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="PARTS", help="What is lost, such as node17, node3..5, "
                     "leaf2, gpu8 or link:a-b; may be repeated."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="CLUSTER", help="Name or file of the whole cluster, "
                     "if devices have returned; --without is applied to it. Default: that of "
                     "the plan."),
    ] = None,
    devices: options.Devices = None,
    space: options.SpaceFile = None,
    beyond_stack: options.BeyondStack = False,
    time_limit: options.TimeLimit = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
    file_out: options.Output = None,
    ranks: options.Ranks = None,
    quiet: options.Quiet = False,
) -> None:
    """Find the next plan for the devices that are left after a loss.

    Shows what each device must receive. -o writes the new plan, --ranks its ranks. Model and job
    are those of PLAN.json.
    """
    from functools import partial

    from nest.cli.inputs import check_counts, space_from
    from nest.cli.present import check_target, progress
    from nest.evaluation.plan_file import looks_like_file, reread
    from nest.inputs.files import write_text_atomic
    from nest.network.network import load_network
    from nest.report.ranks import ranks_text

    check_target(file_out)
    check_target(ranks)
    check_counts(threads=threads)
    if not looks_like_file(file):
        raise InputError(f"replan: got {file[:60]!r}, which is not a file; allowed: PLAN.json as "
                         "`nest plan -o` writes it")
    if devices is not None and cluster is None:
        raise InputError("--devices: got a number without --cluster; allowed: with it")
    if not without and cluster is None:
        raise InputError("--without: missing; needed: what is lost, such as --without node17 (or "
                         "--cluster, if all devices have returned)")
    before, notes = reread(file)
    for note in notes:
        say(f"nest: note: {note}")
    whole = None if cluster is None else load_network(cluster, devices=devices)
    from nest.replanning.replan import replan as ask

    what = f"{before.inputs.cluster.name[:40]} without {', '.join(without or ['nothing'])}"
    with progress(quiet), Follow(what, quiet) as follow:
        found = ask(before, without or (), space_from(space), cluster=whole,
                    beyond_stack=beyond_stack, threads=threads, time_limit=time_limit,
                    progress=follow)
    writes = []
    if file_out is not None:
        writes.append(partial(write_text_atomic, file_out, found.plan.to_json() + "\n"))
    if ranks is not None:
        writes.append(partial(write_text_atomic, ranks, ranks_text(found.plan)))
    output.deliver(lambda: found.to_json() if as_json else found.report(**output.page()),
                   *writes, quiet=quiet and not as_json)
    if follow.interrupted:
        raise KeyboardInterrupt
