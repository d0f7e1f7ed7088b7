"""Whose a file is; files of NeMo 1, nanotron, GPT-NeoX, Axolotl, LLaMA-Factory and accelerate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import run

import nest
from nest.errors import InputError
from nest.frameworks.megatron.script import Reading
from nest.frameworks.reader import READERS, owner_of, owners
from nest.inputs import load_stack
from nest.inputs.trainable import Trainable

NEMO: dict[str, Any] = {
    "trainer": {"devices": 8, "num_nodes": 4, "precision": "bf16"},
    "model": {"micro_batch_size": 1, "global_batch_size": 64, "tensor_model_parallel_size": 4,
              "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2,
              "encoder_seq_length": 4096, "num_layers": 24, "hidden_size": 4096,
              "ffn_hidden_size": 11008, "num_attention_heads": 32, "num_query_groups": 8,
              "activation": "fast-swiglu", "normalization": "rmsnorm", "bias": False,
              "share_embeddings_and_output_weights": False, "position_embedding_type": "rope",
              "sequence_parallel": True, "megatron_amp_O2": True,
              "mcore_gpt": True, "transformer_engine": True, "hidden_dropout": 0.0,
              "attention_dropout": 0.0, "activations_checkpoint_granularity": "selective",
              "optim": {"name": "distributed_fused_adam", "overlap_grad_sync": True,
                        "sched": {"name": "CosineAnnealing"}}}}
NANOTRON: dict[str, Any] = {
    "general": {"project": "p"}, "model": {"dtype": "bfloat16", "model_config": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "tie_word_embeddings": True, "is_llama_config": True}},
    "parallelism": {"dp": 4, "tp": 2, "pp": 2, "pp_engine": "1f1b", "tp_mode": "REDUCE_SCATTER",
                    "recompute_layer": True},
    "tokens": {"micro_batch_size": 2, "batch_accumulation_per_replica": 8,
               "sequence_length": 4096},
    "optimizer": {"zero_stage": 1, "accumulate_grad_in_fp32": True}}
NEOX: dict[str, Any] = {
    "pipe-parallel-size": 2, "model-parallel-size": 2, "num-layers": 24, "hidden-size": 2048,
    "num-attention-heads": 16, "seq-length": 2048, "max-position-embeddings": 2048,
    "pos-emb": "rotary", "no-weight-tying": True, "attention-config": [[["flash"], 24]],
    "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8,
    "zero_optimization": {"stage": 1, "overlap_comm": True},
    "fp16": {"enabled": True, "fp16": True}, "checkpoint-activations": True,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-4}}}
DS: dict[str, Any] = {
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "overlap_comm": True}}
LLAMA_FACTORY: dict[str, Any] = {
    "model_name_or_path": "somebody/some-8b", "stage": "sft", "finetuning_type": "full",
    "deepspeed": "examples/ds.json", "cutoff_len": 2048, "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4, "bf16": True, "gradient_checkpointing": True}
AXOLOTL: dict[str, Any] = {
    "base_model": "somebody/some-8b", "sequence_len": 2048, "micro_batch_size": 2,
    "gradient_accumulation_steps": 4, "bf16": "auto", "optimizer": "adamw_torch_fused",
    "gradient_checkpointing": True, "deepspeed": "examples/ds.json", "datasets": [{"path": "x"}]}
ACCELERATE: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED", "num_processes": 16,
    "num_machines": 2, "mixed_precision": "bf16", "deepspeed_config": {
        "zero_stage": 2, "gradient_accumulation_steps": 4, "offload_optimizer_device": "none"}}


def written(folder: Path, data: dict[str, Any], name: str = "job.yaml") -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def read(folder: Path, data: dict[str, Any], **given: Any) -> Reading:
    (folder / "examples").mkdir(exist_ok=True)
    (folder / "examples" / "ds.json").write_text(json.dumps(DS), encoding="utf-8")
    return nest.read(written(folder, data), **given)


def changed(data: dict[str, Any], name: str, value: object) -> dict[str, Any]:
    """A copy with another value, by its name with dots."""
    first, _, rest = name.partition(".")
    return {**data, first: changed(data.get(first, {}), rest, value) if rest else value}


@pytest.mark.parametrize(("owner", "keys"), [
    ("verl", {"actor_rollout_ref": {"model": {}}, "data": {}}),
    ("verl's supervised training", {"data": {"micro_batch_size_per_gpu": 4},
                                    "trainer": {"n_gpus_per_node": 8}}),
    ("Primus", {"modules": {"pre_trainer": {"framework": "megatron"}}}),
    ("Primus", {"modules": {"post_trainer": {"framework": "megatron"}}}),
    ("Levanter", {"trainer": {"tracker": {"type": "wandb"}}, "model": {"type": "llama"}}),
    ("Levanter", {"trainer": {"mp": "f32", "num_train_steps": 100}, "model": {"type": "gpt2"}}),
    ("llm-foundry", {"max_seq_len": 2048, "device_train_microbatch_size": 8}),
    ("flame", {"model": {"config": "gla.json"}, "training": {"seq_len": 2048}}),
    ("NeMo AutoModel", {"model": {"_target_": "x"}, "step_scheduler": {"num_epochs": 1}}),
    ("a model's config.json of Hugging Face", {"model_type": "llama", "hidden_size": 8})])
def test_files_that_are_not_read_are_named(
    owner: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    """One line says whose it is and what would do; none of its keys are listed."""
    found = owner_of(keys)
    assert found is not None and (found.name, found.target) == (owner, "")
    for name in ("job.yaml", "job.yml"):
        with pytest.raises(InputError) as caught:
            nest.read(written(tmp_path, keys, name))
        message = str(caught.value)
        assert f"a file of {owner}, which NEST does not read; " in message
        assert "\n" not in message and "--ignore" not in message


@pytest.mark.parametrize(("target", "data"), [
    ("nemo", NEMO), ("nanotron", NANOTRON), ("gpt-neox", NEOX), ("trainer", LLAMA_FACTORY),
    ("trainer", AXOLOTL), ("accelerate", ACCELERATE), ("deepspeed", DS),
    ("flagscale", {"experiment": {"exp_name": "x", "task": {"type": "train"}}}),
    ("flagscale", {"system": {"tensor_model_parallel_size": 1}, "model": {"num_layers": 2}}),
    ("gpt-neox", {"data_impl": "mmap", "train_micro_batch_size_per_gpu": 4, "finetune": True}),
    ("maxtext", {"per_device_batch_size": 4}), ("maxtext", {"ici_fsdp_parallelism": 4}),
    ("torchtitan-toml", {"parallelism": {"tensor_parallel_degree": 2}})])
def test_files_that_are_read(target: str, data: dict[str, Any]) -> None:
    found = owner_of(data)
    assert found is not None and found.target == target


def test_files_of_kubernetes_have_several_documents(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    for before in ("", "---\n", "# of a job\n---\n"):
        path.write_text(f"{before}apiVersion: v1\nkind: Service\n---\napiVersion: batch/v1\n"
                        "kind: Job\n", encoding="utf-8")
        with pytest.raises(InputError, match="a file of Kubernetes without a container that has"):
            nest.read(path)
    path.write_text("# of a job\n---\n" + yaml.safe_dump(NANOTRON), encoding="utf-8")
    assert nest.read(path).devices == 16
    path.write_text("tokens: {}\n---\nparallelism: {tp: 1, pp: 1}\n", encoding="utf-8")
    with pytest.raises(InputError, match="its keys .tokens. are of no software"):
        nest.read(path)


def test_the_table_names_readers() -> None:
    for owner in owners():
        assert bool(owner.target) != bool(owner.says)
        assert not owner.target or owner.target in READERS
        assert owner.every or owner.some


def test_an_unknown_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, {"lr": 1, "layers": 2})
    _, err = run(capsys, "read", str(path), "-o", str(tmp_path / "job"), code=2)
    assert "its keys (layers, lr) are of no software that NEST knows; allowed: files of " in err
    _, err = run(capsys, "read", str(path), "-o", str(tmp_path / "job"), "--from", "maxtext",
                 "--devices", "8", code=2)
    assert "layers: it may change the cost" in err


# ---------------------------------------------------------------- NeMo 1, nanotron, GPT-NeoX


def test_nemo_is_what_its_arguments_are(tmp_path: Path) -> None:
    found = read(tmp_path, NEMO, vocab=32000)
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nproc-per-node 8 --nnodes 4 pretrain_gpt.py --micro-batch-size 1 "
        "--global-batch-size 64 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 "
        "--num-layers-per-virtual-pipeline-stage 6 --seq-length 4096 --num-layers 24 "
        "--hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 "
        "--group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm "
        "--disable-bias-linear --untie-embeddings-and-output-weights "
        "--position-embedding-type rope --sequence-parallel --bf16 --hidden-dropout 0 "
        "--attention-dropout 0 --recompute-activations --use-distributed-optimizer "
        "--use-precision-aware-optimizer --overlap-grad-reduce", encoding="utf-8")
    wanted = nest.read(script, vocab=32000)
    assert (found.job, found.configuration) == (wanted.job, wanted.configuration)
    same = {"name": "x", "source": ""}
    assert found.model.replace(**same) == wanted.model.replace(**same)
    assert any("priced as megatron-core" in note for note in found.notes)


@pytest.mark.parametrize(("more", "fused"), [
    ({"mcore_gpt": True, "transformer_engine": False, "use_flash_attention": True}, False),
    ({"mcore_gpt": False, "transformer_engine": False, "use_flash_attention": True}, True),
    ({"mcore_gpt": False, "transformer_engine": False}, False),
    ({"mcore_gpt": False, "transformer_engine": True}, True)])
def test_nemo_s_layers(more: dict[str, Any], fused: bool, tmp_path: Path) -> None:
    """Layers of Megatron-Core without Transformer Engine have no fused attention, whatever
    use_flash_attention says:
    nemo/collections/nlp/models/language_modeling/megatron_gpt_model.py:163, 447.
    """
    found = read(tmp_path, {**NEMO, "model": {**NEMO["model"], **more}}, vocab=32000)
    assert found.job.stack.flash_attention == fused


@pytest.mark.parametrize(("optim", "more", "overlaps"), [
    ({"name": "distributed_fused_adam"}, {}, (True, False)),
    ({"name": "distributed_fused_adam", "overlap_grad_sync": False, "overlap_param_sync": True},
     {}, (False, True)),
    ({"name": "mcore_distributed_optim", "overlap_param_sync": True}, {}, (False, False)),
    ({"name": "mcore_distributed_optim", "overlap_grad_sync": True, "overlap_param_gather": True},
     {}, (True, True)),
    ({"name": "fused_adam"}, {"sequence_parallel": False}, (False, False)),
    ({"name": "fused_adam"}, {"sequence_parallel": False, "pipeline_model_parallel_size": 1,
                              "virtual_pipeline_model_parallel_size": None}, (True, False))])
def test_what_nemo_s_optimizers_overlap(
    optim: dict[str, Any], more: dict[str, Any], overlaps: tuple[bool, bool], tmp_path: Path
) -> None:
    """apex's DistributedFusedAdam overlaps the reduction unless it is told not to; Megatron-Core's
    does so only when told, and gathers by another name; others reduce each gradient as it comes
    without a pipeline: nemo/collections/nlp/models/language_modeling/megatron_base_model.py:835."""
    found = read(tmp_path, {**NEMO, "model": {**NEMO["model"], "optim": optim, **more}},
                 vocab=32000)
    stack, usual = found.job.stack, load_stack("megatron-core")
    assert stack.overlap_grad_reduce == (usual.overlap_grad_reduce if overlaps[0] else 0.0)
    if optim["name"] != "fused_adam":
        assert stack.overlap_param_gather == (usual.overlap_param_gather if overlaps[1] else 0.0)
        assert stack.master_remainders == (optim["name"] == "distributed_fused_adam")


def test_nanotron(tmp_path: Path) -> None:
    found = read(tmp_path, NANOTRON)
    model, stage = found.model, found.configuration.stages[0]
    assert (model.layers, model.kv_heads, model.vocab, model.tied_embeddings, model.norm) == (
        16, 8, 128256, True, "rmsnorm")
    assert (found.devices, found.job.global_batch, found.job.seq_len) == (16, 64, 4096)
    assert (stage.tp, stage.sp, stage.zero, stage.recompute) == (2, True, 1, "full")
    assert found.configuration.pp == 2


def test_neox(tmp_path: Path) -> None:
    """Settings of DeepSpeed and of the model in one file; hyphens are underscores."""
    found = read(tmp_path, NEOX, devices=16, vocab=50432)
    model, stage = found.model, found.configuration.stages[0]
    assert (model.layers, model.ffn, model.positions, model.tied_embeddings) == (24, 8192, 0, False)
    assert (found.job.global_batch, found.job.precision) == (128, "fp16")
    assert (stage.tp, stage.zero, stage.recompute, found.configuration.pp) == (2, 1, "full", 2)
    assert found.job.stack.flash_attention
    assert not read(tmp_path, changed(NEOX, "attention-config", [[["global"], 24]]), devices=16,
                    vocab=50432).job.stack.flash_attention
    gated = {**NEOX, "activation": "swiglu", "mlp_multiple_of": 256}
    assert read(tmp_path, gated, devices=16, vocab=50432).model.ffn == 2816  # a third of 4 h each
    llama = {**gated, "hidden-size": 4096, "num-attention-heads": 32, "intermediate_size": 32768}
    assert read(tmp_path, llama, devices=16, vocab=50432).model.ffn == 11008  # configs/llama/7B.yml
    with pytest.raises(InputError, match="mlp_multiple_of: got 1; allowed: one by which"):
        read(tmp_path, {**gated, "mlp_multiple_of": 1}, devices=16, vocab=50432)
    parallel = changed(NEOX, "gpt-j-residual", True)
    with pytest.raises(InputError, match="gpt_j_residual: got True; allowed: false, or the model"):
        read(tmp_path, parallel, devices=16, vocab=50432)
    assert read(tmp_path, parallel, devices=16, model="gpt-neox-20b" if "gpt-neox-20b" in (
        nest.list_models()) else "llama2-7b").job.precision == "fp16"


@pytest.mark.parametrize("given", [
    {"precision": "fp16", "fp16": {"type": "fp16"}}, {"fp16": {"enabled": True}},
    {"precision": "bfloat16"}, {"precision": "fp32"}])
def test_formats_of_neox(given: dict[str, Any], tmp_path: Path) -> None:
    """precision turns the section of DeepSpeed on: megatron/neox_arguments/arguments.py:981."""
    data = {**{name: value for name, value in NEOX.items() if name != "fp16"}, **given}
    wanted = {"bfloat16": "bf16", "fp32": "fp32"}.get(given.get("precision", ""), "fp16")
    assert read(tmp_path, data, devices=16, vocab=50432).job.precision == wanted


@pytest.mark.parametrize(("changes", "layers"), [
    ({}, (10, 6)), ({"vocab_size": 32768}, (9, 7)), ({"num_hidden_layers": 28}, (16, 12))])
def test_stages_of_nanotron(
    changes: dict[str, Any], layers: tuple[int, int], tmp_path: Path
) -> None:
    """They share the arithmetic of layers and of the head: src/nanotron/models/base.py:216."""
    data = NANOTRON
    for name, value in changes.items():
        data = changed(data, f"model.model_config.{name}", value)
    first, last = read(tmp_path, data).configuration.stages
    assert (first.layers[1] - first.layers[0] - 1, last.layers[1] - last.layers[0] - 1) == layers


def test_sequences_of_a_stage_of_the_data(tmp_path: Path) -> None:
    stage = {"name": "long", "start_training_step": 1, "sequence_length": 4096}
    assert read(tmp_path, changed(NANOTRON, "data_stages", [stage])).job.seq_len == 4096
    longer = changed(NANOTRON, "data_stages", [{**stage, "sequence_length": 8192}])
    with pytest.raises(InputError, match="data_stages: got sequence_length 8192; allowed: 4096"):
        read(tmp_path, longer)
    assert read(tmp_path, longer, ignore=["data_stages"]).job.seq_len == 4096


@pytest.mark.parametrize(("data", "name", "value", "message"), [
    (NANOTRON, "parallelism.context_parallel_size", 2, "context_parallel_size: got 2; allowed: 1"),
    (NANOTRON, "parallelism.pp", 40, "parallelism.pp: got 40; allowed: a number of stages"),
    (NEOX, "train_impl", "dpo", "train_impl: got 'dpo'; allowed: normal"),
    (NEOX, "precision", "int8", "precision: got 'int8'; allowed: bfloat16, fp16, fp32"),
    (NEMO, "model.activation", "reglu", "activation: got 'reglu'; allowed: gelu, swiglu"),
    (NEMO, "model.megatron_amp_O2", False, "megatron_amp_O2: got False; allowed: True"),
    (NEMO, "model.num_layers", "many", "as arguments of Megatron-LM: --num-layers"),
    (NEMO, "model.mamba", 1, "model.mamba: it may change the cost"),
    (NEMO, "trainer.devices", -1, "trainer.devices: got -1; allowed: a whole number"),
    (NANOTRON, "parallelism.pp_engine", "afab", "pp_engine: got 'afab'; allowed: 1f1b"),
    (NANOTRON, "model.model_config.hidden_act", "gelu", "hidden_act: got 'gelu'; allowed: silu"),
    (NANOTRON, "parallelism.dp", None, "parallelism.dp: got None; allowed: a whole number"),
    (NEOX, "pipe_partition_method", "parameters", "pipe_partition_method: got 'parameters'"),
    (NEOX, "attention-config", [[["local"], 24]], "attention_config: got"),
    (NEOX, "norm", "scalenorm", "norm: got 'scalenorm'; allowed: layernorm, rmsnorm")])
def test_values_without_a_price(
    data: dict[str, Any], name: str, value: object, message: str, tmp_path: Path
) -> None:
    given = {"devices": 16} if data is NEOX else {}
    with pytest.raises(InputError, match=message):
        read(tmp_path, changed(data, name, value), vocab=32000, **given)


def test_defaults_are_named(tmp_path: Path) -> None:
    """NeMo's own, of settings that decide the model."""
    short = {**NEMO, "model": {name: value for name, value in NEMO["model"].items()
                               if name not in ("activation", "normalization", "megatron_amp_O2")}}
    found = read(tmp_path, short, vocab=32000)
    assert not found.model.gated and found.model.norm == "layernorm"
    [note] = [note for note in found.notes if "not in the file, the defaults" in note]
    assert "model.activation: gelu, model.normalization: layernorm" in note
    assert any("megatron_amp_O2 is not in the file" in note for note in found.notes)


