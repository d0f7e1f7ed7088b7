"""Megatron-Bridge's recipes, changed or not, as model, job and configuration; nothing is run.

Defaults and rules: NVIDIA-NeMo/Megatron-Bridge@v0.6.0 src/megatron/bridge/recipes/common.py:37,
src/megatron/bridge/training/comm_overlap.py:377; of the rest as
:mod:`nest.frameworks.megatron.read`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nest.errors import InputError
from nest.evaluation.divisions import chunks_of_stages
from nest.frameworks.division import Division, configuration, exchange, job
from nest.frameworks.megatron.read import capacity_of, modules_of, split
from nest.frameworks.megatron.table import RECIPES as SCALINGS
from nest.frameworks.megatron.write_bridge import ENDS, OVERLAP, PRECISIONS, RECIPES, SETTINGS
from nest.frameworks.ranks import Placed
from nest.frameworks.settings import Plain, Setting
from nest.frameworks.source import (
    FileDescription,
    Source,
    divided,
    figures_in,
    model_of,
    said,
    understood,
)
from nest.frameworks.text.python_text import Module, PythonCall, UnknownValue, fields_of, not_read
from nest.frameworks.torchtitan.read import typed
from nest.inputs import load_stack
from nest.inputs.formats import number_format
from nest.inputs.job import Job, Stack
from nest.inputs.model import Model
from nest.inputs.offload import Offload
from nest.model import build_chain
from nest.units import shorten

COUNTS = ("tp", "pp", "cp", "ep", "etp", "virtual", "group", "recomputed", "instances",
          "global_batch", "micro_batch", "seq_len")
COMMON = "_pretrain_common"
"""Function of the recipes whose fields the defaults are."""
_OVERLAP = tuple(one._replace(name=f"comm_overlap.{one.name}") for one in OVERLAP)
_DDP = ("ddp.overlap_grad_reduce", "ddp.overlap_param_gather")
_FULL = "mixed_precision.grad_reduce_in_fp32"
SPLIT = {"model.num_layers_in_first_pipeline_stage": "decoder-first-pipeline-num-layers",
          "model.num_layers_in_last_pipeline_stage": "decoder-last-pipeline-num-layers",
          "model.account_for_embedding_in_pipeline_split":
              "account-for-embedding-in-pipeline-split",
          "model.account_for_loss_in_pipeline_split": "account-for-loss-in-pipeline-split"}
_GRAPHS = ("model.cuda_graph_impl", "model.cuda_graph_scope", "model.cuda_graph_modules")
_NEEDED = ("model.tensor_model_parallel_size", "model.pipeline_model_parallel_size",
           "model.context_parallel_size", "model.recompute_granularity",
           "ddp.use_distributed_optimizer", "train.global_batch_size", "train.micro_batch_size")


def read(source: Source) -> FileDescription:
    """A function that returns a recipe's configuration, and overrides of its fields.

    Raises
    ------
    InputError : fields that may change the cost and are not understood, or do not fit together.
    """
    module = Module(source.text, source.where, source.asked.ignored)
    base = module.returned(source.asked.function or "plan")
    if not isinstance(base, PythonCall):
        raise not_read(base, source.where)
    found = fields_of(base, source.where)
    found.pop("model", None)
    for name in ("optimizer", "tokenizer", "dataset"):
        if isinstance(found.get(name), PythonCall):
            del found[name]
    found |= overrides(source)
    precision = _precision(found, source)
    ends = found.pop(ENDS, precision == "fp8")
    _formats(found, precision)
    overlaps = found.pop("comm_overlap", None)
    for name, value in found.items():
        if isinstance(value, UnknownValue) and value.text.startswith("torch."):
            found[name] = value.text
    notes: list[str] = []
    known: list[Setting] = [*SETTINGS, *_OVERLAP]
    given = understood(found, known, "megatron-bridge", source, notes, (
        *_DDP, _FULL, *SPLIT, *_GRAPHS, "model.mtp_num_layers"))
    if ends is not False:
        notes.append(f"no price: the first and the last layer in bf16 ({ENDS})")
    if base.name != COMMON:
        for name in _NEEDED:
            if name not in found:
                raise InputError(f"{source.where}: {name}: {shorten(base.name)[1:-1]} decides it, "
                                 "which is not in this file; give it by --set NAME=VALUE")
    model = model_of(source, next(
        (name for name, (_, recipe) in RECIPES.items() if recipe == base.name), None),
        "no model of the catalog is known by its recipe")
    if (given.get("model.mtp_num_layers") or 0) != model.mtp_layers and \
            "model.mtp_num_layers" in given:
        raise InputError(f"{source.where}: model.mtp_num_layers: got "
                         f"{shorten(given['model.mtp_num_layers'])}; allowed: {model.mtp_layers}, "
                         f"as {model.name} has")
    f = figures_in(known, {name: value for name, value in given.items() if value is not None},
                   source, COUNTS)
    if isinstance(overlaps, PythonCall) and f.get("distributed"):
        for name in ("overlap_grad_reduce", "overlap_param_gather"):
            if f.get(name) is None:  # src/megatron/bridge/training/comm_overlap.py:576 to 579
                f[name] = True
    if isinstance(overlaps, PythonCall) or overlaps is None:
        return _found(source, f, given, model, precision, notes)
    raise InputError(f"{source.where}: comm_overlap: got {shorten(overlaps)}; allowed: None, "
                     "CommOverlapConfig(...)")


def overrides(source: Source) -> Plain:
    """Arguments such as ``train.train_iters=10``, and settings of the user."""
    found: Plain = {}
    for word in source.words:
        name, equals, value = word.lstrip("+").partition("=")
        if not equals or "." not in name:
            raise InputError(f"{source.where}: got argument {shorten(word)}; allowed: NAME=VALUE")
        found[name] = typed(value)
    return found | {name: typed(value) for name, value in source.asked.settings.items()}


def _precision(found: Plain, source: Source) -> str:
    made = found.pop("mixed_precision", "bf16_mixed")
    if made is None:
        return "fp32"
    name = made.name if isinstance(made, PythonCall) else made
    for precision, function in PRECISIONS.items():
        if name == function:
            return precision
    shown = made.text if isinstance(made, UnknownValue) else name
    raise InputError(f"{source.where}: mixed_precision: got {shorten(shown)}; allowed: None, "
                     f"{', '.join(PRECISIONS.values())}")


def _formats(found: Plain, precision: str) -> None:
    """Fields that the function of a number format sets and a file leaves as they are.

    Source: src/megatron/bridge/training/mixed_precision.py:185 to 419.
    """
    recipe, name = SCALINGS.get(precision), "mixed_precision.fp8_recipe"
    if recipe is None or found.get(name) == recipe:
        found.pop(name, None)
    if precision == "fp16":
        found.setdefault(_FULL, False)
    if precision in ("fp8", "fp8-delayed", "mxfp8"):
        found.setdefault("mixed_precision.fp8_param_gather", True)
    if precision == "mxfp8":
        found.setdefault("mixed_precision.reuse_grad_buf_for_mxfp8_param_ag", True)
    if precision == "nvfp4":
        found.setdefault("mixed_precision.fp4_param_gather", True)


def _found(
    source: Source, f: dict[str, Any], given: Plain, model: Model, precision: str,
    notes: list[str],
) -> FileDescription:
    """Figures in the terms of NEST."""
    world = source.asked.devices or source.world
    if world is None:
        raise InputError(f"{source.where}: the number of devices is not in the file; give it by "
                         "--devices N")
    tp, pp, cp = (f.get(name) or 1 for name in ("tp", "pp", "cp"))
    dp = divided(source, "devices", world, tp * pp * cp, "tensor x pipeline x context parallel "
                 "size")
    ep, etp = (f.get("ep") or 1, f.get("etp") or tp) if model.moe else (1, tp)
    seq_len = said(source, "dataset.seq_length", f.get("seq_len"), source.asked.seq_len,
                   "--seq-len")
    base = source.asked.stack or "megatron-bridge"
    stack = load_stack(base)
    zero = _zero(f)
    for flag, setting in (("overlap_grad_reduce", _DDP[0]), ("overlap_param_gather", _DDP[1])):
        if f.get(flag) is None:
            f[flag] = bool(given.get(setting))
    changes = _stack(f, given, stack, model, precision, zero)
    described = job(f["global_batch"], seq_len, said(
        source, "the number format", precision, source.asked.precision, "--precision"), "adam",
        base, changes) | capacity_of(f, model)
    layout, vpp, (first, last) = split(
        f, {**{flag: given[name] for name, flag in SPLIT.items() if given.get(name)},
            "num-virtual-stages-per-pipeline-rank": f.get("virtual")}, model, pp)
    chunks = chunks_of_stages(
        build_chain(model), Job.parse(described, source.where), pp, vpp, layout=layout,
        first_stage_layers=first, last_stage_layers=last)
    places = source.places
    if f.get("mapped") and pp > 1:
        places = _by_stage(places or range(world), dp, pp, tp * cp)
    instances = f.get("instances") or 1
    recompute, modules = _recompute(f, source)
    away = Offload(float(f.get("offload_optimizer") or 1.0) if f.get("offloads") else 0.0,
                   f.get("offload_layers") or 0, tuple(f.get("offload_modules") or ()))
    way = configuration(Division(
        chunks, dp, f["micro_batch"], tp=tp, sp=bool(f.get("sp")), cp=cp,
        **exchange(f, cp, "model.hierarchical_context_parallel_sizes"), ep=ep, etp=etp, zero=zero,
        replicas=instances if instances > 1 else None, recompute=recompute, modules=modules,
        recompute_layers=f.get("recomputed") if f.get("method") == "block" else None,
        schedule="combined" if f.get("combined") else None, group=f.get("group"),
        offload=str(away)), places, source.where, notes)
    return FileDescription(model, described, way, world, tuple(notes))


def _zero(f: Mapping[str, Any]) -> int:
    if f.get("fsdp"):
        return int(f.get("zero") or 0)
    return int(bool(f.get("distributed")))


def _by_stage(places: Placed | range, dp: int, pp: int, inner: int) -> Placed:
    """Places of ranks that are numbered replica by replica, in the order stage by stage."""
    return tuple(places[(n * pp + stage) * inner + rank]
                 for stage in range(pp) for n in range(dp) for rank in range(inner))


def _recompute(f: Mapping[str, Any], source: Source) -> tuple[str, tuple[str, ...]]:
    kind = f.get("granularity") or "none"
    if kind not in ("none", "full", "selective"):
        raise InputError(f"{source.where}: model.recompute_granularity: got {shorten(kind)}; "
                         "allowed: None, full, selective")
    given = f.get("modules")
    asked = [one for one in (given if isinstance(given, list) else []) if isinstance(one, str)]
    return kind, modules_of(asked or ["core_attn"], f"{source.where}: model.recompute_modules")


def _stack(
    f: Mapping[str, Any], given: Plain, stack: Stack, model: Model, precision: str, zero: int
) -> dict[str, Any]:
    """What the fields say otherwise than the stack."""
    found: dict[str, Any] = {}
    for name, asked in (("overlap_tp", f.get("sp") and (f.get("tp") or 1) > 1),
                        ("overlap_grad_reduce", zero > 0), ("overlap_param_gather", zero > 0)):
        if asked and not f.get(name):
            found[name] = 0.0
    full = "fp32" if given.get(_FULL, True) else "bf16"
    if precision != "fp32":
        found["fp8_gradient_dtype" if number_format(precision).narrow else "gradient_dtype"] = full
    if precision == "bf16" and zero == 1 and not f.get("offloads"):
        found["master_remainders"] = bool(f.get("remainders"))
    if model.moe is not None and f.get("dispatcher"):
        found["dispatcher"] = f["dispatcher"]
        if f["dispatcher"] in ("deepep", "hybridep"):  # both are flex
            found["dispatcher"] = given.get("model.moe_flex_dispatcher_backend", "deepep")
    graphs = [given.get(name) for name in _GRAPHS]
    # src/megatron/bridge/utils/cuda_graph.py:121
    found["cuda_graphs"] = "none" if graphs[0] in (None, "none") else (
        "step" if "full_iteration" in str(graphs) else "layers")
    return {name: value for name, value in found.items() if getattr(stack, name) != value}
