"""`nest export`: the files that training software is launched with."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from nest.cli import options
from nest.cli.output import emit, say
from nest.errors import InputError


def export(
    file: Annotated[
        str, typer.Argument(metavar="PLAN.json", help="A plan, as `nest plan -o` writes it.")
    ],
    target: Annotated[
        str, typer.Option("--to", metavar="TARGET", help="What to write for: megatron, deepspeed, "
                          "torchtitan, torchtitan-toml, fsdp2, megatron-bridge, maxtext; or "
                          "a step for a simulator: chakra (ASTRA-sim), simai.")
    ],
    folder: Annotated[
        str, typer.Option("-o", "--output", metavar="DIR",
                          help="Folder for the files; created if missing.")
    ],
    gpus_per_node: Annotated[
        int | None,
        options.number("Devices of a node; default: those of the cluster's innermost level, or 4 "
                       "where that is a rack."),
    ] = None,
    launcher: Annotated[
        str,
        typer.Option("--launcher", metavar="NAME", help="What starts the processes: torchrun, on "
                     "each node; deepspeed, mpi or slurm, on one."),
    ] = "torchrun",
    hosts: Annotated[
        str | None,
        typer.Option("--hosts", metavar="FILE", help="Names of the nodes, a line each, in the "
                     "order of the cluster; default: node0, node1, ..."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files of the same names in DIR.")
    ] = False,
) -> None:
    """Write a plan as the launch script of its training software.

    Or its step as traces for a simulator. Nothing is written if the software cannot express the
    plan. Data, tokenizer, learning rate, steps and checkpoints are in no plan. Scripts of
    Megatron-LM and Megatron-DeepSpeed ask for them as variables, those of MaxText for tokenizer
    and steps. torchtitan, Megatron-Bridge and MaxText have defaults for the rest, which you
    replace in the files or behind the script. With fsdp2 and the stack deepspeed, your own
    program decides them.
    """
    from nest.cli.inputs import check_counts
    from nest.evaluation.plan_file import looks_like_file, reread
    from nest.frameworks.target import check_folder, write_folder
    from nest.frameworks.targets import export, need_launcher, need_target

    need_target(target)
    need_launcher(launcher)
    check_counts(gpus_per_node=gpus_per_node)
    check_folder(folder, force)
    if not looks_like_file(file):
        raise InputError(f"export: got {file[:60]!r}, which is not a file; allowed: PLAN.json as "
                         "`nest plan -o` writes it")
    plan, notes = reread(file)
    for note in notes:
        say(f"nest: note: {note}")
    names = None if hosts is None else _names(hosts)
    files = export(plan, target, gpus_per_node=gpus_per_node, launcher=launcher, hosts=names)
    write_folder(folder, files, force)
    emit("\n".join(os.path.join(folder, name) for name in files))


def _names(file: str) -> list[str]:
    """Lines of a file; empty ones and comments are left out."""
    from nest.inputs.files import read_text

    lines = (line.strip() for line in read_text(file).splitlines())
    return [line for line in lines if line and not line.startswith("#")]
