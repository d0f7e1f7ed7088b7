"""Rules of model types whose layers are alike that families.yaml cannot express; their windows.

Names and defaults of fields, norms and biases: see families.yaml.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nest.inputs.huggingface.fields import Config, Fields, add_row, tables
from nest.inputs.huggingface.mixed import MIXED
from nest.inputs.huggingface.sparse import SPARSE


def family(config: Config, model_type: str) -> Fields:
    """Fields of a model type of families.yaml: those of the type that it is, its row, its rule."""
    # All of their layers have experts: there is no width of dense ones.
    if model_type in ("qwen3_5_moe_text", "deepseek_v4"):
        config.data = {"intermediate_size": config.data.get("moe_intermediate_size"), **config.data}
    row = tables()["bases"].get(model_type) or tables()["families"][model_type]
    fields = family(config, row["is"]) if "is" in row else {}
    add_row(config, row, fields)
    if model_type in _RULES:
        _RULES[model_type](config, fields)
    return fields


def _gqa(config: Config, fields: Fields) -> None:
    heads = fields["heads"] if "num_key_value_heads" in config.data else None  # null stands for it
    fields["kv_heads"] = config.whole("num_key_value_heads", heads)


def _llama(config: Config, fields: Fields) -> None:
    attention, mlp = config.flag("attention_bias", False), config.flag("mlp_bias", False)
    both, part = attention and mlp, attention and not mlp
    fields |= {"bias": both, "qkv_bias": part, "output_bias": part,
               "mlp_bias": mlp and not attention}


def _qwen_moe(config: Config, fields: Fields) -> None:
    step = config.whole("decoder_sparse_step", 1)
    dense = config.get("mlp_only_layers") or []
    if dense and (not isinstance(dense, list) or step > 1 or dense != list(range(len(dense)))):
        config.refuse("mlp_only_layers", "[] or the first layers [0, 1, ...] with every later one")
        dense = []
    fields["moe"] = {
        # newer versions of transformers write num_experts under this other name
        "experts": config.whole("num_experts", config.whole("num_local_experts", 0) or None),
        "top_k": config.whole("num_experts_per_tok"),
        "ffn": config.whole("moe_intermediate_size"),
        "first_dense": len(dense),
        "every": step,
        **fields.get("moe", {}),
    }


def _routed(config: Config, first_dense: int, default: int | None = None) -> Fields:
    """Experts as DeepSeek has them: shared ones, first dense layers, groups."""
    width = config.whole("moe_intermediate_size", default)
    moe = {
        "experts": config.whole("n_routed_experts", default),
        "top_k": config.whole("num_experts_per_tok", default),
        "ffn": width,
        "shared_ffn": config.whole("n_shared_experts", 0, 0) * width,
        "first_dense": config.whole("first_k_dense_replace", first_dense, 0),
    }
    if default is None and (groups := config.whole("n_group", 1)) > 1:
        moe |= {"groups": groups, "group_limit": config.whole("topk_group", groups)}
    return moe


def _deepseek(config: Config, fields: Fields) -> None:
    fields.pop("head_dim", None)  # the configuration classes set it to the rotary part alone
    config.only("qk_head_dim", None, None, fields["mla"]["nope_dim"] + fields["mla"]["rope_dim"])
    experts = config.get("n_routed_experts")
    # without experts their other fields are notes
    moe = _routed(config, 0, None if experts is not None else 1)
    layers, first = fields["layers"], moe["first_dense"]
    types = config.layers_of("mlp_layer_types", layers, {"dense": "dense", "sparse": "sparse"})
    if types is not None and types != (first * ["dense"] + layers * ["sparse"])[:layers]:
        config.refuse("mlp_layer_types", f"{first} x dense (first_k_dense_replace), then sparse")
    if experts is not None:
        fields["moe"] = moe


def _glm4_moe(config: Config, fields: Fields) -> None:
    fields["moe"] = _routed(config, 1)
    fields.setdefault("head_dim", max(1, fields["hidden"] // fields["heads"]))


def _hy3(config: Config, fields: Fields) -> None:
    moe = fields["moe"] = _routed(config, 1)
    config.only("expert_hidden_dim", moe["ffn"], moe["ffn"])
    types = config.layers_of("mlp_layer_types", fields["layers"],
                             {"dense": "dense", "sparse": "sparse"})
    if types is not None and "first_k_dense_replace" not in config.data:
        moe["first_dense"] = types.index("sparse") if "sparse" in types else len(types)
    first = moe["first_dense"]
    if types is not None and types != (first * ["dense"] + len(types) * ["sparse"])[:len(types)]:
        config.refuse("mlp_layer_types", f"{first} x dense (first_k_dense_replace), then sparse")


def _minimax_m2(config: Config, fields: Fields) -> None:
    flags = config.get("attn_type_list")  # 1: attention, 0: lightning attention
    if flags is not None and (not isinstance(flags, list) or {*map(str, flags)} != {"1"}):
        config.refuse("attn_type_list", "1 for each layer")
    fields["mtp_layers"] = (
        config.whole("num_mtp_modules", 0, 0) if config.flag("use_mtp", False) else 0)


def _cohere(config: Config, fields: Fields) -> None:
    if config.flag("use_qk_norm", False):
        fields |= {"qk_norm": True, "qk_norm_form": "all"}


def _opt(config: Config, fields: Fields) -> None:
    config.only("word_embed_proj_dim", fields["hidden"], fields["hidden"], None)
    # OPTLearnedPositionalEmbedding keeps two rows for padding
    fields["positions"] = fields["max_seq_len"] + 2


def _bert(config: Config, fields: Fields) -> None:
    fields["kind"] = "decoder" if config.flag("is_decoder", False) else "encoder"
    # BertForMaskedLM builds the encoder without the pooling layer
    fields["pooler"] = config.get("architectures") != ["BertForMaskedLM"]


def _t5(config: Config, fields: Fields) -> None:
    fields["gated"] = str(config.get("feed_forward_proj", "relu")).startswith("gated")


def _falcon(config: Config, fields: Fields) -> None:
    heads = fields["heads"]
    new, every = config.flag("new_decoder_architecture", False), config.flag("parallel_attn", True)
    one, parallel = config.flag("multi_query", True), new or every
    fields["kv_heads"] = config.whole("num_kv_heads", heads) if new else 1 if one else heads
    fields["parallel"] = parallel
    fields["layer_norms"] = (
        config.whole("num_ln_in_parallel_attn", 2 if new else 1) if parallel else 2)


def _gpt_neo(config: Config, fields: Fields) -> None:
    layers = fields["layers"]
    words = {"global": "global", "local": "local"}
    kinds = config.layers_of("attention_layers", layers, words)
    groups = config.get("attention_types")
    if kinds is None and isinstance(groups, list):
        kinds = []
        for group in groups[:layers]:  # [names, times]
            names, times = group if isinstance(group, list) and len(group) == 2 else ((), 0)
            if isinstance(times, int) and times <= layers and isinstance(names, list):
                kinds += times * names[:layers]
        if len(kinds) != layers or not {*map(str, kinds)} <= {*words}:
            config.refuse("attention_types", f"[[names], times] with {layers} names in all, each "
                          "global or local")
            kinds = None
    kinds = kinds or ["global", "local"] * layers
    fields["full_layers"] = [n for n in range(layers) if kinds[n] == "global"]


def _ernie_moe(config: Config, fields: Fields) -> None:
    config.only("moe_layer_end_index", -1, -1, fields["layers"] - 1)
    shared = config.whole("moe_num_shared_experts", 2, 0)
    fields["moe"]["shared_ffn"] = fields["moe"]["ffn"] * shared


def _hunyuan_moe(config: Config, fields: Fields) -> None:
    layers = fields["layers"]
    for key, allowed in (("moe_intermediate_size", fields["ffn"]), ("num_shared_expert", 1)):
        config.only(key, None, None, allowed, layers * [allowed])
    fields["moe"]["top_k"] = _of_all(config, "moe_topk", layers)


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


_RULES: dict[str, Callable[[Config, Fields], None]] = {
    **MIXED,
    **SPARSE,
    "bert": _bert,
    "cohere": _cohere,
    "deepseek_v2": _deepseek,
    "ernie4_5_moe": _ernie_moe,
    "falcon": _falcon,
    "glm4_moe": _glm4_moe,
    "gpt_neo": _gpt_neo,
    "gqa": _gqa,
    "hunyuan_v1_moe": _hunyuan_moe,
    "hy_v3": _hy3,
    "llama": _llama,
    "minimax_m2": _minimax_m2,
    "opt": _opt,
    "qwen2_moe": _qwen_moe,
    "qwen3_moe": _qwen_moe,
    "t5": _t5,
}


# ---------------------------------------------------------------- windows


def _all(config: Config, layer: int) -> bool:
    """Mistral, Mixtral, Ministral, Qwen3 with experts: every layer has the window."""
    return True


def _late(config: Config, layer: int) -> bool:
    """Qwen2, Qwen3: the layers from max_window_layers on."""
    return layer >= config.whole("max_window_layers", 28, 0)


def _early(config: Config, layer: int) -> bool:
    """Qwen2 with experts: every other one of the layers before max_window_layers."""
    return layer % 2 == 0 and layer < config.whole("max_window_layers", 28, 0)


def _unrotated(config: Config, layer: int) -> bool:
    """SmolLM3: the layers without rotation."""
    step = config.whole("no_rope_layer_interval", 4)
    flags = config.get("no_rope_layers")  # 1 where a layer is rotated
    if flags is None:
        return (layer + 1) % step == 0
    if not isinstance(flags, list) or layer >= len(flags) or flags[layer] not in (0, 1):
        config.refuse("no_rope_layers", "0 or 1 for each layer")
        return False
    return not flags[layer]


def _others(default: int) -> Callable[[Config, int], bool]:
    """All but each last one of so many (Gemma 2 and GPT-OSS: 2, Gemma 3: 6)."""

    def rule(config: Config, layer: int) -> bool:
        private = config.whole("_sliding_window_pattern", default)
        return bool((layer + 1) % config.whole("sliding_window_pattern", private))

    return rule


# Of each model type with windows: sliding_window where the file lacks it, whether
# use_sliding_window must be true, and the rule for a layer where layer_types is missing.
_WINDOWS: dict[str, tuple[int | None, bool, Callable[[Config, int], bool]]] = {
    "cohere2": (4096, False, _others(4)),
    "gemma2": (4096, False, _others(2)),
    "gemma3_text": (4096, False, _others(6)),
    "gpt_oss": (128, False, _others(2)),
    "ministral": (4096, False, _all),
    "mistral": (4096, False, _all),
    "mixtral": (None, False, _all),
    "olmo3": (4096, False, _others(4)),
    "phi3": (None, False, _all),
    "qwen2": (4096, True, _late),
    "qwen2_moe": (4096, True, _early),
    "qwen3": (4096, True, _late),
    "qwen3_moe": (4096, True, _all),
    "smollm3": (None, True, _unrotated),
    "starcoder2": (None, False, _all),
}


def window(config: Config, model_type: str, layers: int) -> dict[str, Any]:
    """Fields `window` and `full_layers`.

    Rules: `__post_init__` of the configuration classes (transformers 5.23.0,
    src/transformers/models/*/configuration_*.py).
    """
    types = config.get("layer_types")
    if types is not None and (
        not isinstance(types, list) or len(types) != layers
        or not set(map(str, types)) <= {"full_attention", "sliding_attention"}
    ):
        allowed = f"{layers} entries, each full_attention or sliding_attention"
        config.refuse("layer_types", allowed)
        return {}
    if model_type not in _WINDOWS:
        if types is not None and "sliding_attention" in types:
            config.refuse("layer_types", f"full_attention with model_type {model_type}")
        return {}
    config.read |= {"max_window_layers", "sliding_window_pattern"}  # layer_types overrides them
    default, optional, rule = _WINDOWS[model_type]
    absent = "sliding_window" not in config.data  # null stands for no window
    width = None if config.get("sliding_window", default) is None else (
        config.whole("sliding_window", default if absent else None, 0) or None)
    if optional and not config.flag("use_sliding_window", False):
        width = None
    if types is None:
        within = [rule(config, layer) for layer in range(min(layers, 10**4))]
    else:
        within = [kind == "sliding_attention" for kind in types]
    if width is None:
        if types is not None and any(within):
            config.refuse("sliding_window", "a whole number with these layer_types")
        return {}
    if not any(within):
        return {}
    return {"window": width, "full_layers": [n for n, inside in enumerate(within) if not inside]}
