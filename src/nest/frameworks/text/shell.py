"""A launch script's commands, read as text as far as it says them for certain; nothing is executed.

Followed: assignments, arrays, defaults, quotes, continued lines, ``export``, ``set --``, ``shift``,
``eval`` of a known text, and ``if``, ``&&`` and ``||`` with plain comparisons. Everything else that
may set a variable makes it unknown: a command's output, arithmetic, a loop, a function, another
test, a file that is sourced. An unknown value remembers its line and text; it is an error only
where the result depends on it, and `nest capture` or a log says it then. A command that may run or
not is taken as run; what it sets is unknown before it too, because it may run several times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from nest.errors import InputError
from nest.frameworks.text.shell_tree import (
    DEEPEST,
    NAME,
    Commands,
    ShellArray,
    ShellBlock,
    ShellSimple,
    parsed,
)
from nest.frameworks.text.shell_words import (
    CLOSE,
    INSTEAD,
    MARK,
    MOST_STEPS,
    OPEN,
    ShellCommand,
    Unknown,
    Words,
)
from nest.units import shorten

__all__ = ["MARK", "ShellCommand", "ShellScript", "Unknown"]

LONGEST_SCRIPT = 2**20
"""Characters of a script."""
ENVIRONMENTS = re.compile(
    r"(?:^|/)(?:bin/activate|conda\.sh|\.bashrc|\.(?:bash_)?profile)$|^/(?:etc|usr|opt)/")
"""Files by which a script prepares the environment of its programs; as the user's environment, they
set no variable that is not given."""
_BLANK = re.compile(r"(?<!<)<([A-Za-z](?:[\w.,/-]|[ \t](?=\S))*)>(?=[\s\"']|$)", re.ASCII)
"""What the user of a published script is to fill in: <path to the data>."""
_OTHER_SHELL = re.compile(r"#![^\n]*\b(zsh|fish|t?csh|python[\d.]*|perl)\b")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=", re.ASCII)
_SETTING = ("export", "declare", "typeset", "local", "readonly")
_NAMING = ("read", "mapfile", "readarray", "getopts", "printf", "wait", "unset", "let", "((")
"""Commands whose words name variables that they set."""
_UNFOLLOWED = ("eval", "source", ".", "alias", "trap", "enable", "shopt")
"""Commands after which any variable may be another one, or that change what all others mean."""
_SWITCHES = {"lastpipe", "nullglob", "failglob", "expand_aliases", "nocasematch",
             "assoc_expand_once", "localvar_inherit", "localvar_unset"}
"""Options of ``shopt`` that do."""
_NUMBERS = {"-eq": int.__eq__, "-ne": int.__ne__, "-gt": int.__gt__, "-ge": int.__ge__,
            "-lt": int.__lt__, "-le": int.__le__}


class ShellScript(Words):
    """The commands and variables of a script.

    Parameters
    ----------
    text : of the script.
    where : its name, for messages.
    given : variables of the environment; "1", "2", ...: arguments. They stand for what is unknown.
    outer : the script whose command runs this text; unknown values are numbered on from its own.
    line : of all of it, where it is a text of a command.
    captured : its lines are launches of a document of `nest capture`.

    Raises
    ------
    InputError : not a text of a script, or one that is longer or nested deeper than allowed.
    """

    def __init__(
        self, text: str, where: str, given: Mapping[str, str] | None = None,
        outer: ShellScript | None = None, line: int | None = None, captured: bool = False,
    ) -> None:
        super().__init__(where, given or {}, outer, "#SBATCH" in text)
        self.captured, self.script = captured, text
        self.commands: list[ShellCommand] = []
        self.assumptions: dict[str, None] = {}
        """Variables that decide something because they are not set."""
        self._exported = {*self._values}
        self._arrays: set[str] = set()
        self._functions: dict[str, ShellBlock] = {}
        self._ended, self._steps, self._depth = False, 0, 0
        self._read(text, line, outer is not None)

    def _read(self, text: str, line: int | None, marked: bool) -> None:
        if len(text) > LONGEST_SCRIPT:
            raise InputError(f"{self.where}: got {len(text)} characters; allowed: {LONGEST_SCRIPT}")
        if "\0" in text or (not marked and (OPEN in text or CLOSE in text)):
            raise InputError(f"{self.where}: got a character of no use in a script; allowed: text")
        if shell := _OTHER_SHELL.match(text):
            raise InputError(f"{self.where}: line 1: got a script of {shell[1]}; allowed: of bash "
                             "or sh")
        text = _BLANK.sub(lambda found: re.sub(r"\W+", "_", found[1]), text.replace("\r\n", "\n"))
        try:
            self._all(parsed(text, self.where, line))
        except RecursionError:
            raise InputError(f"{self.where}: nested too deep; allowed: {DEEPEST}") from None

    @property
    def values(self) -> dict[str, list[str]]:
        """Texts of each variable at the end."""
        return {name: [*value] for name, value in self._values.items()}

    @property
    def exported(self) -> dict[str, str]:
        """Variables of the environment at the end."""
        return {name: " ".join(self._get(name, 1, f"${name}")) for name in sorted(
            self._exported - self._arrays) if name in self._values}

    @property
    def notes(self) -> tuple[str, ...]:
        """A note on what decided something because it is not set; none: nothing did."""
        named = ", ".join(self.assumptions)
        return (f"not set in the script, and empty in its tests: {named} (--set "
                "NAME=VALUE)",) if named else ()

    def _refuse(self, line: int, shown: str) -> NoReturn:
        """Say that a command changes what others mean.

        Raises
        ------
        InputError : always.
        """
        raise InputError(f"{self.where}: line {line}: {shorten(self.plain(shown))} is not "
                         f"followed; {INSTEAD.format(self.where.rpartition('/')[2])}")

    def refuse_several(self, lines: Iterable[int]) -> NoReturn:
        """Say that several commands train.

        Raises
        ------
        InputError : always.
        """
        shown = ", ".join(map(str, [*dict.fromkeys(lines)][:20]))
        if self.captured:
            raise InputError(f"{self.where}: launches {shown} train a model; allowed: one of them, "
                             "by --launch N")
        raise InputError(f"{self.where}: several commands train a model (lines {shown}); allowed: "
                         "one in a copy of the script, or the one that `nest capture -- bash "
                         f"{self.where.rpartition('/')[2]}` records")

    # ------------------------------------------------------------ commands

    def _all(self, commands: Commands) -> None:
        for one in commands:
            self._steps += 1
            if self._steps > MOST_STEPS:
                raise InputError(f"{self.where}: line {one.line}: more than {MOST_STEPS} commands")
            if self._ended:
                return
            if isinstance(one, ShellSimple):
                self._simple(one)
            elif one.kind == "{":
                self._all(one.bodies[0])
            elif one.kind == "function":
                self._functions[one.name] = one
            elif one.kind == "&&":
                self._joined(one)
            elif one.kind != "if" or self._loose or not self._chosen(one):
                self._may(one, one.text)

    def _may(self, block: ShellBlock, text: str) -> None:
        """Commands that may run, or several times: what they set is unknown before them too."""
        kept, ended = self._loose, self._ended
        self._loose = kept or self._mark(block.line, text)
        commands, functions = [*self.commands], {**self._functions}
        for _ in range(10):
            before = {**self._values}
            self.commands = [*commands]
            if block.name and block.kind in ("for", "select"):
                self._lose(block.name, block.line, text)
            for body in (*block.tests, *block.bodies):
                self._all(body)
                self._ended = ended
            if before == self._values:
                break
        else:
            self._lose_all(block.line, text)
        self._loose = kept
        if any(self._functions.get(name) is not one for name, one in functions.items()) or (
                len(functions) < len(self._functions)):
            self._functions = {name: one._replace(line=-1) for name, one in self._functions.items()}

    def _chosen(self, block: ShellBlock) -> bool:
        """Follow an ``if`` whose tests are decided; False: one is not."""
        assumed: dict[str, None] = {}
        for test, body in zip(block.tests, block.bodies, strict=False):
            holds = self._holds(test, assumed)
            if holds is None:
                return False
            if not holds:
                continue
            self._way(body, assumed)
            return True
        self.assumptions |= assumed
        if len(block.bodies) > len(block.tests):
            self._all(block.bodies[-1])
        return True

    def _way(self, body: Commands, assumed: dict[str, None]) -> None:
        """Follow a way that is chosen; one that only ends the script, because a variable of the
        user is not given, is not taken where the script trains."""
        kept, count = {**self._values}, len(self.commands)
        self._all(body)
        if not (assumed and self._ended) or any(
                ".py" in word for one in self.commands[count:] for word in one.words):
            self.assumptions |= assumed
            return
        self._values, self._ended = kept, False
        del self.commands[count:]

    def _joined(self, block: ShellBlock) -> None:
        """``A && B || C``: followed as long as plain comparisons decide."""
        assumed: dict[str, None] = {}
        holds = None if self._loose else self._holds(block.bodies[0], assumed)
        if holds is None:
            self._all(block.bodies[0])
        for number, (join, body) in enumerate(zip(block.name.split(), block.bodies[1:],
                                                  strict=True), 1):
            if holds is None:
                self._may(block._replace(bodies=block.bodies[number:]), block.text)
                return
            if holds == (join == "&&"):
                holds = self._holds(body, assumed)
                if holds is None:
                    self._way(body, assumed)
                    holds = True if all(map(_is_plain, body)) else None
        self.assumptions |= assumed

    def _holds(self, test: Commands, assumed: dict[str, None]) -> bool | None:
        """Whether plain comparisons hold; None: there are others, or it is not known.

        ``assumed`` takes the variables that decide it because they are not set.
        """
        [one, *more] = test or (None,)
        if more or one is None:
            return None
        if isinstance(one, ShellSimple):
            return self._compared(one, assumed)
        if one.kind != "&&":
            return None
        found = self._holds(one.bodies[0], assumed)
        for join, body in zip(one.name.split(), one.bodies[1:], strict=True):
            if found is not None and found == (join == "&&"):
                found = self._holds(body, assumed)
        return found

    def _compared(self, test: ShellSimple, assumed: dict[str, None]) -> bool | None:
        """``[ A = B ]`` and its relatives, without patterns and numbers that are none."""
        words = [word for word in test.words if isinstance(word, str)]
        ends = {"[": ["]"], "[[": ["]]"], "test": []}.get(words[0] if words else "")
        if ends is None or len(words) != len(test.words) or words[-1:] != (ends or words[-1:]):
            return None
        double, inner = words[0] == "[[", words[1:len(words) - len(ends)]
        if len(inner) not in (2, 3) or double and len(inner) == 3 and re.search(
                r"[*?\[(]", inner[2]):
            return None
        texts = [[self._text(word, test.line)] if double else self._fields(word, test.line)
                 for word in inner]
        if any(len(one) != 1 or self.hard(one[0]) for one in texts):
            return None
        unset = {one.name: None for text in texts for one in self.unknowns(text[0])}
        first, *rest = (self.soft(text[0]) for text in texts)
        if unset and not double and first != "-z" and any(
                re.match(r"\$|\w*\$\{", word) for word in inner):
            return None  # a word that is not there
        found: bool | None = None
        if len(rest) == 1 and first in ("-z", "-n"):
            found = (rest[0] == "") == (first == "-z")
        elif len(rest) == 2 and rest[0] in ("=", "==", "!="):
            found = (first == rest[1]) == (rest[0] != "!=")
        elif len(rest) == 2 and rest[0] in _NUMBERS and all(
                re.fullmatch(r"-?(?:0|[1-9]\d{0,17})", one) for one in (first, rest[1])):
            found = _NUMBERS[rest[0]](int(first), int(rest[1]))
        if found is not None:
            assumed |= unset
        return found

    def _simple(self, node: ShellSimple) -> None:
        line = node.line
        for name in node.changes:
            self._lose(name, line, f"{{{name}}}>")
        words = node.words
        at = next((n for n, word in enumerate(words) if isinstance(word, str)
                   and not _ASSIGNED.match(word)), len(words))
        if at == len(words):
            for word in words:
                self._assign(word, line)
            return
        if words[0] in ("[[", "((", "!"):
            if words[0] == "((":
                self._lose_changed(f"$(({words[1]}))", line)
            elif words[0] == "[[":
                for word in words[1:-1]:
                    self._text(str(word), line)
            return
        first = str(words[at])
        shown = [word if isinstance(word, str) else f"{word.name}=(...)" for word in words[at:]]
        declared = first in _SETTING
        found = [field for word in words[at:] for field in (
            [word] if isinstance(word, str) and declared and _ASSIGNED.match(word)
            else self._fields(word, line) if isinstance(word, str) else [word.name])]
        while found and not self.soft(found[0]):  # a variable that is not set is no word
            found.pop(0)
        given = {}
        for word in words[:at]:
            if isinstance(word, ShellArray) or not (match := _ASSIGNED.match(word)) or match[2]:
                self._lose(word.name if isinstance(word, ShellArray) else word.partition("[")[0],
                           line, " ".join(shown))
                continue
            given[match[1]] = self._text(word[match.end():], line)
        if not found:
            for name in given:
                self._put(name, (given[name],), line)
            return
        if found[0] in self._functions or found[0] in (*_SETTING, *_UNFOLLOWED, "unset"):
            for name in given:
                self._lose(name, line, " ".join(shown))
        self._run(found, words[at:], given, line, " ".join(shown))

    def _assign(self, word: str | ShellArray, line: int) -> None:
        """``NAME=VALUE``, ``NAME=(WORDS)``."""
        if isinstance(word, ShellArray):
            found = [(field, one) for one in word.words for field in self._fields(one, line)]
            if any(re.match(r"\[[^\]]*\]\+?=", one) or re.search(r"^[^\[]*[*?]", field)
                   and not re.fullmatch(r"\"[^\"]*\"|'[^']*'", one) for field, one in found):
                self._lose(word.name, line, f"{word.name}=(...)")
                return
            before = self._get(word.name, line, f"${word.name}") if word.more and (
                word.name in self._values or self._rest) else ()
            self._put(word.name, (*before, *(field for field, _ in found)), line)
            self._arrays.add(word.name)
            return
        match = _ASSIGNED.match(word)
        assert match is not None
        name, there = match[1], self._values.get(match[1], ())
        text = self._text(word[match.end():], line)
        if match[2] or match[3] and not there and self._rest:
            self._lose(name, line, word)
        else:
            self._put(name, ("".join(there[:match[3] == "+"]) + text, *there[1:]), line)

    def _run(
        self, words: list[str], written: Sequence[str | ShellArray], given: Mapping[str, str],
        line: int, shown: str,
    ) -> None:
        """A command with its words as they would be run."""
        while words[0] in ("command", "builtin") and len(words) > 1:
            words = words[1:]
        name = words[0]
        if name in self._functions:
            self._called(self._functions[name], line, shown)
        elif name in _SETTING:
            self._declared(words, written, line)
        elif name in _NAMING:
            self._named(words, line, shown)
        elif name in ("exit", "return", "exec"):
            if name == "exec" and len(words) > 1:
                self._record(words[1:], given, line)
            self._ended = name != "exec" or len(words) > 1
        elif name == "set":
            self._set(words, line)
        elif name == "shift":
            count = int("".join(words[1:2]) or 1) if re.fullmatch(r"\d{0,3}", "".join(words[1:2])) \
                else 0
            there = self._arguments
            if self._loose or there is None or not count or any(map(MARK.search, there[:count])):
                self._arguments = None
            else:
                self._arguments = there[count:]
                self._shifted += count
        elif name in _UNFOLLOWED:
            if name == "eval":
                self._read(text := " ".join(words[1:]), line, True)
                if self.hard(text):
                    self._lose_all(line, shown)
            elif name in ("source", "."):
                self._record(words, given, line)
                if not ENVIRONMENTS.search(self.plain("".join(words[1:2]))):
                    self._lose_all(line, shown)
            elif name == "enable" or name == "shopt" and {*words} & _SWITCHES or (
                    name == "trap" and len(words) > 2 and words[1] not in ("-", "")
                    and not {*words[2:]} <= {"EXIT", "0"}):
                self._refuse(line, shown)
        elif name not in (":", "true", "false"):
            self._record(words, given, line)
            if self.hard(name) == name:  # it may be any command
                self._lose_all(line, self.plain(shown))

    def _record(self, words: Sequence[str], given: Mapping[str, str], line: int) -> None:
        self.commands.append(ShellCommand(line, tuple(words), {**self.exported, **given}))

    def _called(self, function: ShellBlock, line: int, shown: str) -> None:
        """A function: what it sets is unknown, and its arguments are."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise InputError(f"{self.where}: line {line}: functions that call each other more than "
                             f"{DEEPEST} deep")
        arguments, self._arguments = self._arguments, None
        if function.line < 0:
            self._lose_all(line, shown)
        self._may(function._replace(line=line), shown)
        self._arguments = arguments
        self._depth -= 1

    def _declared(
        self, words: Sequence[str], written: Sequence[str | ShellArray], line: int
    ) -> None:
        """``export NAME=VALUE`` and its relatives."""
        arrays = {one.name: one for one in written if isinstance(one, ShellArray)}
        options = "".join(word[1:] for word in words[1:] if re.match(r"[-+][a-zA-Z]", word))
        if "n" in options:
            self._refuse(line, " ".join(words))
        if {*options} & {*"pfF"}:
            return
        for word in words[1:]:
            if re.match(r"[-+][a-zA-Z]", word):
                continue
            match = _ASSIGNED.match(word)
            name = match[1] if match else word
            if not NAME.fullmatch(name):
                self._lose_all(line, self.plain(" ".join(words)))
                continue
            if {*options} & {*"iluA"} or words[0] == "local" or written[0] != words[0]:
                self._lose(name, line, word)
                self._fixed |= {name} if {*options} & {*"ilu"} else set()
            elif match or name in arrays:
                self._assign(arrays.get(name, word), line)
            if words[0] == "export" or "x" in options:
                self._exported.add(name)
            if words[0] == "readonly" or "r" in options:
                self._fixed.add(name)

    def _named(self, words: Sequence[str], line: int, shown: str) -> None:
        """A command that sets variables which its words name."""
        if words[0] in ("printf", "wait") and not any(
                word.startswith(("-v", "-p")) for word in words):
            self._record(words, {}, line)
            return
        if words[0] == "unset" and "-n" in words:
            self._refuse(line, shown)
        if any(map(self.hard, words[1:])):
            self._lose_all(line, shown)
            return
        if "-f" in words:
            self._functions.pop(words[-1], None)
            return
        for word in words[1:]:
            if words[0] == "let":
                self._lose_changed(f"$(({word}))", line)
                continue
            if words[0] == "unset" and word[:1] == "-":
                continue
            for name in re.findall(r"[A-Za-z_]\w*", re.sub(r"^-v", "", word), re.ASCII):
                if words[0] != "unset" or self._loose or "[" in word:
                    self._lose(name, line, shown)
                elif self._rest:
                    self._put(name, (self._mark(line, f"${name}", unset=True, name=name),), line)
                else:
                    self._values.pop(name, None)
                    self._functions.pop(name, None)
        for name in {"read": ("REPLY",), "mapfile": ("MAPFILE",), "readarray": ("MAPFILE",),
                     "getopts": ("OPTARG", "OPTIND")}.get(words[0], ()):
            self._lose(name, line, shown)

    def _set(self, words: Sequence[str], line: int) -> None:
        """Arguments behind options of ``set``, or ``--``."""
        at = 1
        while at < len(words) and re.match(r"[-+]\w", words[at]):
            if {*words[at][1:]} & {*"kn"} or words[at][1:].endswith("o") and "".join(
                    words[at + 1:at + 2]) in ("noexec", "keyword", "posix"):
                self._refuse(line, " ".join(words))
            at += 1 + words[at][1:].endswith("o")
        if at < len(words):
            rest = words[at + (words[at] in ("--", "-")):]
            self._arguments = None if self._loose else tuple(filter(self.soft, rest))
            self._shifted = 0


def _is_plain(one: ShellSimple | ShellBlock) -> bool:
    """Whether a command only assigns, which succeeds."""
    return isinstance(one, ShellSimple) and all(
        isinstance(word, str) and _ASSIGNED.match(word) is not None
        and not re.search(r"\$\(|`", word) for word in one.words)
