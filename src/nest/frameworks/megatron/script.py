"""A job's own files read back: :func:`read`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nest.errors import InputError
from nest.frameworks.capture.document import ScriptText, refuse_variables, script_text
from nest.frameworks.capture.stand_in import directives, options_of, slurm
from nest.frameworks.hosts import Placed, hosts_beside, listed_beside
from nest.frameworks.megatron import read as megatron
from nest.frameworks.settings import arguments_of, known
from nest.frameworks.source import FileDescription
from nest.frameworks.text.shell import ShellCommand, ShellScript
from nest.inputs import load_model
from nest.inputs.configuration import Configuration
from nest.inputs.files import yaml_text
from nest.inputs.job import Job
from nest.inputs.model import Model
from nest.measured.logs.run_log import RunLog
from nest.model import build_chain
from nest.model.legality import expert_problem
from nest.units import shorten

PROGRAM = re.compile(r"(?:^|/)[\w.-]+\.py$")
OTHERS = ("pretrain_bert", "pretrain_t5", "pretrain_vlm", "pretrain_ict", "pretrain_mamba",
          "pretrain_vision", "pretrain_retro", "train_rl")
"""Programs of Megatron-LM that train other models than GPT's."""
SHOWING = ("echo", "printf", "cat", "logger", "tee", "set", "export")
"""Commands that run nothing of their words."""
STARTED = (".sh", ".slurm", ".sbatch", ".bash")
"""Suffixes of scripts that others start."""
OTHER_SOFTWARE = {"megatron sft": "ms-swift", "megatron pt": "ms-swift", "swift": "ms-swift",
                  "llamafactory-cli": "LLaMA-Factory", "axolotl": "Axolotl",
                  "accelerate launch": "Hugging Face Accelerate", "nemo": "NeMo"}
"""Commands of other training software."""
MPI = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun")
_ALL = (("-n", "-np", "--n", "--np", "-c"), ("-n", "--ntasks"))
"""Options for the number of processes: of MPI, of srun."""
_PER_HOST = ("-npernode", "--npernode", "-ppn", "--ppn", "-perhost", "-N", "--N")
_PER_NODE = re.compile(
    r"^--?(?:nproc[-_]per[-_]node|num[-_]gpus|ntasks-per-node|gpus-per-node|gres)$")
_NODES = re.compile(r"^--?(?:nnodes|num[-_]nodes|nodes|N)$")
_SLURM = {"SLURM_NNODES": "--nodes", "SLURM_JOB_NUM_NODES": "--nodes",
          "SLURM_NTASKS_PER_NODE": "--ntasks-per-node", "SLURM_GPUS_PER_NODE": "--gpus-per-node",
          "SLURM_GPUS_ON_NODE": "--gpus-per-node"}
"""Variables that Slurm sets, and the options that say the same."""


class Reading(NamedTuple):
    """A job as NEST describes it."""

    model: Model
    job: Job
    configuration: Configuration
    devices: int
    notes: tuple[str, ...]
    """What was assumed, and what has no price."""
    files: Mapping[str, str]
    """The same as texts of files: model.yaml, job.yaml, configuration.yaml."""
    words: tuple[str, ...]
    """Arguments of the program."""
    line: int
    """Of the command in the script, or of the configuration in the log."""
    log: RunLog | None = None
    """What was measured; None: the file is no log."""


class Launch(NamedTuple):
    """A launch script, followed up to the command that trains."""

    source: ScriptText
    where: str
    """Its name, for messages."""
    given: Mapping[str, str]
    """Variables of the environment."""
    script: ShellScript
    command: ShellCommand
    marked: tuple[str, ...]
    """Arguments of the program; those of no cost may have unknown values."""
    launcher: Mapping[str, str]
    """Nodes, and devices of each, where it says them."""

    @property
    def words(self) -> tuple[str, ...]:
        """Arguments of the program; unknown values as they stand in the script."""
        return tuple(self.script.plain(word) for word in self.marked)


