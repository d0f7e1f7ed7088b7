"""Megatron-Bridge: a recipe of its own, and a program that changes it to a plan.

Names and meanings are those of NVIDIA-NeMo/Megatron-Bridge@v0.6.0
src/megatron/bridge/training/config.py:961 (its container), and beside it
src/megatron/bridge/training/comm_overlap.py:377,
src/megatron/bridge/training/mixed_precision.py:185, src/megatron/bridge/training/pretrain.py:39,
src/megatron/bridge/training/utils/omegaconf_utils.py:105. Fields of ``model``, ``ddp`` and
``optimizer`` are those of NVIDIA/Megatron-LM@core_v0.16.1
megatron/core/transformer/transformer_config.py,
megatron/core/distributed/distributed_data_parallel_config.py and
megatron/core/optimizer/optimizer_config.py; `.ci/frameworks` looks them up there. A recipe
describes the model, its data and its optimizer; what a plan does not decide stays as it is there.
Overrides behind the program (``train.train_iters=10``) go on top.

Defaults and rules of what is read: src/megatron/bridge/recipes/common.py:37,
src/megatron/bridge/training/comm_overlap.py:377; of the rest as
:mod:`nest.frameworks.megatron.read`. Nothing is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nest.costs.memory import SCALED
from nest.errors import InputError
from nest.evaluation.divisions import chunks_of_stages
from nest.evaluation.plans import Plan
from nest.frameworks.figures import Division, Figures, configuration, exchange, figures, job
from nest.frameworks.hosts import Placed
from nest.frameworks.launchers import LaunchScript
from nest.frameworks.megatron import hybrid
from nest.frameworks.megatron.read import capacity_of, modules_of, split
from nest.frameworks.megatron.write import RECIPES as SCALINGS
from nest.frameworks.megatron.write import (
    captured,
    fp8_gather,
    levels_of,
    replica_by_replica,
    variables,
)
from nest.frameworks.megatron.write import order as megatron_order
from nest.frameworks.settings import Plain, Setting, sections, settings
from nest.frameworks.source import (
    FileDescription,
    Source,
    assigned,
    divided,
    figures_in,
    named_model,
    said,
    understood,
)
from nest.frameworks.target import (
    Files,
    Sheet,
    Target,
    catalog_name,
    model_of,
    plain_lines,
    written,
)
from nest.frameworks.text.python_text import Module, PythonCall, UnknownValue, fields_of, not_read
from nest.inputs import load_stack
from nest.inputs.formats import number_format
from nest.inputs.job import Job, Stack
from nest.inputs.model import Model
from nest.inputs.offload import Offload
from nest.inputs.trainable import MEGATRON, Trainable
from nest.model import build_chain
from nest.units import shorten

PROGRAM = "plan_recipe.py"
_WORDS = {"norm": "layernorm", "mlp_act": "moe_act"}
_FSDP = (True,)

SETTINGS, OVERLAP, FORMATS, FUSED, GRAPHS = (
    sections("megatron-bridge")[name]
    for name in ("settings", "overlap", "formats", "fused", "graphs"))
SPLIT: Mapping[str, bool | None] = {
    "model.num_layers_in_first_pipeline_stage": None,
    "model.num_layers_in_last_pipeline_stage": None,
    "model.account_for_embedding_in_pipeline_split": False,
    "model.account_for_loss_in_pipeline_split": False}
"""How recipes divide layers without a layout, and what takes that back: Core refuses it beside a
layout (megatron/core/transformer/transformer_config.py:1307), and the layout says all. Recipes with
these are src/megatron/bridge/recipes/qwen/h100/qwen3_moe.py:261 and others."""
PRECISIONS = {"bf16": "bf16_mixed", "fp16": "fp16_mixed",
              "fp8": "bf16_with_fp8_current_scaling_mixed",
              "fp8-delayed": "bf16_with_fp8_delayed_scaling_mixed",
              "fp8-blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
              "mxfp8": "bf16_with_mxfp8_mixed", "nvfp4": "bf16_with_nvfp4_mixed"}
"""Functions that make its number formats."""
ENDS = "mixed_precision.first_last_layers_bf16"
"""Whether the first and the last layer stay in bf16, as with fp8 unless it says otherwise
(src/megatron/bridge/training/mixed_precision.py:299); prices have all layers in one format."""

RECIPES = {
    "llama2-7b": ("recipes.llama.h100.llama2", "llama2_7b_pretrain_2gpu_h100_bf16_config"),
    "llama3-8b": ("recipes.llama.h100.llama3", "llama3_8b_pretrain_2gpu_h100_bf16_config"),
    "llama3.1-8b": ("recipes.llama.h100.llama3", "llama31_8b_pretrain_2gpu_h100_bf16_config"),
    "llama3-70b": ("recipes.llama.h100.llama3", "llama3_70b_pretrain_32gpu_h100_bf16_config"),
    "llama3.1-405b": (
        "recipes.llama.h100.llama3", "llama31_405b_pretrain_256gpu_h100_bf16_config"),
    "deepseek-v3": ("recipes.deepseek.h100.deepseek_v3",
                    "deepseek_v3_pretrain_256gpu_h100_bf16_32nodes_config"),
    "qwen3-30b-a3b": (
        "recipes.qwen.h100.qwen3_moe", "qwen3_30b_a3b_pretrain_8gpu_h100_bf16_config"),
    "qwen3-235b-a22b": (
        "recipes.qwen.h100.qwen3_moe", "qwen3_235b_a22b_pretrain_256gpu_h100_bf16_config"),
    "gpt-oss-120b": (
        "recipes.gpt_oss.h100.gpt_oss", "gpt_oss_120b_pretrain_64gpu_h100_bf16_config"),
    "qwen3-next-80b-a3b": ("recipes.qwen.h100.qwen3_next",
                           "qwen3_next_80b_a3b_pretrain_32gpu_h100_bf16_config"),
    "nemotron3-nano-30b": ("recipes.nemotronh.h100.nemotron_3_nano",
                           "nemotron_3_nano_pretrain_8gpu_h100_bf16_config"),
}
"""Modules and functions of recipes by names of the catalog; other models need one of the user's."""


