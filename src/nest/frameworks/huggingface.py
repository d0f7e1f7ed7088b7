"""Files for Hugging Face's Trainer with a JSON of DeepSpeed: Axolotl, LLaMA-Factory, accelerate.

Their settings are arguments of the Trainer, some by other names (transformers==4.57.1
src/transformers/training_args.py, which Axolotl fills in at axolotl-ai-cloud/axolotl@067b021
src/axolotl/core/builders/base.py:271, 581, 668); the JSON that they name says the rest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nest.errors import InputError
from nest.frameworks.adapters import ADAPTERS, loss_of, trainable_of, with_loss
from nest.frameworks.deepspeed import read as deepspeed
from nest.frameworks.settings import Plain, nested, tables_of
from nest.frameworks.source import FileDescription, Source, understood
from nest.frameworks.translated import settings_of
from nest.inputs.files import read_text
from nest.inputs.lengths import Packing
from nest.units import shorten

NAMES: Mapping[str, str] = tables_of("trainer")["names"]
"""Arguments of the Trainer by the names of these files."""
_LENGTHS = ("cutoff_len", "sequence_len")
_OFF = "disable_gradient_checkpointing"
_READ = (*NAMES, *_LENGTHS, *ADAPTERS, _OFF, "deepspeed")
READ = (*_READ, "tf32")
"""Settings of these files that the user may set besides those of the JSON."""
_STAGE = 2
"""ZeRO where a file of accelerate does not say: accelerate==1.11.0
src/accelerate/utils/dataclasses.py:1202."""


def read(source: Source, body: str | None = None) -> FileDescription:
    """A YAML of Axolotl or LLaMA-Factory, and the JSON that it names, or its text.

    Raises
    ------
    InputError : settings that may change the cost and are not understood, no JSON, or one that
        contradicts the YAML.
    """
    notes: list[str] = []
    there = settings_of(_of_the_file(source, READ))
    axolotl = "base_model" in there
    defaults: Plain = tables_of("trainer")[
        f"defaults_of_{'axolotl' if axolotl else 'llama_factory'}"]
    there = {name: value for name, value in there.items() if value is not None or name in _READ}
    trained, loss = trainable_of(there, defaults, source), loss_of(there)
    given = understood(there, (), "trainer", source, notes, _READ)
    named = given.get("deepspeed")
    if not isinstance(named, str):
        raise InputError(f"{source.where}: deepspeed: "
                         f"{'got ' + shorten(named) if 'deepspeed' in given else 'missing'}; "
                         "allowed: a JSON of DeepSpeed (other ways to divide a model: `nest "
                         "evaluate MODEL CLUSTER --stack fsdp --zero 3`)")
    if assumed := [f"{name}: {value}" for name, value in defaults.items()
                   if name in _READ and name not in there]:
        notes.append(f"not in the file, the defaults: {', '.join(assumed)}")
    given = {**defaults, **given}
    settings = _arguments(given, axolotl, source)
    if not (settings["bf16"] or settings["fp16"]) and there.get("tf32", defaults["tf32"]):
        raise InputError(f"{source.where}: tf32: got {shorten(there.get('tf32', 'auto'))}; "
                         "allowed: false, or bf16 (training in 32 bits by tf32 has no price)")
    length = next(given[name] for name in _LENGTHS if name in defaults)
    words = tuple(f"--{name}={value}" for name, value in settings.items())
    packing = _packing(there, source, notes)
    found = _read(source, body or _beside(source, named), words, length, notes)
    found = found._replace(job={**found.job, "packing": packing})
    if loss != "whole":
        found = found._replace(job={**found.job, "stack": with_loss(found.job["stack"], loss)})
    return found if trained is None else found._replace(
        model=found.model.replace(trainable=trained))


def _packing(there: Plain, source: Source, notes: list[str]) -> Packing:
    """How samples fill sequences, which counts where the job's lengths are stated.

    Axolotl packs with boundaries (axolotl-ai-cloud/axolotl@067b021
    src/axolotl/utils/schemas/config.py, sample_packing), LLaMA-Factory with neat_packing alone
    (hiyouga/LLaMA-Factory@ff6d4d1 src/llamafactory/hparams/data_args.py, packing, neat_packing).

    Raises
    ------
    InputError : a flag is not true, false or nothing.
    """
    given = {name: there.get(name) for name in ("sample_packing", "packing", "neat_packing")}
    for name, value in given.items():
        if value not in (None, True, False):
            raise InputError(f"{source.where}: {name}: got {shorten(value)}; allowed: true, false")
    given["packing"] = given["packing"] or there.get("stage") == "pt"
    if given["packing"] and not given["neat_packing"]:
        notes.append("packing without neat_packing: attention sees whole sequences, whatever "
                     "samples they have; state no --lengths")
    return "packed" if any(given.values()) else "padded"


def _arguments(given: Plain, axolotl: bool, source: Source) -> Plain:
    """Arguments of the Trainer, by its names.

    LLaMA-Factory recomputes each layer by itself, unless told not to
    (hiyouga/LLaMA-Factory@ff6d4d1 src/llamafactory/model/model_utils/checkpointing.py:184). Axolotl
    takes bf16 where the device has it (axolotl-ai-cloud/axolotl@067b021
    src/axolotl/utils/config/__init__.py:156 to 192); nothing there is false.

    Raises
    ------
    InputError : a flag is not true or false.
    """
    found = {NAMES[name]: value for name, value in given.items() if name in NAMES}
    flags = {name: given[name] or False for name in ("bf16", "fp16", "gradient_checkpointing", _OFF)
             if name in given}
    if axolotl and flags["bf16"] == "auto":
        flags["bf16"] = not flags["fp16"]
    for name, value in flags.items():
        if type(value) is not bool:
            raise InputError(f"{source.where}: {name}: got {shorten(value)}; allowed: true, false "
                             "(others have no price)")
    if axolotl and flags["bf16"]:
        flags["fp16"] = False
    if not flags.pop(_OFF, True):
        flags["gradient_checkpointing"] = True
    optim = str(found["optim"]).removeprefix("OptimizerNames.").lower()
    return {**found, **flags, "optim": optim}


def read_accelerate(source: Source) -> FileDescription:
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
    known = {f"deepspeed_config.{name}": theirs for name, theirs in tables_of(
        "accelerate")["names"].items()}
    file = "deepspeed_config.deepspeed_config_file"
    given = understood(there, (), "accelerate", source, notes, (
        *known, "mixed_precision", "num_processes", file))
    world = given.get("num_processes")
    source = source._replace(world=source.world or (
        world if type(world) is int and world > 0 else None))
    named = given.get(file)
    if isinstance(named, str) and named != "none":
        # src/accelerate/utils/dataclasses.py:1459 to 1484
        if both := [name for name in (*known, "mixed_precision") if given.get(name) is not None]:
            raise InputError(f"{source.where}: {both[0]}: got {shorten(given[both[0]])} beside "
                             f"{file}; allowed: in its JSON alone (accelerate refuses both)")
        return _read(source, _beside(source, named), (), None, notes)
    found = {theirs: given[name] for name, theirs in known.items() if given.get(name) is not None}
    if "zero_optimization.stage" not in found:
        found["zero_optimization.stage"] = _STAGE
        notes.append(f"not in the file, the default: zero_stage: {_STAGE}")
    found.setdefault("gradient_accumulation_steps", "auto")
    found.setdefault("train_micro_batch_size_per_gpu", "auto")
    precision = given.get("mixed_precision") or "no"  # YAML: no is false
    if precision not in ("no", "bf16", "fp16"):
        raise InputError(f"{source.where}: mixed_precision: got {shorten(precision)}; allowed: no, "
                         "bf16, fp16")
    if precision == "no":
        notes.append("mixed_precision is no: 32 bits, unless the program says otherwise (--set "
                     "bf16=true)")
    else:
        found[f"{precision}.enabled"] = True
    return _read(source, json.dumps(nested(found)), (), None, notes)


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
                os.path.isfile(above / named)):
            return read_text(above / named)
    if os.path.isfile(folder / Path(named).name):
        return read_text(folder / Path(named).name)
    raise InputError(f"{source.where}: deepspeed: {shorten(named)} is not beside the file; put it "
                     "there")


def _read(
    source: Source, text: str, words: tuple[str, ...], length: Any, notes: list[str]
) -> FileDescription:
    """The JSON, with the Trainer's arguments; what the user sets comes first."""
    asked = source.asked
    if length is not None and (type(length) is not int or length < 1):
        raise InputError(f"{source.where}: got {shorten(length)} tokens of a sequence; allowed: a "
                         "whole number")
    settings = {name: value for name, value in asked.settings.items()
                if name in NAMES.values() or name not in READ}
    found = deepspeed.read(source._replace(text=text, words=words, asked=asked._replace(
        settings=settings, seq_len=asked.seq_len if length is None else length)))
    return found._replace(notes=(*notes, *found.notes))
