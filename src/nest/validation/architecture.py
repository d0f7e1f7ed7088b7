"""From a row's sizes to a model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from nest.describe.model import Model, MoE

if TYPE_CHECKING:
    from nest.validation.runs import Run


def model(run: Run) -> tuple[Model, list[str]]:
    """The model of a run, and remarks on priced differences from the run.

    Three families, by the shape of the MLP and the name. Gated: RMSNorm, no biases, rotary
    positions, its own output matrix (Llama, Qwen, GPT-OSS). Squared ReLU, or Nemotron: the same
    with LayerNorm (NVIDIA/NeMo-Framework-Launcher conf/training/nemotron). Else as GPT-2:
    LayerNorm, biases, learned positions, tied embeddings; the parameters that llm-foundry prints
    for its runs are those of this family to the last digit.

    Parameters
    ----------
    run : a run that can be priced.

    Raises
    ------
    InputError : the sizes are not a model, such as heads that do not divide the width.
    """
    gated = run.whole("gated_mlp") == 1
    nemotron = "sqrelu" in run.text("arch").lower() or run.model.lower().startswith("nemotron")
    classic = not gated and not nemotron
    heads = run.whole("n_heads")
    remarks = []
    data: dict[str, Any] = {
        "name": run.model, "layers": run.whole("n_layers"), "hidden": run.whole("d_model"),
        "heads": heads, "kv_heads": run.whole("n_kv_heads") or heads, "ffn": run.whole("d_ff"),
        "gated": gated, "vocab": run.whole("vocab"), "tied_embeddings": classic,
        "norm": "rmsnorm" if gated else "layernorm", "bias": classic,
        "positions": run.whole("seq_len") if classic else 0,
        "qk_norm": bool(re.match(r"qwen-?3", run.model.lower())),
    }
    if run.whole("head_dim") is not None:
        data["head_dim"] = run.whole("head_dim")
    if run.whole("n_experts") is not None:
        data["moe"] = MoE.parse({"experts": run.whole("n_experts"), "top_k": run.whole("top_k"),
                                 "ffn": run.whole("d_ff_expert")}, f"run {run.run_id}: moe")
    if "sliding" in run.text("arch").lower():
        remarks.append("sliding windows are priced as full attention")
    return Model.parse(data, f"run {run.run_id}"), remarks
