"""Each rank starts on the plan's device, with every launcher; names of hosts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any

import pytest
from command_line import Files as CommandFiles
from command_line import run
from descriptions import MODEL
from launchers import placed
from test_exports_megatron import plan

import nest
from nest.errors import InputError, UnsupportedError
from nest.frameworks.hosts import Place, RankPlaces, host_names, per_node, places
from nest.frameworks.launchers import HERE, LAUNCHERS, Program
from nest.frameworks.target import Files

NODES = 4
EACH = 4
GIVEN = {"PROGRAM": "pretrain_gpt.py", "BASE": "m:f", "RECIPE": "m:f", "MOCK_DATA": "1",
         "DATA_PATH": "d", "TOKENIZER": "t", "CHECKPOINT": "c", "LR": "1", "TRAIN_ITERS": "5",
         "RUN_NAME": "r", "OUTPUT": "o", "DATASET_TYPE": "hf", "STEPS": "5"}
STACKS = {"megatron": "megatron-core", "megatron-bridge": "megatron-bridge",
          "deepspeed": "deepspeed", "torchtitan": "torchtitan", "fsdp2": "fsdp",
          "maxtext": "maxtext"}
FILES = {"torchrun": {"hosts", "ranks"}, "deepspeed": {"hostfile"},
         "mpi": {"hostfile", "rankfile", "ranks"}, "slurm": {"slurm.hosts", "ranks"}}
ALLOCATED = ["h3", "h7", "h12", "h40"]
"""Hosts that Slurm gives a job, in its order."""


ORDERS = ("plain", "nodes", "devices")


def random_plan(rng: Random, target: str, kind: str) -> nest.Plan:
    """A plan on 16 devices in a random order: of the nodes, or of all devices."""
    cluster = nest.load_cluster("dgx-h100", devices=NODES * EACH)
    order = [*range(NODES * EACH)]
    if kind == "nodes":
        order = [node * EACH + local for node in rng.sample(range(NODES), NODES)
                 for local in range(EACH)]
    elif kind == "devices":
        rng.shuffle(order)
    piped = target not in ("fsdp2", "maxtext")
    tp, pp = rng.choice((1, 2, 4)), rng.choice((1, 2)) if piped else 1
    dp_in = rng.choice([n for n in (1, 2, 4) if tp * pp * n <= NODES * EACH])
    zero = {"megatron": 1, "megatron-bridge": 1, "deepspeed": 1,
            "torchtitan": 1 if pp > 1 else 3}.get(target, 3)
    recompute = {"recompute": "full"} if target == "maxtext" else {}
    model = nest.Model.parse({**MODEL, "layers": 8, "heads": 8})
    job = nest.Job(global_batch=64, seq_len=64, stack=STACKS[target])
    return plan(model, cluster.replace(order=tuple(order)), job, tp=tp, pp=pp, dp_in=dp_in,
                sp=tp > 1 and target != "deepspeed", zero=zero, **recompute)


def wanted(found: nest.Plan, target: str, script: str) -> dict[int, tuple[int, int]]:
    """Node and device of each rank of the framework: ranks go tp, cp, dp, pp, or tp, pp, dp."""
    pp, stage = found.parallelism.pp, found.stages[0]
    dp = found.parallelism.outer_dp * stage.dp_in
    inside = "use-tp-pp-dp-mapping" in script or "use_tp_pp_dp_mapping = True" in script
    at = {}
    for one in found.ranks():
        outer = one.dp * pp + one.stage if inside else one.stage * dp + one.dp
        at[outer * stage.tp + one.tp] = divmod(one.device, EACH)
    return at


def exported(found: nest.Plan, target: str, hosts: list[str]) -> Iterator[tuple[str, Files]]:
    """Files for each launcher that can start the plan."""
    for launcher in LAUNCHERS:
        try:
            yield launcher, nest.export(found, target, gpus_per_node=EACH, launcher=launcher,
                                        hosts=hosts)
        except UnsupportedError as error:
            assert launcher == "deepspeed" and "numbers the ranks of a node" in str(error)


@pytest.mark.parametrize("target", STACKS)
def test_each_rank_starts_on_the_device_of_the_plan(target: str) -> None:
    """On random plans with hosts in a random order; launchers order ranks alike for all targets."""
    rng = Random(target)
    hosts = [f"rack-{rng.randrange(10**6)}-{node}.x" for node in range(NODES)]
    for kind in ORDERS if target == "megatron" else ORDERS[2:]:
        found = random_plan(rng, target, kind)
        for launcher, files in exported(found, target, hosts):
            at = placed(files, launcher, hosts, GIVEN)
            script = files["launch.sh"] + files.get("plan_recipe.py", "")
            assert at == {rank: (hosts[node], local)
                          for rank, (node, local) in wanted(found, target, script).items()}


@pytest.mark.parametrize("kind", ORDERS)
def test_slurm_takes_the_hosts_of_the_allocation(kind: str) -> None:
    """Without names: these are known once they are allocated, and nodes keep their order."""
    found = random_plan(Random(3), "deepspeed", kind)
    files = nest.export(found, "deepspeed", gpus_per_node=EACH, launcher="slurm")
    assert placed(files, "slurm", ALLOCATED, GIVEN) == {
        rank: (ALLOCATED[node], local)
        for rank, (node, local) in wanted(found, "deepspeed", "").items()}
    with pytest.raises(AssertionError, match=r"3 nodes are allocated .* plan is for 4: sbatch"):
        placed(files, "slurm", ALLOCATED[:3], GIVEN)


def test_nodes_that_a_plan_leaves_out_are_not_allocated() -> None:
    """Nodes 1 and 2 of 4 have no ranks."""
    at = tuple(Place(node, local) for node in (3, 0) for local in range(2))
    found = RankPlaces(at, 2, ("a", "b", "c", "d"), 2, named=False)
    program = Program("pretrain_gpt.py", (), ())
    slurm = LAUNCHERS["slurm"]
    text = "\n".join([HERE, "MASTER_PORT=1", *slurm.lines(found, program)])
    files = {"launch.sh": text, **slurm.files(found, "title")}
    assert placed(files, "slurm", ["x", "y"], {"MASTER_ADDR": ""}) == {
        0: ("y", 0), 1: ("y", 1), 2: ("x", 0), 3: ("x", 1)}


def test_a_rank_that_dies_ends_the_others(tmp_path: Path) -> None:
    """Of a list of ranks: the first sleeps a minute, the third dies, and its status is told."""
    found = random_plan(Random(5), "deepspeed", "devices")
    files = nest.export(found, "deepspeed", gpus_per_node=NODES * EACH)
    assert "ranks" in files
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$RANK" = 3 ] && exit 7\necho $$ >> "$PIDS"\n'
                      "exec sleep 60\n", encoding="utf-8")
    python.chmod(0o755)
    start = monotonic()
    done = subprocess.run(
        ["bash", str(tmp_path / "launch.sh")], capture_output=True, text=True, check=False,
        timeout=50, env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "NODE": "0", **GIVEN,
                         "PIDS": str(tmp_path / "pids")})
    assert done.returncode == 7 and monotonic() - start < 120, done.stderr
    pids = (tmp_path / "pids").read_text(encoding="utf-8").split()
    sleep(0.5)
    assert pids and not any(alive(pid) for pid in pids)


def alive(pid: str) -> bool:
    """Whether a process runs, and is not only waited for by nobody."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_files_say_what_a_plan_leaves_idle() -> None:
    """64 of the 72 devices of each rack; 12 of the 16 of two nodes."""
    model = nest.Model.parse({**MODEL, "layers": 8, "heads": 8})
    job = nest.Job(global_batch=64, seq_len=64, stack="deepspeed")
    racks = plan(model, nest.load_cluster("gb200-nvl72", devices=128),
                 job.replace(global_batch=128), zero=1)
    nodes = plan(model, nest.load_cluster("dgx-h100", devices=12), job.replace(global_batch=48),
                 zero=1)
    whole = plan(model, nest.load_cluster("dgx-h100", devices=16), job, zero=1)
    for found, lines in (
            (racks, ["Processes: 4 on node 0..15, 18..33.",
                     "Of nvlink 0..1: 64 of 72 devices; the others stay idle."]),
            (nodes, ["Processes: 6 on node 0..1, on device 0..5 of 8; the others stay idle."]),
            (whole, ["Processes: 8 on node 0..1."])):
        for launcher in ("torchrun", "mpi", "slurm"):
            files = nest.export(found, "deepspeed", launcher=launcher)
            for name in {*files} - {"ds_config.json"}:
                said = [line[2:] for line in files[name].splitlines() if line[:2] == "# "]
                assert [line for line in said if line in lines] == lines, (launcher, name)
                assert ("idle" in files[name]) == (found is not whole)


