"""Published models of every model type against their counts and those of transformers.

models.json has, for each, the keys of its config.json that say something of the architecture, their
source, the published number of parameters, and the number that huggingface/transformers 5.23.0
builds on the meta device (`test_transformers.py` repeats that where it is installed).
"""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from descriptions import CONFIGS, message

from nest.errors import InputError
from nest.inputs import load_model
from nest.inputs.huggingface.config import MODEL_TYPES
from nest.model import Operator, build_chain, model_flop

MODELS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "models.json").read_text(encoding="utf-8"))
ROUNDED = {"grok-1": 0.006, "Kimi-K3": 0.01, "DeepSeek-V4-Pro": 0.02}
"""Published counts that are rounded more: 314B stands for 315.7B, with embeddings, 2.8T for 2.78T,
1.6T for 1.573T."""


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_has_its_published_parameters(name: str) -> None:
    entry = MODELS[name]
    model = load_model(entry["config"])
    count = model.parameters()
    if "published" in entry:
        assert count == pytest.approx(entry["published"], rel=ROUNDED.get(name, 0.005))
    if "transformers" in entry:
        assert count == entry["transformers"]
    if "checkpoint" in entry:  # with prediction layers, each with tables of its own
        tables = 2 * model.mtp_layers * model.vocab * model.hidden
        assert count + model.mtp_parameters() + tables == pytest.approx(
            entry["checkpoint"], rel=0.001)
    chain = build_chain(model)
    whole = sum(chain.kinds[kind].parameters for kind in chain.stage(range(len(chain))))
    assert whole == count + model.mtp_parameters()
    assert model_flop(chain, 1024 if model.positions == 0 else min(1024, model.positions)) > 0


def test_every_model_type_has_a_model() -> None:
    types = {entry["config"]["model_type"] for entry in MODELS.values()}
    assert types | {config["model_type"] for config in CONFIGS} == {*MODEL_TYPES}


def config(name: str, **changes: Any) -> dict[str, Any]:
    return {**MODELS[name]["config"], **changes}


def test_other_names_of_a_field_are_read() -> None:
    plain = load_model(config("gpt2-xl"))
    other = {"model_type": "gpt2", "num_layers": 48, "d_model": 1600, "num_heads": 25,
             "max_position_embeddings": 1024, "vocab_size": 50257}
    assert load_model(other).replace(source="") == plain.replace(source="")
    text = message(load_model, config("gpt2-xl", hidden_size=1024))
    assert "hidden_size: got 1024; allowed: the value of n_embd, or one of the two" in text


def test_layers_that_differ_are_read_one_by_one() -> None:
    hybrid = load_model(config("Nemotron-3-Nano-30B-A3B"))
    parts = {(kind.mixer, kind.mlp): count for kind, count in hybrid.kinds.items()}
    assert parts == {("recurrence", "none"): 23, ("none", "experts"): 23, ("attention", "none"): 6}
    chunks = load_model(config("Llama-4-Maverick-17B-128E"))
    assert [chunks.window_of(n) for n in range(4)] == [8192, 8192, 8192, None]
    assert [chunks.is_moe_layer(n) for n in range(4)] == [False, True, False, True]
    unequal = load_model(config("Llama-3_3-Nemotron-Super-49B"))
    assert unequal.layer(6).mixer == "none" and unequal.layer(0).ffn == 14336
    assert unequal.sized(unequal.layer(0)).kv_heads == 8


