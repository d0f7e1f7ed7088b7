"""Readers of config.json for model types that mix kinds of layers.

Field names and their defaults are those of huggingface/transformers 5.23.0,
src/transformers/models/*/configuration_*.py; what layers consist of is that of modeling_*.py beside
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nest.inputs.huggingface.fields import MOST_LAYERS, Config, Fields
from nest.inputs.huggingface.rules import family, gqa

_ATTENTION = {"full_attention": "attention", "linear_attention": "recurrence"}


def mixture(mixers: Sequence[str], mlps: Sequence[str]) -> Fields:
    """Fields `layer_kinds` and `layer_types` from the parts of each layer."""
    names = [f"{mixer}_{mlp}" for mixer, mlp in zip(mixers, mlps, strict=True)]
    kinds = {name: {"name": name, "mixer": mixer, "mlp": mlp}
             for name, mixer, mlp in zip(names, mixers, mlps, strict=True)}
    return {"layer_kinds": list(kinds.values()), "layer_types": names}


def _every(layers: int, period: int, offset: int, one: str, other: str) -> list[str]:
    return [one if n % period == offset else other for n in range(layers)]


def _qwen3_next(config: Config) -> Fields:
    fields = {"head_dim": 256, **gqa(config)}
    layers = fields["layers"]
    mixers = config.layers_of("layer_types", layers, _ATTENTION) or _every(
        layers, config.whole("full_attention_interval", 4),
        config.whole("full_attention_interval", 4) - 1, "attention", "recurrence")
    config.read.add("full_attention_interval")
    dense = config.get("mlp_only_layers") or []
    step = config.whole("decoder_sparse_step", 1)
    if not isinstance(dense, list) or not all(isinstance(n, int) for n in dense):
        config.refuse("mlp_only_layers", "a list of layers")
        dense = []
    experts = config.whole("num_experts", 0, 0)
    mlps = ["experts" if experts and n not in dense and (n + 1) % step == 0 else "dense"
            for n in range(layers)]
    fields |= {
        "qk_norm": True, "attention_gate": True, "recurrence": _delta(config),
        "qkv_bias": config.flag("attention_bias", False),
        "output_bias": config.flag("attention_bias", False), **mixture(mixers, mlps),
        "mtp_layers": config.whole("num_nextn_predict_layers", 0, 0),
    }
    if not experts:
        return fields
    return {**fields, "moe": {
        "experts": experts, "top_k": config.whole("num_experts_per_tok"),
        "ffn": config.whole("moe_intermediate_size"), "shared_gate": True,
        "shared_ffn": config.whole("shared_expert_intermediate_size", 0, 0),
    }}


def _qwen3_5_moe(config: Config) -> Fields:
    """All layers have experts, so that the file has no width of dense ones."""
    config.data = {"intermediate_size": config.data.get("moe_intermediate_size"), **config.data}
    return _qwen3_next(config)


def _delta(config: Config) -> Fields:
    return {
        "form": "gated_delta",
        "heads": config.whole("linear_num_value_heads"),
        "head_dim": config.whole("linear_value_head_dim"),
        "groups": config.whole("linear_num_key_heads"),
        "state": config.whole("linear_key_head_dim"),
        "conv": config.whole("linear_conv_kernel_dim", 4),
    }


def _kimi_linear(config: Config) -> Fields:
    fields = family(config, "mha")
    layers = fields["layers"]
    fields.pop("head_dim", None)  # the configuration class sets it to the rotary part alone
    inner = config.nested("linear_attn_config", {})
    if inner is not None:  # as published; layers are counted from 1 there
        full = inner.get("full_attn_layers") or []
        inner.read.add("kda_layers")
        mixers = ["attention" if n + 1 in full else "recurrence" for n in range(layers)]
        heads, width = inner.whole("num_heads"), inner.whole("head_dim")
        conv = inner.whole("short_conv_kernel_size", 4)
    else:
        mixers = config.layers_of("layer_types", layers, _ATTENTION) or []
        heads, width = config.whole("linear_num_heads"), config.whole("linear_head_dim")
        conv = config.whole("linear_conv_kernel_dim", 4)
    if not mixers:
        config.refuse("layer_types", "full_attention or linear_attention for each layer")
        mixers = layers * ["recurrence"]
    first = config.whole("first_k_dense_replace", 1, 0)
    words = {"dense": "dense", "sparse": "experts"}
    mlps = config.layers_of("mlp_layer_types", layers, words) or (
        first * ["dense"] + layers * ["experts"])[:layers]
    config.only("moe_layer_freq", 1, 1)
    parts = {"nope_dim": "qk_nope_head_dim", "rope_dim": "qk_rope_head_dim",
             "value_dim": "v_head_dim", "kv_rank": "kv_lora_rank"}
    mla = {name: config.whole(key) for name, key in parts.items()}
    config.only("qk_head_dim", None, None, mla["nope_dim"] + mla["rope_dim"])
    width_moe = config.whole("moe_intermediate_size")
    return {
        **fields, "kv_heads": fields["heads"], **mixture(mixers, mlps),
        "mla": {"q_rank": config.whole("q_lora_rank", 0, 0), **mla},
        "recurrence": {"form": "kimi_delta", "heads": heads, "head_dim": width, "conv": conv},
        "moe": {"experts": config.whole("num_experts"), "ffn": width_moe,
                "top_k": config.whole("num_experts_per_tok"),
                "shared_ffn": config.whole("n_shared_experts", 0, 0) * width_moe},
        "mtp_layers": config.whole("num_nextn_predict_layers", 0, 0),
    }


def _minimax(config: Config) -> Fields:
    fields = gqa(config)
    layers = fields["layers"]
    mixers = config.layers_of("layer_types", layers, _ATTENTION)
    flags = config.get("attn_type_list")  # as published: 1 for softmax attention
    if mixers is None and isinstance(flags, list) and len(flags) == layers:
        mixers = ["attention" if flag == 1 else "recurrence" for flag in flags]
    mixers = mixers or _every(layers, 2, 0, "attention", "recurrence")
    heads = fields["heads"]
    width = fields.get("head_dim", fields["hidden"] // heads)
    config.only("shared_intermediate_size", 0, 0, None)
    config.read.add("shared_moe_mode")  # of what a size of 0 leaves out
    recurrence = {"form": "lightning", "heads": heads, "head_dim": width,
                  "chunk": config.whole("block_size", 256)}
    moe = {"experts": config.whole("num_local_experts"), "ffn": fields["ffn"],
           "top_k": config.whole("num_experts_per_tok")}
    return {**fields, "recurrence": recurrence, "moe": moe,
            **mixture(mixers, layers * ["experts"])}


# What a layer of Nemotron-H consists of, by its letter and by its word.
_BLOCKS = {
    "M": "recurrence_none", "-": "none_dense", "*": "attention_none", "E": "none_experts",
    "linear_attention": "recurrence_none", "mamba": "recurrence_none", "mlp": "none_dense",
    "full_attention": "attention_none", "attention": "attention_none", "moe": "none_experts",
}


def _nemotron_h(config: Config) -> Fields:
    pattern = config.get("hybrid_override_pattern")
    blocks = config.get("layers_block_type")
    blocks = list(pattern) if blocks is None and isinstance(pattern, str) else blocks
    if not isinstance(blocks, list) or not 0 < len(blocks) <= MOST_LAYERS or not (
            {*map(str, blocks)} <= {*_BLOCKS}):
        config.refuse("layers_block_type", "a list of linear_attention, full_attention, mlp, moe, "
                      "or hybrid_override_pattern of the letters M * - E")
        blocks = ["M"]
    stated = config.whole("num_hidden_layers", len(blocks))
    if stated != len(blocks):
        config.refuse("num_hidden_layers", f"{len(blocks)}, the length of the pattern")
    mixers, mlps = zip(*(_BLOCKS[block].split("_") for block in blocks), strict=True)
    bias = config.flag("mlp_bias", False)
    config.only("attention_bias", False, False)
    config.only("moe_latent_size", None, None)
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    experts = "experts" in mlps
    fields = {
        "layers": len(blocks), "hidden": hidden, "heads": heads,
        "kv_heads": config.whole("num_key_value_heads", 8),
        "head_dim": config.whole("head_dim", 128),
        "ffn": config.whole("intermediate_size"), "gated": False, "mlp_bias": bias, "bias": False,
        "vocab": config.whole("vocab_size"), "norm": "rmsnorm", "unrotated": True,
        "tied_embeddings": config.flag("tie_word_embeddings", False),
        "max_seq_len": config.whole("max_position_embeddings", 0, 0) or None,
        **mixture(mixers, mlps),
    }
    config.read |= {"expand", "hybrid_override_pattern", "mtp_hybrid_override_pattern",
                    "mtp_layers_block_type", "n_group", "topk_group", "num_nextn_predict_layers",
                    "time_step_rank"}
    if config.data.get("num_nextn_predict_layers"):
        config.refuse("num_nextn_predict_layers", "0: its prediction layers have kinds of their "
                      "own (mtp_layers_block_type)")
    if "recurrence" in mixers:
        fields["recurrence"] = _mamba2_of(
            config, heads="mamba_num_heads", head_dim="mamba_head_dim", state="ssm_state_size",
            bias="mamba_proj_bias" if "mamba_proj_bias" in config.data else "use_bias")
    moe = {
        "experts": config.whole("n_routed_experts", None if experts else 1),
        "top_k": config.whole("num_experts_per_tok", None if experts else 1),
        "ffn": config.whole("moe_intermediate_size", None if experts else 1),
        "shared_ffn": config.whole("n_shared_experts", 0, 0) * config.whole(
            "moe_shared_expert_intermediate_size", 0, 0),
    }
    return {**fields, "moe": moe} if experts else fields


def _mamba2_of(config: Config, heads: str, head_dim: str, state: str, bias: str) -> Fields:
    config.read.add("use_bias")
    return {
        "form": "mamba2",
        "heads": config.whole(heads),
        "head_dim": config.whole(head_dim),
        "groups": config.whole("n_groups", 8),
        "state": config.whole(state, 128),
        "conv": config.whole("conv_kernel", 4),
        "conv_bias": config.flag("use_conv_bias", True),
        "bias": config.flag(bias, False),
        "chunk": config.whole("chunk_size", 256),
    }


def _granite_hybrid(config: Config) -> Fields:
    fields = family(config, "mha")
    layers, hidden = fields["layers"], fields["hidden"]
    words = {**_ATTENTION, "attention": "attention", "mamba": "recurrence"}
    mixers = config.layers_of("layer_types", layers, words) or layers * ["recurrence"]
    config.only("normalization_function", "rmsnorm", "rmsnorm")
    config.only("position_embedding_type", None, None, "nope", "rope")
    bias = config.flag("attention_bias", False)
    shared, experts = (config.whole("shared_intermediate_size", 1024),
                       config.whole("num_local_experts", 8, 0))
    top_k = config.whole("num_experts_per_tok", 2, int(experts > 0))
    heads = config.whole("mamba_n_heads", 128)
    expanded = config.whole("mamba_expand", 2) * hidden
    width = config.get("mamba_d_head", "auto")
    width = max(1, expanded // heads) if width == "auto" else config.whole("mamba_d_head")
    if heads * width != expanded:
        config.refuse("mamba_n_heads", f"mamba_expand x hidden_size / mamba_d_head, as in "
                      f"{expanded} / {width}")
    recurrence = {
        "form": "mamba2", "heads": heads, "head_dim": width,
        "groups": config.whole("mamba_n_groups", 1), "state": config.whole("mamba_d_state", 256),
        "conv": config.whole("mamba_d_conv", 4), "conv_bias": config.flag("mamba_conv_bias", True),
        "bias": config.flag("mamba_proj_bias", False),
        "chunk": config.whole("mamba_chunk_size", 256),
    }
    moe = {"experts": experts, "top_k": top_k, "ffn": fields["ffn"], "shared_ffn": shared}
    return {
        **fields, "ffn": shared, "qkv_bias": bias, "output_bias": bias,
        "unrotated": config.data.get("position_embedding_type") != "rope",
        **({"recurrence": recurrence} if "recurrence" in mixers else {}),
        **mixture(mixers, layers * ["experts" if experts else "dense"]),
        **({"moe": moe} if experts else {})}


def _state_space(config: Config, recurrence: Fields, tied: bool) -> Fields:
    """Layers of nothing but a state-space model."""
    layers, hidden = config.whole("num_hidden_layers"), config.whole("hidden_size")
    return {
        "layers": layers, "hidden": hidden, "heads": 1, "head_dim": hidden, "ffn": hidden,
        "gated": False, "vocab": config.whole("vocab_size"), "norm": "rmsnorm", "bias": False,
        "tied_embeddings": config.flag("tie_word_embeddings", tied), "unrotated": True,
        "recurrence": recurrence, **mixture(layers * ["recurrence"], layers * ["none"]),
    }


def _mamba2(config: Config) -> Fields:
    recurrence = _mamba2_of(config, heads="num_heads", head_dim="head_dim", state="state_size",
                            bias="use_bias")
    expanded = config.whole("expand", 2) * config.whole("hidden_size")
    if recurrence["heads"] * recurrence["head_dim"] != expanded:
        config.refuse("num_heads", f"expand x hidden_size / head_dim, as in {expanded} / "
                      f"{recurrence['head_dim']}")
    config.read.add("time_step_rank")
    return _state_space(config, recurrence, tied=False)


def _rank(config: Config, key: str, hidden: int) -> int:
    """Rank of Mamba's time step; "auto" stands for hidden / 16."""
    if config.get(key, "auto") in ("auto", None):
        return -(-hidden // 16)
    return config.whole(key)


def _mamba(config: Config) -> Fields:
    hidden = config.whole("hidden_size")
    inner = config.whole("intermediate_size", config.whole("expand", 2) * hidden)
    config.read |= {"d_inner", "d_model", "n_layer", "ssm_cfg"}
    recurrence = {
        "form": "mamba", "heads": 1, "head_dim": inner, "groups": 1,
        "state": config.whole("state_size", 16), "conv": config.whole("conv_kernel", 4),
        "conv_bias": config.flag("use_conv_bias", True), "bias": config.flag("use_bias", False),
        "dt_rank": _rank(config, "time_step_rank", hidden),
    }
    return _state_space(config, recurrence, tied=True)


def _jamba(config: Config) -> Fields:
    fields = gqa(config)
    layers, hidden = fields["layers"], fields["hidden"]
    mixers = config.layers_of("layers_block_type", layers,
                              {"attention": "attention", "mamba": "recurrence",
                               "full_attention": "attention", "linear_attention": "recurrence"})
    mixers = mixers or _every(layers, config.whole("attn_layer_period", 8),
                              config.whole("attn_layer_offset", 4, 0), "attention", "recurrence")
    config.read |= {"attn_layer_period", "attn_layer_offset"}
    experts = config.whole("num_experts", 16)
    mlps = _every(layers, config.whole("expert_layer_period", 2),
                  config.whole("expert_layer_offset", 1, 0), "experts", "dense")
    top_k = config.whole("num_experts_per_tok", 2)
    if experts == 1:
        mlps = layers * ["dense"]
    else:
        fields["moe"] = {"experts": experts, "top_k": top_k, "ffn": fields["ffn"]}
    recurrence = {
        "form": "mamba", "heads": 1, "groups": 1, "inner_norms": True,
        "head_dim": config.whole("mamba_expand", 2) * hidden,
        "state": config.whole("mamba_d_state", 16), "conv": config.whole("mamba_d_conv", 4),
        "conv_bias": config.flag("mamba_conv_bias", True),
        "bias": config.flag("mamba_proj_bias", False),
        "dt_rank": _rank(config, "mamba_dt_rank", hidden),
    }
    return {**fields, "recurrence": recurrence, "unrotated": True, **mixture(mixers, mlps)}


def _llama4_text(config: Config) -> Fields:
    fields = {"head_dim": 128, **gqa(config)}
    layers = fields["layers"]
    step = config.whole("interleave_moe_layer_step", 1, 0)
    sparse = config.get("moe_layers")
    if sparse is None:
        sparse = list(range(step - 1, layers, step)) if step else []
    if not isinstance(sparse, list) or not all(isinstance(n, int) for n in sparse):
        config.refuse("moe_layers", "a list of layers")
        sparse = []
    chunk = config.get("attention_chunk_size", 8192)
    width = None if chunk is None else config.whole("attention_chunk_size", 8192)
    words = {"chunked_attention": "chunked", "full_attention": "full"}
    forms = config.layers_of("layer_types", layers, words)
    rotated = config.get("no_rope_layers") or []  # 1 where it is rotated
    if forms is None and isinstance(rotated, list) and len(rotated) == layers:
        forms = ["chunked" if flag else "full" for flag in rotated]
    config.read.add("no_rope_layer_interval")
    forms = forms or _every(layers, config.whole("no_rope_layer_interval", 4),
                            config.whole("no_rope_layer_interval", 4) - 1, "full", "chunked")
    mlps = ["experts" if n in sparse else "dense" for n in range(layers)]
    windows: dict[str, Fields] = {"full": {}, "chunked": {}}
    if width is not None:
        windows["chunked"] = {"window": width, "chunked": True}
    names = [f"{form}_{mlp}" for form, mlp in zip(forms, mlps, strict=True)]
    kinds = {name: {"name": name, "mlp": mlp, **windows[form]}
             for name, form, mlp in zip(names, forms, mlps, strict=True)}
    expert = fields["ffn"]
    moe = {"experts": config.whole("num_local_experts"), "ffn": expert, "shared_ffn": expert,
           "top_k": config.whole("num_experts_per_tok")}
    dense = config.whole("intermediate_size_mlp", expert)
    normed = config.flag("use_qk_norm", True)
    bias = config.flag("attention_bias", False)
    fields |= {"ffn": dense, "layer_kinds": list(kinds.values()), "layer_types": names,
               "qkv_bias": bias, "output_bias": bias}
    if "experts" in mlps:
        fields["moe"] = moe
    return {**fields, "qk_norm": True, "qk_norm_form": "plain"} if normed else fields


def _nemotron_nas(config: Config) -> Fields:
    """Layers with sizes of their own (nvidia/Llama-3_3-Nemotron-Super-49B-v1, BlockConfig)."""
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    blocks = config.get("block_configs")
    kinds: dict[str, Fields] = {}
    names = []
    for block in blocks[:MOST_LAYERS] if isinstance(blocks, list) else []:
        try:
            attention, ffn = block["attention"], block["ffn"]
            groups = None if attention["no_op"] else heads // attention["n_heads_in_group"]
            width = None if ffn["no_op"] else _multiple(2 * ffn["ffn_mult"] * hidden / 3)
        except (KeyError, TypeError, ValueError, OverflowError, ZeroDivisionError):
            groups, width = -1, -1
        other = [part for part in (block.values() if isinstance(block, dict) else ())
                 if not isinstance(part, dict) or part.get("replace_with_linear")
                 or part.get("sparsify") or part.get("window_length")]
        if groups == -1 or other or (groups is None and width is None):
            config.refuse("block_configs", "for each layer attention (n_heads_in_group) and ffn "
                          "(ffn_mult), or one of them, neither linear nor sparse")
            break
        name = f"kv{groups or 0}_ffn{width or 0}"
        kinds[name] = {"name": name, "mixer": "attention" if groups else "none",
                       "mlp": "dense" if width else "none", "kv_heads": groups, "ffn": width}
        names.append(name)
    layers = config.whole("num_hidden_layers")
    if not names or len(names) != layers:
        config.refuse("block_configs", f"{layers} entries, one a layer")
    config.only("attention_bias", False, False)
    config.only("mlp_bias", False, False)
    config.read |= {"num_key_value_heads", "intermediate_size"}
    return {
        "layers": layers, "hidden": hidden, "heads": heads, "gated": True,
        "ffn": max((kind["ffn"] or 1 for kind in kinds.values()), default=1),
        "vocab": config.whole("vocab_size"), "norm": "rmsnorm", "bias": False,
        "tied_embeddings": config.flag("tie_word_embeddings", False),
        "layer_kinds": list(kinds.values()), "layer_types": names,
        "max_seq_len": config.whole("max_position_embeddings", 0, 0) or None,
    }


def _multiple(width: float) -> int:
    """The width of an MLP, rounded up to a multiple of 256."""
    return -(-int(width) // 256) * 256


READERS: dict[str, Callable[[Config], Fields]] = {
    "granitemoehybrid": _granite_hybrid,
    "jamba": _jamba,
    "kimi_linear": _kimi_linear,
    "llama4_text": _llama4_text,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "minimax": _minimax,
    "minimax_m1": _minimax,  # as published, with code of their own
    "minimax_text_01": _minimax,
    "nemotron-nas": _nemotron_nas,
    "nemotron_h": _nemotron_h,
    "qwen3_5_moe_text": _qwen3_5_moe,
    "qwen3_5_text": _qwen3_next,
    "qwen3_next": _qwen3_next,
}
"""Of each model type that mixes kinds of layers."""
