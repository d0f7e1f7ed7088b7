"""Why a measured run is not priced: a feature that NEST lacks, or a fact that the source lacks."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nest.measured.validation.cells import offload, precision, recompute
from nest.measured.validation.hardware import device_name

_NEEDED = ("n_layers", "d_model", "d_ff", "n_heads", "vocab", "seq_len", "gated_mlp", "gpu",
           "n_gpus", "gpus_per_node", "precision", "tp", "pp", "dp", "vpp", "mbs", "gbs_seqs")
_LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_LATENT_MODELS = re.compile(r"deepseek[-_ ]?(?:v?[23]|r1)|kimi[-_ ]?k2|moonlight")


def unpriced(cells: Mapping[str, str]) -> str | None:
    """Why a run cannot be priced, one cause; None: it can.

    Parameters
    ----------
    cells : the row by column, with inferred cells.
    """
    if not (cells["step_time_s"] or cells.get("step_time_s_derived")):
        return "no step time is stated"
    notes = cells.get("notes", "").lower()
    if offload(cells.get("offload", ""), notes) is None:
        return "offloads to the host what is not named"
    if re.search(r"\(lora\)", cells["model"].lower()) or re.match(r"lora\b", notes):
        return "LoRA: the base weights are frozen"
    missing = [name for name in _NEEDED if not cells.get(name)]
    if cells.get("n_experts"):
        missing += [name for name in ("top_k", "d_ff_expert") if not cells.get(name)]
    if cells.get("kv_lora_rank") or "mla" in re.findall(r"[a-z]+", cells.get("arch", "").lower()) \
            or _LATENT_MODELS.match(cells["model"].lower()):
        missing += [name for name in _LATENT if not cells.get(name)]
    if missing:
        return f"not stated: {', '.join(missing)}"
    if precision(cells["precision"]) is None:
        return f"precision {cells['precision']}"
    if device_name(cells["gpu"], cells.get("gpu_mem_gb", "")) is None:
        return f"unknown gpu {cells['gpu']}"
    if not cells["recompute"]:
        return "not stated: recompute"
    if recompute(cells["recompute"]) is None:
        return f"recompute {cells['recompute']}"
    return _degrees(cells)


def _degrees(cells: Mapping[str, str]) -> str | None:
    """Degrees whose product is not the number of devices."""
    number = {name: int(float(cells.get(name) or 1))
              for name in ("tp", "pp", "dp", "cp", "n_gpus", "mbs", "gbs_seqs", "fsdp_shard")}
    product = number["tp"] * number["pp"] * number["dp"] * number["cp"]
    if product != number["n_gpus"]:
        return f"tp x pp x dp x cp = {product} is not n_gpus {number['n_gpus']}"
    if number["gbs_seqs"] % (number["mbs"] * number["dp"]):
        return (f"mbs x dp = {number['mbs'] * number['dp']} does not divide gbs_seqs "
                f"{number['gbs_seqs']}")
    shards = number["dp"] * number["cp"]
    if cells.get("fsdp_shard") and shards % number["fsdp_shard"]:
        return f"fsdp_shard {number['fsdp_shard']} does not divide dp x cp = {shards}"
    return None
