"""Whose a file of settings is: :func:`owner_of`, by the telling keys of `owners.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from nest.frameworks.settings import flat
from nest.inputs.files import read_description


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
    wanted = {key for one in owners() for key in (*one.every, *one.some)}
    parts = max(key.count(".") for key in wanted) + 1
    begun = {".".join(name.split(".", parts)[:count])  # a file may have half a million names
             for name in names for count in range(1, parts + 1)}
    there = {key for key in wanted if key in begun or key.endswith("*") and
             any(name.startswith(key[:-1]) for name in names)}
    return next((one for one in owners() if there.issuperset(one.every)
                 and (not one.some or there.intersection(one.some))), None)
