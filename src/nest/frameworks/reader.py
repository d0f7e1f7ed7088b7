"""A job's own file, of any target, read back: :func:`read`."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from nest.errors import InputError, did_you_mean
from nest.frameworks import launches, maxtext
from nest.frameworks.capture.document import ScriptText, refuse_variables, script_text
from nest.frameworks.capture.stand_in import slurm
from nest.frameworks.deepspeed import read as deepspeed
from nest.frameworks.kubernetes import ContainerScript, is_kubernetes, script_of
from nest.frameworks.launches import LaunchedFile
from nest.frameworks.megatron import script as megatron_script
from nest.frameworks.megatron.script import Reading, reading_of
from nest.frameworks.registry import FORMATS, READERS
from nest.frameworks.settings import arguments_of, flat, known
from nest.frameworks.source import Source, Stated, among
from nest.frameworks.text.python_text import dotted
from nest.frameworks.text.shell import ShellScript
from nest.frameworks.translated import settings_of
from nest.inputs.arguments import takes
from nest.inputs.files import document_of, parse_text, read_description, read_text
from nest.inputs.model import Model
from nest.measured import logs
from nest.units import shorten

TARGETS = ("megatron", *READERS)
LOG = "log"
"""What a job printed, as a target of :func:`read`."""
_DOCUMENT = re.compile(r"^---(?=\s|$)", re.MULTILINE)
"""Where a document of YAML begins."""
_SAYS = re.compile(r"^\s*[^\s#]", re.MULTILINE)
"""A line that is no comment."""
_KIND = re.compile(r"^kind\s*:", re.MULTILINE)
"""A line of each file of Kubernetes."""
MOST_PARTS = 1000
"""Documents of a file of Kubernetes."""
_SUFFIXES = {".toml": "torchtitan-toml", ".json": "deepspeed", ".yml": "maxtext",
             ".yaml": "maxtext"}
"""Of files of plain data, and their targets where their keys tell nothing."""
_OURS = re.compile(r"[\"']?schema[\"']?\s*:\s*[\"']?nest\.\w")


@takes(path="path", target="text", vocab="whole", seq_len="whole", precision="text",
       optimizer="text", stack="text", function="text", variables="mapping", ignore="texts",
       devices="whole", launch="whole")
def read(
    path: str | os.PathLike[str], *, target: str | None = None, devices: int | None = None,
    model: Model | str | None = None, vocab: int | None = None, seq_len: int | None = None,
    precision: str | None = None, optimizer: str | None = None, stack: str | None = None,
    function: str | None = None, variables: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (), launch: int | None = None,
) -> Reading:
    """Read a running job's file as model, job and configuration.

    The file is read as text; nothing in it is executed.

    Parameters
    ----------
    path : of a launch script, of a file with a command line, of a document of `nest capture`, of a
        configuration file, or of a log in which the job printed its configuration.
    target : what it is for, a name of :data:`TARGETS`, or ``log``; default: as the file shows.
    devices : that the job runs on; default: as the launcher or the degrees say.
    model : the model, where the file does not describe it: a catalog name, a path, or a Model.
    vocab : tokens of the vocabulary, where only the tokenizer's files say them.
    seq_len, precision, optimizer : of the job, where the file does not say.
    stack : name of the training software in the catalog; default: as the file says.
    function : of a Python module: it returns the configuration.
    variables : of a script's environment, by name; "1", "2", ... are arguments of the script. Names
        with dots, names in lower case that the script has no variable of, and all names where
        ``path`` is no script, are settings that override the file's.
    ignore : arguments or settings to leave out, which are not understood otherwise; each is in the
        file, or in its command line.

    launch : of a document of `nest capture` with several launches, the number of one, from 1.

    Returns
    -------
    Reading
        ``nest.evaluate(found.model, cluster, found.job, found.configuration)`` prices it;
        ``found.log`` has what a log measured.

    Raises
    ------
    InputError : no such file, not one of a known kind, settings that may change the cost and are
        not understood, values that it does not say, names in ``ignore`` that it does not have, or
        degrees of experts that do not divide them.
    """
    asked = Stated(model, vocab, seq_len, precision, optimizer, stack, devices,
                  tuple(one.removeprefix("--") for one in ignore), function)
    if target == LOG or target is None and logs.is_log(path):
        reading: Reading = logs.read(
            path, model=model, vocab=vocab, seq_len=seq_len, precision=precision, stack=stack,
            optimizer=optimizer, devices=devices, variables=variables, ignore=ignore).settings
        return reading
    script = None if target not in (None, "megatron") else _in_kubernetes(path)
    if script is not None:
        asked = asked._replace(devices=devices or script.devices)
        variables = {**script.variables, **(variables or {})}
        file = _launched(ScriptText(script.text, os.fspath(path)),
                         shorten(os.fspath(path), 300)[1:-1], asked, variables)
    else:
        file = opened(path, target, asked, variables, launch)
    found = read_file(file) if file else megatron_script.read(
        path, devices=asked.devices, vocab=vocab, stack=stack, variables=variables, ignore=ignore,
        launch_number=launch, text=script and script.text)
    if asked.ignored:
        check_ignored(asked.ignored, names_of(file.target, file.source) if file else names_of_words(
            found.words), shorten(os.fspath(path), 300)[1:-1])
    return found


def devices_of(
    path: str | os.PathLike[str], *, target: str | None = None,
    variables: Mapping[str, str] | None = None, launch: int | None = None, **said: Any,
) -> int:
    """Devices of a job, as its launcher or its degrees say.

    Parameters
    ----------
    path, target, variables, launch, said : as of :func:`read`.

    Raises
    ------
    InputError : as :func:`read`; of a script of Megatron-LM only if its launcher does not say it.
    """
    if opened(path, target, Stated(), variables, launch) is not None:
        return read(path, target=target, variables=variables, launch=launch, **said).devices
    found = megatron_script.opened(path, variables, launch)
    return megatron_script.world_of(found.launcher, found.where)


class Opened(NamedTuple):
    """A configuration file, and the script that hands it to a program."""

    target: str
    source: Source
    path: str
    """Of the file, or of the script that writes it."""
    launch: LaunchedFile | None = None
    """Of the script; None: the file is read by itself."""
    script: ShellScript | None = None
    begun: ScriptText = ScriptText("", "")
    """The script."""
    given: Mapping[str, str] = {}
    """What the user gives the script: variables, arguments, settings."""
    inside: bool = False
    """The script writes the file."""


def opened(
    path: str | os.PathLike[str], target: str | None, asked: Stated,
    variables: Mapping[str, str] | None, launch: int | None = None,
) -> Opened | None:
    """Find what a file is for; see :func:`read`. None: a script or command line of Megatron-LM.

    Parameters
    ----------
    asked : what the user says, but for settings, which are among ``variables``.

    Raises
    ------
    InputError : as :func:`read`, but for what the file says.
    """
    if target is not None and target not in (*TARGETS, LOG):
        raise InputError(f"target: got {shorten(target)}; {did_you_mean(target, TARGETS)}allowed: "
                         f"{', '.join((*TARGETS, LOG))}")
    where = shorten(os.fspath(path), 300)[1:-1]
    if target == LOG or target is None and logs.is_log(path):
        raise InputError(f"{where}: got a log, which has no settings to change; allowed: the "
                         "job's launch script or configuration file")
    begun, given = script_text(path, launch), dict(variables or {})
    text = begun.text
    if begun.capture is None:
        _refuse_ours(text, Path(os.fspath(path)).suffix.lower(), where)
    software = None if begun.capture else _software(path, text, where, target)
    if software is None:
        launched = None if target == "megatron" else _launched(begun, where, asked, given)
        if launched is None and target not in (None, "megatron"):
            raise InputError(f"{where}: no command found that hands a file to {target}; "
                             "allowed: its launch script, or the file itself")
        return launched
    if target == "megatron":
        raise InputError(f"{where}: got a file for {software}; allowed: a launch script or a "
                         "command line of Megatron-LM")
    return Opened(target or software, Source(text, where, asked._replace(settings=given)),
                  os.fspath(path))


def _in_kubernetes(path: str | os.PathLike[str]) -> ContainerScript | None:
    """The script in a file of Kubernetes; None: it is none.

    Raises
    ------
    InputError : one without a command.
    """
    suffix = Path(os.fspath(path)).suffix.lower()
    if suffix not in (".yaml", ".yml") or not os.path.isfile(path):
        return None
    where, text = shorten(os.fspath(path), 300)[1:-1], read_text(path)
    if not _KIND.search(text):
        return None
    parts = [part for part in _DOCUMENT.split(text) if _SAYS.search(part)]
    documents = [parse_text(part, suffix, where) for part in parts[:MOST_PARTS]]
    return script_of(documents, where) if any(map(is_kubernetes, documents)) else None


def _refuse_ours(text: str, suffix: str, where: str) -> None:
    """Refuse a document that NEST wrote: it is no file of training software."""
    json = text.lstrip().startswith("{")
    if not _OURS.search(text) or not (json or suffix in (".json", ".yml", ".yaml")):
        return
    data = parse_text(text, ".json" if json else suffix, where)
    document = document_of(data) if isinstance(data, Mapping) else None
    if document is not None:
        got = (f"a plan file, which `nest evaluate {where}` prices"
               if document == "plan" else f"a document of NEST ({data['schema']:.40})")
        raise InputError(f"{where}: got {got}; allowed: a launch script or a configuration file of "
                         "training software")


def _software(
    path: str | os.PathLike[str], text: str, where: str, target: str | None
) -> str | None:
    """The target of a configuration file; None: it is a script.

    Raises
    ------
    InputError : a file of software that NEST does not read, or knows nothing of.
    """
    suffix = Path(os.fspath(path)).suffix.lower()
    if suffix in _SUFFIXES:
        parts = [part for part in _DOCUMENT.split(text) if _SAYS.search(part)]
        whole = suffix not in (".yaml", ".yml") or len(parts) < 2
        data = parse_text(text if whole else parts[0], suffix, where)  # Kubernetes has several
        if target not in (None, "megatron") or not isinstance(data, dict) or not data:
            return _SUFFIXES[suffix]
        owner = owner_of(data)
        if owner is None:
            keys = ", ".join(shorten(str(one))[1:-1] for one in [*data][:6])
            read = ", ".join(one.name for one in owners() if one.target)
            raise InputError(f"{where}: its keys ({keys}) are of no software that NEST knows; "
                             f"allowed: files of {read}, a launch script, or a file with the "
                             "command line of Megatron-LM (--from TARGET says what it is for)")
        if not owner.target:
            raise InputError(f"{where}: a file of {owner.name}, which NEST does not read; "
                             f"{owner.says}")
        return owner.target
    if suffix != ".py":
        return None
    for mark, software in (("megatron.bridge", "megatron-bridge"), ("DP_REPLICATE", "fsdp2")):
        if mark in text:
            return software
    return "torchtitan"


def changed(found: Opened, body: str, text: str) -> Opened | None:
    """The same with other texts of the file and of the script; None: it hands over none.

    Raises
    ------
    InputError : as :func:`read`, of the new script.
    """
    source = found.source
    if found.script is None:
        return found._replace(source=source._replace(text=body))
    return _launched(found.begun._replace(text=text), found.script.where, source.asked, found.given,
                     None if found.inside else body)


def _launched(
    begun: ScriptText, where: str, asked: Stated, given: Mapping[str, str],
    body: str | None = None,
) -> Opened | None:
    """The file that a script hands to a program; None: it hands over none.

    ``body``: its text, where it is not that of the file that is there.
    """
    text, path = begun.text, begun.path
    settings = {name: value for name, value in given.items() if "." in name or (
        name.islower() and not re.search(rf"\$\{{?{re.escape(name)}\b", text))}
    own = {name: value for name, value in given.items() if name not in settings}
    script = ShellScript(text, where, {**slurm(text), **own}, captured=begun.capture is not None)
    launch = launches.launched(script, path)
    if launch is None:
        return None
    if begun.capture is not None:
        refuse_variables(where, own)
    inside = launches.text_inside(launch, script, text)
    file = path if inside is not None else launches.file_of(launch, path)
    absent = launch.target == "maxtext" and not os.path.isfile(file)
    if body is None:
        body = inside if inside is not None else "{}\n" if absent else read_text(file)
    source = Source(
        body, where if absent else shorten(file, 300)[1:-1], asked._replace(
            settings=settings, function=asked.function or launch.function), launch.words,
        launches.places_beside(launch, begun.written, path), launch.world)
    return Opened(launch.target, source, file, launch, script, begun, given, inside is not None)


def read_file(found: Opened) -> Reading:
    """Read a configuration file; see :func:`read`.

    Raises
    ------
    InputError : as :func:`read`.
    """
    source, launch = found.source, found.launch
    if found.target not in READERS:
        raise InputError(f"{source.where}: got a file for {found.target}; allowed: "
                         f"{', '.join(READERS)}")
    read = READERS[found.target](source)
    if source.asked.devices not in (None, read.devices):
        raise InputError(f"{source.where}: its degrees take {read.devices} devices, and --devices "
                         f"says {source.asked.devices}; allowed: the same")
    notes = found.script.notes if found.script is not None else ()
    if launch is not None and not os.path.isfile(found.path):
        notes += (f"{launch.file} is not beside the script: its values are those of MaxText "
                  f"{maxtext.VERSION}",)
    if launch is None and (name := launches.unread_beside(found.path)):
        notes += (f"{name} beside the file is not read, and rank n is on device n; the script that "
                  f"reads {name} says where each rank is",)
    return reading_of(read, source.where, notes, launch.words if launch else ())._replace(
        line=launch.line if launch else 1)


class FileOwner(NamedTuple):
    """Software that a file belongs to."""

    name: str
    every: tuple[str, ...]
    """Keys that are all there."""
    some: tuple[str, ...]
    """Keys of which one is there; empty: none is needed."""
    target: str
    """Its reader; empty: NEST has none."""
    says: str
    """What would do instead."""


@cache
def owners() -> tuple[FileOwner, ...]:
    """The table, in its order."""
    data = read_description(Path(__file__).with_name("owners.yaml"))
    return tuple(FileOwner(name, tuple(one.get("all", ())), tuple(one.get("any", ())),
                       one.get("target", ""), one.get("says", "")) for name, one in data.items())


def owner_of(data: Mapping[Any, Any]) -> FileOwner | None:
    """The first whose keys are there; None: no file that NEST knows."""
    there_is = {str(key): value for key, value in data.items()}
    names = [name.replace("-", "_") for name in (*there_is, *flat(there_is))]
    wanted = {key for one in owners() for key in (*one.every, *one.some)}
    parts = max(key.count(".") for key in wanted) + 1
    begun = {".".join(name.split(".", parts)[:count])  # a file may have half a million names
             for name in names for count in range(1, parts + 1)}
    there = {key for key in wanted if key in begun or key.endswith("*") and
             any(name.startswith(key[:-1]) for name in names)}
    return next((one for one in owners() if there.issuperset(one.every)
                 and (not one.some or there.intersection(one.some))), None)


def check_ignored(ignored: Sequence[str], names: Iterable[str], where: str) -> None:
    """Refuse a name that the file does not have: it is misspelt, and leaves nothing out.

    Parameters
    ----------
    ignored : names, of a section too, or with a star at the end.
    names : those of the file; :func:`names_of` or :func:`names_of_words`.
    where : name of the file.

    Raises
    ------
    InputError : with the nearest name.
    """
    there = dict.fromkeys(names)
    for one in ignored:
        if not any(among(name, (one,)) for name in there):
            ends = {name.rpartition(".")[2]: name for name in reversed(there)}
            near = ends.get(one, one)
            raise InputError(
                f"ignore: got {shorten(one)}; {did_you_mean(near, there)}allowed: names of "
                f"settings, arguments or calls in {where}")


def names_of(target: str, source: Source) -> list[str]:
    """Settings of a file that was read and of its command line, and calls of a function."""
    if target not in FORMATS:
        return [name.replace("-", "_") for name in settings_of(source)]
    found = [*FORMATS[target].read(source), *FORMATS[target].overrides(source)]
    if target in ("torchtitan", "megatron-bridge"):
        found += _calls(source)
    if target == "deepspeed":
        words = arguments_of(source.words, deepspeed.known_arguments())[0]
        found += [*words, *(deepspeed.ALIASES.get(name, name) for name in words),
                  *source.asked.settings]
    return found


def names_of_words(words: Sequence[str]) -> list[str]:
    """Arguments of a command line of Megatron-LM, without hyphens."""
    table = known()
    found = arguments_of(words, table)[0]
    return [*found, *(table.aliases[name][0][0] for name in found if name in table.aliases)]


def _calls(source: Source) -> list[str]:
    return [name for node in ast.walk(ast.parse(source.text)) if isinstance(node, ast.Call)
            and (name := dotted(node.func))]
