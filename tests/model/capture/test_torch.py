"""Modules captured by torch.export; runs where torch and transformers are (`.ci/models`)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from descriptions import message

from nest.inputs import load_model
from nest.model import build_chain, model_flop
from nest.model.capture import from_torch

torch = pytest.importorskip("torch")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
MODELS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "inputs" / "models.json").read_text(encoding="utf-8"))
FAMILIES = ("Meta-Llama-3.1-8B", "Mixtral-8x7B-v0.1", "Qwen3-8B", "Qwen3-30B-A3B", "DeepSeek-V3",
            "gpt2-xl", "gpt-neox-20b", "falcon-7b", "phi-4", "opt-30b", "OLMo-2-7B", "command-r",
            "starcoder2-3b", "bert-large-uncased", "roberta-large", "t5-11b",
            "vit-large-patch16-224")
LENGTH = 256
FEW = ("num_hidden_layers", "n_layer", "num_layers")


def small(name: str) -> dict[str, Any]:
    """The published sizes with two layers."""
    config = dict(MODELS[name]["config"])
    config |= {key: 2 for key in FEW if key in config}
    config |= {key: config[key][:2] for key in ("layer_types", "mlp_layer_types") if key in config}
    return config | ({"first_k_dense_replace": 1} if "first_k_dense_replace" in config else {})


@pytest.mark.parametrize("name", FAMILIES)
def test_a_module_has_the_totals_of_its_config_json(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    data = small(name)
    fields = {key: value for key, value in data.items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(data["model_type"], **fields)
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        module = getattr(transformers, MODELS[name]["class"])._from_config(
            config, dtype=torch.bfloat16)
        tokens = torch.zeros(1, LENGTH, dtype=torch.long)
        image = torch.zeros(1, 3, 224, 224, dtype=torch.bfloat16)
    module.tie_weights()
    given = {"use_cache": False} if data["model_type"] not in ("bert", "roberta", "vit") else {}
    given |= {"decoder_input_ids": tokens} if data["model_type"] == "t5" else {}
    graph = from_torch(
        module.eval(), (image if data["model_type"] == "vit" else tokens,), kwargs=given)
    model = load_model(data).replace(mtp_layers=0)
    assert graph.parameters() == model.parameters()
    assert graph.flop == pytest.approx(model_flop(build_chain(model), LENGTH) / 3, rel=0.01)
    assert graph.bytes_per_parameter == 2
    assert graph.moved > 2 * (graph.parameters() - model.vocab * model.hidden)  # looked up
    # embeddings, heads and projections of a model are no blocks
    assert len([block for block in graph.blocks if block.name.endswith((".0", ".1"))]) >= 2


def test_repeated_blocks_and_axes() -> None:
    transformers = pytest.importorskip("transformers")
    fields = {key: value for key, value in small("Mixtral-8x7B-v0.1").items()
              if key != "model_type"}
    config = transformers.AutoConfig.for_model("mixtral", **fields)
    with torch.device("meta"):
        module = transformers.MixtralForCausalLM(config)
        tokens = torch.zeros(1, LENGTH, dtype=torch.long)
    graph = from_torch(module, (tokens,), kwargs={"use_cache": False})
    assert graph.repeated == {"model.layers.0": 2}
    axis = {op.name.split(":")[0].split(".")[-1]: op.shard for op in graph.operators
            if "layers.0" in op.name and op.shard != "none"}
    assert axis == {"q_proj": "column", "k_proj": "column", "v_proj": "column",
                    "self_attn": "heads", "o_proj": "row", "experts": "experts"}
    declared = from_torch(module, (tokens,), kwargs={"use_cache": False},
                          shard={r"lm_head": "column", r"layers\.1\.self_attn": "none"})
    head = next(op for op in declared.operators if "lm_head" in op.name)
    assert head.shard == "column" and next(
        op.shard for op in graph.operators if "lm_head" in op.name) == "none"
    assert all(op.shard == "none" for op in declared.operators if "layers.1.self_attn" in op.name)


def test_a_model_of_no_family() -> None:
    class Mixer(torch.nn.Module):  # type: ignore[misc]
        """An MLP over tokens, then one over channels (arXiv:2105.01601)."""

        def __init__(self) -> None:
            super().__init__()
            self.across = torch.nn.Sequential(
                torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
            self.along = torch.nn.Sequential(
                torch.nn.Linear(8, 24, bias=False), torch.nn.GELU(), torch.nn.Linear(24, 8))

        def forward(self, x: Any) -> Any:
            x = x + self.across(x.transpose(1, 2)).transpose(1, 2)
            return x + self.along(x)

    class Stack(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.patches = torch.nn.Conv2d(3, 8, 4, stride=4)
            self.layers = torch.nn.ModuleList(Mixer() for _ in range(5))
            self.out = torch.nn.Linear(8, 10)

        def forward(self, image: Any) -> Any:
            x = self.patches(image).flatten(2).transpose(1, 2)
            for layer in self.layers:
                x = layer(x)
            return self.out(x.mean(1))

    with torch.device("meta"):
        module, image = Stack(), torch.zeros(2, 3, 16, 16)
    graph = from_torch(module, (image,))
    layer = 2 * 2 * (2 * 8 * 16 * 32 + 2 * 16 * 8 * 24)  # 2 samples, 2 FLOP, 16 tokens of 8
    assert graph.flop == 2 * 2 * 16 * 8 * 48 + 5 * layer + 2 * 2 * 8 * 10
    assert graph.parameters() == sum(p.numel() for p in module.parameters())
    assert graph.repeated == {"layers.0": 5}
    kinds = [op.shard for op in graph.operators if op.block == "layers.0" and op.flop]
    assert kinds == ["column", "row", "column", "row"]


def test_what_cannot_be_captured_is_one_message() -> None:
    class Odd(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x if x.sum().item() > 0 else -x

    text = message(from_torch, Odd(), (torch.zeros(3),))
    assert "module: Odd: torch.export cannot capture its forward" in text
    assert "module: got 3; allowed: a torch.nn.Module" in message(from_torch, 3, ())
    assert "inputs: got 3; allowed: a tuple" in message(from_torch, Odd(), 3)
    assert "shard: got '('; allowed: a regular expression" in message(
        from_torch, Odd(), (torch.zeros(3),), shard={"(": "row"})
