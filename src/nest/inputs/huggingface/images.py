"""Readers of config.json for images: a language model with a tower (text and vision mappings), ViT.

What the nested mappings leave out has the default of its own class (huggingface/transformers
5.23.0, src/transformers/models/*/configuration_*.py); projectors are those of modeling_*.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from nest.inputs.huggingface.fields import Config, Fields, tables

PATCHES = 1024
"""Patches of a sample's image where no file says its size (assumed; 448 x 448 points at 14)."""


def text_of(config: Config, model_type: str) -> tuple[Config, str]:
    """The language model's fields, and their model type; older files have them at the top."""
    inside = config.data.get("text_config")
    given = inside.get("model_type") if isinstance(inside, Mapping) else None
    known = given if isinstance(given, str) else tables()["text_types"][model_type]
    known = tables()["same"].get(known, known)
    defaults = {**tables()["nested"].get(known, {})}
    if "tie_word_embeddings" in config.data:
        defaults["tie_word_embeddings"] = config.get("tie_word_embeddings")
    child = config.nested("text_config", defaults)
    return (config, known) if child is None else (child, known)


def _patches(tower: Config, channels: str = "num_channels") -> tuple[int, int]:
    """Patches of an image, and values of a patch."""
    size, patch = tower.whole("image_size"), tower.whole("patch_size")
    if size % patch:
        tower.refuse("image_size", f"a multiple of patch_size = {patch}")
        size = patch
    return (size // patch) ** 2, tower.whole(channels, 3) * patch**2


def _encoder(tower: Config) -> Fields:
    """Layers of a tower with the fields of CLIP and SigLIP."""
    count, width = _patches(tower)
    return {
        "layers": tower.whole("num_hidden_layers"), "hidden": tower.whole("hidden_size"),
        "heads": tower.whole("num_attention_heads"), "ffn": tower.whole("intermediate_size"),
        "tokens": count, "patch_width": width,
    }


def _llava(config: Config) -> Fields | None:
    inside = config.data.get("vision_config")
    kind = inside.get("model_type") if isinstance(inside, Mapping) else None
    tower = config.nested("vision_config", tables()["nested"]["llava" if kind is None else "clip"])
    if tower is None:
        return None
    tower.only("model_type", "clip_vision_model", "clip_vision_model")
    tower.read.add("vocab_size")  # of the text model that CLIP has beside it
    config.only("vision_feature_select_strategy", "default", "default")
    bias = config.flag("multimodal_projector_bias", True)
    return {**_encoder(tower), "patch_bias": False, "class_token": True, "embedding_norm": True,
            "projector_layers": 2, "projector_bias": bias}


def _gemma3(config: Config) -> Fields | None:
    tower = config.nested("vision_config", tables()["nested"]["siglip"])
    if tower is None:
        return None
    tower.only("model_type", "siglip_vision_model", "siglip_vision_model")
    tower.only("vision_use_head", True, False)
    fields, tokens = _encoder(tower), config.whole("mm_tokens_per_image", 256)
    if fields["tokens"] % tokens:
        config.refuse("mm_tokens_per_image", f"a divisor of the {fields['tokens']} patches")
        tokens = fields["tokens"]
    return {**fields, "merge": fields["tokens"] // tokens, "pooled": True,
            "projector_bias": False, "projector_norm": True}


def _llama4(config: Config) -> Fields | None:
    tower = config.nested("vision_config", tables()["nested"]["llama4_vision"])
    if tower is None:
        return None
    fields = _encoder(tower)
    tower.read.add("vision_feature_select_strategy")
    tower.only("pixel_shuffle_ratio", 0.5, 0.5)
    tower.only("multi_modal_projector_bias", False, False)
    wide = 4 * fields["hidden"]
    tower.only("intermediate_size", None, wide)  # the adapter reads so many
    ends = tower.whole("projector_input_dim"), tower.whole("projector_output_dim")
    tower.only("vision_output_dim", None, ends[1])
    return {**fields, "patch_bias": False, "class_token": True, "embedding_norm": True,
            "merge": 4, "projector_widths": list(ends), "projector_bias": False}


def _qwen(tower: Config, hidden: str) -> Fields:
    """What the towers of Qwen-VL share: any image size, and a projector of two wide layers."""
    width, merge = tower.whole(hidden), tower.whole("spatial_merge_size", 2) ** 2
    patch = tower.whole("patch_size") ** 2 * tower.whole("temporal_patch_size", 2)
    channels = "in_chans" if "in_chans" in tower.data else "in_channels"
    return {
        "layers": tower.whole("depth"), "hidden": width, "heads": tower.whole("num_heads"),
        "tokens": PATCHES, "patch_width": tower.whole(channels, 3) * patch, "merge": merge,
        "projector_widths": [merge * width], "patch_bias": False, "positions": 0,
    }


def _qwen2_vl(config: Config) -> Fields | None:
    tower = config.nested("vision_config", tables()["nested"]["qwen2_vision"])
    if tower is None:
        return None
    tower.read |= {"hidden_size", "spatial_patch_size"}  # its output, the language model's width
    fields = _qwen(tower, "embed_dim")
    return {**fields, "ffn": tower.whole("mlp_ratio") * fields["hidden"]}


def _qwen2_5_vl(config: Config) -> Fields | None:
    tower = config.nested("vision_config", tables()["nested"]["qwen2_5_vision"])
    if tower is None:
        return None
    tower.read |= {"out_hidden_size", "tokens_per_second", "spatial_patch_size"}
    points, full = tower.whole("window_size"), tower.get("fullatt_block_indexes")
    return {**_qwen(tower, "hidden_size"), "ffn": tower.whole("intermediate_size"), "gated": True,
            "norm": "rmsnorm", "chunk": (points // tower.whole("patch_size")) ** 2,
            "full_layers": full or []}


def _qwen3_vl(config: Config) -> Fields | None:
    tower = config.nested("vision_config", tables()["nested"]["qwen3_vision"])
    if tower is None:
        return None
    tower.read |= {"out_hidden_size"}
    further = tower.get("deepstack_visual_indexes")
    if further is None:
        further = [8, 16, 24] if "qwen3_vl" in str(config.data.get("model_type")) else []
    if not isinstance(further, list):
        tower.refuse("deepstack_visual_indexes", "a list of layers")
        further = []
    return {**_qwen(tower, "hidden_size"), "ffn": tower.whole("intermediate_size"),
            "patch_bias": True, "positions": tower.whole("num_position_embeddings"),
            "deepstack": len(further)}


def _gemma4(config: Config) -> Fields | None:
    tower = config.nested("vision_config", tables()["nested"]["gemma4_vision"])
    if tower is None:
        return None
    config.read |= {"vision_soft_tokens_per_image"}
    tower.read |= {"global_head_dim", "max_position_embeddings", "standardize", "image_seq_length",
                   "video_seq_length"}
    heads = tower.whole("num_attention_heads")
    tower.only("num_key_value_heads", 12, heads)
    tower.only("use_clipped_linears", False, False)
    tower.only("attention_bias", False, False, None)
    if config.get("audio_config") is not None:
        config.refuse("audio_config", "nothing: towers for sound have no price; without it text "
                      "and images are read")
    merge, patch = tower.whole("pooling_kernel_size") ** 2, tower.whole("patch_size")
    return {
        "layers": tower.whole("num_hidden_layers"), "hidden": tower.whole("hidden_size"),
        "heads": heads, "head_dim": tower.whole("head_dim"),
        "ffn": tower.whole("intermediate_size"), "patch_width": 3 * patch**2,
        "tokens": tower.whole("default_output_length", 280) * merge, "merge": merge,
        "pooled": True, "gated": True, "norm": "rmsnorm", "layer_norms": 4, "qk_norm": True,
        "bias": False, "patch_bias": False, "final_norm": False, "projector_bias": False,
        "positions": 2 * tower.whole("position_embedding_size"),
    }


def _kimi(config: Config) -> Fields | None:
    """MoonViT: Kimi-K2.5's (Kimi_K25VisionModel of transformers), or Kimi-K3's without biases
    (MoonViT of torchtitan; the norm behind its projector is left out)."""
    tower = config.nested("vision_config", tables()["nested"]["kimi_k25_vision"])
    if tower is None:
        return None
    tower.read |= {
        "init_pos_emb_time", "pos_emb_time", "merge_type", "mm_hidden_size", "pos_emb_type",
        "text_hidden_size", "video_attn_type", "pos_emb_interpolation_mode", "mm_projector_type",
        "projector_ln_eps", "activation_func", "norm_type", "mlp_type"}
    config.read |= {"use_unified_vision_chunk", "projection_hidden_size",
                    "projection_layer_norm_eps"}

    def size(key: str, published: str) -> int:
        tower.read.add(key)  # a default where the published name is given
        return tower.whole(published if published in tower.data else key)

    rows, columns = (size(f"pos_emb_{side}", f"init_pos_emb_{side}") for side in
                     ("height", "width"))
    kernel = tower.get("merge_kernel_size")
    if not isinstance(kernel, list) or any(type(one) is not int or one < 1 for one in kernel):
        tower.refuse("merge_kernel_size", "a list of numbers of patches")
        kernel = [1]
    heads, width = size("num_attention_heads", "vt_num_attention_heads"), size(
        "hidden_size", "vt_hidden_size")
    merge, k3 = math.prod(kernel), tower.get("mm_projector_type") == "patchmergerv2"
    plain = not k3
    for key in ("attn_bias", "linear_bias", "patch_embed_proj_bias"):
        tower.only(key, plain, plain)
    return {
        "layers": size("num_hidden_layers", "vt_num_hidden_layers"), "hidden": width,
        "heads": heads, "ffn": size("intermediate_size", "vt_intermediate_size"),
        "head_dim": tower.whole("qkv_hidden_size", width) // heads,
        "tokens": PATCHES, "patch_width": 3 * tower.whole("patch_size") ** 2, "merge": merge,
        "norm": "layernorm" if plain else "rmsnorm", "bias": plain, "patch_bias": plain,
        "positions": rows * columns, "projector_widths": [merge * width],
        "projector_bias": plain, "projector_norm": plain, "projector_norm_bias": plain,
    }


def _minimax_m3(config: Config) -> Fields | None:
    """Images as the model sees them are of any size; patches are projected, joined, and projected
    (MiniMaxM3VLMultiModalProjector of transformers)."""
    tower = config.nested("vision_config", tables()["nested"]["minimax_m3_vision"])
    if tower is None:
        return None
    tower.read |= {"image_size", "projection_dim", "position_embedding_type", "rope_mode",
                   "vocab_size", "vision_segment_max_frames"}
    config.read |= {"image_grid_pinpoints", "num_reward_heads", "process_image_mode",
                    "vision_feature_select_strategy", "img_token_compression_config"}
    config.only("multimodal_projector_bias", True, True)
    inner = tower.nested("img_token_compression_config", {}) or tower
    inner.only("image_token_compression_method", "patch_merge", "patch_merge")
    merge = inner.whole("spatial_merge_size", 2) ** 2
    frames = inner.whole("temporal_patch_size", 2)
    text = config.data.get("text_config")
    hidden = text.get("hidden_size", 6144) if isinstance(text, Mapping) else 6144
    wide = config.whole("projector_hidden_size", 6144)
    return {
        "layers": tower.whole("num_hidden_layers"), "hidden": tower.whole("hidden_size"),
        "heads": tower.whole("num_attention_heads"), "ffn": tower.whole("intermediate_size"),
        "tokens": PATCHES, "merge": merge, "patch_bias": False, "embedding_norm": True,
        "patch_width": tower.whole("num_channels", 3) * frames * tower.whole("patch_size") ** 2,
        "final_norm": False, "positions": 0, "patch_widths": [wide, hidden],
        "projector_widths": [wide],
    }


def _step(config: Config) -> Fields | None:
    if config.get("vision_config") is not None:
        config.refuse("vision_config", "nothing: the convolutions that join its patches have no "
                      "price; without it the language model alone is read")
    config.read |= {"projector_bias", "understand_projector_stride", "im_start_token",
                    "im_end_token", "image_token_len", "patch_token_len", "im_patch_token"}
    return None


TOWERS: dict[str, Callable[[Config], Fields | None]] = {
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "kimi_k25": _kimi,
    "kimi_k3": _kimi,
    "llama4": _llama4,
    "llava": _llava,
    "minimax_m3_vl": _minimax_m3,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen2_vl": _qwen2_vl,
    "qwen3_5": _qwen3_vl,
    "qwen3_5_moe": _qwen3_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
    "step3p7": _step,
}
"""Of each model type that has a tower for images, which a file may leave out."""


def vit(config: Config) -> Fields:
    """An encoder of images with a classifier (ViTForImageClassification)."""
    count, width = _patches(config)
    config.only("qkv_bias", True, True)
    config.read |= {"encoder_stride", "pooler_output_size", "pooler_act"}
    names = config.get("id2label")
    classes = len(names) if isinstance(names, Mapping) and names else 1000
    return {
        "kind": "encoder", "layers": config.whole("num_hidden_layers"),
        "hidden": config.whole("hidden_size"), "heads": config.whole("num_attention_heads"),
        "ffn": config.whole("intermediate_size"), "gated": False,
        "vocab": config.whole("num_labels", classes), "tied_embeddings": False,
        "positions": count + 1, "patch_width": width, "norm": "layernorm", "bias": True,
        "final_norm": True, "head_bias": True,
    }
