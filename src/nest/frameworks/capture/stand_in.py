"""What runs in place of a launcher while `nest capture` runs a script: it records, starts nothing.

Run as ``python -I -S stand_in.py FOLDER NAME WORDS...``, by the files of FOLDER/bin. Only Python's
own modules are imported. FOLDER/table.json is `programs.yaml` and what `recording` adds to it; each
call becomes a file of FOLDER/records.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

MOST_CALLS = 1000
LONGEST = 2**18
"""Characters of one call."""
SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
_SHEBANG = re.compile(rb"#!\s*(?:/\S*/)?(?:env\s+)?(?:\S*/)?(bash|sh|dash|zsh|ksh)\b")
_SBATCH = re.compile(r"^#SBATCH\s+([^\n]*)", re.MULTILINE)
_HEAD = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*")
"""Lines before the first command; Slurm reads no others."""
_RUN = ("run", "exec")
_VALUES = ("-c", "-", "-V", "-VV", "--version")
"""Words of python that ask for a value or run a text."""


def main(folder: str, name: str, words: list[str]) -> int:
    """Record one call; its exit code."""
    with open(os.path.join(folder, "table.json"), encoding="utf-8") as file:
        table: dict[str, Any] = json.load(file)
    kind = next(kind for kind, names in table["programs"].items() if name in names)
    call = [name, *words]
    outer = json.loads(os.environ.get("NEST_CAPTURE_OUTER", "[]"))
    if kind == "run" and not {*words} & {*_RUN}:
        return real(table, call)
    if kind == "hosts":
        return hosts(table, call)
    inner = None
    if kind == "batch":
        inner = batch(folder, words)
    elif kind == "shells" and not any("container" in word for word in words):
        inner = shell_of(words)
    if inner is not None:
        at, command = inner
        return start(call[:at + 1], outer, command, kind)
    asked = kind != "batch" and not trains(words) and used(table)
    text = kind == "python" and (not words or not {*words[:2]}.isdisjoint(_VALUES))
    if (asked or text) and {name, *map(os.path.basename, words)} & {*table["run"]}:
        return real(table, call)
    record(folder, table, call, outer, "output" if asked else "success" if text else "")
    return 0


def trains(words: Sequence[str]) -> bool:
    """Whether words start a program of Python with options, rather than ask for a value."""
    at = next((n for n, word in enumerate(words) if word.endswith(".py") or word == "-m"), None)
    return at is not None and any(word.startswith("--") or "=" in word for word in words[at + 1:])


def record(
    folder: str, table: Mapping[str, Any], call: Sequence[str], outer: Sequence[str], asked: str
) -> None:
    """Write a call; of too many or too long ones a mark. ``asked``: what the script takes of it."""
    records = os.path.join(folder, "records")
    kept, secret = (re.compile(table[one], re.ASCII | re.IGNORECASE) for one in ("kept", "secret"))
    data = json.dumps({
        "words": call, "outer": outer, "folder": os.getcwd(), "asked": asked,
        "script": os.environ.get("NEST_CAPTURE_SCRIPT", ""),
        "line": int(os.environ.get("NEST_CAPTURE_LINE", "0") or 0),
        "environment": {name: value for name, value in os.environ.items()
                        if kept.fullmatch(name) and not secret.search(name)}})
    if len(os.listdir(records)) >= MOST_CALLS or len(data) > LONGEST:
        data = '"too many"'
        path = os.path.join(records, "many")
    else:
        path = os.path.join(records, f"{time.time_ns():020d}-{os.getpid()}")
    draft = os.path.join(folder, f"draft-{os.getpid()}")
    with open(draft, "w", encoding="utf-8") as file:
        file.write(data)
    os.replace(draft, path)


# ---------------------------------------------------------------- other programs


def path_without(table: Mapping[str, Any], folder: str) -> str:
    """PATH as it was, and what the script added."""
    here = os.environ.get("PATH", "") + os.pathsep + table["path"]
    return os.pathsep.join(dict.fromkeys(one for one in here.split(os.pathsep)
                                         if one and one != os.path.join(folder, "bin")))


def program(table: Mapping[str, Any], name: str) -> str:
    """Path of the program itself; empty: there is none."""
    return next((path for folder in path_without(table, sys.argv[1]).split(os.pathsep)
                 if os.access(path := os.path.join(folder, name), os.X_OK)), "")


def real(table: Mapping[str, Any], call: list[str]) -> int:
    """Run the program itself; 127: there is none."""
    if path := program(table, call[0]):
        sys.stdout.flush()
        os.execv(path, call)
    sys.stderr.write(f"{call[0]}: command not found\n")
    return 127


def hosts(table: Mapping[str, Any], call: list[str]) -> int:
    """Names of nodes, where Slurm is not there."""
    nodes = os.environ.get("SLURM_NNODES", "")
    if "hostnames" not in call or not nodes.isdecimal() or program(table, call[0]):
        return real(table, call)
    print(*(f"node{n}" for n in range(min(int(nodes), 10**5))), sep="\n")
    return 0


def start(call: Sequence[str], outer: Sequence[str], command: list[str], kind: str) -> int:
    """Run the shell that a launcher would start, as its process 0."""
    options = [*options_of(call)]
    given = {**slurm("\n".join(_text(command)), options, kind == "batch"),
             "NEST_CAPTURE_OUTER": json.dumps([*outer, *call])}
    if call[0] not in ("srun", "sbatch"):
        size = next((value for name, value in options if name in ("-n", "-np", "--np")), "")
        given |= {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "PMI_RANK": "0",
                  **({"OMPI_COMM_WORLD_SIZE": size, "PMI_SIZE": size} if size else {})}
    if kind == "batch":
        sys.stdout.write("1\n" if "--parsable" in call else "Submitted batch job 1\n")
        sys.stdout.flush()
    quiet = subprocess.DEVNULL if kind == "batch" else None
    return subprocess.run(command, env={**os.environ, **given}, stdin=subprocess.DEVNULL,
                          stdout=quiet, check=False).returncode


def shell_of(words: Sequence[str]) -> tuple[int, list[str]] | None:
    """Where the command of a launcher begins that is a shell or a script of one; None: neither."""
    for at, word in enumerate(words):
        if os.path.basename(word) in SHELLS:
            return at, [os.path.basename(word), *words[at + 1:]]
        if shell := shebang(word):
            return at, [shell, *words[at:]]
    return None


def batch(folder: str, words: Sequence[str]) -> tuple[int, list[str]] | None:
    """The script of a batch job; None: none is found."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--wrap":
            return len(words), ["bash", "-c", value if equals else "".join(words[at + 1:at + 2])]
        if not word.startswith("-") and os.path.isfile(word) and (shell := shebang(word)):
            return at, [shell, *words[at:]]
    try:
        text = "" if sys.stdin.isatty() else sys.stdin.read(LONGEST)
    except (OSError, ValueError):
        return None
    if not text.strip():
        return None
    path = os.path.join(folder, f"input-{os.getpid()}.sh")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return len(words), ["bash", path]


