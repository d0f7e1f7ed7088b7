"""What launchers make of the files that a script hands them, replayed: where each rank starts.

Stands in for torchrun, deepspeed, mpirun and srun: reads their lists of hosts and ranks as their
manuals say, and starts each process as they do. Each `python` only says where it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

PYTHON = """#!/bin/sh
set -C
echo "$HOST $LOCAL_RANK $WORLD_SIZE" > "$STARTED/$RANK"
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
              WORLD_SIZE=each * int(value("--nnodes")))
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
elif name == "scontrol":
    assert words == ["show", "hostnames", "a list of hosts"]
    print(env["ALLOCATED"].replace(" ", "\\n"))
elif name == "srun":
    hosts = Path(env["SLURM_HOSTFILE"]).read_text().split()
    assert "--distribution=arbitrary" in words and f"--ntasks={{len(hosts)}}" in words
    assert f"--nodes={{len(set(hosts))}}" in words
    for rank, host in enumerate(hosts):
        start(words[words.index("bash"):], host, SLURM_PROCID=rank,
              SLURM_LOCALID=hosts[:rank].count(host))
"""


def placed(
    files: Mapping[str, str], launcher: str, hosts: Sequence[str], variables: Mapping[str, str]
) -> dict[int, tuple[str, int]]:
    """Host and device of each rank, as a script starts them.

    Parameters
    ----------
    hosts : names of the nodes in the order of the cluster.
    """
    with TemporaryDirectory() as name:
        folder, programs, started = (Path(name) / one for one in ("two words", "bin", "started"))
        for one in (folder, programs, started):
            one.mkdir()
        for program in ("python", "torchrun", "deepspeed", "mpirun", "srun", "scontrol"):
            text = PYTHON if program == "python" else LAUNCHER
            (programs / program).write_text(text, encoding="utf-8")
            (programs / program).chmod(0o755)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
        nodes = [*enumerate(hosts)] if launcher == "torchrun" else [(0, "where it is run")]
        for node, host in nodes:
            done = subprocess.run(
                ["bash", str(folder / "launch.sh")], capture_output=True, text=True, check=False,
                timeout=60, env={"PATH": f"{programs}:{os.environ['PATH']}", "HOST": host,
                                 "NODE": str(node), "MASTER_ADDR": "first",
                                 "STARTED": str(started), "ALLOCATED": " ".join(hosts),
                                 "SLURM_JOB_NODELIST": "a list of hosts", **variables})
            assert done.returncode == 0, done.stderr
        found = {}
        for one in started.iterdir():
            host, local, world = one.read_text(encoding="utf-8").split()
            assert int(world) == len([*started.iterdir()])
            found[int(one.name)] = host, int(local)
    return found
