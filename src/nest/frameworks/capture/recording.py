"""A script run by its own shell, with stand-ins for what it would start: :func:`capture`.

The stand-ins are first in PATH, in a folder of their own that is removed afterwards. Bash reads
`BASH_ENV` first, a file whose DEBUG trap puts them back in front when the script changes PATH,
gives commands that are named by a path the stand-in of their name, and tells stand-ins the line.
All other commands of the script run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

from nest.errors import InputError
from nest.frameworks.capture import stand_in
from nest.frameworks.capture.document import Capture, CapturedLaunch
from nest.inputs.files import read_description, read_text
from nest.units import shorten

TIME_LIMIT = 60.0
"""Seconds of a script."""
MOST_OUTPUT = 2**26
"""Bytes that it may print."""
MOST_PROCESSES = 500
"""That run at one time."""
GRACE = 3.0
"""Seconds for what it started in the background."""
_SHOWN = 4096
_OWN_WORDS = re.compile(r"^(?:\S+: )?line \d+: (?!\s*\d+ (?:Killed|Terminated))(.*)")
"""What bash says of a line that fails."""
_TRAP = r"""
__nest_bin=@BIN@
__nest_set() {
  case $1 in */*) ;; *) return ;; esac
  case $1 in *[!A-Za-z0-9_./+-]*|"$__nest_bin"/*) return ;; esac
  case ${1##*/} in @NAMES@) eval "function $1 { \"\$__nest_bin/${1##*/}\" \"\$@\"; }" ;; esac
}
__nest_word() {
  local c=$BASH_COMMAND w n r
  while :; do case $c in [A-Za-z_]*=*\ *) case ${c%%=*} in *[!A-Za-z0-9_]*) break ;; esac
    c=${c#* } ;; *) break ;; esac; done
  w=${c%%[[:space:]]*}; w=${w//\"/}
  case $w in
    @PASSING@) case " $c" in @PATHS@)
      printf '%s\n' "$c" > "${__nest_bin%/*}/path"; kill -KILL 0 ;; esac ;;
    '~/'*) __nest_set "$HOME/${w#'~/'}" ;;
    '$'*) n=${w#'$'}
      case $n in '{'*'}'*) n=${n#'{'}; r=${n#*'}'}; n=${n%%'}'*} ;;
        *) r=${n#"${n%%[!A-Za-z0-9_]*}"}; n=${n%%[!A-Za-z0-9_]*} ;; esac
      case $n in ''|[0-9]*|*[!A-Za-z0-9_]*) return ;; esac
      w=${!n-}; __nest_set "${w%%[[:space:]]*}$r" ;;
    *) __nest_set "$w" ;;
  esac
}
__nest() {
  NEST_CAPTURE_LINE=$1 NEST_CAPTURE_SCRIPT=$2
  case $PATH in "$__nest_bin":*) ;; *) PATH=$__nest_bin:$PATH ;; esac
  case $BASH_COMMAND in */*|\$*|\"\$*|*=*\ [\"\$]*) __nest_word ;; esac
}
export NEST_CAPTURE_LINE NEST_CAPTURE_SCRIPT
set -T
trap '__nest "$LINENO" "${BASH_SOURCE-}" "$_"' DEBUG
"""
"""What bash reads first: before each command the stand-ins are first in PATH, a command that is
named by a path gets a function of that name, and a path behind ``exec`` or the like ends the
script."""
_SAFE = re.compile(r"[\w./+@%=,-]+")
"""Folders that bash takes as they are in ``BASH_ENV``, which it expands, and in PATH."""


def capture(
    command: Sequence[str], *, time_limit: float = TIME_LIMIT, run: Sequence[str] = ()
) -> Capture:
    """Run a command, and record what it would have started.

    Parameters
    ----------
    command : such as ``("bash", "run.sh", "4")``; all of its commands that have no stand-in run.
    time_limit : seconds.
    run : programs with stand-ins, and scripts of theirs, that do run where the script takes what
        they print.

    Raises
    ------
    InputError : no such command; nothing was started; too much was, or was printed, or it took too
        long; or the script takes the output of what is not run.
    """
    if os.name != "posix":
        raise InputError("capture: it needs bash; allowed: Linux or macOS")
    if not command or not command[0] or any("\0" in word for word in command):
        raise InputError("capture: no command; allowed: `nest capture -- bash run.sh`")
    script = next((word for word in command if stand_in.shebang(word) or word.endswith(
        (".sh", ".bash", ".slurm", ".sbatch")) and os.path.isfile(word)), "")
    with suppress(OSError):
        script = os.path.abspath(script) if script else ""
    text = _script(script)
    where = shorten(os.path.basename(script) or command[0], 300)[1:-1]
    folder = tempfile.mkdtemp(prefix="nest-capture-")
    try:
        if not _SAFE.fullmatch(real := os.path.realpath(folder)):
            raise InputError(f"capture: got {shorten(real)} for temporary files; allowed: "
                             "TMPDIR=FOLDER of letters, digits and ./_-")
        run_now = _Run(Path(real), [*command], where, time_limit, script=script)
        run_now.prepare(text, run)
        run_now.start()
        calls = run_now.calls()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    launches = [one for one in calls if not one["asked"]]
    for one in (one for one in calls if one["asked"] == "output"):
        name = next((os.path.basename(word) for word in one["words"] if word.endswith(".py")),
                    one["words"][0])
        raise InputError(
            f"{where}: {_line(one)}the script takes what {_shown(one['words'])} prints, which is "
            f"not run; allowed: --run {name}, which runs it where its output is taken, the value "
            "in a copy of the script, or the training log (`nest read train.log`)")
    if not launches:
        raise InputError(f"{where}: {run_now.nothing()}")
    return Capture(
        command=tuple(_masked(command)), script=script,
        text="\n".join(" ".join(_masked(re.split(" ", line))) for line in text.split("\n")),
        launches=tuple(CapturedLaunch(
            words=tuple(_masked(one["words"])), outer=tuple(_masked(one["outer"])),
            environment=one["environment"], folder=one["folder"], script=one["script"],
            line=one["line"]) for one in launches),
        notes=(*run_now.notes(), *(
            f"{_line(one)}{_shown(one['words'])} is not run, and succeeds for the script (--run "
            f"{one['words'][0]} runs it)" for one in calls if one["asked"] == "success")))


@cache
def programs() -> dict[str, Any]:
    """The table of `programs.yaml`."""
    return read_description(Path(__file__).with_name("programs.yaml"))


def _script(path: str) -> str:
    """Text of a script; empty: there is none, or it is no text."""
    try:
        return read_text(path) if path else ""
    except InputError:
        return ""


def _line(call: Mapping[str, Any]) -> str:
    return f"line {call['line']}: " if call["line"] else ""


def _shown(words: Sequence[str]) -> str:
    return shorten(" ".join(_masked(words[:6])))


def _masked(words: Sequence[str]) -> Iterator[str]:
    """Words without passwords, keys and tokens."""
    secret = programs()["secret"].rstrip("$")
    named = re.compile(rf"(?i)(?<![\w-])((?:--?)?[\w-]*(?:{secret})=)(?!\s)[^\s;'\"&|]+")
    behind = re.compile(rf"(?i)^--?[\w-]*(?:{secret})$")
    inside = re.compile(rf"(?i)(\s--?[\w-]*(?:{secret})[ \t]+)[^\s;'\"&|]+")
    hidden = False
    for word in words:
        yield "***" if hidden else inside.sub(r"\1***", named.sub(r"\1***", word))
        hidden = bool(behind.match(word))


@dataclass
class _Run:
    """A script while it runs."""

    folder: Path
    """Of the stand-ins and their records."""
    command: list[str]
    where: str
    time_limit: float
    environment: dict[str, str] = field(default_factory=dict)
    script: str = ""
    """Its path."""
    files: dict[str, bytes] = field(default_factory=dict)
    """What the stand-ins are made of."""
    names: list[str] = field(default_factory=list)
    """Of programs with stand-ins."""
    table: dict[str, Any] = field(default_factory=dict)
    """What stand-ins read."""
    stopped: str = ""
    """Why it was ended."""
    printed: int = 0
    said: bytes = b""
    """The first of what it says on its second output, and on the other one."""
    shown: bytes = b""
    code: int = 0

    # -------------------------------------------------------- before

    def prepare(self, text: str, run: Sequence[str]) -> None:
        """Write the stand-ins."""
        known = programs()
        kinds = {name: one for name, one in known.items()
                 if isinstance(one, list) and name != "passing"}
        every = self.names = sorted(name for names in kinds.values() for name in names)
        folder, there = str(self.folder), os.environ.get("PATH", os.defpath)
        (self.folder / "bin").mkdir()
        (self.folder / "records").mkdir()
        start = shlex.join([sys.executable, "-I", "-S", stand_in.__file__, folder])
        for name in every:
            path = self.folder / "bin" / name
            path.write_text(f'#!/bin/sh\nexec {start} {name} "$@"\n', encoding="utf-8")
            path.chmod(0o700)
        self.table = {"programs": kinds, "kept": known["kept"], "secret": known["secret"],
                      "run": [*run], "path": there}
        paths = "|".join(f"*/{name}|*/{name}\\ *" for name in every)
        trap = _TRAP.replace("@NAMES@", "|".join(every)).replace(
            "@PASSING@", "|".join(known["passing"])).replace("@PATHS@", paths).replace(
            "@BIN@", shlex.quote(f"{folder}/bin"))
        before = os.environ.get("BASH_ENV", "")
        own = f"[ -r {shlex.quote(before)} ] && . {shlex.quote(before)}\n" if before else ""
        (self.folder / "env.sh").write_text(own + trap, encoding="utf-8")
        given = {name: f"{folder}/bin/{os.path.basename(value)}"
                 if value.startswith("/") and os.path.basename(value) in every else value
                 for name, value in os.environ.items()}
        job = stand_in.slurm(text, [] if stand_in.directives(text) else None)
        self.environment = {**job, **given, "PATH": f"{folder}/bin:{there}",
                            "BASH_ENV": f"{folder}/env.sh", "LC_MESSAGES": "C", "LANGUAGE": "C"}

    # -------------------------------------------------------- while it runs

    def start(self) -> None:
        """Run it to its end.

        Raises
        ------
        InputError : it cannot be run.
        """
        out, into = os.pipe()
        there = os.fstat(into)
        self.table["stdout"] = f"{there.st_dev}:{there.st_ino}"
        (self.folder / "table.json").write_text(json.dumps(self.table), encoding="utf-8")
        self.files = self._own()
        if shutil.which(self.command[0], path=self.environment["PATH"]) is None:
            os.close(out)
            os.close(into)
            raise InputError(f"capture: {shorten(self.command[0])}: no such command; allowed: "
                             "`nest capture -- bash run.sh`")
        # A shell between: the script's parent, which it may kill.
        process = subprocess.Popen(
            ["/bin/sh", "-c", '"$@"; exit $?', "sh", *self.command], env=self.environment,
            stdin=subprocess.DEVNULL, stdout=into, stderr=subprocess.PIPE, start_new_session=True)
        os.close(into)
        assert process.stderr is not None
        readers = [threading.Thread(target=self._read, args=one, daemon=True) for one in (
            (os.fdopen(out, "rb"), False), (process.stderr, True))]
        for reader in readers:
            reader.start()
        end = time.monotonic() + self.time_limit
        try:
            self._watch(process, end)
        finally:
            self._kill(process.pid)
            self.code = process.wait()
        for reader in readers:
            reader.join(1.0)

    def _watch(self, process: subprocess.Popen[bytes], end: float) -> None:
        """Wait for the script and what it started, or for what ends it."""
        grace = 0.0
        while True:
            alive = _members(process.pid)
            over = process.poll() is not None
            if over and not alive:
                return
            if over and not grace:
                grace = time.monotonic() + GRACE
            if self.printed > MOST_OUTPUT:
                self.stopped = f"it prints more than {MOST_OUTPUT >> 20} MiB"
            elif len(alive) > MOST_PROCESSES:
                self.stopped = f"it starts more than {MOST_PROCESSES} processes"
            elif time.monotonic() > end and not over:
                self.stopped = (f"it takes more than {self.time_limit:g} s; allowed: "
                                "--time-limit SECONDS")
            if self.stopped or over and time.monotonic() > min(grace, end):
                return
            time.sleep(0.01)

    def _read(self, stream: IO[bytes], kept: bool) -> None:
        with suppress(OSError, ValueError), stream:
            while part := os.read(stream.fileno(), 65536):
                self.printed += len(part)
                if kept and len(self.said) < 16 * _SHOWN:
                    self.said += part
                elif not kept and len(self.shown) < 16 * _SHOWN:
                    self.shown += part

    def _kill(self, leader: int) -> None:
        for _ in range(20):
            with suppress(OSError):
                os.killpg(leader, signal.SIGKILL)
            left = _members(leader, str(self.folder))
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                return
            time.sleep(0.01)

    # -------------------------------------------------------- afterwards

    def _own(self) -> dict[str, bytes]:
        """The stand-ins and what they read, by name."""
        every = [self.folder / "table.json", self.folder / "env.sh",
                 *(self.folder / "bin").iterdir()]
        return {one.name: one.read_bytes() for one in every}

    def calls(self) -> list[dict[str, Any]]:
        """Calls of the stand-ins, in their order.

        Raises
        ------
        InputError : the script was ended, starts too much, or has changed the records.
        """
        if self.stopped:
            raise InputError(f"{self.where}: {self.stopped}")
        if (path := self.folder / "path").exists():
            line = path.read_text(encoding="utf-8", errors="replace")
            named = next((word for word in line.split() if "/" in word and os.path.basename(
                word.strip("\"'")) in self.names), "a program")
            raise InputError(f"{self.where}: {shorten(named, 200)[1:-1]} is named by its path, for "
                             "which there is no stand-in; allowed: "
                             f"{os.path.basename(named)} alone in a copy of the script")
        spoilt = InputError(f"{self.where}: the script changes the stand-ins or their records; "
                            "allowed: a script that leaves the folders in PATH alone")
        try:
            files = sorted((self.folder / "records").iterdir())
            if self._own() != self.files or any(
                    not re.fullmatch(r"many|\d{20}-\d+", one.name) for one in files):
                raise spoilt
            texts = [one.read_text(encoding="utf-8") for one in files[:stand_in.MOST_CALLS]
                     if one.stat().st_size <= 8 * stand_in.LONGEST]
            found = [json.loads(text) for text in texts]
        except (OSError, ValueError, RecursionError):
            raise spoilt from None
        if '"too many"' in texts or len(texts) < len(files):
            raise InputError(f"{self.where}: it starts more than {stand_in.MOST_CALLS} programs, "
                             f"or one with more than {stand_in.LONGEST} characters")
        for one in found:
            if not _is_call(one):
                raise spoilt
        return found

    def lines(self, said: bytes | None = None) -> list[str]:
        """What was said on the second output."""
        text = (self.said if said is None else said).decode(errors="replace")
        text = text.replace(self.script, self.where) if self.script else text
        return [line for line in map(str.strip, text.splitlines()) if line]

    def nothing(self) -> str:
        """Why nothing was recorded."""
        lines = self.lines() or self.lines(self.shown)
        said = [line for line in lines if _OWN_WORDS.match(line)] or lines[-1:]
        last = f"; it said {shorten(said[0], 150)}" if said else ""
        ended = "" if self.code == 0 else (
            f" (ended by signal {-self.code})" if self.code < 0 else f" (exit code {self.code})")
        way = ("a script that calls its launcher by name, and sets PATH anew in bash alone"
               if self.code == 0 else "what it needs to get to its launcher: its files, arguments "
               "and variables")
        return f"it starts no program that has a stand-in{ended}{last}; allowed: {way}"

    def notes(self) -> Iterator[str]:
        """What may differ from a real run."""
        failed = dict.fromkeys(line for line in self.lines() if _OWN_WORDS.match(line))
        for line in [*failed][:5]:
            yield f"on this machine: {shorten(line, 200)[1:-1]}"
        if len(failed) > 5:
            yield f"and {len(failed) - 5} more lines of this kind"
        if self.code:
            yield f"the script ended with exit code {self.code}"


