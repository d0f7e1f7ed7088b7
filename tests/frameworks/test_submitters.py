"""Launchers that ask a cluster for nodes: each rank where the plan has it, by their own rules."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from command_line import Files as CommandFiles
from command_line import run
from launchers import Started, replayed
from test_exports_hosts import ALLOCATED, EACH, GIVEN, NODES, random_plan, wanted

import nest
from nest.errors import InputError, UnsupportedError
from nest.frameworks import submitters
from nest.frameworks.submitters import submitters as launchers

VARIABLES = {key: GIVEN[key] for key in ("MOCK_DATA", "DATA_PATH", "TOKENIZER", "CHECKPOINT", "LR",
                                         "TRAIN_ITERS")}
SETTINGS = {"name": "plan-7", "image": "nvcr.io/nvidia/nemo:25.09"}
MORE = {"nemo-run": {"account": "me"}, "rayjob": {"ray": "2.52.0"}}
FIELDS = yaml.safe_load(Path(__file__).with_name("launch_fields.yaml").read_text())


def settings_of(launcher: str, **more: str) -> dict[str, str]:
    known = launchers()[launcher].entry["settings"]
    given = {**SETTINGS, **MORE.get(launcher, {}), **more}
    return {key: value for key, value in given.items() if key in known} | VARIABLES


def files_of(launcher: str, kind: str = "plain", **more: str) -> tuple[nest.Plan, dict[str, str]]:
    plan = random_plan(Random(3), "megatron", kind)
    return plan, nest.export(plan, "megatron", gpus_per_node=EACH, launcher=launcher,
                             settings=settings_of(launcher, **more))


def documents(files: Mapping[str, str]) -> list[dict[str, Any]]:
    return [*yaml.safe_load_all(files["job.yaml"])]


# ---------------------------------------------------------------- stand-ins of clusters


def of_pods(files: dict[str, str]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Commands of the Pods of a job, in the order of their numbers; HOST is their address."""
    job = documents(files)[-1]
    name, spec = job["metadata"]["name"], job["spec"]
    pods: list[tuple[str, dict[str, Any], dict[str, str]]] = []
    if job["kind"] == "Job":
        pod = spec["template"]["spec"]
        pods = [(f"{name}-{n}.{pod['subdomain']}", pod["containers"][0],
                 {"JOB_COMPLETION_INDEX": str(n)}) for n in range(spec["completions"])]
        service = documents(files)[1]
        assert service["metadata"]["name"] == pod["subdomain"]
    elif job["kind"] == "JobSet":
        [group] = spec["replicatedJobs"]
        inner = group["template"]["spec"]
        pods = [(f"{name}-{group['name']}-0-{n}.{name}", inner["template"]["spec"]["containers"][0],
                 {"JOB_COMPLETION_INDEX": str(n)}) for n in range(inner["completions"])]
    elif job["kind"] == "TrainJob":
        one = spec["trainer"]
        both = {**one, "command": one["command"] + one["args"]}
        pods = [(f"{name}-node-0-{n}.{name}", both, {
            "JOB_COMPLETION_INDEX": str(n), "PET_NODE_RANK": str(n)})
            for n in range(one["numNodes"])]
    else:
        parts = spec["pytorchReplicaSpecs"]
        every = [("master-0", parts["Master"]), *(
            (f"worker-{n}", parts["Worker"]) for n in range(parts["Worker"]["replicas"]))]
        pods = [(f"{name}-{role}", part["template"]["spec"]["containers"][0], {
            "RANK": str(n), "WORLD_SIZE": str(len(every)), "MASTER_ADDR": f"{name}-master-0"})
            for n, (role, part) in enumerate(every)]
        assert all(one["name"] == "pytorch" for _, one, _ in pods)
    for host, container, given in pods:
        env = {one["name"]: one["value"] for one in container["env"]}
        yield ([word.replace("/plan/", "./") for word in container["command"]],
               {**env, **given, "HOST": host})


def of_mpi(files: dict[str, str]) -> Iterator[tuple[list[str], dict[str, str]]]:
    launcher = documents(files)[-1]["spec"]["mpiReplicaSpecs"]["Launcher"]
    one = launcher["template"]["spec"]["containers"][0]
    yield ([word.replace("/plan/", "./") for word in one["command"]],
           {entry["name"]: entry["value"] for entry in one["env"]})


def of_slurm(files: dict[str, str]) -> Iterator[tuple[list[str], dict[str, str]]]:
    yield (["bash", "FOLDER/job.sbatch"], {
        "SLURM_SUBMIT_DIR": "FOLDER", "SLURM_JOB_NODELIST": "a list of hosts",
        "ALLOCATED": " ".join(ALLOCATED)})


