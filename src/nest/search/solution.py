"""What a search finds: a plan as the kernels list it, and the best of a space with the effort."""

from __future__ import annotations

from typing import Any, NamedTuple

from nest.evaluation.evaluate import priced
from nest.evaluation.plans import Plan
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.schedules.registry import UNLIKE
from nest.search.alike import AlikePlan
from nest.search.tensors import Formulation

TIE = 1.0 + 1e-9
"""Step times apart by a smaller factor are the same."""


def distinct(
    outer_dp: int, micro_batch: int, pp: int, vpp: int, schedule: str, micro_batches: int
) -> tuple[Any, ...]:
    """Equal where plans may do the same on every device under different names.

    Replicas of a single stage are data parallelism like that inside its block: only the samples at
    once count. A single micro-batch goes forward and back alike under 1F1B and GPipe. Plans that
    differ here differ on some device.
    """
    if pp == 1:
        outer_dp, micro_batch = 1, outer_dp * micro_batch
    if micro_batches == vpp == 1 and schedule in (*UNLIKE, "combined"):
        schedule = "1f1b"
    return outer_dp, micro_batch, pp, vpp, schedule


class Solution(NamedTuple):
    """A plan as the kernels found it."""

    step_time: float
    formulation: Formulation
    number: int
    """Outer choice."""
    schedule: str
    vpp: int
    stages: list[tuple[int, int, int, int]]
    """First cut, last cut, first device, option; of alike stages option alone."""
    alike: AlikePlan | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Plans that have the same are variants of one configuration."""
        outer = self.formulation.outers[self.number]
        return distinct(outer.outer_dp, outer.micro_batch, len(self.stages), self.vpp,
                        self.schedule, outer.micro_batches)

    @property
    def group(self) -> int | None:
        """Micro-batches that pass a chunk in a row, where these are not as many as stages."""
        if self.alike is None:
            return None
        f, pipeline = self.formulation, self.alike.pipeline
        m = f.outers[self.number].micro_batches
        group = int(f.runnable.groups(m)[f.part.pipelines.index(pipeline)])
        return group if group != pipeline.pp else None

    def configuration(self) -> Configuration:
        """The plan in devices and degrees."""
        f = self.formulation
        outer, cuts = f.outers[self.number], f.choices.signatures.downsets
        chunks: list[Any] = [None] * len(self.stages)
        if self.alike is not None:
            chunks = self.alike.chunks
        order: list[int] = []
        stages = []
        for (before, after, first, option), parts in zip(self.stages, chunks, strict=True):
            degrees = f.degrees(self.number, option)
            block = degrees.pop("block")
            members = _layers(cuts[after] & ~cuts[before])
            layers = (parts[0][0], parts[-1][1]) if parts else (
                len(order), len(order) + len(members))
            order += members
            stages.append(StageConfiguration(layers=layers, devices=(first, first + block),
                                             chunks=parts or (layers,), **degrees))
        straight = self.alike is not None or order == sorted(order)
        return Configuration(
            outer_dp=outer.outer_dp, stride=outer.stride, micro_batch=outer.micro_batch,
            stages=tuple(stages), vpp=self.vpp, schedule=self.schedule,
            group=self.group, order=None if straight else tuple(order), offload=f.query.offload,
            choices=f.query.choices,
        )

    def plan(self) -> Plan:
        """The plan, priced as `evaluate` prices it."""
        query = self.formulation.query
        return priced(query.chain, query.cluster, query.job, self.configuration())


def _layers(mask: int) -> list[int]:
    """Numbers of the bits that are set, ascending."""
    return [n for n in range(mask.bit_length()) if mask >> n & 1]


class Effort(NamedTuple):
    """What a search took."""

    seconds: float
    compile_seconds: float
    threads: int
    solved: int
    """Outer choices that a kernel worked on."""
    pruned: int
    """Outer choices that a bound ruled out."""
    cells: int
    labels: int
    transitions: int

    def with_more(self, other: Effort) -> Effort:
        """Of two searches one after the other."""
        return self._replace(**{name: getattr(self, name) + getattr(other, name)
                                for name in self._fields if name != "threads"})


class SearchResult(NamedTuple):
    """The result and the effort of a search."""

    step_time: float
    """Seconds; inf when nothing was found. No plan takes less but for ``TIE``."""
    configuration: Configuration | None
    lower_bound: float
    """No plan of the space takes less; the step time itself where the search ran to its end."""
    others: list[tuple[float, Configuration]]
    """The next best plans that differ in configuration, where several were asked for."""
    others_proved: bool
    """No other plan of the space that differs from all of these is faster than the last."""
    effort: Effort
    formulation: Formulation
    """Of the whole space."""

    @property
    def proved(self) -> bool:
        """Whether no plan of the space takes less."""
        return self.lower_bound >= self.step_time

    def after(self, other: SearchResult) -> SearchResult:
        """The same, with the bound and the work of a search of another part of the space."""
        return self._replace(lower_bound=min(self.lower_bound, other.lower_bound),
                             effort=self.effort.with_more(other.effort))
