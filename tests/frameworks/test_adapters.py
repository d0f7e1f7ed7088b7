"""Adapters in the files of frameworks: written, read back, refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_exports_bridge import fields
from test_exports_megatron import small

import nest
from nest.errors import InputError, UnsupportedError

LORA = {"lora": {"rank": 16, "targets": ["linear_qkv", "linear_fc2"], "dropout": 0.1}}


def program(trainable: dict[str, Any], **given: Any) -> str:
    found = small({"trainable": trainable}, "megatron-bridge", zero=1, **given)
    return nest.export(found, "megatron-bridge")["plan_recipe.py"]


def test_adapters_of_megatron_bridge() -> None:
    text = program(LORA, tp=2)
    assert fields(text)["peft"] == (
        "LoRA(target_modules=['linear_qkv', 'linear_fc2'], dim=16, dropout=0.1)")
    assert "from megatron.bridge.peft.lora import LoRA\n" in text
    assert "from megatron.bridge.training.finetune import finetune\n" in text
    assert "    finetune(config=" in text and "pretrain(" not in text


def read(folder: Path, text: str, model: nest.Model | None) -> Any:
    (folder / "plan_recipe.py").write_text(text, encoding="utf-8")
    assert model is not None
    return nest.read(folder / "plan_recipe.py", model=model, devices=16)


def test_adapters_are_read_back(tmp_path: Path) -> None:
    found = small({"trainable": LORA}, "megatron-bridge", zero=1, tp=2)
    whole = found.inputs.model
    assert whole is not None
    back = read(tmp_path, program(LORA, tp=2), whole.replace(trainable=None))
    assert back.model == whole


@pytest.mark.parametrize(("old", "new", "message"), [
    ("LoRA(", "DoRA(", r"peft: got 'DoRA\(...\)'; allowed: None, LoRA\(target_modules="),
    ("dim=16", "dim=16,\n        lora_dtype='float32'", r"peft\.lora_dtype: got 'float32'"),
    ("dim=16", "dim=0", r"peft: lora\.rank: got 0; allowed: at least 1"),
    ("'linear_fc2'", "'*.layers.0.*.linear_qkv'", r"peft: lora\.targets: got '\*\.layers"),
])
def test_adapters_without_a_price(tmp_path: Path, old: str, new: str, message: str) -> None:
    model = small(stack="megatron-bridge").inputs.model
    with pytest.raises(InputError, match=message):
        read(tmp_path, program(LORA).replace(old, new), model)


@pytest.mark.parametrize(("trainable", "message"), [
    ({**LORA, "parts": ["norms"]}, "trainable.parts: "),
    ({**LORA, "layers": "0..1"}, "trainable.layers: "),
    ({**LORA, "frozen_precision": "bf16"}, "trainable.frozen_precision: "),
    ({"lora": {"rank": 16, "targets": ["q_proj"]}}, "trainable.lora.targets: got q_proj; allow"),
])
def test_what_megatron_bridge_has_no_field_for(trainable: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        program(trainable)


@pytest.mark.parametrize(("stack", "target", "trainable"), [
    ("fsdp", "fsdp2", LORA), ("deepspeed", "deepspeed", {"parts": ["norms"]}),
    ("torchtitan", "torchtitan", LORA), ("maxtext", "maxtext", {"parts": ["norms"]})])
def test_what_is_frozen_is_not_written_as_training_of_all(
    stack: str, target: str, trainable: dict[str, Any]
) -> None:
    with pytest.raises(UnsupportedError, match=r"model\.trainable: no setting of adapters"):
        nest.export(small({"trainable": trainable}, stack, recompute="full"), target)
