"""Hugging Face `config.json` as a model description.

Field names and their defaults are those of huggingface/transformers 5.23.0,
src/transformers/models/*/configuration_*.py. Only the file is read; nothing is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nest.describe.config_keys import unknown_keys
from nest.describe.model import Model
from nest.errors import InputError
from nest.units import shorten


class Config:
    """Reads fields of a config.json, and collects every problem."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data = data
        self.where = where
        self.problems: list[str] = []
        self.read: set[str] = set()

    def get(self, key: str, default: object = None) -> Any:
        """The value as it stands, or the default where there is none."""
        self.read.add(key)
        return self.data.get(key, default)

    def refuse(self, key: str, allowed: str) -> None:
        """Note a value that cannot be described."""
        given = f"got {shorten(self.data[key])}" if key in self.data else "missing"
        self.problems.append(f"{self.where}: {key}: {given}; allowed: {allowed}")

    def whole(self, key: str, default: int | None = None, low: int = 1) -> int:
        """A whole number; needed where there is no default (null counts as not given)."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= 10**7:
            self.refuse(key, f"a whole number, {low} to {10**7}")
            return max(low, 1)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false, with the default of the configuration class."""
        value = self.get(key, default)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
            return default
        return value

    def only(self, key: str, default: object, *allowed: object) -> None:
        """Refuse variants whose operators NEST does not describe."""
        if self.get(key, default) not in allowed:
            self.refuse(key, " or ".join(shorten(value) for value in allowed))


def _gqa(config: Config, kv_default: bool = False) -> dict[str, Any]:
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
        "max_seq_len": config.whole("max_position_embeddings", 0, 0) or None,
    }
    if config.get("head_dim") is not None:
        fields["head_dim"] = config.whole("head_dim")
    return fields


def _llama(config: Config) -> dict[str, Any]:
    attention, mlp = config.flag("attention_bias", False), config.flag("mlp_bias", False)
    if mlp and not attention:
        config.refuse("mlp_bias", "false where attention_bias is false")
    # with attention_bias alone the output projection's bias (hidden values a layer) is left out
    return {**_gqa(config, kv_default=True), "bias": mlp, "qkv_bias": attention and not mlp}


def _mixtral(config: Config) -> dict[str, Any]:
    fields = _gqa(config)
    experts = {"experts": config.whole("num_local_experts"), "ffn": fields["ffn"]}
    return {**fields, "moe": {**experts, "top_k": config.whole("num_experts_per_tok")}}


def _qwen2(config: Config) -> dict[str, Any]:
    return {**_gqa(config), "qkv_bias": True}


def _qwen3(config: Config) -> dict[str, Any]:
    return {"head_dim": 128, **_qk_normed(config)}


def _qk_normed(config: Config) -> dict[str, Any]:
    config.only("use_qk_norm", True, True, None)
    return {**_gqa(config), "qk_norm": True, "qkv_bias": config.flag("attention_bias", False)}


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
    return {**_gqa(config), "qkv_bias": bias, "moe": {**_qwen_experts(config), **shared}}


def _qwen3_moe(config: Config) -> dict[str, Any]:
    return {**_qk_normed(config), "moe": _qwen_experts(config)}


def _deepseek(config: Config) -> dict[str, Any]:
    fields = _gqa(config, kv_default=True)
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
    return fields if experts is None else {**fields, "moe": moe}


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
    fields = {**_gqa(config, kv_default=True), "gated": False, "norm": "layernorm", "bias": True}
    return {**fields, "kv_heads": fields["heads"]}


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
    fields = {**_gqa(config), "tied_embeddings": tied}
    return {"head_dim": 256, **fields, "qkv_bias": config.flag("attention_bias", False)}


def _gemma2(config: Config) -> dict[str, Any]:
    config.only("use_bidirectional_attention", False, False, None)
    return {**_gemma(config), "layer_norms": 4}


def _gemma3(config: Config) -> dict[str, Any]:
    return {**_gemma2(config), "qk_norm": True}


def _gpt_oss(config: Config) -> dict[str, Any]:
    # its sink of a value per head and the router's bias (0.00001 of the parameters) are left out
    fields = _mixtral(config)
    moe = {**fields["moe"], "clamped": True}  # swiglu_limit
    return {"head_dim": 64, **fields, "moe": moe, "bias": config.flag("attention_bias", True)}


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


def _others(default: int) -> Callable[[Config, int], bool]:
    """All but each last one of so many (Gemma 2 and GPT-OSS: 2, Gemma 3: 6)."""

    def rule(config: Config, layer: int) -> bool:
        private = config.whole("_sliding_window_pattern", default)
        return bool((layer + 1) % config.whole("sliding_window_pattern", private))

    return rule


