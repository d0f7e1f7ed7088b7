"""The module that `nest export --to fsdp2` writes, as job and configuration; nothing of it is run.

Its constants say the division. A training program of another form has none, and is not read.
"""

from __future__ import annotations

from typing import Any

from nest.errors import InputError
from nest.frameworks.division import Division, configuration, job
from nest.frameworks.fsdp2 import SETTINGS
from nest.frameworks.settings import Plain
from nest.frameworks.source import FileDescription, Source, figures_in, model_of, said, understood
from nest.frameworks.text.python_text import Module, UnknownValue
from nest.frameworks.torchtitan.read import typed
from nest.inputs import load_stack
from nest.model import build_chain
from nest.units import shorten

TARGET = "fsdp2"
COUNTS = ("replicas", "shards", "cp", "tp", "micro_batch", "micro_batches", "seq_len")


def overrides(source: Source) -> Plain:
    """Constants that the user gives otherwise."""
    return {name: typed(value) for name, value in source.asked.settings.items()}


def read(source: Source) -> FileDescription:
    """The module's constants.

    Raises
    ------
    InputError : constants that may change the cost and are not understood, or are missing.
    """
    constants = Module(source.text, source.where).constants | overrides(source)
    found: dict[str, Any] = {
        name: value.text.removeprefix("torch.") if isinstance(value, UnknownValue)
        and name.endswith("_DTYPE") else value for name, value in constants.items()}
    notes: list[str] = []
    given = understood(found, SETTINGS, TARGET, source, notes, ("LAYERS",))
    for one in SETTINGS:
        if one.name not in given and one.figure not in ("recompute_layers", "cp_comm"):
            raise InputError(f"{source.where}: no {one.name}; allowed: a module that nest export "
                             "--to fsdp2 wrote, with its constants")
    f = figures_in(SETTINGS, given, source, COUNTS)
    ways = f"set_rotate_method({'ROTATE' if 'ROTATE' in given else chr(34) + 'alltoall' + chr(34)})"
    if ways not in source.text and f["cp"] > 1:
        raise InputError(f"{source.where}: CP: got {f['cp']}; allowed: 1, or keys and values that "
                         "are passed around or gathered (set_rotate_method)")
    model = model_of(source, None, "the module does not name its model")
    if given.get("LAYERS", model.layers) != model.layers:
        raise InputError(f"{source.where}: LAYERS: got {shorten(given['LAYERS'])}; allowed: "
                         f"{model.layers}, the layers of {model.name}")
    stack = source.asked.stack or "fsdp"
    kept = load_stack(stack).gradient_dtype
    changes = {} if f["gradient_dtype"] == kept else {"gradient_dtype": f["gradient_dtype"]}
    dp = f["replicas"] * f["shards"]
    zero = f["zero"] if f["zero"] == 3 or f["shards"] * f["cp"] > 1 else 0
    modules = f["recompute_modules"]
    if f["recompute"] not in ("none", "full", "selective") or not isinstance(modules, tuple):
        raise InputError(f"{source.where}: RECOMPUTE, RECOMPUTE_MODULES: got "
                         f"{shorten(f['recompute'])}, {shorten(modules)}; allowed: none, full or "
                         "selective, and a tuple of modules")
    way = configuration(Division(
        [((0, len(build_chain(model))),)], dp, f["micro_batch"], tp=f["tp"], sp=f["sp"], cp=f["cp"],
        cp_comm=f.get("cp_comm", "p2p") if f["cp"] > 1 else "p2p", etp=f["tp"], zero=zero,
        replicas=f["replicas"] if zero and f["replicas"] > 1 else None,
        recompute=f["recompute"], modules=modules, recompute_layers=f.get("recompute_layers")),
        source.places, source.where, notes)
    optimizer = said(source, "the optimizer", None, source.asked.optimizer or "adam",
                     "--optimizer")
    if source.asked.optimizer is None:
        notes.append("the optimizer is not in the file: Adam is assumed (--optimizer)")
    return FileDescription(model, job(
        dp * f["micro_batch"] * f["micro_batches"], f["seq_len"], f["precision"], optimizer, stack,
        changes), way, dp * f["tp"] * f["cp"], tuple(notes))
