"""Readers of config.json for model types that are known layers under names of their own.

Sources: huggingface/transformers 5.23.0, src/transformers/models/*/configuration_*.py for names and
defaults, modeling_*.py beside them ("modelling" below) for biases, norms and experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nest.inputs.huggingface.alike import gqa
from nest.inputs.huggingface.fields import Config


def _seed_oss(config: Config) -> dict[str, Any]:
    # lines 169 to 180 of its modelling: biases of the output and the MLP by flags of their own
    return {"head_dim": 128, **gqa(config, kv_default=True),
            "qkv_bias": config.flag("attention_bias", True),
            "output_bias": config.flag("attention_out_bias", False),
            "mlp_bias": config.flag("mlp_bias", False)}


def _smollm3(config: Config) -> dict[str, Any]:
    # Layers without rotation (no_rope_layers) are priced like the others: it is element-wise work
    # of queries and keys, beside their projections.
    config.read |= {"no_rope_layers", "no_rope_layer_interval"}
    bias = config.flag("attention_bias", False)
    return {**gqa(config), "tied_embeddings": config.flag("tie_word_embeddings", True),
            "qkv_bias": bias, "output_bias": bias, "mlp_bias": config.flag("mlp_bias", False)}


def _ernie(config: Config) -> dict[str, Any]:
    return {**gqa(config), "tied_embeddings": config.flag("tie_word_embeddings", True),
            "bias": config.flag("use_bias", False)}


def _ernie_moe(config: Config) -> dict[str, Any]:
    fields = _ernie(config)
    config.only("use_bias", False, False, None)  # with it the experts have none, all else has
    config.only("moe_layer_interval", 1, 1)
    last = fields["layers"] - 1
    config.only("moe_layer_end_index", -1, -1, last)
    width = config.whole("moe_intermediate_size", 1536)
    config.read.add("moe_norm_min")
    return {**fields, "moe": {
        "experts": config.whole("moe_num_experts", 64), "top_k": config.whole("moe_k", 6),
        "ffn": width, "shared_ffn": width * config.whole("moe_num_shared_experts", 2, 0),
        "first_dense": config.whole("moe_layer_start_index", 1, 0)}}


def _hunyuan(config: Config) -> dict[str, Any]:
    config.only("use_qk_norm", True, True)
    bias = config.flag("attention_bias", False)
    config.read.add("eod_token_id")
    return {**gqa(config, kv_default=True), "qk_norm": True, "qkv_bias": bias, "output_bias": bias}


def _hunyuan_moe(config: Config) -> dict[str, Any]:
    # lines 67 and 251 of its modelling: experts and the shared one have intermediate_size
    fields = _hunyuan(config)
    layers, width = fields["layers"], fields["ffn"]
    for key, allowed in (("moe_intermediate_size", width), ("num_shared_expert", 1)):
        config.only(key, None, None, allowed, layers * [allowed])
    return {**fields, "moe": {
        "experts": config.whole("num_experts"), "top_k": _of_all(config, "moe_topk", layers),
        "ffn": width, "shared_ffn": width}}


def _of_all(config: Config, key: str, layers: int) -> int:
    """A whole number, or a list with the same one for each layer."""
    value = config.get(key)
    if not isinstance(value, list):
        return config.whole(key)
    if len(value) == layers and type(value[0]) is int and value == layers * [value[0]] and (
            value[0] > 0):
        return int(value[0])
    config.refuse(key, f"a whole number, or the same one {layers} times")
    return 1


READERS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "ernie4_5": _ernie,
    "ernie4_5_moe": _ernie_moe,
    "hunyuan_v1_dense": _hunyuan,
    "hunyuan_v1_moe": _hunyuan_moe,
    "seed_oss": _seed_oss,
    "smollm3": _smollm3,
}

REFUSED = {
    "falcon_h1": "each layer runs attention and a state-space model side by side",
    "deepseek_v4": "its attention compresses keys and values, its output projection has groups of "
    "low rank, and several residual streams are mixed (hc_mult)",
}
"""Model types that are known, and why no description has their layers (lines 873 to 875 of
Falcon-H1's modelling, 156 to 375 of DeepSeek-V4's)."""
