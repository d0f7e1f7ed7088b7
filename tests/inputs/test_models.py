"""Models: parameters by hand, and Hugging Face config.json against published counts."""

from __future__ import annotations

import pytest
from descriptions import (
    BERT,
    CONFIGS,
    DEEPSEEK,
    DEEPSEEK_V2_LITE,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GPT2,
    GPT_OSS,
    LLAMA,
    MINISTRAL,
    MISTRAL,
    MIXTRAL,
    MODEL,
    NEOX,
    NOTES,
    OPT,
    QWEN2,
    QWEN2_MOE,
    QWEN3,
    QWEN3_MOE,
    changed,
    message,
    put,
)

from nest.inputs import load_model


def test_parameters_of_a_small_model_by_hand():
    # embedding 100*64, per layer 2 norms of 64, attention 4*64*64, MLP 3*64*128; norm 64; head
    assert load_model(MODEL).parameters() == 6400 + 2 * (128 + 16384 + 24576) + 64 + 6400
    grouped = load_model({**MODEL, "kv_heads": 2, "qkv_bias": True, "qk_norm": True})
    layer = 128 + 64 * 64 * 2 + 2 * 64 * 32 + (64 + 2 * 32) + 2 * 16 + 24576
    assert grouped.parameters() == 6400 + 2 * layer + 64 + 6400
    tied = load_model({**MODEL, "tied_embeddings": True, "positions": 10, "norm": "layernorm"})
    assert tied.parameters() == 6400 + 640 + 2 * (256 + 16384 + 24576) + 128


def test_parameters_of_a_mixture_by_hand():
    moe = {"experts": 4, "top_k": 2, "ffn": 32, "shared_ffn": 16, "first_dense": 1}
    model = load_model({**MODEL, "moe": moe})
    dense, expert = 3 * 64 * 128, 3 * 64 * 32
    rest = 6400 + 64 + 6400 + 2 * (128 + 16384)
    sparse = 64 * 4 + 4 * expert + 3 * 64 * 16
    assert model.parameters() == rest + dense + sparse
    assert model.active_parameters() == rest + dense + sparse - 2 * expert
    assert [model.is_moe_layer(i) for i in range(2)] == [False, True]
    gate = load_model({**MODEL, "moe": {**moe, "shared_gate": True}})
    assert gate.parameters() == model.parameters() + 64


def test_the_period_of_experts():
    moe = {"experts": 4, "top_k": 2, "ffn": 32, "every": 2, "first_dense": 1}
    model = load_model({**MODEL, "layers": 6, "moe": moe})
    assert [model.is_moe_layer(i) for i in range(6)] == [False, False, True, False, True, False]
    assert model.moe_layers == 2


def test_parameters_of_latent_attention_by_hand():
    mla = {"q_rank": 24, "kv_rank": 16, "nope_dim": 8, "rope_dim": 4, "value_dim": 8}
    model = load_model({**MODEL, "mla": mla})
    assert model.head_dim == 12
    attention = 64 * 24 + 24 + 24 * 4 * 12 + 64 * (16 + 4) + 16 + 16 * 4 * 16 + 4 * 8 * 64
    rest = 6400 + 64 + 6400 + 2 * (128 + 24576)
    assert model.parameters() == rest + 2 * attention
    direct = load_model({**MODEL, "mla": {**mla, "q_rank": 0}})
    saved = 64 * 24 + 24 + 24 * 4 * 12 - 64 * 4 * 12
    assert direct.parameters() == model.parameters() - 2 * saved
    text = message(load_model, {**MODEL, "mla": mla, "kv_heads": 2, "head_dim": 16, "bias": True})
    assert "kv_heads: got 2; allowed: heads = 4" in text
    assert "head_dim: got 16; allowed: 12" in text
    assert "bias: got true; allowed: false with mla" in text


