"""Planners by name: NEST's own and those of other installed packages.

Each is an entry point of the group ``nest.planners``: its name, and the class that makes it. NEST's
own stand in ``pyproject.toml``. A source tree is read there, as the metadata of an installation may
be older than the tree. What another package registers wrongly is unusable, and nothing else.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from nest.errors import InputError
from nest.evaluation.plans import Plan
from nest.inputs.cluster import Cluster
from nest.inputs.job import Job
from nest.inputs.model import Model
from nest.inputs.profile import Profile
from nest.inputs.space import SearchSpace

GROUP = "nest.planners"
PACKAGE = "nest-planner"
SOURCE = Path(__file__).parents[3] / "pyproject.toml"
"""Of a source tree; an installation has none there."""
ORDER = ("nest", "manual", "zero", "mcmc", "alpa", "phaze", "piper", "exhaustive")
"""Of reports; the metadata of an installation are sorted by name."""
_NAME = re.compile(r"(?!all$)[a-z0-9][a-z0-9._-]{0,39}")


class UnusablePlanner(InputError):
    """A planner that another package registers, and that cannot be used."""


class Registration(NamedTuple):
    """A planner as its package registers it."""

    name: str
    target: str
    """``MODULE:CLASS``."""
    package: str | None
    """Name and version of another package; None: NEST itself."""
    problem: str | None = None
    """Why it cannot be asked."""

    def make(self, options: Mapping[str, Any]) -> PlanningMethod:
        """Import its class and make a planner.

        Parameters
        ----------
        options : arguments of the class.

        Raises
        ------
        UnusablePlanner
            It is of another package and cannot be imported or made, or is no planner.
        """
        point = EntryPoint(self.name, self.target, GROUP)
        if self.package is None:
            made: PlanningMethod = point.load()(**options)
            return made
        if self.problem is not None:
            raise self._unusable(self.problem)
        try:
            other: Any = point.load()(**options)
            name, plans = other.name, callable(other.plan)
        except (Exception, SystemExit) as error:
            raise self._unusable(f"{type(error).__name__}: {error}") from error
        if name != self.name or not plans:
            raise self._unusable(f"its name is {name!r:.60}" if plans else "plan is no method")
        found: PlanningMethod = other
        return found

    def _unusable(self, problem: str) -> UnusablePlanner:
        said = " ".join(problem.split())[:300]
        return UnusablePlanner(
            f"planner: {self.name[:60]} of {self.package} ({self.target[:100]}) cannot be used: "
            f"{said}; allowed: an entry point of {GROUP} for a class with this name and a method "
            "plan (docs/planners.md)")


def registered() -> dict[str, Registration]:
    """All planners by name: NEST's own in their order, then others by name.

    Raises
    ------
    InputError
        NEST's own are not registered: its installation is older than its code.
    """
    found: dict[str, Registration] = {}
    others: list[Registration] = []
    for one in _entries():
        if one.package is None:
            found[one.name] = one
        else:
            others.append(one)
    found = {name: found[name] for name in dict.fromkeys((*ORDER, *found)) if name in found}
    if not found:
        raise InputError(f"planners: {PACKAGE} registers none, so its installation is older than "
                         "its code; allowed: one that is installed again")
    for one in sorted(others):
        before = found.get(one.name)
        if before is None:
            if not _NAME.fullmatch(one.name):
                one = one._replace(problem=one.problem or (
                    f"got the name {one.name!r:.60}; needed: up to 40 of a-z, 0-9, '.', '_' and "
                    "'-', and not all"))
            found[one.name] = one
        else:  # which of the two is meant, nobody can know; NEST's own stay
            also = f"{before.package or 'NEST'} has a planner of this name, too"
            if before.package is not None:
                found[one.name] = before._replace(problem=f"{one.package} has this name, too")
            name = f"{one.name} ({one.package})"
            found[name] = one._replace(name=name, problem=also)
    return found


def usable() -> list[str]:
    """Names of all planners that are registered without a fault; each is imported on request."""
    return [name for name, one in registered().items() if one.problem is None]


def planner(name: str, **options: Any) -> PlanningMethod:
    """Make a planner.

    Parameters
    ----------
    name : of :func:`registered`.
    options : of its class, such as ``seed`` and ``proposals`` of ``mcmc``.

    Raises
    ------
    InputError
        There is no planner of this name.
    UnusablePlanner
        Another package registers it, and it cannot be used.
    """
    return named(name, registered()).make(options)


def named(name: str, known: Mapping[str, Registration]) -> Registration:
    """The planner of a name among those of :func:`registered`.

    Raises
    ------
    InputError
        There is none.
    """
    if name not in known:
        names = (one.name for one in known.values() if one.problem is None)
        raise InputError(f"planner: got {name[:60]!r}; allowed: {', '.join(names)}")
    return known[name]


def _entries() -> Iterator[Registration]:
    """Entries of the source tree and of all installed packages, each package once."""
    seen = set()
    if SOURCE.is_file():
        project = tomllib.loads(SOURCE.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == PACKAGE:
            seen.add(PACKAGE)
            for name, target in project["entry-points"][GROUP].items():
                yield Registration(name, target, None)
    for one in distributions():
        text = one.read_text("entry_points.txt")
        if text and GROUP in text:
            package = re.sub(r"[-_.]+", "-", one.metadata["Name"] or "a package").lower()
            if package not in seen:
                seen.add(package)
                yield from _of(one, package)


def _of(one: Distribution, package: str) -> Iterator[Registration]:
    said = None if package == PACKAGE else f"{package} {one.metadata['Version']}"
    try:
        for point in one.entry_points.select(group=GROUP):
            yield Registration(point.name, point.value, said)
    except Exception as error:  # importlib reads the file line by line and names no error
        yield Registration(package, "entry_points.txt", said,
                           f"the file cannot be read ({type(error).__name__}: {error})")


class PlanningMethod(Protocol):
    """A method to choose a configuration; :func:`nest.evaluate` prices it."""

    @property
    def name(self) -> str:
        """As its package registers it; see :mod:`nest.planners.registry`."""

    def plan(
        self, model: Model | Profile, cluster: Cluster, job: Job, space: SearchSpace
    ) -> Plan:
        """Choose a configuration by the planner's own method, and price it.

        Parameters
        ----------
        model, cluster, job : what is trained, where, how.
        space : what may be chosen; the plan is within it.

        Returns
        -------
        Plan
            Of :func:`nest.evaluate`. Not ``feasible`` if the method neglects or underestimates
            memory.

        Raises
        ------
        NoPlanError
            The method finds nothing by its own rules; one sentence says why.
        InputError
            Model, cluster and job are incompatible.
        """
        ...
