"""A launch script's commands, read as text: its variables are followed, and nothing is executed.

Understood: assignments (``NAME=``, ``+=``, arrays, export), quotes, continued lines, comments,
``$NAME``, ``${NAME:-default}`` and its relatives, ``$(( ))`` of whole numbers, and ``if`` whose
condition compares known texts. Anything else gives an *unknown* value, which remembers its line and
text; it is an error only where the result depends on it.

An unknown value is a text with a mark: the number of its :class:`Unknown` between two characters
of Unicode's private area, which scripts may not contain.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from nest.errors import InputError
from nest.units import shorten

LONGEST_SCRIPT = 2**20
"""Characters of a script."""
LONGEST_VALUE = 10**5
"""Characters of a value, and words of an array."""
DEEPEST = 40
"""Expansions and blocks inside one another."""
OPEN, CLOSE = "\ue000", "\ue001"
MARK = re.compile(f"{OPEN}(\\d+){CLOSE}")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ASSIGN = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
_PARAMETER = re.compile(
    r"(?P<all>!?)(?P<name>[A-Za-z_]\w*|\d+|[@*#?$!-])(?P<array>\[[@*]\])?"
    r"(?:(?P<mark>:?[-=+?])(?P<word>.*))?", re.ASCII | re.DOTALL)
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_OPENS = {"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done",
          "case": "esac"}


class Unknown(NamedTuple):
    """A value that a script does not say."""

    line: int
    text: str
    unset: bool
    """It is a variable or an argument that is empty unless the user gives it."""


class Command(NamedTuple):
    """A command of a script with its words as they would be run."""

    line: int
    words: tuple[str, ...]
    variables: Mapping[str, str]
    """Variables of the environment, and those set in front of the command."""
    sure: bool
    """Whether it is run for certain, as far as the script says."""


class _Token(NamedTuple):
    kind: str
    """A word, an operator (; & | && || newline), or the words of an array."""
    text: str
    line: int
    inner: tuple[_Token, ...] = ()


class Script:
    """The commands and variables of a script.

    Parameters
    ----------
    text : of the script.
    where : its name, for messages.
    given : variables of the environment.
    outer : the script whose command runs this text; unknown values are numbered on from its own.

    Raises
    ------
    InputError : not a text of a script, or one that is longer or nested deeper than allowed.
    """

    def __init__(
        self, text: str, where: str, given: Mapping[str, str] | None = None,
        outer: Script | None = None,
    ) -> None:
        self.where = where
        self.unknown: list[Unknown] = [] if outer is None else outer.unknown
        self.values: dict[str, list[str]] = {
            name: [value] for name, value in (given or {}).items()}
        self.exported: dict[str, str] = {}
        self.commands: list[Command] = []
        if len(text) > LONGEST_SCRIPT:
            raise InputError(f"{where}: got {len(text)} characters; allowed: {LONGEST_SCRIPT}")
        if OPEN in text or CLOSE in text or "\0" in text:
            raise InputError(f"{where}: got a character of no use in a script; allowed: text")
        try:
            self._run(_tokens(text, where), sure=True, depth=0)
        except RecursionError:
            raise InputError(f"{where}: nested too deep; allowed: {DEEPEST}") from None

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
            why = ("is not set in the script; give it by --set NAME=VALUE" if one.unset else
                   "is not understood, and nothing is executed")
            raise InputError(
                f"{self.where}: line {one.line}: {what} depends on {shorten(one.text)}, which "
                f"{why}")
        return text

    # ------------------------------------------------------------ statements

    def _mark(self, line: int, text: str, unset: bool = False) -> str:
        self.unknown.append(Unknown(line, text, unset))
        return f"{OPEN}{len(self.unknown) - 1}{CLOSE}"

    def _run(self, tokens: list[_Token], sure: bool, depth: int) -> None:
        """Follow statements; ``sure``: they are run for certain."""
        if depth > DEEPEST:
            raise InputError(f"{self.where}: blocks nested more than {DEEPEST} deep")
        at = 0
        while at < len(tokens):
            token = tokens[at]
            if token.kind == "operator":
                at += 1
                continue
            if token.kind == "word" and token.text in _OPENS:
                end = _closing(tokens, at)
                if token.text == "if":
                    self._branches(tokens[at + 1:end], sure, depth)
                else:
                    self._blurred(tokens[at + 1:end], token, depth)
                at = end + 1
                continue
            if token.kind == "word" and token.text in ("{", "(", "then", "else", "do", "}", ")"):
                at += 1
                continue
            end = at
            while end < len(tokens) and tokens[end].kind != "operator":
                end += 1
            if _is_function(tokens, at):
                end = _body_end(tokens, at)
                at = end + 1
                continue
            chained = at > 0 and tokens[at - 1].text in ("&&", "||")
            self._statement(tokens[at:end], sure and not chained)
            at = end

    def _branches(self, tokens: list[_Token], sure: bool, depth: int) -> None:
        """Of an ``if`` the branch that its conditions choose, or all of them as unknown."""
        parts, taken = _split(tokens), False
        for condition, body in parts:
            value = True if condition is None else self._condition(condition)
            if value is None:
                for _, other in parts:
                    self._blurred(other, condition[0] if condition else tokens[0], depth)
                return
            if value and not taken:
                self._run(body, sure, depth + 1)
                return

    def _blurred(self, tokens: list[_Token], cause: _Token, depth: int) -> None:
        """Statements that may be run or not, or several times: what they set is unknown."""
        before = {name: list(value) for name, value in self.values.items()}
        self._run(tokens, sure=False, depth=depth + 1)
        text = _line_of(cause)
        for name, value in list(self.values.items()):
            if before.get(name) != value:
                kept = before.get(name, [])
                self.values[name] = [*kept, self._mark(cause.line, text)]

    def _statement(self, tokens: list[_Token], sure: bool) -> None:
        local: dict[str, str] = {}
        words: list[str] = []
        declares, line = False, tokens[0].line
        redirect = False
        for number, token in enumerate(tokens):
            if redirect:
                redirect = False
                continue
            if token.kind == "redirect":
                redirect = True
                continue
            assign = _ASSIGN.match(token.text)
            if assign and (not words or declares) and token.kind in ("word", "array"):
                value = self._assigned(token, assign)
                if not declares and any(t.kind == "word" and not _ASSIGN.match(t.text)
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
        if words and not declares:
            if words[0] == "shift":
                return
            self.commands.append(Command(
                line, tuple(words), {**self.exported, **local}, sure))
            if words[0] in ("read", "source", ".", "mapfile", "readarray", "unset", "set"):
                for name in words[1:]:
                    if words[0] == "unset":
                        self.values.pop(name, None)
                    elif words[0] in ("read", "mapfile", "readarray") and _NAME.fullmatch(name):
                        self.values[name] = [self._mark(line, " ".join(words))]

    def _assigned(self, token: _Token, assign: re.Match[str]) -> list[str]:
        name, more = assign[1], bool(assign[2])
        before = self.values.get(name, []) if more else []
        if token.kind == "array":
            value = [word for inner in token.inner for word in self._words(inner)]
            value = [*before, *value]
        else:
            text = self._joined(token.text[assign.end():], token.line)
            value = [*before[:-1], (before[-1] if before else "") + text] if more else [text]
        if sum(map(len, value)) + len(value) > LONGEST_VALUE:
            raise InputError(f"{self.where}: line {token.line}: {name}: longer than "
                             f"{LONGEST_VALUE} characters")
        return value

    def _condition(self, tokens: list[_Token]) -> bool | None:
        """Whether a condition holds; None: not known."""
        result: bool | None = None
        join = ""
        run: list[_Token] = []
        for token in [*tokens, _Token("operator", ";", 0)]:
            if token.kind != "operator":
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

    def _test(self, tokens: list[_Token]) -> bool | None:
        texts = [token.text for token in tokens]
        if texts[0] not in ("[", "[["):
            return None
        inside: list[str] = []
        for token in tokens[1:-1]:
            inside.append(token.text if token.text in ("!", "-a", "-o", "&&", "||")
                          else self._joined(token.text, token.line))
        turned = bool(inside) and inside[0] == "!"
        inside = inside[turned:]
        value = self._compared(inside)
        return None if value is None else value != turned

    def _compared(self, words: list[str]) -> bool | None:
        if any(not one.unset for word in words for one in self.unknowns(word)):
            return None
        words = [MARK.sub("", word) for word in words]  # what is not set is empty
        if len(words) == 1:
            return bool(words[0])
        if len(words) == 2 and words[0] in ("-z", "-n", "-v"):
            return bool(words[1]) != (words[0] == "-z") if words[0] != "-v" else (
                words[1] in self.values)
        if len(words) == 3:
            left, mark, right = words
            if mark in ("=", "==", "!="):
                if re.search(r"[*?\[]", right):
                    return None
                return (left == right) == (mark != "!=")
            numbers = {"-eq": "==", "-ne": "!=", "-gt": ">", "-ge": ">=", "-lt": "<", "-le": "<="}
            if mark in numbers and all(re.fullmatch(r"-?\d{1,18}", one) for one in (left, right)):
                a, b = int(left), int(right)
                return {"==": a == b, "!=": a != b, ">": a > b, ">=": a >= b, "<": a < b,
                        "<=": a <= b}[numbers[mark]]
        return None

    # ------------------------------------------------------------ words

    def _words(self, token: _Token) -> list[str]:
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
                end = _matching(text, at, self.where, line)
                inner = text[at:end]
                if inner.startswith("$(("):
                    yield quote, [self._arithmetic(inner, line, depth)]
                else:
                    yield True, [self._mark(line, inner)]
                at = end
            elif one == "$" and at + 1 < len(text) and text[at + 1] == "{":
                end = _matching(text, at, self.where, line)
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
        if name in ("@", "*"):
            return []  # arguments of the script, which nobody gives here
        if name in self.values:
            value = self.values[name]
            return list(value) if listed else [value[0] if value else ""]
        if name in "#?!$-" or name in ("PWD", "HOME", "USER", "RANDOM", "HOSTNAME"):
            return [self._mark(line, shown)]
        return [self._mark(line, shown, unset=True)]

    def _parameter(
        self, inner: str, shown: str, line: int, depth: int, quoted: bool
    ) -> list[str]:
        found = _PARAMETER.fullmatch(inner)
        if found is None or found["all"]:
            return [self._mark(line, shown)]
        name, mark, word = found["name"], found["mark"] or "", found["word"] or ""
        value = self._value(name, bool(found["array"]), shown, line, quoted)
        empty = name not in self.values or (":" in mark and value == [""])
        other = "".join(
            " ".join(values) for _, values in self._pieces(word, line, depth + 1))
        if mark[-1:] in ("-", "=") and empty:
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
        if len(inner) > 300:
            return unknown
        try:
            found = self._number(ast.parse(inner.strip().replace("/", "//").replace("////", "//"),
                                           mode="eval").body, 0)
        except (ValueError, SyntaxError, ZeroDivisionError, MemoryError, RecursionError):
            marks = MARK.findall(inner)
            if marks:
                return f"{OPEN}{marks[0]}{CLOSE}"
            names = [name for name in _NAME.findall(inner) if name not in self.values]
            return self._mark(line, f"${names[0]}", unset=True) if names else unknown
        return str(found)

    def _number(self, node: ast.expr, depth: int) -> int:
        if depth > DEEPEST:
            raise ValueError
        if isinstance(node, ast.Constant) and type(node.value) is int:
            found = node.value
        elif isinstance(node, ast.Name):
            text = (self.values.get(node.id) or [""])[0]
            if not re.fullmatch(r"\s*-?\d{1,18}\s*", text):
                raise ValueError
            found = int(text)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            found = self._number(node.operand, depth + 1) * (
                -1 if isinstance(node.op, ast.USub) else 1)
        elif isinstance(node, ast.BinOp):
            a, b = self._number(node.left, depth + 1), self._number(node.right, depth + 1)
            if isinstance(node.op, ast.Add):
                found = a + b
            elif isinstance(node.op, ast.Sub):
                found = a - b
            elif isinstance(node.op, ast.Mult):
                found = a * b
            elif isinstance(node.op, ast.FloorDiv):  # towards zero, as in C
                found = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            elif isinstance(node.op, ast.Mod):
                found = abs(a) % abs(b) * (1 if a >= 0 else -1)
            elif isinstance(node.op, ast.Pow) and 0 <= b <= 62 and abs(a) <= 2**31:
                found = a**b
            else:
                raise ValueError
        else:
            raise ValueError
        if abs(found) >= 2**63:
            raise ValueError
        return found


# ---------------------------------------------------------------- tokens


def _matching(text: str, at: int, where: str, line: int) -> int:
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


def _tokens(text: str, where: str) -> list[_Token]:
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
) -> tuple[list[_Token], int]:
    """Tokens from a position on, to the end or to the parenthesis that closes an array."""
    found: list[_Token] = []
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
                end = _matching("$" + text[end:], 0, where, lines(at)) + end - 1
            elif not re.fullmatch(r"\d?>&\d", text[at:end]):
                found.append(_Token("redirect", text[at:end], lines(at)))
            at = end
        elif operator := next((each for each in _OPERATORS if text.startswith(each, at)), None):
            found.append(_Token("operator", operator, lines(at)))
            at += len(operator)
        elif one in "(){}" and (at + 1 >= len(text) or text[at + 1] in " \t\n;()"
                                or one in "()"):
            found.append(_Token("word" if one in "{}" else "operator", one, lines(at)))
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
) -> tuple[_Token, int]:
    """One word with its quotes and expansions, or the assignment of an array."""
    start, line = at, lines(at)
    parts: list[str] = []
    while at < len(text):
        one = text[at]
        if one in " \t\n;&|<>)" or (one == "(" and at == start):
            break
        if one == "(":
            assign = _ASSIGN.fullmatch(text[start:at])
            if assign is not None:
                inner, at = _listed(text, at + 1, where, lines, ")")
                return _Token("array", assign[0], line, tuple(
                    each for each in inner if each.kind in ("word", "array"))), at
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
            end = _matching(text, at, where, line)
            parts.append(text[at:end])
            at = end
        else:
            parts.append(one)
            at += 1
    return _Token("word", "".join(parts), line), at


def _quoted_end(text: str, at: int, where: str, line: int) -> int:
    n = at + 1
    while n < len(text):
        if text[n] == "\\":
            n += 2
        elif text[n] == '"':
            return n + 1
        elif text[n] == "`" or text.startswith(("$(", "${"), n):
            n = _matching(text, n, where, line)
        else:
            n += 1
    raise InputError(f"{where}: line {line}: a quote \" is not closed")


def _closing(tokens: list[_Token], at: int) -> int:
    """The token that closes a block, or the last one."""
    depth = 0
    for n in range(at, len(tokens)):
        first = n == 0 or tokens[n - 1].kind == "operator" or tokens[n - 1].text in (
            "then", "else", "do", "{")
        if tokens[n].kind != "word" or not first:
            continue
        if tokens[n].text in _OPENS:
            depth += 1
        elif tokens[n].text in _OPENS.values():
            depth -= 1
            if depth == 0:
                return n
    return len(tokens) - 1


def _split(tokens: list[_Token]) -> list[tuple[list[_Token] | None, list[_Token]]]:
    """Conditions of an ``if`` with their statements; None: else."""
    found: list[tuple[list[_Token] | None, list[_Token]]] = []
    run: list[_Token] = []
    condition: list[_Token] | None = None
    depth, started = 0, False
    for n, token in enumerate(tokens):
        first = n == 0 or tokens[n - 1].kind == "operator" or tokens[n - 1].text in (
            "then", "else", "do", "{")
        word = token.text if token.kind == "word" and first else ""
        if depth == 0 and word == "then":
            condition, run, started = run, [], True
            continue
        if depth == 0 and word in ("elif", "else"):
            found.append((condition, run))
            condition, run = None, []
            continue
        depth += (word in _OPENS) - (word in _OPENS.values())
        run.append(token)
    if started:
        found.append((condition, run))
    return found


def _is_function(tokens: list[_Token], at: int) -> bool:
    if tokens[at].text == "function":
        return True
    after = [token.text for token in tokens[at + 1:at + 3]]
    return after == ["(", ")"]


def _body_end(tokens: list[_Token], at: int) -> int:
    depth = 0
    for n in range(at, len(tokens)):
        if tokens[n].text == "{":
            depth += 1
        elif tokens[n].text == "}":
            depth -= 1
            if depth == 0:
                return n
    return len(tokens) - 1


def _line_of(token: _Token) -> str:
    return token.text if token.kind != "array" else f"{token.text}(...)"