def test_a_model_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="the file describes its model; allowed: without --model"):
        read(tmp_path, NEMO, model="llama3-8b")
    with pytest.raises(InputError, match="ignore: got 'parallelism.tpp'; did you mean parallelis"):
        read(tmp_path, NANOTRON, ignore=["parallelism.tpp"])
    _, err = run(capsys, "improve", str(tmp_path / "job.yaml"), "dgx-h100", "--devices", "16",
                 code=2)
    assert "NEST writes no files of nanotron; allowed: files of deepspeed, torchtitan" in err


# ---------------------------------------------------------------- with a JSON of DeepSpeed


@pytest.mark.parametrize("data", [LLAMA_FACTORY, AXOLOTL])
def test_arguments_of_the_trainer(data: dict[str, Any], tmp_path: Path) -> None:
    found = read(tmp_path, data, model="llama3-8b", devices=8)
    assert (found.job.global_batch, found.job.seq_len, found.job.precision) == (64, 2048, "bf16")
    stage = found.configuration.stages[0]
    assert (stage.zero, stage.recompute) == (3, "full")
    found = read(tmp_path, data, model="llama3-8b", devices=8, variables={
        "zero_optimization.stage": "2", "gradient_accumulation_steps": "2"})
    assert (found.job.global_batch, found.configuration.stages[0].zero) == (32, 2)


