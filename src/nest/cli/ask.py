"""`nest ask`: a stream of questions, answered as they come."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from nest.cli import options
from nest.errors import InputError, NestError

if TYPE_CHECKING:
    from nest.api import Planner

MEMORY = "256 MiB"


def ask(
    memory: Annotated[
        str, typer.Option(metavar="BYTES", help="Memory for data that questions share, "
                          "such as 1 GiB; 0: nothing.")] = MEMORY,
    threads: options.Threads = None,
    quiet: options.Quiet = False,
) -> None:
    """Answer a stream of questions, one JSON document a line.

    Questions come on stdin, answers on stdout, in order, each as soon as it is known:
    nest.answer/1, or nest.error/1 with the id of the question, after which the next question
    is answered.
    `nest schema question` has the fields.
    """
    from nest.api import Planner
    from nest.cli.inputs import check_counts
    from nest.cli.output import emit
    from nest.cli.present import progress
    from nest.units import parse_bytes

    check_counts(threads=threads)
    try:
        planner = Planner(int(parse_bytes(memory)))
    except ValueError as error:
        raise InputError(f"--memory: {error}") from None
    if sys.stdin is None:
        return
    with progress(quiet):
        for number, line in _lines(sys.stdin.buffer):
            if not emit(_answer(planner, number, line, threads)):
                return  # nobody reads on


def _answer(planner: Planner, number: int, line: bytes | NestError, threads: int | None) -> str:
    """What comes of a line, as a line."""
    from nest.questions import Answer, failure, read_question
    from nest.questions.question import id_of, plain

    asked = None
    try:
        if isinstance(line, NestError):
            raise line
        data = plain(line, f"line {number}")
        asked = id_of(data)
        question, notes = read_question(data, f"line {number}")
        return Answer(id=asked, notes=notes, plan=planner.answer(question, threads)).to_json()
    except Exception as error:
        return failure(error, asked).to_json()


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | NestError]]:
    """Lines that are not empty, with their numbers; an error in the place of one too long."""
    from nest.inputs.files import LARGEST

    number = 0
    while line := stream.readline(LARGEST + 1):
        number += 1
        if len(line) > LARGEST:
            while line and not line.endswith(b"\n"):
                line = stream.readline(LARGEST)
            yield number, InputError(f"line {number}: got more than {LARGEST} bytes; allowed: "
                                     f"{LARGEST} bytes a question")
        elif line.strip():
            yield number, line
