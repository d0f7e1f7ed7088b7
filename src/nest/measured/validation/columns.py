"""Columns of a table of measured runs, and how their cells are read."""

from __future__ import annotations

import math

NEEDED: dict[str, str] = {
    "run_id": "name of the run, unique in the table",
    "model": "name of the model",
    "n_layers": "transformer layers",
    "d_model": "width of the residual",
    "d_ff": "width of the MLP; of one matrix if it is gated",
    "gated_mlp": "1: three matrices (SwiGLU), 0: two",
    "n_heads": "attention heads",
    "seq_len": "tokens in a sequence",
    "gpu": "type of device",
    "n_gpus": "devices",
    "gpus_per_node": "devices of a node",
    "precision": "number format of matrix products",
    "framework": "training software with its version",
    "tp": "tensor-parallel degree",
    "pp": "pipeline stages",
    "dp": "data-parallel degree",
    "recompute": "none, full, `full, 5 layers`, selective: norm+mlp_act",
    "mbs": "sequences per device and micro-batch",
    "gbs_seqs": "sequences in a step",
    "step_time_s": "measured seconds of a step",
}
"""Columns that a table has to have, with their meaning; a cell may be empty: not known."""

OPTIONAL: dict[str, str] = {
    "source_group": "runs scored together; default: the framework",
    "source": "where the figures come from",
    "quality": "A: exact and consistent; B: something is missing or inferred",
    "arch": "dense or MoE, activation",
    "n_kv_heads": "key-value heads; default: n_heads",
    "head_dim": "width of a head; default: d_model / n_heads",
    "vocab": "tokens in the vocabulary",
    "n_experts": "routed experts of a layer",
    "top_k": "experts that a token uses",
    "d_ff_expert": "width of an expert",
    "d_ff_shared": "total width of the shared experts; default: n_shared_experts x d_ff_expert",
    "n_shared_experts": "shared experts of a layer",
    "first_dense": "first layers without experts; default: 0",
    "n_expert_groups": "groups of experts, of which a token uses at most top_k_groups",
    "top_k_groups": "groups of experts that a token uses at most",
    "q_lora_rank": "latent attention: rank of the queries; empty: not compressed",
    "kv_lora_rank": "latent attention: rank of keys and values; empty: plain attention",
    "qk_nope_head_dim": "latent attention: width of a head without rotary embedding",
    "qk_rope_head_dim": "latent attention: width of a head with rotary embedding",
    "v_head_dim": "latent attention: width of a head's values",
    "attention_window": "tokens of a sliding window; `128, every 2nd layer`: the other layers see "
                        "all tokens; none: no window",
    "parallel_block": "1: attention and MLP beside each other with one norm, 2: with a norm each; "
                      "default: 0, after each other",
    "mtp_layers": "layers of multi-token prediction; default: 0",
    "gpu_mem_gb": "memory of a device, to tell variants apart",
    "intra_node": "link inside a node",
    "inter_node_gbps_per_gpu": "Gb/s of network per device, one direction",
    "vpp": "virtual stages per device; default: 1 without a pipeline",
    "cp": "context-parallel degree; default: 1",
    "ep": "expert-parallel degree; default: 1",
    "etp": "tensor-parallel degree of experts; default: tp",
    "sp": "1: sequence parallelism; default: 0",
    "zero_stage": "ZeRO stage; default: 0",
    "fsdp_shard": "ranks that ZeRO shards over; default: all of dp x cp",
    "flash_attention": "1: fused attention, 0: scores are stored; default: the stack's",
    "grad_accum": "micro-batches of a device in a step",
    "schedule": "none, 1F1B, interleaved-1F1B, GPipe or a zero-bubble order",
    "layout": "layers of each chunk as Megatron-Core writes them, or even; default: even",
    "dispatcher": "how tokens reach experts: alltoall, allgather, deepep or hybridep",
    "ep_overlap": "1: traffic of experts runs beside another micro-batch's computing",
    "cuda_graphs": "none, full_iteration, or the parts of a layer that are captured",
    "offload": "what is kept on the host, as [NEST writes it](offloading.md) or `activations of 20 "
               "layers`; default: none",
    "optimizer": "optimizer; default: Adam",
    "step_time_s_derived": "seconds of a step computed from a stated rate, where none is stated",
    "peak_mem_gb": "largest memory of a device; what it counts is in mem_note",
    "mem_note": "GiB or bytes/1e9; allocated (default), reserved, or nvidia-smi",
    "notes": "offloading, asynchronous tensor parallelism and the like",
}
"""Columns that may be left out."""

COLUMNS = (*NEEDED, *OPTIONAL)
WHOLE = ("n_layers", "d_model", "d_ff", "gated_mlp", "n_heads", "n_kv_heads", "head_dim", "vocab",
         "seq_len", "n_experts", "top_k", "d_ff_expert", "d_ff_shared", "n_shared_experts",
         "first_dense", "n_expert_groups", "top_k_groups", "q_lora_rank", "kv_lora_rank",
         "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "parallel_block", "mtp_layers",
         "ep_overlap", "flash_attention",
         "n_gpus", "gpus_per_node", "tp", "pp", "vpp", "dp", "cp", "ep", "etp", "sp", "zero_stage",
         "fsdp_shard", "mbs", "gbs_seqs", "grad_accum")
REAL = ("gpu_mem_gb", "inter_node_gbps_per_gpu", "step_time_s", "step_time_s_derived",
        "peak_mem_gb")
_FROM_ZERO = ("gated_mlp", "sp", "zero_stage", "d_ff_shared", "n_shared_experts", "first_dense",
              "q_lora_rank", "parallel_block", "mtp_layers", "ep_overlap", "flash_attention")
_MOST = {"gated_mlp": 1, "sp": 1, "zero_stage": 3, "parallel_block": 2, "ep_overlap": 1,
         "flash_attention": 1}
_LARGEST = 10**9


def cell_problem(column: str, text: str) -> str | None:
    """The problem of a cell that is not empty; None: none."""
    if column in WHOLE:
        allowed = _whole_range(column)
        value = whole(text)
        low, high = (0 if column in _FROM_ZERO else 1), _MOST.get(column, _LARGEST)
        return None if value is not None and low <= value <= high else allowed
    if column in REAL:
        number = real(text)
        return None if number is not None and 0.0 < number < 1e12 else "a number above 0"
    return None if len(text) <= 2000 else "at most 2000 characters"


def _whole_range(column: str) -> str:
    if column in _MOST:
        return f"a whole number from 0 to {_MOST[column]}"
    return f"a whole number from 1 to {_LARGEST}"


def whole(text: str) -> int | None:
    """A whole number, also written as `8.0`; None: it is not one."""
    number = real(text)
    return int(number) if number is not None and number.is_integer() else None


def real(text: str) -> float | None:
    """A finite number; None: it is none."""
    if not text.isascii() or "_" in text or len(text) > 40:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
