"""Logs: what a job printed of its configuration, as a launch file would be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import job_logs
import pytest

import nest
from nest.errors import InputError

Job = dict[str, Any]

# Model: layers, hidden, kv heads, vocabulary; job: devices, batch, tokens, format, stack; degrees:
# tp, pp, vpp, dp; samples of a device; ZeRO; recompute; sequence parallelism.
READ: dict[str, tuple[Any, ...]] = {
    "megatron": (32, 4096, 8, 128256, 16, 64, 4096, "bf16", "megatron-core", 2, 2, 4, 4, 1, 1,
                 "selective", True),
    "megatron-2021": (24, 2048, 16, 50304, 8, 64, 2048, "fp16", "megatron-2021", 4, 1, 1, 2, 2, 0,
                      "full", False),
    "megatron-deepspeed": (24, 2048, 16, 50257, 8, 64, 2048, "bf16", "megatron-deepspeed", 2, 1, 1,
                           4, 2, 1, "full", False),
    "bridge-yaml": (80, 8192, 8, 128256, 128, 128, 8192, "bf16", "megatron-bridge", 4, 4, 5, 8, 1,
                    1, "none", True),
    "bridge-summary": (80, 8192, 8, 128256, 128, 128, 8192, "bf16", "megatron-bridge", 4, 4, 5, 8,
                       1, 1, "none", True),
    "torchtitan-0.1": (32, 4096, 8, 128256, 8, 8, 8192, "bf16", "torchtitan", 2, 1, 1, 4, 2, 3,
                       "full", True),
    "torchtitan-0.2": (32, 4096, 8, 128256, 8, 8, 8192, "bf16", "torchtitan", 2, 1, 1, 4, 2, 3,
                       "selective", True),
    "torchtitan-0.3": (32, 4096, 8, 128256, 8, 16, 8192, "bf16", "torchtitan", 1, 1, 1, 8, 1, 3,
                       "full", False),
    "trainer": (32, 4096, 32, 32000, 8, 128, 4096, "bf16", "deepspeed", 1, 1, 1, 8, 4, 3, "full",
                False),
    "axolotl": (32, 4096, 32, 32000, 8, 32, 4096, "bf16", "deepspeed", 1, 1, 1, 8, 2, 2, "full",
                False),
    "maxtext": (32, 4096, 32, 32000, 16, 64, 4096, "bf16", "maxtext", 1, 1, 1, 16, 4, 3, "full",
                False),
    "gpt-neox": (24, 2048, 16, 50277, 16, 128, 2048, "bf16", "megatron-deepspeed", 2, 2, 1, 4, 4, 1,
                 "full", False),
    "nemo": (24, 2048, 16, 50257, 16, 256, 2048, "bf16", "megatron-core", 2, 2, 1, 4, 4, 1, "none",
             False),
}


def read(tmp_path: Path, text: str, **said: Any) -> nest.Reading:
    file = tmp_path / "train.log"
    file.write_bytes(text.encode())
    return nest.read(file, **said)


@pytest.mark.parametrize("name", job_logs.LOGS)
def test_each_field(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, job_logs.LOGS[name], **job_logs.SAID.get(name, {}))
    model, job, way = found.model, found.job, found.configuration
    stage = way.stages[0]
    assert (model.layers, model.hidden, model.kv_heads, model.vocab, found.devices,
            job.global_batch, job.seq_len, job.precision,
            job.stack.name.removesuffix(" (changed)"), stage.tp, way.pp, way.vpp,
            way.outer_dp * stage.dp_in, way.micro_batch // stage.dp_in, stage.zero,
            stage.recompute, stage.sp) == READ[name]
    assert {stage.cp for stage in way.stages} == {1} and found.log is not None
    cluster = nest.load_cluster("dgx-h100", devices=found.devices)
    assert nest.evaluate(model, cluster, job, way).step_time_s > 0


def test_a_log_is_its_launch_script(tmp_path: Path) -> None:
    """The table says the same as the command line that it was made of."""
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        "--ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
        "--num-query-groups 8 --kv-channels 128 --swiglu --disable-bias-linear --normalization "
        "RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights "
        "--seq-length 4096 --attention-dropout 0.0 --hidden-dropout 0.0 --max-position-embeddings "
        "4096 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel "
        "--micro-batch-size 1 --global-batch-size 64 --bf16 --use-distributed-optimizer "
        "--overlap-grad-reduce --overlap-param-gather --recompute-granularity selective "
        "--num-layers-per-virtual-pipeline-stage 4 --vocab-size 128256\n", encoding="utf-8")
    first, second = nest.read(script), read(tmp_path, job_logs.LOGS["megatron"])
    assert first.configuration == second.configuration and first.job == second.job
    assert first.model.replace(name="m") == second.model.replace(name="m")


def table(**more: Any) -> str:
    return job_logs.table({**job_logs.LLAMA, **job_logs.RUN, "padded_vocab_size": 32000, **more})


def test_values_that_change_the_cost_and_have_no_price_are_refused(tmp_path: Path) -> None:
    for name, value in (("optimizer", "lion"), ("use_torch_fsdp2", True), ("img_h", 256),
                        ("fp32_residual_connection", True), ("data_sharding", False)):
        with pytest.raises(InputError, match=r"^.*train\.log: as an argument of Megatron-LM: --"):
            read(tmp_path, table(**{name: value}))
    with pytest.raises(InputError, match="virtual_pipeline_model_parallel_size: got 8"):
        read(tmp_path, table(virtual_pipeline_model_parallel_size=8))


def test_names_of_a_fork_are_a_doubt(tmp_path: Path) -> None:
    found = read(tmp_path, table(my_kernel="fast", my_flag=False, my_zero=0))
    note = next(note for note in found.notes if "a fork's" in note)
    assert "my_kernel: 'fast'" in note and "my_flag" not in note and "my_zero" not in note
    assert not [note for note in read(tmp_path, table()).notes if "a fork's" in note]


def test_what_a_value_of_false_says(tmp_path: Path) -> None:
    plain = read(tmp_path, table(bias_swiglu_fusion=True))
    fused = read(tmp_path, table(bias_swiglu_fusion=False))
    assert not [note for note in plain.notes if "no-bias-swiglu-fusion" in note]
    assert [note for note in fused.notes if "no-bias-swiglu-fusion" in note]
    assert read(tmp_path, table(add_bias_linear=True)).model.bias
    assert read(tmp_path, table(untie_embeddings_and_output_weights=False)).model.tied_embeddings


def test_types_and_layouts_as_python_prints_them(tmp_path: Path) -> None:
    found = read(tmp_path, table(
        pipeline_model_parallel_layout="Et*16|t*16L", num_layers_per_virtual_pipeline_stage=None,
        virtual_pipeline_model_parallel_size=None, main_grads_dtype="torch.float32",
        exp_avg_dtype="torch.float32", cp_comm_type="['p2p']"))
    assert [stage.layers for stage in found.configuration.stages] == [(0, 17), (17, 34)]


def test_interleaved_lines_and_prefixes(tmp_path: Path) -> None:
    """Of other ranks, of srun, of torchrun, and colours, inside the table."""
    want = read(tmp_path, job_logs.LOGS["megatron"])
    for prefix in ("[default0]:", "[rank0]:", "0: ", "[rank0]: \x1b[36m"):
        lines = []
        for line in job_logs.LOGS["megatron"].splitlines():
            lines += [prefix + line, prefix.replace("0", "7") + "  num_layers .... 3", "noise"]
        found = read(tmp_path, "\r\n".join(lines))
        assert found.model == want.model and found.configuration == want.configuration, prefix
    for name in ("trainer", "megatron", "torchtitan-0.2"):  # of pdsh, with lines of another host
        said = job_logs.SAID.get(name, {})
        lines = [f"worker-1: {line}\nworker-2:     }}, 3"
                 for line in job_logs.LOGS[name].splitlines()]
        one, other = read(tmp_path, "\n".join(lines), **said), read(
            tmp_path, job_logs.LOGS[name], **said)
        assert one.configuration == other.configuration


def test_two_jobs_in_one_file(tmp_path: Path) -> None:
    same = read(tmp_path, table() + "\n" + table(lr=0.1, save="/tmp/other", train_iters=3))
    assert same.devices == 16
    with pytest.raises(InputError, match=r"two configurations differ \(lines 1 and \d+\) in "
                                         "global-batch-size"):
        read(tmp_path, table() + "\n" + table(global_batch_size=128))
    one = job_logs.LOGS["torchtitan-0.2"]
    with pytest.raises(InputError, match="two configurations differ .* training.seq_len"):
        read(tmp_path, one + one.replace('"seq_len": 8192', '"seq_len": 4096'), devices=8)


def test_a_cut_configuration(tmp_path: Path) -> None:
    text = table()
    for size in (len(text) // 2, len(text) - 70):
        with pytest.raises(InputError, match="is not whole: the log ends in it"):
            read(tmp_path, text[:size])
    with pytest.raises(InputError, match="is not whole: another one begins before its end"):
        read(tmp_path, text[:2000] + "\n------------------------ arguments ---------------------")
    again = read(tmp_path, text[:2000] + "\n" + text)  # of the next start
    assert again.devices == 16
    for name, last in (("torchtitan-0.2", '"training"'), ("trainer", '"gradient_clipping"'),
                       ("axolotl", '"optimizer"')):
        text = job_logs.LOGS[name]
        with pytest.raises(InputError, match="is not whole: the log ends in it"):
            read(tmp_path, text[:text.index(last)], **job_logs.SAID.get(name, {}))


def test_what_a_log_does_not_say_is_asked_for(tmp_path: Path) -> None:
    logs = job_logs.LOGS
    for name, said, option in (
            ("torchtitan-0.2", {}, "--devices N"), ("trainer", {}, "--seq-len")):
        with pytest.raises(InputError, match=option):
            read(tmp_path, logs[name], **said)
    summary = logs["bridge-summary"].replace("ffn_hidden_size: 28672", "ffn_hidden_size: 28000")
    with pytest.raises(InputError, match="--model MODEL"):
        read(tmp_path, summary)
    with pytest.raises(InputError, match="has other sizes"):
        read(tmp_path, logs["bridge-summary"], model="llama2-7b")
    with pytest.raises(InputError, match="give it by --devices N"):
        read(tmp_path, logs["bridge-summary"].replace("setting number", "number"))
    with pytest.raises(InputError, match="no configuration is printed"):
        read(tmp_path, job_logs.iteration(1, 2000.0))
    with pytest.raises(InputError, match="no JSON of DeepSpeed's engine"):
        read(tmp_path, "TrainingArguments(\nbf16=True,\nfsdp=[],\n)\n")
    with pytest.raises(InputError, match=r"--devices says 8"):
        read(tmp_path, logs["nemo"], devices=8)


def test_settings_of_the_user_come_first(tmp_path: Path) -> None:
    found = read(tmp_path, table(optimizer="lion"), variables={"optimizer": "adam"})
    assert found.job.optimizer == "adam"
    found = read(tmp_path, table(my_kernel="fast"), ignore=["my_kernel"])
    assert not [note for note in found.notes if "a fork's" in note]
    found = read(tmp_path, job_logs.LOGS["megatron"], stack="megatron-2021", vocab=50000)
    assert (found.job.stack.name, found.model.vocab) == ("megatron-2021", 50000)


def test_printed_defaults_of_maxtext_say_nothing(tmp_path: Path) -> None:
    text = job_logs.LOGS["maxtext"]
    with pytest.raises(InputError, match="weight_dtype"):
        read(tmp_path, text.replace("weight_dtype: float32", "weight_dtype: bfloat16"))
    found = read(tmp_path, text.replace("Config param steps", "Config param own_kernel: fast\n"
                                        "Config param steps"))
    assert [note for note in found.notes if "own_kernel" in note and "not known" in note]
    assert not [note for note in found.notes if "xprof_e2e" in note or "emb_dim" in note]


def test_a_log_cannot_be_improved(tmp_path: Path) -> None:
    file = tmp_path / "train.log"
    file.write_text(job_logs.LOGS["megatron"], encoding="utf-8")
    with pytest.raises(InputError, match="has no settings to change"):
        nest.improve(file, nest.load_cluster("dgx-h100", devices=16))
    other = tmp_path / "renamed"
    other.write_text(job_logs.LOGS["megatron"], encoding="utf-8")
    assert nest.read(other).devices == nest.read(other, target="log").devices == 16
