"""The interface of planners: from model, cluster, job and space to a priced plan."""

from __future__ import annotations

from typing import Protocol

from nest.evaluation.plans import Plan
from nest.inputs.cluster import Cluster
from nest.inputs.job import Job
from nest.inputs.model import Model
from nest.inputs.profile import Profile
from nest.inputs.space import SearchSpace


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