@pytest.mark.parametrize(("data", "more", "wanted"), [
    (AXOLOTL, {"sample_packing": True}, "packed"), (AXOLOTL, {"sample_packing": False}, "padded"),
    (LLAMA_FACTORY, {"neat_packing": True}, "packed"), (LLAMA_FACTORY, {}, "padded"),
    (LLAMA_FACTORY, {"packing": True}, "packed")])
def test_how_samples_fill_sequences(
    data: dict[str, Any], more: dict[str, Any], wanted: str, tmp_path: Path
) -> None:
    given = {name: value for name, value in data.items() if "packing" not in name}
    found = read(tmp_path, {**given, **more}, model="llama3-8b", devices=8)
    assert found.job.packing == wanted
    assert any("state no --lengths" in note for note in found.notes) == ("packing" in more)
    with pytest.raises(InputError, match="packing: got 'yes please'; allowed: true, false"):
        read(tmp_path, {**given, "sample_packing": "yes please"}, model="llama3-8b", devices=8)


@pytest.mark.parametrize(("data", "name", "value", "message"), [
    (LLAMA_FACTORY, "finetuning_type", "freeze", "finetuning_type: got 'freeze'; allowed: full, l"),
    (AXOLOTL, "adapter", "llama-adapter", "adapter: got 'llama-adapter'; allowed: none, lora, ql"),
    (AXOLOTL, "adapter", "lora", "lora_target_modules: missing; needed: modules with adapters"),
    (AXOLOTL, "load_in_8bit", True, "load_in_8bit: got True; allowed: False"),
    (AXOLOTL, "optimizer", "lomo", "--optim: got 'lomo'; allowed: adamw_"),
    (LLAMA_FACTORY, "deepspeed", "other/ds_z9.json", "'other/ds_z9.json' is not beside the file"),
    (LLAMA_FACTORY, "deepspeed", "../../../etc/passwd", "is not beside the file"),
    (LLAMA_FACTORY, "deepspeed", None, "deepspeed: got None; allowed: a JSON of DeepSpeed"),
    (LLAMA_FACTORY, "stage", "dpo", "stage: got 'dpo'; allowed: sft, pt"),
    (LLAMA_FACTORY, "flash_attn", "disabled", "flash_attn: got 'disabled'; allowed: auto, sdpa"),
    (LLAMA_FACTORY, "use_unsloth_gc", True, "use_unsloth_gc: got True; allowed: False"),
    (AXOLOTL, "gradient_checkpointing", "offload", "got 'offload'; allowed: true, false"),
    (AXOLOTL, "plugins", ["axolotl.integrations.kd.KDPlugin"], "plugins: got .* allowed: .*liger"),
    (AXOLOTL, "bf16", False, "tf32: got 'auto'; allowed: false, or bf16"),
    (ACCELERATE, "use_cpu", True, "use_cpu: got True; allowed: False"),
    (ACCELERATE, "distributed_type", "FSDP", "got 'FSDP'; allowed: DEEPSPEED"),
    (ACCELERATE, "deepspeed_config.offload_param_device", "cpu", "offload_param.device: got 'cpu'"),
])
def test_what_the_trainer_s_files_cannot_be(
    data: dict[str, Any], name: str, value: object, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, changed(data, name, value), model="llama3-8b", devices=8, seq_len=None)


