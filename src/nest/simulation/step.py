"""One training step of a plan, simulated: the check on the closed forms that price it.

It uses NEST's prices of single layers, and the plan to compare with. The step time, overlap and
memory over time follow from events alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from nest.evaluation.evaluate import chain_of, evaluate
from nest.evaluation.plans import Plan
from nest.inputs.arguments import need, need_bytes
from nest.model.schedules import group_of
from nest.schedules.registry import copies, placement
from nest.simulation.events import Ran, run
from nest.simulation.figures import Link
from nest.simulation.result import Record, SimulatedStage, SimulatedTime, Simulation
from nest.simulation.tasks import Task, levels, orders, peak
from nest.simulation.times import StageFigures, Times

MOST_SLICES = 200_000
"""Slices of a trace at the most (chosen: some 20 MB, which viewers open in seconds)."""
MOST_PASSES = 20_000
"""Passes of micro-batches through chunks that are simulated for a report (chosen)."""


def simulate(plan: Plan, *, bucket_bytes: float = 0.0) -> Simulation:
    """Simulate one training step of a plan.

    Parameters
    ----------
    plan : as :func:`nest.plan` or :func:`nest.evaluate` gives it; its stages, ``parallelism`` and
        ``inputs`` are used, prices are computed again.
    bucket_bytes : gradients that are reduced together; default: those of each layer.

    Returns
    -------
    Simulation
        Step time, memory, and the activities of each stage of the slowest replica.

    Raises
    ------
    InputError
        The plan is not legal, or ``bucket_bytes`` is below 0.
    """
    return _Step(plan, bucket_bytes).simulation()[0]


def short_step_time(plan: Plan) -> float | None:
    """Simulated seconds of a step; None: it is not short."""
    return simulate(plan).step_time_s if is_short(plan) else None


def is_short(plan: Plan) -> bool:
    """Whether a step has at most :data:`MOST_PASSES`."""
    p = plan.parallelism
    return p.micro_batches * p.pp * p.vpp <= MOST_PASSES


class Traced:
    """A simulation with the slices of its slowest replica, for a trace.

    Parameters
    ----------
    plan, bucket_bytes : as for :func:`simulate`.
    most : limit of slices, except those of two micro-batches; default: ``MOST_SLICES``.
        Micro-batches in the middle of the step are left out.
    """

    def __init__(
        self, plan: Plan, *, bucket_bytes: float = 0.0, most: int | None = None
    ) -> None:
        step = _Step(plan, bucket_bytes)
        self.simulation, ran = step.simulation()
        m = step.closed.parallelism.micro_batches // step.chains
        each = (sum(map(len, step.orders)) + ran.transfers + ran.messages) / m
        self.record = Record(max(1, int((most or MOST_SLICES) / each / 2)), m)
        step.ran(step.links[self.simulation.replica], self.record)
        self.memory = [
            [(priced.constant + level.during, priced.constant + level.after)
             for level in levels(order, priced.chunks)]
            for order, priced in zip(step.orders, step.priced, strict=True)
        ]
        """Bytes during and after each task, by stage."""
        self.orders = step.orders
        """Tasks of each stage."""
        self.work = [priced.work for priced in step.priced]
        """Seconds of the layers of each stage."""


class _Step:
    """A plan ready to run."""

    def __init__(self, plan: Plan, bucket_bytes: float) -> None:
        need("plan", plan, (Plan,), "nest.plan, nest.evaluate or nest.load_plan")
        need_bytes("bucket_bytes", bucket_bytes)
        inputs = plan.inputs
        subject, way = inputs.subject, plan.configuration
        self.closed = evaluate(subject, inputs.cluster, inputs.job, way)
        times = Times(chain_of(subject), inputs.cluster, inputs.job, way)
        self.bucket_bytes = bucket_bytes
        self.rates = times.rates
        m = self.closed.parallelism.micro_batches
        self.orders: Sequence[Sequence[Task]] = orders(
            way.schedule, way.pp, m, way.vpp, group_of(way))
        self.placement, self.chains = placement(way.schedule), copies(way.schedule)
        self.priced: list[StageFigures] = [times.stage(number) for number in range(way.pp)]
        self.links = [times.links(replica) for replica in range(way.outer_dp)]

    def ran(self, links: Sequence[Sequence[Link]], record: Record | None = None) -> Ran:
        """A step over the links of one replica."""
        return run(self.orders, [priced.work for priced in self.priced], links, self.rates,
                   bucket_bytes=self.bucket_bytes, record=record, placement=self.placement)

    def simulation(self) -> tuple[Simulation, Ran]:
        """All replicas, those with the same links once; and the step of the slowest."""
        known = {links: self.ran(links) for links in dict.fromkeys(self.links)}
        each = [known[links].step_time for links in self.links]
        slowest = max(range(len(each)), key=lambda n: each[n])
        ran = known[self.links[slowest]]
        stages = tuple(self._stage(number, ran) for number in range(len(self.priced)))
        closed = self.closed.step_time_s
        return Simulation(
            step_time_s=ran.step_time, closed_form_s=closed,
            relative_difference=closed / ran.step_time - 1.0,
            peak_memory_bytes=max(stage.peak_memory_bytes for stage in stages),
            events=sum(r.events for r in known.values()), replica=slowest,
            replicas_s=tuple(each), stages=stages,
        ), ran

    def _stage(self, number: int, ran: Ran) -> SimulatedStage:
        priced = self.priced[number]
        end = ran.ends[number]
        return SimulatedStage(
            time_s=SimulatedTime(**asdict(ran.spent[number]), waiting=ran.step_time - end),
            last_backward_s=ran.backward_ends[number], end_s=end,
            peak_memory_bytes=priced.constant + peak(self.orders[number], priced.chunks),
            closed_form_memory_bytes=self.closed.stages[number].memory_bytes.total,
        )
