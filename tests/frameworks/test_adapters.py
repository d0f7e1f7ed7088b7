"""Adapters in the files of frameworks: written, read back, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_exports_bridge import fields
from test_exports_megatron import small
from test_reading_forms import TITAN
from test_reading_owners import AXOLOTL, DS, LLAMA_FACTORY
from test_reading_owners import read as owned

import nest
from nest.errors import InputError, UnsupportedError
from nest.inputs.trainable import Trainable

CUT = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
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


# ---------------------------------------------------------------- read from other software


def titan(folder: Path, converter: str) -> Any:
    text = TITAN.replace('model_spec = model_registry("8B")',
                         f'model_spec = model_registry("8B", converters=[{converter}])')
    (folder / "plan_config.py").write_text(text, encoding="utf-8")
    return nest.read(folder / "plan_config.py", function="base", devices=64)


def test_adapters_of_torchtitan(tmp_path: Path) -> None:
    """torchtitan==0.3.0 torchtitan/components/lora.py:141."""
    found = titan(tmp_path, 'Float8LinearConverter.Config(model_compile_enabled=True), '
                  'LoRAConverter.Config(rank=16, alpha=32.0, target_modules=["wq", "wkv", "wo"])')
    assert found.model.trainable == Trainable(lora={
        "rank": 16, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]})
    assert found.job.precision == "fp8"
    every = titan(tmp_path, "LoRAConverter.Config()")
    assert every.model.trainable == Trainable(lora={"rank": 8})
    assert any("the adapter of the head" in note for note in every.notes)
    for converter, message in (
            ('LoRAConverter.Config(target_modules=["lm_head"])', "target_modules: got"),
            ("LoRAConverter.Config(dropout=0.1)", "LoRAConverter: got 'dropout'; allowed: alpha")):
        with pytest.raises(InputError, match=message):
            titan(tmp_path, converter)


def trainer(folder: Path, words: str) -> Any:
    (folder / "ds.json").write_text(json.dumps(DS), encoding="utf-8")
    (folder / "run.sh").write_text(
        "deepspeed --num_gpus 8 run.py --deepspeed ds.json --bf16 True "
        f"--per_device_train_batch_size 2 {words}\n", encoding="utf-8")
    return nest.read(folder / "run.sh", model="llama3-8b", seq_len=2048)


def test_adapters_and_loss_of_trl(tmp_path: Path) -> None:
    """trl==0.25.1 trl/trainer/model_config.py:108; transformers' use_liger_kernel."""
    found = trainer(tmp_path, "--use_peft --lora_r 32 --lora_alpha 16 --load_in_4bit True "
                    "--lora_target_modules q_proj v_proj --lora_modules_to_save lm_head "
                    "--use_liger_kernel")
    assert found.model.trainable == Trainable(
        lora={"rank": 32, "targets": ["q_proj", "v_proj"], "dropout": 0.05}, parts=["head"],
        frozen_precision="nf4")
    assert found.job.stack.loss == "liger"
    assert not any("lora" in note or "liger" in note for note in found.notes)
    plain = trainer(tmp_path, "--lora_r 32 --use_peft False")
    assert plain.model.trainable is None and plain.job.stack.loss == "whole"
    for words, message in (
            ("--use_peft", "lora_target_modules: missing; needed: modules with adapters"),
            ("--use_peft --lora_target_modules c_attn", "targets: got 'c_attn'"),
            ("--use_peft --lora_target_modules q_proj --use_dora", "use_dora: got True; allowed"),
            ("--lora_rank 8", "--lora_rank: it asks for adapters, which are read by TRL's")):
        with pytest.raises(InputError, match=message):
            trainer(tmp_path, words)


@pytest.mark.parametrize(("data", "more", "loss"), [
    (AXOLOTL, {"plugins": ["axolotl.integrations.liger.LigerPlugin"]}, "whole"),
    (AXOLOTL, {"plugins": ["axolotl.integrations.liger.LigerPlugin"],
               "liger_fused_linear_cross_entropy": True}, "liger"),
    (AXOLOTL, {"plugins": [CUT]}, "cut"),
    (AXOLOTL, {"plugins": [CUT], "cut_cross_entropy": False}, "whole"),
    (LLAMA_FACTORY, {"enable_liger_kernel": True}, "liger")])
def test_losses_of_the_trainer_s_files(
    data: dict[str, Any], more: dict[str, Any], loss: str, tmp_path: Path
) -> None:
    assert owned(tmp_path, {**data, **more}, model="llama3-8b", devices=8).job.stack.loss == loss
