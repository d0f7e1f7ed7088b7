"""`nest capture`: launches that bash itself would start, whatever the script does to make them."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from exported_plans import PLANS

import nest
from nest.errors import InputError
from nest.frameworks.capture.document import Capture
from nest.frameworks.capture.recording import capture, programs

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
REST = ("--hidden-size 64 --num-attention-heads 8 --seq-length 64 --max-position-embeddings 64 "
        "--micro-batch-size 1 --bf16")
TRAIN = f"pretrain_gpt.py {REST} --num-layers"
RUN = f"torchrun --nproc_per_node 8 {TRAIN}"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts write where they are started."""
    monkeypatch.chdir(tmp_path)


def captured(folder: Path, text: str, *words: str, **given: Any) -> Capture:
    path = folder / "run.sh"
    path.write_text(text, encoding="utf-8")
    return capture(["bash", str(path), *words], **given)


def layers(folder: Path, found: Capture, **given: Any) -> int:
    path = folder / "captured.json"
    path.write_text(found.to_json(), encoding="utf-8")
    return nest.read(path, **given).model.layers


# ---------------------------------------------------------------- the script's own bash


@pytest.mark.parametrize("text", [
    "N=$((3+4))\n{0} $N", "N=$(expr 3 + 4)\n{0} $N", "N=3\nfor n in 5 6 7; do N=$n; done\n{0} $N",
    "f() {{ local N=$1; {0} $N; }}\nf 7", "N=5\n[ -f /none ] || N=7\n{0} $N",
    "case a7 in b*) N=3;; a*) N=7;; esac\n{0} $N", "echo N=7 > set.sh\nsource ./set.sh\n{0} $N",
    "read X N <<< '3 7'\n{0} $N", "printf -v N 7\n{0} $N", "eval 'N=7'\n{0} $N",
    "declare -n X=N\nX=7\n{0} $N", "N=07\n{0} ${{N#0}}", "A=(3 5 7)\n{0} ${{A[-1]}}",
    "N=7\ntrap 'N=9' EXIT\n{0} $N", "while true; do N=7; break; done\n{0} $N",
    "CMD='{0} 7'\n$CMD", "CMD=\"{0} 7\"\neval $CMD", "CMD=({0} 7)\n\"${{CMD[@]}}\"",
    "( {0} 7 )", "{{ {0} 7; }} > log 2>&1", "{0} 7 2>&1 | tee log", "{0} 7 &\nwait", "{0} 7 &",
    "nohup {0} 7 > log &\nwait", "timeout 10 {0} 7", "env A=1 {0} 7", "exec {0} 7", "command {0} 7",
    "time {0} 7", "bash -c '{0} 7'", "sh -c '{0} 7'", "cat <<< '{0} 7' | bash",
    "if {0} 7; then echo done; fi", "{0} 7 || exit 1", "set -euo pipefail\n{0} 7 | tee -a log",
    "OUT=$({0} 7 | tee log)", "PATH=/usr/bin:/bin\n{0} 7", "export PATH=/usr/bin:$PATH\n{0} 7",
    "f() {{ PATH=/bin; {0} 7; }}\nf", "(PATH=/usr/bin; nohup {0} 7) | cat",
    "shopt -s expand_aliases\nalias t='{0}'\nt 7", "mkdir -p sub\ncd sub && {0} 7",
])
def test_launches_are_those_of_bash(text: str, tmp_path: Path) -> None:
    found = captured(tmp_path, text.format(RUN) + "\n")
    [one] = found.launches
    assert (one.words[0], one.words[-1]) == ("torchrun", "7")
    assert layers(tmp_path, found) == 7 and found.launches[0].script.endswith("run.sh") or (
        "bash" in text)


