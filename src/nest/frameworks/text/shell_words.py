"""What the words of a script become: quotes, variables, arithmetic. Nothing is executed.

Rules: Bash Reference Manual 5.2, section 3.5. What is not followed gives an unknown value: a text
with a mark, the number of its :class:`Unknown` between two characters of Unicode's private area,
which scripts may not contain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from glob import escape
from typing import NamedTuple

from nest.errors import InputError
from nest.frameworks.text.arithmetic import CHANGED, LONGEST_TEXT, computed, number_of
from nest.frameworks.text.shell_reader import Reader, parsed
from nest.frameworks.text.shell_tree import (
    CLOSE,
    DEEPEST,
    MARK,
    OPEN,
    Assign,
    ShellPipeline,
    ShellState,
    Simple,
    Unknown,
    Value,
)

LONGEST_VALUE = 10**5
"""Characters of a value, and words of an array."""
MOST_UNKNOWN = 10**5
_BLANKS = " \t\n"
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z_]\w*|[0-9@*#?!$-]", re.ASCII)
_PARAMETER = re.compile(
    r"(?P<name>[A-Za-z_]\w*|\d+|[@*#?$!-])(?P<index>\[[^\]]*\])?(?P<rest>.*)",
    re.ASCII | re.DOTALL)
_DEFAULT = re.compile(r"(:?[-=+?])(.*)", re.DOTALL)
_BRACES = re.compile(r"(?<!\$)\{[^{}\s'\"]*(?:,|\.\.)[^{}\s'\"]*\}")
SYSTEM = re.compile(
    r"(?:PWD|OLDPWD|HOME|USER|LOGNAME|HOSTNAME|HOSTTYPE|OSTYPE|MACHTYPE|SHELL|PATH|TMPDIR|LANG|"
    r"RANDOM|SRANDOM|SECONDS|EPOCH\w+|LINENO|UID|EUID|PPID|GROUPS|SHLVL|SHELLOPTS|PIPESTATUS|"
    r"FUNCNAME|DIRSTACK|OPTIND|COLUMNS|LINES|BASH\w*|COMP_\w+|_)", re.ASCII)
"""Variables that bash or the system sets."""
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


class Missing(ValueError):
    """A number that depends on what is not known: its mark."""


class Piece(NamedTuple):
    """Part of a word."""

    quoted: bool
    made: bool
    """By an expansion."""
    values: list[str]
    """One text, or those of an array."""


class Words:
    """Words in a state of variables."""

    def __init__(self, where: str, unknown: list[Unknown], state: ShellState) -> None:
        self.where, self.unknown, self.state = where, unknown, state
        self.given: dict[str, str] = {}
        """What the user says of variables; it stands for what is not followed."""
        self.system = SYSTEM
        self.assumed: list[str] | None = None
        """Marks of what is taken as empty, because it is not set; None: it keeps its mark."""

    def mark(self, line: int, text: str, unset: bool = False, name: str = "") -> str:
        """A value that is not known."""
        if len(self.unknown) >= MOST_UNKNOWN:
            raise InputError(f"{self.where}: too many values that are not known")
        self.unknown.append(Unknown(line, text, unset, self.where, name))
        return f"{OPEN}{len(self.unknown) - 1}{CLOSE}"

    def unknowns(self, text: str) -> list[Unknown]:
        """The unknown values that a text depends on."""
        return [self.unknown[int(number)] for number in MARK.findall(text)]

    def hard(self, text: str) -> str:
        """The first mark of a text that is not only a variable that is not set; or nothing."""
        return next((found[0] for found in MARK.finditer(text)
                     if not self.unknown[int(found[1])].unset), "")

    def lost(self, value: Value | None) -> bool:
        """Whether a value may be anything."""
        return value is not None and len(value) == 1 and self.hard(value[0]) == value[0] != ""

    def soft(self, text: str) -> str:
        """A text without what is not set."""
        return MARK.sub(lambda one: "" if self.unknown[int(one[1])].unset else one[0], text)

    # ------------------------------------------------------------ variables

    def put(self, name: str, value: Value, line: int) -> None:
        """Set a variable."""
        if sum(map(len, value)) + len(value) > LONGEST_VALUE:
            raise InputError(f"{self.where}: line {line}: {name}: longer than "
                             f"{LONGEST_VALUE} characters")
        state = self.state
        if any(self.hard(one) for one in value):
            if name in self.given:
                value = (self.given[name],)
            for one in value:
                for number in MARK.findall(one):
                    if not self.unknown[int(number)].name:
                        self.unknown[int(number)] = self.unknown[int(number)]._replace(name=name)
        if name in state.fixed:
            state.odd.setdefault(name, self.mark(line, f"{name}=", name=name))
        state.values[name] = value
        if "a" in state.options:
            state.exported |= {name}

    def lose(self, name: str, line: int, text: str) -> None:
        """A variable becomes unknown."""
        self.put(name, (self.mark(line, text, name=name),), line)

    def get(self, name: str, line: int, shown: str) -> Value:
        """The texts of a variable."""
        state = self.state
        if name in self.given and (name in state.odd or (
                state.rest and name not in state.values)):
            return (self.given[name],)
        if name in state.odd:
            return (state.odd[name],)
        if self.system.fullmatch(name) and name not in self.given:
            return (self.mark(line, shown, name=name),)
        if name in state.values:
            return state.values[name]
        if state.rest:
            number = int(state.rest[1:-1])
            return (self.mark(self.unknown[number].line, self.unknown[number].text, name=name),)
        return (self.mark(line, shown, unset=True, name=name),)

    def is_set(self, name: str) -> bool | None:
        """Whether a variable or an argument is set; None: not known."""
        state = self.state
        if name.isdecimal():
            there = self.arguments(1, name)
            return None if any(map(self.hard, there)) else int(name) <= len(there)
        if name in state.odd or (self.system.fullmatch(name) and name not in self.given):
            return None
        if name in state.values:
            return None if self.lost(state.values[name]) else state.values[name] != ()
        return None if state.rest and name not in self.given else name in self.given and bool(
            state.rest)

    def arguments(self, line: int, shown: str) -> Value:
        """Those of the script or the function; an unknown one stands for all that follow."""
        found = self.state.arguments
        if found is None:
            return (self.mark(line, f"{shown} behind a set or shift that may run"),)
        return found

    def _special(self, name: str, shown: str, line: int) -> tuple[list[str], bool]:
        """Values of an argument, of all, of their number; and whether they are a list."""
        if name in "?!$-0" or len(name) > 9:
            return [self.mark(line, shown)], False
        there = self.arguments(line, shown)
        loose = next((MARK.search(one) for one in there if MARK.search(one)), None)
        if name in "@*":
            return list(there), True
        if name == "#":
            return [loose[0] if loose else str(len(there))], False
        number = int(name)
        if loose is not None and any(MARK.search(one) for one in there[:number]):
            return [there[number - 1] if number <= len(there) and not any(
                MARK.search(one) for one in there[:number - 1]) and self.hard(there[number - 1])
                else self.mark(line, shown, name=self.unknown[int(loose[1])].name)], False
        if number <= len(there):
            return [there[number - 1]], False
        if self.state.saved:  # of a function
            return [""], False
        number += self.state.shifted
        text = f"${number}" if self.state.shifted else shown
        return [self.mark(line, text, unset=True, name=str(number))], False

    # ------------------------------------------------------------ words

    def fields(self, word: str, line: int) -> list[str]:
        """The words that one word becomes: unquoted values are split, arrays are listed."""
        if "{" in word and _BRACES.search(_without_quotes(word)):
            return [self.mark(line, word)]
        found: list[str] = []
        now: str | None = None
        for piece in self.pieces(word, line):
            for number, value in enumerate(piece.values):
                if number and now is not None:
                    found.append(now)
                    now = None
                if piece.quoted or not piece.made:
                    now = (now or "") + value
                    continue
                value = self._split(value, line)
                if value[:1] in _BLANKS and value and now is not None:
                    found.append(now)
                    now = None
                parts = [one for one in re.split(f"[{_BLANKS}]+", value) if one]
                if parts:
                    found += [(now or "") + parts[0], *parts[1:]]
                    now = None if value[-1] in _BLANKS else found.pop()
                if now is not None and len(now) > LONGEST_VALUE:
                    raise self._too_long(line)
        found += [] if now is None else [now]
        if len(found) > LONGEST_VALUE:
            raise InputError(f"{self.where}: line {line}: more than {LONGEST_VALUE} words")
        return found

    def _split(self, value: str, line: int) -> str:
        """A value that is to be split; unknown where IFS says otherwise than by default."""
        own = (self.state.values.get("IFS") or (_BLANKS,))[0]
        if own == _BLANKS or not any(one in value for one in own + _BLANKS) and not MARK.search(
                own):
            return value
        return self.mark(line, "IFS", name="IFS")

    def text(self, word: str, line: int) -> str:
        """A word as one text, as an assignment takes it."""
        found = "".join(self.one(piece.values, line) for piece in self.pieces(word, line))
        if len(found) > LONGEST_VALUE:
            raise self._too_long(line)
        return found

    def _too_long(self, line: int) -> InputError:
        return InputError(f"{self.where}: line {line}: a value longer than {LONGEST_VALUE} "
                          "characters")

    def one(self, values: list[str] | Value, line: int) -> str:
        """Values as one text."""
        if len(values) > 1 and "IFS" in self.state.values:
            return self.mark(line, "IFS", name="IFS")
        return " ".join(values)

    def pattern(self, word: str, line: int) -> tuple[str, bool] | None:
        """A word as a pattern of fnmatch, and whether it is one; None: it is not understood."""
        found, special = "", False
        for piece in self.pieces(word, line):
            text = self.one(piece.values, line)
            if piece.quoted:
                found += escape(text)
                continue
            if re.search(r"[?*+@!]\(|\[", text):
                return None
            special |= bool(re.search(r"[*?]", text))
            found += text
        return found, special

    def pieces(self, text: str, line: int, depth: int = 0, quoted: bool = False) -> Iterator[Piece]:
        """Parts of a word."""
        for piece in self._pieces(text, line, depth, quoted):
            if self.assumed is not None:
                for value in piece.values:
                    self.assumed += [one[0] for one in MARK.finditer(value)
                                     if self.unknown[int(one[1])].unset]
                piece = piece._replace(values=[self.soft(one) for one in piece.values])
            yield piece

    def _pieces(self, text: str, line: int, depth: int, quoted: bool) -> Iterator[Piece]:
        if depth > DEEPEST:
            raise InputError(f"{self.where}: line {line}: expansions nested more than {DEEPEST} "
                             "deep")
        reader, at = Reader(text, self.where, line), 0
        while at < len(text):
            one = text[at]
            end = reader.piece(at, quoted) if one != '"' or not quoted else at + 1
            part = text[at:end]
            if one == "\\":
                follows = part[1:]
                kept = quoted and follows not in ("$", "`", '"', "\\", "\n")
                yield Piece(True, False, [part if kept else "" if follows == "\n" else follows])
            elif one == "'" and not quoted:
                yield Piece(True, False, [part[1:-1]])
            elif one == '"' or part.startswith('$"'):
                if not quoted:
                    inner = part[1 + (one == "$"):-1]
                    if not inner:
                        yield Piece(True, False, [""])
                    yield from self._pieces(inner, line, depth + 1, True)
            elif one == "`" or (len(part) > 1 and one == "$"):
                yield from self._expanded(part, line, depth, quoted)
            elif one == "$" and (name := _PLAIN.match(text, at + 1)):
                end = name.end()
                yield self._plain(name[0], text[at:end], line, quoted)
            elif one in "<>" and text.startswith("(", at + 1):
                yield Piece(True, True, [self.mark(line, text[at:])])
                end = len(text)
            else:
                stop = re.compile(r"['\"\\`$<>]").search(text, end)
                end = stop.start() if stop else len(text)
                yield Piece(quoted, False, [text[at:end]])
            at = end

    def _plain(self, name: str, shown: str, line: int, quoted: bool) -> Piece:
        if _NAME.fullmatch(name):
            return Piece(quoted, True, [*self.get(name, line, shown)[:1]] or [""])
        values, listed = self._special(name, shown, line)
        if quoted and listed and name == "*":
            values = [self.one(values, line)]
        return Piece(quoted, True, values)

    def _expanded(self, part: str, line: int, depth: int, quoted: bool) -> Iterator[Piece]:
        if part.startswith("$'"):
            inner = part[2:-1]
            plain = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], OPEN), inner,
                           flags=re.DOTALL)
            known = OPEN not in MARK.sub("", plain) and not MARK.search(inner)
            yield Piece(True, False, [plain if known else self.mark(line, part)])
        elif part.startswith("$((") and part.endswith("))") and (
                Reader(part, self.where).arithmetic_end(3)):
            yield Piece(quoted, True, [self.arithmetic(part[3:-2], part, line, depth)])
        elif part.startswith("$["):
            yield Piece(quoted, True, [self.arithmetic(part[2:-1], part, line, depth)])
        elif part.startswith("${"):
            yield from self._parameter(part[2:-1], part, line, depth, quoted)
        else:
            yield Piece(quoted, True, [self._substituted(part, line)])

    def _substituted(self, part: str, line: int) -> str:
        """What a command prints: known of echo alone."""
        inner = part[1:-1] if part[0] == "`" else part[2:-1]
        commands = parsed(inner, self.where, line) if "\\" not in inner else ()
        match commands:
            case [one] if not one.rest and not one.background:
                match one.first:
                    case ShellPipeline(_, False, [Simple(_, (), ["echo", *rest], ())]):
                        words = [field for word in rest for field in (
                            [word.text] if isinstance(word, Assign) else self.fields(word, line))]
                        if not "".join(words[:1]).startswith("-") and "\\" not in "".join(words):
                            return " ".join(words).rstrip("\n")
        return self.mark(line, part)

    # ------------------------------------------------------------ ${...}

    def _parameter(
        self, inner: str, shown: str, line: int, depth: int, quoted: bool
    ) -> Iterator[Piece]:
        length = inner[:1] == "#" and len(inner) > 1 and inner[1] not in "-=+?:#%/"
        indirect = inner[:1] == "!" and len(inner) > 1
        found = _PARAMETER.fullmatch(inner[length or indirect:])
        if found is None:
            yield Piece(quoted, True, [self.mark(line, shown)])
            return
        name, index, rest = found["name"], (found["index"] or "")[1:-1], found["rest"]
        if indirect:
            name = self.get(name, line, shown)[0] if _NAME.fullmatch(name) else ""
            if index or not _NAME.fullmatch(name):
                yield Piece(quoted, True, [self.mark(line, shown)])
                return
        values, listed = self._values(name, index, shown, line)
        if length:
            loose = next((found[0] for one in values if (found := MARK.search(one))), "")
            yield Piece(quoted, True, [loose or str(
                len(values) if listed else len(values[0]) if values else 0)])
            return
        if default := _DEFAULT.fullmatch(rest):
            yield from self._default(
                name, index, values, listed, default, shown=shown, line=line, depth=depth,
                quoted=quoted)
            return
        if rest and values:
            for changed in CHANGED.finditer(rest if rest[0] == ":" else ""):
                self.lose(changed[1] or changed[2], line, shown)
            text = None if listed else self._changed(values[0], rest, line)
            values, listed = [self.mark(line, shown, name=name) if text is None else text], False
        if quoted and listed and "*" in (name, index):
            values = [self.one(values, line)]
        yield Piece(quoted, True, values)

    def _values(self, name: str, index: str, shown: str, line: int) -> tuple[list[str], bool]:
        """Texts of a variable, and whether they are a list."""
        if not _NAME.fullmatch(name):
            return self._special(name, shown, line)
        values = self.get(name, line, shown)
        if index in ("@", "*"):
            return [] if values == ("",) and name not in self.state.values else [*values], True
        if not index:
            return [*values[:1]] or [""], False
        loose = next((found[0] for one in values if (found := MARK.search(one))), "")
        number = self.arithmetic(index, shown, line, 0)
        if loose or MARK.search(number):
            return [self.mark(line, shown, name=name)], False
        at = int(number)
        if not -len(values) <= at < len(values):
            return [""], False
        return [values[at]], False

    def _default(
        self, name: str, index: str, values: list[str], listed: bool, default: re.Match[str], *,
        shown: str, line: int, depth: int, quoted: bool,
    ) -> Iterator[Piece]:
        """``${NAME:-WORD}`` and its relatives."""
        mark, word = default[1], default[2]
        there = "".join(values)
        known = self.is_set(name) if _NAME.fullmatch(name) or name.isdecimal() else bool(values)
        if index and known and not listed:
            known = None if ":" not in mark else known
        empty: bool | None = None if known is None else not known
        if known and ":" in mark:
            plain = self.soft(there)
            empty = None if self.hard(plain) and not MARK.sub("", plain) else not plain
        if empty is None:
            yield Piece(quoted, True, values if mark[-1] != "+" else [
                self.mark(line, shown, name=name)])
            if mark[-1] == "=":
                self.lose(name, line, shown)
            return
        if mark[-1] == "+":
            if not empty:
                yield from self._other(word, line, depth, quoted)
            elif quoted:
                yield Piece(True, True, [""])
            return
        if not empty or mark[-1] == "?":
            if quoted and listed and "*" in (name, index):
                values = [self.one(values, line)]
            yield Piece(quoted, True, values)
            return
        if not word and not known and _NAME.fullmatch(name) and (
                name not in {**self.given, **self.state.values}):
            if mark[-1] == "=":
                self.put(name, (self.mark(line, shown, unset=True, name=name),), line)
            yield Piece(quoted, True, [self.mark(line, shown, unset=True, name=name)])
            return
        other = [*self._other(word, line, depth, quoted)]
        if mark[-1] == "=":
            self.put(name, ("".join(self.one(one.values, line) for one in other),), line)
        if quoted and not other:
            yield Piece(True, True, [""])
        yield from other

    def _other(self, word: str, line: int, depth: int, quoted: bool) -> Iterator[Piece]:
        for piece in self._pieces(word, line, depth + 1, quoted):
            yield piece._replace(quoted=piece.quoted or quoted, made=True)

    def _changed(self, value: str, rest: str, line: int) -> str | None:
        """``${NAME#PATTERN}`` and its relatives; None: not understood."""
        if MARK.search(value):
            return None
        if cut := re.fullmatch(r":(\d{1,9}| -\d{1,9})(?::(\d{1,9}))?", rest):
            start = int(cut[1])
            if start < -len(value):
                return ""
            start += len(value) if start < 0 else 0
            return value[start:start + int(cut[2])] if cut[2] else value[start:]
        if rest in (",", ",,", "^", "^^") and value.isascii():
            turned = value.lower() if "," in rest else value.upper()
            return turned if len(rest) == 2 else turned[:1] + value[1:]
        if form := re.fullmatch(r"(##?|%%?)(.*)", rest, re.DOTALL):
            found = self.pattern(form[2], line)
            if found is None or MARK.search(found[0]) or len(value) > 1000:
                return None
            ends = range(len(value) + 1) if form[1] in ("#", "%%") else range(len(value), -1, -1)
            for at in ends:
                head, tail = value[:at], value[at:]
                if fnmatchcase(head if "#" in form[1] else tail, found[0]):
                    return tail if "#" in form[1] else head
            return value
        if form := re.fullmatch(r"(//?)([\w.=,: -]+)(?:/([\w.=,: -]*))?", rest, re.ASCII):
            return value.replace(form[2], form[3] or "", -1 if form[1] == "//" else 1)
        return None

    # ------------------------------------------------------------ arithmetic

    def arithmetic(self, text: str, shown: str, line: int, depth: int = 0) -> str:
        """The number of an expression, as text.

        Raises
        ------
        InputError : it is longer than any that a person writes: looking for the variables that it
            changes takes time that grows with the square of its length.
        """
        if len(text) > LONGEST_TEXT:
            raise InputError(f"{self.where}: line {line}: got arithmetic of {len(text)} "
                             f"characters; allowed: {LONGEST_TEXT}")
        inner = "".join(" ".join(one.values) for one in self.pieces(text, line, depth + 1, True))
        try:
            return str(computed(
                inner, lambda name: self._number(name, line),
                lambda name, number: self.put(name, (str(number),), line)))
        except ValueError as error:
            for found in CHANGED.finditer(text):
                self.lose(found[1] or found[2], line, shown)
            first = str(error) if isinstance(error, Missing) else next(
                (found[0] for found in MARK.finditer(inner)), "")
            if not first:
                return self.mark(line, shown)
            one = self.unknown[int(first[1:-1])]
            return first if self.assumed is None and one.unset and _plain_name(one) else self.mark(
                line, one.text, name=one.name)

    def _number(self, name: str, line: int) -> int:
        """The number of a variable.

        Raises
        ------
        ValueError : it is none, or not known.
        """
        value = "".join(self.get(name, line, f"${name}")[:1]).strip()
        if found := MARK.search(value):
            raise Missing(self.hard(value) or found[0])
        if not value:
            return 0
        for found in CHANGED.finditer(value):  # a text is an expression too
            self.lose(found[1] or found[2], line, f"${name}")
        sign = -1 if value[0] == "-" else 1
        return sign * number_of(value.lstrip("+-"))


def _plain_name(one: Unknown) -> bool:
    return bool(one.name)


def _without_quotes(word: str) -> str:
    return re.sub(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.|\$\{", "", word, flags=re.DOTALL)
