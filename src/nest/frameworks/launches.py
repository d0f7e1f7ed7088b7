"""Launch scripts that hand a configuration file to a program: which file, and where its ranks are.

Programs: torchtitan (``torchtitan.train``), DeepSpeed (``--deepspeed_config``), MaxText
(``train`` with a .yml), and those that `nest export` writes itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from nest.errors import InputError
from nest.frameworks import fsdp2
from nest.frameworks.deepspeed import read as deepspeed
from nest.frameworks.hosts import HOSTS, Placed, devices_of_hosts, hosts_beside, listed_beside
from nest.frameworks.megatron import bridge
from nest.frameworks.text.shell import ShellCommand, ShellScript
from nest.frameworks.torchtitan import write as torchtitan
from nest.inputs.files import read_text
from nest.units import shorten

_EACH = re.compile(r"--?(?:nproc[-_]per[-_]node|num_gpus)(?:=(.*))?")
_NODES = re.compile(r"--?(?:nnodes|num_nodes)(?:=(.*))?")
_ALL = re.compile(r"(?:-np|-n|--ntasks)(?:=(.*))?")
_DOCUMENT = re.compile(r"cat[ \t]*<<-?[ \t]*(['\"]?)(\w{1,60})['\"]?[ \t]*>[ \t]*(\S{1,300})\n")
MOST_DOCUMENTS = 100
BASE = "base.yml"
"""MaxText's own file of defaults."""
_TORCHTITAN = re.compile(r"(?:^|[./])torchtitan[./]train(?:\.py)?$")
_MAXTEXT = re.compile(r"(?:^|[./])(?:maxtext|MaxText)(?:[./]\w+)*[./]train(?:\.py)?$")


class LaunchedFile(NamedTuple):
    """A command that hands a file to a program."""

    target: str
    file: str
    """Name of the file, as the command has it."""
    words: tuple[str, ...]
    """Arguments of the program besides it."""
    line: int
    function: str | None
    """Of a Python file."""
    world: int | None
    """Devices; None: the script does not say."""
    each: int
    """Devices of a node; 1 where the script does not say."""
    variables: Mapping[str, str] = {}
    """Of the environment of the command."""


def launched(script: ShellScript, path: str) -> LaunchedFile | None:
    """The command of a script that hands a configuration file to a program; None: there is none.

    Parameters
    ----------
    path : of the script.

    Raises
    ------
    InputError : several such commands with different files.
    """
    imports = (Path(os.path.abspath(path)).parent / fsdp2.MODULE).is_file()
    found = [one for command in script.commands if (one := _launch(script, command, imports))]
    if len({(one.target, one.file, one.function) for one in found}) > 1:
        script.refuse_several(one.line for one in found)
    return found[-1] if found else None


def _launch(script: ShellScript, command: ShellCommand, imports: bool) -> LaunchedFile | None:
    """``imports``: beside the script is a module that its program imports."""
    words = [*command.words]
    handed = _handed(words, script)
    if handed is None and imports and any(
            script.plain(word).strip("\"'") == "$PROGRAM"
            or word in (*script.values.get("PROGRAM", ()), command.variables.get("PROGRAM"))
            for word in words):
        handed = ("fsdp2", fsdp2.MODULE, None, len(words))
    if handed is None:
        return None
    target, file, function, at = handed
    rest = [word for n, word in enumerate(words[at:], at) if word != file and not (
        n + 1 < len(words) and words[n + 1] == file and target == "torchtitan-toml") and not (
        (unknown := script.unknowns(word)) and all(one.unset for one in unknown))]
    for before, word in zip(["", *rest], rest, strict=False):
        name = before.removeprefix("--")  # values of options that are not read may be unknown
        if target != "deepspeed" or word.startswith("--") or name in (before, *deepspeed.READ):
            script.need(word, f"--{name}" if name != before else "an argument")
    world, each = _devices(words[:at], command)
    plain = script.plain(file)
    return LaunchedFile(target, plain.rpartition("/")[2] if script.unknowns(file) else plain,
                  tuple(map(script.plain, rest)), command.line, function, world, each,
                  command.variables)


