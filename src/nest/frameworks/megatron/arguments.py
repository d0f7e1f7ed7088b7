"""Megatron-LM's command line as values of arguments, and these as figures.

Names, defaults and rules: NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py, cited by
line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from nest.errors import InputError, did_you_mean
from nest.frameworks.arguments import Words, arguments_of, known, listed, plain
from nest.frameworks.megatron.table import RECIPES, SECTIONS, SHARDED
from nest.frameworks.settings import figures_of
from nest.frameworks.source import LEFT_OUT, MOST_PROBLEMS, unread
from nest.inputs.space import CpComm
from nest.units import shorten

Figures = dict[str, Any]
TABLE = "megatron/flags"

ALIASES: Mapping[str, tuple[str, Words]] = {
    "batch-size": ("micro-batch-size", ()),
    "encoder-seq-length": ("seq-length", ()),
    "model-parallel-size": ("tensor-model-parallel-size", ()),
    "encoder-num-layers": ("num-layers", ()),
    "use-rotary-position-embeddings": ("position-embedding-type", ("rope",)),  # line 990
    "quick-geglu": ("swiglu", ()),
    "recompute-activations": ("recompute-granularity", ("selective",)),  # line 430
    "checkpoint-activations": ("recompute-granularity", ("full",)),
    "moe-enable-deepep": ("moe-token-dispatcher-type", ("flex",)),
    "activations-checkpoint-granularity": ("recompute-granularity", ()),
    "activations-checkpoint-num-layers": ("recompute-num-layers", ()),
    "activations-checkpoint-method": ("recompute-method", ()),
    "checkpoint-num-layers": ("recompute-num-layers", ()),
    "pad-vocab-size-to": ("padded-vocab-size", ()),
}
"""Arguments that another one says; with its words where these differ."""
MORE: Mapping[str, tuple[str, Words]] = {
    "moe-enable-deepep": ("moe-flex-dispatcher-backend", ("deepep",)),
    # Of NVIDIA/Megatron-LM@v2.5 on, megatron/arguments.py, where it switched recompute on.
    "activations-checkpoint-method": ("recompute-granularity", ("full",))}
"""What such an argument says besides."""

LOSSES = "moe-router-load-balancing-type"
"""One for all layers, or several that are added."""
READ = (
    "attention-backend", "vocab-file", "vocab-size", "padded-vocab-size", "tokenizer-type",
    "tokenizer-model", "vocab-extra-ids", "num-layers-per-virtual-pipeline-stage",
    "num-virtual-stages-per-pipeline-rank", "decoder-first-pipeline-num-layers",
    "decoder-last-pipeline-num-layers", "account-for-embedding-in-pipeline-split",
    "account-for-loss-in-pipeline-split", "softmax-type", "qk-l2-norm", "attention-output-gate",
    "activation-func-clamp-value", "cuda-graph-impl", "cuda-graph-scope", "enable-cuda-graph",
    "external-cuda-graph", "use-flash-attn", "moe-layer-recompute",
    "experimental-attention-variant", "dsa-indexer-n-heads", "dsa-indexer-head-dim",
    "dsa-indexer-topk", "dsa-indexer-loss-coeff", "dsa-indexer-use-sparse-loss",
    "attention-head-type", "outer-dp-sharding-strategy", "main-grads-dtype", "main-params-dtype",
    "exp-avg-dtype", "exp-avg-sq-dtype", "position-embedding-type", "fp4-recipe",
    "muon-tp-mode", "muon-num-ns-steps", "muon-fp32-matmul-prec", "muon-momentum",
    "muon-use-nesterov", "muon-scale-mode", "muon-extra-scale-factor", "muon-no-split-qkv",
    "transformer-impl", "distributed-backend", "rerun-mode", LOSSES)
"""Arguments besides those of the tables that are read."""
ONLY: Mapping[str, tuple[object, ...]] = {
    "outer-dp-sharding-strategy": ("no_shard",), "experimental-attention-variant": ("dsa",),
    "main-grads-dtype": ("fp32", "bf16"), "attention-head-type": ("multihead", "multiquery"),
    "main-params-dtype": ("fp32",), "exp-avg-dtype": ("fp32",), "exp-avg-sq-dtype": ("fp32",),
    "position-embedding-type": ("rope", "mrope", "learned_absolute", "none"),
    "attention-backend": ("auto", "flash", "fused", "unfused", "local"),
    "transformer-impl": ("transformer_engine", "local"),
    "optimizer": ("adam", "sgd", "muon", "dist_muon"), "muon-tp-mode": ("blockwise",),
    "muon-num-ns-steps": (5,), "muon-fp32-matmul-prec": ("medium",),
    "softmax-type": ("vanilla", "learnable"),
    "fp8-recipe": (*RECIPES.values(),), "fp4-recipe": ("nvfp4",),
    "recompute-granularity": ("full", "selective"), "normalization": ("RMSNorm", "LayerNorm"),
    "data-parallel-sharding-strategy": SHARDED, "cp-comm-type": get_args(CpComm),
    "moe-token-dispatcher-type": ("alltoall", "allgather", "flex"),
    "moe-flex-dispatcher-backend": ("deepep", "hybridep"),
    "recompute-method": ("uniform", "block"), "distributed-backend": ("nccl",),
    # megatron/core/rerun_state_machine.py:342: other modes run each step twice.
    "rerun-mode": ("disabled", "validate_results"),
    # megatron/core/transformer/moe/moe_utils.py:185: sinkhorn repeats until it converges.
    LOSSES: ("aux_loss", "seq_aux_loss", "global_aux_loss", "none"),
}
"""Values that have a price."""
CHECKPOINT = ("use-checkpoint-args", "use-mp-args-from-checkpoint-args")
FROM_CHECKPOINT = ("arguments of the checkpoint replace those of the script; read the command line "
                   "that made the checkpoint, or the arguments that its log prints")
COUNTS = frozenset((
    "layers", "hidden", "heads", "ffn", "seq_len", "max_positions", "mtp_layers", "kv_rank",
    "nope_dim", "rope_dim", "value_dim", "q_rank", "head_dim", "kv_heads", "experts", "top_k",
    "expert_ffn", "shared_ffn", "router_groups", "group_limit", "tp", "pp", "cp", "ep", "etp",
    "group", "instances", "recompute_layers", "offload_layers", "micro_batch", "global_batch"))
"""Figures that are whole numbers."""


def values_of(words: Sequence[str], ignored: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Values of the arguments that matter, and notes on those that have no price.

    Raises
    ------
    InputError : arguments that may change the cost and are not read, or values without a price.
    """
    table = known(TABLE)
    found, stray = arguments_of(words, table)
    for name, (target, value) in ALIASES.items():
        if name in found:
            own = found.pop(name)
            found.setdefault(target, value or own)
            if name in MORE:
                found.setdefault(*MORE[name])
    if found.get("transformer-impl") == ("local",):  # gpt_builders.py:47
        found["attention-backend"] = ("local",)
    found = {name: value for name, value in found.items() if name not in ignored}
    small = [name for name in found if name in table.small]
    wanted = {one.name for each in SECTIONS.values() for one in each} | {*READ}
    costless = table.small | table.free | table.elsewhere
    strange = [name for name in found if name not in wanted | costless]
    problems = [
        f"--{name}: {FROM_CHECKPOINT}" if name in CHECKPOINT else
        f"--{unread(name)}" if name in table.takes else
        f"--{shorten(name)[1:-1]}: no argument of Megatron-LM core_v0.16.1; "
        f"{did_you_mean(name, table.takes)}".rstrip("; ") for name in strange[:MOST_PROBLEMS]]
    if (more := len(strange) - MOST_PROBLEMS) > 0:
        problems.append(f"and {more} more")
    given = {name: plain(name, value, table.takes.get(name, "one"))
             for name, value in found.items() if name in wanted and name not in costless}
    given = {name: value[0] if isinstance(value, tuple) and len(value) == 1
             and name not in ("recompute-modules", "offload-modules") else value
             for name, value in given.items()}
    problems += [f"--{name}: got {shorten(given[name])}; allowed: {', '.join(map(str, allowed))}"
                 for name, allowed in ONLY.items()
                 if name in given and not _priced(name, given[name])]
    if stray:
        problems.append(f"got {shorten(stray[0])}, which belongs to no argument")
    if problems:
        raise InputError("\n".join(problems), tuple(problems))
    if given.get("position-embedding-type") == "mrope":
        given["position-embedding-type"] = "rope"
    notes = [f"no price for {listed(one for one in small if table.effects[one] == effect)} "
             f"({effect})" for effect in dict.fromkeys(table.effects[one] for one in small)]
    if others := [name for name in found if name in table.elsewhere]:
        notes.append(f"no arguments of Megatron-LM core_v0.16.1, and of no cost: {listed(others)}")
    if ignored:
        notes.append(f"ignored: {listed(ignored)}{LEFT_OUT}")
    return given, notes


def _priced(name: str, value: Any) -> bool:
    """Whether a value has a price; of several that are added, all of them."""
    each = value if name == LOSSES and isinstance(value, tuple) else (value,)
    return all(one in ONLY[name] for one in each)


def figures_given(given: Mapping[str, Any]) -> Figures:
    """Figures of the tables that arguments say.

    Raises
    ------
    InputError : a number that is missing, none, or outside its range.
    """
    found: Figures = {}
    for table in SECTIONS.values():
        found |= figures_of(table, given)
    for name in ("layers", "hidden", "heads"):
        if not isinstance(found.get(name), int):
            text = {"layers": "num-layers", "hidden": "hidden-size",
                    "heads": "num-attention-heads"}[name]
            raise InputError(f"--{text}: got {shorten(found.get(name))}; allowed: a whole number")
    for one in (one for each in SECTIONS.values() for one in each):
        value = found.get(one.figure)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not (
                0 <= value <= 10**12) and one.figure != "capacity":
            raise InputError(f"--{one.name}: got {shorten(value)}; allowed: 0 to 10**12")
        if one.words is None and one.name in given and isinstance(value, str) and (
                one.figure in COUNTS):
            raise InputError(f"--{one.name}: got {shorten(value)}; allowed: a whole number")
    return found
