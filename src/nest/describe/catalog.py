"""The catalog: models, clusters, devices and software stacks that come with NEST."""

from __future__ import annotations

import copy
import difflib
from functools import cache
from importlib import resources
from typing import Any, Literal

from nest.describe.files import parse_text
from nest.errors import InputError
from nest.units import shorten

Kind = Literal["models", "clusters", "devices", "stacks"]
KINDS: tuple[Kind, ...] = ("models", "clusters", "devices", "stacks")
_FOLDERS = ("models", "clusters")  # one file an entry; the other kinds are one file of entries


@cache
def names(kind: Kind) -> tuple[str, ...]:
    """Names of one kind in the catalog, sorted."""
    root = resources.files("nest") / "catalog"
    if kind in _FOLDERS:
        files = (entry.name for entry in (root / kind).iterdir())
        return tuple(sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml")))
    return tuple(sorted(_entries(kind)))


@cache
def _entries(kind: Kind) -> dict[str, Any]:
    return dict(_read(f"{kind}.yaml"))


@cache
def _read(path: str) -> Any:
    entry = resources.files("nest") / "catalog"
    for part in path.split("/"):
        entry = entry / part
    return parse_text(entry.read_text(encoding="utf-8"), ".yaml", f"catalog/{path}")


def find(kind: Kind, name: str) -> str | None:
    """The catalog's spelling of a name, whatever its case; None when there is no such entry."""
    wanted = name.strip().casefold()
    return next((known for known in names(kind) if known.casefold() == wanted), None)


def load(kind: Kind, name: str) -> dict[str, Any]:
    """Plain data of one entry, `name` included.

    Raises
    ------
    InputError : no such entry; the message lists close names.
    """
    known = find(kind, name)
    if known is None:
        raise InputError(f"got {shorten(name)}; allowed: {suggestions(kind, name)}")
    data = _read(f"{kind}/{known}.yaml") if kind in _FOLDERS else _entries(kind)[known]
    return {"name": known, **copy.deepcopy(data)}


def suggestions(kind: Kind, name: str) -> str:
    """What to give instead of an unknown name: close names first, or all when they are few."""
    known = names(kind)
    close = difflib.get_close_matches(name.strip().casefold()[:100], known, 3, 0.5)
    if close:
        return f"a name in the catalog; close: {', '.join(close)}; all: `nest list {kind}`"
    return f"a name in the catalog: {', '.join(known)}"