def _handed(words: list[str], script: ShellScript) -> tuple[str, str, str | None, int] | None:
    """Target, file, function, and the first word behind the program."""
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        following = value if equals else words[at + 1] if at + 1 < len(words) else ""
        if option in ("--deepspeed_config", "--deepspeed-config", "--deepspeed") and (
                not following.startswith("--")) and script.plain(following).endswith(".json"):
            start = next((n for n, one in enumerate(words) if one.endswith((".py", '$PROGRAM'))
                          or script.plain(one).endswith("$PROGRAM")), at - 1)
            return "deepspeed", following, None, start + 1
        if _TORCHTITAN.search(word):
            options = dict(zip(words[at + 1:], words[at + 2:], strict=False))
            if "--module" in options and "--config" in options:
                module = options["--module"]
                file = torchtitan.CONFIG if module == "plan_config" else f"{module}.py"
                return "torchtitan", file, options["--config"], at + 1
            for name, named in options.items():
                if name in ("--job.config_file", "--job.config-file"):
                    return "torchtitan-toml", named, None, at + 1
        if _MAXTEXT.search(word) and script.plain(following).endswith((".yml", ".yaml")):
            return "maxtext", following, None, at + 2
        if script.plain(word).endswith(bridge.PROGRAM):
            return "megatron-bridge", word, None, at + 1
    return None


def _devices(words: list[str], command: ShellCommand) -> tuple[int | None, int]:
    """Devices in all, and of a node."""
    found: dict[str, int] = {}
    lost = False  # a number that the script does not say
    for at, word in enumerate(words):
        for name, form in (("each", _EACH), ("nodes", _NODES), ("all", _ALL)):
            if match := form.fullmatch(word):
                value = match[1] or (words[at + 1] if at + 1 < len(words) else "")
                if re.fullmatch(r"\d{1,7}", value):
                    found.setdefault(name, int(value))
                else:
                    lost = True
    if re.fullmatch(r"\d{1,7}", size := command.variables.get("WORLD_SIZE", "")):
        found["all"] = int(size)
    each = found.get("each", 1)
    if "all" not in found and "each" in found:
        found["all"] = each * found.get("nodes", 1)
    return None if lost else found.get("all"), each


def text_inside(launch: LaunchedFile, script: ShellScript, text: str) -> str | None:
    """The file that a command names, where the script writes it itself: ``cat <<END > FILE``.

    Raises
    ------
    InputError : its text depends on what the script does not say.
    """
    known = {key: " ".join(value) for key, value in script.values.items()}
    for found in islice(_DOCUMENT.finditer(text), MOST_DOCUMENTS):
        quoted, end, name = found.groups()
        there = _expanded(name, script, known)
        stop = text.find(f"\n{end}\n", found.end() - 1)
        if stop >= 0 and (there == launch.file or there.endswith(f"/{launch.file}")):
            body = text[found.end():stop + 1]
            return body if quoted else _expanded(body, script, known, launch)
    return None


def _expanded(
    text: str, script: ShellScript, known: dict[str, str], launch: LaunchedFile | None = None
) -> str:
    """A text with the values of variables, as between double quotes."""
    for name in re.findall(r"\$\{?(\w+)", text) if launch else ():
        script.need(known.get(name, ""), launch.file if launch else "")
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    inner = ShellScript(f'NEST_TEXT="{quoted}"', script.where, {
        name: value for name, value in known.items() if not script.unknowns(value)})
    [value] = inner.values["NEST_TEXT"]
    return inner.need(value, launch.file) if launch else inner.plain(value)


def file_of(launch: LaunchedFile, script: str) -> str:
    """Path of the file that a command names: from the script's folder, or one above it.

    MaxText's own base.yml, whose values are the defaults, need not be there.

    Raises
    ------
    InputError : there is no such file.
    """
    folder = Path(os.path.abspath(script)).parent
    name = os.path.basename(launch.file)
    around = (folder, *list(folder.parents)[:3])
    for above in around:
        found = Path(os.path.normpath(above / launch.file))
        if found.is_relative_to(around[-1]) and not launch.file.startswith("/") and (
                os.path.isfile(found)):
            return str(found)
    if os.path.isfile(folder / name):
        return str(folder / name)
    if launch.target == "maxtext" and name == BASE:
        return str(folder / name)
    raise InputError(f"{script}: line {launch.line}: the program reads {shorten(launch.file)}, "
                     "which is not beside the script; read that file by itself, with --devices N")


def places_beside(launch: LaunchedFile, text: str, script: str) -> Placed | None:
    """Device of each rank, in lists of hosts or ranks that a script reads; None: it reads none.

    Raises
    ------
    InputError : a list that cannot be read.
    """
    return listed_beside(text, script, launch.each) or hosts_beside(text, script)


def unread_beside(file: str) -> str | None:
    """Name of a list beside a file that orders its ranks, where no script was read; None: none
    does."""
    folder = Path(os.path.abspath(file)).parent
    for name in ("ranks", "hosts"):  # written where the order is not that of the devices
        if (folder / name).is_file():
            return name
    for name in HOSTS:
        try:
            found = devices_of_hosts(read_text(folder / name), name)
        except InputError:  # not there, or not one that a script of NEST reads
            continue
        if found != tuple(range(len(found))):
            return name
    return None
