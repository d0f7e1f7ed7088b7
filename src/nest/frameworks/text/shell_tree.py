"""The text of a script as a tree of commands, as bash parses it; nothing is expanded or run.

Grammar: Bash Reference Manual 5.2, section 3.2. Words keep their quotes. What is no text of bash is
refused, never skipped.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import NamedTuple, NoReturn, TypeAlias

from nest.errors import InputError
from nest.units import shorten

DEEPEST = 40
"""Commands, quotes and expansions inside one another."""
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(", re.ASCII)
_INDEXED = re.compile(r"[A-Za-z_]\w*\[", re.ASCII)
_REDIRECT = re.compile(
    r"(?:\d+|\{\w+\})?(?:&>>|&>|<<<|<<-|<<|<&|>&|<>|>>|>\||<(?!\()|>(?!\())", re.ASCII)
_FUNCTION = re.compile(r"([^\s;&|()<>$'\"`\\={}]+)[ \t]*\([ \t]*\)")
_PEEK = re.compile(r"[^\s;&|()<>]+")
_LITERAL = re.compile(r"!?(?:[A-Za-z_]\w*|\d+|[@*#?$!-])?(?:\[[^\]]*\])?:?[-=+?]", re.ASCII)
"""An expansion whose word keeps single quotes, where it stands in double quotes."""
_BODIES = {"do": "done", "{": "}"}
_RESERVED = {"then", "elif", "else", "fi", "do", "done", "esac", "in", "}", "coproc"}


class ShellArray(NamedTuple):
    """``NAME=(WORDS)``."""

    name: str
    more: bool
    """``+=``."""
    words: tuple[str, ...]


class ShellSimple(NamedTuple):
    """A command without others in it."""

    line: int
    words: tuple[str | ShellArray, ...]
    changes: tuple[str, ...] = ()
    """Variables that redirections set."""


class ShellBlock(NamedTuple):
    """Commands that run together, at certain times or in a shell of their own."""

    line: int
    kind: str
    """The word that begins it; ``&&``, ``|`` or ``&``: a list, pipeline or background."""
    text: str
    """How it begins."""
    bodies: tuple[Commands, ...]
    tests: tuple[Commands, ...] = ()
    """Of ``if``: those of the first bodies."""
    name: str = ""
    """Of a function or the variable of a loop; of a list what joins it."""


Commands: TypeAlias = "tuple[ShellSimple | ShellBlock, ...]"


def parsed(text: str, where: str, line: int | None = None) -> Commands:
    """The commands of a script.

    Parameters
    ----------
    where : its name, for messages.
    line : of all of it, where it stands in another script; None: its own lines.

    Raises
    ------
    InputError : no text of bash, or nested deeper than allowed.
    """
    reader = Reader(text, where, line)
    found = reader.commands()
    if reader.at < len(text):
        reader.refuse()
    return found


class Reader:
    """A text read from the front."""

    def __init__(self, text: str, where: str, line: int | None = None) -> None:
        self.text, self.where, self.fixed = text, where, line
        self.at, self.depth = 0, 0
        self.ends = [at for at, one in enumerate(text) if one == "\n"] if line is None else []
        self.documents: list[tuple[str, bool]] = []

    def line(self, at: int | None = None) -> int:
        """Number of the line of a position."""
        if self.fixed is not None:
            return self.fixed
        return bisect_left(self.ends, self.at if at is None else at) + 1

    def refuse(self, what: str = "", at: int | None = None) -> NoReturn:
        """Say what is not understood.

        Raises
        ------
        InputError : always.
        """
        at = self.at if at is None else at
        there = self.text[at:at + 60].strip().partition("\n")[0]
        got = what or (f"{shorten(there)} is no command" if there else "it ends in a command")
        raise InputError(f"{self.where}: line {self.line(at)}: {got}; allowed: a script of bash")

    # ------------------------------------------------------------ words

    def piece(self, at: int, quoted: bool) -> int:
        """The end of a character, a quotation or an expansion."""
        text, one = self.text, self.text[at]
        if one == "\\":
            return min(at + 2, len(text))
        if one == "'" and not quoted:
            return self._closed("'", at + 1, at, False)
        if one == '"' and not quoted:
            n = at + 1
            while n < len(text) and text[n] != '"':
                n = self.piece(n, True)
            if n >= len(text):
                self.refuse('a quote " is not closed', at)
            return n + 1
        if one == "`":
            return self._closed("`", at + 1, at)
        return self._expansion(at, quoted) if one == "$" else at + 1

    def _closed(self, mark: str, at: int, start: int, escaped: bool = True) -> int:
        """The position behind a mark, which a backslash may escape."""
        text = self.text
        while at < len(text) and text[at] != mark:
            at += 2 if escaped and text[at] == "\\" else 1
        if at >= len(text):
            self.refuse(f"a quote {mark} is not closed", start)
        return at + 1

    def _expansion(self, at: int, quoted: bool) -> int:
        two = self.text[at + 1:at + 2]
        if two in ("'", '"') and not quoted:
            return self._closed("'", at + 2, at) if two == "'" else self.piece(at + 1, False)
        if two == "(":
            end = self.arithmetic_end(at + 3) if self.text.startswith("$((", at) else 0
            return end or self.inside(at + 2)
        if two == "{":
            return self._braced(at + 2, quoted)
        return self._closed("]", at + 2, at, False) if two == "[" else at + 1

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            self.refuse(f"nested more than {DEEPEST} deep")

    def _braced(self, at: int, quoted: bool) -> int:
        self._deeper()
        text, n = self.text, at
        literal = quoted and _LITERAL.match(text, at) is not None
        while n < len(text) and text[n] != "}":
            if text[n] == "'":
                n = n + 1 if literal else self._closed("'", n + 1, n, False)
            else:
                n = self.piece(n, quoted and text[n] != '"')
        if n >= len(text):
            self.refuse(f"{shorten(text[at - 2:at + 58])} is not closed", at)
        self.depth -= 1
        return n + 1

    def arithmetic_end(self, at: int) -> int:
        """The position behind the ``))`` of what begins here; 0: it is none."""
        text, n, depth = self.text, at, 0
        while n < len(text):
            if text[n] in "\\$`":
                n = self.piece(n, True)
                continue
            if text[n] == ")" and depth == 0:
                return n + 2 if text[n + 1:n + 2] == ")" else 0
            depth += (text[n] == "(") - (text[n] == ")")
            n += 1
        return 0

    def inside(self, at: int) -> int:
        """The position behind the ``)`` of commands that begin here."""
        kept, documents = self.at, self.documents
        self.at, self.documents = at, []
        self.commands()
        if self.text[self.at:self.at + 1] != ")":
            self.refuse(f"{shorten(self.text[at - 2:at + 58])} is not closed", at)
        end, self.at, self.documents = self.at + 1, kept, documents
        return end

    def word(self, ends: str = " \t\n;&|)(") -> str:
        """The next word; empty: there is none."""
        start, text = self.at, self.text
        while self.at < len(text) and text[self.at] not in ends:
            if text[self.at] in "<>" and ends != " \t\n":
                if text[self.at + 1:self.at + 2] != "(":
                    break
                self.at = self.inside(self.at + 2)
                continue
            self.at = self.piece(self.at, False)
        return text[start:self.at]

    def blank(self, newlines: bool = False) -> None:
        """Go on behind blanks and comments."""
        text = self.text
        while self.at < len(text):
            if text[self.at] in " \t" or text.startswith("\\\n", self.at):
                self.at += 1 + (text[self.at] == "\\")
            elif text[self.at] == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            elif newlines and text[self.at] == "\n":
                self.at += 1
                self._skip_documents()
            else:
                return

    def _skip_documents(self) -> None:
        """Go on behind the here-documents of a line that ends."""
        for end, tabs in self.documents:
            line = None
            while self.at < len(self.text) and line != end:
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.at:stop]
                line = line.lstrip("\t") if tabs else line
                self.at = min(stop + 1, len(self.text))
        self.documents = []

    def _peek(self) -> str:
        found = _PEEK.match(self.text, self.at)
        return found[0] if found else ""

    def _take(self, *wanted: str) -> str:
        """Go on behind a reserved word or an operator that has to be next."""
        self.blank(newlines=True)
        for one in wanted:
            if self._peek() == one or (not one.isalpha() and self.text.startswith(one, self.at)):
                self.at += len(one)
                return one
        self.refuse()

    # ------------------------------------------------------------ commands

    def commands(self, *stops: str) -> Commands:
        """Commands up to one of some reserved words, ``)``, ``;;`` or the end."""
        self._deeper()
        found: list[ShellSimple | ShellBlock] = []
        while True:
            self.blank(newlines=True)
            if self.at >= len(self.text) or self.text[self.at] == ")" or self.text.startswith(
                    (";;", ";&"), self.at) or self._peek() in stops:
                self.depth -= 1
                return tuple(found)
            found += self._list()

    def _list(self) -> Commands:
        """Pipelines up to the end of a command."""
        line, start, first = self.line(), self.at, self._pipeline()
        rest: list[Commands] = []
        joins = ""
        while True:
            self.blank()
            if (join := self.text[self.at:self.at + 2]) not in ("&&", "||"):
                break
            joins += f"{join} "
            self.at += 2
            self.blank(newlines=True)
            rest.append(self._pipeline())
        shown = self.text[start:self.at]
        background = self.text.startswith("&", self.at)
        if background or (self.text.startswith(";", self.at)
                          and not self.text.startswith((";;", ";&"), self.at)):
            self.at += 1
        if background:
            return (ShellBlock(line, "&", shown, (first, *rest)),)
        return (ShellBlock(line, "&&", shown, (first, *rest), name=joins),) if rest else first

    def _pipeline(self) -> Commands:
        line, start, parts, turned = self.line(), self.at, [], False
        while self._peek() in ("!", "time"):
            turned |= self._peek() == "!"
            self.at += len(self._peek())
            self.blank()
            if self._peek() == "-p":
                self.at += 2
                self.blank()
        while True:
            parts.append(self._command())
            self.blank()
            if not self.text.startswith("|", self.at) or self.text.startswith("||", self.at):
                break
            self.at += 1 + self.text.startswith("|&", self.at)
            self.blank(newlines=True)
        if len(parts) == 1:
            # What follows a turned command knows nothing of its result.
            return (parts[0], ShellSimple(line, ("!",))) if turned else (parts[0],)
        shown = self.text[start:self.at]
        return (ShellBlock(line, "|", shown, tuple((part,) for part in parts)),)

    def _command(self) -> ShellSimple | ShellBlock:
        line, start, word = self.line(), self.at, self._peek()
        if word in _RESERVED:
            self.refuse()
        found = self._compound(line, word)
        if found is None:
            if function := _FUNCTION.match(self.text, self.at):
                self.at = function.end()
                return self._function(line, function[1])
            found = self._simple(line)
            if self.at == start:
                self.refuse()
            return found
        while True:
            self.blank()
            if not self._redirect([]):
                return found

    def _function(self, line: int, name: str) -> ShellBlock:
        self.blank(newlines=True)
        return ShellBlock(line, "function", name, ((self._command(),),), name=name)

    def _compound(self, line: int, word: str) -> ShellSimple | ShellBlock | None:
        text, start = self.text, self.at

        def block(*bodies: Commands, tests: tuple[Commands, ...] = ()) -> ShellBlock:
            shown = text[start:self.at].partition("\n")[0]
            return ShellBlock(line, word, shown, bodies, tests)
        if text.startswith("((", self.at) and (end := self.arithmetic_end(self.at + 2)):
            inner, self.at = text[self.at + 2:end - 2], end
            return ShellSimple(line, ("((", inner))
        if text.startswith("(", self.at):
            self.at += 1
            word, body = "(", self.commands()
            self._take(")")
            return block(body)
        if word not in ("{", "if", "while", "until", "for", "select", "case", "[[", "function"):
            return None
        self.at += len(word)
        if word == "{":
            body = self.commands("}")
            self._take("}")
            return block(body)
        if word == "if":
            tests: list[Commands] = []
            return block(*self._if(tests), tests=tuple(tests))
        if word in ("while", "until"):
            return block(self.commands("do"), self._body())
        if word in ("for", "select"):
            return self._for(line, word)
        if word == "case":
            return self._case(line)
        if word == "[[":
            return ShellSimple(line, self._test())
        self.blank()
        name = self.word()
        self.blank()
        if text.startswith("(", self.at):
            self._take("(")
            self._take(")")
        return self._function(line, name)

    def _body(self) -> Commands:
        end = _BODIES[self._take(*_BODIES)]
        body = self.commands(end)
        self._take(end)
        return body

    def _if(self, tests: list[Commands]) -> list[Commands]:
        """Bodies; ``tests`` takes those of all but the last, which is what else is done."""
        bodies = []
        word = ""
        while word != "fi":
            if word != "else":
                tests.append(self.commands("then"))
                self._take("then")
            bodies.append(self.commands("elif", "else", "fi") if word != "else"
                          else self.commands("fi"))
            word = self._take(*(("elif", "else", "fi") if word != "else" else ("fi",)))
        return bodies

    def _for(self, line: int, kind: str) -> ShellBlock:
        start = self.at
        self.blank()
        if self.text.startswith("((", self.at):
            end = self.arithmetic_end(self.at + 2)
            name, inner = "", ["((", self.text[self.at + 2:end - 2]]
            if not end or inner[1].count(";") < 2:
                self.refuse()
            self.at = end
        else:
            name = self.word()
            if not NAME.fullmatch(name):
                self.refuse()
            inner = [":"]
            self.blank(newlines=True)
            if self._peek() == "in":
                self.at += 2
                self.blank()
                while word := self.word():
                    inner.append(word)
                    self.blank()
        shown = kind + self.text[start:self.at]
        self.blank()
        self.at += self.text.startswith(";", self.at)
        first = ShellSimple(line, tuple(inner))
        return ShellBlock(line, kind, shown, ((first, *self._body()),), name=name)

    def _case(self, line: int) -> ShellBlock:
        self.blank()
        if not (subject := self.word()):
            self.refuse()
        self._take("in")
        bodies: list[Commands] = [(ShellSimple(line, (":", subject)),)]
        while True:
            self.blank(newlines=True)
            if self._peek() == "esac":
                self.at += 4
                return ShellBlock(line, "case", f"case {subject}", tuple(bodies))
            self.at += self.text.startswith("(", self.at)
            depth = 0
            while self.at < len(self.text) and (depth or self.text[self.at] != ")"):
                depth += (self.text[self.at] == "(") - (self.text[self.at] == ")")
                self.at = self.piece(self.at, False)
            self._take(")")
            bodies.append(self.commands("esac"))
            ends = (one for one in (";;&", ";&", ";;") if self.text.startswith(one, self.at))
            self.at += len(next(ends, ""))

    def _test(self) -> tuple[str, ...]:
        """Words of ``[[ ... ]]``, with its brackets."""
        words = ["[["]
        while words[-1] != "]]":
            self.blank(newlines=True)
            if self.text[self.at:self.at + 1] in ("(", ")", "<", ">", "&", "|"):
                one = self.text[self.at]
                self.at += 1 + self.text.startswith(one * 2, self.at)
                words.append(one)
                continue
            # After =~ parentheses and bars belong to a word.
            word = self.word(" \t\n") if words[-1] in ("=~", "==", "=", "!=") else self.word()
            if not word:
                self.refuse()
            words.append(word)
        return tuple(words)

    def _simple(self, line: int) -> ShellSimple:
        words: list[str | ShellArray] = []
        changes: list[str] = []
        while True:
            self.blank()
            if self._redirect(changes):
                continue
            if array := _ARRAY.match(self.text, self.at):
                self.at = array.end()
                inner = []
                while True:
                    self.blank(newlines=True)
                    if self.text.startswith(")", self.at):
                        self.at += 1
                        break
                    if not (word := self.word()):
                        self.refuse()
                    inner.append(word)
                words.append(ShellArray(array[1], bool(array[2]), tuple(inner)))
                continue
            start = self.at
            if _INDEXED.match(self.text, self.at):  # its index may hold blanks
                end = self.text.find("]", self.at)
                if end > 0 and re.match(r"\]\+?=", self.text[end:end + 3]):
                    self.at = end + 1
            self.word()
            if self.at == start:
                return ShellSimple(line, tuple(words), tuple(changes))
            words.append(self.text[start:self.at])

    def _redirect(self, changes: list[str]) -> bool:
        found = _REDIRECT.match(self.text, self.at)
        if found is None:
            return False
        self.at = found.end()
        self.blank()
        word = self.word()
        mark = found[0].lstrip("0123456789")
        if mark.startswith("{"):
            changes.append(mark[1:mark.index("}")])
        if not word:
            self.refuse()
        if mark in ("<<", "<<-"):
            self.documents.append((re.sub(r"[\\'\"]", "", word), mark == "<<-"))
        return True
