"""What a search answers, and what it may use for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from nest.costs.imbalance import Waits, waits_of
from nest.inputs.base import FrozenDict
from nest.inputs.capabilities import Capabilities
from nest.inputs.choices import ChosenValues
from nest.inputs.cluster import Cluster
from nest.inputs.job import Job
from nest.inputs.space import SearchSpace
from nest.model import Chain
from nest.search.cache import Cache
from nest.search.progress import Watch


@dataclass(frozen=True)
class Query:
    """A question (:class:`nest.questions.Question`) with the layers of its model.

    The plan that answers it follows from nothing else.
    """

    chain: Chain
    cluster: Cluster
    job: Job
    space: SearchSpace = SearchSpace()
    beyond_stack: bool = False
    """Search what the job's stack cannot run too, in a part of its own."""
    top: int = 1
    """How many :func:`~nest.search.solution.distinct` plans to find."""
    offload: str = "none"
    """What is kept in the memory of the hosts: one of those that the space names."""
    choices: ChosenValues = FrozenDict()
    """Values of the stack's choices that ``job`` has and the question's job has not."""
    waits: Waits | None = None
    """Plans in which ranks with unlike samples wait so; None: samples are alike."""
    spare_host: bool = False
    """Count bytes on a host as so many of a device that no plan fills the host: too many, so that
    plans that fit may be left out."""

    @property
    def rules(self) -> Capabilities | None:
        """What the training software can run; None: everything is searched."""
        return None if self.beyond_stack else self.job.stack.capabilities

    def may_be(self, schedule: str, pp: int) -> bool:
        """Whether plans of a schedule with so many stages are asked for."""
        waits = self.waits
        return self.space.allows("pp", pp) and (waits is None or waits == waits_of(
            pp, schedule, ())._replace(meet=waits.meet))

    def replace(self, **changes: Any) -> Query:
        """The same with other values of some fields."""
        return replace(self, **changes)


@dataclass(frozen=True)
class Control:
    """How a search runs. No plan depends on it unless ``watch`` ends the search early."""

    threads: int | None = None
    """None: see :func:`nest.search.threads.thread_count`."""
    watch: Watch = field(default_factory=Watch)
    cache: Cache = field(default_factory=Cache)
