"""The words and operators of a shell script, and where its blocks end; nothing is executed."""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import NamedTuple

from nest.errors import InputError
from nest.units import shorten

ASSIGN = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
OPENS = {"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done",
         "case": "esac"}
"""Words that open a block, and those that close it."""


class Token(NamedTuple):
    role: str
    """A word, an operator (; & | && || newline), or the words of an array."""
    text: str
    line: int
    inner: tuple[Token, ...] = ()


def matching(text: str, at: int, where: str, line: int) -> int:
    """The end of what begins at ``at``: `...`, $(...), $((...)) or ${...}."""
    if text[at] == "`":
        end = text.find("`", at + 1)
        if end > 0:
            return end + 1
        raise InputError(f"{where}: line {line}: ` is not closed")
    pairs = {"(": ")", "{": "}"}
    stack: list[str] = []
    n = at + 1
    while n < len(text):
        one = text[n]
        if one == "\\":
            n += 2
            continue
        if one == "'" and (not stack or stack[-1] != '"'):
            close = text.find("'", n + 1)
            n = len(text) if close < 0 else close + 1
            continue
        if one == '"':
            if stack and stack[-1] == '"':
                stack.pop()
            else:
                stack.append('"')
        elif one in pairs and (one == "(" or text[n - 1] == "$"):
            stack.append(pairs[one])
        elif stack and one == stack[-1]:
            stack.pop()
            if not stack:
                return n + 1
        n += 1
    raise InputError(f"{where}: line {line}: {shorten(text[at:at + 60])} is not closed")


_OPERATORS = ("&&", "||", ";;", ";", "&", "|", "\n")


def tokens_of(text: str, where: str) -> list[Token]:
    """Words and operators; continued lines are one, comments are left out."""
    text = text.replace("\r\n", "\n")
    lines = _Lines(text)
    found, _ = _listed(text, 0, where, lines, None)
    return found


class _Lines:
    """Numbers of lines by position."""

    def __init__(self, text: str) -> None:
        self.ends = [at for at, one in enumerate(text) if one == "\n"]

    def __call__(self, at: int) -> int:
        return bisect_left(self.ends, at) + 1


def _listed(
    text: str, at: int, where: str, lines: _Lines, close: str | None
) -> tuple[list[Token], int]:
    """Tokens from a position on, to the end or to the parenthesis that closes an array."""
    found: list[Token] = []
    while at < len(text):
        one = text[at]
        if one in " \t":
            at += 1
        elif text.startswith("\\\n", at):
            at += 2
        elif one == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif close is not None and one == close:
            return found, at + 1
        elif close is not None and one == "\n":
            at += 1
        elif one in "<>" or re.compile(r"\d?>&?\d?|&>").match(text, at):
            if text.startswith("<<", at) and not text.startswith("<<<", at):
                at = _after_document(text, at)
                continue
            end = at
            while end < len(text) and text[end] in "0123456789<>&":
                end += 1
            if text[end:end + 1] == "(":  # a process: < <(...)
                end = matching("$" + text[end:], 0, where, lines(at)) + end - 1
            elif not re.fullmatch(r"\d?>&\d", text[at:end]):
                found.append(Token("redirect", text[at:end], lines(at)))
            at = end
        elif operator := next((each for each in _OPERATORS if text.startswith(each, at)), None):
            found.append(Token("operator", operator, lines(at)))
            at += len(operator)
        elif one in "(){}" and (at + 1 >= len(text) or text[at + 1] in " \t\n;()"
                                or one in "()"):
            found.append(Token("word" if one in "{}" else "operator", one, lines(at)))
            at += 1
        else:
            token, at = _word(text, at, where, lines, close)
            found.append(token)
    if close is not None:
        raise InputError(f"{where}: an array is not closed")
    return found, at


def _after_document(text: str, at: int) -> int:
    """The position behind a here-document, whose text is data."""
    found = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1").match(text, at)
    if found is None:
        return at + 2
    rest = text.find("\n", found.end())
    end = re.compile(rf"^\s*{found[2]}\s*$", re.MULTILINE).search(text, max(rest, 0))
    return len(text) if rest < 0 or end is None else end.end()


