"""`nest improve` of other files than Megatron-LM's: the plan to the last digit, the rest kept."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command_line import run

import nest
from nest.errors import InputError

sys.path.insert(0, str(Path(__file__).parents[1] / "stacks"))
from exported_plans import kept  # noqa: E402
from framework_plans import runnable  # noqa: E402
from improved import DEEPSPEED, TOML  # noqa: E402
from improved import TITAN as PYTHON  # noqa: E402

COUNT = int(os.environ.get("NEST_IMPROVED_FILES", "2"))
"""Random plans of a target whose files are improved."""
MOST = 8
"""Devices of such a plan: parts of a space that leave none idle are many of more."""
BRIDGE = '''"""A recipe of ours."""
from megatron.bridge.recipes.llama.h100.llama3 import llama3_8b_pretrain_2gpu_h100_bf16_config

TP = 8


def plan():
    config = llama3_8b_pretrain_2gpu_h100_bf16_config()
    config.model.tensor_model_parallel_size = TP  # a node
    config.model.pipeline_model_parallel_size = 1
    config.model.context_parallel_size = 1
    config.model.sequence_parallel = True
    config.model.recompute_granularity = "full"
    config.model.recompute_method = "uniform"
    config.model.recompute_num_layers = 1
    config.ddp.use_distributed_optimizer = True
    config.optimizer.use_distributed_optimizer = True
    config.train.global_batch_size = 64
    config.train.micro_batch_size = 1
    config.dataset.seq_length = 8192
    config.logger.log_interval = 10  # 'often'
    return config
'''
MAXTEXT = """# MaxText on GPUs
model_name: llama3-8b
hardware: gpu   # H100
run_name: "it's $c # no comment"
max_target_length: 8192
per_device_batch_size: 4.0
ici_tensor_parallelism: 8  # a node
remat_policy: full
attention: cudnn_flash_te
"""
FSDP2 = kept("fsdp2")["parallelize.py"]
for old, new in (("TP = 2\n", "TP = 8  # a node\n"), ("DP_SHARD = 8", "DP_SHARD = 2"),
                 ("MICRO_BATCHES = 8", "MICRO_BATCHES = 32")):
    assert FSDP2.count(f"\n{old}") == 1
    FSDP2 = FSDP2.replace(f"\n{old}", f"\n{new}")


class File(NamedTuple):
    """A file of a job on 16 devices, and what it does not say."""

    name: str
    text: str
    more: dict[str, Any] = {}


FILES = {
    "torchtitan-toml": File("run.toml", TOML),
    "torchtitan": File("run.py", PYTHON),
    "megatron-bridge": File("plan.py", BRIDGE),
    "maxtext": File("run.yml", MAXTEXT),
    "deepspeed": File("ds.json", DEEPSPEED, {"model": "llama3-8b", "seq_len": 8192}),
    "fsdp2": File("parallelize.py", FSDP2, {"model": "llama3-8b"}),
}
SCRIPT = """#!/bin/bash
# --tensor-model-parallel-size 8 is a comment
TP=8
cat <<EOT > ds_config.json
%s
EOT
args="--deepspeed --deepspeed_config=ds_config.json --zero-stage=1"
deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py \\
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size 1 --no-pipeline-parallel \\
    --num-layers 16 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 \\
    --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 \\
    --global-batch-size 64 --lr 3e-4 --data-path "$DATA" --bf16 \\
    --normalization rmsnorm --swiglu --disable-bias-linear \\
    --untie-embeddings-and-output-weights --use-rotary-position-embeddings \\
    --attention-dropout 0 --hidden-dropout 0 --use-flash-attn-v2 \\
    --checkpoint-activations $args
