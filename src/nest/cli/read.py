"""`nest read`: a job that runs today as descriptions of NEST."""

from __future__ import annotations

import os
import re
from typing import Annotated

import typer

from nest.cli import options
from nest.cli.output import emit, say
from nest.errors import InputError

Script = Annotated[
    str, typer.Argument(metavar="RUN.sh", help="Launch script or command line of Megatron-LM; it "
                        "is read as text and never executed.")]
World = Annotated[int | None, options.number("Devices of the job; default: as the launcher in the "
                                             "script says.")]
Vocab = Annotated[int | None, options.number("Tokens of the vocabulary, where only the "
                                             "tokenizer's files say them.")]
StackName = Annotated[
    str | None, typer.Option("--stack", metavar="NAME", help="Training software from `nest list "
                             "stacks`; default: megatron-core or megatron-fsdp.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A variable of the "
                                   "environment, or 1=VALUE for an argument of the script; may "
                                   "be repeated.")]
Ignored = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="ARGUMENT", help="An argument to leave out, "
                                   "without hyphens; may be repeated.")]


def read(
    file: Script,
    folder: Annotated[
        str, typer.Option("-o", "--output", metavar="DIR", help="Folder for the files; it is made.")
    ],
    devices: World = None,
    vocab: Vocab = None,
    stack: StackName = None,
    settings: Settings = None,
    ignore: Ignored = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files of the same names in DIR.")
    ] = False,
) -> None:
    """Read a launch script back as model.yaml, job.yaml and configuration.yaml.

    `nest evaluate DIR/model.yaml CLUSTER --job DIR/job.yaml --configuration
    DIR/configuration.yaml` prices the job. An argument that may change the cost and is not
    understood is an error.
    """
    from nest.cli.inputs import check_counts
    from nest.exports.folder import check_folder, write_folder
    from nest.reading import read

    check_counts(devices=devices, vocab=vocab)
    check_folder(folder, force)
    found = read(file, devices=devices, vocab=vocab, stack=stack, variables=variables(settings),
                 ignore=ignore or ())
    for note in found.notes:
        say(f"nest: note: {note}")
    write_folder(folder, found.files, force)
    emit("\n".join(os.path.join(folder, name) for name in found.files))


def variables(given: list[str] | None) -> dict[str, str]:
    """Variables of --set.

    Raises
    ------
    InputError : no name and value.
    """
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*|\d{1,3}", name):
            raise InputError(f"--set: got {text[:60]!r}; allowed: NAME=VALUE")
        found[name] = value
    return found
