"""The launches of a script as a document, and as the lines of a script that has nothing else."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from typing import Annotated, NamedTuple

from pydantic import Field

from nest.errors import InputError
from nest.inputs.base import Freeze, Written
from nest.inputs.files import document_of, parse_json, read_text
from nest.units import shorten

SCHEMA = "nest.capture/1.0"
SCHEMAS = r"^nest\.capture/1(\.\d{1,9})?$"
MOST_LAUNCHES = 1000


class CapturedLaunch(Written):
    """One command that a script would have started."""

    words: tuple[str, ...] = Field(description="the command, word by word")
    outer: tuple[str, ...] = Field((), description="launchers that start it, with their options")
    environment: Annotated[dict[str, str], Freeze] = Field(
        description="variables of launchers and frameworks; never a password, key or token")
    folder: str = Field(description="where it would have been started")
    script: str = Field("", description="the script whose line it is; empty: not known")
    line: int = Field(0, description="of that script; 0: not known")


class Capture(Written):
    """Launches of a script, as `nest capture` records them."""

    schema_: Annotated[str, Field(alias="schema", pattern=SCHEMAS)] = SCHEMA
    command: tuple[str, ...] = Field(description="what was run")
    script: str = Field(description="path of the script; empty: there is none")
    text: str = Field(description="of the script")
    launches: tuple[CapturedLaunch, ...] = Field(
        min_length=1, max_length=MOST_LAUNCHES, description="in the order of their start")
    notes: tuple[str, ...] = Field((), description="what may differ from a real run")

    def lines_of(self, argument: str) -> list[int]:
        """Numbers of the script's lines that name an argument, outside of comments."""
        named = re.compile(rf"^(?!\s*#).*(?<![\w-]){re.escape(argument)}(?![\w-])")
        return [number for number, line in enumerate(self.text.split("\n"), 1)
                if named.match(line)]

    def to_json(self, indent: int | None = 2) -> str:
        """The capture as the text of one JSON document."""
        return self.model_dump_json(by_alias=True, indent=indent)


class ScriptText(NamedTuple):
    """A launch script, or the launches of one."""

    text: str
    path: str
    """Of the script; files are looked for beside it."""
    capture: Capture | None = None
    """None: it is a script, which is read as text."""

    @property
    def written(self) -> str:
        """The text that the user has written."""
        return self.text if self.capture is None else self.capture.text


    def place(self, where: str, line: int) -> tuple[str, int]:
        """Name and line of a command in the script itself, where they are known."""
        if self.capture is None or not (found := self.capture.launches[line - 1]).line:
            return where, line
        return os.path.basename(found.script) or where, found.line


def is_capture(text: str) -> bool:
    """Whether a text is a document of `nest capture`."""
    found = parse_json(text) if text.lstrip()[:1] == "{" and '"nest.capture/' in text else None
    return isinstance(found, dict) and document_of(found) == "capture"


def script_text(path: str | os.PathLike[str], launch: int | None = None) -> ScriptText:
    """The text of a script; of a capture a line for each launch.

    Parameters
    ----------
    launch : number of the only launch that counts, from 1; None: all.

    Raises
    ------
    InputError : no such file, no such launch, or ``launch`` without a capture.
    """
    text = read_text(path)
    if not is_capture(text):
        if launch is not None:
            raise InputError(f"launch: got {launch}; allowed: with a document of `nest capture`")
        return ScriptText(text, os.fspath(path))
    capture = Capture.parse(parse_json(text), os.fspath(path))
    if launch is not None and not 1 <= launch <= len(capture.launches):
        raise InputError(f"launch: got {launch}; allowed: 1 to {len(capture.launches)}")
    lines = ["" if launch not in (None, number) else line_of(one)
             for number, one in enumerate(capture.launches, 1)]
    folder = capture.launches[(launch or 1) - 1].folder
    return ScriptText("\n".join(lines) + "\n", capture.script or os.path.join(folder, "run.sh"),
                      capture)


def refuse_variables(where: str, names: Iterable[str]) -> None:
    """Refuse values for a capture, which has all of its own.

    Raises
    ------
    InputError : there are some.
    """
    if names := [*names]:
        raise InputError(f"{where}: got {shorten(names[0])} for the script; allowed: no variable "
                         "with a document of `nest capture`, which has the values of its run")


def line_of(launch: CapturedLaunch) -> str:
    """A launch as a line of shell; line breaks in its words, which no line holds, are quoted."""
    given = [f"{name}={_quoted(value)}" for name, value in launch.environment.items()]
    return " ".join([*given, *map(_quoted, (*launch.outer, *launch.words))])


def _quoted(word: str) -> str:
    if "\n" not in word:
        return shlex.quote(word)
    inner = word.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"$'{inner}'"
