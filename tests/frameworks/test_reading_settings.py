"""Settings of configuration files by their effect: read, refused, or named with what they change.

What is right follows from the frameworks' sources, which the tables and the readers cite.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import nest
import nest.frameworks.settings
from nest.errors import InputError
from nest.frameworks.megatron.script import Reading
from nest.frameworks.settings import nested
from nest.inputs import load_stack
from nest.inputs.files import read_description

FOLDER = Path(nest.frameworks.settings.__file__).parent
TABLES = sorted({*FOLDER.rglob("*.yaml")} - {
    FOLDER / "owners.yaml", FOLDER / "megatron" / "settings.yaml",
    FOLDER / "capture" / "programs.yaml", FOLDER / "submitters.yaml"})
"""Of software whose settings are in files; Megatron-LM has arguments."""

TOML = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[activation_checkpoint]
mode = "full"
[compile]
enable = true
"""
TITAN = """\
from torchtitan.config import ParallelismConfig, TrainingConfig, CompileConfig
from torchtitan.trainer import Trainer
def plan():
    return Trainer.Config(
        model_spec=model_registry("8B"), training=TrainingConfig(local_batch_size=1, seq_len=4096),
        parallelism=ParallelismConfig(), compile=CompileConfig(enable=True, COMPILE), LOSS)
"""
ZERO3: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
    "bf16.enabled": True, "zero_optimization.stage": 3}
AUTO: dict[str, Any] = {
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "bf16.enabled": "auto",
    "fp16.enabled": "auto", "zero_optimization.stage": 3,
    "zero_optimization.reduce_bucket_size": "auto",
    "zero_optimization.stage3_prefetch_bucket_size": "auto"}


def toml(folder: Path, more: str = "", **given: Any) -> Reading:
    (folder / "job.toml").write_text(TOML + more, encoding="utf-8")
    return nest.read(folder / "job.toml", devices=8, **given)


def deepspeed(folder: Path, settings: dict[str, Any], **given: Any) -> Reading:
    (folder / "ds.json").write_text(json.dumps(nested(settings)), encoding="utf-8")
    return nest.read(folder / "ds.json", **{
        "devices": 8, "model": "llama3-70b", "seq_len": 1024, **given})


def note_on(found: Reading, name: str) -> str:
    [note] = [one for one in found.notes if name in one]
    return note


def test_each_table_says_why() -> None:
    """No setting is free or without a price for no reason."""
    for data in (data for path in TABLES for data in read_description(path).values()):
        for group in ("free", "small"):
            for key, value in data.get(group, {}).items():
                names, reason = (value, key) if group == "free" else (key, value)
                assert len(reason.split()) > 2 and names
        small = {name for names in data.get("small", {}) for name in names.split()}
        free = {name for names in data.get("free", {}).values() for name in names.split()}
        assert not small & free


CITATION = re.compile(r"[\w.-]+/[\w.-]+(@|==)[\w.]+|[\w-]+==[\d.]+|`nest export")


