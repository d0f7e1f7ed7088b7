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
    str, typer.Argument(metavar="FILE", help="Launch script or command line, or the file that it "
                        "hands to the program: TOML or Python of torchtitan, JSON of DeepSpeed, a "
                        "recipe of Megatron-Bridge, YAML of MaxText, a module of `nest export "
                        "--to fsdp2`. It is read as text and never executed.")]
Target = Annotated[
    str | None, typer.Option("--from", metavar="TARGET", help="What FILE is for: megatron, "
                             "torchtitan, torchtitan-toml, fsdp2, deepspeed, megatron-bridge or "
                             "maxtext; default: recognized from FILE.")]
ModelName = Annotated[
    str | None, typer.Option("--model", metavar="MODEL", help="The model, if FILE does not "
                             "describe it: a name from `nest list models`, or a file.")]
SeqLen = Annotated[int | None, options.number("Tokens of a sequence, if FILE does not say.")]
Precision = Annotated[
    str | None, typer.Option("--precision", metavar="NAME", help="Number format as of `nest plan`, "
                             "if FILE does not say.")]
Optimizer = Annotated[
    str | None, typer.Option("--optimizer", metavar="NAME", help="Optimizer, if FILE does not "
                             "say: adam, sgd or sgd-momentum.")]
Function = Annotated[
    str | None, typer.Option("--function", metavar="NAME", help="Function of a Python FILE that "
                             "returns the configuration.")]
World = Annotated[int | None, options.number("Devices of the job; default: those of the "
                                             "launcher in the script.")]
Vocab = Annotated[int | None, options.number("Tokens of the vocabulary, if only the "
                                             "tokenizer's files have the number.")]
StackName = Annotated[
    str | None, typer.Option("--stack", metavar="NAME", help="Training software from `nest list "
                             "stacks`; default: as in FILE.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A variable of the "
                                   "environment, 1=VALUE for an argument of the script, or a "
                                   "setting that overrides FILE's; may be repeated.")]
Ignored = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="ARGUMENT", help="An argument or setting to "
                                   "leave out, without hyphens; must be in FILE; the price leaves "
                                   "out what it does; may be repeated.")]


def read(
    file: Script,
    folder: Annotated[
        str, typer.Option("-o", "--output", metavar="DIR",
                          help="Folder for the files; created if missing.")
    ],
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
    force: Annotated[
        bool, typer.Option("--force", help="Replace files of the same names in DIR.")
    ] = False,
) -> None:
    """Read a running job's file back as model, job and configuration.

    They are written as model.yaml, job.yaml and configuration.yaml in a folder DIR.
    `nest evaluate DIR/model.yaml CLUSTER --job DIR/job.yaml --configuration
    DIR/configuration.yaml` prices the job. An argument or setting that may change the
    cost and is not understood is an error.
    """
    from nest.cli.inputs import check_counts
    from nest.frameworks.reader import read
    from nest.frameworks.target import check_folder, write_folder

    check_counts(devices=devices, vocab=vocab, seq_len=seq_len)
    check_folder(folder, force)
    found = read(
        file, target=target, devices=devices, model=model, vocab=vocab, seq_len=seq_len,
        precision=precision, optimizer=optimizer, stack=stack, function=function,
        variables=variables(settings), ignore=ignore or ())
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
        if not equals or not re.fullmatch(r"[A-Za-z_][\w.-]*|\d{1,3}", name):
            raise InputError(f"--set: got {text[:60]!r}; allowed: NAME=VALUE")
        found[name] = value
    return found