def _is_call(one: Any) -> bool:
    if not isinstance(one, dict) or {*one} != {
            "words", "outer", "folder", "asked", "script", "line", "environment"}:
        return False
    texts = (*one["words"], *one["outer"]) if isinstance(one["words"], list) and isinstance(
        one["outer"], list) else (0,)
    pairs = one["environment"].items() if isinstance(one["environment"], dict) else ((0, 0),)
    return bool(one["words"]) and all(isinstance(word, str) for word in (
        *texts, one["folder"], one["script"], *(part for pair in pairs for part in pair))) and (
        type(one["line"]) is int and isinstance(one["asked"], str))


def _members(leader: int, folder: str = "") -> list[int]:
    """Processes of a session, and with ``folder`` others that have its environment; none without
    /proc."""
    found = []
    mark = f"BASH_ENV={folder}/env.sh\0".encode()
    try:
        every = [int(one) for one in os.listdir("/proc") if one.isdecimal()]
    except OSError:
        return []
    for pid in every:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                parts = file.read().rpartition(b")")[2].split()
            if parts[0] == b"Z":
                continue
            if int(parts[3]) == leader:
                found.append(pid)
            elif folder:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if mark in file.read():
                        found.append(pid)
        except (OSError, ValueError, IndexError):
            continue
    return found
