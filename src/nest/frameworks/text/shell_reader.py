"""The text of a script read as a tree of commands, as bash parses it; nothing is expanded or run.

Grammar: Bash Reference Manual 5.2, section 3.2. What is no text of bash is refused, never skipped.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import NoReturn

from nest.errors import InputError
from nest.frameworks.text.shell_tree import (
    DECLARES,
    DEEPEST,
    AndOrList,
    Arithmetic,
    Assign,
    Case,
    Commands,
    Count,
    Directed,
    For,
    Function,
    If,
    Loop,
    Node,
    Redirect,
    ShellBlock,
    ShellPipeline,
    Simple,
    Test,
)
from nest.units import shorten

_NAME = r"[A-Za-z_]\w*"
_ASSIGN = re.compile(rf"({_NAME})(\[[^\]\n]*\])?(\+?)=", re.ASCII)
_INDEXED = re.compile(rf"{_NAME}\[", re.ASCII)
_REDIRECT = re.compile(
    r"(?:\d+|\{\w+\})?(?:&>>|&>|<<<|<<-|<<|<&|>&|<>|>>|>\||<(?!\()|>(?!\())", re.ASCII)
_FUNCTION = re.compile(r"([^\s;&|()<>$'\"`\\={}]+)[ \t]*\([ \t]*\)")
_PEEK = re.compile(r"[^\s;&|()<>]+")
_BRACED = re.compile(rf"!?(?:{_NAME}|\d+|[@*#?$!-])?(?:\[[^\]]*\])?:?[-=+?]", re.ASCII)
_RESERVED = {"then", "elif", "else", "fi", "do", "done", "esac", "in", "}"}


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
        self.documents: list[tuple[str, bool, list[Redirect], int]] = []

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
            return self._closed("'", at + 1, at)
        if one == '"' and not quoted:
            n = at + 1
            while n < len(text) and text[n] != '"':
                n = self.piece(n, True)
            if n >= len(text):
                self.refuse('a quote " is not closed', at)
            return n + 1
        if one == "`":
            return self._escaped("`", at + 1, "` is not closed", at)
        if one == "$":
            return self._expansion(at, quoted)
        return at + 1

    def _closed(self, mark: str, at: int, start: int) -> int:
        end = self.text.find(mark, at)
        if end < 0:
            self.refuse(f"a quote {mark} is not closed", start)
        return end + 1

    def _escaped(self, mark: str, at: int, open_: str, start: int) -> int:
        """The end behind a mark, which a backslash may escape; ``open_``: what a missing one is."""
        text = self.text
        while at < len(text) and text[at] != mark:
            at += 2 if text[at] == "\\" else 1
        if at >= len(text):
            self.refuse(open_, start)
        return at + 1

    def _expansion(self, at: int, quoted: bool) -> int:
        text, two = self.text, self.text[at + 1:at + 2]
        if two == "'" and not quoted:
            return self._escaped("'", at + 2, "a quote ' is not closed", at)
        if two == '"' and not quoted:
            return self.piece(at + 1, False)
        if two == "(":
            return self.arithmetic_end(at + 3) if text.startswith("$((", at) and (
                self.arithmetic_end(at + 3)) else self.inside(at + 2)
        if two == "{":
            return self._braced(at + 2, quoted)
        if two == "[":
            end = text.find("]", at)
            if end < 0:
                self.refuse(at=at)
            return end + 1
        return at + 1

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            self.refuse(f"nested more than {DEEPEST} deep")

    def _braced(self, at: int, quoted: bool) -> int:
        self._deeper()
        text, n = self.text, at
        literal = quoted and _BRACED.match(text, at) is not None
        while n < len(text) and text[n] != "}":
            if text[n] == "'":
                n = n + 1 if literal else self._closed("'", n + 1, n)
            elif text[n] == '"':
                n = self.piece(n, False)
            else:
                n = self.piece(n, quoted)
        if n >= len(text):
            self.refuse(f"{shorten(text[at - 2:at + 58])} is not closed", at)
        self.depth -= 1
        return n + 1

    def arithmetic_end(self, at: int) -> int:
        """The position behind the ``))`` of what begins here; 0: it is none."""
        text, n, depth = self.text, at, 0
        while n < len(text):
            if text[n] == "(":
                depth += 1
            elif text[n] == ")":
                if depth == 0:
                    return n + 2 if text[n + 1:n + 2] == ")" else 0
                depth -= 1
            elif text[n] in "\\$`":
                n = self.piece(n, True)
                continue
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

    def _pattern(self, ends: str) -> str:
        """A pattern: parentheses belong to it."""
        start, text, depth = self.at, self.text, 0
        while self.at < len(text) and (depth or text[self.at] not in ends):
            depth += (text[self.at] == "(") - (text[self.at] == ")")
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
                self._read_documents()
            else:
                return

    def _read_documents(self) -> None:
        for end, tabs, redirects, number in self.documents:
            lines = []
            while self.at < len(self.text):
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.at:stop]
                self.at = min(stop + 1, len(self.text))
                line = line.lstrip("\t") if tabs else line
                if line == end:
                    break
                lines.append(line)
            redirects[number] = redirects[number]._replace(target="\n".join(lines))
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
        found: list[AndOrList] = []
        while True:
            self.blank(newlines=True)
            if self.at >= len(self.text) or self.text[self.at] == ")" or self.text.startswith(
                    (";;", ";&"), self.at) or self._peek() in stops:
                self.depth -= 1
                return tuple(found)
            found.append(self._chain())

    def _chain(self) -> AndOrList:
        line, first, rest = self.line(), self._pipeline(), []
        while True:
            self.blank()
            join = self.text[self.at:self.at + 2]
            if join not in ("&&", "||"):
                break
            self.at += 2
            self.blank(newlines=True)
            rest.append((join, self._pipeline()))
        background = self.text.startswith("&", self.at)
        if background or (self.text.startswith(";", self.at)
                          and not self.text.startswith((";;", ";&"), self.at)):
            self.at += 1
        return AndOrList(line, first, tuple(rest), background)

    def _pipeline(self) -> ShellPipeline:
        line, turned, parts = self.line(), False, []
        while self._peek() in ("!", "time"):
            turned ^= self._peek() == "!"
            self.at += len(self._peek())
            self.blank()
            if self._peek() == "-p":
                self.at += 2
                self.blank()
        while True:
            parts.append(self._command())
            self.blank()
            if not self.text.startswith("|", self.at) or self.text.startswith("||", self.at):
                return ShellPipeline(line, turned, tuple(parts))
            self.at += 1 + self.text.startswith("|&", self.at)
            self.blank(newlines=True)

    def _command(self) -> Node:
        line, start, word = self.line(), self.at, self._peek()
        if word in _RESERVED or word in ("coproc",):
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
        redirects: list[Redirect] = []
        while True:
            self.blank()
            if not self._redirect(redirects):
                break
        # What a here-document says is read behind the end of its line.
        return Directed(line, found, tuple(redirects)) if redirects else found

    def _function(self, line: int, name: str) -> Function:
        self.blank(newlines=True)
        return Function(line, name, self._command())

    def _compound(self, line: int, word: str) -> Node | None:
        text = self.text
        if text.startswith("((", self.at) and (end := self.arithmetic_end(self.at + 2)):
            inner, self.at = text[self.at + 2:end - 2], end
            return Arithmetic(line, inner)
        if text.startswith("(", self.at):
            self.at += 1
            body = self.commands()
            self._take(")")
            return ShellBlock(line, True, body)
        if word not in ("{", "if", "while", "until", "for", "select", "case", "[[", "function"):
            return None
        self.at += len(word)
        if word == "{":
            body = self.commands("}")
            self._take("}")
            return ShellBlock(line, False, body)
        if word == "if":
            return self._if(line)
        if word in ("while", "until"):
            condition = self.commands("do")
            return Loop(line, word == "until", condition, self._body())
        if word in ("for", "select"):
            return self._for(line, word)
        if word == "case":
            return self._case(line)
        if word == "[[":
            return self._test(line)
        self.blank()
        name = self.word()
        self.blank()
        if text.startswith("(", self.at):
            self._take("(")
            self._take(")")
        return self._function(line, name)

    def _body(self) -> Commands:
        end = {"do": "done", "{": "}"}[self._take("do", "{")]
        body = self.commands(end)
        self._take(end)
        return body

    def _if(self, line: int) -> If:
        branches: list[tuple[Commands, Commands]] = []
        other: Commands = ()
        while True:
            condition = self.commands("then")
            self._take("then")
            branches.append((condition, self.commands("elif", "else", "fi")))
            word = self._take("elif", "else", "fi")
            if word == "else":
                other = self.commands("fi")
                word = self._take("fi")
            if word == "fi":
                return If(line, tuple(branches), other)

    def _for(self, line: int, word: str) -> For | Count:
        self.blank()
        if self.text.startswith("((", self.at):
            end = self.arithmetic_end(self.at + 2)
            parts = self.text[self.at + 2:end - 2].split(";")
            if not end or len(parts) != 3:
                self.refuse()
            self.at = end
            self._end_of_list()
            return Count(line, (parts[0], parts[1], parts[2]), self._body())
        name, words = self.word(), None
        if not re.fullmatch(_NAME, name, re.ASCII):
            self.refuse()
        self.blank(newlines=True)
        if self._peek() == "in":
            self.at += 2
            listed = []
            self.blank()
            while one := self.word():
                listed.append(one)
                self.blank()
            words = tuple(listed)
        self._end_of_list()
        return For(line, name, words, self._body(), word == "select")

    def _end_of_list(self) -> None:
        self.blank()
        if self.text.startswith(";", self.at):
            self.at += 1

    def _case(self, line: int) -> Case:
        self.blank()
        word = self.word()
        branches: list[tuple[tuple[str, ...], Commands, str]] = []
        self._take("in")
        while True:
            self.blank(newlines=True)
            if self._peek() == "esac":
                self.at += 4
                return Case(line, word, tuple(branches))
            if self.text.startswith("(", self.at):
                self.at += 1
            patterns = []
            while True:
                self.blank()
                patterns.append(self._pattern(" \t\n|)"))
                self.blank()
                if not self.text.startswith("|", self.at):
                    break
                self.at += 1
            self._take(")")
            body = self.commands("esac")
            end = next((one for one in (";;&", ";;", ";&") if self.text.startswith(one, self.at)),
                       "")
            self.at += len(end)
            branches.append((tuple(patterns), body, end or ";;"))
            if not end and self._peek() != "esac":
                self.refuse()

    def _test(self, line: int) -> Test:
        words: list[str] = []
        while True:
            self.blank(newlines=True)
            if self._peek() == "]]":
                self.at += 2
                return Test(line, tuple(words))
            operator = next((one for one in ("&&", "||", "(", ")", "<", ">")
                             if self.text.startswith(one, self.at)), "")
            if words and words[-1] in ("=", "==", "!=", "=~"):
                words.append(self._pattern(" \t\n)&"))
            elif operator:
                self.at += len(operator)
                words.append(operator)
            else:
                words.append(self.word())
            if not words[-1]:
                self.refuse()

    def _redirect(self, redirects: list[Redirect]) -> bool:
        found = _REDIRECT.match(self.text, self.at)
        if found is None:
            return False
        self.at = found.end()
        self.blank()
        target = self.word()
        if not target:
            self.refuse()
        mark = found[0].lstrip("0123456789")
        redirects.append(Redirect(mark, target))
        if mark in ("<<", "<<-"):
            self.documents.append((re.sub(r"[\"'\\]", "", target), mark == "<<-", redirects,
                                   len(redirects) - 1))
        return True

    def _simple(self, line: int) -> Simple:
        assigns: list[Assign] = []
        words: list[str | Assign] = []
        redirects: list[Redirect] = []
        while True:
            self.blank()
            if self._redirect(redirects):
                continue
            if self.at >= len(self.text) or self.text[self.at] in "\n;&|()":
                if self.text.startswith("(", self.at):
                    self.refuse()
                return Simple(line, tuple(assigns), tuple(words), tuple(redirects))
            declares = any(word in DECLARES for word in words[:2])
            assign = self._assign() if not words or declares else None
            if assign is None:
                words.append(self.word())
            else:
                (words if words else assigns).append(assign)

    def _assign(self) -> Assign | None:
        found = _ASSIGN.match(self.text, self.at)
        if found is None:
            if _INDEXED.match(self.text, self.at) and self._peek()[-1:] != "]":
                self.refuse()
            return None
        start, self.at = self.at, found.end()
        value: str | tuple[str, ...]
        if self.text.startswith("(", self.at):
            self.at += 1
            listed = []
            while True:
                self.blank(newlines=True)
                if self.text.startswith(")", self.at):
                    self.at += 1
                    break
                listed.append(self.word())
                if not listed[-1]:
                    self.refuse("an array is not closed" if self.at >= len(self.text) else "")
            value = tuple(listed)
        else:
            value = self.word()
        return Assign(found[1], found[2][1:-1] if found[2] else None, bool(found[3]), value,
                      self.text[start:self.at])
