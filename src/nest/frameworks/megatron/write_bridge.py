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
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

from nest.evaluation.plans import Plan
from nest.evaluation.ranks import Rank
from nest.frameworks.figures import Figures, figures
from nest.frameworks.known import catalog_name, plain_lines
from nest.frameworks.megatron.table import levels_of
from nest.frameworks.megatron.write import captured, not_captured, replica_by_replica, variables
from nest.frameworks.script import LaunchScript
from nest.frameworks.settings import Setting, flag, settings
from nest.frameworks.target import Files, Sheet, Target, model_of, written
from nest.inputs.formats import number_format
from nest.inputs.job import Job
from nest.inputs.offload import Offload

PROGRAM = "plan_recipe.py"
_WORDS = {"norm": "layernorm", "mlp_act": "moe_act"}
_FSDP = (True,)

SETTINGS = (
    Setting("tp", "model.tensor_model_parallel_size"),
    Setting("sp", "model.sequence_parallel"),
    Setting("pp", "model.pipeline_model_parallel_size"),
    Setting("virtual", "model.virtual_pipeline_model_parallel_size", unless=()),
    Setting("layout", "model.pipeline_model_parallel_layout", unless=()),
    Setting("group", "model.microbatch_group_size_per_vp_stage", unless=()),
    Setting("cp", "model.context_parallel_size"),
    Setting("cp_comm", "model.cp_comm_type", when={"rings": (True,)}),
    Setting("cp_levels", "model.hierarchical_context_parallel_sizes", unless=()),
    Setting("ep", "model.expert_model_parallel_size"),
    Setting("etp", "model.expert_tensor_parallel_size", when={"experts": (True,)}),
    Setting("dispatcher", "model.moe_token_dispatcher_type",
            {"alltoall": "alltoall", "allgather": "allgather", "deepep": "flex",
             "hybridep": "flex"}, when={"experts": (True,)}),
    Setting("dispatcher", "model.moe_flex_dispatcher_backend",
            {"deepep": "deepep", "hybridep": "hybridep"}, when={"experts": (True,)}),
    Setting("capacity", "model.moe_expert_capacity_factor", unless=(), when={"experts": (True,)}),
    Setting("padded", "model.moe_pad_expert_input_to_capacity", when={"experts": (True,)}),
    Setting("granularity", "model.recompute_granularity", unless=()),
    Setting("method", "model.recompute_method", unless=()),
    Setting("recomputed", "model.recompute_num_layers", unless=()),
    Setting("modules", "model.recompute_modules", unless=()),
    Setting("offload_layers", "model.cpu_offloading_num_layers", unless=(0,)),
    Setting("offload_layers_on", "model.cpu_offloading"),
    Setting("offload_modules_on", "model.fine_grained_activation_offloading"),
    Setting("offload_modules", "model.offload_modules", unless=()),
    Setting("distributed", "optimizer.use_distributed_optimizer"),
    Setting("remainders", "optimizer.use_precision_aware_optimizer"),
    Setting("offload_optimizer", "optimizer.optimizer_offload_fraction", unless=(0.0,)),
    Setting("offloads", "optimizer.optimizer_cpu_offload"),
    flag("offloads", "optimizer.overlap_cpu_optimizer_d2h_h2d"),
    Setting("distributed", "ddp.use_distributed_optimizer"),
    Setting("instances", "ddp.num_distributed_optimizer_instances"),
    Setting("fsdp", "ddp.use_megatron_fsdp"),
    Setting("zero", "ddp.data_parallel_sharding_strategy",
            {0: "no_shard", 1: "optim", 2: "optim_grads", 3: "optim_grads_params"},
            when={"fsdp": _FSDP}),
    Setting("outer", "ddp.outer_dp_sharding_strategy", when={"fsdp": _FSDP}),
    Setting("format", "checkpoint.ckpt_format"),
    Setting("mapped", "dist.use_tp_pp_dp_mapping"),
    Setting("global_batch", "train.global_batch_size"),
    Setting("micro_batch", "train.micro_batch_size"),
    Setting("seq_len", "dataset.seq_length"),
    Setting("seq_len", "model.seq_length"),
)
"""Fields of the container. What a recipe may have otherwise is written where it is off, too."""
SPLIT: Mapping[str, bool | None] = {
    "model.num_layers_in_first_pipeline_stage": None,
    "model.num_layers_in_last_pipeline_stage": None,
    "model.account_for_embedding_in_pipeline_split": False,
    "model.account_for_loss_in_pipeline_split": False}
