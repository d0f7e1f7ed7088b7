"""How the processes of a launch are started, such that each rank is where the plan has it.

A launch script has what the user fills in, the arguments, and a process for each device.

A launcher numbers ranks in its own way. Whole nodes are permuted where that is enough
(`RankPlaces.each`), ranks where it is not:

- torchrun, started on each node: ranks of a node in a row, nodes by ``--node-rank``. Else the
  script starts the processes of a node itself.
- deepspeed, started once: ranks in the order of the lines of a hostfile, and no other
  (deepspeed==0.19.8 deepspeed/launcher/runner.py:212, deepspeed/launcher/launch.py:167).
- mpirun of Open MPI 5, started once: in the order of the lines of a hostfile (``--map-by slot``),
  or by a rankfile (``--map-by rankfile``). Slots of a rankfile are processors; ``--bind-to none``
  leaves a process all of them.
- srun of Slurm, started once: task n is on the host of line n of the list that SLURM_HOSTFILE names
  (``--distribution=arbitrary``). Hosts are known once they are allocated: without names of the
  user's, the script takes those of the allocation in its order for the plan's nodes in theirs.

What starts a process by rank alone (mpirun, srun) also gives its device: that is not the number of
the process on its node, because ranks of a node may have any order.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from nest.frameworks.hosts import RankPlaces

HERE = 'here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)'
"""Line of shell: the folder of the script."""
_NO_NODE = ['  echo "$0: no node $NODE in this plan" >&2', "  exit 2", "fi"]
DEFAULT = "torchrun"


class Program(NamedTuple):
    """What a launcher starts."""

    text: str
    """Words of shell: the program and its arguments."""
    names: Sequence[str]
    """Environment variables that it reads, besides those that say its place."""
    lines: Sequence[str]
    """Lines of shell in each process before it, with RANK, LOCAL_RANK and WORLD_SIZE set."""
    container: str = ""
    """Words of shell between srun and a process: options, or a program that starts another."""


class Launcher(NamedTuple):
    """What starts the processes."""

    per_node: bool
    """The script is run on each node; else on one."""
    files: Callable[[RankPlaces, str], dict[str, str]]
    """Lists of hosts or ranks, by name, with a title in their first line."""
    lines: Callable[[RankPlaces, Program], list[str]]
    """Lines of shell that start a program."""
    ranks: bool = True
    """It can place each rank, and not only whole nodes."""


def _text(title: str, *lines: str, rows: Iterable[object]) -> str:
    return "\n".join([f"# {title}", *(f"# {line}" for line in lines), *map(str, rows)]) + "\n"


def _ranks(found: RankPlaces, title: str) -> dict[str, str]:
    if found.each is not None:
        return {}
    rows = (f"{place.node} {place.local} {rank}" for rank, place in enumerate(found.at))
    of = f" of {found.per_node}" if found.per_node else ""
    return {"ranks": _text(title, *found.used, f"node, device{of} of the node, rank", rows=rows)}


def _node_numbers(found: RankPlaces, title: str) -> dict[str, str]:
    if found.each is None or not found.permuted:
        return _ranks(found, title)
    head = "nodes, numbered as in the cluster, by their rank"
    return {"hosts": _text(title, *found.used, head, rows=found.nodes)}


def _hostfile(found: RankPlaces, title: str) -> dict[str, str]:
    """Hosts with as many slots as ranks, the first ranks first."""
    slots = [sum(place.node == node for place in found.at) if found.each is None else found.each
             for node in found.nodes]
    return {"hostfile": _text(title, *found.used, rows=(
        f"{found.names[node]} slots={count}"
        for node, count in zip(found.nodes, slots, strict=True)))}


def _rankfile(found: RankPlaces, title: str) -> dict[str, str]:
    if found.each is not None:
        return _hostfile(found, title)
    return {**_ranks(found, title), **_hostfile(found, title), "rankfile": _text(
        title, *found.used, rows=(f"rank {rank}={found.names[place.node]} slot={place.local}"
                                  for rank, place in enumerate(found.at)))}


def _tasks(found: RankPlaces, title: str) -> dict[str, str]:
    """Hosts by rank; a list for Slurm has no comments, so that the title is left out. Without names
    nodes by rank."""
    if not found.named:
        return {**_ranks(found, title), "slurm.nodes": _text(
            title, *found.used, "node of each rank; a job gets its hosts in the order of the nodes",
            rows=(place.node for place in found.at))}
    return {**_ranks(found, title), "slurm.hosts": "".join(
        f"{found.names[place.node]}\n" for place in found.at)}


def _torchrun(found: RankPlaces, program: Program) -> list[str]:
    if found.each is None:  # torchrun numbers the ranks of a node in a row
        start, own = "python", []
        if program.lines:
            start, own = 'bash -c "$process" "$here"', _process(program)
        return [*own, "processes=()", "while read -r node device rank; do",
                '  [ "$node" = "$NODE" ] || continue',
                f'  RANK=$rank LOCAL_RANK=$device WORLD_SIZE={len(found.at)} '
                'MASTER_ADDR=$MASTER_ADDR MASTER_PORT=$MASTER_PORT \\',
                f"    {start} {program.text} </dev/null &", "  processes+=($!)",
                "done < <(grep -v '^#' \"$here/ranks\")",
                'if [ "${#processes[@]}" = 0 ]; then', *_NO_NODE,
                "trap 'kill \"${processes[@]}\" 2>/dev/null || true' EXIT",
                # One that fails ends the others; `wait -n` misses those that ended before it
                # (bash before 5.3).
                'while [ "${#processes[@]}" -gt 0 ]; do', '  for n in "${!processes[@]}"; do',
                '    kill -0 "${processes[n]}" 2>/dev/null && continue',
                '    wait "${processes[n]}"', '    unset "processes[n]"', "  done", "  sleep 1",
                "done"]
    lines, node = [], "$NODE"
    if found.permuted:
        lines = ["rank=$(grep -v '^#' \"$here/hosts\" | grep -nx -- \"$NODE\" | "
                 "cut -d: -f1) || true", 'if [ -z "$rank" ]; then', *_NO_NODE]
        node = "$((rank - 1))"
    return [*lines, f"torchrun --nnodes {len(found.nodes)} --nproc-per-node {found.each} \\",
            f'  --node-rank "{node}" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\',
            f"  {program.text}"]


def _deepspeed(found: RankPlaces, program: Program) -> list[str]:
    """Its launcher passes few variables on, and those that a file of its own names."""
    lines = ["[ ! -f \"$here/deepspeed_env\" ] || export DS_ENV_FILE=$here/deepspeed_env"] \
        if program.names else []
    module = f"--module {program.text[3:]}" if program.text.startswith("-m ") else program.text
    local = "" if len(found.nodes) > 1 else f"--num_gpus {len(found.at)} "
    hosts = '--hostfile "$here/hostfile" ' if not local else ""
    return [*lines, f"deepspeed {hosts}{local}\\",
            '  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \\', f"  {module}"]


def _process(program: Program, *before: str) -> list[str]:
    """Lines that define ``process``, shell for each process: its variables, then its program."""
    return ["process='set -eu", *before, *program.lines, "exec python \"$@\"'"]


def _by_rank(found: RankPlaces, program: Program, rank: str) -> list[str]:
    """The process of a launcher that says the rank alone."""
    device = f"$((RANK % {found.each}))" if found.each is not None else \
        '$(grep " $RANK\\$" "$0/ranks" | cut -d" " -f2)'
    return [*_process(program, f"export RANK=${rank}",
                      f"export LOCAL_RANK={device} WORLD_SIZE={len(found.at)}"),
            "export MASTER_ADDR MASTER_PORT"]


def _mpirun(found: RankPlaces, program: Program) -> list[str]:
    places = '--map-by slot' if found.each is not None else \
        '--map-by "rankfile:file=$here/rankfile"'
    # It warns of variables that are not set, and goes on.
    names = " ".join(f"-x {name}" for name in ("MASTER_ADDR", "MASTER_PORT", *program.names))
    return [*_by_rank(found, program, "OMPI_COMM_WORLD_RANK"),
            f'mpirun -np {len(found.at)} --hostfile "$here/hostfile" {places} --bind-to none \\',
            f'  {names} bash -c "$process" "$here" \\', f"  {program.text}"]


def _srun(found: RankPlaces, program: Program) -> list[str]:
    before, hosts = [], "$here/slurm.hosts"
    if not found.named:
        count, hosts = len(found.nodes), "$tasks"
        before = [
            'mapfile -t hosts < <(scontrol show hostnames "${SLURM_JOB_NODELIST:-}")',
            "mapfile -t nodes < <(grep -v '^#' \"$here/slurm.nodes\" | sort -nu)",
            f'if [ "${{#hosts[@]}}" != {count} ]; then',
            '  echo "$0: ${#hosts[@]} nodes are allocated (SLURM_JOB_NODELIST); the plan is for '
            f'{count}: sbatch --nodes={count}" >&2', "  exit 2", "fi",
            'for n in "${!nodes[@]}"; do node=${nodes[n]}; host[node]=${hosts[n]}; done',
            f"MASTER_ADDR=${{MASTER_ADDR:-${{host[{found.nodes[0]}]}}}}",
            "tasks=$(mktemp)", "trap 'rm -f \"$tasks\"' EXIT",
            "grep -v '^#' \"$here/slurm.nodes\" | while read -r node; do", '  echo "${host[node]}"',
            'done > "$tasks"']
    return [*before, *_by_rank(found, program, "SLURM_PROCID"),
            f'SLURM_HOSTFILE={hosts} srun --distribution=arbitrary \\',
            f"  --nodes={len(found.nodes)} --ntasks={len(found.at)} "
            f"{program.container}{' ' if program.container else ''}"
            'bash -c "$process" "$here" \\', f"  {program.text}"]


LAUNCHERS: Mapping[str, Launcher] = {
    "torchrun": Launcher(True, _node_numbers, _torchrun),
    "deepspeed": Launcher(False, _hostfile, _deepspeed, ranks=False),
    "mpi": Launcher(False, _rankfile, _mpirun),
    "slurm": Launcher(False, _tasks, _srun)}
"""Launchers by name."""


class LaunchScript(NamedTuple):
    """What a launch script says."""

    title: Sequence[str]
    """Lines of its comment: what it launches, and for which version. Names are one line each."""
    variables: Mapping[str, str]
    """Environment variables that the software asks for."""
    asked: Mapping[str, str]
    """Variables that the user sets, with what they are."""
    given: Sequence[str]
    """Lines of shell after these: what depends on them."""
    sections: Mapping[str, Sequence[Sequence[str]]]
    """Arguments by the name of their array, the words of each."""
    program: str
    """Words of shell for the program and what comes before its arguments."""
    more: Sequence[str] = ()
    """Arrays of ``given`` or ``later`` that are arguments too."""
    words: Sequence[str] = ()
    """Words of shell between the program and the arrays, such as a file of ``$here``."""
    passed: Sequence[str] = ()
    """Names of other environment variables that each process reads."""
    process: Sequence[str] = ()
    """Lines of shell in each process before its program."""
    unsaid: Sequence[str] = ()
    """Settings that no plan has and that the run depends on, with what they are."""
    later: Sequence[str] = ()
    """Lines of shell behind the arrays, where the variables of the user are known to be set."""


def script_text(
    script: LaunchScript, found: RankPlaces, launcher: str, container: str = ""
) -> str:
    """The text of a script for bash."""
    how = LAUNCHERS[launcher]
    several = len(found.nodes) > 1 and how.per_node
    asked = dict(script.asked)
    if several:
        asked |= {"NODE": f"number of this node, 0 to {max(found.nodes)}, in the order of the "
                          "cluster",
                  "MASTER_ADDR": f"address of node {found.nodes[0]}"}
    lines = ["#!/usr/bin/env bash", *(f"# {line}" for line in (*script.title, *found.used)), "#",
             *(["# Set in the environment:", *(f"#   {name}: {text}"
                                               for name, text in asked.items())] if asked else []),
             *(["# In no plan, and as the program or its files have it unless you set it:",
                *(f"#   {text}" for text in script.unsaid)] if script.unsaid else []),
             "# Arguments of this script go to the program, behind all others.",
             "set -euo pipefail", ""]
    if several:
        lines += ['NODE=${NODE:-${SLURM_NODEID:-}}']
    elif how.per_node:
        lines += ["NODE=0", "MASTER_ADDR=${MASTER_ADDR:-localhost}"]
    else:
        first = "localhost" if len(found.nodes) == 1 else \
            found.names[found.nodes[0]] if found.named or launcher != "slurm" else ""
        lines += [f"MASTER_ADDR=${{MASTER_ADDR:-{first}}}"]
    lines += ["MASTER_PORT=${MASTER_PORT:-29500}", *script.given, *_check(asked), ""]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in script.variables.items()]
    for name, words in script.sections.items():
        lines += ["", f"{name}=(", *(f"  {shlex.join(each)}" for each in words), ")"]
    lines += script.later
    arrays = (f'"${{{name}[@]}}"' for name in (*script.sections, *script.more))
    program = " ".join([script.program, *script.words, *arrays, '"$@"'])
    ends = how.lines(found, Program(program, (*script.variables, *script.passed), script.process,
                                    container))
    if any("$here" in line for line in ends):
        ends.insert(0, HERE)
    return "\n".join([*lines, "", *ends]) + "\n"


def _check(asked: Mapping[str, str]) -> list[str]:
    if not asked:
        return []
    names = " ".join(asked)
    return ["missing=", f"for name in {names}; do",
            '  [ -n "${!name:-}" ] || missing+=" $name"', "done",
            'if [ -n "$missing" ]; then',
            '  echo "$0: not set:$missing (the first lines of this file say what they are)" >&2',
            "  exit 2", "fi"]


def places_files(
    found: RankPlaces, title: str, launcher: str, variables: Mapping[str, str]
) -> dict[str, str]:
    """Lists of hosts or ranks that a launcher needs, and for DeepSpeed's the variables."""
    files = LAUNCHERS[launcher].files(found, title)
    if launcher == "deepspeed" and variables:
        files["deepspeed_env"] = "".join(f"{name}={value}\n" for name, value in variables.items())
    return files
