"""A job's own file, of any target, read back: :func:`read`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from nest.describe import load_model
from nest.describe.configuration import Configuration
from nest.describe.files import read_text
from nest.describe.job import Job
from nest.describe.model import Model
from nest.errors import InputError, did_you_mean
from nest.reading import bridge, deepspeed, fsdp2, launches, maxtext, run, torchtitan
from nest.reading.launches import Launch
from nest.reading.run import Reading
from nest.reading.shell import Script
from nest.reading.source import Asked, Found, Source
from nest.units import shorten

READERS: Mapping[str, Callable[[Source], Found]] = {
    "torchtitan": torchtitan.read_python,
    "torchtitan-toml": torchtitan.read_toml,
    "fsdp2": fsdp2.read,
    "deepspeed": deepspeed.read,
    "megatron-bridge": bridge.read,
    "maxtext": maxtext.read,
}
"""Readers of configuration files by target; Megatron-LM has command lines."""
TARGETS = ("megatron", *READERS)
_SUFFIXES = {".toml": "torchtitan-toml", ".json": "deepspeed", ".yml": "maxtext",
             ".yaml": "maxtext"}


def read(
    path: str | os.PathLike[str], *, target: str | None = None, devices: int | None = None,
    model: Model | str | None = None, vocab: int | None = None, seq_len: int | None = None,
    precision: str | None = None, optimizer: str | None = None, stack: str | None = None,
    function: str | None = None, variables: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
) -> Reading:
    """Read a running job's file as model, job and configuration.

    The file is read as text; nothing in it is executed.

    Parameters
    ----------
    path : of a launch script, of a file with a command line, or of a configuration file.
    target : what it is for, a name of ``nest.reading.TARGETS``; default: as the file shows.
    devices : that the job runs on; default: as the launcher or the degrees say.
    model : the model, where the file does not describe it: a catalog name, a path, or a Model.
    vocab : tokens of the vocabulary, where only the tokenizer's files say them.
    seq_len, precision, optimizer : of the job, where the file does not say.
    stack : name of the training software in the catalog; default: as the file says.
    function : of a Python module: it returns the configuration.
    variables : of a script's environment, by name; "1", "2", ... are arguments of the script. Names
        with dots, and all names where ``path`` is no script, are settings that override the file's.
    ignore : arguments or settings to leave out, which are not understood otherwise.

    Returns
    -------
    Reading
        ``nest.evaluate(found.model, cluster, found.job, found.configuration)`` prices it.

    Raises
    ------
    InputError : no such file, not one of a known kind, settings that may change the cost and are
        not understood, or values that it does not say.
    """
    if target is not None and target not in TARGETS:
        raise InputError(f"target: got {shorten(target)}; {did_you_mean(target, TARGETS)}allowed: "
                         f"{', '.join(TARGETS)}")
    where = shorten(os.fspath(path), 300)[1:-1]
    text, given = read_text(path), dict(variables or {})
    settings = {name: value for name, value in given.items() if "." in name}
    asked = Asked(model, vocab, seq_len, precision, optimizer, stack, devices,
                  tuple(one.removeprefix("--") for one in ignore), function, settings)
    kind = _kind(path, text)
    if kind is None:
        script = Script(text, where, {name: value for name, value in given.items()
                                      if name not in settings})
        launch = None if target == "megatron" else launches.launched(script, os.fspath(path))
        if launch is None:
            if target not in (None, "megatron"):
                raise InputError(f"{where}: no command found that hands a file to {target}; "
                                 "allowed: its launch script, or the file itself")
            return run.read(path, devices=devices, vocab=vocab, stack=stack, variables=variables,
                            ignore=ignore)
        return _launched(launch, script, os.fspath(path), text, asked)
    if target == "megatron":
        raise InputError(f"{where}: got a file for {kind}; allowed: a launch script or a command "
                         "line of Megatron-LM")
    return _read(target or kind, Source(text, where, asked._replace(settings=given)), 1, [])


def _kind(path: str | os.PathLike[str], text: str) -> str | None:
    """The target of a configuration file; None: it is a script."""
    suffix = Path(os.fspath(path)).suffix.lower()
    if suffix != ".py":
        return _SUFFIXES.get(suffix)
    for mark, kind in (("megatron.bridge", "megatron-bridge"), ("DP_REPLICATE", "fsdp2")):
        if mark in text:
            return kind
    return "torchtitan"


def _launched(launch: Launch, script: Script, path: str, text: str, asked: Asked) -> Reading:
    inside = launches.text_inside(launch, script, text)
    file = path if inside is not None else launches.file_of(launch, path)
    source = Source(
        read_text(file) if inside is None else inside, shorten(file, 300)[1:-1], asked._replace(
            function=asked.function or launch.function), launch.words,
        launches.places_beside(launch, text, path), launch.world)
    return _read(launch.target, source, launch.line, [*launch.words])


def _read(target: str, source: Source, line: int, words: list[str]) -> Reading:
    if target not in READERS:
        raise InputError(f"{source.where}: got a file for {target}; allowed: {', '.join(READERS)}")
    found = READERS[target](source)
    if source.asked.devices not in (None, found.devices):
        raise InputError(f"{source.where}: its degrees take {found.devices} devices, and --devices "
                         f"says {source.asked.devices}; allowed: the same")
    title = f"# Read from {os.path.basename(source.where)}; {found.devices} devices.\n"
    texts = {"model": plain_model(found.model), "job": found.job,
             "configuration": found.configuration}
    return Reading(
        found.model, Job.parse(found.job, source.where),
        Configuration.parse(found.configuration, source.where), found.devices, found.notes,
        {f"{name}.yaml": title + yaml.safe_dump(data, sort_keys=False, width=100)
         for name, data in texts.items()}, tuple(words), line)


def plain_model(model: Model) -> dict[str, object]:
    """Fields of a model that are not its defaults, as a file has them."""
    found = model.model_dump(mode="json", exclude_defaults=True)
    return found if load_model(found) == model else model.model_dump(mode="json")
