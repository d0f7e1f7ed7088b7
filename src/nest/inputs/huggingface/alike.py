"""Readers of config.json for model types whose layers are alike, apart from windows and experts.

Field names and their defaults are those of huggingface/transformers 5.23.0,
src/transformers/models/*/configuration_*.py; norms, biases and what runs in parallel those of
modeling_*.py beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nest.inputs.huggingface.fields import Config


def gqa(config: Config, kv_default: bool = False) -> dict[str, Any]:
    """Fields that Llama and its successors share."""
    heads = config.whole("num_attention_heads")
    kv_default = kv_default or "num_key_value_heads" in config.data  # null stands for heads
    fields: dict[str, Any] = {
        "layers": config.whole("num_hidden_layers"),
        "hidden": config.whole("hidden_size"),
        "heads": heads,
        "kv_heads": config.whole("num_key_value_heads", heads if kv_default else None),
        "ffn": config.whole("intermediate_size"),
        "gated": True,
        "vocab": config.whole("vocab_size"),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
        "norm": "rmsnorm",
        "bias": False,
        "max_seq_len": config.whole("max_position_embeddings", 0, 0, 10**9) or None,
    }
    if config.get("head_dim") is not None:
        fields["head_dim"] = config.whole("head_dim")
    return fields


def _llama(config: Config) -> dict[str, Any]:
    attention, mlp = config.flag("attention_bias", False), config.flag("mlp_bias", False)
    both, part = attention and mlp, attention and not mlp
    return {**gqa(config, kv_default=True), "bias": both, "qkv_bias": part, "output_bias": part,
            "mlp_bias": mlp and not attention}


def _mixtral(config: Config) -> dict[str, Any]:
    fields = gqa(config)
    experts = {"experts": config.whole("num_local_experts"), "ffn": fields["ffn"]}
    return {**fields, "moe": {**experts, "top_k": config.whole("num_experts_per_tok")}}


def _qwen2(config: Config) -> dict[str, Any]:
    return {**gqa(config), "qkv_bias": True}


def _qwen3(config: Config) -> dict[str, Any]:
    return {"head_dim": 128, **_qk_normed(config)}


def _qk_normed(config: Config) -> dict[str, Any]:
    config.only("use_qk_norm", True, True, None)
    return {**gqa(config), "qk_norm": True, "qkv_bias": config.flag("attention_bias", False)}


def _qwen_experts(config: Config) -> dict[str, Any]:
    step = config.whole("decoder_sparse_step", 1)
    dense = config.get("mlp_only_layers") or []
    if dense and (not isinstance(dense, list) or step > 1 or dense != list(range(len(dense)))):
        config.refuse("mlp_only_layers", "[] or the first layers [0, 1, ...] with every later one")
        dense = []
    return {
        # newer versions of transformers write num_experts under this other name
        "experts": config.whole("num_experts", config.whole("num_local_experts", 0) or None),
        "top_k": config.whole("num_experts_per_tok"),
        "ffn": config.whole("moe_intermediate_size"),
        "first_dense": len(dense),
        "every": step,
    }


def _qwen2_moe(config: Config) -> dict[str, Any]:
    shared = {
        "shared_ffn": config.whole("shared_expert_intermediate_size", low=0),
        "shared_gate": True,
    }
    bias = config.flag("qkv_bias", True)
    return {**gqa(config), "qkv_bias": bias, "moe": {**_qwen_experts(config), **shared}}


def _qwen3_moe(config: Config) -> dict[str, Any]:
    return {**_qk_normed(config), "moe": _qwen_experts(config)}


def _deepseek(config: Config) -> dict[str, Any]:
    fields = gqa(config, kv_default=True)
    fields.pop("head_dim", None)  # the configuration classes set it to the rotary part alone
    fields["kv_heads"] = fields["heads"]
    config.only("attention_bias", False, False, None)
    config.only("moe_layer_freq", 1, 1)
    fields["mla"] = {
        "q_rank": config.whole("q_lora_rank", 0, 0),
        "kv_rank": config.whole("kv_lora_rank"),
        "nope_dim": config.whole("qk_nope_head_dim"),
        "rope_dim": config.whole("qk_rope_head_dim"),
        "value_dim": config.whole("v_head_dim"),
    }
    config.only("qk_head_dim", None, None, fields["mla"]["nope_dim"] + fields["mla"]["rope_dim"])
    fields["mtp_layers"] = config.whole("num_nextn_predict_layers", 0, 0)
    experts = config.get("n_routed_experts")
    default = None if experts is not None else 1  # without experts their other fields are notes
    width = config.whole("moe_intermediate_size", default)
    moe = {
        "experts": config.whole("n_routed_experts", default),
        "top_k": config.whole("num_experts_per_tok", default),
        "ffn": width,
        "shared_ffn": config.whole("n_shared_experts", 0, 0) * width,
        "first_dense": config.whole("first_k_dense_replace", 0, 0),
    }
    if experts is not None and (groups := config.whole("n_group", 1)) > 1:
        moe |= {"groups": groups, "group_limit": config.whole("topk_group", groups)}
    _sparse_from(config, "mlp_layer_types", fields["layers"], moe["first_dense"])
    return fields if experts is None else {**fields, "moe": moe}


def _sparse_from(config: Config, key: str, layers: int, first: int) -> None:
    """Refuse a list of MLPs that differs from the number of the first dense ones."""
    words = {"dense": "dense", "sparse": "sparse"}
    types = config.layers_of(key, layers, words)
    if types is not None and types != (first * ["dense"] + layers * ["sparse"])[:layers]:
        config.refuse(key, f"{first} x dense (first_k_dense_replace), then sparse")


def _deepseek_sparse(config: Config) -> dict[str, Any]:
    fields = _deepseek(config)
    config.layers_of("layer_types", fields["layers"], dict.fromkeys(
        ("indexed_attention", "deepseek_sparse_attention", "full_attention"), ""))
    index = {"heads": "index_n_heads", "head_dim": "index_head_dim", "top_k": "index_topk"}
    fields["mla"]["indexer"] = {name: config.whole(key) for name, key in index.items()}
    return fields


def _glm_sparse(config: Config) -> dict[str, Any]:
    config.read |= {"indexer_rope_interleave", "head_dim"}
    config.only("mlp_bias", False, False)
    # Layers that take over the choice of an earlier one have no indexer of their own.
    config.layers_of("indexer_types", config.whole("num_hidden_layers"), {"full": ""})
    for name in ("index_topk_pattern", "index_skip_topk_offset"):
        config.only(name, None, None)
    config.only("index_topk_freq", 1, 1)
    return _deepseek_sparse(config)


def _gpt2(config: Config) -> dict[str, Any]:
    hidden = config.whole("n_embd")
    config.only("add_cross_attention", False, False)
    positions = config.whole("n_positions")
    return {
        "layers": config.whole("n_layer"),
        "hidden": hidden,
        "heads": config.whole("n_head"),
        "ffn": config.whole("n_inner", 4 * hidden),
        "gated": False,
        "vocab": config.whole("vocab_size"),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "positions": positions,
        "max_seq_len": positions,
        "norm": "layernorm",
        "bias": True,
    }


def _gpt_neox(config: Config) -> dict[str, Any]:
    config.only("attention_bias", True, True)
    fields = {**gqa(config, kv_default=True), "gated": False, "norm": "layernorm", "bias": True}
    return {**fields, "kv_heads": fields["heads"],
            "parallel": config.flag("use_parallel_residual", True)}


def _opt(config: Config) -> dict[str, Any]:
    hidden = config.whole("hidden_size")
    config.only("do_layer_norm_before", True, True)
    config.only("word_embed_proj_dim", hidden, hidden, None)
    config.only("_remove_final_layer_norm", False, False)
    positions = config.whole("max_position_embeddings")
    return {
        "layers": config.whole("num_hidden_layers"),
        "hidden": hidden,
        "heads": config.whole("num_attention_heads"),
        "ffn": config.whole("ffn_dim"),
        "gated": False,
        "vocab": config.whole("vocab_size"),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "positions": positions + 2,  # OPTLearnedPositionalEmbedding keeps two rows for padding
        "max_seq_len": positions,
        "norm": "layernorm",
        "bias": config.flag("enable_bias", True),
    }


def _bert(config: Config) -> dict[str, Any]:
    config.only("position_embedding_type", "absolute", "absolute")
    positions = config.whole("max_position_embeddings")
    # BertForMaskedLM builds the encoder without the pooling layer
    pooler = config.get("architectures") != ["BertForMaskedLM"]
    return {
        "kind": "decoder" if config.flag("is_decoder", False) else "encoder",
        "final_norm": False,
        "layers": config.whole("num_hidden_layers"),
        "hidden": config.whole("hidden_size"),
        "heads": config.whole("num_attention_heads"),
        "ffn": config.whole("intermediate_size"),
        "gated": False,
        "vocab": config.whole("vocab_size"),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "positions": positions,
        "token_types": config.whole("type_vocab_size"),
        "max_seq_len": positions,
        "norm": "layernorm",
        "bias": True,
        "embedding_norm": True,
        "head_transform": True,
        "head_bias": True,
        "pooler": pooler,
    }


def _gemma(config: Config) -> dict[str, Any]:
    tied = config.flag("tie_word_embeddings", True)
    fields = {**gqa(config), "tied_embeddings": tied}
    return {"head_dim": 256, **fields, "qkv_bias": config.flag("attention_bias", False)}


def _gemma2(config: Config) -> dict[str, Any]:
    config.only("use_bidirectional_attention", False, False, None)
    return {**_gemma(config), "layer_norms": 4}


def _gemma3(config: Config) -> dict[str, Any]:
    return {**_gemma2(config), "qk_norm": True}


def _gpt_oss(config: Config) -> dict[str, Any]:
    fields = _mixtral(config)
    moe = {**fields["moe"], "clamped": True, "router_bias": True}  # swiglu_limit
    bias = config.flag("attention_bias", True)
    return {"head_dim": 64, **fields, "moe": moe, "bias": bias, "sinks": True}


def _phi3(config: Config) -> dict[str, Any]:
    # Phi-4-mini's own code has them: every layer attends to all, the head has no bias.
    config.only("full_attn_mod", 1, 1)
    config.only("lm_head_bias", False, False)
    return gqa(config, kv_default=True)


def _phi(config: Config) -> dict[str, Any]:
    config.only("qk_layernorm", False, False)
    fields = gqa(config, kv_default=True)
    return {**fields, "gated": False, "norm": "layernorm", "bias": True, "parallel": True,
            "layer_norms": 1, "head_bias": True}


def _glm4_moe(config: Config) -> dict[str, Any]:
    width = config.whole("moe_intermediate_size")
    moe = {
        "experts": config.whole("n_routed_experts"),
        "top_k": config.whole("num_experts_per_tok"),
        "ffn": width,
        "shared_ffn": config.whole("n_shared_experts", 0, 0) * width,
        "first_dense": config.whole("first_k_dense_replace", 1, 0),
    }
    if (groups := config.whole("n_group", 1)) > 1:
        moe |= {"groups": groups, "group_limit": config.whole("topk_group", groups)}
    fields = gqa(config)
    fields.setdefault("head_dim", max(1, fields["hidden"] // fields["heads"]))
    return {**fields, "qk_norm": config.flag("use_qk_norm", False), "moe": moe,
            "qkv_bias": config.flag("attention_bias", False),
            "mtp_layers": config.whole("num_nextn_predict_layers", 0, 0)}


def _minimax_m2(config: Config) -> dict[str, Any]:
    config.only("use_qk_norm", True, True)
    config.only("qk_norm_type", "per_layer", "per_layer")
    config.only("shared_intermediate_size", 0, 0, None)
    config.only("mtp_transformer_layers", 1, 1)
    flags = config.get("attn_type_list")  # 1: attention, 0: lightning attention
    if flags is not None and (not isinstance(flags, list) or {*map(str, flags)} != {"1"}):
        config.refuse("attn_type_list", "1 for each layer")
    mtp = config.whole("num_mtp_modules", 0, 0) if config.flag("use_mtp", False) else 0
    # Of a path that all tokens take, which its layers have not (shared_intermediate_size).
    config.read |= {"num_mtp_modules", "mlp_intermediate_size", "shared_moe_mode"}
    return {**_mixtral(config), "qk_norm": True, "qk_norm_form": "all", "mtp_layers": mtp}


def _grok(config: Config) -> dict[str, Any]:
    # xai-org/grok-1, DecoderLayer: a norm before and one behind attention and MLP; InOutEmbed: the
    # embedding is also the output matrix; three matrices an expert
    fields = gqa(config)
    moe = {"experts": config.whole("num_experts"), "ffn": fields["ffn"],
           "top_k": config.whole("num_experts_per_tok")}
    return {**fields, "moe": moe, "layer_norms": 4,
            "tied_embeddings": config.flag("tie_word_embeddings", True)}


def _nemotron(config: Config) -> dict[str, Any]:
    fields = {**_llama(config), "gated": False, "norm": "layernorm"}
    return fields


def _olmo2(config: Config) -> dict[str, Any]:
    bias = config.flag("attention_bias", False)
    fields = gqa(config, kv_default=True)
    return {**fields, "qk_norm": True, "qk_norm_form": "all", "qkv_bias": bias,
            "output_bias": bias}


def _olmoe(config: Config) -> dict[str, Any]:
    config.only("clip_qkv", None, None)
    fields = _olmo2(config)
    moe = {"experts": config.whole("num_experts"), "ffn": fields["ffn"],
           "top_k": config.whole("num_experts_per_tok")}
    return {**fields, "moe": moe}


def _cohere(config: Config) -> dict[str, Any]:
    fields = gqa(config, kv_default=True)
    normed = config.flag("use_qk_norm", False)
    bias = config.flag("attention_bias", False)
    fields |= {"norm": "layernorm", "norm_bias": False, "parallel": True, "layer_norms": 1,
               "tied_embeddings": config.flag("tie_word_embeddings", True), "qkv_bias": bias,
               "output_bias": bias}
    return {**fields, "qk_norm": True, "qk_norm_form": "all"} if normed else fields


def _starcoder2(config: Config) -> dict[str, Any]:
    return {**gqa(config, kv_default=True), "gated": False, "norm": "layernorm",
            "bias": config.flag("use_bias", True),
            "tied_embeddings": config.flag("tie_word_embeddings", True)}


def _falcon(config: Config) -> dict[str, Any]:
    hidden = config.whole("hidden_size")
    heads = config.whole("num_attention_heads")
    new = config.flag("new_decoder_architecture", False)
    parallel = new or config.flag("parallel_attn", True)
    config.flag("parallel_attn", True)
    one = config.flag("multi_query", True)
    groups = config.whole("num_kv_heads", heads) if new else 1 if one else heads
    norms = config.whole("num_ln_in_parallel_attn", 2 if new else 1) if parallel else 2
    config.read |= {"num_kv_heads", "n_head_kv", "num_ln_in_parallel_attn"}
    return {
        "layers": config.whole("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": groups,
        "ffn": config.whole("ffn_hidden_size", 4 * hidden),
        "gated": False,
        "vocab": config.whole("vocab_size"),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "unrotated": config.flag("alibi", False),
        "norm": "layernorm",
        "layer_norms": norms,
        "parallel": parallel,
        "bias": config.flag("bias", False),
        "max_seq_len": config.whole("max_position_embeddings", 0, 0) or None,
    }


def _bloom(config: Config) -> dict[str, Any]:
    config.only("apply_residual_connection_post_layernorm", False, False)
    hidden = config.whole("hidden_size")
    return {
        "layers": config.whole("num_hidden_layers"),
        "hidden": hidden,
        "heads": config.whole("num_attention_heads"),
        "ffn": 4 * hidden,
        "gated": False,
        "vocab": config.whole("vocab_size"),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "unrotated": True,  # ALiBi
        "norm": "layernorm",
        "bias": True,
        "embedding_norm": True,
    }


def _gptj(config: Config) -> dict[str, Any]:
    hidden = config.whole("n_embd")
    return {
        "layers": config.whole("n_layer"),
        "hidden": hidden,
        "heads": config.whole("n_head"),
        "ffn": config.whole("n_inner", 4 * hidden),
        "gated": False,
        "vocab": config.whole("vocab_size"),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
        "norm": "layernorm",
        "layer_norms": 1,
        "parallel": True,
        "bias": False,
        "mlp_bias": True,
        "head_bias": True,
        "max_seq_len": config.whole("n_positions", 0, 0) or None,
    }


def _gpt_neo(config: Config) -> dict[str, Any]:
    hidden, layers = config.whole("hidden_size"), config.whole("num_layers")
    positions = config.whole("max_position_embeddings")
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
    return {
        "layers": layers,
        "hidden": hidden,
        "heads": config.whole("num_heads"),
        "ffn": config.whole("intermediate_size", 4 * hidden),
        "gated": False,
        "vocab": config.whole("vocab_size"),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "positions": positions,
        "max_seq_len": positions,
        "norm": "layernorm",
        "bias": False,
        "output_bias": True,
        "mlp_bias": True,
        "window": config.whole("window_size", 256),
        "full_layers": [n for n in range(layers) if kinds[n] == "global"],
    }


def _roberta(config: Config) -> dict[str, Any]:
    return {**_bert(config), "pooler": False}


def _t5(config: Config) -> dict[str, Any]:
    form = config.get("feed_forward_proj", "relu")
    if form not in ("relu", "gated-gelu", "gelu", "gated-silu"):
        config.refuse("feed_forward_proj", "relu, gelu, gated-gelu or gated-silu")
    layers = config.whole("num_layers")
    return {
        "kind": "encoder-decoder",
        "layers": config.whole("num_decoder_layers", layers),
        "encoder_layers": layers,
        "hidden": config.whole("d_model"),
        "heads": config.whole("num_heads"),
        "head_dim": config.whole("d_kv"),
        "ffn": config.whole("d_ff"),
        "gated": str(form).startswith("gated"),
        "vocab": config.whole("vocab_size"),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "relative_positions": config.whole("relative_attention_num_buckets", 32),
        "norm": "rmsnorm",
        "bias": False,
    }


READERS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "bert": _bert,
    "bloom": _bloom,
    "cohere": _cohere,
    "cohere2": _cohere,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "deepseek_v32": _deepseek_sparse,
    "falcon": _falcon,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "glm4_moe": _glm4_moe,
    "glm_moe_dsa": _glm_sparse,
    "gpt2": _gpt2,
    "gpt_neo": _gpt_neo,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "gptj": _gptj,
    "granite": _llama,
    "granitemoe": _mixtral,
    "grok-1": _grok,
    "kimi_k2": _deepseek,
    "llama": _llama,
    "minimax_m2": _minimax_m2,
    "ministral": gqa,
    "mistral": gqa,
    "mixtral": _mixtral,
    "nemotron": _nemotron,
    "olmo2": _olmo2,
    "olmo3": _olmo2,
    "olmoe": _olmoe,
    "opt": _opt,
    "phi": _phi,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "roberta": _roberta,
    "starcoder2": _starcoder2,
    "t5": _t5,
}
"""Of each model type whose layers are alike, apart from windows and experts."""
