"""A launch script: what the user fills in, the arguments, and a process for each device."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nest.frameworks.hosts import RankPlaces
from nest.frameworks.launchers import HERE, LAUNCHERS, Program


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


def script_text(script: LaunchScript, found: RankPlaces, launcher: str) -> str:
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
    ends = how.lines(found, Program(program, (*script.variables, *script.passed), script.process))
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