@pytest.mark.parametrize("path", TABLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_table_cites_a_source(path: Path) -> None:
    """Its project with a version or commit, and a file of it."""
    text = path.read_text(encoding="utf-8")
    tables = [part for part in re.split(r"\n\n(?=#)", text) if re.search(r"^[\w-]+:$", part, re.M)]
    assert len(tables) == len(read_description(path))
    for table in tables:
        comment = " ".join(line for line in table.splitlines() if line.startswith("#"))
        assert CITATION.search(comment), table[:80]
        assert "nest export" in comment or re.search(r"\.(py|yaml|yml)|examples", comment)


def test_effects_of_megatron_cite_files() -> None:
    """Each effect of Megatron-LM's arguments stands below its file and line."""
    path = FOLDER / "megatron" / "settings.yaml"
    part = path.read_text(encoding="utf-8").partition("\nsmall:")[2].partition("\nelsewhere:")[0]
    effects = re.findall(r"((?:  # .*\n)+)  \? >-\n", part)
    assert len(effects) == len(read_description(path)["small"])
    assert all(re.search(r"megatron/[\w/]+\.py:\d", comment) for comment in effects)


# ---------------------------------------------------------------- torchtitan


def test_the_loss_alone_is_compiled(tmp_path: Path) -> None:
    """Its layers run as they are: torchtitan/models/llama3/infra/parallelize.py:108."""
    found = toml(tmp_path, 'components = ["loss"]\n')
    assert found.job.stack == load_stack("torchtitan-eager")
    assert "layers are not compiled" in note_on(found, "compile.components")
    assert toml(tmp_path).job.stack == load_stack("torchtitan")
    assert toml(tmp_path, 'components = ["loss", "model"]\n').job.stack == load_stack("torchtitan")
    assert toml(tmp_path, variables={"compile.enable": "false"}).job.stack == (
        load_stack("torchtitan-eager"))


def test_the_model_alone_is_compiled(tmp_path: Path) -> None:
    """The loss holds what it does without the compiler."""
    stack = toml(tmp_path, 'components = ["model"]\n').job.stack
    eager, compiled = load_stack("torchtitan-eager"), load_stack("torchtitan")
    assert (stack.memory_derate, stack.loss_peak) == (compiled.memory_derate, eager.loss_peak)
    with pytest.raises(InputError, match="components: got \\['mdoel'\\]; allowed: a list of model"):
        toml(tmp_path, 'components = ["mdoel"]\n')


def test_pure_bf16(tmp_path: Path) -> None:
    """Parameters, gradients and moments have training.dtype, as torchtitan 0.2.2 documents it."""
    text = '[optimizer]\nearly_step_in_backward = true\n'
    given = {"training.dtype": "bfloat16"}
    found = toml(tmp_path, text, variables=given)
    assert "gradients less" in note_on(found, "early_step_in_backward")
    stack = found.job.stack
    assert (stack.master_copy, stack.moment_dtype, stack.fp32_shards) == (False, "bf16", False)
    assert stack.gradient_dtype == "fp32"  # that it is reduced in
    reduced = {**given, "training.mixed_precision_reduce": "bfloat16"}
    assert toml(tmp_path, variables=reduced).job.stack.gradient_dtype == "bf16"
    cluster = nest.load_cluster("dgx-h100", devices=8)
    plans = [nest.evaluate(one.model, cluster, one.job, one.configuration)
             for one in (toml(tmp_path), found)]
    [full, pure] = [plan.stages[0].memory_bytes for plan in plans]
    parameters = 8.03e9 / 8
    assert full.optimizer - pure.optimizer == pytest.approx(parameters * (8 + 2 - 4), rel=0.01)
    for wrong, message in (
            ({"training.dtype": "float16"}, "dtype: got 'float16'; allowed: float32, bfloat16"),
            ({"training.mixed_precision_reduce": "bfloat16"},
             "reduce: got 'bfloat16'; allowed: float32 with training.dtype float32"),
            ({**given, "training.mixed_precision_param": "float32"},
             "dtype: got 'bfloat16'; allowed: float32 with products in float32")):
        with pytest.raises(InputError, match=message):
            toml(tmp_path, variables=wrong)


@pytest.mark.parametrize(("given", "message"), [
    ({"compile.backend": "aot_eager"}, "compile.backend: got 'aot_eager'; allowed: inductor"),
    ({"parallelism.tensor_parallel_degree": "2", "parallelism.disable_loss_parallel": "true"},
     "disable_loss_parallel: got True; allowed: false with tensor parallelism"),
    ({"parallelism.context_parallel_degree": "2",
      "parallelism.context_parallel_load_balancer": "None"},
     "load_balancer: got None; allowed: headtail, ptrr with context parallelism"),
    ({"debug.deterministic": "true"}, "debug.deterministic: got True; allowed: False"),
    ({"training.gc_debug": "true"}, "gc_debug: got True; allowed: False"),
    ({"job.custom_config_module": "my.settings"}, "custom_config_module: got 'my.settings'"),
    ({"comm.mode": "fake_backend"}, "comm.mode: got 'fake_backend'; allowed: default"),
    ({"training.enable_cpu_offload": "true"}, "enable_cpu_offload: got True; allowed: False")])
def test_settings_that_change_the_cost_are_refused(
    given: dict[str, str], message: str, tmp_path: Path
) -> None:
    """Without advice to leave them out."""
    with pytest.raises(InputError, match=message) as caught:
        toml(tmp_path, variables=given)
    assert "--ignore" not in str(caught.value)


@pytest.mark.parametrize(("name", "value", "effect"), [
    ("optimizer.implementation", "foreach", "once more"),
    ("profiling.enable_profiling", "true", "does not say by how much")])
def test_settings_without_a_price_say_how_much(
    name: str, value: str, effect: str, tmp_path: Path
) -> None:
    note = note_on(toml(tmp_path, variables={name: value}), name)
    assert note.startswith("no price: ") and effect in note


def test_whole_layers_run_again(tmp_path: Path) -> None:
    """early_stop is off by default; the compiler leaves out what nothing reads."""
    eager = {"compile.enable": "false"}
    assert "run the last product of a dense MLP again" in note_on(
        toml(tmp_path, variables=eager), "early_stop")
    for given in ({}, {**eager, "activation_checkpoint.early_stop": "true"},
                  {**eager, "activation_checkpoint.mode": "none"}):
        assert not any("early_stop" in note for note in toml(tmp_path, variables=given).notes)


def test_heads_in_float8(tmp_path: Path) -> None:
    """Without filter_fqns the head is cast too: torchtitan/config/job_config.py:741."""
    cast = '[model]\nconverters = ["quantize.linear.float8"]\n'
    name = "quantize.linear.float8.filter_fqns"
    (tmp_path / "job.toml").write_text(
        TOML.replace("[model]\n", cast) + '[quantize.linear.float8]\n', encoding="utf-8")
    assert "up to as much faster" in note_on(nest.read(tmp_path / "job.toml", devices=8), name)
    (tmp_path / "job.toml").write_text(
        TOML.replace("[model]\n", cast) + f'[quantize.linear.float8]\n{name.rpartition(".")[2]} '
        '= ["output"]\n', encoding="utf-8")
    found = nest.read(tmp_path / "job.toml", devices=8)
    assert not any("up to as much faster" in note for note in found.notes)


@pytest.mark.parametrize("name", [
    "num_vocab_tiling: 4", "float32_qk_product: true", "compile_xla_flags: --xla_tpu_x=1"])
def test_settings_of_maxtext_without_a_bound(name: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yml"
    path.write_text("model_name: llama2-7b\nhardware: gpu\nper_device_batch_size: 2\n"
                    f"remat_policy: full\n{name}\n", encoding="utf-8")
    with pytest.raises(InputError, match=f"{name.partition(':')[0]}: got"):
        nest.read(path, devices=8)


def test_whole_logits_without_tensor_parallelism_change_nothing(tmp_path: Path) -> None:
    given = {"parallelism.disable_loss_parallel": "true"}
    assert toml(tmp_path, variables=given).job == toml(tmp_path).job


def test_a_loss_in_parts(tmp_path: Path) -> None:
    """torchtitan==0.3.0 torchtitan/components/loss.py:571."""
    def read(compile: str, loss: str) -> Reading:
        text = TITAN.replace("COMPILE", compile).replace("LOSS", loss)
        (tmp_path / "llama3").mkdir(exist_ok=True)
        path = tmp_path / "llama3" / "job.py"
        path.write_text(text, encoding="utf-8")
        return nest.read(path, devices=8)

    whole = load_stack("torchtitan").loss_peak
    found = read("", "loss=ChunkedLossWrapper.Config(num_chunks=4)")
    assert (found.job.stack.loss, found.job.stack.loss_chunks) == ("chunks", 4)
    assert found.job.stack.loss_peak == whole
    found = read("", "loss=ChunkedLossWrapper.Config()")
    assert (found.job.stack.loss, found.job.stack.loss_chunks) == ("chunks", 8)
    assert read("", "loss=CrossEntropyLoss.Config()").job.stack.loss == "whole"
    found = read('components=["loss"]', "")
    assert found.job.stack.loss_peak == load_stack("torchtitan-eager").loss_peak
    assert found.job.stack.memory_derate == load_stack("torchtitan-eager").memory_derate
    assert "one part of the logits" in note_on(
        read("", "loss=ChunkedLossWrapper.Config(num_chunks=n())"), "ChunkedLossWrapper")


# ---------------------------------------------------------------- DeepSpeed


def test_fields_are_as_good_as_their_aliases(tmp_path: Path) -> None:
    """deepspeed/runtime/config_utils.py:108."""
    names = {"prefetch_bucket_size": 10**7, "param_persistence_threshold": 10**5,
             "max_live_parameters": 10**8, "max_reuse_distance": 0,
             "gather_16bit_weights_on_model_save": True, "model_persistence_threshold": 10**9}
    short = {f"zero_optimization.{name}": value for name, value in names.items()}
    long = {f"zero_optimization.stage3_{name}": value for name, value in names.items()}
    first, second = (deepspeed(tmp_path, {**ZERO3, **more}) for more in (short, long))
    assert (first.job, first.configuration) == (second.job, second.configuration)
    assert first.job.stack.reshard_after_forward
    assert deepspeed(tmp_path, {**ZERO3, **short, "zero_optimization.stage3_max_reuse_distance": 0}
                     ).job == first.job
    with pytest.raises(InputError, match="max_reuse_distance by another name, with another value"):
        deepspeed(tmp_path, {**ZERO3, **short, "zero_optimization.stage3_max_reuse_distance": 5})


def test_what_the_trainer_fills_in_is_asked_for_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        deepspeed(tmp_path, AUTO)
    message = str(caught.value)
    for name in AUTO:
        assert name in message or AUTO[name] != "auto"
    assert ("--set per_device_train_batch_size=N --set gradient_accumulation_steps=N "
            "--set bf16=true --devices N") in message
    given = {"per_device_train_batch_size": "2", "gradient_accumulation_steps": "4",
             "bf16": "true", "gradient_checkpointing": "true"}
    found = deepspeed(tmp_path, AUTO, variables=given)
    assert (found.job.global_batch, found.job.precision) == (64, "bf16")
    assert found.configuration.stages[0].recompute == "full"
    del given["bf16"], given["gradient_checkpointing"]
    found = deepspeed(tmp_path, AUTO, variables=given, precision="bf16")
    assert found.configuration.stages[0].recompute == "none"
    assert "gradient_checkpointing=true" in note_on(found, "recompute")


def test_what_the_trainer_fills_in_by_a_script(tmp_path: Path) -> None:
    """With defaults of its arguments: src/transformers/training_args.py."""
    (tmp_path / "ds.json").write_text(json.dumps(nested(AUTO)), encoding="utf-8")
    script = tmp_path / "run.sh"
    script.write_text("deepspeed --num_gpus 8 run.py --deepspeed ds.json --bf16 True "
                      "--per_device_train_batch_size 2 --gradient_checkpointing True "
                      "--optim adamw_torch\n", encoding="utf-8")
    found = nest.read(script, model="llama3-8b", seq_len=2048)
    assert (found.job.global_batch, found.job.precision) == (16, "bf16")
    assert found.configuration.stages[0].recompute == "full"
    assert not any("optimizer is not in the files" in note for note in found.notes)
    script.write_text(script.read_text(encoding="utf-8").replace("adamw_torch", "lion_32bit"),
                      encoding="utf-8")
    with pytest.raises(InputError, match="--optim: got 'lion_32bit'; allowed: adamw_torch"):
        nest.read(script, model="llama3-8b", seq_len=2048)


def test_buckets_take_memory(tmp_path: Path) -> None:
    """ZeRO-3 has one, ZeRO-1 and 2 have two, but for ZeRO-2 in the format of gradients
    (deepspeed/runtime/zero/stage3.py:780, deepspeed/runtime/zero/stage_1_and_2.py:1253)."""
    stack = deepspeed(tmp_path, ZERO3).job.stack
    for stage, overlap, buffers in ((3, True, 1), (2, True, 2), (2, False, 1), (1, True, 2)):
        given = {**ZERO3, "zero_optimization.stage": stage,
                 "zero_optimization.overlap_comm": overlap,
                 "zero_optimization.reduce_bucket_size": 5e9}
        assert deepspeed(tmp_path, given).job.stack.workspace == (
            stack.workspace + buffers * 2 * 4.5e9)
        given["communication_data_type"] = given["data_types.grad_accum_dtype"] = "fp32"
        assert deepspeed(tmp_path, given).job.stack.workspace == (
            stack.workspace + buffers * (2 if stage == 2 else 4) * 4.5e9)
    given = {**ZERO3, "zero_optimization.reduce_bucket_size": 10**6}
    assert deepspeed(tmp_path, given).job.stack.workspace == stack.workspace


@pytest.mark.parametrize("name", ["stage3_prefetch_bucket_size", "max_live_parameters"])
def test_nothing_is_gathered_ahead(name: str, tmp_path: Path) -> None:
    """There is no bucket, or nothing may live."""
    found = deepspeed(tmp_path, {**ZERO3, f"zero_optimization.{name}": 0})
    assert found.job.stack.overlap_zero3 == 0.0
    assert deepspeed(tmp_path, ZERO3).job.stack.overlap_zero3 > 0.0


@pytest.mark.parametrize(("name", "value", "message"), [
    ("stage3_param_persistence_threshold", 10**9, "allowed: below 1048576, the elements of a pro"),
    ("offload_param.device", "cpu", r"got 'cpu'; allowed: none \(others have no price\)"),
    ("reduce_bucket_size", "big", "reduce_bucket_size: got 'big'; allowed: a whole number")])
def test_sizes_without_a_price(name: str, value: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        deepspeed(tmp_path, {**ZERO3, f"zero_optimization.{name}": value})
    assert "--ignore" not in str(caught.value)


def test_hosts_without_pinned_memory(tmp_path: Path) -> None:
    given = {**ZERO3, "zero_optimization.offload_optimizer": {"device": "cpu"}}
    assert not any("pin_memory" in note for note in deepspeed(tmp_path, given).notes)
    given["zero_optimization.offload_optimizer"]["pin_memory"] = False
    assert "not known" in note_on(deepspeed(tmp_path, given), "pin_memory")


def test_gradients_of_sequence_parallelism(tmp_path: Path) -> None:
    """They are reduced in 32 bits by default: deepspeed/runtime/engine.py:2182."""
    given = {**ZERO3, "sequence_parallel_size": 2}
    name = "seq_parallel_communication_data_type"
    assert "twice that traffic" in note_on(deepspeed(tmp_path, given), name)
    assert not any(name in note for note in deepspeed(tmp_path, {**given, name: "bf16"}).notes)
    wide = {**given, "communication_data_type": "fp32", "data_types.grad_accum_dtype": "fp32"}
    assert not any(name in note for note in deepspeed(tmp_path, wide).notes)
    assert "half of that traffic" in note_on(deepspeed(tmp_path, {**wide, name: "bf16"}), name)
    with pytest.raises(InputError, match=f"{name}: got 'int8'; allowed: fp32, fp16, bf16"):
        deepspeed(tmp_path, {**given, name: "int8"})


def test_pytorch_s_adam_on_hosts(tmp_path: Path) -> None:
    """It is not DeepSpeed's there either: deepspeed/runtime/engine.py:2380."""
    given = {**ZERO3, "optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}
    assert "not known" in note_on(deepspeed(tmp_path, given), "torch_adam")
    given["zero_optimization.offload_optimizer"] = {"device": "cpu"}
    with pytest.raises(InputError, match="torch_adam: got True; allowed: false, or the optimizer"):
        deepspeed(tmp_path, given)


@pytest.mark.parametrize(("name", "value", "note"), [
    ("comms_logger.enabled", False, "waits for the device at each collective"),
    ("flops_profiler.enabled", True, "waits for the device at the end of each micro-batch"),
    ("zero_optimization.allgather_partitions", False, "no effect on the cost"),
    ("zero_optimization.enable_sanity_checks", True, "collectives that the host waits for")])
def test_what_deepspeed_s_code_does_with_a_setting(
    name: str, value: object, note: str, tmp_path: Path
) -> None:
    """deepspeed/comm/config.py:22, deepspeed/runtime/config.py:533,
    deepspeed/runtime/zero/stage3.py:1671."""
    assert note in note_on(deepspeed(tmp_path, {**ZERO3, name: value}), name)


@pytest.mark.parametrize(("name", "value"), [
    ("zero_optimization.legacy_stage1", True), ("zero_force_ds_cpu_optimizer", False),
    ("optimizer.params.fp32_optimizer_states", False)])
def test_what_deepspeed_s_settings_cannot_be(name: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{name}: got {value}; allowed: {not value}"):
        deepspeed(tmp_path, {**ZERO3, name: value})