def test_accelerate(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--set per_device_train_batch_size=N"):
        read(tmp_path, ACCELERATE, model="llama3-8b", seq_len=2048)
    found = read(tmp_path, ACCELERATE, model="llama3-8b", seq_len=2048,
                 variables={"per_device_train_batch_size": "2"})
    assert (found.devices, found.job.global_batch, found.job.precision) == (16, 128, "bf16")
    assert found.configuration.stages[0].zero == 2
    file = changed(ACCELERATE, "deepspeed_config",
                   {"deepspeed_config_file": "examples/ds.json", "zero3_init_flag": True})
    with pytest.raises(InputError, match="mixed_precision: got 'bf16' beside .*_config_file"):
        read(tmp_path, file, model="llama3-8b", seq_len=2048)
    del file["mixed_precision"]
    found = read(tmp_path, file, model="llama3-8b", seq_len=2048, variables={
        "per_device_train_batch_size": "2", "gradient_accumulation_steps": "1", "bf16": "true"})
    assert (found.devices, found.job.global_batch) == (16, 32)


def test_what_accelerate_s_files_leave_out(tmp_path: Path) -> None:
    """accelerate==1.11.0 src/accelerate/utils/dataclasses.py:1194, 1202: steps are the program's,
    ZeRO is 2."""
    data = changed(ACCELERATE, "deepspeed_config", {"offload_param_device": "none"})
    data["mixed_precision"] = False  # YAML: no
    with pytest.raises(InputError, match="--set per_device_train_batch_size=N --set gradient_accu"):
        read(tmp_path, data, model="llama3-8b", seq_len=2048)
    given = {"per_device_train_batch_size": "2", "gradient_accumulation_steps": "3"}
    found = read(tmp_path, data, model="llama3-8b", seq_len=2048, variables=given)
    assert (found.configuration.stages[0].zero, found.job.precision) == (2, "fp32")
    assert {"not in the file, the default: zero_stage: 2"} < {*found.notes}
    assert any("--set bf16=true" in note for note in found.notes)
    found = read(tmp_path, data, model="llama3-8b", seq_len=2048,
                 variables={**given, "bf16": "true"})
    assert (found.job.global_batch, found.job.precision) == (96, "bf16")


def test_what_llama_factory_s_files_leave_out(tmp_path: Path) -> None:
    """Adapters, each layer recomputed, 32 bits: src/llamafactory/hparams/finetuning_args.py:464,
    src/llamafactory/hparams/model_args.py:145; the Trainer's defaults."""
    data = {name: LLAMA_FACTORY[name] for name in (
        "model_name_or_path", "deepspeed", "finetuning_type")}
    found = read(tmp_path, data, model="llama3-8b", devices=8, target="trainer")
    assert (found.job.global_batch, found.job.seq_len, found.job.precision) == (64, 2048, "fp32")
    assert found.configuration.stages[0].recompute == "full"
    assert any("per_device_train_batch_size: 8" in note for note in found.notes)
    for more, recompute in (({"gradient_checkpointing": False}, "full"),
                            ({"disable_gradient_checkpointing": True}, "none")):
        found = read(tmp_path, {**data, **more}, model="llama3-8b", devices=8, target="trainer")
        assert found.configuration.stages[0].recompute == recompute
    del data["finetuning_type"]
    found = read(tmp_path, data, model="llama3-8b", devices=8, target="trainer")
    assert found.model.trainable == Trainable(lora={"rank": 8})
    assert any("finetuning_type: lora" in note for note in found.notes)


@pytest.mark.parametrize(("data", "more", "trainable"), [
    (LLAMA_FACTORY, {"finetuning_type": "lora", "lora_rank": 16, "lora_target": "q_proj,v_proj",
                     "lora_alpha": 32, "lora_dropout": 0.05},
     {"lora": {"rank": 16, "targets": ["q_proj", "v_proj"], "dropout": 0.05}}),
    (LLAMA_FACTORY, {"finetuning_type": "lora", "lora_target": "all", "quantization_bit": 4},
     {"lora": {"rank": 8}, "frozen_precision": "nf4"}),
    (AXOLOTL, {"adapter": "qlora", "load_in_4bit": True, "lora_r": 32, "lora_target_linear": True,
               "lora_modules_to_save": ["embed_tokens", "lm_head"]},
     {"lora": {"rank": 32}, "parts": ["embedding", "head"], "frozen_precision": "nf4"}),
    (AXOLOTL, {"adapter": "lora", "load_in_8bit": True, "lora_r": 8,
               "lora_target_modules": ["gate_proj"], "peft_layers_to_transform": [0, 1]},
     {"lora": {"rank": 8, "targets": ["gate_proj"]}, "layers": "0,1", "frozen_precision": "int8"}),
])
def test_adapters_of_the_trainer_s_files(
    data: dict[str, Any], more: dict[str, Any], trainable: dict[str, Any], tmp_path: Path
) -> None:
    found = read(tmp_path, {**data, **more}, model="llama3-8b", devices=8)
    assert found.model == nest.load_model({"base": "llama3-8b", "trainable": trainable})


@pytest.mark.parametrize(("more", "message"), [
    ({"adapter": "qlora", "lora_r": 8, "lora_target_linear": True}, "'qlora' without load_in_4bit"),
    ({"adapter": "lora", "lora_r": 8, "lora_target_modules": ["c_attn"]}, "got .c_attn.; allowed"),
    ({"adapter": "lora", "lora_target_linear": True}, r"adapters: lora\.rank: missing"),
    ({"adapter": "lora", "lora_r": 8, "lora_target_linear": True, "peft_use_dora": True},
     "peft_use_dora: it may change the cost"),
    ({"adapter": "lora", "lora_r": 8, "lora_target_linear": True, "lora_modules_to_save": ["norm"]},
     "lora_modules_to_save: got 'norm'; allowed: embed_tokens, lm_head"),
])
def test_adapters_of_axolotl_without_a_price(
    more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, {**AXOLOTL, **more}, model="llama3-8b", devices=8)


def test_what_axolotl_s_files_leave_out(tmp_path: Path) -> None:
    """bf16 where the device has it, and no recompute: src/axolotl/utils/schemas/config.py:559."""
    data = {"base_model": "somebody/some-8b", "deepspeed": "examples/ds.json", "datasets": [],
            "xformers_attention": None, "fp16": None, "fsdp_config": None}
    found = read(tmp_path, data, model="llama3-8b", devices=8)
    assert (found.job.global_batch, found.job.seq_len, found.job.precision) == (8, 512, "bf16")
    assert found.configuration.stages[0].recompute == "none"
    found = read(tmp_path, data, model="llama3-8b", devices=8, variables={"micro_batch_size": "4"})
    assert found.job.global_batch == 32
    found = read(tmp_path, {**data, "fp16": True}, model="llama3-8b", devices=8)
    assert found.job.precision == "fp16"


@pytest.mark.parametrize(("name", "value", "message"), [
    ("gradient_accumulation_steps", 8, "got 8, and gradient_accumulation_steps is 4; allowed: the"),
    ("gradient_accumulation_steps", None, "got 1, and gradient_accumulation_steps is 4; allowed"),
    ("bf16.enabled", False, "bf16.enabled: got False, and bf16 is True; allowed: the same, or"),
    ("fp16.enabled", True, "fp16.enabled: got True, and fp16 is False"),
    ("zero_optimization.stage", "auto", "zero_optimization.stage: got 'auto', which Hugging")])
def test_a_json_that_contradicts_the_arguments(
    name: str, value: object, message: str, tmp_path: Path
) -> None:
    """The Trainer refuses it (src/transformers/integrations/deepspeed.py:128), or accelerate takes
    1 (src/accelerate/utils/dataclasses.py:1237)."""
    data = {one: there for one, there in changed(DS, name, value).items() if there is not None}
    (tmp_path / "ds.json").write_text(json.dumps(data), encoding="utf-8")
    path = written(tmp_path, changed(LLAMA_FACTORY, "deepspeed", "ds.json"))
    with pytest.raises(InputError, match=message):
        nest.read(path, model="llama3-8b", devices=8)


@pytest.mark.parametrize(("words", "precision"), [
    ("--bf16 True", "bf16"), ("--bf16 False --fp16 True", "fp16"), ("--bf16 False", "fp32")])
def test_a_json_without_a_number_format_follows_the_arguments(
    words: str, precision: str, tmp_path: Path
) -> None:
    """accelerate==1.11.0 src/accelerate/utils/dataclasses.py:1385 to 1407."""
    (tmp_path / "ds.json").write_text(json.dumps({
        "train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 1},
        "gradient_accumulation_steps": "auto"}), encoding="utf-8")
    script = tmp_path / "run.sh"
    script.write_text("deepspeed --num_gpus 8 run.py --deepspeed ds.json "
                      f"--per_device_train_batch_size 2 {words}\n", encoding="utf-8")
    assert nest.read(script, model="llama3-8b", seq_len=2048).job.precision == precision


# ---------------------------------------------------------------- MaxText


def test_maxtext_on_tpus(tmp_path: Path) -> None:
    text = {"model_name": "llama2-7b", "hardware": "tpu", "per_device_batch_size": 4,
            "max_target_length": 4096, "attention": "flash", "remat_policy": "full"}
    found = nest.read(written(tmp_path, text), devices=64)
    assert (found.job.global_batch, found.job.stack.flash_attention) == (256, True)
    assert any("one slice" in note for note in found.notes)
    for name, value, message in (
            ("num_slices", 2, "num_slices: got 2; allowed: -1, 1"),
            ("hardware", "cpu", "hardware: got 'cpu'; allowed: gpu, gpu_multiprocess, tpu"),
            ("sparse_matmul", False, "sparse_matmul: got False; allowed: True"),
            ("logits_dot_in_fp32", True, "logits_dot_in_fp32: got True; allowed: False"),
            ("remat_policy", "minimal_with_quantization", "allowed: full, minimal_with_context, ")):
        with pytest.raises(InputError, match=message) as caught:
            nest.read(written(tmp_path, {**text, name: value}), devices=64)
        assert "--ignore" not in str(caught.value)
    qkv = {f"{name}_proj": "offload" for name in ("query", "key", "value")}
    custom, host = {"remat_policy": "custom"}, {"decoder_layer_input": "offload"}
    for given, model, modules, offload in (
            ({"remat_policy": "save_dot_except_mlpwi"}, "llama2-7b", "core_attn+norm+mlp_act+mlp",
             "none"),
            ({"remat_policy": "save_dot_except_mlpwi"}, "mixtral-8x7b",
             "core_attn+norm+mlp_act+moe", "none"),
            ({"remat_policy": "save_out_proj", "context": "device"}, "llama2-7b",
             "core_attn+norm+mlp_act+mlp+qkv_linear", "none"),
            ({"remat_policy": "qkv_proj_offloaded"}, "llama2-7b",
             "core_attn+norm+mlp_act+mlp+attn_proj", "core_attn"),
            (custom | host | {"mlpwo": "offload"}, "llama2-7b", "", "checkpoints"),
            (custom | {"key_proj": "device"}, "llama2-7b", "", "none"),
            (custom | {"context": "offload", "mlpwo": "offload"}, "llama2-7b",
             "norm+mlp_act+mlp+qkv_linear+attn_proj", "core_attn+attn_proj"),
            (custom | host | qkv | {"moe_mlpwi_0": "device", "moe_mlpwi_1": "device"},
             "mixtral-8x7b", "core_attn+norm+mlp_act+attn_proj", "qkv_linear+core_attn"),
            (custom | {"out_proj": "offload", "mlpwi_0": "offload", "mlpwi_1": "device"},
             "mixtral-8x7b", "core_attn+norm+mlp_act+moe+qkv_linear", "mlp_norm"),
            (custom | {"out_proj": "offload"}, "llama2-7b",
             "core_attn+norm+mlp_act+mlp+qkv_linear", "none")):
        found = nest.read(written(tmp_path, {**text, **given, "model_name": model}), devices=64)
        stage = found.configuration.stages[0]
        assert "+".join(stage.recompute_modules * (stage.recompute != "full")) == modules
        assert found.configuration.offload == offload
        assert any("key_proj: priced as running" in one for one in found.notes) == (
            "key_proj" in given and "query_proj" not in given)
        assert any("out_proj: on the host, priced as kept" in one for one in found.notes) == (
            "out_proj" in given and model == "llama2-7b")
    with pytest.raises(InputError, match="out_proj: got 'host'; allowed: remat, device, offload"):
        nest.read(written(tmp_path, text | custom | {"out_proj": "host"}), devices=64)
    with pytest.raises(InputError, match="override_model_config: got true, with base_emb_dim"):
        nest.read(written(tmp_path, {**text, "override_model_config": True, "base_emb_dim": 64}),
                  devices=64)


def test_maxtext_without_its_base(tmp_path: Path) -> None:
    """base.yml is MaxText's own; settings of the user have no dots."""
    script = tmp_path / "run.sh"
    script.write_text("python3 -m maxtext.trainers.pre_train.train configs/base.yml "
                      "model_name=llama2-7b per_device_batch_size=2 remat_policy=full steps=30\n",
                      encoding="utf-8")
    found = nest.read(script, devices=8)
    assert (found.job.global_batch, found.job.seq_len) == (16, 2048)
    assert any("base.yml is not beside the script" in note for note in found.notes)
    found = nest.read(script, devices=8, variables={"max_target_length": "4096"})
    assert found.job.seq_len == 4096
    assert found.job.stack.name.startswith(load_stack("maxtext").name)
