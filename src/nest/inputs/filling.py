"""Which devices of each group are used where their number is no multiple of whole groups.

Sizes are those of the levels, innermost first; a *filling* is the number of devices used in each
group of one level, the last of which may have fewer. Groups further in and further out are whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nest.errors import InputError

UNIT = 8
"""Fillings to try besides even ones and whole groups are multiples of so many groups of the level
below: others rule out most blocks (chosen)."""


def used_sizes(sizes: Sequence[int], devices: int, filling: int | None = None) -> list[int]:
    """Sizes of the levels that so many devices take: outer levels that hold one group go.

    Parameters
    ----------
    sizes : of whole groups; the last is not used: the outermost level holds as many as needed.
    filling : None: as even as whole groups of the level below allow, if that is exactly even;
        else all groups but the last are whole.

    Raises
    ------
    InputError : the filling is not that of a level.
    """
    if filling is None:
        filling = _even(sizes, devices)
    inner, found, used = 1, [], filling is None
    for size in sizes[:-1]:
        if devices <= inner * size and (used or devices <= (filling or 0)):
            break
        if not used and filling is not None and filling <= inner * size:
            if filling < 1 or filling % inner:
                break
            size, used = filling // inner, True
        found.append(size)
        inner *= size
    if not used and filling is not None:
        raise InputError(f"filling: got {filling}; allowed: {_allowed(sizes, devices)}")
    return [*found, -(-devices // inner)]


def fillings(sizes: Sequence[int], devices: int) -> list[int]:
    """Fillings to try, ascending: whole groups, and about even ones with up to one group more.

    Parameters
    ----------
    sizes : of whole groups.
    """
    inner, whole = _uneven(sizes, devices)
    if whole == 0:
        return []
    fewest = -(-devices // whole)
    found = {whole, _even(sizes, devices) or whole}
    for groups in (fewest, fewest + 1):
        found.add(UNIT * inner * math.ceil(devices / groups / (UNIT * inner)))
    return sorted(filling for filling in found if filling <= whole)


def _uneven(sizes: Sequence[int], devices: int) -> tuple[int, int]:
    """Devices of a group of the level below, and of the innermost level that is not whole; or 0."""
    inner = 1
    for size in sizes[:-1]:
        if devices <= inner * size:
            break
        if devices % (inner * size):
            return inner, inner * size
        inner *= size
    return inner, 0


def _even(sizes: Sequence[int], devices: int) -> int | None:
    """Devices of each group if the fewest groups are filled evenly; None: they cannot be."""
    inner, whole = _uneven(sizes, devices)
    if whole == 0:
        return None
    share, left = divmod(devices, -(-devices // whole))
    return None if left or share % inner else share


def _allowed(sizes: Sequence[int], devices: int) -> str:
    inner, parts = 1, []
    for size in sizes[:-1]:
        if size > 1:
            parts.append(f"1 to {size}" if inner == 1 else f"{inner} x (1 to {size})")
        inner *= size
        if devices <= inner:
            break
    return f"{', '.join(parts) or 'none'}, below the {devices} devices"
