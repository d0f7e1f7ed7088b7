"""`nest improve`: never slower, the fastest that the stack runs, and scripts that say it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import run

import nest
from nest.errors import InfeasibleError, InputError, LimitError
from nest.frameworks.megatron import arguments as flags
from nest.frameworks.megatron.script import opened

sys.path.insert(0, str(Path(__file__).parents[1] / "stacks"))
from framework_plans import runnable  # noqa: E402

COUNT = int(os.environ.get("NEST_IMPROVED_PLANS", "5"))
"""Random plans whose scripts are improved."""
MODEL = ("--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 "
         "--max-position-embeddings 1024")
KEPT = "--data-path /data/a --lr 3e-4 --train-iters 9 --save /ckpt"
TRAINING = "--micro-batch-size 1 --global-batch-size 32 --bf16"
SLOW = "--tensor-model-parallel-size 8 --recompute-activations"
PARTS = {"MODEL": MODEL, "KEPT": KEPT, "TRAINING": TRAINING, "SLOW": SLOW}
LINE = "pretrain_gpt.py {MODEL} {KEPT} {TRAINING} {SLOW}"

ARRAYS = """#!/bin/bash
# --tensor-model-parallel-size 8 is a comment
TP=8
MODEL=(
    --num-layers 8 --hidden-size 1024 --num-attention-heads 8
    --seq-length 1024 --max-position-embeddings 1024
)
TRAINING=(
    --micro-batch-size 1
    --global-batch-size 32
    --bf16
    "--recompute-activations"
    --tensor-model-parallel-size $TP  # all of a node
)
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \\
    "${MODEL[@]}" ${TRAINING[@]} \\
    --data-path $DATA --save "ckpt-$(date)"
"""
TEXTS = """#!/bin/bash
TP=8
OPTIONS=" \\
    --num-layers 8 --hidden-size 1024 --num-attention-heads 8 \\
    --seq-length 1024 --max-position-embeddings 1024 \\
    --micro-batch-size 1 --global-batch-size 32 --bf16 \\
    --tensor-model-parallel-size ${TP} \\
    --recompute-activations \\
    --data-path $DATA \\
    "