def test_each_launcher_gets_the_lists_that_it_needs() -> None:
    rng, seen = Random(1), set()
    for _ in range(30):
        found = random_plan(rng, "torchtitan", rng.choice(ORDERS))
        for launcher, files in exported(found, "torchtitan", ["a", "b", "c", "d"]):
            seen |= {(launcher, name) for name in {*files} - {"launch.sh", "plan_config.py"}}
    assert seen == {(launcher, name) for launcher, names in FILES.items() for name in names}


def test_whole_nodes_are_permuted_where_that_is_enough() -> None:
    model = nest.Model.parse({**MODEL, "layers": 8, "heads": 8})
    cluster = nest.load_cluster("dgx-h100", devices=32)
    found = plan(model, cluster, nest.Job(global_batch=64, seq_len=64, stack="deepspeed"),
                 tp=8, pp=2, dp_in=1, sp=False, zero=1)
    files = nest.export(found, "deepspeed", launcher="deepspeed", hosts=["a", "b", "c", "d"])
    assert files["hostfile"].splitlines()[2:] == [
        f"{host} slots=8" for host in ("a", "c", "b", "d")]
    files = nest.export(found, "deepspeed", launcher="mpi")
    assert "rankfile" not in files and "--map-by slot" in files["launch.sh"]
    assert "MASTER_ADDR:-node0" in files["launch.sh"]
    files = nest.export(found, "deepspeed", launcher="slurm", gpus_per_node=16,
                        hosts=["node0", "node1"])
    assert files["slurm.hosts"].split() == ["node0"] * 8 + ["node1"] * 8 + ["node0"] * 8 + [
        "node1"] * 8 and "ranks" in files