@pytest.mark.parametrize(("name", "changes", "expected"), [
    ("Nemotron-3-Super-120B-A12B", {"mtp_hybrid_override_pattern": "*EE"},
     "mtp_hybrid_override_pattern: got '*EE'; allowed: attention, then moe"),
    ("DeepSeek-V4-Flash", {"compress_ratios": 44 * [8]}, "compress_ratios: got [8, 8"),
    ("DeepSeek-V4-Flash", {"num_key_value_heads": 2}, "num_key_value_heads: got 2; allowed: 1"),
    ("GLM-5.3", {"indexer_types": ["full"]}, "indexer_types: got ['full']; allowed: 78 entries"),
    ("GLM-5.3", {"indexer_types": None, "index_topk_pattern": "FX"}, "index_topk_pattern: got 'FX"),
    ("MiniMax-M3-text", {"moe_layer_freq": [2]}, "moe_layer_freq: got [2]; allowed: 60 entries"),
    ("Gemma-4-31B-text", {"num_kv_shared_layers": 60}, "layer_types: layers with shared_keys; a"),
    ("Gemma-4-E2B-text", {"vocab_size_per_layer_input": 8},
     "vocab_size_per_layer_input: got 8; allowed: 262144"),
    ("Falcon-H1-7B", {"mamba_d_head": 64}, "mamba_d_head: got 64; allowed: mamba_d_ssm / mamba_n"),
    ("Nemotron-3-Nano-30B-A3B", {"hybrid_override_pattern": "MX"}, "layers_block_type: missing"),
    ("Nemotron-3-Nano-30B-A3B", {"num_hidden_layers": 3}, "num_hidden_layers: got 3; allowed: 52"),
    ("gemma-3-4b", {"vision_config": 3}, "vision_config: got 3; allowed: a mapping"),
    ("gemma-3-4b", {"vision_config": {"vision_use_head": False, "num_extra": 2}},
     "vision_config.num_extra: got 2; allowed: nothing"),
    ("gemma-3-4b", {"text_config": {"model_type": "frob"}}, "text_config.model_type: got 'frob'"),
    ("MiniMax-M2.5", {"attn_type_list": 62 * [0]}, "attn_type_list: got [0, 0"),
    ("Mamba-Codestral-7B", {"num_heads": 64}, "num_heads: got 64; allowed: expand x hidden_size"),
    ("gpt-neo-1.3B", {"attention_layers": None, "attention_types": [[["odd"], 24]]},
     "attention_types: got"),
    ("DeepSeek-V3.2", {"mlp_layer_types": 61 * ["sparse"]}, "mlp_layer_types: got ['sparse'"),
    ("Llama-3_3-Nemotron-Super-49B", {"block_configs": 80 * [{"attention": 3}]},
     "block_configs: got"),
    ("gpt-neo-1.3B", {"attention_layers": None, "attention_types": [[["global"], 1e300]]},
     "attention_types: got"),
    ("Jamba-v0.1", {"num_hidden_layers": 10**7}, "num_hidden_layers: got 10000000; allowed: a who"),
    ("Nemotron-3-Nano-30B-A3B", {"hybrid_override_pattern": "M" * 10**6},
     "layers_block_type: missing"),
    ("t5-11b", {"feed_forward_proj": "odd"}, "feed_forward_proj: got 'odd'; allowed: 'relu'"),
    ("SmolLM3-3B", {"no_rope_layers": [1, 0]}, "no_rope_layers: got [1, 0]; allowed: 0 or 1"),
    ("ERNIE-4.5-21B-A3B", {"moe_layer_end_index": 20}, "moe_layer_end_index: got 20; allowed: -1"),
    ("ERNIE-4.5-21B-A3B", {"moe_layer_interval": 2}, "moe_layer_interval: got 2; allowed: 1"),
    ("Hunyuan-A13B", {"moe_topk": [8, 4]}, "moe_topk: got [8, 4]; allowed: a whole number, or the"),
    ("Hunyuan-A13B", {"num_shared_expert": 2}, "num_shared_expert: got 2; allowed: None or 1 or"),
    ("Hunyuan-A13B", {"moe_intermediate_size": 1024}, "moe_intermediate_size: got 1024; allowed"),
    ("Hunyuan-7B", {"use_qk_norm": False}, "use_qk_norm: got False; allowed: True"),
    ("Hy3-preview", {"qk_norm": False}, "qk_norm: got False; allowed: True"),
    ("Hy3-preview", {"mlp_layer_types": 80 * ["sparse"]}, "mlp_layer_types: got ['sparse'"),
    ("MiMo-V2-Flash", {"hybrid_layer_pattern": [0]}, "hybrid_layer_pattern: got [0]; allowed: 48"),
    ("MiMo-V2-Flash", {"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias: go"),
    ("Step-3.7-Flash-text", {"moe_layers_enum": "3,x"}, "moe_layers_enum: got '3,x'; allowed: n"),
    ("Step-3.7-Flash", {"vision_config": {"width": 1536}},
     "vision_config: got {'width': 1536}; allowed: nothing: the convolutions that join its p"),
    ("vit-large-patch16-224", {"image_size": 225}, "image_size: got 225; allowed: a multiple"),
])
def test_variants_that_cannot_be_described_say_which_field(
    name: str, changes: dict[str, Any], expected: str
) -> None:
    assert expected in message(load_model, config(name, **changes))


def test_an_unknown_type_says_which_known_one_it_looks_like() -> None:
    llama = config("Meta-Llama-3.1-8B", model_type="frob")
    text = message(load_model, llama)
    assert "model_type: got 'frob'; its keys are those of llama" in text
    assert "--as llama" in text
    near = message(load_model, {**llama, "attention_frob": 3})
    assert "most like llama (--as llama), but these keys are in the way: attention_frob;" in near
    read = load_model(llama, as_type="llama")
    assert read.parameters() == 8030261248
    assert "as: got 'lama'; did you mean llama?" in message(load_model, llama, as_type="lama")
    mamba = config("Mamba-Codestral-7B", model_type="frob")
    assert "its keys are those of mamba2" in message(load_model, mamba)
    v4 = config("DeepSeek-V4-Flash", model_type="deepseek_ref")
    assert "its keys are those of deepseek_v4" in message(load_model, v4)


@pytest.mark.parametrize(("given", "not_like"), [
    # Its rotation, norms and parallel parts are no keys: only its own name would speak for it.
    ({"n_layer": 30, "n_embed": 4096, "num_attention_heads": 32, "vocab_size": 32000}, "gptj"),
    (config("Hunyuan-7B"), "cohere"),
    ({**config("Llama-2-7b"), "ssm_width": 16, "time_mix": 2, "decay": 3, "taps": 4}, "llama"),
    ({"dim": 4096, "depth": 32, "vocab_size": 32000}, ""),
])
def test_no_type_is_proposed_that_is_not_like_it(given: dict[str, Any], not_like: str) -> None:
    text = message(load_model, {**given, "model_type": "frob"})
    assert "allowed: 83 types (docs/formats.md), layers measured as a profile" in text
    assert f"--as {not_like}" not in text


def test_the_layers_of_this_year_are_read_one_by_one() -> None:
    """Published files (models.json), and where two ways of writing the same are one model."""
    v4 = load_model(config("DeepSeek-V4-Flash"))
    assert [v4.layer(n).compress for n in range(5)] == [0, 0, 4, 128, 4]
    assert v4.streams == 4 and v4.layer(2).window == 128 and v4.layer(2).indexer == "own"
    named = {0: "sliding_attention", 4: "compressed_sparse_attention",
             128: "heavily_compressed_attention"}
    types = [named[ratio] for ratio in config("DeepSeek-V4-Flash")["compress_ratios"][:43]]
    other = config("DeepSeek-V4-Flash", layer_types=types)
    del other["compress_ratios"]
    assert load_model(other).layer_types == v4.layer_types
    glm = load_model(config("GLM-5.3"))
    assert [glm.layer(n).indexer for n in range(7)] == 3 * ["own"] + 3 * ["shared"] + ["own"]
    derived = load_model(config("GLM-5.3", indexer_types=None, index_topk_freq=4,
                                index_skip_topk_offset=3))
    assert derived == glm
    m3 = load_model(config("MiniMax-M3-text"))
    assert m3.layer(0).mlp == "dense" and m3.layer(0).indexer == "none"
    assert m3.layer(3).indexer == "own" and m3.indexer is not None and m3.indexer.top_k == 2048
    gemma = load_model(config("Gemma-4-31B"))
    assert gemma.layer(5).one_key and gemma.layer(5).window is None
    assert gemma.sized(gemma.layer(5)).kv_heads == 4 and gemma.layer(0).window == 1024
    ultra = load_model(config("Nemotron-3-Ultra-550B-A55B"))
    assert ultra.moe is not None and ultra.moe.latent == 2048
    assert ultra.prediction_kind.parts == 2 and ultra.layer(107).parts == 1
    mimo = load_model(config("MiMo-V2-Flash"))
    assert mimo.sized(mimo.layer(1)).kv_heads == 8 and mimo.layer(1).window == 129
    assert mimo.sized(mimo.layer(1)).sinks and not mimo.sized(mimo.layer(0)).sinks
    assert mimo.layer(0).mlp == "dense" and mimo.value_dim == 128
    small = load_model(config("Gemma-4-E2B-text"))
    assert small.layer(15).shared_keys and not small.layer(14).shared_keys
    assert small.sized(small.layer(15)).ffn == 12288 and small.first_sharing == 15
    # 35 x 256 inputs of the layers and 1,536 elements of keys and values are 5.8 and 1 states.
    assert [small.carried(n) for n in (-1, 13, 14, 33, 34)] == [7, 5, 6, 3, 1]
    step = load_model(config("Step-3.7-Flash"))
    assert step.sized(step.layer(1)).heads == 96 and step.layer(4).window is None
    assert step.prediction_kind.mlp == "dense" and step.mtp_layers == 3
    k3 = load_model(config("Kimi-K3"))
    assert (k3.carried(0), k3.carried(11), k3.carried(12), k3.carried(92)) == (2, 2, 3, 9)
    assert k3.active_parameters() == pytest.approx(104.2e9, rel=0.02)


def test_operators_of_the_layers_of_this_year() -> None:
    """Widths by hand: MiMo-V2 (192 of queries and keys, 128 of values; 8 heads in a window),
    Step-3.7 (96 heads in a window), Gemma 4 E2B (35 x 256 inputs of layers)."""
    def ops(name: str, layer: int) -> dict[str, Operator]:
        chain = build_chain(load_model(config(name)))
        return {op.name: op for op in chain.kinds[chain.order[1 + layer]].operators}

    mimo = ops("MiMo-V2-Flash", 1)
    assert mimo["key_value"].width == 8 * (192 + 128) and mimo["attention_output"].depth == 64 * 128
    assert mimo["attention_core"].attention_width == 64 * (192 + 128)
    assert mimo["attention_core"].kv_width == 8 * (192 + 128)
    assert mimo["attention_core"].parameters == 64  # sinks
    step = ops("Step-3.7-Flash", 1)
    assert (step["query"].width, step["head_gate"].width) == (96 * 128, 96)
    small = ops("Gemma-4-E2B-text", 15)
    assert {"key_value", "key_norm", "value_norm"}.isdisjoint(small)
    assert (small["mlp_up"].width, small["layer_gate"].width) == (2 * 12288, 256)
    tables = ops("Gemma-4-E2B-text", -1)
    assert tables["layer_table"].parameters == 35 * 256 * 262144


def test_lists_of_equal_entries_are_their_entry() -> None:
    """Published files have a list with an entry for each layer."""
    lists = {key: 32 * [config("Hunyuan-A13B")[key]]
             for key in ("moe_topk", "moe_intermediate_size", "num_shared_expert")}
    assert load_model(config("Hunyuan-A13B", **lists)).kinds == (
        load_model(config("Hunyuan-A13B")).kinds)


def test_only_layers_without_rotation_have_a_window_in_smollm3() -> None:
    """__post_init__ of SmolLM3Config, transformers 5.23.0."""
    plain, other = config("SmolLM3-3B"), config("SmolLM3-3B", no_rope_layers=None)
    for data in (plain, other):
        windowed = load_model({**data, "use_sliding_window": True, "sliding_window": 4096})
        assert windowed.window == 4096
        assert windowed.full_layers == tuple(n for n in range(36) if n % 4 != 3)
        assert load_model(data).window is None  # switched off


def test_an_adapter_is_no_model() -> None:
    text = message(load_model, {"peft_type": "LORA", "r": 8, "base_model_name_or_path": "a/b"})
    assert text.startswith("model: peft_type: got 'LORA'; allowed: the config.json of the whole ")
    assert "('a/b'): what is trained is `trainable` of the model" in text


def test_an_endless_time_step_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config("Mamba-Codestral-7B", time_step_limit=[0.0, float("inf")])))
    assert load_model(path).parameters() == 7285403648
    for key, value in (("hidden_size", float("inf")), ("rope_theta", float("nan")),
                       ("more", [{"a": [float("inf")]}])):
        path.write_text(json.dumps(config("Meta-Llama-3.1-8B", **{key: value})))
        assert "allowed: a finite number" in message(load_model, path)


HOSTILE = (None, True, -1, 0, 10**7, 10**40, 1e300, 0.5, "", "x" * 500, [], [None], [[1e9]],
           ["full_attention"], {}, {"a": []}, [{"attention": None}], 10**4 * [0])


@pytest.mark.parametrize("name", MODELS)
def test_any_value_of_a_key_is_read_or_refused(name: str) -> None:
    draw = random.Random(name)
    for _ in range(12):
        data = json.loads(json.dumps(MODELS[name]["config"]))
        inner = draw.choice([part for part in (data, *data.values()) if isinstance(part, dict)])
        inner[draw.choice([key for key in inner if key != "model_type"])] = draw.choice(HOSTILE)
        with contextlib.suppress(InputError):
            load_model(data).parameters()