@pytest.mark.parametrize("text", [
    "/opt/none/bin/python -m torch.distributed.run --nproc_per_node 8 {0} 7",
    "PY=/opt/none/bin/torchrun\n$PY --nproc_per_node 8 {0} 7",
    "BIN=/opt/none/bin\n\"${{BIN}}\"/torchrun --nproc_per_node 8 {0} 7",
    "A=1 /opt/none/bin/torchrun --nproc_per_node 8 {0} 7",
    "source env.sh\n$LAUNCH --nproc_per_node 8 {0} 7",
    "HOME=/opt\n~/bin/torchrun --nproc_per_node 8 {0} 7",
])
def test_programs_named_by_a_path_are_recorded(text: str, tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("LAUNCH=./venv/bin/torchrun\n", encoding="utf-8")
    assert layers(tmp_path, captured(tmp_path, text.format(TRAIN) + "\n")) == 7


@pytest.mark.parametrize("word", ["exec", "env", "nohup", "timeout 5"])
def test_programs_that_have_no_stand_in_are_not_started(word: str, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "torchrun"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n", encoding="utf-8")
    program.chmod(0o755)
    with pytest.raises(InputError, match=r"run.sh: .*/bin/torchrun is named by its path, for which "
                                         "there is no stand-in; allowed: torchrun alone"):
        captured(tmp_path, f"{word} {program} {TRAIN} 7\n")
    assert not (tmp_path / "started").exists()


def test_what_is_started_is_the_user_s_own_arguments(tmp_path: Path) -> None:
    """Words with anything in them, an argument of the script, the folder, the line."""
    words = ["a b", "c'd\"e", "$(touch x)", "f\ng", "\\h", "", "é"]
    text = "#!/bin/bash\n\n\ntorchrun --nproc_per_node 8 x.py \"$@\"\n"
    [one] = captured(tmp_path, text, *words).launches
    assert one.words == ("torchrun", "--nproc_per_node", "8", "x.py", *words)
    assert (one.line, one.folder) == (4, os.getcwd())


def test_the_environment_has_what_matters_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hidden1")
    text = ("export NCCL_DEBUG=INFO MASTER_ADDR=a HF_TOKEN=hidden2 SLURM_KEY=hidden3 OTHER=1\n"
            "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun x.py --hf-token hidden4 --wandb-key=hidden5\n"
            "docker run -e HF_TOKEN=hidden6 image bash -c 'export A_KEY=hidden7; python x.py'\n")
    found = captured(tmp_path, text)
    assert {**found.launches[0].environment} == {
        **found.launches[1].environment, "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert {**found.launches[1].environment} == {
        name: value for name, value in os.environ.items() if name.startswith(("CUDA_", "OMP_"))} | {
        "NCCL_DEBUG": "INFO", "MASTER_ADDR": "a"}
    assert "hidden" not in found.to_json()
    assert found.launches[0].words[-3:] == ("--hf-token", "***", "--wandb-key=***")


# ---------------------------------------------------------------- launchers in launchers


SUBMIT = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))
export MASTER_ADDR=${nodes[0]} WORLD_SIZE=$((SLURM_NNODES * 8))
"""


@pytest.mark.parametrize(("text", "outer", "devices"), [
    (f"srun -N 2 torchrun --nproc_per_node 8 --nnodes 2 {TRAIN} 7", (), 16),
    (f"srun -N 2 bash -c 'torchrun --nproc_per_node 8 --nnodes 2 --node_rank $SLURM_NODEID "
     f"{TRAIN} 7'", ("srun", "-N", "2"), 16),
    (f"mpirun -np 16 -npernode 8 bash -c 'python {TRAIN} $((7 + OMPI_COMM_WORLD_RANK))'",
     ("mpirun", "-np", "16", "-npernode", "8"), 16),
    (f"docker run --gpus all image bash -c \"cd /w && torchrun --nproc_per_node 8 {TRAIN} 7\"",
     (), 8),
    (f"singularity exec --nv image.sif torchrun --nproc_per_node 8 {TRAIN} 7", (), 8),
    (f"srun -N 2 --container-image=x bash -c 'torchrun --nnodes 2 --nproc_per_node 8 {TRAIN} 7'",
     (), 16),
    (f"conda run -n e torchrun --nproc_per_node 8 {TRAIN} 7", (), 8),
    (f"uv run torchrun --nproc_per_node 8 {TRAIN} 7", (), 8),
    (f"numactl --membind 0 torchrun --nproc_per_node 8 {TRAIN} 7", (), 8),
    (f"for n in 0 1; do ssh node$n \"cd /w; torchrun --nnodes 2 --nproc_per_node 8 --node_rank $n "
     f"{TRAIN} 7\" & done; wait", (), 16),
    (f"cat > job.sh <<'E'\n{SUBMIT}srun python {TRAIN} 7\nE\nsbatch job.sh", ("sbatch",), 32),
    (f"sbatch <<'E'\n{SUBMIT}srun python {TRAIN} ${{#nodes[@]}}\nE",
     ("sbatch",), 32),
    (f"ID=$(sbatch --parsable --nodes=2 --wrap 'srun --ntasks-per-node=8 python {TRAIN} 7')\n"
     "echo $ID", ("sbatch", "--parsable", "--nodes=2", "--wrap"), 16),
    (f"cat > in.sh <<'E'\n#!/bin/bash\npython {TRAIN} $1\nE\nchmod +x in.sh\n"
     "srun -n 8 ./in.sh 7", ("srun", "-n", "8"), 8),
    (f"{SUBMIT}srun python {TRAIN} 7", (), 32),
])
def test_nested_launchers(
    text: str, outer: tuple[str, ...], devices: int, tmp_path: Path
) -> None:
    found = captured(tmp_path, text + "\n")
    assert found.launches[-1].outer[:len(outer)] == outer
    path = tmp_path / "captured.json"
    path.write_text(found.to_json(), encoding="utf-8")
    read = nest.read(path)
    assert (read.model.layers, read.devices) == (4 if "${#nodes" in text else 7, devices)


def test_several_launches_are_listed_and_one_is_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, file = tmp_path / "run.sh", tmp_path / "found.json"
    script.write_text(f"for n in 3 5; do\n  {RUN} $n\ndone\npython prepare.py --x\n",
                      encoding="utf-8")
    out, err = run(capsys, "capture", "--yes", "-o", str(file), "--", "bash", str(script))
    assert [line.split(":")[0] for line in out.splitlines()] == [
        "  1  line 2", "  2  line 2", "  3  line 4"]
    assert "rm, cp or module load" in err and "--launch N" in err
    with pytest.raises(InputError, match="found.json: launches 1, 2 train a model; allowed: one of "
                                         "them, by --launch N"):
        nest.read(file)
    for number, wanted in ((1, 3), (2, 5)):
        assert nest.read(file, launch=number).model.layers == wanted
        run(capsys, "read", str(file), "--launch", str(number), "-o", str(tmp_path / f"o{number}"))
        assert f"layers: {wanted}" in (tmp_path / f"o{number}" / "model.yaml").read_text()
    with pytest.raises(InputError, match="launch: got 4; allowed: 1 to 3"):
        nest.read(file, launch=4)
    with pytest.raises(InputError, match="launch: got 1; allowed: with a document of `nest captur"):
        nest.read(script, launch=1)
    with pytest.raises(InputError, match="got 'TP' for the script; allowed: no variable"):
        nest.read(file, launch=1, variables={"TP": "4"})


# ---------------------------------------------------------------- what is asked


@pytest.mark.parametrize("text", [
    "N=$(python -c 'print(7)')\n{0} $N", "N=`python -c 'print(7)' | tail -1`\n{0} $N",
    "python - <<'E' | while read N; do {0} $N; done\nprint(7)\nE",
    "[ \"$(python --version)\" ] && {0} 7", "python count.py | {{ read N; {0} $N; }}",
    "N=$(python count.py)\n{0} $N", "mapfile -t N < <(python count.py)\n{0} $N"])
def test_values_that_a_program_prints_are_never_empty(text: str, tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text("print(7)\n", encoding="utf-8")
    script = text.format(RUN).replace("count.py", str(tmp_path / "count.py"))
    with pytest.raises(InputError, match=r"run.sh: line 1: the script takes what 'python .* prints,"
                                         r" which is not run; allowed: --run (python|count.py), "):
        captured(tmp_path, script + "\n")
    name = "count.py" if "count" in text else "python"
    assert layers(tmp_path, captured(tmp_path, script + "\n", run=[name])) == 7


def test_a_question_that_is_not_run_is_said(tmp_path: Path) -> None:
    """Whether it succeeds decides the launch."""
    text = f"N=3\nif python -c 'import sys; sys.exit(1)'; then N=7; fi\n{RUN} $N\n"
    found = captured(tmp_path, text)
    assert found.notes == ("line 2: 'python -c import sys; sys.exit(1)' is not run, and succeeds "
                           "for the script (--run python runs it)",)
    assert layers(tmp_path, found) == 7
    found = captured(tmp_path, text, run=["python"])
    assert layers(tmp_path, found) == 3 and not found.notes


def test_a_launch_is_not_run_by_asking(tmp_path: Path) -> None:
    mark = tmp_path / "started"
    (tmp_path / "train.py").write_text(f"open({str(mark)!r}, 'w')\n", encoding="utf-8")
    found = captured(tmp_path, f"OUT=$(python {tmp_path}/train.py --num-layers 7 | tee log)\n",
                     run=["python", "train.py"])
    assert len(found.launches) == 1 and not mark.exists()


def test_what_fails_on_this_machine_is_said(tmp_path: Path) -> None:
    found = captured(tmp_path, f"N=$(no-such-tool -L | wc -l)\n{RUN} 7\nexit 3\n")
    assert found.notes == ("on this machine: run.sh: line 1: no-such-tool: command not found",
                           "the script ended with exit code 3")


def test_consent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, mark = tmp_path / "run.sh", tmp_path / "ran"
    script.write_text(f"touch {mark}\n{RUN} 7\n", encoding="utf-8")
    _, err = run(capsys, "capture", "--", "bash", str(script), code=2)
    assert "allowed: --yes, or an answer at a terminal" in err and not mark.exists()
    _, err = run(capsys, "capture", "--yes", code=2)
    assert "`nest capture -- bash run.sh`" in err
    _, err = run(capsys, "capture", "--yes", "--", "no-such-command", code=2)
    assert "no-such-command" in err and "no such command" in err


def test_an_answer_at_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import typer

    class Terminal:
        def isatty(self) -> bool:
            return True

    (tmp_path / "run.sh").write_text(f"touch ran\n{RUN} 7\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", Terminal())
    for answer, code in ((False, 130), (True, 0)):
        def confirm(*_: Any, answer: bool = answer, **__: Any) -> bool:
            if not answer:
                raise typer.Abort
            return True
        monkeypatch.setattr(typer, "confirm", confirm)
        run(capsys, "capture", "--", "bash", "run.sh", code=code)
        assert Path("ran").exists() == Path("captured.json").exists() == answer


@pytest.mark.parametrize("name", PLANS)
def test_exported_scripts_are_captured(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is recorded of each target's script reads as its text does."""
    golden = PLANS[name]
    for file, text in golden.files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    for variable in ("MOCK_DATA", "MASTER_ADDR", "RUN_NAME", "OUTPUT", "DATASET_TYPE", "TOKENIZER",
                     "STEPS", "PROGRAM", "DATA_PATH", "LR", "TRAIN_ITERS", "CHECKPOINT"):
        monkeypatch.setenv(variable, "x.py")
    monkeypatch.setenv("NODE", "0")
    job = re.search(r"sbatch --nodes=\d+", golden.files["launch.sh"])
    command = [*job[0].split(), "launch.sh"] if job else ["bash", "launch.sh"]
    (tmp_path / "captured.json").write_text(capture(command).to_json(), encoding="utf-8")
    more: dict[str, Any] = {}
    if golden.target in ("deepspeed", "fsdp2"):
        more = {"model": golden.model, "seq_len": golden.job["seq_len"]}
    read, text = (nest.read(tmp_path / file, **more) for file in ("captured.json", "launch.sh"))
    assert (read.configuration, read.job, read.devices) == (
        text.configuration, text.job, text.devices)


