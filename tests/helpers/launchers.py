"""What launchers make of the files that a script hands them, replayed: where each rank starts.

Stands in for torchrun, deepspeed, mpirun, srun and apptainer: reads their lists of hosts and ranks
as their manuals say, and starts each process as they do. Each `python` only says where it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

PYTHON = """#!/bin/sh
set -C
echo "$HOST $LOCAL_RANK $WORLD_SIZE ${INSIDE:--} $MASTER_ADDR" > "$STARTED/$RANK"
"""
LAUNCHER = f"""#!{sys.executable} -SE
import os, re, subprocess, sys
from pathlib import Path

name, words, env = Path(sys.argv[0]).name, sys.argv[1:], os.environ


def value(option):
    return words[words.index(option) + 1]


def start(command, host, **variables):
    subprocess.run(command, check=True, env=dict(env, HOST=host, **{{
        key: str(one) for key, one in variables.items()}}))


def rows(file):
    return [line.split() for line in Path(file).read_text().splitlines()
            if line and not line.startswith("#")]


def slots(file):
    return [host for host, text in rows(file) for _ in range(int(text.removeprefix("slots=")))]


if name == "torchrun":
    each, node = int(value("--nproc-per-node")), int(value("--node-rank"))
    for local in range(each):
        start(["python"], env["HOST"], RANK=node * each + local, LOCAL_RANK=local,
              WORLD_SIZE=each * int(value("--nnodes")), MASTER_ADDR=value("--master-addr"))
elif name == "deepspeed":
    one = "--num_gpus" in words
    hosts = ["node0"] * int(value("--num_gpus")) if one else slots(value("--hostfile"))
    assert len([*dict.fromkeys(hosts)]) == len(rows(value("--hostfile"))) if not one else True
    for rank, host in enumerate(hosts):
        start(["python"], host, RANK=rank, LOCAL_RANK=hosts[:rank].count(host),
              WORLD_SIZE=len(hosts))
elif name == "mpirun":
    hosts = slots(value("--hostfile"))
    if value("--map-by") != "slot":
        file = value("--map-by").removeprefix("rankfile:file=")
        found = dict(re.fullmatch(r"rank (\\d+)=(\\S+) slot=\\d+", " ".join(row)).groups()
                     for row in rows(file))
        hosts = [found[str(rank)] for rank in range(len(found))]
    assert len(hosts) == int(value("-np"))
    command = words[words.index("bash"):]
    for rank, host in enumerate(hosts):
        start(command, host, OMPI_COMM_WORLD_RANK=rank,
              OMPI_COMM_WORLD_LOCAL_RANK=hosts[:rank].count(host))
elif name == "apptainer":
    assert words[:2] == ["exec", "--nv"] and words[2] == "--bind"
    start(words[words.index("bash"):], env["HOST"], INSIDE=words[4])
elif name == "scontrol":
    assert words == ["show", "hostnames", "a list of hosts"]
    print(env["ALLOCATED"].replace(" ", "\\n"))
elif name == "srun":
    hosts = Path(env["SLURM_HOSTFILE"]).read_text().split()
    assert "--distribution=arbitrary" in words and f"--ntasks={{len(hosts)}}" in words
    assert f"--nodes={{len(set(hosts))}}" in words
    command = next(n for n, word in enumerate(words) if not word.startswith("--"))
    image = [word for word in words[:command] if word.startswith("--container-image=")]
    for rank, host in enumerate(hosts):
        start(words[command:], host, SLURM_PROCID=rank, SLURM_LOCALID=hosts[:rank].count(host),
              **{{"INSIDE": one.partition("=")[2] for one in image}})
"""


class Started(NamedTuple):
    """A process."""

    host: str
    local: int
    inside: str
    """Image of its container; -: none."""
    address: str
    """Of rank 0, as it is told."""


def placed(
    files: Mapping[str, str], launcher: str, hosts: Sequence[str], variables: Mapping[str, str]
) -> dict[int, tuple[str, int]]:
    """Host and device of each rank, as a script starts them.

    Parameters
    ----------
    hosts : names of the nodes in the order of the cluster.
    """
    nodes = [*enumerate(hosts)] if launcher == "torchrun" else [(0, "where it is run")]
    found = replayed(files, [(["bash", "FOLDER/launch.sh"], {
        "HOST": host, "NODE": str(node), "MASTER_ADDR": "first", "ALLOCATED": " ".join(hosts),
        "SLURM_JOB_NODELIST": "a list of hosts", **variables}) for node, host in nodes])
    return {rank: one[:2] for rank, one in found.items()}


def replayed(
    files: Mapping[str, str], runs: Sequence[tuple[Sequence[str], Mapping[str, str]]]
) -> dict[int, Started]:
    """Each rank that some commands start.

    Parameters
    ----------
    files : in a folder, which the commands call FOLDER.
    runs : commands with their environments; HOST is where they run.
    """
    with TemporaryDirectory() as name:
        folder, programs, started = (Path(name) / one for one in ("two words", "bin", "started"))
        for one in (folder, programs, started):
            one.mkdir()
        for program in ("python", "torchrun", "deepspeed", "mpirun", "srun", "scontrol",
                        "apptainer"):
            text = PYTHON if program == "python" else LAUNCHER
            (programs / program).write_text(text, encoding="utf-8")
            (programs / program).chmod(0o755)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
        for words, variables in runs:
            done = subprocess.run(
                [word.replace("FOLDER", str(folder)) for word in words], capture_output=True,
                text=True, check=False, timeout=60, cwd=folder, env={
                    "PATH": f"{programs}:{os.environ['PATH']}", "STARTED": str(started),
                    **{key: value.replace("FOLDER", str(folder))
                       for key, value in variables.items()}})
            assert done.returncode == 0, done.stderr
        found = {}
        for one in started.iterdir():
            host, local, world, inside, address = one.read_text(encoding="utf-8").split()
            assert int(world) == len([*started.iterdir()])
            found[int(one.name)] = Started(host, int(local), inside, address)
    return found