def _word(
    text: str, at: int, where: str, lines: _Lines, close: str | None
) -> tuple[Token, int]:
    """One word with its quotes and expansions, or the assignment of an array."""
    start, line = at, lines(at)
    parts: list[str] = []
    while at < len(text):
        one = text[at]
        if one in " \t\n;&|<>)" or (one == "(" and at == start):
            break
        if one == "(":
            assign = ASSIGN.fullmatch(text[start:at])
            if assign is not None:
                inner, at = _listed(text, at + 1, where, lines, ")")
                return Token("array", assign[0], line, tuple(
                    each for each in inner if each.role in ("word", "array"))), at
            break
        if text.startswith("\\\n", at):
            at += 2
        elif one == "\\":
            parts.append(text[at:at + 2])
            at += 2
        elif one == "'":
            end = text.find("'", at + 1)
            if end < 0:
                raise InputError(f"{where}: line {line}: a quote ' is not closed")
            parts.append(text[at:end + 1])
            at = end + 1
        elif one == '"':
            end = _quoted_end(text, at, where, line)
            parts.append(text[at:end])
            at = end
        elif one == "`" or text.startswith(("$(", "${"), at):
            end = matching(text, at, where, line)
            parts.append(text[at:end])
            at = end
        else:
            parts.append(one)
            at += 1
    return Token("word", "".join(parts), line), at


def _quoted_end(text: str, at: int, where: str, line: int) -> int:
    n = at + 1
    while n < len(text):
        if text[n] == "\\":
            n += 2
        elif text[n] == '"':
            return n + 1
        elif text[n] == "`" or text.startswith(("$(", "${"), n):
            n = matching(text, n, where, line)
        else:
            n += 1
    raise InputError(f"{where}: line {line}: a quote \" is not closed")


def closing(tokens: list[Token], at: int) -> int:
    """The token that closes a block, or the last one."""
    depth = 0
    for n in range(at, len(tokens)):
        first = n == 0 or tokens[n - 1].role == "operator" or tokens[n - 1].text in (
            "then", "else", "do", "{")
        if tokens[n].role != "word" or not first:
            continue
        if tokens[n].text in OPENS:
            depth += 1
        elif tokens[n].text in OPENS.values():
            depth -= 1
            if depth == 0:
                return n
    return len(tokens) - 1


def split(tokens: list[Token]) -> list[tuple[list[Token] | None, list[Token]]]:
    """Conditions of an ``if`` with their statements; None: else."""
    found: list[tuple[list[Token] | None, list[Token]]] = []
    run: list[Token] = []
    condition: list[Token] | None = None
    depth, started = 0, False
    for n, token in enumerate(tokens):
        first = n == 0 or tokens[n - 1].role == "operator" or tokens[n - 1].text in (
            "then", "else", "do", "{")
        word = token.text if token.role == "word" and first else ""
        if depth == 0 and word == "then":
            condition, run, started = run, [], True
            continue
        if depth == 0 and word in ("elif", "else"):
            found.append((condition, run))
            condition, run = None, []
            continue
        depth += (word in OPENS) - (word in OPENS.values())
        run.append(token)
    if started:
        found.append((condition, run))
    return found


def cases(tokens: list[Token]) -> list[tuple[list[Token], list[Token]]]:
    """Patterns of a ``case`` with their statements; ``tokens`` begin behind its ``in``."""
    found: list[tuple[list[Token], list[Token]]] = []
    at = 0
    while at < len(tokens):
        patterns: list[Token] = []
        while at < len(tokens) and tokens[at].text != ")":
            if tokens[at].role == "word":
                patterns.append(tokens[at])
            at += 1
        at += 1
        start, depth = at, 0
        while at < len(tokens) and not (depth == 0 and tokens[at].text == ";;"):
            first = tokens[at].role == "word" and (
                at == start or tokens[at - 1].role == "operator"
                or tokens[at - 1].text in ("then", "else", "do", "{"))
            if first:
                depth += (tokens[at].text in OPENS) - (tokens[at].text in OPENS.values())
            at += 1
        if patterns:
            found.append((patterns, tokens[start:at]))
        at += 1
    return found


def is_function(tokens: list[Token], at: int) -> bool:
    if tokens[at].text == "function":
        return True
    after = [token.text for token in tokens[at + 1:at + 3]]
    return after == ["(", ")"]


def body_end(tokens: list[Token], at: int) -> int:
    depth = 0
    for n in range(at, len(tokens)):
        if tokens[n].text == "{":
            depth += 1
        elif tokens[n].text == "}":
            depth -= 1
            if depth == 0:
                return n
    return len(tokens) - 1


def line_of(token: Token) -> str:
    return token.text if token.role != "array" else f"{token.text}(...)"
