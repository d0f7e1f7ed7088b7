"""The catalog: models, clusters, devices and software stacks that come with NEST.

Entries of other packages (`nest.plugins`, group ``nest.catalog``) are looked for behind NEST's own,
whose names they cannot take.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Literal, NamedTuple

from nest import plugins
from nest.errors import InputError
from nest.inputs.files import csv_rows, parse_text
from nest.units import shorten

Section = Literal["models", "clusters", "devices", "stacks"]
SECTIONS: tuple[Section, ...] = ("models", "clusters", "devices", "stacks")
_FOLDERS = ("models", "clusters")  # one file an entry; the other sections are one file of entries


CHECKS: dict[Section, Callable[[dict[str, Any]], object]] = {}
"""What reads an entry and raises ``InputError`` where it is wrong; filled by `loading.py`."""


class AddedEntry(NamedTuple):
    """An entry of another package."""

    data: dict[str, Any]
    owner: plugins.Registration


_ADDED: dict[Section, dict[str, AddedEntry]] = {}


def names(section: Section) -> tuple[str, ...]:
    """Names of one section of the catalog, sorted."""
    return tuple(sorted((*own_names(section), *_added(section))))


@cache
def own_names(section: Section) -> tuple[str, ...]:
    """Those that come with NEST, sorted."""
    return tuple(sorted(_files_of(resources.files("nest") / "catalog", section)
                        if section in _FOLDERS else _entries(section)))


def _files_of(root: Traversable, section: Section) -> list[str]:
    folder = root / section
    files = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return [name.removesuffix(".yaml") for name in files if name.endswith(".yaml")]


def _added(section: Section) -> dict[str, AddedEntry]:
    """Entries of other packages by name; what is wrong is left out and told, once."""
    if section not in _ADDED:
        # Filled before it is checked: entries may be based on one another.
        _ADDED[section] = found = dict(_unchecked(section))
        for name, one in [*found.items()]:
            try:
                CHECKS[section]({"name": name, **copy.deepcopy(one.data)})
            except (InputError, RecursionError) as error:
                del found[name]
                said = error if isinstance(error, InputError) else "base: it is based on itself"
                plugins.tell(str(one.owner.unusable(f"{section}: {name}: {said}")))
    return _ADDED[section]


def refresh() -> None:
    """Look again for entries of other packages, and tell again what is wrong with them."""
    _ADDED.clear()
    plugins.tell.cache_clear()


def _unchecked(section: Section) -> Iterator[tuple[str, AddedEntry]]:
    seen: dict[str, str] = dict.fromkeys(own_names(section), "NEST")
    for owner in plugins.registered(plugins.CATALOG).values():
        try:
            entries = owner.use(lambda module: _entries_of(resources.files(module), section))
        except plugins.UnusablePlugin as error:
            plugins.tell(str(error))
            continue
        for name, data in entries.items():
            problem = (f"{seen[name]} has this name, too" if name in seen else
                       "got this name; needed: up to 40 of a-z, 0-9, '.', '_' and '-'"
                       if not plugins.NAME.fullmatch(str(name)) else
                       f"got {shorten(data)}; needed: fields" if not isinstance(data, dict) else "")
            if problem:
                plugins.tell(str(owner.unusable(f"{section}: {name}: {problem}")))
                continue
            seen[name] = str(owner.package)
            yield name, AddedEntry(data, owner)


def _entries_of(root: Traversable, section: Section) -> dict[str, Any]:
    """Entries of a folder that is laid out as NEST's own."""
    def parsed(path: Traversable) -> dict[str, Any]:
        return dict(parse_text(path.read_text(encoding="utf-8"), ".yaml", path.name))

    if section in _FOLDERS:
        return {name: parsed(root / section / f"{name}.yaml") for name in _files_of(root, section)}
    file = root / f"{section}.yaml"
    return parsed(file) if file.is_file() else {}


@cache
def _entries(section: Section) -> dict[str, Any]:
    return dict(_read(f"{section}.yaml"))


@cache
def _read(path: str) -> Any:
    entry = resources.files("nest") / "catalog"
    for part in path.split("/"):
        entry = entry / part
    return parse_text(entry.read_text(encoding="utf-8"), ".yaml", f"catalog/{path}")


def link_kinds() -> dict[str, dict[str, Any]]:
    """Figures by kind of link, with their sources: latency, efficiency, perhaps bandwidth; the
    reader must not change them."""
    return dict(_read("links.yaml"))