def test_without_python_in_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "bash").symlink_to(str(shutil.which("bash")))
    monkeypatch.setenv("PATH", str(tools))
    assert layers(tmp_path, captured(tmp_path, f"{RUN} 7\n")) == 7


def test_the_table(tmp_path: Path) -> None:
    """Each name has one kind; the stand-ins are removed."""
    every = [name for one in programs().values() if isinstance(one, list) for name in one]
    assert len(every) == len({*every}) and {"torchrun", "sbatch", "python3"} <= {*every}
    [one] = captured(tmp_path, "torchrun --a $(command -v torchrun)\n").launches
    assert not Path(one.words[-1]).exists() and not Path(one.words[-1]).parent.exists()


# ---------------------------------------------------------------- what is done with it


def test_documents_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import jsonschema

    found = json.loads(captured(tmp_path, f"{RUN} 7\n").to_json())
    schema, _ = run(capsys, "schema", "capture")
    jsonschema.validate(found, json.loads(schema))
    path = tmp_path / "captured.json"
    for spoilt in ({**found, "launches": []}, {**found, "launches": [3]},
                   {**found, "schema": "nest.capture/2.0"}):
        path.write_text(json.dumps(spoilt), encoding="utf-8")
        with pytest.raises(InputError, match="captured.json"):
            nest.read(path)


