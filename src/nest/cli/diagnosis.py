"""`nest diagnose`: why a run is slower, or holds more memory, than its plan is priced."""

from __future__ import annotations

from typing import Annotated

from nest.cli import options, output
from nest.cli.options import argument, text
from nest.cli.plan_commands import plan_of


def diagnose(
    file: Annotated[str, argument("The plan that ran, as `nest plan -o` writes it.", "PLAN.json")],
    log: Annotated[str | None, argument(
        "What the run printed (docs/read.md); may be left out beside a trace or a snapshot.",
        "train.log")] = None,
    trace: Annotated[list[str] | None, text(
        "A trace of some steps of one rank: .json or .json.gz of torch.profiler, or .sqlite of "
        "`nsys export --type sqlite`; may be repeated for other ranks.", "FILE")] = None,
    memory: Annotated[list[str] | None, text(
        "A snapshot of torch.cuda.memory._dump_snapshot; may be repeated.", "FILE")] = None,
    learned: Annotated[str | None, text(
        "Price the plan with what runs taught, as `nest learn -o` writes it.", "FILE")] = None,
    as_json: options.Json = False,
) -> None:
    """Say why a run is slow, or short of memory.

    From the priced step to the measured one, cause by cause, with the evidence and what to try; and
    priced memory beside the measured. What the evidence does not tell apart stays "unexplained".
    """
    plan = plan_of("diagnose", file)
    from nest.measured.diagnosis import diagnose as explained
    from nest.report.diagnosis_text import diagnosis_text

    found = explained(plan, log, trace or (), memory or (), learned)
    output.emit(found.to_json() if as_json else diagnosis_text(found, **output.page()))
