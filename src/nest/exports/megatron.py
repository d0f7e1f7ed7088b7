"""Megatron-LM's command line of a configuration: arguments of `pretrain_gpt.py`, by section.

Names and meanings are those of NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py and
megatron/core/transformer/transformer_config.py; `.ci/frameworks` has Megatron's own parser take
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from nest.describe.configuration import Configuration
from nest.describe.job import Job
from nest.describe.layers import MoE
from nest.describe.model import Model
from nest.describe.offload import Offload

VERSION = "Megatron-LM core_v0.16.1"
SOFTWARE = ("Megatron-Core", "Megatron-FSDP")
"""Software of stacks whose plans it runs, as their tables of rules name it."""
RULES = "0.16.1"
"""Version of these tables."""
Value = str | int | float | Sequence[str] | None
"""Of an argument; None: it is a flag."""
Arguments = dict[str, Value]

_MODULES = {"norm": "layernorm", "mlp_act": "moe_act"}
_SHARDED = ("no_shard", "optim", "optim_grads", "optim_grads_params")
"""Strategies of Megatron-FSDP, by ZeRO stage."""
_BLACKWELL = ("b200", "b300", "gb200", "gb300")
_PLAIN = {"relative_positions": 0, "token_types": 0, "layer_norms": 2, "final_norm": True,
          "embedding_norm": False, "head_transform": False, "head_bias": False, "pooler": False,
          "vision": None, "chunked": False, "recurrence": None, "layer_types": (),
          "unrotated": False, "parallel": False, "output_bias": False, "mlp_bias": False,
          "qk_norm_form": "head", "attention_gate": False, "sinks": False, "patch_width": 0}
"""Properties of a model that Megatron-Core's GPT has no arguments for, and what they must be."""


def inexpressible(model: Model, job: Job, way: Configuration) -> Iterator[str]:
    """What no argument says, a sentence each; the rules of the stack are not repeated."""
    if model.kind != "decoder":
        yield f"model.kind {model.kind}: only decoders have a launch script (pretrain_gpt.py)"
    for name, plain in _PLAIN.items():
        if getattr(model, name) != plain and model.kind == "decoder":
            yield f"model.{name}: Megatron-Core's GPT has no argument for it"
    if model.moe is not None and model.moe.clamped:
        yield "model.moe.clamped: --activation-func-clamp-value needs a value, which no plan has"
    if model.moe is not None and model.moe.router_bias:
        yield "model.moe.router_bias: Megatron-Core's router has no trained bias of this kind"
    if model.mla is not None and model.mla.indexer is not None:
        yield "model.mla.indexer: sparse attention has no arguments in core_v0.16.1"
    if model.norm_bias != (model.norm == "layernorm"):
        yield "model.norm_bias: Megatron-Core's LayerNorm has a bias, its RMSNorm has none"
    if model.positions and model.positions < job.seq_len:
        yield (f"job.seq_len {job.seq_len}: the model has {model.positions} learned positions "
               "(--max-position-embeddings)")
    if model.mtp_layers and not model.rotary:
        yield "model.mtp_layers: multi-token prediction needs rotary positions"
    if job.optimizer != "adam" and way.stages[0].zero:
        yield f"job.optimizer {job.optimizer}: the distributed optimizer (zero 1) is Adam's"
    if job.stack.dispatch_fp8:
        yield "stack.dispatch_fp8: no argument sends tokens to experts in fp8"
    if job.stack.cuda_graphs != "none":
        yield (f"stack.cuda_graphs {job.stack.cuda_graphs}: which parts of a layer are captured "
               "(--cuda-graph-scope) is not in a plan")


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
    return {
        "MODEL": {**_model(model, job), **_attention(model), **_experts(model)},
        "PARALLEL": {**_degrees(way, job), **(_expert_degrees(way, job) if model.moe else {}),
                     **_pipeline(way, layout, listed), **_sharded(way, job)},
        "MEMORY": {**_recompute(way), **_offload(way)},
        "TRAINING": {
            "micro-batch-size": way.micro_batch // way.stages[0].dp_in,
            "global-batch-size": job.global_batch, "log-throughput": None,
            **_precision(job), **_optimizer(way, job)},
    }