def test_a_file_that_a_launch_hands_over(tmp_path: Path) -> None:
    text = ("MICRO=4\ncat > ds.json <<E\n{\"train_batch_size\": $((8 * MICRO)),\n"
            "\"train_micro_batch_size_per_gpu\": $MICRO, \"zero_optimization\": {\"stage\": 3},\n"
            "\"bf16\": {\"enabled\": true}}\nE\n"
            "deepspeed --num_gpus 8 train.py --deepspeed_config ds.json\n")
    (tmp_path / "captured.json").write_text(captured(tmp_path, text).to_json(), encoding="utf-8")
    found = nest.read(tmp_path / "captured.json", model="llama3-8b", seq_len=2048,
                      variables={"optimizer.type": "Adam"}, optimizer=None)
    assert (found.devices, found.job.global_batch, found.configuration.stages[0].zero) == (
        8, 32, 3)


JOB = """#!/bin/bash
TP=$((2 * 2))
# --tensor-model-parallel-size 8
SLOW="--tensor-model-parallel-size $TP --recompute-activations"
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 8 --hidden-size 1024 $SLOW \\
  --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --bf16 \\
  $([ $TP = 4 ] && echo --micro-batch-size 1 || echo --micro-batch-size 2) --global-batch-size 64
"""


@pytest.mark.kernels(uncompiled=True)
def test_a_better_plan_names_the_lines_of_the_script(tmp_path: Path) -> None:
    file = tmp_path / "captured.json"
    file.write_text(captured(tmp_path, JOB).to_json(), encoding="utf-8")
    found = nest.improve(file, nest.load_cluster("dgx-h100", devices=16), nest.SearchSpace(
        tp=1, pp=1, cp=1, dp_in=16, outer_dp=1, micro_batch=32), in_place=True)
    assert found.plan is not None and (found.script, found.line) == ("run.sh", 5)
    lines = {one.name: one.line for one in found.arguments}
    assert (lines["--tensor-model-parallel-size"], lines["--recompute-activations"]) == ("4", "4")
    assert (lines["--micro-batch-size"], lines["--overlap-grad-reduce"]) == ("7", "")
    assert "line" in found.report() and [*found.files] == ["launch.sh"]
    (tmp_path / "launch.sh").write_text(found.files["launch.sh"], encoding="utf-8")
    again = nest.read(tmp_path / "launch.sh")
    assert nest.evaluate(again.model, found.plan.inputs.cluster, again.job,
                         again.configuration).step_time_s == found.plan.step_time_s

    several = JOB.replace("SLOW=", "if false; then X='--recompute-activations'; fi\nSLOW=").replace(
        "--tensor-model-parallel-size $TP", "--tensor-model-$KIND-size $TP").replace(
        "TP=$", "KIND=parallel\nTP=$")
    file.write_text(captured(tmp_path, several).to_json(), encoding="utf-8")
    found = nest.improve(file, nest.load_cluster("dgx-h100", devices=16), nest.SearchSpace(
        tp=1, pp=1, cp=1, dp_in=16, outer_dp=1, micro_batch=32), in_place=True)
    assert {one.name: one.line for one in found.arguments}["--recompute-activations"] == "5, 6"
    assert ("--recompute-activations: several lines of run.sh name it, and which of them counts is "
            "not known") in found.notes
    assert "--tensor-model-parallel-size: no line of run.sh names it" in found.notes


def test_evaluate_takes_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "captured.json")
    Path(file).write_text(captured(tmp_path, JOB).to_json(), encoding="utf-8")
    out, err = run(capsys, "evaluate", file, "dgx-h100")
    assert "16 devices" in out and "tokens/s" in out and "no price for dropout" in err
    _, err = run(capsys, "evaluate", file, "dgx-h100", "--tp", "8", code=2)
    assert "--tp; allowed: the document alone (it has the job)" in err
    Path(file).write_text(captured(tmp_path, f"{RUN} 3\n{RUN} 4\n").to_json(), encoding="utf-8")
    _, err = run(capsys, "evaluate", file, "dgx-h100", code=2)
    assert "launches 1, 2 train a model; allowed: one of them, by --launch N; `nest read" in err
