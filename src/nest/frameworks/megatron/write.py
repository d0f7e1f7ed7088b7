"""Megatron-LM's command line of a configuration: arguments of `pretrain_gpt.py`, by section.

`arguments` reads a command line back as figures. Names and meanings:
NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py:1536 (model), 2206 (distributed),
2688 (experts), 2723 (latent attention), and megatron/core/transformer/transformer_config.py;
`.ci/frameworks` has Megatron's own parser take them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType

from nest.costs.memory import SCALED
from nest.evaluation.plans import Plan
from nest.evaluation.ranks import Rank
from nest.frameworks.figures import Figure
from nest.frameworks.launchers import LaunchScript
from nest.frameworks.settings import sections, settings
from nest.frameworks.target import (
    PLAIN,
    PLAIN_EXPERTS,
    Files,
    Sheet,
    Target,
    model_of,
    stage_by_stage,
    unlike,
    written,
)
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.inputs.job import Job
from nest.inputs.model import Model
from nest.inputs.offload import Offload

VERSION = "Megatron-LM core_v0.16.1"
SOFTWARE = ("Megatron-Core", "Megatron-FSDP")
"""Software of stacks whose plans it runs, as their tables of rules name it."""
RULES = "0.16.1"
"""Version of these tables."""
Value = str | int | float | Sequence[str] | None
"""Of an argument; None: it is a flag."""
Arguments = dict[str, Value]

_BLACKWELL = ("b200", "b300", "gb200", "gb300")


def inexpressible(model: Model, job: Job, way: Configuration) -> Iterator[str]:
    """What no argument says, a sentence each; the rules of the stack are not repeated."""
    if model.kind != "decoder":
        yield f"model.kind {model.kind}: only decoders have a launch script (pretrain_gpt.py)"
    else:
        yield from lacking(model, job, "Megatron-Core", {**PLAIN, "qk_norm_form": "head"})
    if model.moe is not None and model.moe.clamped:
        yield "model.moe.clamped: --activation-func-clamp-value needs a value, which no plan has"
    if model.moe is not None and model.moe.router_bias:
        yield "model.moe.router_bias: Megatron-Core's router has no trained bias of this kind"
    if model.moe is not None:
        yield from (f"model.moe.{name}: Megatron-Core's experts have no argument for it"
                    for name in unlike(model.moe, PLAIN_EXPERTS))
    if model.mla is not None and model.mla.indexer is not None:
        yield "model.mla.indexer: sparse attention has no arguments in core_v0.16.1"
    if model.mla is not None and model.mla.gate:
        yield "model.mla.gate: latent attention's output has no gate in core_v0.16.1"
    if model.mtp_layers and not model.rotary:
        yield "model.mtp_layers: multi-token prediction needs rotary positions"
    if job.optimizer == "muon":
        yield from (f"stack.{name} {given:g}: Muon hides nothing; allowed: 0"
                    for name in ("overlap_grad_reduce", "overlap_param_gather")
                    if (given := getattr(job.stack, name)))
    elif job.optimizer != "adam" and way.stages[0].zero:
        yield f"job.optimizer {job.optimizer}: the distributed optimizer (zero 1) is Adam's"
    if job.stack.dispatch_fp8:
        yield "stack.dispatch_fp8: no argument sends tokens to experts in fp8"
    yield from (f"stack.{name}: what asks for it is not written"
                for name in ("fp8_attention", "fp8_head", "fused_experts")
                if getattr(job.stack, name))


def lacking(model: Model, job: Job, name: str, plain: Mapping[str, object]) -> Iterator[str]:
    """Properties of a decoder that Megatron's programs of a name have no arguments for."""
    hybrids = {"recurrence": "; --to megatron-bridge has recipes of hybrids"}
    yield from (f"model.{one}: {name}'s GPT has no argument for it{hybrids.get(one, '')}"
                for one in unlike(model, plain))
    if model.norm_bias != (model.norm == "layernorm"):
        yield f"model.norm_bias: {name}'s LayerNorm has a bias, its RMSNorm has none"
    if model.positions and model.positions < job.seq_len:
        yield (f"job.seq_len {job.seq_len}: the model has {model.positions} learned positions "
               "(--max-position-embeddings)")


def captured(model: Model, job: Job) -> tuple[str, ...]:
    """The scope of CUDA graphs: of a layer with experts, all up to its router and the dispatcher's
    preparation; of other layers the whole, which is empty."""
    layers: tuple[str, ...] = ("attn", "moe_router", "moe_preprocess") if model.moe else ()
    if job.capacity == "limited" and job.stack.dispatcher == "alltoall":
        # Its preparation asks the device: megatron/core/transformer/transformer_config.py:1771.
        layers = layers[:2]
    return {"none": (), "layers": layers, "step": ("full_iteration",)}[job.stack.cuda_graphs]