def formats() -> dict[str, dict[str, Any]]:
    """Figures of number formats by name, with their sources, which the reader must not change."""
    return dict(_read("formats.yaml"))


@cache
def evidence() -> tuple[dict[str, str], ...]:
    """Rows of the table of priced and measured configurations, which the reader must not change."""
    entry = resources.files("nest") / "catalog" / "evidence.csv"
    (_, head), *rows = csv_rows(entry.read_text(encoding="utf-8"), "catalog/evidence.csv")
    return tuple(dict(zip(head, cells, strict=True)) for _, cells in rows)


@cache
def measured_stacks() -> frozenset[str]:
    """Names that the table of evidence has, as the ``runs`` of a stack."""
    return frozenset(row["stack"] for row in evidence())


def list_models() -> tuple[str, ...]:
    """Names of the models of the catalog, sorted."""
    return names("models")


def list_clusters() -> tuple[str, ...]:
    """Names of the clusters of the catalog, sorted."""
    return names("clusters")


def list_devices() -> tuple[str, ...]:
    """Names of the devices of the catalog, sorted."""
    return names("devices")


def list_stacks() -> tuple[str, ...]:
    """Names of the software stacks of the catalog, sorted."""
    return names("stacks")


def find(section: Section, name: str) -> str | None:
    """The catalog's spelling of a name, whatever its case; None when there is no such entry."""
    wanted = name.strip().casefold()
    return next((known for known in own_names(section) if known.casefold() == wanted),
                wanted if wanted in _added(section) else None)


def owner_of(section: Section, name: str) -> str:
    """Name and version of the package that an entry comes from; empty: NEST."""
    return "" if name in own_names(section) else str(_added(section)[name].owner.package)


def load(section: Section, name: str) -> dict[str, Any]:
    """Plain data of one entry, `name` included.

    Raises
    ------
    InputError : no such entry; the message lists close names.
    """
    if not isinstance(name, str):
        raise InputError(f"got {shorten(name)}; allowed: a name from `nest list {section}`")
    known = find(section, name)
    if known is None:
        raise InputError(f"got {shorten(name)}; allowed: {suggestions(section, name)}")
    if known not in own_names(section):
        data = _added(section)[known].data
    else:
        data = _read(f"{section}/{known}.yaml") if section in _FOLDERS else _entries(section)[known]
    return {"name": known, **copy.deepcopy(data)}


def table_name(name: str, others: str = "") -> str:
    """The catalog's spelling of the name of a table of capabilities.

    Parameters
    ----------
    name : in any case.
    others : what else is allowed, for the message.

    Raises
    ------
    InputError : no such table.
    """
    known: list[str] = sorted(_read("capabilities.yaml"))
    wanted = name.strip().casefold() if isinstance(name, str) else None
    found = next((one for one in known if one == wanted), None)
    if found is None:
        raise InputError(f"got {shorten(name)}; allowed: {', '.join(known)}{others}")
    return found


def load_table(name: str) -> dict[str, Any]:
    """Plain data of a table of capabilities, which the reader must not change.

    Raises
    ------
    InputError : no such table.
    """
    return dict(_read("capabilities.yaml")[table_name(name)])


def like_published(name: str) -> str | None:
    """The model of the catalog whose sizes are those of a name on Hugging Face (`org/name`).

    Sources in the catalog give that name; tuned variants, such as -Instruct, have the same sizes.
    """
    wanted = _published(name)
    for known in own_names("models"):
        source = str(_read(f"models/{known}.yaml")["source"])
        if wanted in map(_published, re.findall(r"config\.json of ([\w.-]+/[\w.-]+)", source)):
            return known
    return None


def _published(name: str) -> str:
    """A name on Hugging Face without its organisation and its variant."""
    short = name.casefold().rsplit("/", 1)[-1].removeprefix("meta-")
    return re.sub(r"(-(hf|chat|instruct|base|it|pt))+$", "", short)


def suggestions(section: Section, name: str) -> str:
    """Suggestions for an unknown name: close names, or all names if there are few."""
    known = names(section)
    close = difflib.get_close_matches(name.strip().casefold()[:100], known, 3, 0.5)
    if close:
        return f"a name in the catalog; close: {', '.join(close)}; all: `nest list {section}`"
    return f"a name in the catalog: {', '.join(known)}"