def test_parameters_of_encoder_and_decoder_by_hand():
    both = {**MODEL, "kind": "encoder-decoder", "encoder_layers": 3}
    attention, mlp, table = 4 * 64 * 64, 3 * 64 * 128, 6400
    encoder = 3 * (2 * 64 + attention + mlp) + 64
    decoder = 2 * (3 * 64 + 2 * attention + mlp) + 64
    assert load_model(both).parameters() == table + encoder + decoder + table
    # One table of 8 buckets x 4 heads, or of 10 positions and a norm, in either stack.
    near = load_model({**both, "relative_positions": 8})
    assert near.parameters() == load_model(both).parameters() + 2 * 8 * 4
    assert (near.rotary, load_model(both).rotary) == (False, True)
    learned = load_model({**both, "positions": 10, "embedding_norm": True})
    assert learned.parameters() == load_model(both).parameters() + 2 * (640 + 64)


def test_parameters_of_a_vision_tower_by_hand():
    tower = {"layers": 3, "hidden": 32, "heads": 2, "ffn": 48, "tokens": 16, "patch_width": 12}
    inside = 4 * (32 * 32 + 32) + 2 * 32 * 48 + 48 + 32 + 2 * 2 * 32
    # patches with bias, positions, layers, last norm; projector 32 -> 64 with bias
    plain = 13 * 32 + 16 * 32 + 3 * inside + 64 + 33 * 64
    model = load_model({**MODEL, "vision": tower})
    assert model.parameters() == load_model(MODEL).parameters() + plain
    # class token with its position, norm after the embedding, no bias of the patches
    clip = {"class_token": True, "embedding_norm": True, "patch_bias": False}
    assert load_model({**MODEL, "vision": {**tower, **clip}}).parameters() == (
        model.parameters() + 2 * 32 + 64 - 32)
    # four patches joined, two linear layers
    wide = load_model({**MODEL, "vision": {**tower, "merge": 4, "projector_layers": 2}})
    assert wide.parameters() == model.parameters() + 3 * 32 * 64 + 65 * 64
    assert wide.vision is not None and wide.vision.merged_tokens == 4


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"kind": "encoder-decoder"}, "encoder_layers: missing; needed: layers of the encoder"),
        ({"encoder_layers": 3}, "encoder_layers: got 3; allowed: nothing with kind decoder"),
        ({"encoder_seq_len": 3}, "encoder_seq_len: got 3; allowed: nothing with kind decoder"),
        ({"kind": "encoder-decoder", "encoder_layers": 1, "encoder_seq_len": 9, "positions": 8},
         "encoder_seq_len: got 9; allowed: at most positions = 8"),
        ({"kind": "encoder-decoder", "encoder_layers": 1,
          "moe": {"experts": 2, "top_k": 1, "ffn": 8}}, "moe: got a mapping; allowed: nothing"),
        ({"kind": "encoder", "mtp_layers": 1}, "mtp_layers: got 1; allowed: 0 with kind encoder"),
        ({"relative_positions": 4, "positions": 8},
         "relative_positions: got 4; allowed: 0 with learned positions"),
        ({"vision": {"layers": 1, "hidden": 9, "heads": 2, "ffn": 4, "tokens": 6, "merge": 4,
                     "patch_width": 3}}, "vision.heads: got 2; allowed: a divisor of hidden = 9"),
        ({"vision": {"layers": 1, "hidden": 8, "heads": 2, "ffn": 4, "tokens": 6, "merge": 4,
                     "patch_width": 3}}, "vision.merge: got 4; allowed: a divisor of tokens = 6"),
        ({"kind": "encoder", "vision": {"layers": 1, "hidden": 8, "heads": 2, "ffn": 4,
                                        "tokens": 6, "patch_width": 3}},
         "vision: got a mapping; allowed: nothing with kind encoder"),
    ],
)
def test_parts_that_do_not_go_together(changes, expected):
    assert expected in message(load_model, {**MODEL, **changes})


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (LLAMA, 8030261248),
        (MISTRAL, 7241732096),  # safetensors index of Mistral-7B-v0.1
        (MIXTRAL, 46702792704),
        (QWEN2, 7615616512),  # safetensors index of Qwen2-7B
        (QWEN3, 8190735360),  # safetensors index of Qwen3-8B
        (QWEN2_MOE, 14315784192),  # safetensors index of Qwen1.5-MoE-A2.7B
        (QWEN3_MOE, 235e9),
        (DEEPSEEK, 671e9),
        (DEEPSEEK_V2_LITE, 15.7e9),  # its model card
        (GPT2, 1557611200),
        (OPT, 30e9),
        (BERT, 336e6),
        (GEMMA, 8537680896),  # safetensors index of gemma-7b
        (GEMMA2, 2614341888),  # safetensors index of gemma-2-2b
        (GEMMA3, 999885952),  # safetensors index of gemma-3-1b-it
        (GPT_OSS, 116.83e9),  # arXiv:2508.10925, table 1
        (MINISTRAL, 8.02e9),  # its model card: 8,019,808,256
        (NEOX, 20.55e9),  # arXiv:2204.06745: 20B parameters; 20,554,567,680 in its table 1
    ],
)
def test_config_json_gives_the_published_parameters(config, published, tmp_path):
    model = load_model(put(tmp_path, config, "config.json"))
    assert model.parameters() == pytest.approx(published, rel=0.005)
    if published % 10**6:
        assert model.parameters() == published
    assert model.name == tmp_path.name


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("llama3-8b", LLAMA),
        ("mixtral-8x7b", MIXTRAL),
        ("qwen3-235b-a22b", QWEN3_MOE),
        ("deepseek-v3", DEEPSEEK),
        ("gpt2-xl", GPT2),
        ("opt-30b", OPT),
        ("bert-large", BERT),
        ("gpt-oss-120b", GPT_OSS),
        ("mistral-7b", MISTRAL),
    ],
)
def test_config_json_and_catalog_describe_the_same_model(name, config):
    notes = {"name": "x", "source": "", "published_parameters": None, "max_seq_len": None}
    read = load_model(config)
    if name == "gpt-oss-120b":  # the catalog leaves out 0.00001 of its parameters
        assert read.moe is not None and read.moe.router_bias and read.sinks
        notes |= {"sinks": False, "moe": read.moe.replace(router_bias=False)}
    assert read.replace(**notes) == load_model(name).replace(**notes)


