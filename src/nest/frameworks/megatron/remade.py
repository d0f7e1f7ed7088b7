"""A new launch script for a plan, with the user's other arguments: where the old one cannot say it.

It is written as `nest export` writes scripts. What the old script did beside its command, such as
loading modules, is not in it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from nest.evaluation.plans import Plan
from nest.frameworks.arguments import Words
from nest.frameworks.hosts import RankPlaces
from nest.frameworks.megatron import write as megatron
from nest.frameworks.megatron.script import PROGRAM, Launch
from nest.frameworks.script import LaunchScript, script_text
from nest.frameworks.text.shell import MARK, Unknown

NAME = "launch.sh"
SEVERAL = ("data-path", "train-data-path", "valid-data-path", "test-data-path")
"""Arguments of which one variable may hold several words."""
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*|\d{1,3})(?::?-)?\}?", re.ASCII)


def remade(
    launch: Launch, plan: Plan, arguments: Mapping[str, Words], marked: Mapping[str, Words],
    found: RankPlaces, title: Sequence[str],
) -> str:
    """The text of a script that launches a plan.

    Parameters
    ----------
    launch : the old script.
    plan : what is launched.
    arguments : of the new command line, by name.
    marked : of the old one, with marks where the script does not say a value.
    found : places of the ranks.
    title : lines of its comment.
    """
    asked: dict[str, str] = {}
    for one in launch.script.unknowns(" ".join(launch.marked)):
        if variable := _VARIABLE.fullmatch(one.text):
            name = variable[1]
            asked[f"ARG{name}" if name.isdigit() else name] = (
                f"argument {name} of {launch.where}" if name.isdigit()
                else f"as in the environment of {launch.where}")
    lines = ["", "ARGUMENTS=("]
    for name, words in arguments.items():
        old = marked.get(name, ())
        same = tuple(launch.script.plain(word) for word in old) == words
        texts = [_shell(word, launch.script.unknown, name in SEVERAL) for word in old] \
            if same else [shlex.quote(word) for word in words]
        lines.append("  " + " ".join([f"--{name}", *texts]))
    variables = {
        name: value for name, value in launch.script.exported.items()
        if not MARK.search(value) and name not in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")}
    program = next(word for word in launch.command.words if PROGRAM.search(word))
    script = LaunchScript(
        title=title, variables={**variables, **megatron.variables(
            plan.configuration, plan.inputs.job, plan.inputs.cluster.device.name)},
        asked=asked, given=[], sections={}, more=("ARGUMENTS",), later=[*lines, ")"],
        program=_shell(program, launch.script.unknown))
    return script_text(script, found, "torchrun")


def _shell(word: str, unknown: Sequence[Unknown], several: bool = False) -> str:
    """A word of shell, with what the old script does not say as it stands there.

    ``several``: where it is a variable, words of it are arguments of their own.
    """
    found = [*_parts(word, unknown)]
    if several and len(found) == 1 and found[0].startswith('"$'):
        return found[0].strip('"')
    return "".join(found) or "''"


def _parts(word: str, unknown: Sequence[Unknown]) -> Iterator[str]:
    done = 0
    for mark in MARK.finditer(word):
        if word[done:mark.start()]:
            yield shlex.quote(word[done:mark.start()])
        text = unknown[int(mark[1])].text
        argument = _VARIABLE.fullmatch(text)
        if argument and argument[1].isdigit():
            text = f"${{ARG{argument[1]}}}"
        yield f'"{text}"'
        done = mark.end()
    if word[done:]:
        yield shlex.quote(word[done:])
