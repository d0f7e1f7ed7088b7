"""A launch script's commands, read as text: its variables are followed, and nothing is executed.

Understood: assignments (``NAME=``, ``+=``, arrays, export), quotes, continued lines, comments,
``$NAME``, ``${NAME:-default}`` and its relatives, ``$(( ))`` of whole numbers, ``if`` and ``case``
that compare known texts, arguments (``shift``, ``set --``), and scripts of the same folder that are
sourced or started. Anything else gives an *unknown* value, which remembers its line and text; it is
an error only where the result depends on it.

An unknown value is a text with a mark: the number of its :class:`Unknown` between two characters
of Unicode's private area, which scripts may not contain.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from nest.describe.files import read_text
from nest.errors import InputError
from nest.reading.arithmetic import computed
from nest.reading.conditions import compared
from nest.reading.tokens import (
    ASSIGN,
    OPENS,
    Token,
    body_end,
    cases,
    closing,
    is_function,
    line_of,
    matching,
    split,
    tokens_of,
)
from nest.units import shorten

LONGEST_SCRIPT = 2**20
"""Characters of a script."""
LONGEST_VALUE = 10**5
"""Characters of a value, and words of an array."""
DEEPEST = 40
"""Expansions and blocks inside one another."""
OPEN, CLOSE = "\ue000", "\ue001"
MARK = re.compile(f"{OPEN}(\\d+){CLOSE}")
MOST_FILES = 20
"""Scripts that one script sources or starts."""
STARTING = ("bash", "sh", "sbatch")
"""Commands that start a script."""
STARTED = (".sh", ".slurm", ".sbatch")
"""Suffixes of scripts that they start."""
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PARAMETER = re.compile(
    r"(?P<all>!?)(?P<name>[A-Za-z_]\w*|\d+|[@*#?$!-])(?P<array>\[[@*]\])?"
    r"(?:(?P<mark>:?[-=+?])(?P<word>.*))?", re.ASCII | re.DOTALL)
_BLANK = re.compile(r"<([A-Za-z](?:[\w.,/-]|[ \t](?=\S))*)>(?=[\s\"']|$)", re.ASCII)
"""What the user of a published script is to fill in: <path to the data>."""
_DECLARES = ("export", "declare", "local", "readonly", "typeset")


class Unknown(NamedTuple):
    """A value that a script does not say."""

    line: int
    text: str
    unset: bool
    """It is a variable or an argument that is empty unless the user gives it."""
    where: str
    """Name of the script."""


class Command(NamedTuple):
    """A command of a script with its words as they would be run."""

    line: int
    words: tuple[str, ...]
    variables: Mapping[str, str]
    """Variables of the environment, and those set in front of the command."""
    sure: bool
    """Whether it is run for certain, as far as the script says."""


class Script:
    """The commands and variables of a script.

    Parameters
    ----------
    text : of the script.
    where : its name, for messages.
    given : variables of the environment.
    outer : the script whose command runs this text; unknown values are numbered on from its own.
    folder : of the script; scripts that it sources or starts are followed if they lie there.

    Raises
    ------
    InputError : not a text of a script, or one that is longer or nested deeper than allowed.
    """

    def __init__(
        self, text: str, where: str, given: Mapping[str, str] | None = None,
        outer: Script | None = None, folder: Path | None = None,
    ) -> None:
        self.where, self.folder = where, folder
        self.texts: list[str] = []
        self.unknown: list[Unknown] = [] if outer is None else outer.unknown
        self.values: dict[str, list[str]] = {
            name: [value] for name, value in (given or {}).items()}
        self.exported: dict[str, str] = {}
        self._shifted: int | None = 0  # arguments that are gone; None: not known
        self.commands: list[Command] = []
        try:
            self._text(text, sure=True)
        except RecursionError:
            raise InputError(f"{where}: nested too deep; allowed: {DEEPEST}") from None

    def _text(self, text: str, sure: bool) -> None:
        if len(text) > LONGEST_SCRIPT:
            raise InputError(f"{self.where}: got {len(text)} characters; allowed: {LONGEST_SCRIPT}")
        if OPEN in text or CLOSE in text or "\0" in text:
            raise InputError(f"{self.where}: got a character of no use in a script; allowed: text")
        self.texts.append(text)
        text = _BLANK.sub(lambda found: re.sub(r"\W+", "_", found[1]), text)
        self._run(tokens_of(text, self.where), sure, depth=0)

    def unknowns(self, text: str) -> list[Unknown]:
        """The unknown values that a text depends on."""
        return [self.unknown[int(number)] for number in MARK.findall(text)]

    def plain(self, text: str) -> str:
        """A text with its unknown values as they stand in the script."""
        return MARK.sub(lambda mark: self.unknown[int(mark[1])].text, text)

    def need(self, text: str, what: str) -> str:
        """A text that has to be known.

        Raises
        ------
        InputError : it depends on what is not understood or not given; names line and text.
        """
        for one in self.unknowns(text):
            given = re.match(r"\$\{?(\d{1,3})\b", one.text, re.ASCII)
            why = "is not understood, and nothing is executed" if not one.unset else (
                f"is an argument of the script; give it by --set {given[1]}=VALUE" if given else
                "is not set in the script; give it by --set NAME=VALUE")
            raise InputError(f"{one.where}: line {one.line}: {what} depends on "
                             f"{shorten(one.text)}, which {why}")
        return text

    # ------------------------------------------------------------ statements

    def _mark(self, line: int, text: str, unset: bool = False) -> str:
        self.unknown.append(Unknown(line, text, unset, self.where))
        return f"{OPEN}{len(self.unknown) - 1}{CLOSE}"

    def _run(self, tokens: list[Token], sure: bool, depth: int) -> None:
        """Follow statements; ``sure``: they are run for certain."""
        if depth > DEEPEST:
            raise InputError(f"{self.where}: blocks nested more than {DEEPEST} deep")
        at = 0
        while at < len(tokens):
            token = tokens[at]
            if token.role == "operator":
                at += 1
                continue
            if token.role == "word" and token.text in OPENS:
                end = closing(tokens, at)
                if token.text == "if":
                    self._branches(tokens[at + 1:end], sure, depth)
                elif token.text == "case":
                    self._case(tokens[at + 1:end], token, sure, depth)
                elif not self._skipped(tokens[at:end]):
                    self._blurred(tokens[at + 1:end], token, depth)
                at = end + 1
                continue
            if token.role == "word" and token.text in ("{", "(", "then", "else", "do", "}", ")"):
                at += 1
                continue
            end = at
            while end < len(tokens) and tokens[end].role != "operator":
                end += 1
            if is_function(tokens, at):
                end = body_end(tokens, at)
                at = end + 1
                continue
            chained = at > 0 and tokens[at - 1].text in ("&&", "||")
            self._statement(tokens[at:end], sure and not chained)
            at = end

    def _branches(self, tokens: list[Token], sure: bool, depth: int) -> None:
        """Of an ``if`` the branch that its conditions choose, or all of them as unknown."""
        parts, taken = split(tokens), False
        for condition, body in parts:
            value = True if condition is None else self._condition(condition)
            if value is None:
                for _, other in parts:
                    self._blurred(other, condition[0] if condition else tokens[0], depth)
                return
            if value and not taken:
                self._run(body, sure, depth + 1)
                return

    def _case(self, tokens: list[Token], cause: Token, sure: bool, depth: int) -> None:
        """Of a ``case`` the statements whose pattern fits, or all of them as unknown."""
        begins = next((n for n, token in enumerate(tokens[:4]) if token.text == "in"), None)
        subject = self._joined(tokens[0].text, cause.line) if begins == 1 else ""
        if begins is None or begins != 1 or any(
                not one.unset for one in self.unknowns(subject)):
            self._blurred(tokens, cause, depth)
            return
        subject = MARK.sub("", subject)
        for patterns, body in cases(tokens[begins + 1:]):
            if any(fnmatchcase(subject, self._joined(one.text, one.line)) for one in patterns):
                self._run(body, sure, depth + 1)
                return

    def _skipped(self, tokens: list[Token]) -> bool:
        """Whether the condition of a loop does not hold at its beginning."""
        ends = next((n for n, token in enumerate(tokens) if token.text == "do"), None)
        return tokens[0].text in ("while", "until") and ends is not None and (
            self._condition(tokens[1:ends]) == (tokens[0].text == "until"))

    def _followed(self, words: list[str], sure: bool) -> None:
        """Follow a script of the same folder that another one sources, or starts."""
        own = words[0] in ("source", ".")
        name = next((word for word in words[1:] if own or word.endswith(STARTED)), "")
        file = MARK.sub("\0", name).rpartition("\0")[2].lstrip("/" if MARK.search(name) else "")
        if self.folder is None or not file or len(self.texts) > MOST_FILES:
            return
        folder = Path(os.path.realpath(self.folder))
        path = Path(os.path.realpath(folder / file))
        if not path.is_relative_to(folder) or not path.is_file():
            return
        values, where, shifted = self.values, self.where, self._shifted
        if not own:  # what is exported and given, and nothing comes back
            given = enumerate(words[words.index(name) + 1:], 1)
            self.values = {key: [value] for key, value in self.exported.items()} | {
                str(number): [word] for number, word in given}
            self._shifted = 0
        self.where = str(self.folder / file)
        self._text(read_text(path), sure)
        self.where = where
        if not own:
            self.values, self._shifted = values, shifted

    def _blurred(self, tokens: list[Token], cause: Token, depth: int) -> None:
        """Statements that may be run or not, or several times: what they set is unknown."""
        before = {name: list(value) for name, value in self.values.items()}
        self._run(tokens, sure=False, depth=depth + 1)
        text = line_of(cause)
        for name, value in list(self.values.items()):
            if before.get(name) != value:
                kept = before.get(name, [])
                self.values[name] = [*kept, self._mark(cause.line, text)]

    def _statement(self, tokens: list[Token], sure: bool) -> None:
        local: dict[str, str] = {}
        words: list[str] = []
        declares, line = False, tokens[0].line
        redirect = False
        for number, token in enumerate(tokens):
            if redirect:
                redirect = False
                continue
            if token.role == "redirect":
                redirect = True
                continue
            assign = ASSIGN.match(token.text)
            if assign and (not words or declares) and token.role in ("word", "array"):
                value = self._assigned(token, assign)
                if not declares and any(t.role == "word" and not ASSIGN.match(t.text)
                                        for t in tokens[number + 1:]):
                    local[assign[1]] = " ".join(value)  # for the command behind it alone
                    continue
                if not sure:
                    value = [*self.values.get(assign[1], []),
                             self._mark(token.line, token.text)]
                self.values[assign[1]] = value
                if declares and words[0] == "export":
                    self.exported[assign[1]] = " ".join(value)
                continue
            found = self._words(token)
            if not words and found and found[0] in _DECLARES:
                declares = True
            words += found
            if len(words) > LONGEST_VALUE:
                raise InputError(f"{self.where}: line {line}: more than {LONGEST_VALUE} words")
        if declares and words[0] == "export":
            self.exported |= {name: " ".join(self.values[name]) for name in words[1:]
                              if name in self.values}
        if words and not declares:
            if words[0] == "shift":
                count = words[1] if len(words) > 1 else "1"
                known = sure and self._shifted is not None and re.fullmatch(r"\d{1,3}", count)
                self._shifted = (self._shifted or 0) + int(count) if known else None
                return
            self.commands.append(Command(
                line, tuple(words), {**self.exported, **local}, sure))
            if words[0] in ("source", ".", *STARTING):
                self._followed(words, sure)
            if words[0] == "set":
                self._set(words, sure)
            if words[0] in ("read", "mapfile", "readarray", "unset"):
                for name in words[1:]:
                    if words[0] == "unset":
                        self.values.pop(name, None)
                    elif _NAME.fullmatch(name):
                        self.values[name] = [self._mark(line, " ".join(words))]

    def _set(self, words: list[str], sure: bool) -> None:
        """Arguments that ``set`` gives the script, behind its own options or ``--``."""
        at = 1
        while at < len(words) and words[at][:1] in ("-", "+") and words[at] != "--":
            at += 2 if words[at].endswith("o") else 1  # -o takes a name
        if at >= len(words):
            return
        for name in [name for name in self.values if name.isdecimal()]:
            del self.values[name]
        given = words[at + (words[at] == "--"):]
        self.values |= {str(number): [word] for number, word in enumerate(given, 1)}
        self._shifted = 0 if sure else None

    def _assigned(self, token: Token, assign: re.Match[str]) -> list[str]:
        name, more = assign[1], bool(assign[2])
        before = self.values.get(name, []) if more else []
        if token.role == "array":
            value = [word for inner in token.inner for word in self._words(inner)]
            value = [*before, *value]
        else:
            text = self._joined(token.text[assign.end():], token.line)
            value = [*before[:-1], (before[-1] if before else "") + text] if more else [text]
        if sum(map(len, value)) + len(value) > LONGEST_VALUE:
            raise InputError(f"{self.where}: line {token.line}: {name}: longer than "
                             f"{LONGEST_VALUE} characters")
        return value

    def _condition(self, tokens: list[Token]) -> bool | None:
        """Whether a condition holds; None: not known."""
        result: bool | None = None
        join = ""
        run: list[Token] = []
        for token in [*tokens, Token("operator", ";", 0)]:
            if token.role != "operator":
                run.append(token)
                continue
            if run:
                value = self._test(run)
                if not join:
                    result = value
                elif result is None or value is None:
                    decided = {"&&": False, "||": True}[join]
                    result = decided if decided in (result, value) else None
                else:
                    result = (result and value) if join == "&&" else (result or value)
            run = []
            join = token.text if token.text in ("&&", "||") else join
        return result

    def _test(self, tokens: list[Token]) -> bool | None:
        texts = [token.text for token in tokens]
        if texts[0] not in ("[", "[["):
            return None
        inside: list[str] = []
        for token in tokens[1:-1]:
            inside.append(token.text if token.text in ("!", "-a", "-o", "&&", "||")
                          else self._joined(token.text, token.line))
        turned = bool(inside) and inside[0] == "!"
        inside = inside[turned:]
        if any(not one.unset for word in inside for one in self.unknowns(word)):
            return None
        value = compared([MARK.sub("", word) for word in inside], self.values)
        return None if value is None else value != turned

    # ------------------------------------------------------------ words

    def _words(self, token: Token) -> list[str]:
        """The words that one word becomes: unquoted values are split, arrays are listed."""
        found, open_word = [""], False
        for quoted, values in self._pieces(token.text, token.line, 0):
            if not values:  # "$@" without arguments is no word
                return [word for word in found if word]
            for number, value in enumerate(values):
                if number:
                    found.append("")
                if quoted:
                    found[-1] += value
                    open_word = True
                    continue
                parts = re.split(r"[ \t\n]+", value)
                found[-1] += parts[0]
                found += parts[1:]
        return [word for word in found if word or (open_word and len(found) == 1)]

    def _joined(self, text: str, line: int) -> str:
        """A word as one text, as an assignment takes it."""
        found = "".join(" ".join(values) for _, values in self._pieces(text, line, 0))
        if len(found) > LONGEST_VALUE:
            raise InputError(f"{self.where}: line {line}: a value longer than {LONGEST_VALUE} "
                             "characters")
        return found

    def _pieces(self, text: str, line: int, depth: int) -> Iterable[tuple[bool, list[str]]]:
        """Pieces of a word, each with its values: one, or those of an array."""
        if depth > DEEPEST:
            raise InputError(f"{self.where}: line {line}: expansions nested more than {DEEPEST} "
                             "deep")
        at, quote = 0, False
        while at < len(text):
            one = text[at]
            if one == "'" and not quote:
                end = text.find("'", at + 1)
                yield True, [text[at + 1:end]]
                at = end + 1
            elif one == '"':
                quote = not quote
                yield True, [""]
                at += 1
            elif one == "\\" and at + 1 < len(text):
                follows = text[at + 1]
                kept = "\\" + follows if quote and follows not in '$`"\\\n' else follows
                yield True, [kept if follows != "\n" else ""]
                at += 2
            elif one == "`" or text.startswith("$(", at):
                end = matching(text, at, self.where, line)
                inner = text[at:end]
                if inner.startswith("$(("):
                    yield quote, [self._arithmetic(inner, line, depth)]
                else:
                    yield True, [self._mark(line, inner)]
                at = end
            elif one == "$" and at + 1 < len(text) and text[at + 1] == "{":
                end = matching(text, at, self.where, line)
                inner = text[at + 2:end - 1]
                whole = quote or re.search(r"-([\"']).*\1$", inner, re.DOTALL) is not None
                yield whole, self._parameter(inner, text[at:end], line, depth, quote)
                at = end
            elif one == "$" and (name := re.compile(r"[A-Za-z_]\w*|[0-9@*#?!$-]").match(
                    text, at + 1)):
                yield quote, self._value(name[0], name[0] in "@*", f"${name[0]}", line, quote)
                at = name.end()
            else:
                end = at + 1
                while end < len(text) and text[end] not in "'\"\\`$":
                    end += 1
                yield quote or not text[at:end].isspace(), [text[at:end]]
                at = end

    def _value(self, name: str, listed: bool, shown: str, line: int, quoted: bool) -> list[str]:
        if name in "@*#" or (name.isdecimal() and name != "0"):
            return self._argument(name, shown, line, quoted)
        if name in self.values:
            value = self.values[name]
            return list(value) if listed else [value[0] if value else ""]
        if name in "?!$-" or name in ("PWD", "HOME", "USER", "RANDOM", "HOSTNAME"):
            return [self._mark(line, shown)]
        return [self._mark(line, shown, unset=True)]

    def _argument(self, name: str, shown: str, line: int, quoted: bool) -> list[str]:
        """An argument of the script, all that are given, or their number."""
        if self._shifted is None:
            return [self._mark(line, shown)]
        if name.isdigit():
            number = self._numbered(name)
            text = f"${number}" if self._shifted else shown
            return self.values.get(number) or [self._mark(line, text, unset=True)]
        found: list[str] = []
        while (number := str(len(found) + 1 + self._shifted)) in self.values:
            found += self.values[number][:1]
        found = [" ".join(found)] if quoted and name == "*" else found
        return [str(len(found))] if name == "#" else found

    def _numbered(self, name: str) -> str:
        """The name of a variable; of an argument its number before any was shifted away."""
        return str(int(name) + (self._shifted or 0)) if name.isdecimal() and (
            name != "0") else name

    def _parameter(
        self, inner: str, shown: str, line: int, depth: int, quoted: bool
    ) -> list[str]:
        found = _PARAMETER.fullmatch(inner)
        if found is None or found["all"]:
            return [self._mark(line, shown)]
        name, mark, word = found["name"], found["mark"] or "", found["word"] or ""
        value = self._value(name, bool(found["array"]), shown, line, quoted)
        if quoted and found["array"] == "[*]":
            value = [" ".join(value)]
        key = self._numbered(name)
        empty = key not in self.values or (":" in mark and value == [""])
        other = "".join(
            " ".join(values) for _, values in self._pieces(word, line, depth + 1))
        if mark[-1:] in ("-", "=") and empty:
            if not other and key not in self.values:
                return [self._mark(line, shown, unset=True)]
            if mark[-1] == "=":
                self.values[name] = [other]
            return [other]
        if mark[-1:] == "+":
            return [""] if empty else [other]
        return value

    def _arithmetic(self, text: str, line: int, depth: int) -> str:
        """The value of ``$(( ))``."""
        inner = "".join(" ".join(values) for _, values in self._pieces(
            text[3:-2], line, depth + 1))
        unknown = self._mark(line, text)
        try:
            return str(computed(inner, lambda name: (self.values.get(name) or [""])[0]))
        except ValueError:
            marks = MARK.findall(inner)
            if marks:
                return f"{OPEN}{marks[0]}{CLOSE}"
            names = [name for name in _NAME.findall(inner) if name not in self.values]
            return self._mark(line, f"${names[0]}", unset=True) if names else unknown
