"""`nest ask` and `nest serve`: the planner for other programs, over a pipe or HTTP."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, BinaryIO

from nest.cli import options
from nest.cli.options import number, text
from nest.cli.output import emit, say
from nest.cli.progress import progress
from nest.errors import InputError, NestError

if TYPE_CHECKING:
    from nest.api import Planner

MEMORY = "256 MiB"


def ask(
    memory: Annotated[str, text(
        "Memory for data that questions share, such as 1 GiB; 0: nothing.", "BYTES")] = MEMORY,
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

    options.check_counts(threads=threads)
    planner = Planner(int(options.bytes_of("--memory", memory)))
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


def serve(
    *,
    host: Annotated[str, text(
        "Address to listen at; others than loopback need a token.", "ADDRESS")] = "127.0.0.1",
    port: Annotated[int, number("Port; 0: any that is free. Default 8316.")] = 8316,
    token_file: Annotated[str | None, text(
        "File with the token that requests must carry; default: the variable NEST_TOKEN.",
        "FILE")] = None,
    workers: Annotated[int | None, number(
        "Processes that plan; default: one for each processor.")] = None,
    folder: Annotated[str | None, text(
        "Folder for the answers of sweeps; default: a temporary one.", "FOLDER")] = None,
    store: Annotated[str | None, text(
        "File that keeps answers for the next server; default: memory only.", "FILE")] = None,
    time_limit: Annotated[float, options.seconds("Longest search; default 60.")] = 60.0,
    most_devices: Annotated[
        int, number("Most devices of a question; default 131,072.")] = 131_072,
    most_layers: Annotated[int, number("Most layers; default 1024.")] = 1024,
    most_bytes: Annotated[
        int, number("Most bytes of a request; default 4194304.")] = 4 * 2**20,
    grace: Annotated[float, options.seconds(
        "Time that running questions may still take when the server ends; default 10.")] = 10.0,
) -> None:
    """Answer questions over HTTP until SIGTERM or Ctrl-C.

    GET /openapi.json describes the addresses. Questions that are not answered when the server ends
    are handed back.
    """
    from nest.server.running import serve as run
    from nest.server.settings import ServerSettings, token_of

    options.check_counts(threads=workers)
    run(ServerSettings(
        host=host, port=port, token=token_of(token_file), workers=workers or 0, folder=folder,
        store=store, seconds=time_limit, devices=most_devices, layers=most_layers, body=most_bytes,
        grace=grace), say)


def mcp(threads: options.Threads = None) -> None:
    """Offer the planner to assistants (Model Context Protocol).

    It speaks over stdin and stdout. Tools: plan, evaluate, explain, compare, document,
    launch_files, learn, next_runs, diagnose, catalog, schema. AGENTS.md says how to use them.
    """
    from nest.cli.listing import DOCUMENTS, document
    from nest.server.agents import server

    def schema_of(name: str) -> dict[str, object]:
        options.one_of("schema", name, DOCUMENTS)
        return document(name)

    options.check_counts(threads=threads)
    server(schema_of, threads).run("stdio")
