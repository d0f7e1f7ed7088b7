"""Megatron-LM's arguments as tables: which figure of a plan each says, and in which words.

`write` writes the figures of a plan with them, `arguments` reads a command line back as figures.
Names and meanings: NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py:1536 (model),
2206 (distributed), 2688 (experts), 2723 (latent attention), and
megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from types import MappingProxyType

from nest.frameworks.figures import Figure
from nest.frameworks.settings import Setting, flag
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.inputs.job import Job
from nest.inputs.model import Model
from nest.inputs.offload import Offload

MODULES = MappingProxyType({"norm": "layernorm", "mlp_act": "moe_act"})
"""Modules of recompute that have another name in Megatron-Core."""
RECIPES = MappingProxyType({"fp8": "tensorwise", "fp8-delayed": "delayed",
                            "fp8-blockwise": "blockwise", "mxfp8": "mxfp8"})
"""Values of --fp8-recipe by number format."""
SHARDED = ("no_shard", "optim", "optim_grads", "optim_grads_params")
"""Strategies of Megatron-FSDP, by ZeRO stage."""

MODEL = (
    Setting("layers", "num-layers"),
    Setting("hidden", "hidden-size"),
    Setting("heads", "num-attention-heads"),
    Setting("ffn", "ffn-hidden-size"),
    Setting("seq_len", "seq-length"),
    Setting("max_positions", "max-position-embeddings"),
    Setting("position", "position-embedding-type",
            {"rope": "rope", "learned": "learned_absolute", "none": "none"}),
    Setting("norm", "normalization", {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}),
    Setting("attention_dropout", "attention-dropout"),
    Setting("hidden_dropout", "hidden-dropout"),
    flag("gated", "swiglu"),
    flag("bias", "disable-bias-linear", {False: True}),
    flag("qkv_bias", "add-qkv-bias"),
    flag("tied_embeddings", "untie-embeddings-and-output-weights", {False: True}),
    Setting("mtp_layers", "mtp-num-layers", unless=(0,)),
    flag("qk_norm", "qk-layernorm"),
    flag("latent", "multi-latent-attention"),
    Setting("kv_rank", "kv-lora-rank"),
    Setting("nope_dim", "qk-head-dim"),
    Setting("rope_dim", "qk-pos-emb-head-dim"),
    Setting("value_dim", "v-head-dim"),
    Setting("q_rank", "q-lora-rank", unless=(0, None)),
    Setting("head_dim", "kv-channels"),
    flag("grouped", "group-query-attention"),
    Setting("kv_heads", "num-query-groups"),
    Setting("window", "window-size"),
    Setting("windowed", "window-attn-skip-freq"),
    Setting("experts", "num-experts"),
    Setting("top_k", "moe-router-topk"),
    Setting("expert_ffn", "moe-ffn-hidden-size"),
    Setting("sparse", "moe-layer-freq"),
    flag("grouped_products", "moe-grouped-gemm"),
    Setting("shared_ffn", "moe-shared-expert-intermediate-size", unless=(0, None)),
    flag("shared_gate", "moe-shared-expert-gate"),
    Setting("router_groups", "moe-router-num-groups"),
    Setting("group_limit", "moe-router-group-topk"),
)
PARALLEL = (
    Setting("tp", "tensor-model-parallel-size"),
    flag("sp", "sequence-parallel"),
    flag("overlap_tp", "tp-comm-overlap"),
    Setting("pp", "pipeline-model-parallel-size"),
    Setting("cp", "context-parallel-size", unless=(1,)),
    Setting("cp_comm", "cp-comm-type"),
    Setting("cp_levels", "hierarchical-context-parallel-sizes"),
    Setting("ep", "expert-model-parallel-size"),
    Setting("etp", "expert-tensor-parallel-size"),
    Setting("dispatcher", "moe-token-dispatcher-type"),
    Setting("backend", "moe-flex-dispatcher-backend"),
    Setting("capacity", "moe-expert-capacity-factor"),
    flag("padded", "moe-pad-expert-input-to-capacity"),
    Setting("layout", "pipeline-model-parallel-layout"),
    Setting("group", "microbatch-group-size-per-virtual-pipeline-stage"),
    flag("combined", "overlap-moe-expert-parallel-comm"),
    flag("mapped", "use-tp-pp-dp-mapping"),
    flag("fsdp", "use-megatron-fsdp"),
    Setting("checkpoints", "ckpt-format"),
    Setting("strategy", "data-parallel-sharding-strategy"),
    flag("sharded", "use-distributed-optimizer"),
    flag("overlap_grad_reduce", "overlap-grad-reduce"),
    flag("overlap_param_gather", "overlap-param-gather"),
    Setting("instances", "num-distributed-optimizer-instances", unless=(None, 1)),
    Setting("outer", "outer-dp-sharding-strategy"),
)
MEMORY = (
    Setting("recompute", "recompute-granularity", unless=("none",)),
    Setting("recompute_modules", "recompute-modules"),
    Setting("recompute_method", "recompute-method"),
    Setting("recompute_layers", "recompute-num-layers"),
    flag("offload_optimizer", "optimizer-cpu-offload"),
    flag("offload_aware", "use-precision-aware-optimizer"),
    Setting("offload_share", "optimizer-offload-fraction"),
    flag("offload_overlap", "overlap-cpu-optimizer-d2h-h2d"),
    Setting("offload_layers", "cpu-offloading-num-layers", unless=(0,)),
    flag("offload_fine", "fine-grained-activation-offloading"),
    Setting("offload_modules", "offload-modules", unless=((),)),
)
TRAINING = (
    Setting("micro_batch", "micro-batch-size"),
    Setting("global_batch", "global-batch-size"),
    flag("throughput", "log-throughput"),
    flag("fp16", "fp16"),
    flag("gradients_fp32", "accumulate-allreduce-grads-in-fp32"),
    flag("bf16", "bf16"),
    Setting("fp8", "fp8-format"),
    Setting("fp8_recipe", "fp8-recipe"),
    Setting("fp4", "fp4-format"),
    flag("gradients_bf16", "grad-reduce-in-bf16"),
    Setting("optimizer", "optimizer"),
    Setting("momentum", "sgd-momentum"),
    flag("precision_aware", "use-precision-aware-optimizer"),
)
SECTIONS = MappingProxyType(
    {"MODEL": MODEL, "PARALLEL": PARALLEL, "MEMORY": MEMORY, "TRAINING": TRAINING})
"""Tables by the name of the array in a launch script."""


def model_figures(model: Model, job: Job) -> dict[str, Figure]:
    """Figures of ``MODEL``."""
    own = model.hidden % model.heads or (
        model.mla is None and model.head_dim * model.heads != model.hidden)
    grouped = model.kv_heads != model.heads
    found: dict[str, Figure] = {
        **{name: getattr(model, name) for name in (
            "layers", "hidden", "heads", "ffn", "norm", "gated", "bias", "qkv_bias",
            "tied_embeddings", "mtp_layers")},
        "seq_len": job.seq_len, "max_positions": model.positions or job.seq_len,
        "position": "rope" if model.rotary else "learned",
        "attention_dropout": 0.0, "hidden_dropout": 0.0,
        "qk_norm": model.qk_norm or model.mla is not None, "latent": model.mla is not None,
        **{name: getattr(model.mla, name, None) for name in (
            "kv_rank", "nope_dim", "rope_dim", "value_dim", "q_rank")},
        "head_dim": model.head_dim if own else None,
        "grouped": grouped, "kv_heads": model.kv_heads if grouped else None,
        # A window of Megatron's is without the token itself.
        "window": None if model.window is None else f"{model.window - 1},0",
        "windowed": pattern(layer not in model.full_layers for layer in range(model.layers))
        if model.full_layers else None}
    return found | _expert_figures(model)


def _expert_figures(model: Model) -> dict[str, Figure]:
    moe = model.moe
    # Without a limit below their number, tokens go to experts of any group.
    limited = moe is not None and moe.group_limit != moe.groups
    return {
        **{name: getattr(moe, name, None) for name in ("experts", "top_k", "shared_ffn")},
        "expert_ffn": getattr(moe, "ffn", None),
        "sparse": pattern(map(model.is_moe_layer, range(model.layers))) if moe else None,
        "grouped_products": moe is not None,
        "shared_gate": moe is not None and moe.shared_ffn > 0 and moe.shared_gate,
        "router_groups": moe.groups if moe and limited else None,
        "group_limit": moe.group_limit if moe and limited else None}


def levels_of(stage: StageConfiguration) -> tuple[str, ...] | None:
    """Ranks of cp that exchange by all-to-all, and rings across them; None: there is one form."""
    if stage.cp_comm != "a2a+p2p":
        return None
    return str(stage.cp_a2a), str(stage.cp // stage.cp_a2a)


def parallel_figures(
    model: Model, job: Job, way: Configuration, layout: str | None, mapped: bool
) -> dict[str, Figure]:
    """Figures of ``PARALLEL``; ``mapped``: ranks go replica by replica."""
    stage, stack, experts = way.stages[0], job.stack, model.moe is not None
    plain = stack.dispatcher in ("alltoall", "allgather")
    # Muon divides whole matrices over the ranks instead, and hides nothing.
    muon, fsdp = job.optimizer == "muon", is_fsdp(job)
    sharded = stage.zero > 0 and not muon
    return {
        "tp": stage.tp, "sp": stage.sp, "overlap_tp": stage.sp and stack.overlap_tp > 0.0,
        "pp": way.pp, "cp": stage.cp, "cp_comm": stage.cp_comm if stage.cp > 1 else None,
        "cp_levels": levels_of(stage),
        "ep": stage.ep if experts else None, "etp": stage.etp if experts else None,
        "dispatcher": (stack.dispatcher if plain else "flex") if experts else None,
        "backend": None if plain or not experts else stack.dispatcher,
        "capacity": job.expert_capacity if experts else None,
        "padded": experts and job.expert_padding,
        "layout": layout if way.pp * way.vpp > 1 else None, "group": way.group,
        "combined": way.schedule == "combined", "mapped": mapped,
        "fsdp": fsdp, "checkpoints": "fsdp_dtensor" if fsdp else None,
        "strategy": SHARDED[stage.zero] if fsdp else None, "sharded": sharded,
        "overlap_grad_reduce": (sharded or not (fsdp or muon)) and stack.overlap_grad_reduce > 0.0,
        "overlap_param_gather": sharded and stack.overlap_param_gather > 0.0,
        "instances": way.outer_dp if stage.shard == "dp_in" else None,
        # Megatron-FSDP shards over the ranks of an instance, and not over the instances.
        "outer": "no_shard" if fsdp and stage.shard == "dp_in" else None}


def memory_figures(way: Configuration) -> dict[str, Figure]:
    """Figures of ``MEMORY``; docs/offloading.md has the source of offloading."""
    stage, away = way.stages[0], Offload.of(way.offload)
    full, shared = stage.recompute == "full", away.optimizer > 0.0
    return {
        "recompute": stage.recompute,
        "recompute_modules": tuple(MODULES.get(one, one) for one in stage.recompute_modules)
        or None,
        "recompute_method": ("block" if stage.recompute_layers else "uniform") if full else None,
        "recompute_layers": (stage.recompute_layers or 1) if full else None,
        "offload_optimizer": shared, "offload_aware": shared, "offload_overlap": shared,
        "offload_share": away.optimizer or None, "offload_layers": away.layers,
        "offload_fine": bool(away.modules), "offload_modules": away.modules}


def training_figures(job: Job, way: Configuration) -> dict[str, Figure]:
    """Figures of ``TRAINING``.

    bf16 training keeps gradients in fp32 by itself; the precision-aware optimizer keeps only the
    remainders of fp32 copies.
    """
    stack, precision, adam = job.stack, job.precision, job.optimizer == "adam"
    recipe, half = RECIPES.get(precision), precision == "bf16" or job.narrow
    return {
        "micro_batch": way.micro_batch // way.stages[0].dp_in, "global_batch": job.global_batch,
        "throughput": True, "fp16": precision == "fp16",
        "gradients_fp32": precision == "fp16" and stack.gradient_dtype == "fp32",
        "bf16": half, "fp8_recipe": recipe,
        # E5M2 for gradients, but with scales of few elements.
        "fp8": None if recipe is None else "e4m3" if precision == "mxfp8" else "hybrid",
        "fp4": "e2m1" if precision == "nvfp4" else None,
        "gradients_bf16": half and job.gradient_dtype == "bf16",
        "optimizer": _optimizer(job, way.stages[0].zero),
        "momentum": {"sgd": 0.0, "sgd-momentum": 0.9}.get(job.optimizer),
        "precision_aware": adam and remainders_asked(job, way.stages[0].zero)
        and stack.master_remainders}


def _optimizer(job: Job, zero: int) -> str:
    """Value of --optimizer: Muon is another one where it is divided over the ranks."""
    if job.optimizer == "muon":
        return "dist_muon" if zero else "muon"
    return job.optimizer.removesuffix("-momentum")


def remainders_asked(job: Job, zero: int) -> bool:
    """Whether an argument says if fp32 copies are kept as remainders."""
    return job.precision == "bf16" and not is_fsdp(job) and zero > 0


def is_fsdp(job: Job) -> bool:
    """Whether a job's stack is Megatron-FSDP."""
    known = job.stack.capabilities
    return known is not None and known.software == "Megatron-FSDP"


def pattern(layers: Iterable[bool]) -> str:
    """A Python expression of 0 or 1 for each layer."""
    runs = [(int(value), len([*members])) for value, members in groupby(layers)]
    return f"({'+'.join(f'[{value}]*{count}' for value, count in runs)})"
