"""Planners by name: NEST's own and those of other installed packages.

Each is an entry point of the group ``nest.planners`` (`nest.plugins`): its name, and the class that
makes it. NEST's own stand in ``pyproject.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from nest import plugins
from nest.errors import InputError
from nest.evaluation.plans import Plan
from nest.inputs.cluster import Cluster
from nest.inputs.job import Job
from nest.inputs.model import Model
from nest.inputs.profile import Profile
from nest.inputs.space import SearchSpace
from nest.plugins import Registration

GROUP = plugins.PLANNERS
ORDER = ("nest", "manual", "zero", "mcmc", "alpa", "phaze", "piper", "exhaustive")
"""Of reports; the metadata of an installation are sorted by name."""


def registered() -> dict[str, Registration]:
    """All planners by name: NEST's own in their order, then others by name.

    Raises
    ------
    InputError
        NEST's own are not registered: its installation is older than its code.
    """
    found = plugins.registered(GROUP)
    if all(one.package is not None for one in found.values()):
        raise InputError(f"planners: {plugins.PACKAGE} registers none, so its installation is "
                         "older than its code; allowed: one that is installed again")
    return {name: found[name] for name in dict.fromkeys((*ORDER, *found)) if name in found}


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
    UnusablePlugin
        Another package registers it, and it cannot be used.
    """
    return made(named(name, registered()), options)


def made(one: Registration, options: Mapping[str, Any]) -> PlanningMethod:
    """Import the class of a planner and make one.

    Raises
    ------
    UnusablePlugin
        It is of another package and cannot be imported or made, or is no planner.
    """
    def make(method: Any) -> PlanningMethod:
        found: PlanningMethod = method(**options)
        if one.package is not None and found.name != one.name:
            raise ValueError(f"its name is {found.name!r:.60}")
        if not callable(found.plan):
            raise ValueError("plan is no method")
        return found

    found: PlanningMethod = one.use(make)
    return found


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
