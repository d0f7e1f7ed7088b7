"""The software stack of a measured run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from nest.inputs import catalog
from nest.inputs.job import Stack, resolve_stack
from nest.inputs.loading import load_stack

_GROUPS = {"vtrain_multi": "vtrain"}
"""Stacks of groups that their framework does not identify."""
_STACKS = (
    # pattern of the framework, stack; the first that matches counts
    # --overlap-grad-reduce came on 5 September 2023 (NVIDIA/Megatron-LM commit 2d5220a)
    (r"megatron-lm \(20(21|22|23-0[1-8])\b", "megatron-2021"),
    (r"sailor", "megatron-deepspeed-unfused"),
    (r"megatron.{0,3}deepspeed", "megatron-deepspeed"),
    (r"all comm-overlap off", "megatron-core-serial"),
    (r"megatron-bridge", "megatron-bridge"),
    (r"automodel", "automodel"),
    (r"nemo \(?24\.0[1-7]\b", "megatron-core-2024"),
    (r"megatron|nemo", "megatron-core"),
    (r"llm-foundry", "llm-foundry"),
    (r"torchtitan", "torchtitan"),
    (r"internevo", "internevo"),
    (r"fsdp|deepspeed|jax", "fsdp"),
)
_DEFAULT = "megatron-core"
PROVISIONAL: dict[str, dict[str, Any]] = {
    "llama-3": {
        "base": "torchtitan-eager", "wide_ring": False, "overlap_cp": 0.0, "calibration": None,
        "keeps_gathered": False, "receives_all": False,
        "source": "Meta's trainer of Llama 3, not public: as torchtitan-eager, assumed, but keys "
                  "and values are gathered before attention, which nothing hides "
                  "(arXiv:2407.21783, section 3.3.2), and nothing gathered is kept: Llama-405B "
                  "would take 138 GiB of 80; buffers for one micro-batch at a time",
    },
    "automodel": {
        "base": "fsdp", "fp32_shards": False, "master_copy": False, "moment_dtype": "bf16",
        "zero_with_pipeline": (0, 1), "loss_kept": 4, "loss_peak": 8,
        "fsdp_copies": True, "stops_early": True, "wide_ring": True, "overlap_cp": 0.0,
        "source": "NeMo AutoModel: FSDP2 of bf16 parameters, with torch.optim.Adam of the same "
                  "(NVIDIA-NeMo/Automodel@36044ad nemo_automodel._transformers.auto_model, line "
                  "846, components.distributed.config, line 328); loss_kept, loss_peak: logits, "
                  "their log-probabilities and two gradients in 16 bit (components.loss.masked_ce, "
                  "fp32_upcast false); with a pipeline gradients are reduced once a step "
                  "(components.moe.fsdp_mixin); fsdp_copies, stops_early, wide_ring, overlap_cp: "
                  "PyTorch's, as torchtitan's; the rest as fsdp",
    },
    "metaseq": {
        "base": "fsdp", "gemm_derate": 0.847, "attention_derate": 0.584, "memory_derate": 0.611,
        "dropout": True, "split_inputs": True,
        "source": "fairscale's FSDP with Megatron's tensor parallelism; rates: llm-foundry's on "
                  "A100, also FSDP, assumed; split_inputs: --distribute-checkpointed-activations, "
                  "dropout: 0.1 (facebookresearch/metaseq@f7ffa5f "
                  "metaseq/launcher/opt_baselines.py); the rest as fsdp",
    },
}
"""Software of measured runs that the catalog lacks."""


def stack_name(
    framework: str, group: str = "", precision: str = "", notes: str = "", source: str = ""
) -> str:
    """The stack of a run: by its framework, and by variants of that framework.

    Never by model or run. A stack's own name stands for itself, but for a group that has one.
    Composer's mixed precision PURE keeps and reduces 16-bit gradients; torchtitan compiles or not,
    and did not compile the loss in 2024 ("compiling loss function causes CUDA errors" in
    pytorch/torchtitan@9dec370), the year that framework or source state.
    """
    if group in _GROUPS:
        return _GROUPS[group]
    words = framework.strip().lower()
    known = words if words in PROVISIONAL else catalog.find("stacks", words)
    if known is not None:
        return known
    name = next((stack for mark, stack in _STACKS if re.search(mark, words)), _DEFAULT)
    if name == "llm-foundry" and re.search(r"\bPURE\b", precision):
        return "llm-foundry-pure"
    if name == "torchtitan" and "compile" not in notes and "float8" not in notes:
        return "torchtitan-eager"
    if name == "torchtitan" and re.search(r"\b2024|_2024", f"{words} {source}"):
        return "torchtitan-2024"
    return name


def stack(name: str, changed: Mapping[str, Stack] | None = None) -> Stack:
    """A stack by name: one of ``changed``, else of the catalog."""
    if changed and name in changed:
        return changed[name]
    return _stack(name)


@cache
def _stack(name: str) -> Stack:
    if name not in PROVISIONAL:
        return load_stack(name)
    return Stack.parse({**resolve_stack(PROVISIONAL[name]), "name": name}, f"stack {name}")