"""
CONFIG = """{
  "train_batch_size" : 64, "train_micro_batch_size_per_gpu": 1,
  "zero_optimization": {"stage": 1},
  "bf16": {"enabled": true}
}"""


@pytest.fixture(scope="module")
def cluster() -> nest.Cluster:
    return nest.load_cluster("dgx-h100", devices=16)


def written(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def step(path: Path, cluster: nest.Cluster, **more: Any) -> float:
    """Seconds of a step of a file that is read again."""
    read = nest.read(path, devices=cluster.size, **more)
    return nest.evaluate(read.model, cluster, read.job, read.configuration).step_time_s


# ---------------------------------------------------------------- formats


@pytest.mark.kernels
@pytest.mark.parametrize("target", FILES)
def test_a_file_with_the_plan_and_all_else_kept(
    target: str, tmp_path: Path, cluster: nest.Cluster
) -> None:
    """Of one that is the best already, the report says so."""
    file = FILES[target]
    path = written(tmp_path / "old", file.name, file.text)
    found = nest.improve(path, cluster, **file.more)
    assert found.plan is not None and found.faster is not None and found.faster > 0.0
    assert found.target == target and [*found.files] == [file.name] and not found.refused
    text = found.files[file.name]
    names = {one.name.rpartition(".")[2] for one in found.arguments}
    # In JSON a new last line adds a comma to the one before.
    rows = [[line.rstrip(",") for line in each.splitlines()] for each in (file.text, text)]
    for row in difflib.ndiff(*rows):
        assert row[0] in " ?" or any(name in row for name in names) or row.startswith(
            ("+ from torchtitan", "-     },", "+     }")), row
    for comment in ("$HOME", "# a node", "# of a rank", "# 'quoted'", "# H100", "'often'"):
        assert (comment in file.text) == (comment in text)
    new = written(tmp_path / "new", file.name, text)
    assert step(new, cluster, **file.more) == found.plan.step_time_s
    again = nest.improve(new, cluster, **file.more)
    assert again.plan is None and again.before is not None and not again.files
    assert again.before.step_time_s == found.plan.step_time_s
    assert "none: no plan that the stack can run is faster" in again.report()


@pytest.mark.kernels(uncompiled=True)
@pytest.mark.parametrize("target", FILES)
def test_a_space_bounds_the_plan(
    target: str, tmp_path: Path, cluster: nest.Cluster
) -> None:
    file = FILES[target]
    path = written(tmp_path, file.name, file.text)
    space = nest.SearchSpace(pp=1, tp=2, sp=True, cp=1, zero=3) if target == "torchtitan" else (
        nest.SearchSpace(pp=1, tp=4, cp=1, zero=(1, 3)))
    found = nest.improve(path, cluster, space, **file.more)
    assert found.plan is not None and not found.refused, found.report()
    assert found.plan.configuration.stages[0].tp == space.tp.smallest
    assert {one.name.rpartition(".")[2] for one in found.arguments} & {
        "tensor_parallel_degree", "tensor_model_parallel_size", "autotp_size",
        "ici_tensor_parallelism", "ici_tensor_sequence_parallelism", "TP"}
    new = written(tmp_path, file.name, found.files[file.name])
    assert step(new, cluster, **file.more) == found.plan.step_time_s


@pytest.mark.kernels
@pytest.mark.parametrize(("stack", "target"), [
    ("torchtitan", "torchtitan"), ("torchtitan", "torchtitan-toml"), ("deepspeed", "deepspeed"),
    ("megatron-deepspeed", "deepspeed"), ("megatron-bridge", "megatron-bridge"),
    ("maxtext", "maxtext"), ("fsdp", "fsdp2")])
def test_random_plans(stack: str, target: str, tmp_path: Path) -> None:
    """Exported files and scripts: never slower, said to the last digit, and then the best.

    Plans in another order than that of a list beside the script are refused.
    """
    files = {"deepspeed": "ds_config.json", "torchtitan": "plan_config.py",
             "torchtitan-toml": "plan.toml", "megatron-bridge": "plan_recipe.py",
             "maxtext": "plan.yml", "fsdp2": "parallelize.py"}
    small = [case for case in runnable(stack, 3 * COUNT, target) if case.world <= MOST]
    for number, case in enumerate(small[:COUNT]):
        assert case.plan is not None and case.files is not None
        folder = tmp_path / str(number)
        for name, text in case.files.items():
            written(folder, name, text)
        more: dict[str, Any] = {"vocab": case.model.vocab} if stack == "megatron-deepspeed" else {
            "model": case.model} if stack != "maxtext" else {}
        if stack == "deepspeed":
            more["seq_len"] = case.job.seq_len
        if stack == "torchtitan":
            more["precision"] = case.job.precision
        found = nest.improve(folder / "launch.sh", case.cluster, **more)
        assert found.before is not None
        assert found.before.step_time_s == case.plan.step_time_s
        if found.plan is None:
            continue
        assert found.plan.step_time_s < case.plan.step_time_s
        if found.refused:
            assert "another order" in found.refused[0] and not found.files
            continue
        assert {*found.files} <= {files[target], "launch.sh"}
        for name, text in found.files.items():
            written(folder, name, text)
        assert step(folder / "launch.sh", case.cluster, **more) == found.plan.step_time_s
        again = nest.improve(folder / "launch.sh", case.cluster, **more)
        assert again.plan is None or again.refused


@pytest.mark.kernels
def test_layouts(tmp_path: Path, cluster: nest.Cluster) -> None:
    """Stages say their layers; settings that divided them in another way are taken out."""
    space = nest.SearchSpace(pp=4)
    old = 'pipeline_parallel_layers_per_stage = 4\npipeline_parallel_schedule = "1F1B"'
    path = written(tmp_path, "run.toml", TOML.replace('pipeline_parallel_schedule = "1F1B"', old))
    found = nest.improve(path, cluster, space)
    assert found.plan is not None and not found.refused
    text = found.files["run.toml"]
    assert 'module_fqns_per_model_part = [\n  ["tok_embeddings", "layers.0"' in text
    assert "layers_per_stage" not in text and "pipeline_parallel_degree = 4\n" in text
    assert step(written(tmp_path, "run.toml", text), cluster) == found.plan.step_time_s
    path = written(tmp_path, "run.py", PYTHON)
    found = nest.improve(path, cluster, space)  # a pipeline excludes CUDA graphs
    text = found.files["run.py"]
    assert "disable_cuda_graphs=True,\n" in text and "['layers.29'," in text
    assert "from torchtitan.config import ParallelismConfig\n" in text
    assert found.plan is not None
    assert step(written(tmp_path, "run.py", text), cluster) == found.plan.step_time_s
    path = written(tmp_path, "plan.py", BRIDGE)
    found = nest.improve(path, cluster, space)
    assert found.plan is not None and not found.refused
    assert f"pipeline_model_parallel_layout = {found.plan.layout!r}\n" in found.files["plan.py"]
    assert step(written(tmp_path, "plan.py", found.files["plan.py"]),
                cluster) == found.plan.step_time_s


@pytest.mark.kernels
def test_overlap_is_switched_on_unless_it_is_kept(tmp_path: Path, cluster: nest.Cluster) -> None:
    path, name = written(tmp_path, "ds.json", DEEPSPEED), "zero_optimization.overlap_comm"
    more = FILES["deepspeed"].more
    found = nest.improve(path, cluster, **more)
    assert (name, "false", "true") in {(one.name, one.before, one.after)
                                       for one in found.arguments}
    kept = nest.improve(path, cluster, keep=[name], **more)
    assert name not in {one.name for one in kept.arguments}
    with pytest.raises(InputError, match="keep: got 'lr'; allowed: zero_optimization.overlap_comm"):
        nest.improve(path, cluster, keep=["lr"], **more)
    recipe = BRIDGE.replace("    return config", "    config.comm_overlap = None\n"
                            "    config.ddp.overlap_grad_reduce = False\n    return config")
    path = written(tmp_path, "plan.py", recipe)
    found = nest.improve(path, cluster, nest.SearchSpace(tp=8, sp=True, zero=1))
    text = found.files["plan.py"]
    assert "config.comm_overlap = CommOverlapConfig(tp_comm_overlap=True, " in text
    assert "from megatron.bridge.training.comm_overlap import CommOverlapConfig\n" in text
    assert found.plan is not None
    assert step(written(tmp_path, "plan.py", text), cluster) == found.plan.step_time_s


# ---------------------------------------------------------------- scripts


@pytest.mark.kernels(uncompiled=True)
@pytest.mark.parametrize("inside", [True, False])
def test_the_launch_line_of_deepspeed_follows(
    inside: bool, tmp_path: Path, cluster: nest.Cluster
) -> None:
    """With the JSON beside the script, or written by it."""
    text = SCRIPT % CONFIG
    if not inside:
        written(tmp_path, "ds_config.json", CONFIG)
        text = "\n".join(line for line in text.split("\n")
                         if line not in (*CONFIG.split("\n"), "EOT") and "cat" not in line)
    path = written(tmp_path, "run.sh", text)
    found = nest.improve(path, cluster, vocab=32000)
    assert found.plan is not None and not found.refused
    assert {*found.files} == ({"run.sh"} if inside else {"run.sh", "ds_config.json"})
    assert {"--tensor-model-parallel-size", "--micro-batch-size",
            "--checkpoint-activations"} <= {one.name for one in found.arguments}
    new = found.files["run.sh"]
    assert "# --tensor-model-parallel-size 8 is a comment\nTP=8\n" in new
    assert '--lr 3e-4 --data-path "$DATA" --bf16 \\\n' in new
    done = subprocess.run(["bash", "-n"], input=new, text=True, capture_output=True, check=True)
    assert not done.stderr
    for name, body in found.files.items():
        written(tmp_path, name, body)
    assert step(path, cluster, vocab=32000) == found.plan.step_time_s
    assert nest.improve(path, cluster, vocab=32000).plan is None


LINES = {
    "torchtitan-toml": (
        "torchrun --nnodes 2 --nproc_per_node 8 -m torchtitan.train --job.config_file run.toml \\\n"
        "  --parallelism.tensor-parallel-degree=$TP --training.steps 5 --compile.enable \\\n"
        "  --activation_checkpoint.mode full # --parallelism.tensor-parallel-degree 3\n",
        "--parallelism.tensor-parallel-degree 4 --training.steps 5 --compile.enable",
        "--activation_checkpoint.mode none # --parallelism.tensor-parallel-degree 3"),
    "maxtext": (
        "srun -n 16 python -m maxtext.train run.yml steps=5 ici_tensor_parallelism=$TP \\\n"
        "  remat_policy='full' # remat_policy=full\n",
        "run.yml steps=5 ici_tensor_parallelism=1 \\", "# remat_policy=full"),
    "megatron-bridge": (
        "torchrun --nnodes 2 --nproc_per_node 8 plan_recipe.py train.train_iters=5 \\\n"
        "  model.tensor_model_parallel_size=$TP ++model.recompute_granularity=full\n",
        "model.tensor_model_parallel_size=4", "train.train_iters=5 \\"),
}


@pytest.mark.kernels(uncompiled=True)
@pytest.mark.parametrize("target", LINES)
def test_settings_of_the_command_line_are_changed_there(
    target: str, tmp_path: Path, cluster: nest.Cluster
) -> None:
    """Numbers and words in place; others are taken out, and written in the file."""
    file, (line, *wanted) = FILES[target], LINES[target]
    name = "plan_recipe.py" if target == "megatron-bridge" else file.name
    written(tmp_path, name, file.text)
    path = written(tmp_path, "run.sh", f"TP=8\n{line}")
    found = nest.improve(path, cluster, nest.SearchSpace(pp=1, tp=4, cp=1, zero=(1, 3)))
    assert found.plan is not None and not found.refused, found.refused
    for text in (*wanted, "TP=8\n"):
        assert text in found.files["run.sh"]
    for one, text in found.files.items():
        written(tmp_path, one, text)
    assert step(path, cluster) == found.plan.step_time_s


@pytest.mark.kernels(uncompiled=True)
def test_inline_tables_of_toml(tmp_path: Path, cluster: nest.Cluster) -> None:
    text = TOML.replace('[activation_checkpoint]\nmode = "full"\n', "").replace(
        "[job]", 'activation_checkpoint = { mode = "full" }  # table\n[job]')
    path = written(tmp_path, "run.toml", text)
    found = nest.improve(path, cluster, nest.SearchSpace(pp=1, tp=4, cp=1, recompute="none"))
    assert 'activation_checkpoint = { mode = "none" }  # table\n' in found.files["run.toml"]


@pytest.mark.kernels(uncompiled=True)
def test_a_program_of_the_users_own_gets_no_new_arguments(
    tmp_path: Path, cluster: nest.Cluster
) -> None:
    """What its JSON cannot say stays as it is: here how it divides the model, and recompute."""
    written(tmp_path, "ds.json", DEEPSPEED)
    text = ("deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py --data 'a b' --deepspeed "
            "--deepspeed_config ds.json\n")
    found = nest.improve(written(tmp_path, "run.sh", text), cluster, **FILES["deepspeed"].more)
    assert found.plan is not None and [*found.files] == ["ds.json"]
    way = found.plan.configuration
    assert (way.pp, way.stages[0].recompute) == (1, "none")


# ---------------------------------------------------------------- what cannot be said


@pytest.mark.kernels
@pytest.mark.parametrize(("name", "text", "words", "why"), [
    ("run.toml", TOML, ("--set", "parallelism.tensor_parallel_degree=4"),
     "parallelism.tensor_parallel_degree: it is given besides the file"),
    ("run.toml", TOML, ("--stack", "megatron-core"), "stack megatron-core"),
    ("run.py", PYTHON + "\n\ndef mine():\n    return llama3_8b()\n", ("--function", "mine"),
     "the function mine() has no place for it"),
    ("run.sh", (SCRIPT % CONFIG).replace('"stage": 1', '"stage": $STAGE').replace(
        "TP=8", "TP=8\nSTAGE=1"), ("--vocab", "32000"), "with values of its own"),
])
def test_what_cannot_be_said_is_said_before_anything_is_written(
    name: str, text: str, words: tuple[str, ...], why: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, folder = written(tmp_path, name, text), tmp_path / "better"
    _, err = run(capsys, "improve", str(path), "dgx-h100", "--devices", "16", "-o", str(folder),
                 *words, code=3)
    assert why in err
    assert not folder.exists()


@pytest.mark.kernels
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, folder = written(tmp_path, "run.toml", TOML), tmp_path / "better"
    words = ("improve", str(path), "dgx-h100", "--devices", "16")
    out, err = run(capsys, *words, "-o", str(folder))
    assert "File " in out and "parallelism.tensor_parallel_degree" in out
    assert f"nest: written: {folder / 'run.toml'}" in err
    again = tmp_path / "again"
    out, err = run(capsys, "improve", str(folder / "run.toml"), "dgx-h100", "-o", str(again))
    assert "no plan that the stack can run is faster" in out
    assert "nothing is written" in err and not again.exists()


# ---------------------------------------------------------------- hostile


@pytest.mark.parametrize(("name", "text", "why"), [
    ("run.toml", TOML + "\n[model]\nname = 'x'\n", "malformed TOML"),
    ("run.yml", MAXTEXT + "model_name: x\n", "'model_name' is given twice"),
    ("run.yml", MAXTEXT + "a: &x 1\nb: *x\n", "alias"),
    ("ds.json", DEEPSPEED.replace("{\n", '{"bf16": {},\n', 1), "'bf16' is given twice"),
    ("ds.json", '{"a": ' * 30_000, "JSON|nested"),
    ("run.toml", TOML + "#" * 2**18, "characters; allowed: 262144"),
    ("run.py", PYTHON + "#" * 2**18, "characters; allowed: 262144"),
    ("ds.json", DEEPSPEED + " " * 2**18, "characters; allowed: 262144"),
])
def test_hostile_files(
    name: str, text: str, why: str, tmp_path: Path, cluster: nest.Cluster
) -> None:
    path = written(tmp_path, name, text)
    with pytest.raises(InputError, match=why):
        nest.improve(path, cluster, **(FILES["deepspeed"].more if "json" in name else {}))


@pytest.mark.kernels
def test_words_of_shells_and_quotes_are_left_alone(tmp_path: Path, cluster: nest.Cluster) -> None:
    """Values that no setting of a plan is, however they look; names of files too."""
    odd = "`id` $(id) ${X} \\n ' \\\" ; rm -rf / # [parallelism] mode = 1"
    for target, old in (("torchtitan-toml", 'it\'s \\"ours\\"'),
                        ("maxtext", "it's $c # no comment"), ("deepspeed", "it's \\\" $HOME"),
                        ("torchtitan", "./it's $HOME")):
        file = FILES[target]
        name = f"$(id) ' \n\"{file.name}"
        path = written(tmp_path, name, file.text.replace(old, odd))
        assert odd in path.read_text(encoding="utf-8")
        found = nest.improve(path, cluster, **file.more)
        assert odd in found.files[name]