RAY = """import os
HOSTS, made = os.environ["HOSTS"].split(), []
init, get = (lambda: None), list
class util:
    get_node_ip_address = staticmethod(lambda: os.environ["HOST"])
class Actor:
    def __init__(self, cls):
        self.one, self.host = cls(), HOSTS[len(made)]
        made.append(self)
    def __getattr__(self, name):
        def call(*words):
            os.environ.update(HOST=self.host, NODE_NAME=self.host)
            return getattr(self.one, name)(*words)
        return type("Call", (), {"remote": staticmethod(call)})
def remote(num_cpus, num_gpus, max_retries):
    return lambda cls: type("Made", (), {"remote": staticmethod(lambda: Actor(cls))})
"""
NEMO = """import os, subprocess
from types import SimpleNamespace as Script, SimpleNamespace as LocalTunnel
Packager = object
class SlurmExecutor:
    def __init__(self, account, partition, nodes, ntasks_per_node, gpus_per_node, exclusive, time,
                 container_image, container_mounts, env_vars, packager, setup_lines, tunnel):
        assert ntasks_per_node == 1 and account == "me"
        assert container_mounts[0].split(":")[0] == os.path.dirname(os.path.abspath(__file__))
        self.env, self.setup, self.nodes, self.image = env_vars, setup_lines, nodes, container_image
class Experiment:
    def __init__(self, name): pass
    def __enter__(self): return self
    def __exit__(self, *error): pass
    def add(self, script, executor, name): self.script, self.by = script, executor
    def run(self, detach):
        for n, host in enumerate(os.environ["ALLOCATED"].split()):
            text = self.by.setup + "\\nexec bash -c " + "\\"$SCRIPT\\""
            subprocess.run(["bash", "-c", text], check=True, env=dict(
                os.environ, **self.by.env, SLURM_NODEID=str(n), HOST=host, INSIDE=self.by.image,
                SCRIPT=self.script.inline))
        assert n + 1 == self.by.nodes
"""


