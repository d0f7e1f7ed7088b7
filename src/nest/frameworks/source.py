"""A configuration file with what a launch script and the user say besides, and what was read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from nest.errors import InputError, did_you_mean
from nest.frameworks.hosts import Placed
from nest.frameworks.settings import Plain, Setting, figures_of, number_or_text, software_settings
from nest.frameworks.text.python_text import PythonCall, UnknownValue
from nest.inputs import load_model
from nest.inputs.files import parse_text
from nest.inputs.model import Model
from nest.units import shorten

T = TypeVar("T")
LEFT_OUT = "; the price leaves out what they do"
"""What a note on settings says that the user leaves out."""
LARGEST = 10**9
"""Of a count in a file."""
MOST_PROBLEMS = 8
"""Settings named in one message, each with the nearest name; others are counted."""


class Stated(NamedTuple):
    """What the user says, because files do not."""

    model: Model | str | None = None
    vocab: int | None = None
    seq_len: int | None = None
    precision: str | None = None
    optimizer: str | None = None
    stack: str | None = None
    devices: int | None = None
    ignored: tuple[str, ...] = ()
    """Settings to leave out."""
    function: str | None = None
    """Of a Python module: it returns the configuration."""
    settings: Mapping[str, str] = {}
    """Settings by name, which come before those of the file."""


class Source(NamedTuple):
    """A file, and what starts it."""

    text: str
    where: str
    """Name of the file, for messages."""
    asked: Stated
    words: tuple[str, ...] = ()
    """Arguments behind the file."""
    places: Placed | None = None
    """Device of each rank, where the launch orders them itself."""
    world: int | None = None
    """Devices that the launch starts."""


class FileDescription(NamedTuple):
    """A file in the terms of NEST."""

    model: Model
    job: dict[str, Any]
    configuration: dict[str, Any]
    devices: int
    notes: tuple[str, ...]
    """What was assumed or has no price."""


def understood(
    found: Mapping[str, Any], tables: Iterable[Setting], target: str, source: Source,
    notes: list[str], more: Sequence[str] = (),
) -> Plain:
    """Settings that matter, by name, with defaults for those that are not there.

    Parameters
    ----------
    found : settings of a file by their names with dots.
    tables : settings that are read.
    more : names of others that are read.

    Raises
    ------
    InputError : settings that may change the cost and are not understood.
    """
    table, where = software_settings(target), source.where
    wanted = {*(one.name for one in tables), *more}
    given: Plain = {}
    seen: dict[str, list[str]] = {"ignored": [], "no effect on the cost": []}
    unpriced: dict[str, list[str]] = {}
    problems = []
    for name, value in found.items():
        if among(name, source.asked.ignored):
            seen["ignored"].append(name)
        elif name in table.only and value in table.only[name]:
            seen["no effect on the cost"].append(name)
        elif name in wanted and isinstance(value, (PythonCall, UnknownValue)):
            problems.append(f"line {value.line}: {name} is {shorten(value.text)}, which is not "
                            "understood, and nothing is executed")
        elif name in wanted:
            given[name] = value
        elif (name not in table.within or value in table.within[name]) and (effect := next(
                (text for names, text in table.small.items() if among(name, names)), "")):
            unpriced.setdefault(effect, []).append(name)
        elif name in table.only or name in table.within:
            shown = value.text if isinstance(value, (PythonCall, UnknownValue)) else value
            allowed = (*table.only.get(name, ()), *table.within.get(name, ()))
            problems.append(f"{name}: got {shorten(shown)}; allowed: "
                            f"{', '.join(map(str, allowed))} (others have no price)")
        elif among(name, table.free):
            seen["no effect on the cost"].append(name)
        else:
            near = did_you_mean(name, wanted) if len(problems) < MOST_PROBLEMS else ""
            problems.append(unread(shorten(name)[1:-1], near))
    if problems:
        rest = len(problems) - MOST_PROBLEMS
        shown = problems[:MOST_PROBLEMS] + [f"and {rest} more"] * (rest > 0)
        raise InputError("\n".join(f"{where}: {one}" for one in shown), tuple(problems))
    notes += [f"{what}: {_listed(names)}{LEFT_OUT if what == 'ignored' else ''}"
              for what, names in seen.items() if names]
    notes += [f"no price: {_listed(names)} ({effect})" for effect, names in unpriced.items()]
    return {**{name: value for name, value in table.defaults.items() if name in wanted}, **given}


def typed(text: str) -> Any:
    """A word as truth, nothing, a number, or text; ``none`` is a word, such as a mode."""
    if text in ("None", "null"):
        return None
    return {"true": True, "false": False}.get(text.lower(), number_or_text(text))


def assigned(source: Source, section: bool = False) -> Plain:
    """Arguments such as ``steps=10``, and settings of the user, which come first.

    ``section``: names have dots, and may begin with plus signs.

    Raises
    ------
    InputError : an argument of another form.
    """
    found: Plain = {}
    for word in source.words:
        name, equals, value = (word.lstrip("+") if section else word).partition("=")
        if not equals or (section and "." not in name):
            raise InputError(f"{source.where}: got argument {shorten(word)}; allowed: NAME=VALUE")
        found[name] = typed(value)
    return found | {name: typed(value) for name, value in source.asked.settings.items()}


def mapping_in(source: Source, suffix: str) -> dict[str, Any]:
    """Plain data of a file.

    Raises
    ------
    InputError : it is no mapping by names.
    """
    data = parse_text(source.text, suffix, source.where)
    if not isinstance(data, dict):
        raise InputError(f"{source.where}: got {shorten(data)}; allowed: a mapping of settings")
    return {str(name): value for name, value in data.items()}


def unread(name: str, near: str = "") -> str:
    """Why a setting is refused that is in no table. Nothing that may change the cost is advised to
    be left out."""
    return (f"{name}: it may change the cost, and NEST does not read it; {near}price what "
            "the job does by nest evaluate")


def among(name: str, names: Iterable[str]) -> bool:
    """Whether a name is one of others, is in a section of theirs, or begins as one with a star."""
    return any(name.startswith(one[:-1]) if one.endswith("*") else
               name == one or name.startswith(f"{one}.") for one in names)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(shorten(name)[1:-1] for name in names[:12]) + more


def figures_in(
    tables: Iterable[Setting], given: Mapping[str, Any], source: Source
) -> dict[str, Any]:
    """Figures that settings say.

    Raises
    ------
    InputError : values that settings do not have.
    """
    tables = [*tables]
    flags = {one.name for one in tables if one.words and {*one.words.values()} == {True}}
    given = {name: value for name, value in given.items()
             if not (value is False and name in flags)}
    for one in tables:
        value = given.get(one.name)
        if one.type == "count" and one.name in given and not (
                type(value) is int and 1 <= value <= LARGEST):
            raise InputError(f"{source.where}: {one.name}: got {shorten(value)}; allowed: a whole "
                             f"number, 1 to {LARGEST}")
        if one.words is None and isinstance(value, float) and abs(value) > LARGEST:
            raise InputError(f"{source.where}: {one.name}: got {value:g}; allowed: at most "
                             f"{LARGEST}")
    try:
        return figures_of(tables, given)
    except ValueError as error:
        raise InputError(f"{source.where}: {error}") from None


def named_model(source: Source, named: str | None, what: str) -> Model:
    """The model that the user names, or a file by a name of the catalog.

    Raises
    ------
    InputError : neither does.
    """
    if source.asked.model is not None:
        return load_model(source.asked.model)
    if named is None:
        raise InputError(f"{source.where}: {what}; name the model by --model MODEL")
    return load_model(named)


def said(
    source: Source, name: str, there: T | None, asked: T | None, option: str
) -> T:
    """A value that a file says, or else the user.

    Raises
    ------
    InputError : neither does, or both do and differ.
    """
    if there is not None and asked is not None and there != asked:
        raise InputError(f"{source.where}: {name} is {shorten(there)}, and {option} says "
                         f"{shorten(asked)}; allowed: the same")
    found = there if there is not None else asked
    if found is None:
        raise InputError(f"{source.where}: it does not say {name}; give it by {option}")
    return found


def divided(source: Source, name: str, total: int, by: int, parts: str) -> int:
    """A whole quotient.

    Raises
    ------
    InputError : it is none.
    """
    if by < 1 or total % by or total < by:
        raise InputError(f"{source.where}: {name}: got {shorten(total)}; allowed: a multiple of "
                         f"{by}, {parts}")
    return total // by
