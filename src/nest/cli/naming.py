"""Messages of a command in its own terms: options as they are spelled, files with their argument.

Descriptions name fields (`global_batch`) and files (`job.yaml`) and know no options. A command that
ends with an :class:`nest.errors.InputError` says `--global-batch` and `--job job.yaml` instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import typer
from typer.core import TyperCommand
from typer.models import CommandFunctionType

from nest.cli.examples import epilog
from nest.cli.options import COMMAND_LINE, spread
from nest.cli.output import emit
from nest.errors import InputError

OUTPUTS = ("--output", "--output-device", "--ranks", "--map", "--chart", "--trace", "--plot",
           "--store", "--report")
"""Options whose files are written; each has its own."""
_FIELD = re.compile(rf"({COMMAND_LINE}: (?:configuration: )?)?(\w+): (.*)", re.DOTALL)


def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        emit(context.get_help())


class App(typer.Typer):
    """Commands with examples in their help and records of options, which messages name as spelled.

    Parameters
    ----------
    group : word before its commands; empty: none, they are those of `nest`.
    settings : as of Typer.
    """

    def __init__(self, group: str = "", **settings: Any) -> None:
        super().__init__(
            name=group or None, rich_markup_mode=None,  # Rich would double the time of --help
            context_settings={"help_option_names": ["-h", "--help"]},
            epilog=epilog(group), **settings)
        self._group = group
        if group:
            self.callback(invoke_without_command=True)(_show_help)

    def command(
        self, name: str | None = None, **settings: Any
    ) -> Callable[[CommandFunctionType], CommandFunctionType]:
        """As that of Typer."""
        made = super().command(
            name, cls=Command, epilog=epilog(f"{self._group} {name}".strip()), **settings)

        def register(function: CommandFunctionType) -> CommandFunctionType:
            made(spread(function))
            return function

        return register


class Command(TyperCommand):
    """A command whose messages name options and arguments."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises
        ------
        InputError : as the command, with options and arguments named; an output is another
            one's file, or one that is read.
        """
        try:
            _need_own_files(ctx)
            return super().invoke(ctx)
        except InputError as error:
            message = "\n".join(_named(line, ctx) for line in str(error).split("\n"))
            raise InputError(message, tuple(_named(one, ctx) for one in error.problems)) from error


def _need_own_files(context: Any) -> None:
    """Refuse an output that would replace another one, or a file that the command reads."""
    from nest.units import shorten

    written: dict[str, str] = {}
    read = {os.path.realpath(word)
            for parameter in context.command.params if not {*OUTPUTS} & {*parameter.opts}
            for word in _texts(context.params.get(parameter.name)) if os.path.isfile(word)}
    for parameter in context.command.params:
        file = context.params.get(parameter.name)
        option = next((name for name in OUTPUTS if name in parameter.opts), None)
        if option is None or not isinstance(file, str):
            continue
        place = file
        with suppress(OSError, ValueError):  # told when the file is looked at
            place = os.path.normcase(os.path.realpath(file))
            if os.path.exists(place) and not os.path.isfile(place):
                continue  # /dev/null takes anything, and a folder is told of by the command
        if place in read:
            raise InputError(f"{option}: got {shorten(file)}, which the command reads; allowed: "
                             "another file")
        first = written.setdefault(place, option)
        if first != option:
            raise InputError(f"{option}: got {shorten(file)}, which {first} writes too; allowed: "
                             "another file")


def _texts(value: object) -> list[str]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [one for one in values if isinstance(one, str)]


def _named(line: str, context: Any) -> str:
    """A line of a message with the option or the argument that it is about."""
    from nest.units import shorten

    spelled = [(option, parameter.name) for parameter in context.command.params
               for option in parameter.opts if option.startswith("--")]
    options = {name: (option, name) for option, name in spelled}  # as --to of `target`
    options |= {option.lstrip("-").replace("-", "_"): (option, name) for option, name in spelled}
    match = _FIELD.fullmatch(line)
    if match and match[2] in options:
        option, name = options[match[2]]
        if match[1] or _given(context, name):
            return f"{option}: {match[3]}"
    for label, value in _words(context):
        if line.startswith(f"{value!r}: "):  # of an empty text
            return f"{label}{line.removeprefix(repr(value))}"
        if line.startswith(f"{shorten(value, 300)[1:-1]}: "):
            return f"{label} {line}"
    return line


def _given(context: Any, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _words(context: Any) -> Iterator[tuple[str, str]]:
    """Texts of the command line with the option or the argument that they were given for.

    The only file of a command needs no label.
    """
    for parameter in context.command.params:
        value = context.params.get(parameter.name)
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        labels = [parameter.opts[0]] * len(values)
        if parameter.param_type_name == "argument":
            labels = (parameter.metavar or "").split(" | ")[0].split()[-len(values):]
            if len(labels) < 2 or len(labels) != len(values):
                continue
        yield from ((label, text) for label, text in zip(labels, values, strict=True)
                    if isinstance(text, str) and _given(context, parameter.name))
