"""Arguments of the functions of `nest`: of the expected class, or one clear message."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from nest.errors import InputError
from nest.inputs.base import whole_number
from nest.inputs.sources import Catalog
from nest.limits import count_problem
from nest.units import shorten

P = ParamSpec("P")
R = TypeVar("R")


class Kind(NamedTuple):
    """A kind of argument."""

    fits: Callable[[object], bool]
    allowed: str


def _path(value: object) -> bool:
    return isinstance(value, (str, os.PathLike)) and isinstance(os.fspath(value), str)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _whole(value: object) -> bool:
    return not isinstance(value, (bool, str)) and (
        hasattr(value, "__index__") or isinstance(value, float) and value.is_integer())


KINDS: Mapping[str, Kind] = {
    "path": Kind(_path, "a path, as text or pathlib.Path"),
    "text": Kind(_text, "a text"),
    "texts": Kind(lambda value: isinstance(value, Sequence) and not isinstance(value, (str, bytes))
                  and all(map(_text, value)), "a list of texts"),
    "mapping": Kind(lambda value: isinstance(value, Mapping) and all(
        isinstance(one, str) for pair in value.items() for one in pair),
        "a mapping of texts to texts"),
    "whole": Kind(_whole, "a whole number"),
    "number": Kind(lambda value: _number(value) is not None, "a number"),
    "function": Kind(callable, "a function"),
    "sources": Kind(lambda value: isinstance(value, Catalog),
                    "CATALOG or FILES of nest.inputs.sources"),
}


def takes(**kinds: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuse arguments of other kinds before a function begins; its defaults are always allowed.

    Parameters
    ----------
    kinds : of :data:`KINDS`, by the name of the parameter.

    Raises
    ------
    InputError : from the function, with the argument, what was given and what is allowed.
    """
    def made(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                kind = KINDS.get(kinds.get(name, ""))
                if kind is not None and value is not signature.parameters[name].default and (
                        not kind.fits(value)):
                    raise refusal(name, value, kind.allowed)
            return function(*args, **kwargs)

        return checked

    return made


def need_path(name: str, value: object, also: str = "") -> None:
    """Refuse what is no path.

    Parameters
    ----------
    also : what else the argument may be, for the message.

    Raises
    ------
    InputError : it is none.
    """
    if not _path(value):
        raise refusal(name, value, KINDS["path"].allowed + also)


def refusal(name: str, value: object, allowed: str) -> InputError:
    """The error of an argument of a wrong kind."""
    return InputError(f"{name}: got {shorten(value)} ({type(value).__name__}); allowed: {allowed}")


def need(name: str, value: object, classes: tuple[type, ...], source: str) -> None:
    """Refuse an argument of another class.

    Parameters
    ----------
    source : where such a value comes from, for the message.

    Raises
    ------
    InputError : it is not of one of the classes.
    """
    if not isinstance(value, classes):
        allowed = " or ".join(cls.__name__ for cls in classes)
        raise refusal(name, value, f"a {allowed}, as {source} gives it")


def need_word(name: str, value: object, words: Collection[str]) -> Any:
    """Refuse what is none of some words.

    Raises
    ------
    InputError : with the allowed words.
    """
    if not isinstance(value, str) or value not in words:
        raise InputError(f"{name}: got {shorten(value)}; allowed: {', '.join(words)}")
    return value


def need_count(name: str, value: object) -> int:
    """A whole number, also one of NumPy, within the limits of :mod:`nest.limits`.

    Raises
    ------
    InputError : it is something else.
    """
    try:
        number = whole_number(value)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None
    if problem := count_problem(name, number):
        raise InputError(problem)
    return number


def need_seconds(name: str, value: object) -> None:
    """Refuse what is not a number above 0.

    Raises
    ------
    InputError : it is something else.
    """
    number = _number(value)
    if number is None or not number > 0.0:
        raise InputError(f"{name}: got {shorten(value)}; allowed: seconds above 0")


def need_growth(name: str, value: object, most: float) -> None:
    """Refuse what is not a number above 1, at most ``most``.

    Raises
    ------
    InputError : it is something else.
    """
    number = _number(value)
    if number is None or not 1.0 < number <= most:
        raise InputError(f"{name}: got {shorten(value)}; allowed: above 1, at most {most:g}")


def need_bytes(name: str, value: object) -> None:
    """Refuse what is not a number from 0 on.

    Raises
    ------
    InputError : it is something else.
    """
    number = _number(value)
    if number is None or not number >= 0.0:
        raise InputError(f"{name}: got {shorten(value)}; allowed: 0 bytes or more")


def _number(value: object) -> float | None:
    if isinstance(value, (bool, str)):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
