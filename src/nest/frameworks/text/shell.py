"""A launch script's commands, read as text: its variables are followed, and nothing is executed.

The script is run on its text: statements whose effect is known exactly change the variables, a
statement that may run or not, or how often is not known, makes every variable that it changes
unknown, and what could change any variable (a file that is not there, ``eval`` of an unknown text)
makes all of them unknown. An unknown value remembers its line and text; it is an error only where
the result depends on it. The user may give it (``--set NAME=VALUE``).

Not looked at: files (tests of them, patterns of their names), what programs print, the environment
but for what the user gives. A command that no function of the script names changes no variable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from nest.errors import InputError
from nest.frameworks.text.shell_flow import Flow, ShellCommand, Status
from nest.frameworks.text.shell_reader import parsed
from nest.frameworks.text.shell_tree import (
    CLOSE,
    DEEPEST,
    MARK,
    OPEN,
    Assign,
    Function,
    Redirect,
    ShellState,
    Simple,
    Unknown,
    Value,
)
from nest.frameworks.text.shell_words import SYSTEM
from nest.inputs.files import read_text
from nest.units import shorten

__all__ = ["MARK", "ShellCommand", "ShellScript", "Unknown"]

LONGEST_SCRIPT = 2**20
"""Characters of a script."""
MOST_FILES = 20
"""Scripts that one script sources or starts."""
CAPTURE = "xargs -0 printf '%q ' < /proc/PID/cmdline > FILE"
"""How to get the command line of a job that runs, quoted."""
STARTING = ("bash", "sh", "sbatch", "zsh")
"""Commands that start a script."""
STARTED = (".sh", ".slurm", ".sbatch", ".bash")
"""Suffixes of scripts that they start."""
ENVIRONMENTS = re.compile(
    r"(?:^|/)(?:bin/activate|conda\.sh|\.bashrc|\.(?:bash_)?profile)$|^/(?:etc|usr|opt)/")
"""Files by which a script prepares the environment of its programs; as the user's environment, they
set no variable that is not given."""
WRAPPERS = ("nohup", "numactl", "exec", "env", "time", "stdbuf", "nice", "taskset", "timeout",
            "srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "aprun", "jsrun",
            "ssh", "pdsh", "clush", "singularity", "apptainer", "docker", "sudo", "flock", "xargs")
"""Commands that start the command in their words."""
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_BLANK = re.compile(r"<([A-Za-z](?:[\w.,/-]|[ \t](?=\S))*)>(?=[\s\"']|$)", re.ASCII)
"""What the user of a published script is to fill in: <path to the data>."""
_SLURM = re.compile(r"SLURM_\w+", re.ASCII)
_TAKEN = ("read", "mapfile", "readarray", "getopts", "wait", "printf", "coproc")
"""Commands that set variables which their words name."""
_LOOKING = ("cat", "ls", "chmod", "head", "tail", "wc", "grep", "dirname", "realpath")
_COPYING = ("cp", "mv", "ln", "rsync", "scp")
"""Commands that write no file among their words, or only the last one."""
_SHELL_OPTIONS = ("lastpipe", "nullglob", "failglob", "expand_aliases", "nocasematch",
                  "assoc_expand_once", "localvar_inherit", "localvar_unset")
"""Options of ``shopt`` that change what a script means in a way that is not followed."""
_OTHER_SHELL = re.compile(r"#![^\n]*\b(zsh|fish|t?csh|python[\d.]*|perl)\b")


class ShellScript(Flow):
    """The commands and variables of a script.

    Parameters
    ----------
    text : of the script.
    where : its name, for messages.
    given : variables of the environment.
    outer : the script whose command runs this text; unknown values are numbered on from its own.
    folder : of the script; scripts that it sources or starts are followed if they lie there.
    line : of all of it, where it is a text of a command.

    Raises
    ------
    InputError : not a text of a script, or one that is longer or nested deeper than allowed, or
        with what changes the meaning of all others.
    """

    def __init__(
        self, text: str, where: str, given: Mapping[str, str] | None = None,
        outer: ShellScript | None = None, folder: Path | None = None, line: int | None = None,
    ) -> None:
        given = given or {}
        super().__init__(where, [] if outer is None else outer.unknown, ShellState())
        self.given = dict(given) if outer is None else outer.given
        self.folder = folder
        self.texts: list[str] = []
        self.made: set[str] = set()
        """Names of files that commands may have written."""
        self._outer: tuple[str, ...] = ()
        self._calls = 0
        arguments: list[str] = []
        while (number := str(len(arguments) + 1)) in given:
            arguments.append(given[number])
        state = self.state
        state.values = {name: (value,) for name, value in given.items() if not name.isdecimal()}
        state.exported = frozenset(state.values)
        state.arguments = tuple(arguments)
        if outer is not None:
            state.rest = outer.state.rest
            self.system = outer.system
        try:
            self._text(text, line, outer is not None)
        except RecursionError:
            raise InputError(f"{where}: nested too deep; allowed: {DEEPEST}") from None

    @property
    def values(self) -> dict[str, list[str]]:
        """Texts of each variable at the end."""
        return {name: [*value] for name, value in self.state.values.items()}

    @property
    def exported(self) -> dict[str, str]:
        """Variables of the environment at the end."""
        return self._environment()

    def plain(self, text: str) -> str:
        """A text with its unknown values as they stand in the script."""
        return MARK.sub(lambda mark: self.unknown[int(mark[1])].text, text)

    def need(self, text: str, what: str) -> str:
        """A text that has to be known.

        Raises
        ------
        InputError : it depends on what is not understood or not given; names line, text, variable
            and the way out.
        """
        for one in self.unknowns(text):
            plain = re.fullmatch(r"\$\{?(\w{1,60})\b[^$]*", one.text, re.ASCII)
            name = plain[1] if plain else one.name
            why = (f"is an argument of the script; give it by --set {name}=VALUE"
                   if plain and name.isdecimal() else
                   f"is not set in the script; give it by --set {name}=VALUE") if (
                one.unset or plain and name == one.text.strip("${}")) else (
                "is not understood, and nothing is executed; give "
                + (f"{one.name} by --set {one.name}=VALUE" if one.name else "the value itself")
                + f", or read the command line that runs ({CAPTURE})")
            of = f"{one.name}, which depends on " if one.name and not one.unset and (
                one.name != name) else ""
            raise InputError(f"{one.where}: line {one.line}: {what} depends on {of}"
                             f"{shorten(one.text)}, which {why}")
        return text

    def refuse(self, line: int, what: str) -> NoReturn:
        """Say that a statement changes the meaning of others.

        Raises
        ------
        InputError : always.
        """
        raise InputError(
            f"{self.where}: line {line}: {shorten(what)} is not followed; allowed: a script "
            f"without it, or the command line that runs ({CAPTURE})")

    # ------------------------------------------------------------ texts

    def _text(self, text: str, line: int | None = None, marked: bool = False) -> Status:
        if len(text) > LONGEST_SCRIPT:
            raise InputError(f"{self.where}: got {len(text)} characters; allowed: {LONGEST_SCRIPT}")
        if "\0" in text or (not marked and (OPEN in text or CLOSE in text)):
            raise InputError(f"{self.where}: got a character of no use in a script; allowed: text")
        if not marked:
            if shell := _OTHER_SHELL.match(text):
                raise InputError(f"{self.where}: line 1: got a script of {shell[1]}; allowed: of "
                                 "bash or sh")
            self.texts.append(text)
            if "#SBATCH" in text:
                self.system = re.compile(f"{SYSTEM.pattern}|{_SLURM.pattern}", re.ASCII)
        text = _BLANK.sub(lambda found: re.sub(r"\W+", "_", found[1]), text.replace("\r\n", "\n"))
        return self._list(parsed(text, self.where, line))

    def _again(self, text: str, line: int) -> Status:
        """A text that is read once more as commands; unknown parts may be any."""
        found = self._text(text, line, marked=True)
        if cause := self.hard(text):
            self._lose_all(line, self.unknown[int(cause[1:-1])].text)
            return None
        return found

    def _lose_all(self, line: int, text: str) -> None:
        """Every variable becomes unknown."""
        state = self.state
        state.rest = self.mark(line, text)
        for name in state.values:
            if name in self.given:
                state.values[name] = (self.given[name],)
            else:
                state.values[name] = (self.mark(line, text, name=name),)
        if state.arguments:
            state.arguments = None

    def _environment(self) -> dict[str, str]:
        return {name: " ".join(self.get(name, 1, f"${name}")) for name in sorted(
            self.state.exported - self.state.arrays) if name in self.state.values}

    # ------------------------------------------------------------ commands

    def _redirect(self, redirects: Iterable[Redirect], line: int) -> None:
        for one in redirects:
            if "{" in one.mark:
                self.lose(one.mark.strip("{}<>&|"), line, one.mark)
            if one.mark not in ("<<", "<<-"):
                self.made.add(self.plain(self.text(one.target, line)).rpartition("/")[2])

    def _simple(self, node: Simple) -> Status:
        line = node.line
        if node.words[:1] in (("[",), ("test",)) and node.words[0] not in self.state.functions:
            return self._tested(lambda tests: self._bracket(tests, node), line, " ".join(
                map(str, node.words)))
        words = [field for word in node.words for field in (
            [self.assignment(word, line)] if isinstance(word, Assign)
            else self.fields(word, line))]
        arrays = {word.text: word for word in node.words if isinstance(word, Assign)}
        self._redirect(node.redirects, line)
        # A variable that is not set is no word; as a value it keeps its mark.
        first = next((n for n, word in enumerate(words) if self.soft(word)), len(words))
        words = words[first:]
        if not words:
            for one in node.assigns:
                self.assign(one, line)
            ran = any("$(" in str(one.value) or "`" in str(one.value) for one in node.assigns)
            self._cause, self._shown = "", " ".join(one.text for one in node.assigns)
            return None if ran else True
        kept = {one.name: self.state.values.get(one.name) for one in node.assigns}
        exported = self.state.exported
        for one in node.assigns:
            self.assign(one, line)
            self.state.exported |= {one.name}
        status = self._run(words, arrays, line)
        for name, value in kept.items():
            if words[0] in ("eval", "source", ".", "declare", "export", "local", "readonly",
                            "typeset", "unset") or words[0] == "read" and name in words:
                self.lose(name, line, " ".join(map(self.plain, words[:3])))
            elif value is None:
                self.state.values.pop(name, None)
            else:
                self.state.values[name] = value
        if node.assigns:
            self.state.exported = exported
        return status

    def assignment(self, one: Assign, line: int) -> str:
        """An assignment among words, kept for what it declares."""
        return one.text if isinstance(one.value, tuple) or one.at is not None else (
            f"{one.name}{'+' * one.more}={self.text(one.value, line)}")

    def assign(self, one: Assign, line: int) -> None:
        """``NAME=VALUE``."""
        name = one.name
        if isinstance(one.value, tuple):
            listed: list[str] = []
            for word in one.value:
                fields = self.fields(word, line)
                if re.match(r"\[[^\]]*\]\+?=", word) or (
                        any(re.search(r"^[^\[]*[*?]", one) for one in fields)
                        and not re.fullmatch(r"\"[^\"]*\"|'[^']*'", word)):
                    self.lose(name, line, one.text)
                    return
                listed += fields
            before = self.get(name, line, f"${name}") if one.more and (
                name in self.state.values or self.state.rest) else ()
            self.put(name, (*before, *listed), line)
            self.state.arrays |= {name}
            return
        text = self.text(one.value, line)
        there: Value = self.state.values.get(name, ())
        if not there and self.state.rest:
            there = self.get(name, line, f"${name}")
        if one.at is None:
            self.put(name, ((there[0] if there and one.more else "") + text, *there[1:])
                     if there and (one.more or len(there) > 1) else (text,), line)
            return
        self.state.arrays |= {name}
        number = self.arithmetic(one.at, one.text, line)
        if MARK.search(number) or any(map(MARK.search, there)) or not (
                0 <= int(number) <= len(there)) or name in self.state.odd:
            self.lose(name, line, one.text)
            return
        changed = [*there, ""][:max(len(there), int(number) + 1)]
        changed[int(number)] = (changed[int(number)] if one.more else "") + text
        self.put(name, tuple(changed), line)

    def _run(self, words: list[str], arrays: Mapping[str, Assign], line: int) -> Status:
        """A command with its words as they would be run."""
        while words[0] in ("command", "builtin") and len(words) > 1 and words[1][:1] != "-":
            words = words[1:]
        name = words[0]
        self._cause, self._shown = "", self.plain(" ".join(words[:6]))
        if name in self.state.functions:
            return self._call(name, words[1:], line)
        known = _BUILTINS.get(name)
        if known is not None:
            return known(self, words, arrays, line)
        if name in ("eval", "source", ".", "exec"):
            return self._handed(name, words, line)
        if name.rpartition("/")[2] in ("xargs", "parallel"):  # they add words
            words = [*words, self.mark(line, self.plain(" ".join(words[:3])))]
        self._record(words, line)
        if self.hard(name):  # it may be any command
            self._lose_all(line, self.unknown[int(MARK.search(self.hard(name))[1])].text)  # type: ignore[index]
            return None
        if name in _TAKEN:
            return self._named(words, line)
        if name not in _LOOKING:
            self.made |= {self.plain(word).rpartition("/")[2]
                          for word in (words[-1:] if name in _COPYING else words[1:])}
        if name in STARTING or name.rpartition("/")[2] in (*STARTING, *WRAPPERS):
            self._started(words, line)
        return None

    def _record(self, words: Sequence[str], line: int) -> None:
        self.commands.append(ShellCommand(line, tuple(words), self._environment(), self._outer))

    def _call(self, name: str, arguments: Sequence[str], line: int) -> Status:
        node = self.state.functions[name]
        if not isinstance(node, Function):
            self._lose_all(line, name)
            return None
        self._calls += 1
        if self._calls > DEEPEST:
            raise InputError(f"{self.where}: line {line}: functions that call each other more than "
                             f"{DEEPEST} deep")
        kept = self.state.arguments
        self.state.arguments = tuple(arguments)
        self.state.saved = (*self.state.saved, {})
        status = self._returning(lambda: self._node(node.body), line)
        self.state.arguments = kept
        *saved, hidden = self.state.saved
        self.state.saved = tuple(saved)
        for one, value in hidden.items():
            if value is None:
                self.state.values.pop(one, None)
            else:
                self.state.values[one] = value
        self._calls -= 1
        return status

    def _returning(self, run: Callable[[], Status], line: int) -> Status:
        """Run what ``return`` leaves."""
        loops, self._loops = self._loops, []
        self._returns.append([])
        status = run()
        waiting = self._returns.pop()
        self._loops = loops
        if self.state.ended == "return":
            self.state.ended = ""
        if waiting:
            for state in waiting:
                state.ended = ""
            self.state = self._merged(
                [*([] if self.state.ended else [self.state]), *waiting], line)
            status = None
        return status

    def _handed(self, name: str, words: list[str], line: int) -> Status:
        if name == "eval":
            return self._again(" ".join(words[1:]), line)
        if name == "exec":
            if len(words) > 1:
                self._record(words[1:], line)
                self._started(words[1:], line)
                self.state.ended = "exit"
            return True
        if len(words) < 2:
            return False
        self._record(words, line)
        path = self._beside(words[1])
        if path is None:
            if not ENVIRONMENTS.search(self.plain(words[1])):
                self._lose_all(line, self.plain(" ".join(words)))
            return None
        kept, arguments = self.where, self.state.arguments
        self.where = str(path)
        if len(words) > 2:
            self.state.arguments = tuple(words[2:])
        # As a function: return leaves it.
        status = self._returning(lambda: self._text(read_text(path)), line)
        self.where = kept
        if len(words) > 2:
            self.state.arguments = arguments
        return status

    def _beside(self, name: str) -> Path | None:
        """A script of the same folder or below, which nothing has written before."""
        file = MARK.sub("\0", name).rpartition("\0")[2].lstrip("/" if MARK.search(name) else "")
        if self.folder is None or not file or len(self.texts) > MOST_FILES or (
                os.path.basename(file) in self.made):
            return None
        folder = Path(os.path.realpath(self.folder))
        path = Path(os.path.realpath(folder / file))
        if not path.is_relative_to(folder) or not os.path.isfile(path):
            return None
        return self.folder / os.path.relpath(path, folder)

    def _started(self, words: Sequence[str], line: int) -> None:
        """A script of the same folder that a command starts, in a shell of its own."""
        starts = [n for n, word in enumerate(words) if word.rpartition("/")[2] in STARTING]
        for start in starts:
            at = next((n for n, word in enumerate(words[start + 1:], start + 1)
                       if word.endswith(STARTED)), None)
            if at is None or "-c" in words[start:at]:
                continue
            self.made.discard(os.path.basename(words[at]))
            path = self._beside(words[at])
            if path is None:
                continue
            kept, where, outer = self.state, self.where, self._outer
            loops, returns = self._loops, self._returns
            self._loops, self._returns = [], []
            environment = self._environment()
            self.state = ShellState(
                values={name: (value,) for name, value in environment.items()},
                exported=frozenset(environment), arguments=tuple(words[at + 1:]), rest=kept.rest)
            self.where, self._outer = str(path), (*outer, *words[:at])
            self._text(read_text(path))
            self.state, self.where, self._outer = kept, where, outer
            self._loops, self._returns = loops, returns
            return

    # ------------------------------------------------------------ commands of the shell

    def _named(self, words: Sequence[str], line: int) -> Status:
        """A command that sets variables among its words, and of its own."""
        name = words[0]
        if name == "printf" and not any(word.startswith("-v") for word in words):
            return True
        if name == "wait" and "-p" not in words:
            return None
        if name == "getopts" and not self.arguments(line, "$@") and len(words) == 3:
            self.put(words[2], ("?",), line)
            self.state.values.pop("OPTARG", None)
            return False
        shown = self.plain(" ".join(words))
        for word in words[1:]:
            if self.hard(word):
                self._lose_all(line, shown)
                return None
        for word in (*words[1:], *{"read": ("REPLY",), "mapfile": ("MAPFILE",),
                                   "readarray": ("MAPFILE",), "getopts": ("OPTARG",)}.get(
                                       name, ())):
            if found := re.match(r"(?:-[a-zA-Z]*)?([A-Za-z_]\w*)(?:\[|$)", word, re.ASCII):
                self.lose(found[1], line, shown)
            if re.fullmatch(r"-\w+", word):
                for at in range(2, len(word)):  # -aNAME
                    if _NAME.fullmatch(word[at:]):
                        self.lose(word[at:], line, shown)
        return None

    def _declared(
        self, words: Sequence[str], arrays: Mapping[str, Assign], line: int
    ) -> Status:
        """``export``, ``declare`` and their relatives."""
        name = words[0]
        if name == "local" and not self.state.saved:
            return False
        options = "".join(word[1:] for word in words[1:] if re.match(r"[-+][a-zA-Z]", word))
        if "n" in options and name != "export":
            self.refuse(line, " ".join(words[:3]))
        if "f" in options or "F" in options or "p" in options:
            return True
        own = bool(self.state.saved) and name in ("local", "declare", "typeset") and (
            "g" not in options)
        for word in words[1:]:
            if re.match(r"[-+][a-zA-Z]", word):
                continue
            found = re.match(r"([A-Za-z_]\w*)(\[.*?\])?(\+?)(=)?", self.soft(word), re.ASCII)
            if found is None or self.hard(word[:found.end()]):
                self._lose_all(line, self.plain(word))
                continue
            variable = found[1]
            if own and variable not in self.state.saved[-1]:
                self.state.saved[-1][variable] = self.state.values.get(variable)
                self.state.values.pop(variable, None)
                if found[4] is None:
                    self.state.values[variable] = ("",)
            if {*options} & {*"ilucA"}:
                if found[4] is not None:
                    self.lose(variable, line, self.plain(word))
                self.state.odd[variable] = self.mark(line, self.plain(word), name=variable)
            elif word in arrays:
                self.assign(arrays[word], line)
            elif found[4] is not None:
                text = self.soft(word) if not MARK.search(word[:found.end()]) else word
                text = word[word.index("=") + 1:]
                before = "".join(self.state.values.get(variable, ())[:1]) if found[3] else ""
                if found[2]:
                    self.lose(variable, line, self.plain(word))
                else:
                    self.put(variable, (before + text,), line)
            if name == "export" or "x" in options:
                self.state.exported = self.state.exported - {variable} if "n" in options else (
                    self.state.exported | {variable})
            if name == "readonly" or "r" in options:
                self.state.fixed |= {variable}
        return True

    def _unset(self, words: Sequence[str], arrays: Mapping[str, Assign], line: int) -> Status:
        for word in words[1:]:
            if word == "-n":
                self.refuse(line, " ".join(words))
            if self.hard(word):
                self._lose_all(line, self.plain(word))
            elif "[" in word:
                self.lose(word.partition("[")[0], line, self.plain(word))
            elif "-f" in words:
                self.state.functions.pop(word, None)
            elif word in self.state.fixed:
                self.state.odd[word] = self.mark(line, f"unset {word}", name=word)
            elif _NAME.fullmatch(word):
                there = word in self.state.values
                self.state.values.pop(word, None)
                if self.state.rest or self.state.saved:
                    if self.state.saved:
                        self.lose(word, line, " ".join(words))
                    else:
                        self.put(word, (), line)
                if not there and "-v" not in words and word in self.state.functions:
                    del self.state.functions[word]
                self.state.exported -= {word}
                self.state.arrays -= {word}
        return True

    def _set(self, words: Sequence[str], arrays: Mapping[str, Assign], line: int) -> Status:
        """Options of ``set``, and arguments behind them or ``--``."""
        at, state = 1, self.state
        while at < len(words) and re.match(r"[-+]\w", words[at]):
            off, letters = words[at][:1] == "+", words[at][1:]
            if letters.endswith("o"):
                at += 1
                letters += {"errexit": "e", "allexport": "a", "noexec": "n", "keyword": "k",
                            "posix": "k"}.get(words[at] if at < len(words) else "", "")
            changed = frozenset(letters) & frozenset("eank")
            state.options = state.options - changed if off else state.options | changed
            if "k" in changed or "n" in changed:
                self.refuse(line, " ".join(words))
            at += 1
        if at < len(words):
            rest = words[at + (words[at] in ("--", "-")):]
            state.arguments, state.shifted = tuple(
                word for word in rest if self.soft(word)), 0
        return True

    def _shift(self, words: Sequence[str], arrays: Mapping[str, Assign], line: int) -> Status:
        count = words[1] if len(words) > 1 else "1"
        there, state = self.state.arguments, self.state
        if there is None or not re.fullmatch(r"\d{1,3}", count):
            state.arguments = None
            return None
        if any(MARK.search(one) for one in there[:int(count)]):
            state.arguments = None
            return None
        if int(count) > len(there):
            if state.saved or there:
                return False
            state.shifted += int(count)  # of the script itself: not given
            return None
        state.arguments = there[int(count):]
        if not state.saved:
            state.shifted += int(count)
        return True

    def _leave(self, words: Sequence[str], arrays: Mapping[str, Assign], line: int) -> Status:
        kind = words[0]
        if kind in ("break", "continue"):
            if not self._loops:
                return True
            if len(words) > 1 and words[1] != "1":
                self.refuse(line, " ".join(words))
        if kind == "return" and not self._returns:
            return None
        self.state.ended = kind
        if len(words) > 1 and kind == "return":
            return None if not words[1].isdecimal() else words[1] == "0"
        return True if len(words) == 1 and kind != "return" else None

    def _let(self, words: Sequence[str], arrays: Mapping[str, Assign], line: int) -> Status:
        status: Status = None
        for word in words[1:]:
            status = self._compute(word, line)
        return status

    def _nothing(self, words: Sequence[str], arrays: Mapping[str, Assign], line: int) -> Status:
        return words[0] != "false"

    def _printed(self, words: Sequence[str], arrays: Mapping[str, Assign], line: int) -> Status:
        self._record(words, line)
        return True

    def _options(self, words: Sequence[str], arrays: Mapping[str, Assign], line: int) -> Status:
        if any(word in _SHELL_OPTIONS or self.hard(word) for word in words[1:]) and (
                "-u" not in words):
            self.refuse(line, self.plain(" ".join(words)))
        return True

    def _trap(self, words: Sequence[str], arrays: Mapping[str, Assign], line: int) -> Status:
        """What a trap may change is never known."""
        if len(words) < 3 or words[1] in ("-", "", "-p", "-l") or {*words[2:]} <= {"EXIT", "0"}:
            return True
        if self.hard(words[1]):
            self.refuse(line, self.plain(" ".join(words)))
        kept, commands = self.state, [*self.commands]
        self.state = kept.copy()
        self._testing += 1
        self._text(words[1], line, marked=True)
        self._testing -= 1
        changed, self.state, self.commands = self.state, kept, commands
        if changed.rest != kept.rest:
            self.refuse(line, self.plain(" ".join(words)))
        for name in {*changed.values, *kept.values}:
            if changed.values.get(name) != kept.values.get(name):
                kept.odd[name] = self.mark(line, self.plain(" ".join(words)), name=name)
        return True

    def _enabled(self, words: Sequence[str], arrays: Mapping[str, Assign], line: int) -> Status:
        self.refuse(line, self.plain(" ".join(words)))


_BUILTINS: Mapping[str, Callable[
    [ShellScript, list[str], Mapping[str, Assign], int], Status]] = {
    **dict.fromkeys(("export", "declare", "local", "readonly", "typeset"), ShellScript._declared),
    **dict.fromkeys(("break", "continue", "return", "exit"), ShellScript._leave),
    **dict.fromkeys((":", "true", "false"), ShellScript._nothing),
    "unset": ShellScript._unset, "set": ShellScript._set, "shift": ShellScript._shift,
    "let": ShellScript._let,
    "shopt": ShellScript._options, "trap": ShellScript._trap, "enable": ShellScript._enabled,
    "alias": ShellScript._nothing, "echo": ShellScript._printed,
}
"""Commands of the shell that change variables, or succeed for certain."""