def _graphs(model: Model, job: Job) -> Arguments:
    """Arguments of CUDA graphs."""
    graphs, scope = job.stack.cuda_graphs, [*captured(model, job)]
    if graphs == "none":
        return {}
    if graphs == "step":  # a check for NaN waits for the device: megatron/training/arguments.py:725
        found: Arguments = {"cuda-graph-impl": "local", "cuda-graph-scope": scope,
                            "no-check-for-nan-in-loss-and-grad": None}
        if model.moe is not None:  # asked for by the same file, line 1161; of no use in training
            found["moe-pad-experts-for-cuda-graph-inference"] = None
        return found
    return {"cuda-graph-impl": "transformer_engine",
            **({"cuda-graph-scope": scope} if scope else {})}


def replica_by_replica(way: Configuration, listed: bool) -> bool:
    """Whether ranks go replica by replica, which a flag says, and not stage by stage.

    ``listed``: the plan needs a list of hosts, which orders what goes stage by stage.
    """
    return not listed and min(way.pp, way.outer_dp) > 1 and way.stages[0].dp_in == 1


def arguments(
    model: Model, job: Job, way: Configuration, layout: str | None, listed: bool
) -> dict[str, Arguments]:
    """The command line but for data, tokenizer, checkpoint and learning rate.

    Parameters
    ----------
    model, job, way : what is trained and how; nothing of :func:`inexpressible`.
    layout : text of ``--pipeline-model-parallel-layout``.
    listed : the plan needs a list of hosts.

    Returns
    -------
    Sections of arguments by name, without the two hyphens.
    """
    given: dict[str, Figure] = {
        **model_figures(model, job), **memory_figures(way), **training_figures(job, way),
        **parallel_figures(model, job, way, layout, replica_by_replica(way, listed))}
    return {**{name: {argument: None if value is True else value
                      for argument, value in settings(table, given).items()}
               for name, table in SECTIONS.items()}, "GRAPHS": _graphs(model, job)}


def variables(way: Configuration, job: Job, device: str) -> dict[str, str]:
    """Environment variables that Megatron's arguments ask for on a device, by its name.

    One connection keeps the order of kernels where tensor or context parallel traffic hides under
    them, before Blackwell; Megatron-FSDP and overlapped experts want several. Source:
    NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py:687, 926 to 953, 1226.
    """
    stage, found = way.stages[0], {}
    if way.schedule == "combined":
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    elif is_fsdp(job):
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = "8"
    elif stage.tp * stage.cp > 1 and not device.casefold().startswith(_BLACKWELL):
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if Offload.of(way.offload).modules:
        found["NVTE_CPU_OFFLOAD_V1"] = "1"
    return found


ASKED = {
    "DATA_PATH": "data, as --data-path takes them",
    "TOKENIZER": "folder or name of a Hugging Face tokenizer",
    "CHECKPOINT": "folder that checkpoints are read from and saved to",
    "LR": "learning rate",
    "TRAIN_ITERS": "steps"}
"""Variables of the shell that the user sets, and what they are."""


def unsaid(model: Model) -> list[str]:
    """Arguments that no plan has, whose defaults are those of no model.

    Source: NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py:1655, 1821, 2705,
    megatron/training/training_config.py:124, megatron/core/transformer/transformer_config.py:55,
    311, 617 to 639.
    """
    found = ["model: --norm-epsilon (1e-5), --init-method-std (0.02)"]
    if model.rotary:
        found.append("positions: --rotary-base (10000), --rotary-percent, --use-rope-scaling with "
                     "--rope-scaling-factor")
    if model.moe is not None:
        found += ["scores of the router: --moe-router-score-function (softmax), "
                  "--moe-router-pre-softmax, --moe-router-topk-scaling-factor",
                  "balance of experts: --moe-router-load-balancing-type (aux_loss), "
                  "--moe-aux-loss-coeff (0),",
                  "  --moe-router-enable-expert-bias, --moe-router-bias-update-rate"]
    if model.mtp_layers:
        found.append("multi-token prediction: --mtp-loss-scaling-factor (0.1)")
    return [*found, "training: --lr-decay-style, --lr-warmup-iters, --min-lr, --weight-decay, "
            "--clip-grad, --adam-beta2, --split, --eval-iters, --seed"]


