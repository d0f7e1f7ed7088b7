"""Rules of model types that mix kinds of layers, beyond their rows in families.yaml.

What layers consist of is that of modeling_*.py in huggingface/transformers 5.23.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nest.inputs.huggingface.fields import MOST_LAYERS, Config, Fields

_WINDOW = {"full_attention": "full", "sliding_attention": "window"}
_ATTENTION = {"full_attention": "attention", "linear_attention": "recurrence"}


def mixture(mixers: Sequence[str], mlps: Sequence[str]) -> Fields:
    """Fields `layer_kinds` and `layer_types` from the parts of each layer."""
    names = [f"{mixer}_{mlp}" for mixer, mlp in zip(mixers, mlps, strict=True)]
    kinds = {name: {"name": name, "mixer": mixer, "mlp": mlp}
             for name, mixer, mlp in zip(names, mixers, mlps, strict=True)}
    return {"layer_kinds": list(kinds.values()), "layer_types": names}


def _every(layers: int, period: int, offset: int, one: str, other: str) -> list[str]:
    return [one if n % period == offset else other for n in range(layers)]


def _qwen3_next(config: Config, fields: Fields) -> None:
    layers = fields["layers"]
    mixers = config.layers_of("layer_types", layers, _ATTENTION) or _every(
        layers, config.whole("full_attention_interval", 4),
        config.whole("full_attention_interval", 4) - 1, "attention", "recurrence")
    dense = config.get("mlp_only_layers") or []
    step = config.whole("decoder_sparse_step", 1)
    if not isinstance(dense, list) or not all(isinstance(n, int) for n in dense):
        config.refuse("mlp_only_layers", "a list of layers")
        dense = []
    experts = config.whole("num_experts", 0, 0)
    fields |= mixture(mixers, ["experts" if experts and n not in dense and (n + 1) % step == 0
                               else "dense" for n in range(layers)])
    if experts:
        fields["moe"] = {
            "experts": experts, "top_k": config.whole("num_experts_per_tok"),
            "ffn": config.whole("moe_intermediate_size"), "shared_gate": True,
            "shared_ffn": config.whole("shared_expert_intermediate_size", 0, 0),
        }


def _kimi_linear(config: Config, fields: Fields) -> None:
    layers = fields["layers"]
    fields.pop("head_dim", None)  # the configuration class sets it to the rotary part alone
    inner = config.nested("linear_attn_config", {})
    if inner is not None:  # as published; layers are counted from 1 there
        full = inner.get("full_attn_layers") or []
        inner.read |= {"kda_layers", "gate_lower_bound"}
        fields["recurrence"]["full_gate"] = inner.flag("use_full_rank_gate", False)
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
    config.only("qk_head_dim", None, None, fields["mla"]["nope_dim"] + fields["mla"]["rope_dim"])
    fields["recurrence"] |= {"heads": heads, "head_dim": width, "conv": conv}
    moe = fields["moe"]
    moe["shared_ffn"] = config.whole("n_shared_experts", 0, 0) * moe["ffn"]
    moe["latent"] = config.whole("routed_expert_hidden_size", 0, 0)
    moe["norms"] = int(config.flag("latent_moe_use_norm", False))
    fields["mla"]["gate"] = config.flag("mla_use_output_gate", False)
    fields["residual_block"] = config.whole("attn_res_block_size", 0, 0)
    fields |= mixture(mixers, mlps)


def _minimax(config: Config, fields: Fields) -> None:
    layers = fields["layers"]
    mixers = config.layers_of("layer_types", layers, _ATTENTION)
    flags = config.get("attn_type_list")  # as published: 1 for softmax attention
    if mixers is None and isinstance(flags, list) and len(flags) == layers:
        mixers = ["attention" if flag == 1 else "recurrence" for flag in flags]
    mixers = mixers or _every(layers, 2, 0, "attention", "recurrence")
    fields["recurrence"]["head_dim"] = fields.get(
        "head_dim", fields["hidden"] // fields["heads"])
    fields |= mixture(mixers, layers * ["experts"])


# What a layer of Nemotron-H consists of, by its letter and by its word.
_BLOCKS = {
    "M": "recurrence_none", "-": "none_dense", "*": "attention_none", "E": "none_experts",
    "linear_attention": "recurrence_none", "mamba": "recurrence_none", "mlp": "none_dense",
    "full_attention": "attention_none", "attention": "attention_none", "moe": "none_experts",
}


def _nemotron_h(config: Config, fields: Fields) -> None:
    pattern = config.get("hybrid_override_pattern")
    blocks = config.get("layers_block_type")
    blocks = list(pattern) if blocks is None and isinstance(pattern, str) else blocks
    if not isinstance(blocks, list) or not 0 < len(blocks) <= MOST_LAYERS or not (
            {*map(str, blocks)} <= {*_BLOCKS}):
        config.refuse("layers_block_type", "a list of linear_attention, full_attention, mlp, moe, "
                      "or hybrid_override_pattern of the letters M * - E")
        blocks = ["M"]
    if config.whole("num_hidden_layers", len(blocks)) != len(blocks):
        config.refuse("num_hidden_layers", f"{len(blocks)}, the length of the pattern")
    mixers, mlps = zip(*(_BLOCKS[block].split("_") for block in blocks), strict=True)
    fields |= {"layers": len(blocks), **mixture(mixers, mlps)}
    if fields["mtp_layers"]:
        _nemotron_prediction(config, fields)
    if "recurrence" in mixers:
        bias = "mamba_proj_bias" if "mamba_proj_bias" in config.data else "use_bias"
        fields["recurrence"] = {
            "form": "mamba2", "heads": config.whole("mamba_num_heads"),
            "head_dim": config.whole("mamba_head_dim"), "groups": config.whole("n_groups", 8),
            "state": config.whole("ssm_state_size", 128), "conv": config.whole("conv_kernel", 4),
            "conv_bias": config.flag("use_conv_bias", True), "bias": config.flag(bias, False),
            "chunk": config.whole("chunk_size", 256),
        }
    default = None if "experts" in mlps else 1
    moe = {
        "experts": config.whole("n_routed_experts", default),
        "top_k": config.whole("num_experts_per_tok", default),
        "ffn": config.whole("moe_intermediate_size", default),
        "shared_ffn": config.whole("n_shared_experts", 0, 0) * config.whole(
            "moe_shared_expert_intermediate_size", 0, 0),
        "latent": config.whole("moe_latent_size", 0, 0),
    }
    if "experts" in mlps:
        fields["moe"] = moe


def _nemotron_prediction(config: Config, fields: Fields) -> None:
    """A prediction layer of attention and experts, each with a norm, is one layer with both."""
    given = config.get("mtp_layers_block_type", config.get("mtp_hybrid_override_pattern", "*E"))
    blocks = [_BLOCKS.get(str(one)) for one in given] if isinstance(given, list | str) else []
    if blocks != ["attention_none", "none_experts"]:
        key = "mtp_layers_block_type"
        config.refuse(key if key in config.data else "mtp_hybrid_override_pattern",
                      "attention, then moe (the letters *E)")
    name = "attention_experts"
    fields["layer_kinds"].append({"name": name, "mlp": "experts"})
    fields["mtp_kind"] = name


def _gemma4(config: Config, fields: Fields) -> None:
    """Layers with a window, and others with heads of their own, whose keys may be the values too;
    experts run beside the dense MLP, which all tokens pass as they do shared experts."""
    layers = fields["layers"]
    if width := config.whole("hidden_size_per_layer_input", 256, 0):
        fields["layer_inputs"] = width
        config.only("vocab_size_per_layer_input", fields["vocab"], fields["vocab"])
    types = config.layers_of("layer_types", layers, _WINDOW) or _every(
        layers, 6, 5, "full", "window")
    types[-1] = "full"
    mlp = "experts" if config.flag("enable_moe_block", False) else "dense"
    one = config.flag("attention_k_eq_v", False)
    kinds = {"window": {"window": config.whole("sliding_window", 512)},
             "full": {"one_key": one, "head_dim": config.whole("global_head_dim", 512)}}
    groups = config.whole("num_global_key_value_heads", 0, 0)
    if one and groups:
        kinds["full"]["kv_heads"] = groups
    if mlp == "experts":
        fields["moe"] = {
            "experts": config.whole("num_experts"), "top_k": config.whole("top_k_experts"),
            "ffn": config.whole("moe_intermediate_size"), "shared_ffn": fields["ffn"],
            "norms": 3, "router_scale": True}
    sharing = config.whole("num_kv_shared_layers", 0, 0)
    double = config.flag("use_double_wide_mlp", False)
    own = {"shared_keys": True, **({"ffn": 2 * fields["ffn"]} if double else {})}
    names = [f"{name}_shared" if sharing and n >= layers - sharing else name
             for n, name in enumerate(types)]
    fields |= {"layer_types": names, "layer_kinds": [
        {"name": name, "mlp": mlp, **kinds[name.partition("_")[0]],
         **(own if name.endswith("_shared") else {})} for name in dict.fromkeys(names)]}


def _falcon_h1(config: Config, fields: Fields) -> None:
    recurrence, hidden = fields["recurrence"], fields["hidden"]
    inner = config.whole("mamba_d_ssm", config.whole("mamba_expand", 2) * hidden)
    width = config.get("mamba_d_head", "auto")
    width = max(1, inner // recurrence["heads"]) if width == "auto" else (
        config.whole("mamba_d_head"))
    if recurrence["heads"] * width != inner:
        config.refuse("mamba_d_head", f"mamba_d_ssm / mamba_n_heads, as in {inner} / "
                      f"{recurrence['heads']}")
    recurrence["head_dim"] = width
    fields |= mixture(fields["layers"] * ["both"], fields["layers"] * ["dense"])


def _granite_hybrid(config: Config, fields: Fields) -> None:
    layers, hidden, recurrence = fields["layers"], fields["hidden"], fields["recurrence"]
    words = {**_ATTENTION, "attention": "attention", "mamba": "recurrence"}
    mixers = config.layers_of("layer_types", layers, words) or layers * ["recurrence"]
    shared, experts = (config.whole("shared_intermediate_size", 1024),
                       config.whole("num_local_experts", 8, 0))
    top_k = config.whole("num_experts_per_tok", 2, int(experts > 0))
    heads, expanded = recurrence["heads"], config.whole("mamba_expand", 2) * hidden
    width = config.get("mamba_d_head", "auto")
    width = max(1, expanded // heads) if width == "auto" else config.whole("mamba_d_head")
    if heads * width != expanded:
        config.refuse("mamba_n_heads", f"mamba_expand x hidden_size / mamba_d_head, as in "
                      f"{expanded} / {width}")
    recurrence["head_dim"] = width
    if "recurrence" not in mixers:
        del fields["recurrence"]
    if experts:
        fields["moe"] = {"experts": experts, "top_k": top_k, "ffn": fields["ffn"],
                         "shared_ffn": shared}
    fields |= {"ffn": shared,
               "unrotated": config.data.get("position_embedding_type") != "rope",
               **mixture(mixers, layers * ["experts" if experts else "dense"])}


def _kinds(names: Sequence[str], own: Mapping[str, Fields]) -> Fields:
    """Fields of layers by attention and MLP, such as window_experts; ``own``: of attentions."""
    kinds = [{"name": name, "mlp": name.split("_")[1], **own[name.split("_")[0]]}
             for name in dict.fromkeys(names)]
    return {"layer_kinds": kinds, "layer_types": [*names]}


_SPARSE = {"dense": "dense", "sparse": "experts"}


def _ones(config: Config, key: str, layers: int, words: tuple[str, str]) -> list[str] | None:
    """A list of 0 or 1 for each layer as words; None: the file has none."""
    flags = config.get(key)
    if flags is None:
        return None
    if not isinstance(flags, list) or len(flags) != layers or not {*map(str, flags)} <= {"0", "1"}:
        config.refuse(key, f"{layers} entries, each 0 or 1")
        return None
    return [words[int(flag)] for flag in flags]


def _mimo(config: Config, fields: Fields) -> None:
    layers, heads, groups = fields["layers"], fields["heads"], fields["kv_heads"]
    forms = config.layers_of("layer_types", layers, _WINDOW) or _ones(
        config, "hybrid_layer_pattern", layers, ("full", "window")) or [
            "full" if n % 6 == 5 or n == 0 else "window" for n in range(layers)]
    mlps = config.layers_of("mlp_layer_types", layers, _SPARSE) or _ones(
        config, "moe_layer_freq", layers, ("dense", "experts")) or (
            ["dense"] + layers * ["experts"])[:layers]
    for key, same in (("swa_num_attention_heads", heads), ("swa_head_dim", fields["head_dim"]),
                      ("swa_v_head_dim", fields["value_dim"]),
                      ("add_swa_attention_sink_bias", True),
                      ("add_full_attention_sink_bias", False)):
        config.only(key, same, same)
    # The published code sees as many earlier tokens beside the query itself.
    earlier = config.whole("sliding_window_size", 0, 0)
    window = earlier + 1 if earlier else config.whole("sliding_window", 129)
    config.read.add("sliding_window")
    if config.whole("n_shared_experts", 0, 0):
        config.refuse("n_shared_experts", "none")
    if "experts" in mlps:
        fields["moe"] = {
            "experts": config.whole("n_routed_experts", 256),
            "top_k": config.whole("num_experts_per_tok", 8),
            "ffn": config.whole("moe_intermediate_size", 2048)}
        if (parts := config.whole("n_group", 1)) > 1:
            fields["moe"] |= {"groups": parts, "group_limit": config.whole("topk_group", parts)}
    config.read.add("topk_group")
    fields |= {"sinks": True, **_kinds(
        [f"{form}_{mlp}" for form, mlp in zip(forms, mlps, strict=True)],
        {"full": {"sinks": False}, "window": {
            "kv_heads": config.whole("swa_num_key_value_heads", 2 * groups), "window": window}})}


def _step(config: Config, fields: Fields) -> None:
    layers, further = fields["layers"], config.whole("num_nextn_predict_layers", 0, 0)
    # Published lists go on with the layers of prediction.
    count = layers + further if further and len(
        config.data.get("layer_types") or ()) == layers + further else layers
    forms = config.layers_of("layer_types", count, _WINDOW) or count * ["full"]
    mlps = config.layers_of("mlp_layer_types", count, _SPARSE)
    if mlps is None:
        listed = config.get("moe_layers_enum")
        numbers = listed.split(",") if isinstance(listed, str) else listed
        if numbers is None:
            numbers = list(range(3, layers))
        if not isinstance(numbers, list) or not all(str(n).strip().isdigit() for n in numbers):
            config.refuse("moe_layers_enum", "numbers of layers, joined by commas")
            numbers = []
        sparse = {int(n) for n in numbers}
        mlps = ["experts" if n in sparse else "dense" for n in range(count)]
    config.read.add("moe_layers_enum")
    heads = config.whole("num_sliding_attention_heads", fields["heads"])
    other = config.nested("attention_other_setting", {})
    if other is not None:
        heads = other.whole("num_attention_heads", heads)
        other.only("num_attention_groups", fields["kv_heads"], fields["kv_heads"])
        other.only("head_dim", fields["head_dim"], fields["head_dim"])
        other.read |= {"attention_type", "true_head_dim"}
    if "experts" in mlps[:layers]:
        fields["moe"] = {
            "experts": config.whole("num_experts", 288),
            "top_k": config.whole("num_experts_per_tok", 8),
            "ffn": config.whole("moe_intermediate_size", 1280),
            "shared_ffn": config.whole("share_expert_dim", 1280, 0)}
    window = config.whole("sliding_window") if "window" in forms else 1
    config.read.add("sliding_window")
    names = [f"{form}_{mlp}" for form, mlp in zip(forms, mlps, strict=True)]
    found = _kinds(names, {"full": {}, "window": {"window": window, "heads": heads}})
    fields |= {"mtp_layers": further, **found, "layer_types": names[:layers]}
    if count > layers:
        fields["mtp_kind"] = names[layers]


def _state_space(fields: Fields) -> None:
    """Layers of nothing but a state-space model."""
    fields |= mixture(fields["layers"] * ["recurrence"], fields["layers"] * ["none"])


def _mamba2(config: Config, fields: Fields) -> None:
    recurrence = fields["recurrence"]
    expanded = config.whole("expand", 2) * fields["hidden"]
    if recurrence["heads"] * recurrence["head_dim"] != expanded:
        config.refuse("num_heads", f"expand x hidden_size / head_dim, as in {expanded} / "
                      f"{recurrence['head_dim']}")
    _state_space(fields)


def _rank(config: Config, key: str, hidden: int) -> int:
    """Rank of Mamba's time step; "auto" stands for hidden / 16."""
    if config.get(key, "auto") in ("auto", None):
        return -(-hidden // 16)
    return config.whole(key)


def _mamba(config: Config, fields: Fields) -> None:
    inner = config.whole("intermediate_size", config.whole("expand", 2) * fields["hidden"])
    fields["recurrence"] |= {
        "head_dim": inner, "dt_rank": _rank(config, "time_step_rank", fields["hidden"])}
    _state_space(fields)


def _jamba(config: Config, fields: Fields) -> None:
    layers, hidden = fields["layers"], fields["hidden"]
    mixers = config.layers_of("layers_block_type", layers,
                              {**_ATTENTION, "attention": "attention", "mamba": "recurrence"})
    mixers = mixers or _every(layers, config.whole("attn_layer_period", 8),
                              config.whole("attn_layer_offset", 4, 0), "attention", "recurrence")
    experts = config.whole("num_experts", 16)
    mlps = _every(layers, config.whole("expert_layer_period", 2),
                  config.whole("expert_layer_offset", 1, 0), "experts", "dense")
    top_k = config.whole("num_experts_per_tok", 2)
    if experts == 1:
        mlps = layers * ["dense"]
    else:
        fields["moe"] = {"experts": experts, "top_k": top_k, "ffn": fields["ffn"]}
    fields["recurrence"] |= {"head_dim": config.whole("mamba_expand", 2) * hidden,
                             "dt_rank": _rank(config, "mamba_dt_rank", hidden)}
    fields |= mixture(mixers, mlps)


def _llama4_text(config: Config, fields: Fields) -> None:
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
    forms = forms or _every(layers, config.whole("no_rope_layer_interval", 4),
                            config.whole("no_rope_layer_interval", 4) - 1, "full", "chunked")
    mlps = ["experts" if n in sparse else "dense" for n in range(layers)]
    windows: dict[str, Fields] = {"full": {}, "chunked": {}}
    if width is not None:
        windows["chunked"] = {"window": width, "chunked": True}
    names = [f"{form}_{mlp}" for form, mlp in zip(forms, mlps, strict=True)]
    kinds = {name: {"name": name, "mlp": mlp, **windows[form]}
             for name, form, mlp in zip(names, forms, mlps, strict=True)}
    fields |= {"ffn": config.whole("intermediate_size_mlp", fields["ffn"]),
               "layer_kinds": list(kinds.values()), "layer_types": names}
    if "experts" not in mlps:
        del fields["moe"]
    if config.flag("use_qk_norm", True):
        fields |= {"qk_norm": True, "qk_norm_form": "plain"}


def _nemotron_nas(config: Config, fields: Fields) -> None:
    hidden, heads, layers = fields["hidden"], fields["heads"], fields["layers"]
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
    if not names or len(names) != layers:
        config.refuse("block_configs", f"{layers} entries, one a layer")
    fields |= {"ffn": max((kind["ffn"] or 1 for kind in kinds.values()), default=1),
               "layer_kinds": list(kinds.values()), "layer_types": names}


def _multiple(width: float) -> int:
    """The width of an MLP, rounded up to a multiple of 256."""
    return -(-int(width) // 256) * 256


MIXED: dict[str, Callable[[Config, Fields], None]] = {
    "falcon_h1": _falcon_h1,
    "gemma4_text": _gemma4,
    "granitemoehybrid": _granite_hybrid,
    "jamba": _jamba,
    "kimi_linear": _kimi_linear,
    "llama4_text": _llama4_text,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "mimo_v2_flash": _mimo,
    "minimax": _minimax,
    "nemotron-nas": _nemotron_nas,
    "nemotron_h": _nemotron_h,
    "qwen3_next": _qwen3_next,
    "step3p5": _step,
}
"""Of each model type that mixes kinds of layers."""
