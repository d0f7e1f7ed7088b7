"""Arguments of the functions of `nest`: of the expected class, or one clear message."""

from __future__ import annotations

from nest.describe.base import whole_number
from nest.errors import InputError
from nest.limits import count_problem
from nest.units import shorten


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
        raise InputError(f"{name}: got {shorten(value)} ({type(value).__name__}); allowed: a "
                         f"{allowed}, as {source} gives it")


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