def figures_here(plan: Plan) -> Figures:
    """Figures of a plan that the tables name."""
    job, way, stage = plan.inputs.job, plan.configuration, plan.configuration.stages[0]
    stack, away, sharded = job.stack, Offload.of(way.offload), plan.stages[0].zero > 0
    full = stage.recompute == "full"
    fsdp = _fsdp(plan)
    modules: Any = [_WORDS.get(one, one) for one in stage.recompute_modules] or None
    kept: Any = [*away.modules] or None
    levels: Any = [int(size) for size in levels_of(stage) or ()] or None
    letters = hybrid.pattern(model_of(plan), plan)
    recurrent = model_of(plan).recurrence is not None
    return {
        **figures(job, way), "virtual": way.vpp if way.vpp > 1 else None, "pattern": letters,
        "hybrid": letters is not None,
        "layout": plan.layout if way.pp * way.vpp > 1 and letters is None else None,
        "recurrent": recurrent, "mtp": model_of(plan).mtp_layers, "rings": stage.cp > 1,
        "cp_levels": levels,
        "experts": model_of(plan).moe is not None, "dispatcher": stack.dispatcher,
        "capacity": job.expert_capacity, "padded": job.expert_padding,
        "granularity": None if stage.recompute == "none" else stage.recompute,
        "method": ("block" if stage.recompute_layers else "uniform") if full else None,
        "recomputed": (stage.recompute_layers or 1) if full else None, "modules": modules,
        "offload_layers": away.layers, "offload_layers_on": away.layers > 0,
        "offload_modules": kept, "offload_modules_on": bool(away.modules),
        "offloads": away.optimizer > 0.0, "distributed": sharded or fsdp, "fsdp": fsdp,
        "remainders": away.optimizer > 0.0 or (
            stack.master_remainders and sharded and not fsdp and _adam_in_bf16(job)),
        "instances": way.outer_dp if stage.shard == "dp_in" else 1,
        "outer": "no_shard" if stage.shard == "dp_in" else None,
        "format": "fsdp_dtensor" if fsdp else "torch_dist",
        "mapped": replica_by_replica(way, bool(plan.launch_needs)),
        "overlap_tp": stage.sp and stack.overlap_tp > 0.0,
        "overlap_grad_reduce": sharded and stack.overlap_grad_reduce > 0.0,
        "overlap_param_gather": sharded and stack.overlap_param_gather > 0.0,
        "combined": way.schedule == "combined", "graphs": stack.cuda_graphs,
        "captures": stack.cuda_graphs != "none", "captured": [*captured(model_of(plan), job)],
        "fp8_attention": job.narrow and stack.fp8_attention, "fp8_head": job.narrow and
        stack.fp8_head, "fused_experts": model_of(plan).moe is not None and stack.fused_experts,
        "room": _room(plan), "fp8_gather": fp8_gather(job, way), "scaled": job.precision in SCALED}


