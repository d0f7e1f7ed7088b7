"""MaxText's YAML as model, job and configuration.

Defaults and rules: AI-Hypercomputer/maxtext@e591f30 src/maxtext/configs/base.yml,
src/maxtext/configs/types.py:1220 to 1300.
"""

from __future__ import annotations

import math
from typing import Any

from nest.errors import InputError
from nest.frameworks.division import Division, Span, configuration, job
from nest.frameworks.maxtext import MODELS, OWN, POLICIES, SETTINGS
from nest.frameworks.ranks import Placed
from nest.frameworks.settings import Plain, flat
from nest.frameworks.source import (
    FileDescription,
    Source,
    divided,
    figures_in,
    model_of,
    said,
    understood,
)
from nest.frameworks.torchtitan.read import typed
from nest.inputs import load_stack
from nest.inputs.files import parse_text
from nest.inputs.formats import number_format
from nest.inputs.model import Model
from nest.model import Chain, build_chain
from nest.schedules.registry import chunks_at
from nest.units import shorten

COUNTS = ("seq_len", "accumulated", "pp", "stage_layers", "cp_rings", "cp_a2a", "tensor",
          "tensor_sequence", "ep",
          "model.layers", "model.hidden", "model.heads", "model.kv_heads", "model.head_dim",
          "model.ffn", "model.vocab")
VERSION = "e591f30"
"""Of the defaults."""
AXES = ("ici_data_parallelism", "ici_fsdp_parallelism", "dcn_data_parallelism")
"""Axes that may take all devices that are left."""
FLASH = {"cudnn_flash_te": True, "cudnn_flash_jax": True, "flash": True, "dot_product": False}


def read(source: Source) -> FileDescription:
    """The YAML, and overrides behind it.

    Raises
    ------
    InputError : settings that may change the cost and are not understood, or do not fit together.
    """
    data = parse_text(source.text, ".yml", source.where)
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise InputError(f"{source.where}: got {shorten(data)}; allowed: a mapping of settings")
    notes: list[str] = []
    there = flat(data) | overrides(source)
    given = understood(there, (*SETTINGS, *OWN), "maxtext", source, notes, ("override_model_config",
                                                                            "num_slices"))
    hardware = given.pop("hardware")
    if hardware not in ("gpu", "gpu_multiprocess", "tpu"):
        raise InputError(f"{source.where}: hardware: got {shorten(hardware)}; allowed: gpu, "
                         "gpu_multiprocess, tpu")
    _check_slices(given.pop("num_slices", -1), hardware, given, source, notes)
    if given.pop("override_model_config", False) and given["model_name"] != "default" and (
            changed := [one.name for one in OWN if one.name in there]):
        raise InputError(f"{source.where}: override_model_config: got true, with "
                         f"{', '.join(changed)}; allowed: false, or the changed model by --model "
                         "MODEL and without them")
    for name, plain in (("quantization", ""), ("context_parallel_strategy", "all_gather")):
        if given[name] == plain and (name != "context_parallel_strategy"
                                     or given["ici_context_parallelism"] == 1):
            del given[name]
    given.pop("shardy", None)
    own = _own(given, source)
    axes = {name: given.pop(name) for name in AXES}
    repeats, micro = given.pop("num_pipeline_repeats"), given.pop("num_pipeline_microbatches")
    f = figures_in((*SETTINGS, *OWN), given, source, COUNTS)
    model = _model(f, given, source, own)
    return _found(source, f, axes, model, (repeats, micro), notes)


def overrides(source: Source) -> Plain:
    """Arguments such as ``steps=10``, and settings of the user."""
    found: Plain = {}
    for word in source.words:
        name, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"{source.where}: got argument {shorten(word)}; allowed: NAME=VALUE")
        found[name] = typed(value)
    return found | {name: typed(value) for name, value in source.asked.settings.items()}


def _check_slices(
    slices: object, hardware: str, given: Plain, source: Source, notes: list[str]
) -> None:
    """GPUs are one slice (src/maxtext/utils/max_utils.py, get_num_slices); of TPUs several are
    copies along the data axis unless the dcn axes say otherwise, which have no price."""
    if slices not in (-1, 1):
        raise InputError(f"{source.where}: num_slices: got {shorten(slices)}; allowed: -1, 1 "
                         "(several slices have no price)")
    if hardware == "tpu":
        if slices == -1 and given["dcn_data_parallelism"] == -1:
            notes.append("one slice of TPUs is assumed (several: --set dcn_data_parallelism=N)")
        notes.append("figures of the stack are those of GPUs, assumed: no run of MaxText on TPUs "
                     "was measured")