CMD="pretrain_gpt.py $OPTIONS"
echo $CMD
"""
TORCHRUN = "torchrun --nproc_per_node 8 --nnodes 2 "
SCRIPTS = {
    "arrays": ARRAYS,
    "texts": TEXTS + TORCHRUN + "$CMD\n",
    "in another shell": f"{TEXTS}srun bash -c \"{TORCHRUN} --node_rank \\$SLURM_PROCID $CMD\"\n",
    "equals": "torchrun --nproc_per_node=8 --nnodes=2 pretrain_gpt.py "
    "--tensor-model-parallel-size=8 " + " ".join(PARTS[name] for name in (
        "MODEL", "KEPT", "TRAINING")) + "\n",
    "one line": TORCHRUN + LINE.format(**PARTS) + "\n",
}
BRANCHES = ("if [ -z \"$X\" ]; then A='--tensor-model-parallel-size 8'\n"
            "else A='--tensor-model-parallel-size 4'; fi\n" + TORCHRUN + LINE.format(
                **{**PARTS, "SLOW": "$A"}) + "\n")


@pytest.fixture(scope="module")
def cluster() -> nest.Cluster:
    return nest.load_cluster("dgx-h100", devices=16)


def script(folder: Path, text: str) -> Path:
    path = folder / "run.sh"
    path.write_text(text, encoding="utf-8")
    return path


def line(**parts: str) -> str:
    return TORCHRUN + LINE.format(**{**PARTS, **parts}) + "\n"


# ---------------------------------------------------------------- plans


@pytest.mark.kernels
def test_plans_are_never_slower_and_said_to_the_last_digit(tmp_path: Path) -> None:
    """Scripts of random plans: the new script takes what the plan takes, and has no better one."""
    better = 0
    for number, case in enumerate(runnable("megatron-core", COUNT)):
        assert case.plan is not None
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in nest.export(case.plan, "megatron").items():
            (folder / name).write_text(text, encoding="utf-8")
        found = nest.improve(folder / "launch.sh", case.cluster)
        assert found.before is not None
        assert found.before.step_time_s == case.plan.step_time_s
        best = nest.plan(found.before.inputs.model, case.cluster, found.before.inputs.job)
        if found.plan is None:
            assert best.step_time_s >= found.before.step_time_s * (1.0 - 1e-9)
            continue
        better += 1
        assert found.plan.step_time_s < found.before.step_time_s
        assert found.plan.step_time_s <= best.step_time_s
        again = tmp_path / f"{number}-better"
        again.mkdir()
        for name, text in found.files.items():
            (again / name).write_text(text, encoding="utf-8")
        [new] = again.glob("*.sh")
        read, where = nest.read(new), case.cluster
        if len(found.files) == 1:  # without lists it says nothing of devices that are idle
            where = where.with_devices(read.devices)
        priced = nest.evaluate(read.model, where, read.job, read.configuration)
        assert priced.step_time_s == found.plan.step_time_s
        assert nest.improve(new, where).plan is None
    assert better > COUNT // 2


@pytest.mark.kernels
def test_a_script_that_does_not_fit_or_run_is_improved_all_the_same(
    tmp_path: Path, cluster: nest.Cluster
) -> None:
    wide = MODEL.replace("--num-layers 8", "--num-layers 48").replace("1024", "8192")
    for more, why in (("", "does not fit"),
                      ("--context-parallel-size 3", "16 devices are no multiple"),
                      ("--pipeline-model-parallel-size 5", "16 devices are no multiple")):
        path = script(tmp_path, line(MODEL=wide, SLOW=f"--recompute-activations {more}"))
        found = nest.improve(path, cluster)
        assert found.plan is not None and found.plan.feasible and found.plan.runnable
        assert found.problems and (found.before is None) == bool(more)
        assert why in found.report() or "short" in found.report(), found.report()
        read = nest.read(script(tmp_path, found.files["run.sh"]))
        assert nest.evaluate(read.model, cluster, read.job,
                             read.configuration).step_time_s == found.plan.step_time_s


@pytest.mark.kernels(uncompiled=True)
def test_nothing_fits(tmp_path: Path, cluster: nest.Cluster) -> None:
    path = script(tmp_path, line(MODEL=MODEL.replace("1024", "65536")))
    with pytest.raises(InfeasibleError):
        nest.improve(path, cluster)
    with pytest.raises(InputError, match="tp 7 does not divide heads 8"):
        nest.improve(script(tmp_path, line()), cluster, nest.SearchSpace(tp=7))


@pytest.mark.kernels(uncompiled=True)
def test_a_new_script_needs_no_arguments_of_the_old_one(
    tmp_path: Path, cluster: nest.Cluster
) -> None:
    path = script(tmp_path, "WAY=$1\n" + line(SLOW=SLOW.replace("8", "$2")))
    found = nest.improve(path, cluster, nest.SearchSpace(pp=7, dp_in=1),
                         variables={"1": "fast", "2": "16"})
    assert found.plan is not None and [*found.files] == ["launch.sh", "ranks"]
    for name, text in found.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert nest.read(tmp_path / "launch.sh").devices == found.plan.parallelism.devices_used


@pytest.mark.kernels(uncompiled=True)
def test_a_plan_may_leave_devices_idle(tmp_path: Path, cluster: nest.Cluster) -> None:
    """Its script starts fewer processes, and is written anew."""
    found = nest.improve(script(tmp_path, line(SLOW=SLOW.replace("8", "16"))), cluster,
                         nest.SearchSpace(pp=7, dp_in=1))
    assert found.plan is not None and found.plan.parallelism.devices_used < 16
    assert [*found.files] == ["launch.sh", "ranks"]
    for name, text in found.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    read = nest.read(tmp_path / "launch.sh")
    assert read.devices == found.plan.parallelism.devices_used
    again = nest.improve(tmp_path / "launch.sh", cluster, nest.SearchSpace(pp=7, dp_in=1))
    assert again.before is not None
    assert again.before.configuration == found.plan.configuration
    assert again.plan is None and "none: no plan that the stack can run" in again.report()
    assert nest.evaluate(read.model, cluster, read.job,
                         read.configuration).step_time_s == found.plan.step_time_s


@pytest.mark.kernels(uncompiled=True)
@pytest.mark.parametrize(("devices", "each"), [(12, 5), (16, 7)])
def test_nodes_of_which_some_devices_are_idle(tmp_path: Path, devices: int, each: int) -> None:
    """Six devices of each of two nodes are there, or all eight: a plan takes one less of each."""
    found = nest.improve(
        script(tmp_path, line(TRAINING=TRAINING.replace("32", str(2 * each)))),
        nest.load_cluster("dgx-h100", devices=devices),
        nest.SearchSpace(tp=1, pp=1, cp=1, dp_in=each, outer_dp=2))
    assert found.plan is not None
    assert found.plan.configuration.stride == devices // 2
    assert [*found.files] == ["launch.sh"]
    assert f"--nproc-per-node {each}" in found.files["launch.sh"]
    # The script says nothing of idle devices: it is one for those that it starts.
    again = nest.improve(script(tmp_path, found.files["launch.sh"]),
                         nest.load_cluster("dgx-h100", devices=2 * each))
    assert again.before is not None
    assert again.before.step_time_s == found.plan.step_time_s


@pytest.mark.kernels(uncompiled=True)
def test_a_launcher_that_starts_fewer_ranks_is_priced_as_it_is(
    tmp_path: Path, cluster: nest.Cluster
) -> None:
    """8 of 16 devices by a script without lists: 16 have no batch, and 8 are what it takes."""
    few = nest.SearchSpace(tp=1, pp=1, cp=1, dp_in=8)
    found = nest.improve(script(tmp_path, line(
        TRAINING=TRAINING.replace("32", "8"))), cluster, few)
    assert found.plan is not None and [*found.files] == ["launch.sh"]
    again = nest.improve(script(tmp_path, found.files["launch.sh"]), cluster, few)
    assert again.before is not None and again.plan is None
    assert again.before.step_time_s == found.plan.step_time_s


@pytest.mark.kernels
def test_a_search_ends_in_time(tmp_path: Path, cluster: nest.Cluster) -> None:
    """With what was found so far, or a message."""
    path = script(tmp_path, line())
    with pytest.raises(LimitError, match="no plan was found"):
        nest.improve(path, cluster, time_limit=1e-9)


@pytest.mark.kernels
def test_what_is_kept_is_not_switched_on(tmp_path: Path, cluster: nest.Cluster) -> None:
    path = script(tmp_path, line(SLOW="--tensor-model-parallel-size 2 --sequence-parallel",
                                 MODEL=MODEL + " --num-experts 8 --moe-router-topk 2"))
    found = nest.improve(path, cluster)
    assert found.plan is not None
    changed = {one.name: (one.before, one.after) for one in found.arguments}
    assert changed["--overlap-grad-reduce"] == ("", "given")
    assert changed["--moe-token-dispatcher-type"] == ("", "alltoall")
    kept = nest.improve(path, cluster, keep=["overlap-grad-reduce", "moe-token-dispatcher-type"])
    names = {one.name for one in kept.arguments}
    assert not names & {"--overlap-grad-reduce", "--moe-token-dispatcher-type"}
    with pytest.raises(InputError, match="keep: got 'lr'; allowed: overlap-grad-reduce"):
        nest.improve(path, cluster, keep=["lr"])


# ---------------------------------------------------------------- scripts


@pytest.mark.kernels
@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_the_rest_of_a_script_stays(text: str, tmp_path: Path, cluster: nest.Cluster) -> None:
    """Lines without arguments that NEST decides are those of the old script, and bash agrees."""
    path = script(tmp_path, text)
    found = nest.improve(path, cluster, in_place=True)
    assert found.plan is not None and [*found.files] == ["run.sh"]
    new = found.files["run.sh"]
    decided = [one.name for one in found.arguments]
    anchors = (*decided, "--micro-batch-size")
    kept = [one for one in text.splitlines()
            if one.startswith("#") or not any(name in one for name in anchors)]
    assert [one for one in new.splitlines() if one in kept] == kept
    before, after = (set(_words(one, tmp_path)) for one in (text, new))
    names = {word for word in before ^ after if word.startswith("--")}
    assert {name.partition("=")[0] for name in names} <= {*decided}
    assert "--recompute-activations" not in after
    assert set(opened(script(tmp_path, new)).words) >= {
        word for word in after if word.startswith("--") and "n" not in word[:4]}


@pytest.mark.kernels
@pytest.mark.parametrize("name", ["arrays", "texts", "in another shell", "one line"])
def test_layouts_reach_the_program(name: str, tmp_path: Path, cluster: nest.Cluster) -> None:
    """Their bars and parentheses are no words of a shell, nor of one inside another."""
    found = nest.improve(script(tmp_path, SCRIPTS[name]), cluster, nest.SearchSpace(pp=4),
                         in_place=True)
    assert found.plan is not None and found.plan.layout is not None
    assert any(mark in found.plan.layout for mark in "|(")
    words = _words(found.files["run.sh"], tmp_path)
    assert words[words.index("--pipeline-model-parallel-layout") + 1] == found.plan.layout


def _words(text: str, folder: Path) -> list[str]:
    """Words that bash hands to torchrun."""
    binary = folder / "bin"
    binary.mkdir(exist_ok=True)
    for name, body in (("torchrun", 'printf "%s\\n" "$@"'),
                       ("srun", '"$@"')):
        (binary / name).write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
        (binary / name).chmod(0o755)
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True,
                          env={"PATH": f"{binary}:/usr/bin:/bin", "DATA": "d"}, cwd=folder)
    return done.stdout.split("\n")


@pytest.mark.kernels(uncompiled=True)
def test_an_argument_in_several_places_is_not_edited(
    tmp_path: Path, cluster: nest.Cluster
) -> None:
    """The other place is another way through the script, and stays as it is."""
    found = nest.improve(script(tmp_path, BRANCHES), cluster, nest.SearchSpace(tp=(1, 2)),
                         in_place=True)
    assert [*found.files] == ["launch.sh"]


def test_a_layout_of_other_stages_is_another_division() -> None:
    """Et|t|t|tL are four stages or two with two chunks each; what says so before is taken out."""
    size, layout = flags.SIZE, flags.LAYOUT
    text = ("Et|t|t|tL",)
    old = {size: ("4",), layout: text}
    given = {size: ("4",), "num-layers-per-virtual-pipeline-stage": ("1",)}
    change = flags.changed(given, old, {size: ("2",), layout: text}, plan=None)  # type: ignore[arg-type]
    assert change == flags.Flags((size, "num-layers-per-virtual-pipeline-stage"),
                                 {size: ("2",), layout: text})
    same = flags.changed({size: ("4",), layout: text}, old, {size: ("2",), layout: text},
                         plan=None)  # type: ignore[arg-type]
    assert same == flags.Flags((size,), {size: ("2",)})


@pytest.mark.kernels(uncompiled=True)
def test_a_script_that_cannot_say_the_plan_is_written_anew(
    tmp_path: Path, cluster: nest.Cluster
) -> None:
    """The name of an argument is put together: no text of it can be replaced."""
    text = ("T=tensor-model-parallel\nexport NCCL_DEBUG=INFO\n" + TORCHRUN + LINE.format(**{
        **PARTS, "SLOW": "--${T}-size 8", "KEPT": "--data-path $1 --save 'a b' --load c-$(date)",
        "MODEL": MODEL}) + "\n")
    found = nest.improve(script(tmp_path, text), cluster, in_place=True)
    [(name, new)] = found.files.items()
    assert name == "launch.sh"
    for wanted in ("export NCCL_DEBUG=INFO", "--data-path ${ARG1}\n", "--save 'a b'\n",
                   '--load c-"$(date)"\n', "#   ARG1: argument 1 of"):
        assert wanted in new
    assert "--tensor-model-parallel-size 8" not in new
    done = subprocess.run(["bash", "-n"], input=new, text=True, capture_output=True, check=True)
    assert not done.stderr


@pytest.mark.kernels
def test_variables_of_the_environment_follow(tmp_path: Path, cluster: nest.Cluster) -> None:
    """Tensor parallelism needs one connection before Blackwell."""
    space = nest.SearchSpace(tp=2, pp=1)
    for head, wanted in (("", "export CUDA_DEVICE_MAX_CONNECTIONS=1"),
                         ("export CUDA_DEVICE_MAX_CONNECTIONS=32\n",
                          "export CUDA_DEVICE_MAX_CONNECTIONS=1")):
        found = nest.improve(script(tmp_path, head + line()), cluster, space)
        assert found.files["run.sh"].splitlines()[0] == wanted


@pytest.mark.kernels
@pytest.mark.parametrize(("argument", "slow", "space", "stays"), [
    ("defer-embedding-wgrad-compute", "--pipeline-model-parallel-size 4", {"pp": 1}, False),
    ("defer-embedding-wgrad-compute", "--tensor-model-parallel-size 8", {"pp": 2}, True),
    ("overlap-p2p-communication-warmup-flush", SLOW, {"vpp": 1}, False),
    ("overlap-p2p-communication-warmup-flush", SLOW, {"pp": 2, "vpp": 2}, True),
    ("distribute-saved-activations", SLOW, {"recompute": "none"}, False),
    ("fp8-param-gather", SLOW, {"zero": 0}, False), ("fp8-param-gather", SLOW, {"zero": 1}, True),
])
def test_what_megatron_refuses_beside_the_plan_is_taken_out(
    argument: str, slow: str, space: dict[str, Any], stays: bool, tmp_path: Path,
    cluster: nest.Cluster,
) -> None:
    path = script(tmp_path, line(SLOW=slow, KEPT=f"{KEPT} --{argument}"))
    found = nest.improve(path, cluster, nest.SearchSpace(**space), in_place=True)
    assert (f"--{argument}" in found.files["run.sh"]) == stays
    assert (f"--{argument}" in {one.name for one in found.arguments}) != stays


@pytest.mark.kernels
@pytest.mark.parametrize(("recipe", "allowed"), [("", False), ("--fp8-recipe tensorwise", True)])
def test_delayed_scaling_excludes_some_recompute(
    recipe: str, allowed: bool, tmp_path: Path, cluster: nest.Cluster
) -> None:
    """Megatron-LM refuses to recompute norms and experts' activations with it, which is default."""
    wide = MODEL.replace("--hidden-size 1024", "--hidden-size 8192").replace(
        "--num-layers 8", "--num-layers 24").replace("length 1024", "length 4096")
    experts = "--num-experts 8 --moe-ffn-hidden-size 2048 --moe-router-topk 2 --swiglu"
    text = line(MODEL=f"{wide} --max-position-embeddings 4096 {experts}",
                TRAINING=f"{TRAINING} --fp8-format hybrid {recipe}", SLOW="")
    found = nest.improve(script(tmp_path, text), cluster,
                         nest.SearchSpace(recompute="selective") if allowed else None)
    assert found.plan is not None
    modules = {*found.plan.configuration.stages[0].recompute_modules}
    assert allowed or not modules & {"norm", "mlp_act"}
    assert found.plan.search is not None
    assert ("mlp_act" not in found.plan.search.space["recompute_modules"]) or allowed


