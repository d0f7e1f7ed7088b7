"""`nest serve`: the planner as a service for other programs."""

from __future__ import annotations

from typing import Annotated

import typer

from nest.cli import options
from nest.cli.output import say


def serve(
    *,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen at; others than loopback need "
                          "a token.")] = "127.0.0.1",
    port: Annotated[int, options.number("Port; 0: any that is free. Default 8316.")] = 8316,
    token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="FILE", help="File with the token that "
                                 "requests must carry; default: the variable NEST_TOKEN.")] = None,
    workers: Annotated[
        int | None, options.number("Processes that plan; default: one for each processor.")
    ] = None,
    folder: Annotated[
        str | None, typer.Option("--folder", metavar="FOLDER", help="Folder for the answers of "
                                 "sweeps; default: a temporary one.")] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="FILE", help="File that keeps answers "
                                 "for the next server; default: memory only.")
    ] = None,
    time_limit: Annotated[
        float, options.seconds("Longest search; default 60.")] = 60.0,
    most_devices: Annotated[
        int, options.number("Most devices of a question; default 131,072.")] = 131_072,
    most_layers: Annotated[int, options.number("Most layers; default 1024.")] = 1024,
    most_bytes: Annotated[
        int, options.number("Most bytes of a request; default 4194304.")] = 4 * 2**20,
    grace: Annotated[
        float, options.seconds("Time that running questions may still take when the server "
                               "ends; default 10.")
    ] = 10.0,
) -> None:
    """Answer questions over HTTP until SIGTERM or Ctrl-C.

    GET /openapi.json describes the addresses. Questions that are not answered when the server ends
    are handed back.
    """
    from nest.cli.inputs import check_counts
    from nest.server.running import serve as run
    from nest.server.settings import ServerSettings, token_of

    check_counts(threads=workers)
    run(ServerSettings(
        host=host, port=port, token=token_of(token_file), workers=workers or 0, folder=folder,
        store=store, seconds=time_limit, devices=most_devices, layers=most_layers, body=most_bytes,
        grace=grace), say)
