"""`nest simulate`: one training step of a plan as events, compared with the closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from nest.cli import options, output
from nest.cli.output import say
from nest.errors import InputError

if TYPE_CHECKING:
    from nest.evaluation.plans import Plan
    from nest.simulation.step import Traced


def simulate(
    file: Annotated[
        str, typer.Argument(metavar="PLAN.json", help="A plan, as `nest plan -o` writes it.")
    ],
    trace: Annotated[
        str | None,
        typer.Option(metavar="FILE",
                     help="Also write a trace of every stage, for ui.perfetto.dev or "
                     "chrome://tracing."),
    ] = None,
    bucket: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Size of a bucket of gradients that are reduced "
                     "together, such as `160 MiB`; default: one layer."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Simulate one training step of a plan with discrete events.

    The simulation uses NEST's prices of single layers and transfers. Overlap, waiting and memory
    over time follow from its events alone. The result is compared with the plan's price.
    """
    from nest.cli.present import check_target
    from nest.evaluation.plan_file import looks_like_file, reread
    from nest.evaluation.problems import told

    check_target(trace)
    if not looks_like_file(file):
        raise InputError(f"simulate: got {file[:60]!r}, which is not a file; allowed: PLAN.json as "
                         "`nest plan -o` writes it")
    bucket_bytes = _bucket(bucket)
    plan, notes = reread(file)
    for note in notes:
        say(f"nest: note: {note}")
    from nest.simulation import step

    writes: list[Callable[[], None]] = []
    with told(file):
        if trace is None:
            found = step.simulate(plan, bucket_bytes=bucket_bytes)
        else:
            traced = step.Traced(plan, bucket_bytes=bucket_bytes)
            found = traced.simulation
            writes.append(lambda: _write(trace, plan, traced))

    def text() -> str:
        from nest.report.simulation_text import simulation_text

        return found.to_json() if as_json else simulation_text(plan, found, **output.page())

    output.deliver(text, *writes)


def _bucket(text: str | None) -> float:
    if text is None:
        return 0.0
    from nest.units import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise InputError(f"--bucket: {error}") from None


def _write(file: str, plan: Plan, traced: Traced) -> None:
    from nest.inputs import write_text_atomic
    from nest.report.trace import trace_text

    write_text_atomic(file, trace_text(plan, traced))
    left_out = traced.record.left_out
    if left_out:
        say(f"nest: note: {file}: micro-batches {left_out[0]}..{left_out[-1]} of "
            f"{plan.parallelism.micro_batches} are left out, to keep it small")
