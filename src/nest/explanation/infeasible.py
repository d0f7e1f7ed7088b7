"""Why nothing fits: the nearest miss, and changes that would make it fit.

The nearest miss is the plan that fits on the smallest devices. Bounds of memory say where to look
(``nest.search.fitting``); each change named is one for which a plan was found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from nest.costs.memory import usable_share
from nest.errors import InfeasibleError
from nest.evaluation.evaluate import evaluate
from nest.evaluation.feasibility import largest_part
from nest.evaluation.plans import Plan
from nest.inputs import catalog
from nest.inputs.choices import CHOICES
from nest.inputs.cluster import MOST_DEVICES, Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
from nest.inputs.loading import load_cluster
from nest.inputs.model import Model
from nest.inputs.profile import Profile
from nest.inputs.sources import CATALOG
from nest.inputs.space import SearchSpace
from nest.model.legality import sequence_problem, space_problems
from nest.model.schedules import group_of
from nest.search.draft import DRAFT, narrowed
from nest.search.least_memory import least_memory, stack_part
from nest.search.query import Control, Query
from nest.search.tensors import Formulation
from nest.search.ways import search
from nest.stacks.overview import lacking
from nest.stacks.rules import impossible
from nest.units import format_bytes

CLOSE = 1.01
"""Accuracy of the least memory: it is at most this times too much."""
CLOSE_GRAPH = 1.05
"""The same for a graph, which has no quick bound."""
ANY_MEMORY = 1e18
"""Bytes of a device on which memory rules nothing out: the most that a device may have."""
PROBES = 8
"""Numbers of devices to try."""
SPARING: dict[str, Any] = {**DRAFT, "cp": 1, "mbs": 1, "zero": 3, "recompute": "full"}
"""Bounds under which plans need least memory as a rule; on dimensions that the space leaves free.
"""
SPARING_ALIKE: dict[str, Any] = {
    "cp": 1, "mbs": 1, "vpp": 1, "recompute": "full", "etp": 1, "shard": "dp"}
"""The same for what a stack can run, whatever ZeRO and schedules it has."""
GENTLE: dict[str, tuple[object, ...]] = {
    "zero": (1, 2, 3), "recompute": ("selective", "full"), "shard": ("dp",),
    **dict.fromkeys(("tp", "pp", "cp", "ep"), tuple(2**n for n in range(1, 7)))}
"""Values of a bounded dimension to try one by one, the least change first."""


def explain(
    model: Model | Profile, f: Formulation, control: Control, asked: Query
) -> InfeasibleError:
    """The error that says how much memory the best configuration of a space lacks.

    ``f`` is of the way of the question ``asked`` that lacks least: it may have bounds of its own.

    ``nearest`` holds ``stage``, ``layers``, ``category``, ``bytes_short``, ``needs_bytes``,
    ``limit_bytes``, ``memory_bytes`` (sufficient memory of a device; of several types, of the
    first, and the others have as many bytes more), ``configuration`` and ``remedies``; only
    ``remedies`` where no configuration is legal at any memory, or the time of ``control`` ends
    before one is found.
    """
    chain, cluster, job = f.query.chain, f.query.cluster, f.query.job
    close = CLOSE if chain.is_chain else CLOSE_GRAPH
    needed, found = least_memory(f, control, close)
    if found is None and (part := stack_part(f)) is not None:
        needed, found = least_memory(part, control, close)
        f = f if found is None else part
    probe = _Probe(asked.replace(cluster=cluster, beyond_stack=not f.part.own, top=1), control)
    if found is None:
        text = "no plan exists: the bounds of the search space contradict each other"
        known = job.stack.capabilities
        if f.part.own and known is not None:
            whys = impossible(chain, job) or lacking(known, f.query.space)
            why = "; ".join(whys) or (
                "the search space has none; `nest evaluate` with its bounds as degrees says why")
            text = f"no plan exists that {known.title} can run: {why}"
        if control.watch.over:
            text = "no plan fits (proved); the time limit ended the search for the nearest miss"
        remedies = [] if control.watch.over else [*probe.unbound(thorough=True), *probe.anything()]
        if not remedies and (ways := list(probe.in_the_way())):
            text += (f". Plans exist without the bound {', or '.join(ways)}, but none fits; remove "
                     "it to see how much memory they lack")
        return InfeasibleError(_with(text, remedies), {"remedies": remedies})
    priced = evaluate(model, cluster, job, found)
    number, over = worst_stage(priced)
    stage = priced.stages[number]
    more = (needed - f.limit) / usable_share(job)
    memory = cluster.device.memory + more
    most, words = largest_part(stage)
    activations = stage.memory_bytes.activations
    remedies = [
        *_less_margin(cluster, job, needed - f.limit), *probe.unbound(),
        *probe.more_devices(needed / f.limit), *probe.larger_batch(),
        *probe.shorter_sequences(1.0 - over / max(activations, over)),
        f"{format_bytes(more)} more memory on every device" if cluster.types else
        f"devices with {format_bytes(memory)} of memory instead of "
        f"{format_bytes(cluster.device.memory)}"]
    text = (
        f"no plan fits. The nearest miss is {format_bytes(over)} short on stage {number} "
        f"of {len(priced.stages)} (layers [{stage.layers[0]}, {stage.layers[1]}), tp {stage.tp}, "
        f"dp_in {stage.dp_in}, zero {stage.zero}, recompute {stage.recompute}): it needs "
        f"{format_bytes(stage.memory_bytes.total)} of {format_bytes(stage.memory_limit_bytes)}, "
        f"most of it {most} ({words})"
    )
    return InfeasibleError(_with(text, remedies), {
        "stage": number, "layers": list(stage.layers), "category": most,
        "bytes_short": over, "needs_bytes": stage.memory_bytes.total,
        "limit_bytes": stage.memory_limit_bytes, "memory_bytes": memory,
        "configuration": found.model_dump(mode="json"), "remedies": remedies,
    })


def _less_margin(cluster: Cluster, job: Job, missing: float) -> Iterator[str]:
    """The memory margin, rounded down to per mille, that would leave the missing bytes."""
    left = math.floor(1e3 * (job.memory_margin - missing / cluster.device.memory)) / 1e3
    if 0.0 <= left < job.memory_margin:
        yield (f"memory_margin {left:g} instead of {job.memory_margin:g} "
               f"(--memory-margin {left:g})")


def worst_stage(plan: Plan) -> tuple[int, float]:
    """The stage that lacks most memory, and how many bytes."""
    over = [s.memory_bytes.total - s.memory_limit_bytes for s in plan.stages]
    number = max(range(len(over)), key=lambda n: over[n])
    return number, over[number]


def _with(text: str, remedies: list[str]) -> str:
    return f"{text}. It would fit with {', or '.join(remedies)}" if remedies else text


class _Probe:
    """Looks for any plan under changed conditions, one at a time, until the time ends."""

    def __init__(self, query: Query, control: Control) -> None:
        self.query, self.control = query, control
        self.chain, self.cluster = query.chain, query.cluster
        self.job, self.space = query.job, query.space

    def _any(self, thorough: bool = False, **changes: Any) -> Configuration | None:
        """A plan under changes of the query, looked for where plans need least; ``thorough``:
        everywhere."""
        asked = self.query.replace(**changes)
        sparing = narrowed(
            asked.space, SPARING if asked.beyond_stack else SPARING_ALIKE, self.chain)
        for bounds in (sparing, *([asked.space] if thorough else [])):
            if self.control.watch.over or sequence_problem(self.chain, asked.job) or any(
                    space_problems(self.chain, asked.cluster, asked.job, bounds)):
                continue
            found = search(asked.replace(space=bounds), self.control, any_plan=True).configuration
            if found is not None:
                return found
        return None

    def unbound(self, thorough: bool = False) -> Iterator[str]:
        """Dimensions whose bounds are in the way, with values that would do."""
        for name, bound in self.space.describe().items():
            default = SearchSpace.model_fields[name].default
            if getattr(self.space, name) in (None, default):
                continue
            spaces = [self.space.replace(**{name: value}) for value in GENTLE.get(name, ())
                      if not self.space.allows(name, value)]
            for space in (*spaces, self.space.replace(**{name: default})):
                found = self._any(thorough, space=space)
                if found is not None:
                    yield f"{name} {_values(found, self.job, name)} instead of {bound}"
                    break

    def anything(self) -> Iterator[str]:
        """The space of everything, where only that of the stack was searched."""
        if not self.query.beyond_stack and self._any(True, beyond_stack=True) is not None:
            yield "--beyond-stack"

    def in_the_way(self) -> Iterator[str]:
        """Dimensions whose bounds leave no plan on devices of any memory."""
        large = self.cluster.replace(
            device=self.cluster.device.replace(memory=ANY_MEMORY),
            types=tuple(one.replace(memory=ANY_MEMORY) for one in self.cluster.types))
        for name, bound in self.space.describe().items():
            default = SearchSpace.model_fields[name].default
            if getattr(self.space, name) not in (None, default) and self._any(
                    True, space=self.space.replace(**{name: default}), cluster=large):
                yield f"{name} {bound}"

    def more_devices(self, factor: float) -> Iterator[str]:
        """The fewest devices found that would do; ``factor`` times as much memory is needed.

        Of several types, all would be of the one with the least memory.
        """
        whole, size = _whole(self.cluster), self.cluster.size
        few, enough, step, wanted = size, 0, 1.125, size * factor
        for _ in range(PROBES):
            count = whole.size_from((few + enough + 1) // 2 if enough else math.ceil(wanted))
            if count in (few, enough):
                count = whole.size_from(few + 1)
            if count == enough or count > MOST_DEVICES:
                break
            if self._any(cluster=whole.with_devices(count)) is not None:
                enough = count
            else:
                few, wanted, step = count, count * step, min(step * step, 2.0)
        if enough:
            of_type = f" {whole.device.name}" if self.cluster.types else ""
            yield f"{enough:,}{of_type} devices (fewer may do) instead of {size:,}"

    def larger_batch(self) -> Iterator[str]:
        """A batch that more replicas share, where there are fewer samples than devices."""
        given = self.job.global_batch
        for value in (2 * given, 4 * given, 8 * given) if given < self.cluster.size else ():
            if self._any(job=self.job.replace(global_batch=value)) is not None:
                yield f"a global batch of {value:,} instead of {given:,}"
                return

    def shorter_sequences(self, share: float) -> Iterator[str]:
        """Sequences of no more than a share of their tokens; a profile does not know these."""
        given = self.job.seq_len
        value = 1 << math.floor(math.log2(max(share * given, 1.0)))
        if self.chain.model is not None and share > 0.0 and self._any(
                job=self.job.replace(seq_len=value, lengths=None)) is not None:
            yield f"sequences of {value:,} tokens instead of {given:,}"


def _whole(cluster: Cluster) -> Cluster:
    """The cluster of the catalog that a cluster is a part of, else itself: what can be had.

    Of links nobody knows how they go on: there as many outermost groups as may be, since what fits
    depends on their sizes alone.
    """
    if cluster.links is not None:
        *inner, outer = cluster.levels
        most = MOST_DEVICES // math.prod(level.size for level in inner)
        device = min(cluster.device_types, key=lambda one: one.memory - one.memory_reserved)
        return Cluster(name=cluster.name, device=device,
                       levels=(*inner, outer.replace(size=most)))
    if catalog.find("clusters", cluster.name) is not None:
        whole = load_cluster(cluster.name, sources=CATALOG)
        if whole.with_devices(whole.size_from(cluster.size)) == cluster:
            return whole
    return cluster


def _values(plan: Configuration, job: Job, name: str) -> str:
    """The values of a dimension in a plan of a job."""
    if name in CHOICES:
        return plan.choices.get(name) or str(job.stack.chosen(name))
    if name in ("outer_dp", "micro_batch", "vpp", "schedule", "offload"):
        return str(getattr(plan, name))
    if name == "pp":
        return str(len(plan.stages))
    if name == "group":
        return str(group_of(plan))
    if name == "mbs":
        return ",".join(map(str, sorted({plan.micro_batch // s.dp_in for s in plan.stages})))
    values = {getattr(s, name) for s in plan.stages}
    if name == "recompute_modules":
        values = {"+".join(modules) for modules in values if modules}
    if name == "recompute_layers":
        values = {"any" if layers is None else layers for layers in values}
    return ",".join(sorted(str(value).lower() for value in values))
