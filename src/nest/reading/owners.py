"""Whose a file of settings is: :func:`owner_of`, by the telling keys of `owners.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from nest.exports.settings import flat
from nest.inputs.files import read_description
from nest.reading.source import among


class FileOwner(NamedTuple):
    """Software that a file belongs to."""

    name: str
    every: tuple[str, ...]
    """Keys that are all there."""
    some: tuple[str, ...]
    """Keys of which one is there; empty: none is needed."""
    target: str
    """Its reader; empty: NEST has none."""
    says: str
    """What would do instead."""


@cache
def owners() -> tuple[FileOwner, ...]:
    """The table, in its order."""
    data = read_description(Path(__file__).with_name("owners.yaml"))
    return tuple(FileOwner(name, tuple(one.get("all", ())), tuple(one.get("any", ())),
                       one.get("target", ""), one.get("says", "")) for name, one in data.items())


def owner_of(data: Mapping[Any, Any]) -> FileOwner | None:
    """The first whose keys are there; None: no file that NEST knows."""
    there_is = {str(key): value for key, value in data.items()}
    names = [name.replace("-", "_") for name in (*there_is, *flat(there_is))]

    def there(key: str) -> bool:
        return any(among(name, (key,)) for name in names)

    return next((one for one in owners() if all(map(there, one.every))
                 and (not one.some or any(map(there, one.some)))), None)