def _room(plan: Plan) -> bool:
    """Whether a captured step has room for the tokens of a rank."""
    job = plan.inputs.job
    return (job.stack.cuda_graphs == "step" and model_of(plan).moe is not None
            and not job.counted and job.stack.dispatcher == "hybridep" and job.stack.fused_experts)


def _adam_in_bf16(job: Job) -> bool:
    return job.optimizer == "adam" and job.precision == "bf16"


def _fsdp(plan: Plan) -> bool:
    """Whether Megatron-FSDP shards: gradients or parameters."""
    return plan.configuration.stages[0].zero > 1


def _inexpressible(plan: Plan) -> Iterator[str]:
    job, way = plan.inputs.job, plan.configuration
    yield from _unlike_adapters(model_of(plan).trainable)
    yield from hybrid.inexpressible(model_of(plan), plan)
    if plan.layout is None and way.pp * way.vpp > 1:
        yield "layers of the chunks: pipeline_model_parallel_layout has no text for them"
    if job.optimizer != "adam":
        yield f"job.optimizer {job.optimizer}: the optimizer is the recipe's, Adam"
    if job.stack.dispatch_fp8:
        yield "stack.dispatch_fp8: no field sends tokens to experts in fp8"
    if job.precision == "fp16" and job.stack.gradient_dtype == "bf16":
        yield "precision fp16: gradients in bf16 have no setting"


def _unlike_adapters(trained: Trainable | None) -> Iterator[str]:
    """What adapters have that its LoRA has no field for."""
    if trained is None:
        return
    if trained.lora is None or trained.parts:
        yield "trainable.parts: its recipes of language models train all, or adapters alone"
    if trained.layers is not None:
        yield "trainable.layers: adapters are written for all layers; allowed: null"
    if trained.frozen_precision is not None:
        yield ("trainable.frozen_precision: frozen weights are in the number format of the "
               "recipe; allowed: null")
    if trained.lora is not None and (other := {*trained.lora.targets} - {*MEGATRON}):
        yield (f"trainable.lora.targets: got {', '.join(sorted(other))}; allowed: its own modules, "
               "linear_qkv, linear_proj, linear_fc1, linear_fc2")


def _adapters(model: Model) -> dict[str, Any]:
    """Fields of its LoRA (src/megatron/bridge/peft/lora.py:143); each expert has its own."""
    trained = model.trainable
    if trained is None or trained.lora is None:
        return {}
    own = {"share_expert_adapters": False} if model.moe is not None else {}
    return {"target_modules": [*trained.lora.targets], "dim": trained.lora.rank,
            "dropout": trained.lora.dropout, **own}


def _trainable(found: Plain, source: Source) -> Trainable | None:
    """What a field `peft` and its own fields train; these are taken out. Defaults:
    src/megatron/bridge/peft/lora.py:143.

    Raises
    ------
    InputError : another scheme, or a field of LoRA that has no price.
    """
    peft = found.pop("peft", None)
    own = {name.removeprefix("peft."): found.pop(name)
           for name in [*found] if name.startswith("peft.")}
    if peft is None and not own:
        return None
    if not isinstance(peft, PythonCall) or peft.name != "LoRA":
        shown = peft.text if isinstance(peft, (PythonCall, UnknownValue)) else peft
        raise InputError(f"{source.where}: peft: got {shorten(shown)}; allowed: None, "
                         "LoRA(target_modules=[...], dim=N, dropout=SHARE)")
    for name, value in own.items():
        if name not in (*_PRICED, *_FREE) or isinstance(value, (PythonCall, UnknownValue)):
            raise InputError(f"{source.where}: peft.{name}: got {shorten(value)}; allowed: "
                             f"{', '.join((*_PRICED, *_FREE))}, as plain values")
    given = {theirs: own[name] for name, theirs in _PRICED.items() if name in own}
    return Trainable.parse({"lora": {"rank": 32, "targets": _DEFAULT_TARGETS, **given}},
                           f"{source.where}: peft")


_DEFAULT_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
_PRICED = {"target_modules": "targets", "dim": "rank", "dropout": "dropout"}
_FREE = ("alpha", "dropout_position", "lora_A_init_method", "lora_B_init_method",
         "share_expert_adapters")
"""Fields of LoRA that change no price; adapters of experts are priced one an expert."""


