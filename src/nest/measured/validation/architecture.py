"""From a row's sizes to a model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from nest.errors import InputError
from nest.inputs.layers import MLA, MoE
from nest.inputs.loading import load_model
from nest.inputs.model import Model
from nest.measured.validation.inferred import named_model

if TYPE_CHECKING:
    from nest.measured.validation.runs import Run


def model(run: Run) -> tuple[Model, list[str]]:
    """The model of a run, and remarks on priced differences from the run.

    A row that states no size has the catalog's model of its name. Else there are three families,
    by the shape of the MLP and the name. Gated: RMSNorm, no biases, rotary positions, its own
    output matrix (Llama, Qwen, GPT-OSS). Squared ReLU, or Nemotron: the same with LayerNorm
    (NVIDIA/NeMo-Framework-Launcher conf/training/nemotron). Else as GPT-2: LayerNorm, biases,
    learned positions, tied embeddings; the parameters that llm-foundry prints for its runs are
    those of this family to the last digit.

    Parameters
    ----------
    run : a run that can be priced.

    Raises
    ------
    InputError : the sizes are not a model, such as heads that do not divide the width.
    """
    named = named_model(run.fields)
    if named is not None:
        return load_model(named), []
    gated = run.whole("gated_mlp") == 1
    nemotron = "sqrelu" in run.text("arch").lower() or run.model.lower().startswith("nemotron")
    classic = not gated and not nemotron
    heads = run.whole("n_heads")
    remarks: list[str] = []
    data: dict[str, Any] = {
        "name": run.model, "layers": run.whole("n_layers"), "hidden": run.whole("d_model"),
        "heads": heads, "kv_heads": run.whole("n_kv_heads") or heads, "ffn": run.whole("d_ff"),
        "gated": gated, "vocab": run.whole("vocab"), "tied_embeddings": classic,
        "norm": "rmsnorm" if gated else "layernorm", "bias": classic,
        "positions": run.whole("seq_len") if classic else 0,
        "qk_norm": bool(re.match(r"qwen-?3", run.model.lower())),
    }
    if re.match(r"gpt[- _]?oss", run.model.lower()):
        data["bias"] = True
    if run.whole("kv_lora_rank") is not None:
        data |= {"mla": _latent(run), "kv_heads": heads, "qk_norm": False}
    elif run.whole("head_dim") is not None:
        data["head_dim"] = run.whole("head_dim")
    if run.whole("n_experts") is not None:
        data["moe"] = _experts(run)
    if run.whole("parallel_block"):
        data |= {"parallel": True, "layer_norms": run.whole("parallel_block")}
    if run.whole("mtp_layers"):
        data["mtp_layers"] = run.whole("mtp_layers")
    data |= _windows(run, remarks)
    return Model.parse(data, f"run {run.run_id}"), remarks


def _latent(run: Run) -> MLA:
    return MLA.parse({
        "q_rank": run.whole("q_lora_rank") or 0, "kv_rank": run.whole("kv_lora_rank"),
        "nope_dim": run.whole("qk_nope_head_dim"), "rope_dim": run.whole("qk_rope_head_dim"),
        "value_dim": run.whole("v_head_dim")}, f"run {run.run_id}: mla")


def _experts(run: Run) -> MoE:
    """Shared experts as wide as one routed expert of several are each so wide."""
    shared, each = run.whole("d_ff_shared") or 0, run.whole("d_ff_expert")
    number = run.whole("n_shared_experts") or 1
    given = {"experts": run.whole("n_experts"), "top_k": run.whole("top_k"), "ffn": each,
             "shared_ffn": shared * number if shared == each else shared,
             "first_dense": run.whole("first_dense") or 0,
             "groups": run.degree("n_expert_groups"),
             "clamped": bool(re.match(r"gpt[- _]?oss", run.model.lower()))}
    if run.whole("top_k_groups"):
        given["group_limit"] = run.whole("top_k_groups")
    return MoE.parse(given, f"run {run.run_id}: moe")


def _windows(run: Run, remarks: list[str]) -> dict[str, Any]:
    """Window and the layers without one; the last layer of every n has none."""
    words = run.text("attention_window").lower()
    if re.match(r"(?:none|full|0)?$", words):
        if "sliding" in run.text("arch").lower():
            remarks.append("sliding windows are not stated, and priced as full attention")
        return {}
    size, layers = re.search(r"\d+", words), run.degree("n_layers")
    if size is None:
        raise InputError(f"attention_window {words}")
    every = re.search(r"every (\d+)", words) or re.search(r"\b(\d+):1\b", words)
    period = 0
    if every:
        period = int(every[1]) + (":" in every[0])
    elif re.search(r"alternat|every (?:other|second)", words + run.text("arch").lower()):
        period = 2
    full = tuple(n for n in range(layers) if period and n % period == period - 1)
    return {"window": int(size[0]), "full_layers": full}
