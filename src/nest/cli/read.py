"""`nest read` and `nest improve`: a job that runs today, as descriptions and with a better plan."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from nest.cli import options, output
from nest.cli.options import number, text
from nest.cli.output import say
from nest.cli.progress import Follow, progress
from nest.errors import InputError, UnsupportedError

Script = Annotated[str, options.argument(
    "Launch script or command line, or the file that it hands to the program: TOML or Python of "
    "torchtitan, JSON of DeepSpeed, a recipe of Megatron-Bridge, YAML of MaxText, a module of "
    "`nest export --to fsdp2`, or what `nest capture` recorded; for `nest read` also the log of a "
    "job. It is read as text and never executed.", "FILE")]


@dataclass(frozen=True, kw_only=True)
class ScriptOptions:
    """What a file of a running job does not say, or says otherwise."""

    target: Annotated[str | None, text(
        "What FILE is for: megatron, torchtitan, torchtitan-toml, fsdp2, deepspeed, "
        "megatron-bridge, maxtext or log; default: recognized from FILE.", "TARGET", "--from")] = (
        None)
    devices: Annotated[int | None, number(
        "Devices of the job; default: those of the launcher in the script.")] = None
    model: Annotated[str | None, text(
        "The model, if FILE does not describe it: a name from `nest list models`, or a file.",
        "MODEL")] = None
    vocab: Annotated[int | None, number(
        "Tokens of the vocabulary, if only the tokenizer's files have the number.")] = None
    seq_len: Annotated[int | None, number("Tokens of a sequence, if FILE does not say.")] = None
    precision: Annotated[str | None, text(
        "Number format as of `nest plan`, if FILE does not say.", "NAME")] = None
    optimizer: Annotated[str | None, text(
        "Optimizer, if FILE does not say: adam, sgd or sgd-momentum.", "NAME")] = None
    stack: Annotated[str | None, text(
        "Training software from `nest list stacks`; default: as in FILE.", "NAME")] = None
    function: Annotated[str | None, text(
        "Function of a Python FILE that returns the configuration.", "NAME")] = None
    settings: Annotated[list[str] | None, text(
        "A variable of the environment, 1=VALUE for an argument of the script, or a setting that "
        "overrides FILE's; may be repeated.", "NAME=VALUE", "--set")] = None
    ignore: Annotated[list[str] | None, text(
        "An argument or setting to leave out, without hyphens; must be in FILE; the price leaves "
        "out what it does; may be repeated.", "ARGUMENT")] = None

    launch: Annotated[int | None, number(
        "Of a document of `nest capture` with several launches: the number of one.")] = None

    def check(self) -> None:
        """Refuse numbers out of range.

        Raises
        ------
        InputError : one is not allowed.
        """
        options.check_counts(devices=self.devices, vocab=self.vocab, seq_len=self.seq_len,
                             launch=self.launch)

    def asked(self) -> dict[str, Any]:
        """Arguments of :func:`nest.read`.

        Raises
        ------
        InputError : a setting has no name and value.
        """
        found = {name: getattr(self, name) for name in (
            "target", "devices", "model", "vocab", "seq_len", "precision", "optimizer", "stack",
            "function", "launch")}
        return found | {"variables": variables(self.settings), "ignore": self.ignore or ()}


def variables(given: list[str] | None) -> dict[str, str]:
    """Variables of --set.

    Raises
    ------
    InputError : no name and value.
    """
    found = {}
    for setting in given or ():
        name, equals, value = setting.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][\w.-]*|\d{1,3}", name):
            raise InputError(f"--set: got {setting[:60]!r}; allowed: NAME=VALUE")
        found[name] = value
    return found


def read(
    file: Script,
    folder: options.Folder,
    *,
    script: ScriptOptions,
    gpu: Annotated[str | None, text(
        "Device of the measured run, if a log does not print it; a name of `nest list devices` or "
        "such as H100.", "NAME")] = None,
    gpus_per_node: Annotated[int | None, number(
        "Devices of a node of the measured run; default: 8, or all of fewer.")] = None,
    force: options.Force = False,
) -> None:
    """Read a running job's file back as model, job and configuration.

    They are written as model.yaml, job.yaml and configuration.yaml in a folder DIR.
    `nest evaluate DIR/model.yaml CLUSTER --job DIR/job.yaml --configuration
    DIR/configuration.yaml` prices the job. An argument or setting that may change the
    cost and is not understood is an error. Of a log, run.csv has what was measured, a row for
    `nest validate` and `nest calibrate runs`.
    """
    from nest.frameworks.reader import LOG, read
    from nest.frameworks.target import check_folder, write_folder
    from nest.measured import logs

    script.check()
    options.check_counts(gpus_per_node=gpus_per_node)
    check_folder(folder, force)
    asked = script.asked()
    files: dict[str, str] = {}
    if asked["target"] == LOG or asked["target"] is None and logs.is_log(file):
        from nest.measured.logs.table_row import table
        from nest.report.log_text import log_text

        log = logs.read(file, **{name: value for name, value in asked.items() if name != "launch"})
        output.emit(log_text(log))  # it is of use without a configuration, too
        found = log.settings
        files["run.csv"] = table(log, found.model, found.job, found.configuration, found.devices,
                                 gpu or "", gpus_per_node)
    elif gpu or gpus_per_node:
        raise InputError("gpu, gpus-per-node: got one; allowed: with a log, in which a run was "
                         "measured")
    else:
        found = read(file, **asked)
    output.note(found.notes)
    write_folder(folder, {**found.files, **files}, force)
    output.emit("\n".join(os.path.join(folder, name) for name in (*found.files, *files)))


def improve(
    file: Script,
    cluster: Annotated[str, options.argument(
        "Catalog name, file or graph of what the job runs on.", "CLUSTER")],
    folder: Annotated[str | None, text(
        "Folder for the new file; created if missing. Nothing is written where no plan is better.",
        "DIR", "-o", "--output")] = None,
    *,
    script: ScriptOptions,
    keep: Annotated[list[str] | None, text(
        "Do not switch this on: overlap-grad-reduce, overlap-param-gather, tp-comm-overlap of "
        "Megatron-LM, or a setting of overlap; or do not change moe-token-dispatcher-type; may be "
        "repeated.", "ARGUMENT")] = None,
    in_place: Annotated[bool, text(
        "Scripts of Megatron-LM: only plans that need no list of nodes or ranks, so that the "
        "script keeps its launcher.", None, "--in-place")] = False,
    space: options.SpaceFile = None,
    time_limit: options.TimeLimit = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    force: options.Force = False,
) -> None:
    """Price a job's own file, and find a better plan.

    The plan is the fastest that the same software can run for the same model, batch and
    devices. The new file is the old one with the settings that NEST decides replaced.
    """
    from nest.frameworks.improving import improve as ask
    from nest.frameworks.reader import devices_of
    from nest.frameworks.target import check_folder, write_folder
    from nest.network.network import load_network

    script.check()
    options.check_counts(threads=threads)
    if folder is not None:
        check_folder(folder, force)
    asked = script.asked()
    bounds = None if space is None else options.SpaceOptions(space=space).described()
    world = asked.pop("devices") or devices_of(file, **asked)
    where = load_network(cluster)
    if where.size != world:
        where = load_network(cluster, devices=world)
    what = f"{os.path.basename(file)[:30]} on {world:,} devices"
    with progress(quiet), Follow(what, quiet) as follow:
        found = ask(file, where, bounds, **asked, keep=keep or (), in_place=in_place,
                    threads=threads, time_limit=time_limit, progress=follow)
    writes = [partial(write_folder, folder, found.files, force)] if folder and found.files else []
    output.deliver(lambda: found.to_json() if as_json else found.report(**output.page()), *writes,
                   quiet=quiet and not as_json)
    if writes:
        say("nest: written: " + ", ".join(os.path.join(str(folder), name) for name in found.files))
    elif folder and not found.refused:
        say("nest: nothing is written, because no plan is better")
    follow.reraise()
    if folder and found.refused:
        raise UnsupportedError("\n".join(found.refused), found.refused)