"""How recipes divide layers without a layout, and what takes that back: Core refuses it beside a
layout (megatron/core/transformer/transformer_config.py:1307), and the layout says all. Recipes with
these are src/megatron/bridge/recipes/qwen/h100/qwen3_moe.py:261 and others."""
OVERLAP = (
    Setting("overlap_tp", "tp_comm_overlap"),
    Setting("overlap_grad_reduce", "overlap_grad_reduce"),
    Setting("overlap_param_gather", "overlap_param_gather"),
    Setting("combined", "overlap_moe_expert_parallel_comm"),
)
"""Arguments of its CommOverlapConfig."""
GRAPHS = (
    Setting("graphs", "model.cuda_graph_impl",
            {"none": "none", "layers": "transformer_engine", "step": "local"}),
    Setting("captured", "model.cuda_graph_scope", unless=()),
    flag("captures", "model.use_te_rng_tracker"),
    flag("captures", "rng.te_rng_tracker"),
    Setting("graphs", "rerun_state_machine.check_for_nan_in_loss", {"step": False}),
    Setting("graphs", "ddp.check_for_nan_in_grad", {"step": False}),
)
"""Fields of CUDA graphs, and what these need (src/megatron/bridge/models/gpt_provider.py:233,
src/megatron/bridge/training/config.py:1364). An empty scope captures whole layers."""
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
    return {
        **figures(job, way), "virtual": way.vpp if way.vpp > 1 else None,
        "layout": plan.layout if way.pp * way.vpp > 1 else None, "rings": stage.cp > 1,
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
        "captures": stack.cuda_graphs != "none", "captured": [*captured(model_of(plan), job)]}


def _adam_in_bf16(job: Job) -> bool:
    return job.optimizer == "adam" and job.precision == "bf16"


def _fsdp(plan: Plan) -> bool:
    """Whether Megatron-FSDP shards: gradients or parameters."""
    return plan.configuration.stages[0].zero > 1


def _inexpressible(plan: Plan) -> Iterator[str]:
    job, way = plan.inputs.job, plan.configuration
    if plan.layout is None and way.pp * way.vpp > 1:
        yield "layers of the chunks: pipeline_model_parallel_layout has no text for them"
    if job.optimizer != "adam":
        yield f"job.optimizer {job.optimizer}: the optimizer is the recipe's, Adam"
    if job.stack.dispatch_fp8:
        yield "stack.dispatch_fp8: no field sends tokens to experts in fp8"
    yield from (f"stack.{name}: what asks for it is not written"
                for name in ("fp8_attention", "fp8_head") if getattr(job.stack, name))
    yield from not_captured(model_of(plan), job, _fsdp(plan))
    if job.precision == "fp16" and job.stack.gradient_dtype == "bf16":
        yield "precision fp16: gradients in bf16 have no setting"


def _order(plan: Plan) -> tuple[Rank, ...]:
    """Replica by replica, which a field says, or stage by stage."""
    if replica_by_replica(plan.configuration, bool(plan.launch_needs)):
        return plan.ranks()
    return tuple(sorted(plan.ranks(), key=attrgetter("stage")))


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
          for name, value in {**SPLIT, **settings((*SETTINGS, *GRAPHS), here)}.items())]
    if format_:
        full = here["gradient_dtype"] == "fp32"
        lines += [f"    config.mixed_precision = {format_}()",
                  f"    config.mixed_precision.grad_reduce_in_fp32 = {full}",
                  *[f"    config.{ENDS} = False"] * number_format(precision).narrow]
    else:
        lines += ["    config.mixed_precision = None",
                  "    config.model.pipeline_dtype = torch.float32"]
    overlap = (f"        {name}={value!r}," for name, value in settings(OVERLAP, here).items())
    lines += ["    config.comm_overlap = CommOverlapConfig(", *overlap, "    )",
              "    return config", "", "", 'if __name__ == "__main__":',
              "    pretrain(config=process_config_with_overrides(plan(), "
              "cli_overrides=sys.argv[1:]),", "             forward_step_func=forward_step)"]
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
    stacks="megatron-bridge", inexpressible=_inexpressible, order=_order, files=_files,
    capacity=True)