def data(model: Model) -> list[str]:
    """Lines of shell that make arguments of the variables: DATA."""
    return [
        "MEGATRON=${MEGATRON:-.}  # folder of Megatron-LM",
        'if [ -n "${MOCK_DATA:-}" ]; then  # made-up tokens, nothing saved: to time a step',
        "  DATA_PATH=mock TOKENIZER=mock CHECKPOINT=mock",
        "  LR=${LR:-1e-4} TRAIN_ITERS=${TRAIN_ITERS:-20}",
        # This tokenizer adds a token.
        f"  DATA=(--mock-data --tokenizer-type NullTokenizer --vocab-size {model.vocab - 1} "
        "--eval-iters 0)",
        "else",
        '  DATA=(--data-path "${DATA_PATH:-}" --tokenizer-type HuggingFaceTokenizer',
        # The tokenizer decides; this says what is priced, for who reads the script. Source:
        # megatron-core==0.19.2 megatron/core/tokenizers/utils/build_tokenizer.py:69, 143.
        f'    --tokenizer-model "${{TOKENIZER:-}}" --vocab-size {model.vocab}',
        '    --save "${CHECKPOINT:-}" --load "${CHECKPOINT:-}"',
        '    --save-interval "${SAVE_INTERVAL:-500}")',
        "fi",
        'DATA+=(--lr "${LR:-}" --train-iters "${TRAIN_ITERS:-}")']


def options(given: Mapping[str, Value]) -> list[list[str]]:
    """Words of each argument."""
    return [[f"--{name}", *_words(value)] for name, value in given.items()]


def _words(value: Value) -> list[str]:
    if value is None:
        return []
    return [str(value)] if isinstance(value, (str, int, float)) else [*value]


MODULES = MappingProxyType({"norm": "layernorm", "mlp_act": "moe_act"})
"""Modules of recompute that have another name in Megatron-Core."""
RECIPES = MappingProxyType({"fp8": "tensorwise", "fp8-delayed": "delayed",
                            "fp8-blockwise": "blockwise", "mxfp8": "mxfp8"})
"""Values of --fp8-recipe by number format."""
SHARDED = ("no_shard", "optim", "optim_grads", "optim_grads_params")
"""Strategies of Megatron-FSDP, by ZeRO stage."""

SECTIONS = sections("megatron")
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
        "fp8_gather": fp8_gather(job, way),
        "fp4": "e2m1" if precision == "nvfp4" else None,
        "gradients_bf16": half and job.gradient_dtype == "bf16",
        "optimizer": _optimizer(job, way.stages[0].zero),
        "momentum": {"sgd": 0.0, "sgd-momentum": 0.9}.get(job.optimizer),
        "precision_aware": adam and remainders_asked(job, way.stages[0].zero)
        and stack.master_remainders}


def fp8_gather(job: Job, way: Configuration) -> bool:
    """Whether parameters are gathered in 8 bits: by the distributed optimizer or FSDP alone
    (megatron/training/arguments.py:655)."""
    return (job.stack.fp8_gather and job.precision in SCALED
            and (way.stages[0].zero > 0 or is_fsdp(job)))


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


def order(plan: Plan) -> tuple[Rank, ...]:
    """Replica by replica, which a flag says, or stage by stage."""
    if replica_by_replica(plan.configuration, bool(plan.launch_needs)):
        return plan.ranks()
    return stage_by_stage(plan)


def _lacks(plan: Plan) -> Iterator[str]:
    way = plan.configuration
    yield from inexpressible(model_of(plan), plan.inputs.job, way)
    if plan.layout is None and way.pp * way.vpp > 1:
        yield "layers of the chunks: --pipeline-model-parallel-layout has no text for them"


def _files(given: Sheet) -> Files:
    plan, model = given.plan, model_of(given.plan)
    job, way = plan.inputs.job, plan.configuration
    sections = arguments(model, job, way, plan.layout, bool(plan.launch_needs))
    script = LaunchScript(
        title=(given.title, given.priced),
        variables=variables(way, job, plan.inputs.cluster.device.name),
        asked=ASKED, unsaid=unsaid(model), given=data(model),
        sections={name: options(one) for name, one in sections.items() if one},
        program='"$MEGATRON/pretrain_gpt.py"', more=("DATA",))
    return written(given, script, {})


TARGET = Target(
    version=VERSION, rules=tuple((name, RULES) for name in SOFTWARE),
    stacks="megatron-core or megatron-fsdp", inexpressible=_lacks, order=order, files=_files,
    capacity=True)
