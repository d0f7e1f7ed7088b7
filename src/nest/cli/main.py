"""The command `nest`: its subcommands and exit codes.

Exit codes: 0 ok, 2 input, 3 infeasible or not to be exported, 4 limit, 70 a defect of NEST, 74
output not written (both as in sysexits.h), 130 interrupted. Large modules are imported only when a
command runs, which keeps `nest --help` fast.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Annotated, Any

import typer

from nest import __version__
from nest.cli.bench import app as bench
from nest.cli.capture import capture
from nest.cli.compare import compare
from nest.cli.design import design
from nest.cli.doctor import doctor
from nest.cli.evaluate import evaluate
from nest.cli.learning import following, learn
from nest.cli.listing import schema, show
from nest.cli.measured import calibrate, profile, validate
from nest.cli.naming import App
from nest.cli.output import UNWRITTEN, emit, note, say, tolerate, unwritten
from nest.cli.plan import plan
from nest.cli.plan_commands import diagnose, explain, export, goodput, replan, simulate
from nest.cli.probe import probe
from nest.cli.read import improve, read
from nest.cli.report import plot, report
from nest.cli.service import ask, mcp, serve
from nest.cli.sweep import app as sweep
from nest.cli.warm import warm
from nest.errors import InputError, OutputError

OK, INTERRUPTED = 0, 130

app = App(help="Plan how to split the training of a model over a cluster.",
          pretty_exceptions_enable=False)
for _command in (plan, ask, evaluate, compare, report, plot, diagnose, explain, replan, goodput,
                 export, read, capture, improve, learn, probe, serve, mcp, simulate, validate,
                 design, doctor, warm):
    app.command(_command.__name__)(_command)
app.command("next")(following)
app.command("list")(show)
app.command("schema")(schema)
for _group in (calibrate, profile, sweep, bench):
    app.add_typer(_group)


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


def main(
    arguments: Sequence[str] | None = None, program: App = app, name: str = "nest"
) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : words after `nest`; default: those of the process.
    program, name : other commands with the same messages and exit codes.

    Returns
    -------
    int
        Exit code; every error is one message on stderr, with --json also a document on stdout.
    """
    tolerate()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _noted
            code = _parser(program)(words, prog_name=name, standalone_mode=False)
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
        return _report(error, as_json="--json" in words or words[:2] == ["plan", "-"])


@cache
def _parser(program: App) -> Any:
    """The commands as the option parser takes them, made once for many calls: 0.1 s."""
    return typer.main.get_command(program)


def _noted(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """Warnings to users are notes; others keep their form."""
    if category is UserWarning:
        note([str(message)])
    else:
        say(warnings.formatwarning(message, category, *place[:2]).rstrip())


def _report(error: Exception, as_json: bool) -> int:
    """Print an error, as a document on stdout too if asked for, and return its exit code."""
    from nest.questions.failure import failure

    if os.environ.get("NEST_DEBUG") == "1":
        import traceback

        say("".join(traceback.format_exception(error)).rstrip())
    if hasattr(error, "format_message"):  # of the option parser, whose class moved with versions
        error = InputError(_parsing(error))
    if isinstance(error, OSError) and error.errno in UNWRITTEN:  # of a help text
        error = unwritten(error)
    found = failure(error)
    if as_json and not getattr(error, "printed", False):
        with suppress(OutputError):
            emit(found.to_json(2))
    say("nest: error: " + "\n  ".join(found.message.splitlines() or [""]))
    return found.code


def _parsing(error: Any) -> str:
    """What the option parser says, and of options of other software why there is none."""
    from nest.inputs.job import TRAINABLE, is_adapter

    text = str(error.format_message())
    wanted = is_adapter(getattr(error, "option_name", None))
    return f"{text.rstrip('.')}; {TRAINABLE}" if wanted else text


if __name__ == "__main__":
    sys.exit(main())
