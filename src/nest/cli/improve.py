"""`nest improve`: the better plan for a job that runs today, and its launch script."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from nest.cli import options
from nest.cli.follow import Follow
from nest.cli.output import deliver, page, say
from nest.cli.read import (
    Function,
    Ignored,
    ModelName,
    Optimizer,
    Precision,
    Script,
    SeqLen,
    Settings,
    StackName,
    Target,
    Vocab,
    World,
    variables,
)
from nest.errors import UnsupportedError


def improve(
    file: Script,
    cluster: Annotated[
        str, typer.Argument(metavar="CLUSTER", help="Catalog name, file or graph of what the job "
                            "runs on.")],
    folder: Annotated[
        str | None, typer.Option("-o", "--output", metavar="DIR", help="Folder for the new "
                                 "file; created if missing. Nothing is written where no plan is "
                                 "better.")
    ] = None,
    *,
    target: Target = None,
    devices: World = None,
    model: ModelName = None,
    vocab: Vocab = None,
    seq_len: SeqLen = None,
    precision: Precision = None,
    optimizer: Optimizer = None,
    stack: StackName = None,
    function: Function = None,
    settings: Settings = None,
    ignore: Ignored = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="ARGUMENT", help="Do not switch this on: "
                     "overlap-grad-reduce, overlap-param-gather, tp-comm-overlap of Megatron-LM, "
                     "or a setting of overlap; or do not change moe-token-dispatcher-type; may be "
                     "repeated."),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Scripts of Megatron-LM: only plans that need no "
                           "list of nodes or ranks, so that the script keeps its launcher.")
    ] = False,
    space: options.SpaceFile = None,
    time_limit: options.TimeLimit = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files of the same names in DIR.")
    ] = False,
) -> None:
    """Price a job's own file, and find a better plan.

    The plan is the fastest that the same software can run for the same model, batch and
    devices. The new file is the old one with the settings that NEST decides replaced.
    """
    from functools import partial

    from nest.cli.inputs import check_counts, space_from
    from nest.cli.present import progress
    from nest.frameworks.improving import improve as ask
    from nest.frameworks.reader import devices_of
    from nest.frameworks.target import check_folder, write_folder
    from nest.network.network import load_network

    check_counts(devices=devices, vocab=vocab, seq_len=seq_len, threads=threads)
    if folder is not None:
        check_folder(folder, force)
    given, bounds = variables(settings), None if space is None else space_from(space)
    asked: dict[str, Any] = {
        "target": target, "model": model, "vocab": vocab, "seq_len": seq_len,
        "precision": precision, "optimizer": optimizer, "stack": stack, "function": function,
        "variables": given, "ignore": ignore or ()}
    world = devices or devices_of(file, **asked)
    where = load_network(cluster)
    if where.size != world:
        where = load_network(cluster, devices=world)
    what = f"{os.path.basename(file)[:30]} on {world:,} devices"
    with progress(quiet), Follow(what, quiet) as follow:
        found = ask(file, where, bounds, **asked, keep=keep or (), in_place=in_place,
                    threads=threads, time_limit=time_limit, progress=follow)
    writes = [partial(write_folder, folder, found.files, force)] if folder and found.files else []
    deliver(lambda: found.to_json() if as_json else found.report(**page()), *writes,
            quiet=quiet and not as_json)
    if writes:
        say("nest: written: " + ", ".join(os.path.join(str(folder), name) for name in found.files))
    elif folder and not found.refused:
        say("nest: nothing is written, because no plan is better")
    if follow.interrupted:
        raise KeyboardInterrupt
    if folder and found.refused:
        raise UnsupportedError("\n".join(found.refused), found.refused)
