"""Configurations as people write them: defaults, conditions, overrides, names of catalog models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nest
from nest.errors import InputError
from nest.frameworks.megatron.script import Reading

TITAN = """
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

STEPS = 1000


def base() -> Trainer.Config:
    model_spec = model_registry("8B")
    return Trainer.Config(
        model_spec=model_spec, optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(local_batch_size=1, seq_len=8192, steps=STEPS),
        compile=CompileConfig(enable=True), parallelism=ParallelismConfig())


def full() -> Trainer.Config:
    config = base()
    config.activation_checkpoint = FullAC.Config()
    config.parallelism.tensor_parallel_degree = 8
    if config.compile.enable:
        config.training.local_batch_size = 2
    else:
        config.training.local_batch_size = 4
    return config


def unclear() -> Trainer.Config:
    config = base()
    if len(model_registry("8B").layers) > 3:
        config.training.seq_len = 1
    return config


def changed() -> Trainer.Config:
    config = base()
    improve(config)
    return config


def muon() -> Trainer.Config:
    config = base()
    config.optimizer = muon_optimizer()
    return config
"""


def titan(folder: Path, function: str, **given: Any) -> nest.Reading:
    path = folder / "plan_config.py"
    path.write_text(TITAN, encoding="utf-8")
    return nest.read(path, function=function, devices=64, **given)


def test_functions_of_a_registry(tmp_path: Path) -> None:
    found = titan(tmp_path, "base")
    assert (found.model.name, found.job.global_batch, found.job.seq_len) == ("llama3-8b", 64, 8192)
    assert (found.job.stack.name, found.job.stack.cuda_graphs) == ("torchtitan (changed)", "step")
    [stage] = found.configuration.stages
    assert (stage.recompute, stage.zero, found.configuration.outer_dp * stage.dp_in) == (
        "selective", 3, 64)
    found = titan(tmp_path, "full")
    [stage] = found.configuration.stages
    assert (stage.recompute, stage.tp, stage.sp, found.job.global_batch) == ("full", 8, True, 16)


@pytest.mark.parametrize(("function", "wanted"), [
    ("unclear", "training.seq_len is 'config.training.seq_len = 1', which is not understood"),
    ("changed", "'improve(config)' is not understood"),
    ("muon", "optimizer: got 'muon_optimizer'; allowed: default_adamw"),
    ("nothing", "no function 'nothing'; allowed: base, full")])
def test_functions_that_are_not_understood(tmp_path: Path, function: str, wanted: str) -> None:
    with pytest.raises(InputError) as caught:
        titan(tmp_path, function)
    assert wanted in str(caught.value)
    if function == "changed":
        assert titan(tmp_path, function, ignore=["improve"]).job.seq_len == 8192


TOML = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 8
[activation_checkpoint]
mode = "none"
[parallelism]
pipeline_parallel_degree = 4
"""


@pytest.mark.parametrize(("more", "layers"), [
    # 32 layers and both ends on 4 stages: 9, 9, 8, 8 with what the ends count.
    ("", [(0, 9), (9, 18), (18, 26), (26, 34)]),
    ("pipeline_parallel_layers_per_stage = 9\n", [(0, 9), (9, 18), (18, 26), (26, 34)]),
    ("pipeline_parallel_last_stage_less_layers = 3\n", [(0, 9), (9, 18), (18, 27), (27, 34)]),
])
def test_layers_as_torchtitan_divides_them(
    tmp_path: Path, more: str, layers: list[tuple[int, int]]
) -> None:
    (tmp_path / "train.toml").write_text(TOML + more, encoding="utf-8")
    found = nest.read(tmp_path / "train.toml", devices=8)
    assert [stage.layers for stage in found.configuration.stages] == layers
    assert found.configuration.stages[0].zero == 1  # with a pipeline gradients stay whole
    (tmp_path / "train.toml").write_text(
        f'{TOML}{more}fsdp_reshard_after_forward = "always"\n', encoding="utf-8")
    with pytest.raises(InputError, match="fsdp_reshard_after_forward: got always; allowed: never"):
        nest.read(tmp_path / "train.toml", devices=8)


RECIPE = """
from megatron.bridge.recipes.common import _pretrain_common


def recipe():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("a/b").to_megatron_provider(load_weights=False)
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.virtual_pipeline_model_parallel_size = 4
    cfg.model.sequence_parallel = True
    cfg.model.recompute_granularity = "selective"
    cfg.model.cuda_graph_impl = "none"
    cfg.ddp.use_megatron_fsdp = False
    cfg.dataset.num_workers = 8
    cfg.optimizer.main_grads_dtype = torch.float32
    cfg.train.global_batch_size = 64
    return cfg
"""


