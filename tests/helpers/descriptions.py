"""Valid descriptions of every kind, and what the tests of bad ones share."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import yaml

from nest.errors import InputError
from nest.inputs import (
    load_cluster,
    load_configuration,
    load_device,
    load_job,
    load_model,
    load_profile,
    load_space,
    load_stack,
)

MODEL = {
    "name": "tiny",
    "layers": 2,
    "hidden": 64,
    "heads": 4,
    "ffn": 128,
    "gated": True,
    "vocab": 100,
    "tied_embeddings": False,
    "norm": "rmsnorm",
    "bias": False,
}
TOWER = {"layers": 1, "hidden": 32, "heads": 2, "ffn": 32, "tokens": 4, "patch_width": 12}
TRANSLATOR = {**MODEL, "kind": "encoder-decoder", "encoder_layers": 2, "relative_positions": 32}
SEEING = {**MODEL, "vision": {**TOWER, "merge": 2, "projector_layers": 2}, "mtp_layers": 1}
DEVICE = {
    "name": "d",
    "memory": "1 GiB",
    "memory_bandwidth": "1 GB/s",
    "peak_flops": {"bf16": "1 TFLOP/s"},
}
CLUSTER = {
    "name": "c",
    "device": DEVICE,
    "levels": [
        {"name": "node", "size": 4, "bandwidth": "100 GB/s", "latency": "5 us"},
        {"name": "leaf", "size": 2, "bandwidth": "400 Gb/s", "latency": "10 us"},
        {"name": "spine", "size": 3, "oversubscription": 2, "latency": "20 us"},
    ],
}
TEMPLATE = copy.deepcopy(CLUSTER)
TEMPLATE["levels"][2]["size"] = "n"
JOB = {"global_batch": 8, "seq_len": 128}
STAGE = {"layers": [0, 2], "devices": [0, 4], "tp": 4}
CONFIGURATION = {"micro_batch": 1, "stages": [STAGE]}
CHUNKS = {"layers": [0, 4], "chunks": [[0, 1], [2, 4]], "devices": [0, 2], "cp": 2,
          "cp_comm": "a2a", "zero": 1, "shard": "dp_in", "recompute": "selective",
          "recompute_modules": ["norm", "moe"]}
INTERLEAVED = {"outer_dp": 2, "micro_batch": 1, "vpp": 2, "stages": [CHUNKS], "order": [1, 0]}


def measured(name: str, **more: object) -> dict:
    tp = {"1": {"forward": 1, "backward": 2, "parameter_bytes": 3, "activation_bytes": 4}}
    return {"name": name, "output_bytes": 10, "tp": tp, **more}


PROFILE = {"name": "p", "layers": [measured("a")]}
BRANCHES = {"name": "p", "layers": [
    measured("a"), measured("b", inputs=[]), measured("c", inputs=["a", "b"], repeat=2)]}
LOADERS = {
    "model": (load_model, MODEL),
    "encoder-decoder": (load_model, TRANSLATOR),
    "vision": (load_model, SEEING),
    "cluster": (load_cluster, CLUSTER),
    "device": (load_device, DEVICE),
    "job": (load_job, JOB),
    "space": (load_space, {"tp": "1..8", "zero": [0, 1], "recompute": "none,full"}),
    "wide space": (load_space, {
        "cp": [1, 2], "cp_comm": "p2p,a2a", "shard": ["dp_in"], "recompute_modules": ["norm+moe"],
        "recompute_layers": "1..3", "vpp": 2, "schedule": ["interleaved", "gpipe"]}),
    "configuration": (load_configuration, CONFIGURATION),
    "interleaved": (load_configuration, INTERLEAVED),
    "profile": (load_profile, PROFILE),
    "branches": (load_profile, BRANCHES),
    "stack": (load_stack, {"base": "fsdp", "gemm_derate": 0.7}),
}


def put(folder: Path, data: object, name: str = "given.yaml") -> Path:
    path = folder / name
    if isinstance(data, bytes):
        path.write_bytes(data)
    elif isinstance(data, str):
        path.write_text(data, encoding="utf-8")
    elif name.endswith(".json"):
        path.write_text(json.dumps(data), encoding="utf-8")
    else:
        path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def changed(data: dict, path: str, value: object) -> dict:
    """Deep copy with one field set; the field is removed where the value is `...`."""
    result = copy.deepcopy(data)
    *parents, last = path.split(".")
    place = result
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place[part]
    key = int(last) if isinstance(place, list) else last
    if value is ...:
        del place[key]
    else:
        place[key] = value
    return result


def message(load, *arguments, **named) -> str:
    with pytest.raises(InputError) as caught:
        load(*arguments, **named)
    text = str(caught.value)
    assert all(len(line) < 900 for line in text.splitlines())
    assert "Traceback" not in text and "pydantic" not in text
    return text


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
MIXTRAL = {
    **LLAMA,
    "model_type": "mixtral",
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 94,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1536,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "vocab_size": 129280,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "n_group": 8,
    "topk_group": 4,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1,
}
GPT2 = {
    "model_type": "gpt2",
    "n_layer": 48,
    "n_embd": 1600,
    "n_head": 25,
    "n_positions": 1024,
    "vocab_size": 50257,
}
OPT = {
    "model_type": "opt",
    "num_hidden_layers": 48,
    "hidden_size": 7168,
    "ffn_dim": 28672,
    "num_attention_heads": 56,
    "max_position_embeddings": 2048,
    "vocab_size": 50272,
    "word_embed_proj_dim": 7168,
    "do_layer_norm_before": True,
}
BERT = {
    "model_type": "bert",
    "num_hidden_layers": 24,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "vocab_size": 30522,
    "type_vocab_size": 2,
    "max_position_embeddings": 512,
    "architectures": ["BertForPreTraining"],
}
QWEN2_MOE = {
    "model_type": "qwen2_moe",
    "num_hidden_layers": 24,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 5632,
    "vocab_size": 151936,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
}
GEMMA2 = {
    "model_type": "gemma2",
    "num_hidden_layers": 26,
    "hidden_size": 2304,
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 9216,
    "vocab_size": 256000,
}
NEOX = {
    "model_type": "gpt_neox",
    "num_hidden_layers": 44,
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "intermediate_size": 24576,
    "vocab_size": 50432,
}
QWEN2 = {
    "model_type": "qwen2",
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}
QWEN3 = {
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2",
    "num_hidden_layers": 27,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "intermediate_size": 10944,
    "vocab_size": 102400,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
}
GEMMA = {
    "model_type": "gemma",
    "num_hidden_layers": 28,
    "hidden_size": 3072,
    "head_dim": 256,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 24576,
    "vocab_size": 256000,
}
MISTRAL = {**LLAMA, "model_type": "mistral", "vocab_size": 32000}
MINISTRAL = {
    **LLAMA,
    "model_type": "ministral",
    "num_hidden_layers": 36,
    "intermediate_size": 12288,
    "vocab_size": 131072,
    "sliding_window": 32768,
}
GEMMA3 = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 26,
    "hidden_size": 1152,
    "head_dim": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "intermediate_size": 6912,
    "vocab_size": 262144,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 36,
    "hidden_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 2880,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "sliding_window": 128,
    "attention_bias": True,
}
# Further keys of published files, which change no price. Of ai-dynamo/aiconfigurator
# (model_configs/*_config.json at 095f58a): Llama 3.1, DeepSeek-V3, GPT-OSS, Qwen3-30B-A3B; of
# mlc-ai/mlc-llm (its model presets at 79d603f): the others.
NOTES = {
    "llama": {"bos_token_id": 128000, "rope_scaling": {"factor": 8.0}, "pretraining_tp": 1,
              "rms_norm_eps": 1e-05, "torch_dtype": "bfloat16", "transformers_version": "4.42.3"},
    "deepseek_v3": {"ep_size": 1, "norm_topk_prob": True,
                    "quantization_config": {"fmt": "e4m3"}, "routed_scaling_factor": 2.5,
                    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "auto_map": {"A": "b"}},
    "gpt_oss": {"experts_per_token": 4, "initial_context_length": 4096, "swiglu_limit": 7.0,
                "router_aux_loss_coef": 0.9, "output_router_logits": False},
    "qwen3_moe": {"max_window_layers": 48, "use_sliding_window": False, "sliding_window": None,
                  "norm_topk_prob": True, "router_aux_loss_coef": 0.001},
    "qwen2": {"use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28,
              "eos_token_id": 151645, "hidden_act": "silu", "use_cache": True},
    "gemma3_text": {"cache_implementation": "hybrid", "query_pre_attn_scalar": 256,
                    "rope_local_base_freq": 10000, "eos_token_id": [1, 106]},
    "gpt_neox": {"rotary_pct": 1.0, "rotary_emb_base": 10000, "use_parallel_residual": True,
                 "_name_or_path": "model"},
    "gpt2": {"n_ctx": 1024, "summary_type": "cls_index", "summary_first_dropout": 0.1,
             "resid_pdrop": 0.1, "task_specific_params": {"text-generation": {"max_length": 50}}},
    "bert": {"hidden_dropout_prob": 0.1, "layer_norm_eps": 1e-12, "gradient_checkpointing": False},
}
CONFIGS = [
    MINISTRAL,
    GEMMA3,
    GPT_OSS,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    QWEN2,
    QWEN3,
    QWEN2_MOE,
    QWEN3_MOE,
    DEEPSEEK,
    GPT2,
    OPT,
    BERT,
    GEMMA,
    GEMMA2,
    NEOX,
    DEEPSEEK_V2_LITE,
]
