"""Files for Hugging Face's Trainer with a JSON of DeepSpeed: Axolotl, LLaMA-Factory, accelerate.

Their settings are arguments of the Trainer, some by other names (transformers==4.57.1
src/transformers/training_args.py); the JSON that they name says the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nest.errors import InputError
from nest.exports.settings import Plain, nested
from nest.inputs.files import read_text
from nest.reading import deepspeed
from nest.reading.source import Found, Source, understood
from nest.reading.translated import settings_of
from nest.units import shorten

NAMES = {"per_device_train_batch_size": "per_device_train_batch_size",
         "micro_batch_size": "per_device_train_batch_size",
         "gradient_accumulation_steps": "gradient_accumulation_steps", "bf16": "bf16",
         "fp16": "fp16", "gradient_checkpointing": "gradient_checkpointing", "optim": "optim",
         "optimizer": "optim"}
"""Arguments of the Trainer by the names of these files."""
_LENGTHS = ("cutoff_len", "sequence_len")
_ADAPTERS = {"finetuning_type": ("full",), "adapter": (None, "")}
"""Settings that train a part of the parameters, and values that train all."""
_DEFAULTS: Plain = {"gradient_accumulation_steps": 1, "bf16": False, "fp16": False,
                    "optim": "adamw_torch"}
"""Source: transformers==4.57.1 src/transformers/training_args.py:823 to 1030."""
_ACCELERATE = {"zero_stage": "zero_optimization.stage",
               "gradient_accumulation_steps": "gradient_accumulation_steps",
               "gradient_clipping": "gradient_clipping",
               "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
               "offload_param_device": "zero_optimization.offload_param.device"}
"""Settings of accelerate's ``deepspeed_config``, and DeepSpeed's (accelerate==1.11.0
src/accelerate/utils/dataclasses.py, DeepSpeedPlugin)."""


def read(source: Source) -> Found:
    """A YAML of Axolotl or LLaMA-Factory, and the JSON that it names.

    Raises
    ------
    InputError : settings that may change the cost and are not understood, adapters, or no JSON.
    """
    notes: list[str] = []
    there = settings_of(_of_the_file(source, (*NAMES, *_LENGTHS, *_ADAPTERS, "deepspeed")))
    for name, whole in _ADAPTERS.items():
        if name in there and there[name] not in whole:
            raise InputError(f"{source.where}: {name}: got {shorten(there[name])}; allowed: "
                             f"{whole[0] or 'none'} (adapters train a part of the parameters, "
                             "which has no price)")
    given = understood(there, (), "trainer", source, notes, (*NAMES, *_LENGTHS, *_ADAPTERS,
                                                             "deepspeed"))
    named = given.get("deepspeed")
    if not isinstance(named, str):
        raise InputError(f"{source.where}: deepspeed: "
                         f"{'got ' + shorten(named) if 'deepspeed' in given else 'missing'}; "
                         "allowed: a JSON of DeepSpeed (other ways to divide a model: `nest "
                         "evaluate MODEL CLUSTER --stack fsdp --zero 3`)")
    settings = {**_DEFAULTS, **{NAMES[name]: value for name, value in given.items()
                                if name in NAMES}}
    if settings["bf16"] == "auto":  # where the device has it
        settings["bf16"] = settings["fp16"] not in (True, "auto")
    settings["optim"] = str(settings["optim"]).removeprefix("OptimizerNames.").lower()
    length = next((given[name] for name in _LENGTHS if name in given), None)
    return _read(source, _beside(source, named), settings, length, notes)


def read_accelerate(source: Source) -> Found:
    """A YAML of accelerate with settings of DeepSpeed, or the JSON that it names.

    Raises
    ------
    InputError : as :func:`read`; or another way to divide the model.
    """
    notes: list[str] = []
    there = settings_of(_of_the_file(source, ("distributed_type", "num_processes",
                                              "mixed_precision")))
    kind = there.get("distributed_type")
    if kind != "DEEPSPEED":
        raise InputError(
            f"{source.where}: distributed_type: got {shorten(kind)}; allowed: DEEPSPEED (batch, "
            "sequence and model are not in a file of accelerate; `nest evaluate MODEL CLUSTER "
            "--stack fsdp --zero 3 --mbs N --global-batch N --seq-len N` prices FSDP with full "
            "sharding, --zero 2 what is not resharded, --recompute full activation checkpointing)")
    known = {f"deepspeed_config.{name}": theirs for name, theirs in _ACCELERATE.items()}
    file = "deepspeed_config.deepspeed_config_file"
    given = understood(there, (), "accelerate", source, notes, (
        *known, "mixed_precision", "num_processes", file))
    world = given.get("num_processes")
    source = source._replace(world=source.world or (world if type(world) is int else None))
    named = given.get(file)
    settings: Plain = {}
    if isinstance(named, str):
        return _read(source, _beside(source, named), settings, None, notes)
    found = {theirs: given[name] for name, theirs in known.items() if name in given}
    found.setdefault("gradient_accumulation_steps", 1)
    found.setdefault("train_micro_batch_size_per_gpu", "auto")
    precision = given.get("mixed_precision", "no")
    if precision not in ("no", "bf16", "fp16"):
        raise InputError(f"{source.where}: mixed_precision: got {shorten(precision)}; allowed: no, "
                         "bf16, fp16")
    if precision != "no":
        found[f"{precision}.enabled"] = True
    return _read(source, json.dumps(nested(found)), settings, None, notes)


def _of_the_file(source: Source, names: Iterable[str]) -> Source:
    """Without settings of the user that are those of the JSON."""
    kept = {name: value for name, value in source.asked.settings.items() if name in {*names}}
    return source._replace(asked=source.asked._replace(settings=kept))


def _beside(source: Source, named: str) -> str:
    """The text of a file that another names: beside it, in its folders, or above it.

    Raises
    ------
    InputError : it is not there.
    """
    folder = Path(source.where).resolve().parent
    for above in (folder, *list(folder.parents)[:3]):
        if not named.startswith("/") and ".." not in Path(named).parts and (
                above / named).is_file():
            return read_text(above / named)
    if (folder / Path(named).name).is_file():
        return read_text(folder / Path(named).name)
    raise InputError(f"{source.where}: deepspeed: {shorten(named)} is not beside the file; put it "
                     "there")


def _read(
    source: Source, text: str, settings: Plain, length: Any, notes: list[str]
) -> Found:
    """The JSON, with the Trainer's arguments; what the user sets comes first."""
    asked = source.asked
    if length is not None and (type(length) is not int or length < 1):
        raise InputError(f"{source.where}: got {shorten(length)} tokens of a sequence; allowed: a "
                         "whole number")
    words = {name: str(value) for name, value in settings.items()} | dict(asked.settings)
    found = deepspeed.read(source._replace(text=text, words=(), asked=asked._replace(
        settings=words, seq_len=asked.seq_len if length is None else length)))
    return found._replace(notes=(*notes, *found.notes))