def test_config_json_is_known_by_its_architecture_and_named_by_its_path():
    config = {**LLAMA, "architectures": ["LlamaForCausalLM"], "_name_or_path": "org/model-8b"}
    del config["model_type"]
    assert load_model(config).name == "model-8b"
    for known in ("Qwen3MoeForCausalLM", "GPT2LMHeadModel", "BertModel", "GPTNeoXForCausalLM"):
        text = message(load_model, {"architectures": [known]})
        assert "missing" in text and "model_type" not in text


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({**LLAMA, "model_type": "frob", "a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1},
         "model_type: got 'frob'; allowed: 83 types (docs/formats.md), layers measured as"),
        ({"architectures": ["FooForCausalLM"]}, "got ['FooForCausalLM']; allowed: 83 types"),
        ({**LLAMA, "model_type": 7}, "model_type: got 7"),
        (changed(LLAMA, "hidden_size", ...), "hidden_size: missing; allowed: a whole number"),
        ({**LLAMA, "hidden_size": "big"}, "hidden_size: got 'big'"),
        ({**LLAMA, "hidden_size": -1}, "hidden_size: got -1; allowed: a whole number, 1 to"),
        ({**LLAMA, "num_key_value_heads": 5}, "num_key_value_heads: got 5; allowed: a divisor"),
        ({**LLAMA, "tie_word_embeddings": "no"}, "tie_word_embeddings: got 'no'"),
        ({**QWEN3_MOE, "mlp_only_layers": [5]}, "mlp_only_layers: got [5]; allowed: [] or"),
        ({**QWEN3_MOE, "num_experts_per_tok": 500}, "num_experts_per_tok: got 500; allowed: 1 to"),
        ({**DEEPSEEK, "moe_layer_freq": 2}, "moe_layer_freq: got 2; allowed: 1"),
        ({**DEEPSEEK, "first_k_dense_replace": 61}, "first_k_dense_replace"),
        ({**OPT, "do_layer_norm_before": False}, "do_layer_norm_before: got False; allowed: True"),
        ({**OPT, "word_embed_proj_dim": 512}, "word_embed_proj_dim: got 512; allowed: 7168"),
        ({**GPT2, "add_cross_attention": True}, "add_cross_attention: got True"),
        ({**BERT, "position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({**NEOX, "attention_bias": False}, "attention_bias: got False; allowed: True"),
        ({**MISTRAL, "sliding_window": "wide"}, "sliding_window: got 'wide'; allowed: a whole"),
        ({**QWEN2, "layer_types": ["full_attention"]}, "allowed: 28 entries, each full_attention"),
        ({**LLAMA, "layer_types": 32 * ["sliding_attention"]},
         "allowed: full_attention with model_type llama"),
        ({**MISTRAL, "layer_types": 32 * ["chunked_attention"]}, "layer_types: got ['chunked_"),
        ({**MISTRAL, "layer_types": 32 * ["sliding_attention"], "sliding_window": None},
         "sliding_window: got None; allowed: a whole number with these layer_types"),
        # keys that change the price and that no reader knows
        ({**LLAMA, "sliding_window": 4096},
         "sliding_window: got 4096; allowed: nothing: it is not known with model_type llama"),
        ({**LLAMA, "attention_chunk_size": 8192}, "attention_chunk_size: got 8192; allowed: noth"),
        ({**LLAMA, "num_local_experts": 16}, "num_local_experts: got 16; allowed: nothing"),
        ({**QWEN3, "num_nextn_predict_layers": 1}, "num_nextn_predict_layers: got 1; allowed: no"),
        ({**DEEPSEEK, "index_topk": 2048}, "index_topk: got 2048; allowed: nothing"),
        ({**QWEN3_MOE, "use_qk_norm": False}, "use_qk_norm: got False; allowed: True"),
        ({**GEMMA3, "use_bidirectional_attention": True}, "use_bidirectional_attention: got True"),
    ],
)
def test_a_config_json_that_cannot_be_described_says_which_field(config, expected, tmp_path):
    path = put(tmp_path, config, "config.json")
    text = message(load_model, path)
    assert text.startswith(str(path))
    assert expected in text


def windows(config, **changes):
    """The window, and the layers that have none."""
    model = load_model({**config, **changes})
    return model.window, model.full_layers


def test_windows_of_config_json():
    # huggingface/transformers 5.23.0, __post_init__ of the configuration classes
    assert windows(MISTRAL) == windows(MISTRAL, sliding_window=4096) == (4096, ())
    assert windows(MISTRAL, sliding_window=None) == (None, ())
    assert windows(MIXTRAL) == (None, ())
    assert windows(MIXTRAL, sliding_window=4096) == (4096, ())
    assert windows(MINISTRAL) == (32768, ())
    for config, layers in ((QWEN2, 28), (QWEN3, 36)):
        stated = {"sliding_window": 131072, "max_window_layers": 21}
        assert windows(config, **stated) == (None, ())  # use_sliding_window is false
        used = {**stated, "use_sliding_window": True}
        assert windows(config, **used) == (131072, tuple(range(21)))
        assert windows(config, **{**used, "max_window_layers": layers}) == (None, ())
        types = [("full" if n % 4 == 3 else "sliding") + "_attention" for n in range(layers)]
        assert windows(config, **used, layer_types=types) == (131072, tuple(range(3, layers, 4)))
    used = {"use_sliding_window": True, "max_window_layers": 21}
    odd = tuple(n for n in range(24) if n % 2 or n >= 21)
    assert windows(QWEN2_MOE, **used) == (4096, odd)
    assert windows(QWEN3_MOE, **used) == (4096, ())
    assert windows(GEMMA2) == (4096, tuple(range(1, 26, 2)))
    assert windows(GPT_OSS) == (128, tuple(range(1, 36, 2)))
    assert windows(GEMMA3) == (512, (5, 11, 17, 23))
    assert windows(GEMMA3, sliding_window_pattern=2) == (512, tuple(range(1, 26, 2)))
    assert windows(LLAMA, layer_types=32 * ["full_attention"]) == (None, ())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"window": 0}, "window: got 0; allowed: at least 1"),
        ({"full_layers": [0]}, "full_layers: got (0,); allowed: nothing without a window"),
        ({"window": 8, "full_layers": [2]}, "full_layers: got 2; allowed: 0 to 1, the layers"),
        ({"window": 8, "kind": "encoder"}, "window: got 8; allowed: nothing with kind encoder"),
    ],
)
def test_windows_that_a_model_cannot_have(changes, expected):
    assert expected in message(load_model, {**MODEL, **changes})