def program(plan: Plan, title: str, priced: str) -> str:
    """The text of the program."""
    here, precision = figures_here(plan), plan.inputs.job.precision
    model = model_of(plan)
    recipe = RECIPES.get(catalog_name(model))
    format_ = PRECISIONS.get(precision)
    lines = [
        '"""A recipe changed to a plan: run by each rank; arguments are overrides of fields.', "",
        *plain_lines(title, priced), '"""', "",
        *(["import importlib", "import os"] if recipe is None else []), "import sys", "",
        *([] if format_ else ["import torch"]),
        *([] if recipe is None else [f"from megatron.bridge.{recipe[0]} import {recipe[1]}"]),
        "from megatron.bridge.training.comm_overlap import CommOverlapConfig",
        "from megatron.bridge.training.gpt_step import forward_step",
        *([f"from megatron.bridge.training.mixed_precision import {format_}"] if format_ else []),
        "from megatron.bridge.training.pretrain import pretrain",
        "from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides",
        "", "", "def plan():", *_recipe(recipe),
        "    found = config.model.num_layers, config.model.hidden_size",
        f"    if found != ({model.layers}, {model.hidden}):",
        '        raise ValueError(f"layers, width {found}: the plan is for "',
        f'                         "{model.layers}, {model.hidden}")',
        *(f"    config.{name} = {value!r}"
          for name, value in {**SPLIT, **settings((*SETTINGS, *FUSED, *GRAPHS), here)}.items())]
    if format_:
        full = here["gradient_dtype"] == "fp32"
        lines += [f"    config.mixed_precision = {format_}()",
                  f"    config.mixed_precision.grad_reduce_in_fp32 = {full}",
                  *[f"    config.{ENDS} = False"] * number_format(precision).narrow,
                  *[f"    config.{name} = {value!r}"
                    for name, value in settings(FORMATS, here).items()]]
    else:
        lines += ["    config.mixed_precision = None",
                  "    config.model.pipeline_dtype = torch.float32"]
    overlap = (f"        {name}={value!r}," for name, value in settings(OVERLAP, here).items())
    lora = _adapters(model)
    if lora:
        lines += ["    config.peft = LoRA(", *(f"        {name}={value!r},"
                                               for name, value in lora.items()), "    )"]
    lines += ["    config.comm_overlap = CommOverlapConfig(", *overlap, "    )",
              "    return config", "", "", 'if __name__ == "__main__":',
              "    pretrain(config=process_config_with_overrides(plan(), "
              "cli_overrides=sys.argv[1:]),", "             forward_step_func=forward_step)"]
    if lora:
        lines = [line.replace(" pretrain", " finetune").replace(
            "training.pretrain ", "training.finetune ") for line in lines]
        lines.insert(lines.index("from megatron.bridge.training.comm_overlap import "
                                 "CommOverlapConfig"), "from megatron.bridge.peft.lora import LoRA")
    return "\n".join(lines) + "\n"


def _recipe(recipe: tuple[str, str] | None) -> list[str]:
    if recipe is not None:
        return [f"    config = {recipe[1]}()"]
    return ['    module, _, function = os.environ["RECIPE"].partition(":")',
            "    config = getattr(importlib.import_module(module), function)()"]


_OWN: Mapping[str, str] = {
    "RECIPE": "function that describes the model, such as "
              "megatron.bridge.recipes.llama.h100.llama3:llama3_8b_pretrain_2gpu_h100_bf16_config"}


_UNSAID = (
    "data: dataset.blend (most recipes: none, made-up tokens), tokenizer.tokenizer_model",
    "steps, learning rate: train.train_iters, optimizer.lr, optimizer.min_lr, "
    "scheduler.lr_warmup_iters",
    "checkpoints: checkpoint.save, checkpoint.load")
"""Fields that a recipe has and a plan does not: src/megatron/bridge/recipes/common.py:37 to 90."""


def environment(plan: Plan) -> dict[str, str]:
    """Environment variables that the fields ask for."""
    found = variables(plan.configuration, plan.inputs.job, plan.inputs.cluster.device.name)
    if plan.inputs.job.stack.fused_experts and model_of(plan).moe is not None:
        found["NVTE_CUTEDSL_FUSED_GROUPED_MLP"] = "1"  # the source of the rule fused-experts-etp
    # src/megatron/bridge/training/config.py:1101
    return {**found, "CUDA_DEVICE_MAX_CONNECTIONS": "8"} if _fsdp(plan) else found


def _files(given: Sheet) -> Files:
    plan = given.plan
    asked = {} if catalog_name(model_of(plan)) in RECIPES else _OWN
    script = LaunchScript(
        title=(given.title, given.priced), variables=environment(plan), asked=asked,
        unsaid=_UNSAID, given=[], sections={}, program=f'"$here/{PROGRAM}"',
        passed=("RECIPE",) if asked else ())
    return written(given, script, {PROGRAM: program(plan, given.title, given.priced)})