@pytest.mark.parametrize(("names", "text"), [
    (["a", "b;rm"], "hosts: 2. name: got 'b;rm'; allowed: letters"),
    (["a", "-x"], "hosts: 2. name: got '-x'"),
    (["a", "a b"], "hosts: 2. name"),
    (["a", "b\n"], "hosts: 2. name"),
    (["a", ""], "hosts: 2. name"),
    (["a", "b", "a"], "hosts: 3. name: got a again; allowed: each once"),
    (["a"], "hosts: got 1 names; allowed: at least 2"),
    (["a", None], "hosts: 2. name"),
])
def test_names_that_are_none_of_hosts(names: list[Any], text: str) -> None:
    with pytest.raises(InputError) as caught:
        host_names(names, 2)
    assert text in str(caught.value)


def test_names_of_a_file(tmp_path, capsys) -> None:
    files = CommandFiles(tmp_path)
    out, _ = run(capsys, "evaluate", *files.words, "--tp", "4", "--json")
    (tmp_path / "plan.json").write_text(out, encoding="utf-8")
    (tmp_path / "nodes").write_text("# names\n\n alpha \nbeta\n", encoding="utf-8")
    words = ["export", str(tmp_path / "plan.json"), "--to", "megatron", "--launcher", "slurm",
             "--hosts", str(tmp_path / "nodes"), "-o", str(tmp_path / "out")]
    run(capsys, *words)
    assert (tmp_path / "out" / "slurm.hosts").read_text().split() == ["alpha"] * 4 + ["beta"] * 4
    _, err = run(capsys, *words[:4], "--launcher", "slrum", "-o", str(tmp_path / "none"), code=2)
    assert "launcher: got 'slrum'; did you mean slurm? allowed: torchrun" in err
    (tmp_path / "nodes").write_text("$(touch owned)\n", encoding="utf-8")
    _, err = run(capsys, *words[:-1], str(tmp_path / "none"), code=2)
    assert "hosts: 1. name: got" in err and not (tmp_path / "none").exists()