def variables(way: Configuration, job: Job, device: str) -> dict[str, str]:
    """Environment variables that Megatron's arguments ask for on a device, by its name.

    One connection keeps the order of kernels where tensor or context parallel traffic hides under
    them, before Blackwell; Megatron-FSDP and overlapped experts want several. Source:
    NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py:687, 926 to 953, 1226.
    """
    stage, found = way.stages[0], {}
    if way.schedule == "combined":
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    elif _fsdp(job):
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
        '    --tokenizer-model "${TOKENIZER:-}" --save "${CHECKPOINT:-}" '
        '--load "${CHECKPOINT:-}"',
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


def _flags(**given: bool) -> Arguments:
    """The flags that are set, by name with underscores."""
    return {name.replace("_", "-"): None for name, value in given.items() if value}


def _model(model: Model, job: Job) -> Arguments:
    found: Arguments = {
        "num-layers": model.layers, "hidden-size": model.hidden,
        "num-attention-heads": model.heads, "ffn-hidden-size": model.ffn,
        "seq-length": job.seq_len, "max-position-embeddings": model.positions or job.seq_len,
        "position-embedding-type": "rope" if model.rotary else "learned_absolute",
        "normalization": "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        "attention-dropout": 0.0, "hidden-dropout": 0.0}
    found |= _flags(swiglu=model.gated, disable_bias_linear=not model.bias,
                    add_qkv_bias=model.qkv_bias,
                    untie_embeddings_and_output_weights=not model.tied_embeddings)
    return found | ({"mtp-num-layers": model.mtp_layers} if model.mtp_layers else {})


def _attention(model: Model) -> Arguments:
    mla, found = model.mla, _flags(qk_layernorm=model.qk_norm or model.mla is not None)
    if mla is not None:
        found |= {"multi-latent-attention": None, "kv-lora-rank": mla.kv_rank,
                  "qk-head-dim": mla.nope_dim, "qk-pos-emb-head-dim": mla.rope_dim,
                  "v-head-dim": mla.value_dim}
        found |= {"q-lora-rank": mla.q_rank} if mla.q_rank else {}
    if model.hidden % model.heads or (mla is None and model.head_dim * model.heads != model.hidden):
        found["kv-channels"] = model.head_dim
    if model.kv_heads != model.heads:
        found |= {"group-query-attention": None, "num-query-groups": model.kv_heads}
    if model.window is not None:  # without the token itself
        found["window-size"] = f"{model.window - 1},0"
        if model.full_layers:
            found["window-attn-skip-freq"] = _pattern(
                layer not in model.full_layers for layer in range(model.layers))
    return found


def _pattern(layers: Iterable[bool]) -> str:
    """A Python expression of 0 or 1 for each layer."""
    runs = [(int(value), len([*members])) for value, members in groupby(layers)]
    return f"({'+'.join(f'[{value}]*{count}' for value, count in runs)})"


def _experts(model: Model) -> Arguments:
    moe = model.moe
    if moe is None:
        return {}
    found: Arguments = {
        "num-experts": moe.experts, "moe-router-topk": moe.top_k, "moe-ffn-hidden-size": moe.ffn,
        "moe-layer-freq": _pattern(map(model.is_moe_layer, range(model.layers))),
        "moe-grouped-gemm": None}
    if moe.shared_ffn:
        found["moe-shared-expert-intermediate-size"] = moe.shared_ffn
        found |= _flags(moe_shared_expert_gate=moe.shared_gate)
    return found | _groups(moe)


def _groups(moe: MoE) -> Arguments:
    if moe.group_limit == moe.groups:  # tokens go to experts of any group
        return {}
    return {"moe-router-num-groups": moe.groups, "moe-router-group-topk": moe.group_limit}


def _degrees(way: Configuration, job: Job) -> Arguments:
    stage, stack = way.stages[0], job.stack
    found: Arguments = {"tensor-model-parallel-size": stage.tp}
    found |= _flags(sequence_parallel=stage.sp,
                    tp_comm_overlap=stage.sp and stack.overlap_tp > 0.0)
    found["pipeline-model-parallel-size"] = way.pp
    if stage.cp > 1:
        found |= {"context-parallel-size": stage.cp, "cp-comm-type": stage.cp_comm}
    return found


def _expert_degrees(way: Configuration, job: Job) -> Arguments:
    stage, dispatcher = way.stages[0], job.stack.dispatcher
    plain = dispatcher in ("alltoall", "allgather")
    return {"expert-model-parallel-size": stage.ep, "expert-tensor-parallel-size": stage.etp,
            "moe-token-dispatcher-type": dispatcher if plain else "flex",
            **({} if plain else {"moe-flex-dispatcher-backend": dispatcher})}


def _pipeline(way: Configuration, layout: str | None, listed: bool) -> Arguments:
    found: Arguments = {}
    if way.pp * way.vpp > 1:
        assert layout is not None
        found["pipeline-model-parallel-layout"] = layout
    if way.group is not None:
        found["microbatch-group-size-per-virtual-pipeline-stage"] = way.group
    return found | _flags(overlap_moe_expert_parallel_comm=way.schedule == "combined",
                          use_tp_pp_dp_mapping=replica_by_replica(way, listed))


def _sharded(way: Configuration, job: Job) -> Arguments:
    """States over data-parallel ranks, and when gradients and parameters travel."""
    stage, stack = way.stages[0], job.stack
    found: Arguments = {}
    if _fsdp(job):
        found |= {"use-megatron-fsdp": None, "ckpt-format": "fsdp_dtensor",
                  "data-parallel-sharding-strategy": _SHARDED[stage.zero]}
    found |= _flags(use_distributed_optimizer=stage.zero > 0,
                    overlap_grad_reduce=stage.zero > 0 and stack.overlap_grad_reduce > 0.0,
                    overlap_param_gather=stage.zero > 0 and stack.overlap_param_gather > 0.0)
    if stage.shard == "dp_in":
        found["num-distributed-optimizer-instances"] = way.outer_dp
    return found


def _fsdp(job: Job) -> bool:
    known = job.stack.capabilities
    return known is not None and known.software == "Megatron-FSDP"


def _recompute(way: Configuration) -> Arguments:
    stage = way.stages[0]
    if stage.recompute == "none":
        return {}
    found: Arguments = {"recompute-granularity": stage.recompute}
    if stage.recompute == "selective":
        modules = tuple(_MODULES.get(one, one) for one in stage.recompute_modules)
        return found | {"recompute-modules": modules}
    method = "block" if stage.recompute_layers else "uniform"
    return found | {"recompute-method": method,
                    "recompute-num-layers": stage.recompute_layers or 1}


def _offload(way: Configuration) -> Arguments:
    """docs/offloading.md has the source."""
    away = Offload.of(way.offload)
    found: Arguments = {}
    if away.optimizer:
        found |= {"optimizer-cpu-offload": None, "use-precision-aware-optimizer": None,
                  "optimizer-offload-fraction": away.optimizer,
                  "overlap-cpu-optimizer-d2h-h2d": None}
    if away.layers:
        found["cpu-offloading-num-layers"] = away.layers
    if away.modules:
        found |= {"fine-grained-activation-offloading": None, "offload-modules": away.modules}
    return found


def _precision(job: Job) -> Arguments:
    """Number formats of products and of gradients; bf16 training keeps these in fp32 by itself."""
    stack, precision = job.stack, job.precision
    if precision == "fp32":
        return {}
    if precision == "fp16":
        return {"fp16": None, **_flags(
            accumulate_allreduce_grads_in_fp32=stack.gradient_dtype == "fp32")}
    found: Arguments = {"bf16": None}
    if precision == "fp8":
        found |= {"fp8-format": "hybrid", "fp8-recipe": "tensorwise"}
    kept = stack.fp8_gradient_dtype if precision == "fp8" else stack.gradient_dtype
    return found | _flags(grad_reduce_in_bf16=kept == "bf16")


def _optimizer(way: Configuration, job: Job) -> Arguments:
    """The precision-aware optimizer keeps only the remainders of fp32 copies."""
    if job.optimizer != "adam":
        return {"optimizer": "sgd", "sgd-momentum": 0.9 if job.optimizer == "sgd-momentum" else 0.0}
    remainders = (job.stack.master_remainders and job.precision == "bf16" and not _fsdp(job)
                  and way.stages[0].zero > 0)
    return {"optimizer": "adam", **_flags(use_precision_aware_optimizer=remainders)}