def of_ray(files: dict[str, str]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Nodes in another order than that of their names."""
    spec = documents(files)[-1]["spec"]
    head = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    files["ray.py"] = RAY
    entry = spec["entrypoint"].replace("/plan/", "FOLDER/").split()
    yield ([sys.executable, *entry[1:]], {
        "HOSTS": " ".join(ALLOCATED[n] for n in (2, 0, 3, 1)),
        **{one["name"]: one["value"] for one in head["env"]}})


def of_nemo(files: dict[str, str]) -> Iterator[tuple[list[str], dict[str, str]]]:
    files["nemo_run.py"] = NEMO
    yield ([sys.executable, "FOLDER/submit.py"], {
        "ALLOCATED": " ".join(ALLOCATED), "SLURM_JOB_NODELIST": "a list of hosts"})


def of_sky(files: dict[str, str]) -> Iterator[tuple[list[str], dict[str, str]]]:
    task = yaml.safe_load(files["task.yaml"])
    for n in range(task["num_nodes"]):
        yield (["bash", "-c", task["run"]], {
            **task["envs"], "HOST": ALLOCATED[n], "SKYPILOT_NODE_RANK": str(n),
            "SKYPILOT_NODE_IPS": "\n".join(ALLOCATED)})


RUNS = {**dict.fromkeys(("indexed-job", "jobset", "pytorchjob", "trainjob"), of_pods),
        **dict.fromkeys(("sbatch", "sbatch-pyxis", "sbatch-apptainer"), of_slurm),
        "mpijob": of_mpi, "rayjob": of_ray, "nemo-run": of_nemo, "skypilot": of_sky}


def started(launcher: str, files: dict[str, str]) -> dict[int, Started]:
    runs = [*RUNS[launcher](files)]
    if "job.yaml" in files:  # what Pods read is what the ConfigMap has
        carried = documents(files)[0]["data"]
        assert carried == {name: text for name, text in files.items()
                           if name not in ("job.yaml", "ray.py")}
    return replayed(files, runs)


@pytest.mark.parametrize(("launcher", "kind"), [
    *((launcher, "nodes") for launcher in RUNS),  # ranks that no order of nodes gives:
    ("sbatch-pyxis", "devices"), ("jobset", "devices"), ("mpijob", "devices")])
def test_each_rank_starts_where_the_plan_has_it(launcher: str, kind: str) -> None:
    plan, files = files_of(launcher, kind)
    found = started(launcher, files)
    want = wanted(plan, "megatron", files["launch.sh"])
    assert want[0][0] != 0  # rank 0 is not on the first node
    hosts = ALLOCATED
    if RUNS[launcher] is of_pods or launcher == "mpijob":
        job = documents(files)[-1]
        form = {"Job": "plan-7-{}.plan-7", "MPIJob": "plan-7-worker-{}.plan-7"}.get(
            job["kind"], "plan-7-node-0-{}.plan-7")
        hosts = [form.format(n) for n in range(NODES)]
    if launcher == "pytorchjob":  # the master has rank 0
        first = want[0][0]
        others = [n for n in range(NODES) if n != first]
        hosts = ["plan-7-master-0" if n == first else f"plan-7-worker-{others.index(n)}"
                 for n in range(NODES)]
    assert {rank: one[:2] for rank, one in found.items()} == {
        rank: (hosts[node], local) for rank, (node, local) in want.items()}
    if "ranks" not in files:  # else torchrun does not say it
        assert {one.address for one in found.values()} == {found[0].host}
    contained = launcher in ("sbatch-pyxis", "sbatch-apptainer", "nemo-run")
    inside = {one.inside.rpartition("=")[2] for one in found.values()}
    assert inside == {SETTINGS["image"] if contained else "-"}
    assert {*launchers()} == {*RUNS}


# ---------------------------------------------------------------- their own rules


def check(value: Any, path: str, seen: set[str]) -> None:
    """Fields of a document against the table."""
    if isinstance(value, list):
        for one in value:
            check(one, f"{path}[]", seen)
    if not isinstance(value, dict):
        return
    if path.endswith("template.spec") and "containers" in value and "runtimePatches" not in path:
        path = "Pod"
    elif path.endswith("template.metadata"):
        path = "Pod.metadata"
    elif found := re.search(r"runtimePatches.*(\.volumes\[\]|\.containers\[\]\.volumeMounts\[\])"
                            r"(.*)", path):
        path = f"Pod{found[1]}{found[2]}"
    path = path.replace("TrainJob.spec.trainer.env[]", "Pod.containers[].env[]").replace(
        "TrainJob.spec.trainer.resourcesPerNode", "Pod.containers[].resources")
    names = FIELDS.get(path.replace("Job.spec", "JobSet.spec.replicatedJobs[].template.spec")
                       if path.startswith("Job.") else path)
    if names is not None:
        seen.add(path)
        known = {name.rstrip("*") for name in names.split()}
        needed = {name.rstrip("*") for name in names.split() if name.endswith("*")}
        assert {*value} <= known and needed <= {*value}, (path, {*value} - known, needed - {*value})
    else:
        free = ("metadata", "labels", "annotations", "limits", "selector", "data", "Params",
                "ReplicaSpecs")
        assert path.endswith(free), path
    for name, one in value.items():
        here = f"{path}.*" if path.endswith("ReplicaSpecs") else f"{path}.{name}"
        check(one, here, seen)


@pytest.mark.parametrize("launcher", [name for name, one in RUNS.items()
                                      if one in (of_pods, of_mpi, of_ray)])
@pytest.mark.parametrize("more", [{}, {"queue": "q", "topology": "x/rack", "claim": "data"}])
def test_documents_have_the_fields_of_their_kinds(launcher: str, more: dict[str, str]) -> None:
    _, files = files_of(launcher, **more)
    seen: set[str] = set()
    for one in documents(files):
        check(one, one["kind"], seen)
        assert not re.search(r"\{[a-z_]+\}", str({**one, "data": 0}))
    assert {"Pod", "Pod.containers[]"} <= seen or "TrainJob.spec.trainer" in seen
    text = files["job.yaml"]
    assert (text.count("/data\n") > 0, "queue-name: 'q'" in text) == (bool(more), bool(more))
    assert ("podset-preferred-topology: x/rack" in text) == bool(more)
    for env in re.findall(r"- name: LR\n +value: (.*)", text):
        assert env == "'1'"  # readers of YAML take 1 and 1e-4 for numbers, which no variable is


OPTIONS = {"job-name": r"\S+", "nodes": r"\d+(-\d+)?", "ntasks": r"\d+",
           "gpus-per-node": r"(\w+:)?\d+", "exclusive": r"", "partition": r"\S+", "account": r"\S+",
           "time": r"\d+|\d+:\d+(:\d+)?|\d+-\d+(:\d+){0,2}"}
"""Options of sbatch and their values (slurm 24.11 doc/man/man1/sbatch.1)."""


@pytest.mark.parametrize("launcher", ["sbatch", "sbatch-pyxis", "sbatch-apptainer"])
def test_batch_scripts_follow_the_rules_of_sbatch(launcher: str) -> None:
    """A first line that names the shell; options before any command, which end them."""
    _, files = files_of(launcher, partition="gpu", time="1-00:00:00", mounts="/data:/data")
    lines = files["job.sbatch"].splitlines()
    assert lines[0].startswith("#!")
    first = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    found = {}
    for n, line in enumerate(lines):
        if line.startswith("#SBATCH"):
            assert n < first
            name, _, value = line.removeprefix("#SBATCH --").partition("=")
            assert re.fullmatch(OPTIONS[name], value), line
            found[name] = value
    assert (found["nodes"], found["ntasks"], found["gpus-per-node"]) == ("4", "16", "4")
    assert found["partition"] == "gpu" and "account" not in found
    assert ("/data:/data" in files["launch.sh"]) == (launcher != "sbatch")
    [line] = [line for line in files["job.sbatch"].splitlines() if "TOKENIZER" in line]
    assert shlex.split(line) == ["export", f"TOKENIZER={VARIABLES['TOKENIZER']}"]


SKY = {"task": "name workdir event_callback num_nodes resources file_mounts service pool setup run "
               "envs secrets volumes config",
       "resources": "cloud region zone infra cpus memory accelerators instance_type use_spot "
                    "disk_size disk_tier ports labels image_id any_of ordered"}
"""Fields of a task (skypilot==0.14.1 sky/utils/schemas.py:1180, 312), those of old versions too."""


def test_a_task_of_skypilot_has_its_fields() -> None:
    task = yaml.safe_load(files_of("skypilot", infra="k8s")[1]["task.yaml"])
    assert {*task} <= {*SKY["task"].split()} and {*task["resources"]} <= {*SKY["resources"].split()}
    assert task["resources"] == {"accelerators": {"H100": EACH}, "infra": "k8s"}
    assert all(isinstance(one, str) for one in task["envs"].values())


# ---------------------------------------------------------------- what is refused, and read back


def test_what_is_refused(tmp_path, capsys, monkeypatch) -> None:
    plan = random_plan(Random(3), "megatron", "plain")
    for launcher, given, text in (
            ("jobset", {}, "jobset needs image (image of a container): --set image=VALUE"),
            ("jobset", {"image": "a b"}, "image: got 'a b'; allowed: one word without quotes"),
            ("jobset", {"image": "a", "imag": "b"}, "jobset has no 'imag'; did you mean image?"),
            ("jobset", {"image": "a", "name": "A_b"}, "name: got 'A_b'; allowed: small letters"),
            ("jobset", {"image": "a", "LR": "1\n2"}, "LR: got '1\\n2'; allowed: one line"),
            ("mpi", {"image": "a"}, "got image with mpi; allowed: with sbatch, sbatch-pyxis")):
        with pytest.raises(InputError) as caught:
            nest.export(plan, "megatron", launcher=launcher, settings=given)
        assert text in str(caught.value)
    with pytest.raises(InputError, match="hosts: got names with jobset; allowed: none, because"):
        nest.export(plan, "megatron", launcher="jobset", hosts=["a", "b", "c", "d"],
                    settings=settings_of("jobset"))
    monkeypatch.setattr(submitters, "MOST_FILES", 1000)
    with pytest.raises(UnsupportedError, match="and a ConfigMap 1,000; use sbatch"):
        files_of("jobset")
    files = CommandFiles(tmp_path)
    out, _ = run(capsys, "evaluate", *files.words, "--tp", "4", "--json")
    (tmp_path / "plan.json").write_text(out, encoding="utf-8")
    words = ["export", str(tmp_path / "plan.json"), "--to", "megatron", "-o", str(tmp_path / "o")]
    _, err = run(capsys, *words, "--launcher", "skypilot", code=2)
    assert "needs accelerator (accelerator of SkyPilot): --set accelerator=VALUE" in err
    run(capsys, *words, "--launcher", "skypilot", "--set", "accelerator=X100")
    assert "X100: 4" in (tmp_path / "o" / "task.yaml").read_text()


def test_devices_of_several_types_are_refused() -> None:
    plan = random_plan(Random(3), "megatron", "plain")
    mixed = plan.inputs.cluster.unchecked(types=(nest.inputs.load_device("a100-sxm-80gb"),))
    for one in launchers().values():
        with pytest.raises(UnsupportedError, match="nodes are all alike, and the cluster has sev"):
            one.need(mixed, None)  # type: ignore[arg-type]


def test_documents_are_read_back(tmp_path) -> None:
    plan, files = files_of("jobset")
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = nest.read(tmp_path / "job.yaml")
    assert found.job.global_batch == plan.inputs.job.global_batch
    assert found.configuration.stages[0].tp == plan.stages[0].tp