@pytest.mark.kernels
@pytest.mark.parametrize("graphs", [
    "local --cuda-graph-scope full_iteration --no-check-for-nan-in-loss-and-grad",
    "transformer_engine --cuda-graph-scope attn"])
def test_cuda_graphs_stay(graphs: str, tmp_path: Path, cluster: nest.Cluster) -> None:
    path = script(tmp_path, line(KEPT=f"{KEPT} --cuda-graph-impl {graphs}"))
    found = nest.improve(path, cluster, in_place=True)
    assert f"--cuda-graph-impl {graphs}" in found.files["run.sh"]
    assert found.plan is not None and not found.plan.not_runnable


@pytest.mark.kernels
def test_hostile_texts_take_no_time(tmp_path: Path, cluster: nest.Cluster) -> None:
    value = "${A}" * 60
    kept = f'--load "{value}\\"" --wandb-project {value}\\" --seed ${{B:-{value}}}'
    text = line(KEPT=f"{KEPT} {kept}")
    before = time.process_time()
    found = nest.improve(script(tmp_path, text), cluster, in_place=True)
    assert found.files and time.process_time() - before < 5.0


# ---------------------------------------------------------------- the command


@pytest.mark.kernels(uncompiled=True)
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, folder = script(tmp_path, ARRAYS), tmp_path / "better"
    words = ("improve", str(path), "dgx-h100", "--in-place")
    out, err = run(capsys, *words, "-o", str(folder))
    assert "--tensor-model-parallel-size" in out and "tokens/s" in out
    assert f"nest: written: {folder / 'run.sh'}" in err
    out, err = run(capsys, *words, "--json", "-q")
    found = json.loads(out)
    assert found["schema"] == "nest.improvement/1.2"
    assert found["files"]["run.sh"] == (folder / "run.sh").read_text(encoding="utf-8")
    again = tmp_path / "again"
    out, err = run(capsys, "improve", str(folder / "run.sh"), "dgx-h100", "--in-place", "-o",
                   str(again))
    assert "no plan that the stack can run is faster" in out
    assert "nothing is written" in err and not again.exists()
    _, err = run(capsys, *words, "-o", str(folder), code=2)
    assert "is not empty" in err
    _, err = run(capsys, *words, "--stack", "megatron-2021", "-o", str(again), code=3)
    assert "Megatron-LM 2.5" in err and not again.exists()
    _, err = run(capsys, "improve", str(tmp_path / "none.sh"), "dgx-h100", code=2)
    assert "none.sh" in err


@pytest.mark.kernels(uncompiled=True)
@pytest.mark.parametrize(("more", "most"), [
    ("--rampup-batch-size 4 4 1000", 4), ("--step-batch-size-schedule 0:8 2.4B:12 3B:32", 4),
    ("--rampup-batch-size 4 4 1000 --decrease-batch-size-if-needed", None), ("", None)])
def test_batches_that_grow_stay_multiples(
    more: str, most: int | None, tmp_path: Path, cluster: nest.Cluster
) -> None:
    """With 16 devices, tp 8: only two data-parallel ranks; alone the plan has more."""
    found = nest.improve(script(tmp_path, line(KEPT=f"{KEPT} {more}")), cluster)
    assert found.plan is not None
    way = found.plan.configuration
    samples = way.outer_dp * way.micro_batch
    assert (4 % samples == 0) if most else samples > 4