@pytest.mark.parametrize(("made", "changed", "noted"), [
    ("bf16_with_fp8_current_scaling_mixed()", "", True),
    ("'bf16_with_fp8_current_scaling_mixed'", "", True),
    ("bf16_with_fp8_current_scaling_mixed()", "False", False),
    ("bf16_with_mxfp8_mixed()", "", False), ("bf16_with_mxfp8_mixed()", "True", True)])
def test_layers_of_a_recipe_in_bf16(tmp_path: Path, made: str, changed: str, noted: bool) -> None:
    """Megatron-Bridge leaves the first and the last layer in bf16 with one scale a tensor."""
    text = RECIPE.replace("    return cfg", f"    cfg.mixed_precision = {made}\n" + (
        f"    cfg.mixed_precision.first_last_layers_bf16 = {changed}\n" * bool(changed))
        + "    return cfg")
    assert "mixed_precision" in text
    path = tmp_path / "plan_recipe.py"
    path.write_text(text, encoding="utf-8")
    found = nest.read(path, function="recipe", model="llama3-8b", devices=8)
    assert any("first_last_layers_bf16" in note for note in found.notes) == noted


def changed_recipe(folder: Path, *lines: str) -> Reading:
    """A recipe with more lines."""
    path = folder / "plan_recipe.py"
    path.write_text(RECIPE.replace("    return cfg", "".join(
        f"    cfg.{line}\n" for line in lines) + "    return cfg"), encoding="utf-8")
    return nest.read(path, function="recipe", model="llama3-8b", devices=8)


@pytest.mark.parametrize(("made", "gathered", "gradients"), [
    ("bf16_mixed", "", "fp32"), ("fp16_mixed", "", "bf16"),
    ("bf16_with_fp8_delayed_scaling_mixed", "", "fp32"),
    ("bf16_with_mxfp8_mixed", "reuse_grad_buf_for_mxfp8_param_ag", "fp32"),
    ("bf16_with_fp8_subchannel_scaling_mixed", "", "fp32"),
    ("bf16_with_nvfp4_mixed", "fp4_param_gather", "fp32")])
def test_what_a_number_format_sets(
    made: str, gathered: str, gradients: str, tmp_path: Path
) -> None:
    """src/megatron/bridge/training/mixed_precision.py:185 to 419."""
    found = changed_recipe(tmp_path, f"mixed_precision = {made}()")
    assert found.job.gradient_dtype == gradients
    notes = [note for note in found.notes if note.startswith("no price: mixed_precision.")]
    assert any(gathered in note for note in notes) if gathered else not notes
    if "delayed" in made:
        assert found.job.stack.fp8_gather
        found = changed_recipe(tmp_path, f"mixed_precision = {made}()",
                               "mixed_precision.fp8_param_gather = False")
        assert not found.job.stack.fp8_gather


def test_a_number_format_with_another_scaling(tmp_path: Path) -> None:
    """Prices follow the function; a recipe of scaling that it does not have is refused."""
    made = "mixed_precision = bf16_with_mxfp8_mixed()"
    same = changed_recipe(tmp_path, made, "mixed_precision.fp8_recipe = 'mxfp8'")
    assert same.job == changed_recipe(tmp_path, made).job
    with pytest.raises(InputError, match="mixed_precision.fp8_recipe: it may change the cost"):
        changed_recipe(tmp_path, made, "mixed_precision.fp8_recipe = 'blockwise'")


def test_overlaps_of_a_configuration_come_before_those_of_the_wrapper(tmp_path: Path) -> None:
    """They are on with a distributed optimizer: src/megatron/bridge/training/comm_overlap.py:576.
    """
    off = "ddp.overlap_grad_reduce = False"
    assert changed_recipe(tmp_path, off).job.stack.overlap_grad_reduce == 0.0
    made = "comm_overlap = CommOverlapConfig(tp_comm_overlap=False)"
    assert changed_recipe(tmp_path, off, made).job.stack.overlap_grad_reduce == 0.9
    asked = made.replace(")", ", overlap_grad_reduce=False)")
    assert changed_recipe(tmp_path, asked).job.stack.overlap_grad_reduce == 0.0