def opened(
    path: str | os.PathLike[str], variables: Mapping[str, str] | None = None,
    launch: int | None = None,
) -> Launch:
    """Follow a launch script; see :func:`read`.

    Raises
    ------
    InputError : no such file, or no command of Megatron-LM in it.
    """
    where = shorten(os.fspath(path), 300)[1:-1]
    source = script_text(path, launch)
    if source.capture is not None:
        refuse_variables(where, variables or ())
    return followed(source, where, variables or {})


def followed(source: ScriptText, where: str, given: Mapping[str, str]) -> Launch:
    """Follow the text of a launch script.

    Parameters
    ----------
    source, where : of the script, and its name.
    given : variables of the environment.

    Raises
    ------
    InputError : no command of Megatron-LM in it, or values that it does not say.
    """
    script = ShellScript(source.text, where, {**slurm(source.text), **given},
                         captured=source.capture is not None)
    command = _command(script, where)
    at = _program(command)
    program = os.path.basename(command.words[at])
    if program.removesuffix(".py") in OTHERS:
        raise InputError(f"{where}: line {command.line}: got {shorten(program)}; allowed: programs "
                         "that train GPT models, as pretrain_gpt.py")
    return Launch(source, where, given, script, command,
                  tuple(_known(script, command.words[at + 1:])), _launcher(command, script))


def read(
    path: str | os.PathLike[str], *, devices: int | None = None, vocab: int | None = None,
    stack: str | None = None, variables: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (), launch_number: int | None = None, text: str | None = None,
) -> Reading:
    """:func:`nest.read` of a launch script of Megatron-LM, or of a file with its command line.

    ``text``: the script, where the file holds it among other things.
    """
    launch = opened(path, variables, launch_number) if text is None else followed(
        ScriptText(text, os.fspath(path)), shorten(os.fspath(path), 300)[1:-1], variables or {})
    where = launch.where
    names = tuple(one.removeprefix("--") for one in ignore)
    words = launch.words
    world = devices or world_of(launch.launcher, where)
    found = megatron.described(
        words, world, name=name_of(path), vocab=vocab, stack=stack, ignored=names,
        places=placed_beside(launch.source, launch.launcher))
    return reading_of(FileDescription(
        Model.parse(found.model, where), found.job, found.configuration, world, found.notes),
        where, launch.script.notes, words, launch.command.line)


def reading_of(
    found: FileDescription, where: str, notes: Iterable[str] = (), words: tuple[str, ...] = (),
    line: int | None = None,
) -> Reading:
    """A description with the texts of its files.

    Parameters
    ----------
    where : name of the file that was read.
    notes : on how it was read, behind those on what it says.
    words, line : arguments of the program, and the line of its command, where there is one.

    Raises
    ------
    InputError : degrees of experts that do not divide them.
    """
    way = Configuration.parse(found.configuration, where)
    if problem := expert_problem(build_chain(found.model), way.stages[0].ep, way.stages[0].etp):
        raise InputError(f"{where}: {problem}")
    place = "" if line is None else f", line {line}"
    title = f"# Read from {os.path.basename(where)}{place}; {found.devices} devices.\n"
    texts = {"model": plain_model(found.model), "job": found.job,
             "configuration": found.configuration}
    return Reading(
        found.model, Job.parse(found.job, where), way, found.devices, (*found.notes, *notes),
        {f"{name}.yaml": title + yaml_text(data) for name, data in texts.items()}, words, line or 1)


def plain_model(model: Model) -> dict[str, object]:
    """Fields of a model that are not its defaults, as a file has them."""
    found = model.model_dump(mode="json", exclude_defaults=True)
    return found if load_model(found) == model else model.model_dump(mode="json")


def name_of(path: str | os.PathLike[str]) -> str:
    """The name of a model whose script says none: that of the file."""
    found = re.sub(r"[^\w.-]+", "-", Path(os.fspath(path)).stem).strip("-")[:80]
    return found or "model"


