"""A launch script with other arguments, its text kept otherwise; and where it cannot be, a new one.

Arguments are found in the text of the script by their names and replaced in place. The result is
read again: it stands only if its commands are those of the script, but for these arguments, and if
nothing else of its text differs. A script that says a changed argument in several places is not
edited: which of them counts may depend on what is not in it.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from nest.errors import InputError
from nest.evaluation.plans import Plan
from nest.frameworks.hosts import RankPlaces
from nest.frameworks.launchers import LaunchScript, script_text
from nest.frameworks.megatron import write as megatron
from nest.frameworks.megatron.arguments import Flags, applied
from nest.frameworks.megatron.script import PROGRAM, SHOWING, Launch, followed
from nest.frameworks.settings import KnownArguments, Words, arguments_of
from nest.frameworks.text.shell import MARK, Unknown

ANCHORS = ("micro-batch-size", "batch-size", "num-layers")
"""Arguments beside which new ones are written, where none is replaced."""
_BLANK = r"(?:[ \t]|\\\r?\n)"
_EXPANDED = r"\$\{[^{}\n]*\}|\$\(\([^()\n]*\)\)"
_PLAIN = rf"{_EXPANDED}|\$(?![{{(])|[^\s\"'\\|&;<>()`$]"
"""Part of a word without quotes; each text is matched in one way, so that no match takes long."""
_ANY = rf"\"[^\"\\`]*\"|'[^']*'|{_PLAIN}"
_BARE, _QUOTED = (re.compile(rf"{_BLANK}+((?:{one})+)") for one in (_PLAIN, _ANY))
_ASSIGNED, _ASSIGNED_QUOTED = (re.compile(rf"=((?:{one})*)") for one in (_PLAIN, _ANY))


class _ArgumentPlace(NamedTuple):
    """Where an argument stands in a text."""

    start: int
    end: int
    quoted: bool
    """Inside quotes."""
    name: str
    before: str = "--"
    """What its name begins with."""


class Head(NamedTuple):
    """What a script needs before its command."""

    there: Mapping[str, str]
    """Variables of the environment of its command."""
    wanted: Mapping[str, str]
    """Those that it must have, by name."""
    comment: str = ""
    """A line for its beginning; empty: none."""


def edited(
    script: str, flags: Flags, table: KnownArguments, head: Head, stands: Callable[[str], bool]
) -> str | None:
    """The text of a script with arguments changed; None: the text does not show them.

    Parameters
    ----------
    script : its text.
    flags : what to take out and what to write.
    table : words that arguments take.
    head : what it needs besides.
    stands : whether a new text has the commands of the script, but for what is changed.
    """
    if not (flags.taken or flags.given):
        return _headed(script, head)
    places = [*_places(script, table)]
    there = {place.name for place in places}
    changed = {*flags.taken, *flags.given}
    if any(count > 1 and name in changed for name, count in Counter(
            place.name for place in places).items()):
        return None  # one of them may belong to another way through the script
    named = [name for name in flags.given if name in there]
    last = next((name for name in (*reversed(named), *ANCHORS) if name in there), None)
    if last is None and len(named) < len(flags.given):
        return None
    if any(name not in there for name in flags.taken):
        return None
    for again in (False, True):
        new = _replaced(script, places, flags, last, again)
        text = _headed(new, head)
        if _adds(script, places, flags, new) and stands(text):
            return text
    return None


def _adds(old: str, places: Sequence[_ArgumentPlace], flags: Flags, new: str) -> bool:
    """Whether a new text is the old one without its changed arguments, and besides has only words
    of the new ones."""
    done, kept = 0, []
    for place in places:
        if place.name in {*flags.taken, *flags.given}:
            kept.append(old[done:place.start])
            done = place.end
    rest = deque(_plain_words(" ".join([*kept, old[done:]])))
    added = []
    for word in _plain_words(new):
        if rest and rest[0] == word:
            rest.popleft()
        else:
            added.append(word)
    allowed = {word for name, value in flags.given.items() for one in (
        f"--{name}", f"++{name}", name, *value, f"--{name}={''.join(value)}",
        f"{name}={''.join(value)}", f"++{name}={''.join(value)}") for word in _plain_words(one)}
    return not rest and {*added} <= allowed


def _plain_words(text: str) -> list[str]:
    return re.sub(r"[\\\s\"']+", " ", text).split()


def _places(text: str, table: KnownArguments) -> Iterator[_ArgumentPlace]:
    """Arguments in a text, outside of its comments."""
    quotes = _quotes(text)
    for match in re.finditer(r"(?<![\w$./=+-])(--|\+{0,2})([A-Za-z][\w.-]*)", text):
        quote = quotes[match.start()]
        before, name = match.groups()
        arity = table.takes.get(name, "one")
        if quote == "#" or (before == "--") == (arity == "plain"):
            continue
        end = match.end()
        form, behind = (_BARE, _ASSIGNED) if quote else (_QUOTED, _ASSIGNED_QUOTED)
        if assigned := behind.match(text, end):
            end = assigned.end()
        elif arity == "plain":
            continue
        elif arity != "flag":
            while (value := form.match(text, end)) and not value[1].startswith(("--", "#")):
                end = value.end()
                if arity == "one":
                    break
        yield _ArgumentPlace(match.start(), end, bool(quote), name, before)


def _quotes(text: str) -> list[str]:
    """For each character the quote that it is in, # in a comment, else nothing."""
    found = [""] * len(text)
    at, quote = 0, ""
    while at < len(text):
        one = text[at]
        found[at] = quote
        if quote == "#":
            quote = "" if one == "\n" else quote
        elif one == "\\" and quote != "'":
            found[at:at + 2] = [quote] * len(found[at:at + 2])
            at += 1
        elif not quote and one in "\"'":
            quote = one
        elif quote == one:
            quote = ""
        elif not quote and one == "#" and (at == 0 or text[at - 1] in " \t\n;"):
            found[at] = quote = "#"
        at += 1
    return found