@pytest.mark.parametrize("model_type", NOTES)
def test_published_files_have_further_keys_that_cost_nothing(model_type):
    config = next(config for config in CONFIGS if config["model_type"] == model_type)
    assert load_model({**config, **NOTES[model_type]}).replace(name="x") == (
        load_model(config).replace(name="x"))


def test_unknown_keys_that_say_no_are_ignored():
    empty = {"new": None, "newer": False, "newest": 0, "last": [], "_private": 3, "unsloth_x": 1}
    assert load_model({**LLAMA, **empty}) == load_model(LLAMA)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Llama-3.1-8B", "llama3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama3.1-8b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama2-7b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", None),
        ("Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("google/gemma-2-9b-it", "gemma2-9b"),
        ("org/unheard-of-7b", None),
    ],
)
def test_a_name_on_hugging_face_says_what_to_do(name, known):
    text = message(load_model, name)
    assert f"hf download {name} config.json" in text and "suffix" not in text
    assert ("in the catalog" in text) == (known is not None)
    assert known is None or f"allowed: {known}, the same model in the catalog; or" in text


def test_a_folder_with_a_config_json_is_read(tmp_path, monkeypatch):
    folder = tmp_path / "org" / "Llama-3.1-8B"
    folder.mkdir(parents=True)
    assert "is a folder without config.json; allowed" in message(load_model, folder)
    put(folder, LLAMA, "config.json")
    for path in (folder, str(folder), f"{folder}/"):
        assert load_model(path).name == "Llama-3.1-8B"
    monkeypatch.chdir(tmp_path)  # a folder named like a model there
    assert load_model("org/Llama-3.1-8B").name == "Llama-3.1-8B"
    assert "no such file" in message(load_model, "org/other.json")


def test_details_of_config_json():
    assert load_model({**LLAMA, "num_key_value_heads": None}).kv_heads == 32
    assert load_model({**LLAMA, "head_dim": None}).head_dim == 128
    assert load_model({**LLAMA, "attention_bias": True}).qkv_bias
    assert load_model({**LLAMA, "attention_bias": True}).output_bias
    assert load_model({**LLAMA, "attention_bias": True, "mlp_bias": True}).bias
    assert load_model({**LLAMA, "mlp_bias": True}).mlp_bias
    both = load_model({**QWEN3_MOE, "mlp_only_layers": [0, 1]})
    assert both.moe is not None and both.moe.first_dense == 2
    step = load_model({**QWEN3_MOE, "decoder_sparse_step": 2})
    assert [step.is_moe_layer(i) for i in range(4)] == [False, True, False, True]
    renamed = changed({**QWEN3_MOE, "num_local_experts": 128}, "num_experts", ...)
    assert load_model(renamed).moe == load_model(QWEN3_MOE).moe
    dense = load_model({**DEEPSEEK, "n_routed_experts": None})
    assert dense.moe is None and dense.mla is not None and dense.mtp_layers == 1
    assert load_model({**BERT, "architectures": ["BertForMaskedLM"]}).pooler is False