def _command(script: ShellScript, where: str) -> ShellCommand:
    """The command whose program has arguments of a model."""
    run = [one for one in script.commands if one.words[0] not in SHOWING]
    found = _training(run) or _training(_inside(script, run))
    if not found:
        raise InputError(f"{where}: {_other_software(script, run)}")
    lost = next((one for one in run if one.words[0].startswith("--")), None)
    if lost is not None:
        raise InputError(f"{where}: line {lost.line}: a command begins with "
                         f"{shorten(script.plain(lost.words[0]))}; allowed: a \\ at the end of the "
                         "line before it, without spaces behind")
    if len({_compared(script, command) for command in found}) > 1:
        script.refuse_several(one.line for one in found)
    return found[-1]


def _other_software(script: ShellScript, commands: Iterable[ShellCommand]) -> str:
    """Why no command is read."""
    for command in commands:
        text = script.plain(" ".join(command.words[:4]))
        for start, software in OTHER_SOFTWARE.items():
            if re.search(rf"(?:^|[\s/]){start}(?:\s|$)", text):
                return (f"line {command.line}: got a command of {software} ({shorten(text)}), "
                        "whose model is in other files; price it by nest evaluate MODEL CLUSTER "
                        "with --tp, --pp, --ep, --global-batch and so on")
    for command in commands:
        started = next((word for word in command.words if word.endswith(STARTED)), None)
        if started is not None:
            name = shorten(script.plain(started))
            return (f"line {command.line}: it starts another script, {name}; allowed: that script, "
                    f"or what `nest capture -- bash {os.path.basename(script.where)}` records")
    return ("no command found that starts a program (*.py) with --num-layers; allowed: a launch "
            "script or a command line of Megatron-LM, or what `nest capture` records")


def _compared(script: ShellScript, command: ShellCommand) -> tuple[object, ...]:
    """What makes two commands differ in cost."""
    at = _program(command)
    table = known()
    given, stray = arguments_of(command.words[at + 1:], table)
    return (command.words[at], *((name, *map(script.plain, words)) for name, words in sorted(
        given.items()) if name not in table.free | table.elsewhere), *stray)


def _program(command: ShellCommand) -> int:
    """The word that names the program."""
    return next(n for n, word in enumerate(command.words) if PROGRAM.search(word))


def _training(commands: Iterable[ShellCommand]) -> list[ShellCommand]:
    """Those that start a program with arguments of a model."""
    found = []
    for command in commands:
        at = next((n for n, word in enumerate(command.words) if PROGRAM.search(word)), None)
        if at is not None and any(word.startswith("--num-layers") or word == "--micro-batch-size"
                                  for word in command.words[at:]):
            found.append(command)
    return found


def _inside(script: ShellScript, commands: Iterable[ShellCommand]) -> Iterator[ShellCommand]:
    """Commands in a text that another command runs: bash -c "...", and the like."""
    for command in commands:
        shell = {n + 1 for n, word in enumerate(command.words) if word == "-c"}
        for n, word in enumerate(command.words):
            if n in shell or (" " in word and ".py " in word):
                inner = ShellScript(word, script.where, command.variables, script,
                                    line=command.line)
                for one in inner.commands:
                    yield one._replace(
                        variables={**command.variables, **one.variables},
                        outer=(*command.outer, *command.words[:n], *one.outer))


def _known(script: ShellScript, words: Sequence[str]) -> list[str]:
    """Words of the arguments; those that matter are known."""
    table = known()
    found: list[str] = []
    name, full = "", True  # the argument that words belong to, and whether it has all of its own
    for word in words:
        if word.startswith("--"):
            name, equals, _ = word[2:].partition("=")
            full = bool(equals) or table.takes.get(name, "many") == "flag"
        elif script.unknowns(word) and (full or (
                table.takes.get(name) == "many" and "path" not in name
                and not found[-1].startswith("--"))):
            if not script.hard(word) and not script.soft(word):
                continue  # a variable of further arguments, empty unless it is set
            script.need(word, "the command")
        if script.unknowns(word) and (
                word.startswith("--") and name not in table.free
                or name not in table.free | table.elsewhere | {"tokenizer-model", "vocab-file"}):
            script.need(word, f"--{name}" if name else "the command")
        found.append(word)
        if table.takes.get(name) == "one" and not word.startswith("--"):
            full = True
    return found