def test_a_recipe_with_overrides(tmp_path: Path) -> None:
    (tmp_path / "plan_recipe.py").write_text(RECIPE, encoding="utf-8")
    found = nest.read(tmp_path / "plan_recipe.py", function="recipe", model="llama3-8b", devices=16,
                      variables={"train.micro_batch_size": "1"})
    way = found.configuration
    assert (way.pp, way.vpp, way.stages[0].tp, way.stages[0].zero) == (2, 4, 2, 1)
    assert (way.micro_batch // way.stages[0].dp_in, found.job.global_batch) == (1, 64)
    assert way.stages[0].recompute_modules == ("core_attn",)
    stack = found.job.stack
    assert (stack.gradient_dtype, stack.overlap_tp, stack.overlap_grad_reduce) == ("fp32", 0.0, 0.9)


@pytest.mark.parametrize(("settings", "devices", "wanted"), [
    ({"train_batch_size": 64}, 16, (64, 4, 1)),
    ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}, 16, (96, 2, 3)),
    ({"train_micro_batch_size_per_gpu": 2}, 16, (32, 2, 1)),
    ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1}, 16, (64, 1, 4)),
    ({"train_batch_size": 64, "gradient_accumulation_steps": 2}, 16, (64, 2, 2))])
def test_batches_of_deepspeed(
    tmp_path: Path, settings: dict[str, int], devices: int, wanted: tuple[int, int, int]
) -> None:
    import json

    (tmp_path / "ds.json").write_text(json.dumps({
        **settings, "bf16": {"enabled": True}, "zero_optimization": {
            "stage": 3, "reduce_bucket_size": 5e8, "stage3_max_reuse_distance": 1e9},
        "fp16": {"enabled": False}, "gradient_clipping": 1.0, "optimizer": {
            "type": "AdamW", "params": {"lr": 1e-5}}}), encoding="utf-8")
    found = nest.read(tmp_path / "ds.json", model="llama3-8b", seq_len=2048, devices=devices)
    way, stage = found.configuration, found.configuration.stages[0]
    micro = way.micro_batch // stage.dp_in
    assert (found.job.global_batch, micro,
            found.job.global_batch // (way.outer_dp * way.micro_batch)) == wanted
    assert (found.job.precision, found.job.optimizer, stage.zero) == ("bf16", "adam", 3)
    # 1e9 parameters of reuse are fewer than the model has: it gathers again.
    assert found.job.stack.reshard_after_forward
    assert found.job.stack.gradient_dtype == "bf16"


SCRIPT = """
STAGE=3
MICRO=4
GLOBAL=32
CONFIG=ds_config.json
cat <<EOT > $CONFIG
{
  "train_batch_size": $GLOBAL, "train_micro_batch_size_per_gpu": $MICRO,
  "zero_optimization": {"stage": $STAGE}, "fp16": {"enabled": true}
}
EOT
deepspeed --num_gpus 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 \\
  --seq-length 128 --max-position-embeddings 128 --micro-batch-size $MICRO --global-batch-size \\
  $GLOBAL --fp16 --zero-stage $STAGE --no-pipeline-parallel --lr $LR --train-iters 10 \\
  --checkpoint-activations --deepspeed --deepspeed_config $CONFIG
"""


def test_a_script_that_writes_its_json(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT, encoding="utf-8")
    found = nest.read(tmp_path / "run.sh", vocab=1000)
    assert (found.devices, found.job.global_batch, found.job.precision) == (8, 32, "fp16")
    assert (found.model.layers, found.model.ffn, found.model.positions) == (4, 2048, 128)
    assert (found.configuration.stages[0].zero, found.configuration.stages[0].recompute) == (
        3, "full")
    (tmp_path / "run.sh").write_text(SCRIPT.replace("STAGE=3", "STAGE=$(cat stage)"),
                                     encoding="utf-8")
    with pytest.raises(InputError, match=r"depends on '\$\(cat stage\)', which the text alone"):
        nest.read(tmp_path / "run.sh", vocab=1000)
    for word in ("--zero-stage=$(cat stage)", "--zero-stage $(cat stage)", "--lr 1 $(cat more)"):
        (tmp_path / "run.sh").write_text(
            SCRIPT.replace("--zero-stage $STAGE", word), encoding="utf-8")
        with pytest.raises(InputError, match="which the text alone does not decide"):
            nest.read(tmp_path / "run.sh", vocab=1000)


def test_a_yaml_of_maxtext(tmp_path: Path) -> None:
    (tmp_path / "run.yml").write_text(
        "base_config: base.yml\nhardware: gpu\nmodel_name: llama3-8b\nsteps: 3\n"
        "per_device_batch_size: 2\nici_tensor_parallelism: 2\n", encoding="utf-8")
    found = nest.read(tmp_path / "run.yml", devices=16)
    stage = found.configuration.stages[0]
    assert (found.job.global_batch, found.job.seq_len, stage.tp, stage.sp, stage.zero) == (
        32, 2048, 2, False, 3)
    assert "attention 'autoselected' is priced as fused attention" in found.notes
    with pytest.raises(InputError, match=r"an axis is -1, all devices that are left; .*--devices"):
        nest.read(tmp_path / "run.yml")