def _own(given: Plain, source: Source) -> bool:
    """Whether the YAML describes the model itself, by widths of Llama 2's layers."""
    own = bool(given["model_name"] == "default")
    if own and given["decoder_block"] != "llama2" and source.asked.model is None:
        raise InputError(f"{source.where}: decoder_block: got {shorten(given['decoder_block'])}; "
                         "allowed: llama2, or the model by --model MODEL")
    if not own:
        for one in OWN:
            given.pop(one.name, None)
    return own


def _model(f: dict[str, Any], given: Plain, source: Source, own: bool) -> Model:
    if source.asked.model is not None or not own:
        named = {theirs: ours for ours, theirs in MODELS.items()}.get(str(given["model_name"]))
        found = model_of(source, named, f"model_name: no model of the catalog is "
                         f"{shorten(given['model_name'])}")
        if f.get("mtp", 0) not in (0, found.mtp_layers):
            raise InputError(f"{source.where}: mtp_num_layers: got {shorten(f['mtp'])}; allowed: "
                             f"{found.mtp_layers}, as {found.name} has")
        return found
    return Model.parse({
        "name": "model", "gated": True, "norm": "rmsnorm", "bias": False,
        "source": "read from a YAML of MaxText",
        **{name.partition(".")[2]: value for name, value in f.items()
           if name.startswith("model.")}}, source.where)


def _found(
    source: Source, f: dict[str, Any], axes: Plain, model: Model, pipeline: tuple[Any, Any],
    notes: list[str],
) -> FileDescription:
    """Figures in the terms of NEST."""
    if min(f["tensor"], f["tensor_sequence"]) > 1:
        raise InputError(f"{source.where}: ici_tensor_parallelism and "
                         "ici_tensor_sequence_parallelism: got both above 1; allowed: one of them")
    tp, pp, ep = f["tensor"] * f["tensor_sequence"], f["pp"], f["ep"]
    cp = f["cp_rings"] * f["cp_a2a"]
    if cp > 1 and (f["cp_a2a"] > 1) != (f.get("cp_comm") == "a2a+p2p"):
        raise InputError(f"{source.where}: ici_context_usp_ulysses_parallelism: got "
                         f"{f['cp_a2a']}; allowed: above 1 with context_parallel_strategy usp "
                         "alone")
    replicas, fsdp = _axes(source, axes, tp * pp * cp * ep)
    dp = replicas * fsdp * ep
    zero = 3 if fsdp * ep * cp > 1 else int(f["optimizer_only"])
    world = dp * tp * pp * cp
    device_batch, accumulated = f["device_batch"], f["accumulated"]
    batch = device_batch * world * accumulated if isinstance(device_batch, (int, float)) else 0
    if not 1 <= batch <= 10**9 or abs(batch - round(batch)) > 1e-6:
        raise InputError(f"{source.where}: per_device_batch_size: got {shorten(device_batch)}; "
                         f"allowed: times {world} devices a whole number of sequences")
    batch = round(batch)
    schedule, steps = _pipeline(source, f, model, pipeline)
    if schedule and accumulated > 1:
        raise InputError(f"{source.where}: gradient_accumulation_steps: got {accumulated}; "
                         "allowed: 1 with a pipeline (several a step have no price)")
    micro = divided(source, "per_device_batch_size x devices", batch, dp * steps,
                    "the data parallel degree x micro-batches")
    seq_len = said(source, "max_target_length", f["seq_len"], source.asked.seq_len, "--seq-len")
    precision = f.get("precision") or f["dtype"]
    if not isinstance(f["attention"], str) or f["attention"] not in FLASH:
        notes.append(f"attention {shorten(f['attention'])} is priced as fused attention")
    base = source.asked.stack or "maxtext"
    stack = load_stack(base)
    gradients = "fp8_gradient_dtype" if number_format(precision).narrow else "gradient_dtype"
    said_ = {"flash_attention": FLASH.get(str(f["attention"]), True),
             gradients: f["gradient_dtype"]}
    changes = {name: value for name, value in said_.items() if getattr(stack, name) != value}
    recompute, modules = _policy(f, source)
    way = configuration(Division(
        _chunks(build_chain(model), pp), dp, micro, tp=tp, sp=f["tensor_sequence"] > 1, cp=cp,
        cp_comm=f.get("cp_comm", "p2p") if cp > 1 else "p2p", cp_a2a=f["cp_a2a"], ep=ep, etp=tp,
        zero=zero,
        replicas=replicas if zero == 3 and replicas > 1 else None, recompute=recompute,
        modules=modules, schedule=schedule),
        None if source.places is None else _by_stage(source.places, dp, pp, cp, tp, ep, source),
        source.where, notes)
    return FileDescription(model, job(batch, seq_len, said(
        source, "the number format", precision, source.asked.precision, "--precision"),
        f["optimizer"], base, changes), way, world, tuple(notes))