def shebang(path: str) -> str:
    """The shell that a file is a script of; empty: it is none."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return ""
        with open(path, "rb") as file:
            found = _SHEBANG.match(file.read(200))
    except (OSError, ValueError):
        return ""
    return found[1].decode() if found else ""


def _text(command: Sequence[str]) -> list[str]:
    """Text of the script in a command."""
    for word in command[1:]:
        if os.path.isfile(word):
            with open(word, encoding="utf-8", errors="replace") as file:
                return [file.read(LONGEST)]
    return []


# ---------------------------------------------------------------- Slurm


def options_of(words: Sequence[str]) -> list[tuple[str, str]]:
    """Options and their values."""
    found = []
    for n, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word.startswith("-"):
            found.append((name, value if equals else "".join(words[n + 1:n + 2])))
    return found


_COUNTS = {"nodes": (("-N", "--nodes"), ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")),
           "tasks": (("-n", "--ntasks"), ("SLURM_NTASKS", "SLURM_NPROCS")),
           "each": (("--ntasks-per-node",), ("SLURM_NTASKS_PER_NODE",)),
           "gpus": (("--gpus-per-node", "--gres"), ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE")),
           "cpus": (("-c", "--cpus-per-task"), ("SLURM_CPUS_PER_TASK",))}
"""Options of Slurm, and the variables that say the same in a job."""


def directives(text: str) -> list[tuple[str, str]]:
    """Options of Slurm in the comments of a script, and their values."""
    head = _HEAD.match(text)
    return [pair for line in _SBATCH.findall(head[0] if head else "")
            for pair in options_of(line.split())]


def slurm(
    text: str, options: Sequence[tuple[str, str]] | None = None, job: bool = True
) -> dict[str, str]:
    """Variables that Slurm sets for process 0 of a script.

    Parameters
    ----------
    text : of the script, whose ``#SBATCH`` lines count.
    options : of the command that starts it, which come first; None: not Slurm, and only what the
        lines say is set.
    job : it is a job of its own; False: a step of one.
    """
    found: dict[str, str] = {"nodes": "1"} if job and options is not None else {}
    for name, value in (*directives(text), *(options or ())):
        number = re.match(r"(?:.*:)?(\d{1,7})(?:-\d+)?$", value)
        for key, (names, _) in _COUNTS.items():
            if name in names and number:
                found[key] = number[1]
    given = {name: found[key] for key, (_, names) in _COUNTS.items() if key in found
             for name in names}
    if options is not None:
        given |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    if options is not None and job:
        last = int(found["nodes"]) - 1
        nodes = f"node[0-{last}]" if last else "node0"
        given |= {"SLURM_JOB_ID": "1", "SLURM_JOBID": "1", "SLURM_JOB_NAME": "job",
                  "SLURM_SUBMIT_DIR": os.getcwd(), "SLURM_JOB_NODELIST": nodes,
                  "SLURM_NODELIST": nodes}
    return given


# ---------------------------------------------------------------- whether the output is taken


def used(table: Mapping[str, Any]) -> bool:
    """Whether a shell takes what this process would print: ``$(...)``, ``| while read``.

    Processes that copy their input (``| tee log``) are followed to their own output.
    """
    pipe = os.fstat(1)
    if not stat.S_ISFIFO(pipe.st_mode) or f"{pipe.st_dev}:{pipe.st_ino}" == table["stdout"]:
        return False
    if not os.path.isdir("/proc/self/fd"):
        return True
    name, seen = f"pipe:[{pipe.st_ino}]", {os.getpid()}
    for _ in range(8):
        reader = 0
        for wait in (0.0, 0.02, 0.05):  # a shell holds both ends until it has forked
            time.sleep(wait)
            reader = _reader(name, seen)
            if reader and not _is_shell(reader):
                break
        if not reader or _is_shell(reader):
            return True
        seen.add(reader)
        try:
            name = os.readlink(f"/proc/{reader}/fd/1")
            there = os.stat(f"/proc/{reader}/fd/1")
        except OSError:
            return True
        if not stat.S_ISFIFO(there.st_mode) or (
                f"{there.st_dev}:{there.st_ino}" == table["stdout"]):
            return False
    return True


def _reader(name: str, seen: set[int]) -> int:
    """A process that reads a pipe, rather one that is no shell; 0: none is found."""
    found = 0
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        if pid in seen:
            continue
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{fd}") != name:
                    continue
                with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as file:
                    flags = int(file.read().partition("flags:")[2].split()[0], 8)
                if flags & os.O_ACCMODE == os.O_RDONLY:
                    found = pid
                    if not _is_shell(pid):
                        return pid
        except (OSError, ValueError, IndexError):
            continue
    return found


def _is_shell(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) in SHELLS
    except OSError:
        return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