# Of each model type with windows: sliding_window where the file lacks it, whether
# use_sliding_window must be true, and the rule for a layer where layer_types is missing.
_WINDOWS: dict[str, tuple[int | None, bool, Callable[[Config, int], bool]]] = {
    "gemma2": (4096, False, _others(2)),
    "gemma3_text": (4096, False, _others(6)),
    "gpt_oss": (128, False, _others(2)),
    "ministral": (4096, False, _all),
    "mistral": (4096, False, _all),
    "mixtral": (None, False, _all),
    "qwen2": (4096, True, _late),
    "qwen2_moe": (4096, True, _early),
    "qwen3": (4096, True, _late),
    "qwen3_moe": (4096, True, _all),
}


def _window(config: Config, model_type: str, layers: int) -> dict[str, Any]:
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
    window = None if config.get("sliding_window", default) is None else (
        config.whole("sliding_window", default if absent else None, 0) or None)
    if optional and not config.flag("use_sliding_window", False):
        window = None
    if types is None:
        within = [rule(config, layer) for layer in range(min(layers, 10**4))]
    else:
        within = [kind == "sliding_attention" for kind in types]
    if window is None:
        if types is not None and any(within):
            config.refuse("sliding_window", "a whole number with these layer_types")
        return {}
    if not any(within):
        return {}
    return {"window": window, "full_layers": [n for n, inside in enumerate(within) if not inside]}


_READERS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "bert": _bert,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "llama": _llama,
    "ministral": _gqa,
    "mistral": _gqa,
    "mixtral": _mixtral,
    "opt": _opt,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
MODEL_TYPES = tuple(_READERS)

# which field of config.json a field of the description came from, where the names differ
_NAMES = {
    "kv_heads": "num_key_value_heads",
    "heads": "num_attention_heads",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "moe.top_k": "num_experts_per_tok",
    "moe": "first_k_dense_replace, decoder_sparse_step or mlp_only_layers",
}


def from_huggingface(data: Mapping[str, Any], where: str, path: Path | None = None) -> Model:
    """Read a model from the fields of a Hugging Face config.json.

    Parameters
    ----------
    data : the file's mapping.
    where : start of messages.
    path : the file, whose folder names the model when the file does not.

    Raises
    ------
    InputError : an unknown model_type (the message lists the known ones), missing fields, or a
        variant that cannot be described.
    """
    model_type = _model_type(data)
    if model_type not in _READERS:
        given = shorten(data.get("model_type", data.get("architectures")))
        message = f"{where}: model_type: got {given}; allowed: {', '.join(_READERS)}"
        raise InputError(message, (message,))
    config = Config(data, where)
    fields = _READERS[model_type](config)
    fields |= _window(config, model_type, fields["layers"])
    for key in unknown_keys(data, config.read):
        config.refuse(key, f"nothing: it is not known with model_type {model_type}. If it changes "
                      "neither time nor memory, remove it from a copy of the file")
    if config.problems:
        lines = tuple(dict.fromkeys(config.problems))
        raise InputError("\n".join(lines), lines)
    fields["name"] = _name(data, model_type, path)
    fields["source"] = "config.json of the model (Hugging Face transformers)"
    try:
        return Model.parse(fields, where)
    except InputError as error:
        lines = tuple(_renamed(line, where) for line in error.problems)
        raise InputError("\n".join(lines), lines) from None


def _model_type(data: Mapping[str, Any]) -> str | None:
    model_type = data.get("model_type")
    if model_type is not None:
        return model_type if isinstance(model_type, str) else None
    architectures = data.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    match = re.match(r"(\w+?)(?:For|LMHead|Model)", first) if isinstance(first, str) else None
    wanted = match[1].lower() if match else ""
    return next((known for known in _READERS if known.replace("_", "") == wanted), None)


def _name(data: Mapping[str, Any], model_type: str, path: Path | None) -> str:
    given = data.get("_name_or_path")
    if not (isinstance(given, str) and given.strip()) and path is not None:
        given = path.stem if path.stem != "config" else path.absolute().parent.name
    text = given.strip().rstrip("/").rsplit("/", 1)[-1] if isinstance(given, str) else ""
    return text if text and len(text) <= 200 and text.isprintable() else model_type


def _renamed(line: str, where: str) -> str:
    """State a problem with the names of config.json."""
    for ours, theirs in _NAMES.items():
        start = f"{where}: {ours}: "
        if line.startswith(start):
            return f"{where}: {theirs}: {line[len(start) :]}"
    return line