def _axes(source: Source, axes: Plain, inner: int) -> tuple[int, int]:
    """Replicas, and ranks of the fsdp axis; -1: all devices that are left."""
    for name, value in axes.items():
        if type(value) is not int or not (value == -1 or 1 <= value <= 10**7):
            raise InputError(f"{source.where}: {name}: got {shorten(value)}; allowed: a whole "
                             "number, or -1")
    if axes[AXES[2]] == -1:  # GPUs are one slice: src/maxtext/utils/max_utils.py, get_num_slices
        axes = {**axes, AXES[2]: 1}
    world = source.asked.devices or source.world
    there = math.prod(value for value in axes.values() if value != -1)
    if world is None and -1 in axes.values():
        raise InputError(f"{source.where}: an axis is -1, all devices that are left; say how many "
                         "there are by --devices N")
    left = [name for name, value in axes.items() if value == -1]
    if len(left) > 1:
        raise InputError(f"{source.where}: {' and '.join(left)} are -1; allowed: one of them")
    if left:
        assert world is not None
        axes = {**axes, left[0]: divided(source, "devices", world, there * inner,
                                         "the product of the axes")}
    return axes[AXES[0]] * axes[AXES[2]], axes[AXES[1]]


def _pipeline(
    source: Source, f: dict[str, Any], model: Model, pipeline: tuple[Any, Any]
) -> tuple[str | None, int]:
    """Schedule, and micro-batches of a step."""
    pp, (repeats, micro) = f["pp"], pipeline
    if pp == 1:
        return None, f["accumulated"]
    size = divided(source, "the model's layers", model.layers, pp, "the stages")
    if f["stage_layers"] != size or repeats not in (-1, 1):
        raise InputError(f"{source.where}: num_layers_per_pipeline_stage, num_pipeline_repeats: "
                         f"got {f['stage_layers']}, {shorten(repeats)}; allowed: {size}, 1 "
                         "(repeats have no price)")
    micro = pp if micro == -1 else micro
    if type(micro) is not int or not 1 <= micro <= 10**7:
        raise InputError(f"{source.where}: num_pipeline_microbatches: got {shorten(micro)}; "
                         "allowed: a whole number, or -1")
    return "gpipe", micro


def _policy(f: dict[str, Any], source: Source) -> tuple[str, tuple[str, ...]]:
    names = {policy: modules for modules, policy in POLICIES.items()}
    if f["policy"] == "full":
        return "full", ()
    if not isinstance(f["policy"], str) or f["policy"] not in names:
        raise InputError(f"{source.where}: remat_policy: got {shorten(f['policy'])}; allowed: "
                         f"full, {', '.join(names)} (others have no price; --set remat_policy=full "
                         "bounds the time from above, minimal_with_context the memory)")
    return "selective", names[f["policy"]]


def _chunks(chain: Chain, pp: int) -> list[tuple[Span, ...]]:
    if pp == 1:
        return [((0, len(chain)),)]
    first, end = chain.body
    size = (end - first) // pp
    return chunks_at([0, *(first + n * size for n in range(1, pp)), len(chain)], pp, "gpipe")


def _by_stage(
    places: Placed, dp: int, pp: int, cp: int, tp: int, ep: int, source: Source
) -> Placed:
    """Places of ranks numbered along MaxText's axes, in the order tp, cp, dp, pp."""
    if len(places) != dp * pp * cp * tp:
        raise InputError(f"{source.where}: the axes take {dp * pp * cp * tp} devices, and the "
                         f"launch starts {len(places)}")
    rows = dp // ep
    return tuple(
        places[(((stage * rows + n // ep) * cp + context) * tp + tensor) * ep + n % ep]
        for stage in range(pp) for n in range(dp) for context in range(cp) for tensor in range(tp))