TARGET = Target(
    version="Megatron-Bridge 0.6.0", rules=(("Megatron-Bridge", "0.6.0"),),
    stacks="megatron-bridge", inexpressible=_inexpressible, order=megatron_order, files=_files,
    capacity=True, adapters=True)


COMMON = "_pretrain_common"
"""Function of the recipes whose fields the defaults are."""
_OVERLAP = tuple(one._replace(name=f"comm_overlap.{one.name}") for one in OVERLAP)
_DDP = ("ddp.overlap_grad_reduce", "ddp.overlap_param_gather")
_FULL = "mixed_precision.grad_reduce_in_fp32"
_FLAGS = dict(zip(SPLIT, (
    "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers",
    "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"), strict=True))
"""Megatron-LM's arguments that say the same."""
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
    found |= assigned(source, section=True)
    trained = _trainable(found, source)
    precision = _precision(found, source)
    ends = found.pop(ENDS, precision == "fp8")
    _formats(found, precision)
    overlaps = found.pop("comm_overlap", None)
    for name, value in found.items():
        if isinstance(value, UnknownValue) and value.text.startswith("torch."):
            found[name] = value.text
    notes: list[str] = []
    known: list[Setting] = [*SETTINGS, *_OVERLAP, *FORMATS, *FUSED]
    given = understood(found, known, "megatron-bridge", source, notes, (
        *_DDP, _FULL, *SPLIT, *_GRAPHS, hybrid.PATTERN, "model.mtp_num_layers"))
    if ends is not False:
        notes.append(f"no price: the first and the last layer in bf16 ({ENDS})")
    if base.name != COMMON:
        for name in _NEEDED:
            if name not in found:
                raise InputError(f"{source.where}: {name}: {shorten(base.name)[1:-1]} decides it, "
                                 "which is not in this file; give it by --set NAME=VALUE")
    model = named_model(source, next(
        (name for name, (_, recipe) in RECIPES.items() if recipe == base.name), None),
        "no model of the catalog is known by its recipe")
    if hybrid.PATTERN in given and (cuts := hybrid.layout(
            given.pop(hybrid.PATTERN), model, source.where)) is not None:
        given["model.pipeline_model_parallel_layout"] = cuts
    if trained is not None:
        model = model.replace(trainable=trained)
    if (given.get("model.mtp_num_layers") or 0) != model.mtp_layers and \
            "model.mtp_num_layers" in given:
        raise InputError(f"{source.where}: model.mtp_num_layers: got "
                         f"{shorten(given['model.mtp_num_layers'])}; allowed: {model.mtp_layers}, "
                         f"as {model.name} has")
    f = figures_in(known, {name: value for name, value in given.items() if value is not None},
                   source)
    if isinstance(overlaps, PythonCall) and f.get("distributed"):
        for name in ("overlap_grad_reduce", "overlap_param_gather"):
            if f.get(name) is None:  # src/megatron/bridge/training/comm_overlap.py:576 to 579
                f[name] = True
    if isinstance(overlaps, PythonCall) or overlaps is None:
        return _found(source, f, given, model, precision, notes)
    raise InputError(f"{source.where}: comm_overlap: got {shorten(overlaps)}; allowed: None, "
                     "CommOverlapConfig(...)")


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
    for name, setting in (("overlap_grad_reduce", _DDP[0]), ("overlap_param_gather", _DDP[1])):
        if f.get(name) is None:
            f[name] = bool(given.get(setting))
    changes = _stack(f, given, stack, model, precision, zero)
    described = job(f["global_batch"], seq_len, said(
        source, "the number format", precision, source.asked.precision, "--precision"), "adam",
        base, changes) | capacity_of(f, model)
    layout, vpp, (first, last) = split(
        f, {**{flag: given[name] for name, flag in _FLAGS.items() if given.get(name)},
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
    if number_format(precision).narrow:
        found |= {name: bool(f.get(name)) for name in ("fp8_attention", "fp8_head")}
    if model.moe is not None:
        found["fused_experts"] = bool(f.get("fused_experts"))
    if precision in SCALED and zero > 0:
        found["fp8_gather"] = bool(f.get("fp8_gather"))
    graphs = [given.get(name) for name in _GRAPHS]
    # src/megatron/bridge/utils/cuda_graph.py:121
    found["cuda_graphs"] = "none" if graphs[0] in (None, "none") else (
        "step" if "full_iteration" in str(graphs) else "layers")
    return {name: value for name, value in found.items() if getattr(stack, name) != value}