def _replaced(
    text: str, places: Sequence[_ArgumentPlace], flags: Flags, last: str | None, again: bool
) -> str:
    """A text with arguments replaced in place, and new ones behind those named ``last``."""
    there = {place.name for place in places}
    new = [name for name in flags.given if name not in there]
    done = 0
    found: list[str] = []
    for place in places:
        names = [place.name] if place.name in flags.given else []
        kept = place.name not in flags.taken and not names
        names += new if place.name == last else []
        if kept and not names:
            continue
        old = text[place.start:place.end]
        words = " ".join(([old] if kept else []) + [
            _text(name, flags.given[name], place, again) for name in names])
        start, end = place.start, place.end
        if not words:
            start, end = _wide(text, place)
        found += [text[done:start], words]
        done = max(end, done)
    return "".join([*found, text[done:]])


def _text(name: str, value: Words, place: _ArgumentPlace, again: bool) -> str:
    """An argument as words of shell.

    Words in quotes need none of their own; ``again``: another shell reads them once more.
    """
    words = [_word(word, (not place.quoted) + again) for word in value]
    return " ".join([f"--{name}", *words]) if place.before == "--" else (
        f"{place.before}{name}={''.join(words)}")


def _word(word: str, shells: int) -> str:
    """A word that so many shells read, one inside the other."""
    found = shlex.quote(word) if shells else word
    if shells < 2 or found == word:
        return found
    return shlex.quote(found) if re.search(r'[$"\\`!]', found) else f'"{found}"'


def _wide(text: str, place: _ArgumentPlace) -> tuple[int, int]:
    """What goes with an argument that is taken out: quotes around it alone, spaces, its line."""
    start, end = place.start, place.end
    if place.quoted and text[start - 1:start] == text[end:end + 1] and text[end] in "\"'" and (
            text[start - 2:start - 1] in " \t\n("):
        start, end = start - 1, end + 1
    own = start
    while text[start - 1:start] in (" ", "\t"):
        start -= 1
    line = re.compile(r"[ \t]*\\?\r?\n").match(text, end)
    first = start == 0 or text[start - 1] == "\n"
    if line is None and first:
        return own, end + len(text[end:]) - len(text[end:].lstrip(" \t"))
    if line is None or not first:
        return start, end
    # The last line of a command ends what the line before it continues.
    continued = text[:start].rstrip("\r\n").endswith("\\") and "\\" not in line[0]
    return start, line.end() - continued


