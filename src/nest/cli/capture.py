"""`nest capture`: a launch script run with stand-ins for what it would start."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from nest.cli import options, output
from nest.cli.options import text
from nest.cli.output import say
from nest.errors import InputError

FILE = "captured.json"


def capture(
    command: Annotated[list[str] | None, options.argument(
        "What starts the job, behind --: bash run.sh, sbatch job.slurm, ./run.sh.",
        "-- COMMAND")] = None,
    *,
    yes: Annotated[bool, text("Do not ask; needed without a terminal.", None, "--yes")] = False,
    run: Annotated[list[str] | None, text(
        "Where the script takes the output of this program or script, run it; may be repeated.",
        "NAME")] = None,
    time_limit: Annotated[float | None, options.seconds(
        "End the script after this time; default 60.")] = None,
    file: Annotated[str, text("Document of the launches.", "FILE", "-o", "--output")] = FILE,
) -> None:
    """Run a launch script, and record what it would start.

    The script runs on this machine, in its own shell, with all of its commands: rm, cp,
    module load. Only programs that start work (python, torchrun, srun, sbatch, mpirun,
    docker, ssh and others) are replaced by stand-ins, which record their arguments and
    start nothing. `nest read`, `nest improve` take the document like a launch script.
    """
    from nest.frameworks.capture.recording import TIME_LIMIT, capture, programs
    from nest.inputs.files import write_text_atomic

    if not command:
        raise InputError("capture: no command; allowed: `nest capture -- bash run.sh`")
    names = sum(len(one) for kind, one in programs().items() if kind != "passing"
                and isinstance(one, list))
    say(f"nest: {shlex.join(command)} will run on this machine with all of its commands, such as "
        "rm, cp or module load. Only python, torchrun, srun, sbatch, mpirun, docker, ssh and the "
        f"like ({names} programs) are recorded and not started.")
    if not yes:
        if not sys.stdin or not sys.stdin.isatty():
            raise InputError("capture: it runs the script's commands; allowed: --yes, or an answer "
                             "at a terminal")
        typer.confirm("Run it?", abort=True, err=True)
    found = capture(command, time_limit=time_limit or TIME_LIMIT, run=run or ())
    output.note(found.notes)
    write_text_atomic(file, found.to_json())
    width = output.width()
    for number, one in enumerate(found.launches, 1):
        line = f"line {one.line}: " if one.line else ""
        shown = f"{number:>3}  {line}{shlex.join((*one.outer, *one.words))}".replace("\n", " ")
        output.emit(shown if len(shown) <= width else shown[:width - 3] + "...")
    several = " --launch N" if len(found.launches) > 1 else ""
    say(f"nest: written: {file}; next: nest read {file}{several} -o job")
