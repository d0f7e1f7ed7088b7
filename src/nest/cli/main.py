"""The command `nest`: its subcommands and exit codes.

Exit codes: 0 ok, 2 input, 3 infeasible, 4 limit, 70 a defect of NEST, 130 interrupted. Large
modules are imported only when a command runs, which keeps `nest --help` fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer

from nest import __version__
from nest.cli.bench import app as bench
from nest.cli.calibrate import app as calibrate
from nest.cli.compare import compare
from nest.cli.evaluate import evaluate
from nest.cli.explain import explain
from nest.cli.listing import show
from nest.cli.output import emit, say, tolerate
from nest.cli.plan import plan
from nest.cli.schema import schema
from nest.cli.simulate import simulate
from nest.cli.validate import validate
from nest.errors import InfeasibleError, InputError, KernelError, LimitError

OK, INPUT, INFEASIBLE, LIMIT, DEFECT, INTERRUPTED = 0, 2, 3, 4, 70, 130

app = typer.Typer(
    name="nest",
    help="Plan how to split the training of a model over a cluster.",
    add_completion=False,
    rich_markup_mode=None,  # Rich would double the time of --help
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("plan")(plan)
app.command("evaluate")(evaluate)
app.command("compare")(compare)
app.command("explain")(explain)
app.command("simulate")(simulate)
app.command("validate")(validate)
app.command("list")(show)
app.command("schema")(schema)
app.add_typer(calibrate, name="calibrate")
app.add_typer(bench, name="bench")


def _version(asked: bool) -> None:
    if asked:
        emit(f"nest {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _nest(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        emit(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : words after `nest`; default: those of the process.

    Returns
    -------
    int
        Exit code; every error is one message on stderr.
    """
    tolerate()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(words, prog_name="nest", standalone_mode=False)
        if code == INTERRUPTED:  # newer versions of Typer give the code for Ctrl-C
            raise KeyboardInterrupt
        return code if isinstance(code, int) else OK
    except (KeyboardInterrupt, typer.Abort):
        say("nest: interrupted")
        if arguments is None:  # nobody waits for a kernel that still runs in a thread
            with suppress(OSError, ValueError):
                sys.stdout.flush()
            os._exit(INTERRUPTED)
        return INTERRUPTED
    except Exception as error:
        return _report(error)


def _report(error: Exception) -> int:
    """Print an error, and return its exit code."""
    if os.environ.get("NEST_DEBUG") == "1":
        import traceback

        say("".join(traceback.format_exception(error)).rstrip())
    if hasattr(error, "format_message"):  # of the option parser, whose class moved with versions
        return _refuse(error.format_message(), INPUT)
    for cls, code in ((InputError, INPUT), (InfeasibleError, INFEASIBLE), (LimitError, LIMIT)):
        if isinstance(error, cls):
            return _refuse(str(error), code)
    ask = "this is a defect of NEST, please report it with the command and its files"
    if isinstance(error, KernelError):
        return _refuse(f"{error}; {ask}", DEFECT)
    shown = " ".join(str(error).split())[:500]
    return _refuse(f"{type(error).__name__}: {shown}; {ask} (NEST_DEBUG=1 shows where)", DEFECT)


def _refuse(message: str, code: int) -> int:
    say("nest: error: " + "\n  ".join(message.splitlines() or [""]))
    return code


if __name__ == "__main__":
    sys.exit(main())