@pytest.mark.parametrize("target", STACKS)
def test_nodes_have_no_more_devices_than_the_plan(target: str) -> None:
    found = random_plan(Random(target), target, "plain")
    assert nest.export(found, target, gpus_per_node=NODES * EACH)
    with pytest.raises(InputError, match=(
            r"^gpus_per_node: got 32; allowed: at most the 16 devices of the plan$")):
        nest.export(found, target, gpus_per_node=2 * NODES * EACH)


def test_devices_of_a_node_that_are_idle_count() -> None:
    """A plan may use some devices of each node, and nodes behind others."""
    some = nest.load_cluster("dgx-h100", devices=12)
    assert (some.whole_sizes[0], per_node(some), per_node(some, 16)) == (8, 8, 16)
    behind = nest.load_cluster("dgx-h100", devices=16).replace(order=tuple(range(16, 32)))
    assert per_node(behind, 32) == 32
    for cluster, most in ((some, 16), (behind, 32)):
        with pytest.raises(InputError, match=f"at most the {most} devices of the plan's nodes$"):
            per_node(cluster, 2 * most)


def test_places_of_ranks_in_a_row() -> None:
    cluster = nest.load_cluster("dgx-h100", devices=16)
    model = nest.Model.parse({**MODEL, "layers": 8, "heads": 8})
    found = places(plan(model, cluster, nest.Job(global_batch=16, seq_len=64), tp=8).ranks(), 8)
    assert found.at[9] == Place(1, 1) and (found.each, found.permuted) == (8, False)
    assert found.names == ("node0", "node1")


def test_variables_reach_processes_of_other_nodes() -> None:
    """DeepSpeed's launcher passes on what a file names, mpirun what it is told."""
    cluster = nest.load_cluster("dgx-h100", devices=16)
    model = nest.Model.parse({**MODEL, "layers": 8, "heads": 8})
    found = plan(model, cluster, nest.Job(global_batch=16, seq_len=64), tp=8, zero=1)
    files = nest.export(found, "megatron", launcher="deepspeed")
    assert files["deepspeed_env"] == "CUDA_DEVICE_MAX_CONNECTIONS=1\n"
    assert "DS_ENV_FILE=$here/deepspeed_env" in files["launch.sh"]
    script = nest.export(found, "megatron", launcher="mpi")["launch.sh"]
    [line] = [one for one in script.splitlines() if " -x " in one]
    assert line.split()[:6] == ["-x", "MASTER_ADDR", "-x", "MASTER_PORT", "-x",
                                     "CUDA_DEVICE_MAX_CONNECTIONS"]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_one_node_has_no_address(launcher: str) -> None:
    cluster = nest.load_cluster("dgx-h100", devices=8)
    model = nest.Model.parse({**MODEL, "layers": 8, "heads": 8})
    found = plan(model, cluster, nest.Job(global_batch=16, seq_len=64), tp=8)
    script = nest.export(found, "megatron", launcher=launcher)["launch.sh"]
    assert "MASTER_ADDR=${MASTER_ADDR:-localhost}" in script
