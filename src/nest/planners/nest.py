"""NEST's own search, as a planner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nest import api
from nest.evaluation.plans import Plan
from nest.inputs.cluster import Cluster
from nest.inputs.job import Job
from nest.inputs.model import Model
from nest.inputs.profile import Profile
from nest.inputs.space import SearchSpace


@dataclass(frozen=True)
class Nest:
    """The fastest plan of the space that fits, as :func:`nest.plan` finds it.

    Parameters
    ----------
    threads : number of threads; the plan does not depend on it.
    time_limit : seconds after which the best plan so far is taken; None: no limit.
    beyond_stack : search what the job's stack cannot run too.
    """

    name: ClassVar[str] = "nest"
    threads: int | None = None
    time_limit: float | None = None
    beyond_stack: bool = False

    def plan(
        self, model: Model | Profile, cluster: Cluster, job: Job, space: SearchSpace
    ) -> Plan:
        """Search the space; see :func:`nest.plan` for what is raised."""
        return api.plan(model, cluster, job, space, threads=self.threads,
                        time_limit=self.time_limit, beyond_stack=self.beyond_stack)
