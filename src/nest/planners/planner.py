"""What every planner is: model, cluster, job and space in, a priced plan out."""

from __future__ import annotations

from typing import Protocol

from nest.describe.cluster import Cluster
from nest.describe.job import Job
from nest.describe.model import Model
from nest.describe.profile import Profile
from nest.describe.space import SearchSpace
from nest.pricing.plans import Plan


class Planner(Protocol):
    """A way to choose a configuration; what it costs is for :func:`nest.evaluate` to say."""

    @property
    def name(self) -> str:
        """As in :data:`nest.planners.PLANNERS`."""

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
            Of :func:`nest.evaluate`. Not ``feasible`` where the method chooses what does not fit,
            because it leaves memory out or underestimates it.

        Raises
        ------
        NoPlanError
            The method finds nothing by its own rules; one sentence says why.
        InputError
            Model, cluster and job do not go together.
        """
        ...
