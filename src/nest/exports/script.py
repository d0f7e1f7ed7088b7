"""A launch script: what the user fills in, the arguments, and a process for each device."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nest.exports.places import Places


class Script(NamedTuple):
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
    more: Sequence[str]
    """Arrays of ``given`` that are arguments too."""


def script_text(script: Script, found: Places) -> str:
    """The text of a script for bash."""
    several = len(found.nodes) > 1
    asked = dict(script.asked)
    if several:
        asked |= {"NODE": f"number of this node, 0 to {max(found.nodes)}, in the order of the "
                          "cluster",
                  "MASTER_ADDR": f"address of node {found.nodes[0]}"}
    lines = ["#!/usr/bin/env bash", *(f"# {line}" for line in script.title), "#",
             "# Set in the environment:", *(f"#   {name}: {text}" for name, text in asked.items()),
             "# Arguments of this script go to the program, behind all others.",
             "set -euo pipefail", ""]
    if several:
        lines += ['NODE=${NODE:-${SLURM_NODEID:-}}']
    else:
        lines += ["NODE=0", "MASTER_ADDR=${MASTER_ADDR:-localhost}"]
    lines += ["MASTER_PORT=${MASTER_PORT:-29500}", *script.given, *_check(asked), ""]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in script.variables.items()]
    for name, words in script.sections.items():
        lines += ["", f"{name}=(", *(f"  {shlex.join(each)}" for each in words), ")"]
    arrays = " ".join(f'"${{{name}[@]}}"' for name in (*script.sections, *script.more))
    program = f'{script.program} {arrays} "$@"'
    return "\n".join([*lines, "", *_launch(program, found)]) + "\n"


def places_files(found: Places, title: str) -> dict[str, str]:
    """The file of the places, if a launcher does not find them by itself."""
    if found.each is None:
        rows = [f"{place.node} {place.local} {rank}" for rank, place in enumerate(found.at)]
        return {"ranks": "\n".join(
            [f"# {title}", "# node, device of the node, rank", *rows]) + "\n"}
    if not found.permuted:
        return {}
    head = [f"# {title}", "# nodes, numbered as in the cluster, by their rank"]
    return {"hosts": "\n".join([*head, *map(str, found.nodes)]) + "\n"}


def _check(asked: Mapping[str, str]) -> list[str]:
    names = " ".join(asked)
    return ["missing=", f"for name in {names}; do",
            '  [ -n "${!name:-}" ] || missing+=" $name"', "done",
            'if [ -n "$missing" ]; then',
            '  echo "$0: not set:$missing (the first lines of this file say what they are)" >&2',
            "  exit 2", "fi"]


def _launch(program: str, found: Places) -> list[str]:
    here = 'here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)'
    unknown = ['  echo "$0: no node $NODE in this plan" >&2', "  exit 2", "fi"]
    if found.each is None:  # torchrun numbers the ranks of a node in a row
        return [here, "processes=()", "while read -r node device rank; do",
                '  [ "$node" = "$NODE" ] || continue',
                f'  RANK=$rank LOCAL_RANK=$device WORLD_SIZE={len(found.at)} '
                'MASTER_ADDR=$MASTER_ADDR MASTER_PORT=$MASTER_PORT \\',
                f"    python {program} </dev/null &", "  processes+=($!)",
                "done < <(grep -v '^#' \"$here/ranks\")",
                'if [ "${#processes[@]}" = 0 ]; then', *unknown,
                "trap 'kill \"${processes[@]}\" 2>/dev/null || true' EXIT",
                'for process in "${processes[@]}"; do wait "$process"; done']
    lines, node = [], "$NODE"
    if found.permuted:
        lines = [here, "rank=$(grep -v '^#' \"$here/hosts\" | grep -nx -- \"$NODE\" | "
                 "cut -d: -f1) || true", 'if [ -z "$rank" ]; then', *unknown]
        node = "$((rank - 1))"
    return [*lines, f"torchrun --nnodes {len(found.nodes)} --nproc-per-node {found.each} \\",
            f'  --node-rank "{node}" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\',
            f"  {program}"]