def _headed(text: str, head: Head) -> str:
    """A text with a comment, that gives variables of the environment their values."""
    new = []
    for name, value in head.wanted.items():
        if head.there.get(name) == value:
            continue
        assigned = re.compile(rf"(?m)^([^#\n]*\b{name}=)(?:{_EXPANDED}|[\w.-]*)")
        if assigned.search(text):
            text = assigned.sub(rf"\g<1>{value}", text)
        else:
            new.append(f"export {name}={value}\n")
    heads = [*re.finditer(r"(?m)^#(?:!|SBATCH|PBS|BSUB|\$ )[^\n]*\n", text)]
    at = heads[-1].end() if heads else 0  # a scheduler reads nothing behind the first command
    more = ([f"# {head.comment}\n"] if head.comment else []) + new
    return text[:at] + "".join(more) + text[at:]


def stands(text: str, launch: Launch, flags: Flags, table: KnownArguments) -> bool:
    """Whether a new text has the commands of a script, but for the arguments that are changed."""
    try:
        found = followed(launch.source._replace(text=text), launch.where, launch.given)
    except InputError:
        return False
    old, new = ([one.script.plain(" ".join(each.words)) for each in one.script.commands
                 if each.words[0] not in SHOWING and each.line != one.command.line]
                for one in (launch, found))
    if old != new:
        return False
    before, after = (arguments_of(each.words, table) for each in (launch, found))
    return applied(before[0], flags) == after[0] and before[1] == after[1]


NAME = "launch.sh"
SEVERAL = ("data-path", "train-data-path", "valid-data-path", "test-data-path")
"""Arguments of which one variable may hold several words."""
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*|\d{1,3})(?::?-)?\}?", re.ASCII)


def remade(
    launch: Launch, plan: Plan, arguments: Mapping[str, Words], marked: Mapping[str, Words],
    found: RankPlaces, title: Sequence[str],
) -> str:
    """The text of a script that launches a plan.

    Parameters
    ----------
    launch : the old script.
    plan : what is launched.
    arguments : of the new command line, by name.
    marked : of the old one, with marks where the script does not say a value.
    found : places of the ranks.
    title : lines of its comment.
    """
    asked: dict[str, str] = {}
    for one in launch.script.unknowns(" ".join(launch.marked)):
        if variable := _VARIABLE.fullmatch(one.text):
            name = variable[1]
            asked[f"ARG{name}" if name.isdigit() else name] = (
                f"argument {name} of {launch.where}" if name.isdigit()
                else f"as in the environment of {launch.where}")
    lines = ["", "ARGUMENTS=("]
    for name, words in arguments.items():
        old = marked.get(name, ())
        same = tuple(launch.script.plain(word) for word in old) == words
        texts = [_shell(word, launch.script.unknown, name in SEVERAL) for word in old] \
            if same else [shlex.quote(word) for word in words]
        lines.append("  " + " ".join([f"--{name}", *texts]))
    variables = {
        name: value for name, value in launch.script.exported.items()
        if not MARK.search(value) and name not in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")}
    program = next(word for word in launch.command.words if PROGRAM.search(word))
    script = LaunchScript(
        title=title, variables={**variables, **megatron.variables(
            plan.configuration, plan.inputs.job, plan.inputs.cluster.device.name)},
        asked=asked, given=[], sections={}, more=("ARGUMENTS",), later=[*lines, ")"],
        program=_shell(program, launch.script.unknown))
    return script_text(script, found, "torchrun")


def _shell(word: str, unknown: Sequence[Unknown], several: bool = False) -> str:
    """A word of shell, with what the old script does not say as it stands there.

    ``several``: where it is a variable, words of it are arguments of their own.
    """
    found = [*_parts(word, unknown)]
    if several and len(found) == 1 and found[0].startswith('"$'):
        return found[0].strip('"')
    return "".join(found) or "''"


def _parts(word: str, unknown: Sequence[Unknown]) -> Iterator[str]:
    done = 0
    for mark in MARK.finditer(word):
        if word[done:mark.start()]:
            yield shlex.quote(word[done:mark.start()])
        text = unknown[int(mark[1])].text
        argument = _VARIABLE.fullmatch(text)
        if argument and argument[1].isdigit():
            text = f"${{ARG{argument[1]}}}"
        yield f'"{text}"'
        done = mark.end()
    if word[done:]:
        yield shlex.quote(word[done:])
