"""What the words of a script become, as far as its text says for certain; nothing is executed.

Rules: Bash Reference Manual 5.2, section 3.5. An unknown value is a text with a mark: the number of
its :class:`Unknown` between two characters of Unicode's private area, which scripts may not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nest.errors import InputError
from nest.frameworks.text.shell_tree import DEEPEST, NAME, Reader
from nest.units import shorten

LONGEST_VALUE = 10**5
"""Characters of a value, and words of an array."""
LONGEST_FORMULA = 1000
"""Characters of arithmetic in which the variables that it changes are looked for."""
MOST_STEPS = 20_000
"""Commands that are followed, and values that are not known."""
INSTEAD = ("allowed: the launch that `nest capture -- bash {}` records, or the training log (`nest "
           "read train.log`)")
"""What stands for a text that is not followed."""
OPEN, CLOSE = "\ue000", "\ue001"
MARK = re.compile(f"{OPEN}(\\d+){CLOSE}")
SYSTEM = re.compile(
    r"(?:PWD|OLDPWD|HOME|USER|LOGNAME|HOSTNAME|HOSTTYPE|OSTYPE|MACHTYPE|SHELL|PATH|TMPDIR|LANG|"
    r"S?RANDOM|SECONDS|EPOCH\w+|LINENO|UID|EUID|PPID|GROUPS|SHLVL|SHELLOPTS|PIPESTATUS|"
    r"FUNCNAME|DIRSTACK|OPTIND|COLUMNS|LINES|BASH\w*|COMP_\w+|_)", re.ASCII)
"""Variables that bash or the system sets."""
_SLURM = re.compile(r"SLURM_\w+", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z_]\w*|[0-9@*#?!$-]", re.ASCII)
_PARAMETER = re.compile(r"(?P<name>[A-Za-z_]\w*|\d+|[@*])(?:\[(?P<index>@|\*|\d{1,5})\])?"
                        r"(?:(?P<mark>:?[-=+?])(?P<word>.*))?", re.ASCII | re.DOTALL)
_CHANGED = re.compile(r"([A-Za-z_]\w*)\s*(?:\[[^\]]{0,99}\]\s*)?(?:[-+*/%&^|]|<<|>>)?=(?!=)|"
                      r"([A-Za-z_]\w*)\s*(?:\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)", re.ASCII)
"""Variables that arithmetic may change."""
_BRACES = re.compile(r"(?<!\$)\{[^{}\s'\"]*(?:,|\.\.)[^{}\s'\"]*\}")
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
Value = tuple[str, ...]
"""Texts of an array; of another variable one."""


class Unknown(NamedTuple):
    """A value that a script does not say."""

    line: int
    text: str
    unset: bool
    """It is a variable or an argument that is empty unless the user gives it."""
    where: str
    """Name of the script."""
    name: str = ""
    """Of the variable that has it first; the user may give it."""


class Piece(NamedTuple):
    """Part of a word."""

    quoted: bool
    made: bool
    """By an expansion."""
    values: Sequence[str]
    """One text, or those of an array."""


class ShellCommand(NamedTuple):
    """A command of a script with its words as they would be run."""

    line: int
    words: tuple[str, ...]
    variables: Mapping[str, str]
    """Variables of the environment, and those set in front of the command."""
    outer: tuple[str, ...] = ()
    """Words of the command that runs the text with this one."""


class Words:
    """Words in a state of variables; see :class:`nest.frameworks.text.shell.ShellScript`."""

    def __init__(
        self, where: str, given: Mapping[str, str], outer: Words | None, slurm: bool
    ) -> None:
        self.where = where
        self.unknown: list[Unknown] = [] if outer is None else outer.unknown
        self.given: dict[str, str] = dict(given) if outer is None else outer.given
        self._values: dict[str, Value] = {
            name: (value,) for name, value in given.items() if not name.isdecimal()}
        self._formulas: dict[str, list[str]] = {}
        """Values that change a variable where arithmetic reads them."""
        self._fixed: set[str] = set()
        """Names whose new values are not followed."""
        self._arguments: Value | None = ()
        while outer is None and (number := str(len(self._arguments) + 1)) in given:
            self._arguments += (given[number],)
        self._shifted = 0
        self._rest: str = "" if outer is None else outer._rest
        """Mark of what variables may have become; empty: they are as the user gives them."""
        self._loose = ""
        """Mark of why a command may run or not; empty: it runs."""
        self._slurm: bool = slurm or outer is not None and outer._slurm
        """Slurm sets its variables."""

    # ------------------------------------------------------------ unknown values

    def _mark(self, line: int, text: str, unset: bool = False, name: str = "") -> str:
        if len(self.unknown) >= MOST_STEPS:
            raise InputError(f"{self.where}: line {line}: more than {MOST_STEPS} values that are "
                             "not known")
        self.unknown.append(Unknown(line, text, unset, self.where, name))
        return f"{OPEN}{len(self.unknown) - 1}{CLOSE}"

    def unknowns(self, text: str) -> list[Unknown]:
        """The unknown values that a text depends on."""
        return [self.unknown[int(number)] for number in MARK.findall(text)]

    def hard(self, text: str) -> str:
        """The first mark of a text that is not only a variable that is not set; or nothing."""
        return next((found[0] for found in MARK.finditer(text)
                     if not self.unknown[int(found[1])].unset), "")

    def soft(self, text: str) -> str:
        """A text without what is not set."""
        return MARK.sub(lambda one: "" if self.unknown[int(one[1])].unset else one[0], text)

    def plain(self, text: str) -> str:
        """A text with its unknown values as they stand in the script."""
        return MARK.sub(lambda mark: self.unknown[int(mark[1])].text, text)

    def need(self, text: str, what: str) -> str:
        """A text that has to be known.

        Raises
        ------
        InputError : it depends on what is not said or not given; names line, text, variable and the
            way out.
        """
        for one in self.unknowns(text):
            shown = f"{one.where}: line {one.line}: {what} depends on "
            if one.unset:
                kind = "an argument of the script" if one.name.isdecimal() else (
                    "not set in the script")
                raise InputError(f"{shown}{shorten(one.text)}, which is {kind}; give it by --set "
                                 f"{one.name}=VALUE")
            of = f"{one.name}, which depends on " if one.name and one.name not in one.text else ""
            raise InputError(f"{shown}{of}{shorten(one.text)}, which the text alone does not "
                             f"decide; {INSTEAD.format(one.where.rpartition('/')[2])}")
        return text

    # ------------------------------------------------------------ variables

    def _put(self, name: str, value: Value, line: int) -> None:
        if sum(map(len, value)) + len(value) > LONGEST_VALUE:
            raise InputError(f"{self.where}: line {line}: {name}: longer than {LONGEST_VALUE} "
                             "characters")
        for one in value:
            if _CHANGED.search(one[:LONGEST_FORMULA]):
                self._formulas.setdefault(name, []).append(one[:LONGEST_FORMULA])
        if name in self._fixed:
            value = (self._mark(line, f"{name}=", name=name),)
        if self._loose and not any(map(self.hard, self._values.get(name, ()))):
            why = self.unknown[int(self._loose[1:-1])]
            value = (self._mark(why.line, why.text, name=name),)
        elif self._loose:
            return
        if name in self.given and any(map(self.hard, value)):
            value = (self.given[name],)
        for number in MARK.findall("".join(value)):
            if not self.unknown[int(number)].name:
                self.unknown[int(number)] = self.unknown[int(number)]._replace(name=name)
        self._values[name] = value

    def _lose(self, name: str, line: int, text: str) -> None:
        """A variable becomes unknown."""
        self._put(name, (self._mark(line, text, name=name),), line)

    def _lose_all(self, line: int, text: str) -> None:
        """Every variable becomes unknown."""
        self._rest = self._mark(line, text)
        self._arguments = None
        for name in self._values:
            self._values[name] = (self.given.get(name) or self._mark(line, text, name=name),)

    def _get(self, name: str, line: int, shown: str) -> Value:
        if name not in self.given and (SYSTEM.fullmatch(name) or self._slurm and _SLURM.fullmatch(
                name)):
            return (self._mark(line, shown, name=name),)
        if name in self._values:
            return self._values[name]
        if self._rest and name in self.given:
            return (self.given[name],)
        if self._rest:
            one = self.unknown[int(self._rest[1:-1])]
            return (self._mark(one.line, one.text, name=name),)
        return (self._mark(line, shown, unset=True, name=name),)

    def _argument(self, name: str, line: int, shown: str) -> tuple[Value, bool]:
        """Values of an argument or of all, and whether they are a list."""
        there = self._arguments
        if there is None or name in "?!$-0" or len(name) > 3:
            return (self._mark(line, shown),), False
        if name in "@*":
            return there, True
        number = len(there) if name == "#" else int(name)
        if any(map(self.hard, there[:number - (name != "#")])):  # it may be several
            return (self._mark(line, shown),), False
        if name == "#":
            return (str(number),), False
        if number <= len(there):
            return (there[number - 1],), False
        number += self._shifted
        text = f"${number}" if self._shifted else shown
        return (self._mark(line, text, unset=True, name=str(number)),), False

    # ------------------------------------------------------------ words

    def _fields(self, word: str, line: int) -> list[str]:
        """The words that one word becomes: unquoted values are split, arrays are listed."""
        if "{" in word and _BRACES.search(re.sub(
                r"'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.|\$\{", "", word, flags=re.DOTALL)):
            return [self._mark(line, word)]
        found: list[str] = []
        now: str | None = None
        for piece in self._pieces(word, line):
            for number, value in enumerate(piece.values):
                if number and now is not None:
                    found.append(now)
                    now = None
                if piece.quoted or not piece.made:
                    now = (now or "") + value
                    continue
                if value and "IFS" in self._values:
                    value = self._mark(line, "IFS", name="IFS")
                if value[:1].isspace() and now is not None:
                    found.append(now)
                    now = None
                parts = re.split(r"[ \t\n]+", value.strip(" \t\n")) if value.strip(" \t\n") else []
                if parts:
                    found += [(now or "") + parts[0], *parts[1:]]
                    now = None if value[-1] in " \t\n" else found.pop()
        found += [] if now is None else [now]
        if sum(map(len, found)) + len(found) > LONGEST_VALUE:
            raise InputError(f"{self.where}: line {line}: a command or value longer than "
                             f"{LONGEST_VALUE} characters")
        return found

    def _text(self, word: str, line: int) -> str:
        """A word as one text, as an assignment takes it."""
        found = "".join(self._one(piece.values, line) for piece in self._pieces(word, line))
        if len(found) > LONGEST_VALUE:
            raise InputError(f"{self.where}: line {line}: a command or value longer than "
                             f"{LONGEST_VALUE} characters")
        return found

    def _one(self, values: Sequence[str], line: int) -> str:
        """Values as one text."""
        return self._mark(line, "IFS", name="IFS") if len(values) > 1 and (
            "IFS" in self._values) else " ".join(values)

    def _pieces(
        self, text: str, line: int, depth: int = 0, quoted: bool = False
    ) -> Iterator[Piece]:
        """Parts of a word."""
        if depth > DEEPEST:
            raise InputError(f"{self.where}: line {line}: expansions nested more than {DEEPEST} "
                             "deep")
        reader, at = Reader(text, self.where, line), 0
        while at < len(text):
            one = text[at]
            end = reader.piece(at, quoted) if one != '"' or not quoted else at + 1
            part = text[at:end]
            if one == "\\":
                kept = quoted and part[1:] not in ("$", "`", '"', "\\", "\n")
                yield Piece(True, False, [part if kept else part[1:].strip("\n")])
            elif one == "'" and not quoted:
                yield Piece(True, False, [part[1:-1]])
            elif one == '"' or part.startswith('$"'):
                if not quoted:
                    inner = part[1 + (one == "$"):-1]
                    yield from self._pieces(inner, line, depth + 1, True) if inner else (
                        Piece(True, False, [""]),)
            elif part.startswith("$'"):
                plain = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], OPEN), part[2:-1],
                               flags=re.DOTALL)
                yield Piece(True, False, [self._mark(line, part) if OPEN in plain else plain])
            elif part.startswith("${"):
                yield from self._parameter(part, line, depth, quoted)
            elif one == "`" or (len(part) > 1 and one == "$"):
                self._lose_changed(part if part[1] in "([" else "", line)
                yield Piece(quoted, True, [self._mark(line, part)])
            elif one == "$" and (name := _PLAIN.match(text, at + 1)):
                end = name.end()
                yield from self._parameter(f"${{{name[0]}}}", line, depth, quoted, text[at:end])
            elif one in "<>" and text.startswith("(", at + 1):
                yield Piece(True, True, [self._mark(line, text[at:])])
                end = len(text)
            else:
                stop = re.compile(r"['\"\\`$<>]").search(text, end)
                end = stop.start() if stop else len(text)
                yield Piece(quoted, False, [text[at:end]])
            at = end

    def _lose_changed(self, text: str, line: int) -> None:
        """Variables that arithmetic may change."""
        if text.startswith("$(") and not text.startswith("$(("):
            return
        if len(text) > LONGEST_FORMULA:
            self._lose_all(line, text)
            return
        named = (one for name in {*NAME.findall(text)} for one in self._formulas.get(name, ()))
        for one in (text, *named):  # a value is an expression too
            for found in _CHANGED.finditer(one):
                self._lose(found[1] or found[2] or found[3], line, text)

    def _parameter(
        self, part: str, line: int, depth: int, quoted: bool, shown: str = ""
    ) -> Iterator[Piece]:
        """``${NAME}``, an entry or all of an array, and defaults; all else is unknown."""
        found, shown = _PARAMETER.fullmatch(part[2:-1]), shown or part
        if found is None:
            if part[2:-1] in "#?!$-" and len(part) == 4:
                yield Piece(quoted, True, self._argument(part[2], line, shown)[0])
                return
            self._lose_changed(part if ":" in part or "[" in part else "", line)
            yield Piece(quoted, True, [self._mark(line, shown)])
            return
        name, index, mark, word = found["name"], found["index"], found["mark"], found["word"]
        values, listed = self._argument(name, line, shown) if not NAME.fullmatch(name) else (
            self._get(name, line, shown), index in ("@", "*"))
        if NAME.fullmatch(name) and not listed:
            at = int(index or 0)
            loose = next(filter(self.hard, values[:at + 1]), "")
            values = (loose,) if loose and at else values[at:at + 1] or ("",)
        elif listed and values == ("",) and name not in self._values:
            values = ()
        loose = next(filter(None, map(self.hard, values)), "")
        empty = not self.soft("".join(values))
        unset = name not in self._values if NAME.fullmatch(name) and not listed else (
            not values or any(one.unset for value in values for one in self.unknowns(value)))
        if mark and loose:
            values, word = (loose if mark[-1] != "+" else self._mark(line, shown, name=name),), ""
        elif mark and (empty if ":" in mark else empty and unset) and mark[-1] in "-=" or (
                mark and mark[-1] == "+" and not (empty if ":" in mark else empty and unset)):
            if word or mark[-1] == "+" or not unset:
                other = [one._replace(quoted=one.quoted or quoted, made=True)
                         for one in self._pieces(word, line, depth + 1, quoted)]
                if mark[-1] == "=":
                    self._put(name, ("".join(self._one(one.values, line) for one in other),), line)
                yield from other or ([Piece(True, True, [""])] if quoted else [])
                return
        elif mark and mark[-1] == "+":
            values = ("",) if quoted else ()
        if mark and loose and mark[-1] == "=":
            self._lose(name, line, shown)
        if quoted and listed and "*" in (name, index):
            values = (self._one(values, line),)
        yield Piece(quoted, True, values)
