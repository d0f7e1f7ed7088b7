"""Rules of model types whose attention reads selected or compressed keys, beyond their rows in
families.yaml.

What layers consist of is that of modeling_*.py in huggingface/transformers 5.23.0, defaults those
of configuration_*.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nest.inputs.huggingface.fields import MOST_LAYERS, Config, Fields

_MLPS = {"dense": "dense", "sparse": "experts"}


def kinds_of(layers: Iterable[Fields]) -> Fields:
    """Fields `layer_kinds` and `layer_types` from what each layer consists of."""
    names = []
    kinds: dict[str, Fields] = {}
    for layer in layers:
        name = "_".join(str(value) for value in layer.values())
        kinds[name] = {"name": name, **layer}
        names.append(name)
    return {"layer_kinds": list(kinds.values()), "layer_types": names}


def deepseek_sparse(config: Config, fields: Fields) -> None:
    config.layers_of("layer_types", fields["layers"], dict.fromkeys(
        ("indexed_attention", "deepseek_sparse_attention", "full_attention"), ""))


def glm_sparse(config: Config, fields: Fields) -> None:
    """Layers that take over the choice of an earlier one have no indexer of their own."""
    layers = fields["layers"]
    words = {"full": "own", "shared": "shared"}
    found = config.layers_of("indexer_types", layers, words)
    pattern = config.get("index_topk_pattern")
    every, first = config.whole("index_topk_freq", 1), config.whole("index_skip_topk_offset", 2, 0)
    if found is None and pattern is not None:
        letters = {"F": "own", "S": "shared", **words}
        if not isinstance(pattern, str | list) or len(pattern) != layers or not (
                {*map(str, pattern)} <= {*letters}):
            config.refuse("index_topk_pattern", f"{layers} letters, F or S")
            return
        found = [letters[str(one)] for one in pattern]
    found = found or ["own" if max(n - first + 1, 0) % every == 0 else "shared"
                      for n in range(layers)]
    if "shared" in found and (moe := fields.get("moe")):
        dense = moe.pop("first_dense")
        fields |= kinds_of({"mlp": "dense" if n < dense else "experts", "indexer": one}
                           for n, one in enumerate(found))


def deepseek_v4(config: Config, fields: Fields) -> None:
    layers, window = fields["layers"], config.whole("sliding_window", 128)
    given = config.get("compress_rates")
    given = given if isinstance(given, dict) else {}
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128, **given,
             "sliding_attention": 0}
    selects, plain = rates["compressed_sparse_attention"], rates["heavily_compressed_attention"]
    ratios = config.get("compress_ratios")  # as published, with one for the prediction layer
    if "layer_types" in config.data:
        config.read.add("layer_types")
        ratios = [rates.get(str(one)) for one in config.get("layer_types") or []]
    elif ratios is None:
        ratios = [selects if n % 2 and n > 1 else plain for n in range(layers)]
    if not isinstance(ratios, list) or not layers <= len(ratios) <= MOST_LAYERS or not all(
            type(one) is int and one in (0, selects, plain) for one in ratios):
        config.refuse("layer_types" if "layer_types" in config.data else "compress_ratios",
                      f"for each of {layers} layers 0 (sliding_attention), 4 "
                      "(compressed_sparse_attention) or 128 (heavily_compressed_attention)")
        ratios = layers * [0]
    kinds = [{"mlp": "experts", "window": window, "compress": one,
              "indexer": "own" if one == selects else "none"} for one in ratios]
    fields |= kinds_of(kinds[:layers])
    width = fields["ffn"]
    fields["moe"] = {
        "experts": config.whole("n_routed_experts", 256), "ffn": width,
        "top_k": config.whole("num_experts_per_tok", 6),
        "shared_ffn": config.whole("n_shared_experts", 1, 0) * width, "clamped": True}


def minimax_m3(config: Config, fields: Fields) -> None:
    """Blocks of keys are selected; as many keys as these hold are read."""
    layers, prefix = fields["layers"], "index_"
    inner = config.nested("sparse_attention_config", {})
    source = config if inner is None else inner
    names = ("n_heads", "head_dim", "topk_blocks", "block_size")
    if inner is not None:  # as published
        prefix = "sparse_"
        names = ("num_index_heads", "index_dim", "topk_blocks", "block_size")
        inner.only("use_sparse_attention", True, True)
        inner.only("sparse_score_type", "max", "max")
        inner.read |= {"sparse_init_block", "sparse_local_block", "sparse_disable_index_value"}
    sizes = [source.whole(prefix + name, default)
             for name, default in zip(names, (4, 128, 16, 128), strict=True)]
    config.read.add("index_local_blocks")
    fields["indexer"] = {"heads": sizes[0], "head_dim": sizes[1], "top_k": sizes[2] * sizes[3],
                         "weighted": False}
    mixers = config.layers_of("layer_types", layers, {
        "minimax_m3_sparse": "own", "full_attention": "none"})
    if mixers is None and inner is not None:
        mixers = _flags(inner, "sparse_attention_freq", layers, "own", "none")
    mlps = config.layers_of("mlp_layer_types", layers, _MLPS)
    mlps = mlps or _flags(config, "moe_layer_freq", layers, "experts", "dense")
    fields |= kinds_of({"mlp": mlp, "indexer": mixer} for mlp, mixer in zip(
        mlps or layers * ["experts"], mixers or layers * ["none"], strict=True))
    if mixers is None or "own" not in mixers:
        del fields["indexer"]
    # Files with a tower name the prediction layers that were trained so, others those of decoding.
    one = config.data.get("num_nextn_predict_layers", config.data.get("num_mtp_modules"))
    config.read |= {"num_nextn_predict_layers", "num_mtp_modules"}
    fields["mtp_layers"] = one if isinstance(one, int) else 0


def _flags(config: Config, key: str, layers: int, one: str, other: str) -> list[str] | None:
    """A word for each layer from a list of 1 and 0; None: there is none."""
    flags = config.get(key)
    if flags is None:
        return None
    if not isinstance(flags, list) or len(flags) != layers or any(
            flag not in (0, 1) for flag in flags):
        config.refuse(key, f"{layers} entries, each 0 or 1")
        return None
    return [one if flag else other for flag in flags]


SPARSE: dict[str, Callable[[Config, Fields], None]] = {
    "deepseek_v32": deepseek_sparse,
    "deepseek_v4": deepseek_v4,
    "glm_moe_dsa": glm_sparse,
    "minimax_m3": minimax_m3,
}
"""Of each such model type."""
