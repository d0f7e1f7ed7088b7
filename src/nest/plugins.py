"""What other installed packages add to NEST: one table of groups of entry points.

A package names a group of :data:`GROUPS`, a name of its own and ``MODULE:OBJECT``. Nothing of it is
imported before it is asked for, or, where no name is asked for (logs), before NEST's own readers
have found nothing. What is wrong with one entry point is said in one line and concerns no other; a
name that NEST or another package has is never taken over.
"""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path
from typing import Any, NamedTuple

from nest.errors import InputError, NestError

PACKAGE = "nest-planner"
SOURCE = Path(__file__).parents[2] / "pyproject.toml"
"""Of a source tree, whose metadata may be older than it; an installation has none there."""
PLANNERS, CATALOG, NETWORKS, LOGS, EXPORTS = GROUP_NAMES = (
    "nest.planners", "nest.catalog", "nest.networks", "nest.logs", "nest.exports")
NAME = re.compile(r"(?!all$)[a-z0-9][a-z0-9._-]{0,39}")
"""Of what packages add."""


class PluginGroup(NamedTuple):
    """A kind of thing that packages add."""

    noun: str
    needed: str
    """What the entry point names, for messages."""


GROUPS: Mapping[str, PluginGroup] = {
    PLANNERS: PluginGroup("planner", "a class with this name and a method plan"),
    CATALOG: PluginGroup("catalog", "a package with devices.yaml, stacks.yaml, models/ or "
                                    "clusters/"),
    NETWORKS: PluginGroup("network", "a function of the fields behind NAME: that returns a mapping "
                                     "with nodes and links"),
    LOGS: PluginGroup("reader of logs", "a function of a path that returns a mapping, or None for "
                                        "files of others"),
    EXPORTS: PluginGroup("export", "a function of a plan that returns texts or bytes by file name"),
}


class UnusablePlugin(InputError):
    """What another package adds, and what cannot be used."""


class Registration(NamedTuple):
    """One entry point as its package registers it."""

    name: str
    target: str
    """``MODULE:OBJECT``."""
    package: str | None
    """Name and version of another package; None: NEST itself."""
    group: str
    problem: str | None = None
    """Why it cannot be asked."""

    def use(
        self, action: Callable[[Any], Any], refused: tuple[type[NestError], ...] = ()
    ) -> Any:
        """Import the object and hand it to a function.

        Parameters
        ----------
        action : what is done with the object; it raises ``ValueError`` where the object is wrong.
        refused : errors of the object that are its answer to the user, and no fault of its own.

        Raises
        ------
        UnusablePlugin
            It is of another package, and cannot be imported, or the action fails.
        """
        point = EntryPoint(self.name, self.target, self.group)
        if self.package is None:
            return action(point.load())
        if self.problem is not None:
            raise self.unusable(self.problem)
        try:
            return action(point.load())
        except refused:
            raise
        except (Exception, SystemExit) as error:
            plain = type(error) is ValueError or isinstance(error, NestError)
            said = str(error) if plain else f"{type(error).__name__}: {error}"
            raise self.unusable(said) from error

    def unusable(self, problem: str) -> UnusablePlugin:
        """The message, one line, that this entry point has a problem."""
        kind, said = GROUPS[self.group], " ".join(problem.split())[:300]
        return UnusablePlugin(
            f"{kind.noun}: {self.name[:60]} of {self.package} ({self.target[:100]}) cannot be "
            f"used: {said}; allowed: an entry point of {self.group} for {kind.needed} "
            "(docs/extending.md)")


def registered(group: str, own: Collection[str] = ()) -> dict[str, Registration]:
    """All entry points of a group by name: NEST's own in their order, then others by name.

    A name that is taken keeps its meaning if NEST has it; if two other packages have it, neither
    can be asked.

    Parameters
    ----------
    group : of :data:`GROUPS`.
    own : names of NEST that are no entry points.
    """
    found: dict[str, Registration] = {}
    others: list[Registration] = []
    for one in entries(group):
        if one.package is None:
            found[one.name] = one
        else:
            others.append(one)
    noun = GROUPS[group].noun
    noun = f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
    for one in sorted(others):
        before = found.get(one.name)
        if before is None and one.name not in own:
            if not NAME.fullmatch(one.name):
                one = one._replace(problem=one.problem or (
                    f"got the name {one.name!r:.60}; needed: up to 40 of a-z, 0-9, '.', '_' and "
                    "'-', and not all"))
            found[one.name] = one
        else:
            holder = (before and before.package) or "NEST"
            if before is not None and before.package is not None:
                found[one.name] = before._replace(problem=f"{one.package} has this name, too")
            name = f"{one.name} ({one.package})"
            found[name] = one._replace(name=name, problem=f"{holder} has {noun} of this name, too")
    return found


def usable(group: str, own: Collection[str] = ()) -> dict[str, Registration]:
    """Those of a group that are registered without a fault; each is imported on request."""
    return {name: one for name, one in registered(group, own).items() if one.problem is None}


@cache
def tell(text: str) -> None:
    """Warn of an entry point that is left out, once."""
    warnings.warn(text, stacklevel=2)


def entries(group: str) -> Iterator[Registration]:
    """Entries of the source tree and of all installed packages, each package once."""
    seen = set()
    if SOURCE.is_file():
        project = tomllib.loads(SOURCE.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == PACKAGE:
            seen.add(PACKAGE)
            for name, target in project["entry-points"].get(group, {}).items():
                yield Registration(name, target, None, group)
    for one in distributions():
        text = one.read_text("entry_points.txt")
        if text and group in text:
            package = re.sub(r"[-_.]+", "-", one.metadata["Name"] or "a package").lower()
            if package not in seen:
                seen.add(package)
                yield from _of(one, package, group)


def _of(one: Distribution, package: str, group: str) -> Iterator[Registration]:
    said = None if package == PACKAGE else f"{package} {one.metadata['Version']}"
    try:
        for point in one.entry_points.select(group=group):
            yield Registration(point.name, point.value, said, group)
    except Exception as error:  # importlib reads the file line by line and names no error
        yield Registration(package, "entry_points.txt", said, group,
                           f"the file cannot be read ({type(error).__name__}: {error})")