def _launcher(command: ShellCommand, script: ShellScript) -> dict[str, str]:
    """Nodes, devices of each, and all devices, as the launcher or Slurm's lines say them."""
    pairs = [(option, value) for name, option in _SLURM.items()
             if (value := command.variables.get(name, "")).isdecimal()]
    pairs += directives(script.script)
    before = (*command.outer, *command.words[:_program(command)])
    allocated, pairs = pairs, [*pairs, *options_of(before)]
    found = _found(pairs)
    names = [word.rpartition("/")[2] for word in before]
    if not {*names} & {"torchrun", "deepspeed", "torch.distributed.launch",
                       "torch.distributed.run", "accelerate"}:
        found |= _started(allocated, before, names)
    if command.variables.get("WORLD_SIZE", "").isdecimal() and "each" not in found:
        found |= {"each": command.variables["WORLD_SIZE"], "nodes": "1"}
    good = {key: value for key, value in found.items() if re.fullmatch(r"\d{1,7}", value)}
    if lost := {key: value for key, value in found.items() if key not in good}:
        what = ("the number of nodes" if "nodes" in lost else "the number of devices")
        try:
            script.need(next(iter(lost.values())), what)
            good["unknown"] = f"{what} is {shorten(next(iter(lost.values())))}"
        except InputError as error:
            good["unknown"] = str(error).partition(": ")[2]
    return good


def _started(
    pairs: Sequence[tuple[str, str]], words: Sequence[str], names: Sequence[str]
) -> dict[str, str]:
    """Processes that MPI or srun starts, one on a device each.

    ``pairs``: options of Slurm in the comments.
    """
    at = next((n for n, name in enumerate(names) if name in (*MPI, "srun")), None)
    if at is None:
        return {}
    slurm, found = names[at] == "srun", {}
    end = next((n for n, name in enumerate(names[at:], at) if name in ("bash", "sh")), None)
    for name, value in (*(pairs if slurm else ()), *options_of(words[at:end])):
        if name in _ALL[slurm]:
            found["all"] = value
        elif slurm and name == "--ntasks-per-node" or not slurm and (
                name in _PER_HOST or value.startswith("ppr:")):
            found["each"] = value.split(":")[1] if value.startswith("ppr:") else value
    return found


def _found(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Nodes, and devices of each; tasks of a node count where nothing says its devices."""
    found: dict[str, str] = {}
    for name, value in pairs:
        for key, form in (("each", _PER_NODE), ("nodes", _NODES)):
            if form.match(name) and (name != "--ntasks-per-node" or key not in found):
                found[key] = value if key == "nodes" else value.rpartition(":")[2]
    return found


def world_of(launcher: Mapping[str, str], where: str) -> int:
    """Devices of a job, as its launcher says.

    Raises
    ------
    InputError : it does not.
    """
    if "all" in launcher:
        return int(launcher["all"])
    if "unknown" in launcher:
        raise InputError(f"{where}: {launcher['unknown']}; or give the devices by --devices N")
    if "each" not in launcher:
        raise InputError(f"{where}: the number of devices is not in the script; give it by "
                         "--devices N")
    return int(launcher["each"]) * int(launcher.get("nodes", "1"))


def placed_beside(source: ScriptText, launcher: Mapping[str, str]) -> Placed | None:
    """Places in the files that an exported script reads; None: ranks are in order."""
    text, path = source.written, source.path
    found = listed_beside(text, path, int(launcher.get("each", "1")))
    if found is None and (found := hosts_beside(text, path)) == tuple(range(len(found or ()))):
        return None
    return found
