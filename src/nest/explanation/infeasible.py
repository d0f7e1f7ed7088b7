"""Why nothing fits: the nearest miss, and changes that would make it fit.

The nearest miss is the plan that fits on the smallest devices, of those that are not too
slow (``nest.search.rounds.SLOWEST``): memory is raised until a plan exists, then bisected to 1 %.
What would help is found the same way, by searching.
"""

from __future__ import annotations

import math
import time

from nest.describe.cluster import Cluster
from nest.describe.configuration import Configuration
from nest.describe.job import Job
from nest.describe.model import Model
from nest.describe.profile import Profile
from nest.describe.space import SearchSpace
from nest.errors import InfeasibleError, InputError
from nest.graph import Chain
from nest.pricing.evaluation import chain_of, evaluate
from nest.pricing.plans import Plan
from nest.search.rounds import search
from nest.units import format_bytes

DOUBLINGS = 10
CLOSE = 1.01


def explain(
    model: Model | Profile, cluster: Cluster, job: Job, space: SearchSpace
) -> InfeasibleError:
    """The error that says how much memory the best configuration lacks.

    ``nearest`` holds ``stage``, ``layers``, ``category``, ``bytes_short``, ``needs_bytes``,
    ``limit_bytes``, ``memory_bytes`` (sufficient device memory), ``configuration`` and
    ``remedies``; only ``remedies`` where no configuration is legal at any memory.
    """
    probe = Probe(chain_of(model), cluster, job, space)
    memory, found = probe.least_memory()
    remedies = probe.remedies(memory)
    if found is None:
        text = "no plan exists: the bounds of the space contradict each other"
        return InfeasibleError(_with(text, remedies), {"remedies": remedies})
    priced = evaluate(model, cluster, job, found)
    number, over = worst_stage(priced)
    stage = priced.stages[number]
    parts = stage.memory_bytes.model_dump(exclude={"total"})
    most = max(parts, key=lambda name: parts[name])
    text = (
        f"no plan fits. The nearest miss is {format_bytes(over)} short on stage {number} "
        f"of {len(priced.stages)} (layers [{stage.layers[0]}, {stage.layers[1]}), tp {stage.tp}, "
        f"dp_in {stage.dp_in}, zero {stage.zero}, recompute {stage.recompute}): it needs "
        f"{format_bytes(stage.memory_bytes.total)} of {format_bytes(stage.memory_limit_bytes)}, "
        f"most of it {most} ({format_bytes(parts[most])})"
    )
    return InfeasibleError(_with(text, remedies), {
        "stage": number, "layers": list(stage.layers), "category": most,
        "bytes_short": over, "needs_bytes": stage.memory_bytes.total,
        "limit_bytes": stage.memory_limit_bytes, "memory_bytes": memory,
        "configuration": found.model_dump(mode="json"), "remedies": remedies,
    })


def worst_stage(plan: Plan) -> tuple[int, float]:
    """The stage that lacks most memory, and how many bytes."""
    over = [s.memory_bytes.total - s.memory_limit_bytes for s in plan.stages]
    number = max(range(len(over)), key=lambda n: over[n])
    return number, over[number]


def _with(text: str, remedies: list[str]) -> str:
    return f"{text}. It would fit with {', or '.join(remedies)}" if remedies else text


class Probe:
    """Searches for any plan under changed conditions."""

    def __init__(
        self, chain: Chain, cluster: Cluster, job: Job, space: SearchSpace,
        threads: int | None = None,
    ) -> None:
        self.chain, self.cluster, self.job, self.space = chain, cluster, job, space
        self.threads = threads

    def any_plan(
        self, memory: float, cluster: Cluster | None = None, space: SearchSpace | None = None
    ) -> Configuration | None:
        cluster = cluster or self.cluster
        more = memory / cluster.device.memory
        sized = cluster.replace(
            device=cluster.device.replace(memory=memory),
            types=[device.replace(memory=more * device.memory) for device in cluster.types])
        return search(
            self.chain, sized, self.job, space or self.space, self.threads, any_plan=True
        ).configuration

    def least_memory(
        self, close: float = CLOSE, deadline: float = math.inf
    ) -> tuple[float, Configuration | None]:
        """Device memory at which a plan exists, and that plan; None if none exists at any.

        It is at most ``close`` times too much, or the least found before ``deadline``.
        """
        low = self.cluster.device.memory
        for _ in range(DOUBLINGS):
            high = 2.0 * low
            found = self.any_plan(high)
            if found is not None:
                break
            low = high
        else:
            return high, None
        while high > close * low and time.perf_counter() < deadline:
            middle = (low * high) ** 0.5
            better = self.any_plan(middle)
            if better is None:
                low = middle
            else:
                high, found = middle, better
        return high, found

    def remedies(self, memory: float) -> list[str]:
        """Changes under which a plan exists, one at a time."""
        found = []
        own = self.cluster.device.memory
        if self.any_plan(memory) is not None:
            found.append(f"devices of {format_bytes(memory)} instead of {format_bytes(own)}")
        for factor in (2, 4, 8):
            try:
                larger = self.cluster.with_devices(factor * self.cluster.size)
            except InputError:
                break
            if self.any_plan(own, cluster=larger) is not None:
                found.append(f"{larger.size} devices instead of {self.cluster.size}")
                break
        for name, bound in self.space.model_dump().items():
            default = SearchSpace.model_fields[name].default
            if bound is not None and getattr(self.space, name) != default:
                freed = self.space.replace(**{name: default})
                if self.any_plan(own, space=freed) is not None:
                    found.append(f"{name} not bound to {self.space.describe()[name]}")
        return found
