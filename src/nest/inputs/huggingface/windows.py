"""Windows of attention in config.json: which layers have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nest.inputs.huggingface.fields import Config


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
