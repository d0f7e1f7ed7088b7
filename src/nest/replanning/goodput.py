"""The public function :func:`goodput`, and what it returns."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Field

from nest.api import plan as fastest
from nest.errors import InfeasibleError
from nest.evaluation.evaluate import chain_of
from nest.evaluation.plan_file import load_plan
from nest.evaluation.plans import Plan
from nest.evaluation.stages import layers_of
from nest.inputs import Cluster, SearchSpace
from nest.inputs.base import Shown, Written
from nest.inputs.failures import Failures
from nest.inputs.loading import load_failures
from nest.model import Chain
from nest.replanning import renewal
from nest.replanning.renewal import Checkpoint, Missing, Rhythm, Staffed
from nest.schedules.registry import copies

SCHEMA = "nest.goodput/1.0"
SCHEMAS = r"^nest\.goodput/1(\.\d{1,9})?$"
STEPS = (1, 2, 4, 8, 16)
"""Nodes without which plans are searched; with more left than in one of them, the rest idle."""


class DomainLoss(Written):
    """Parts that fail alike."""

    name: str = Field(description="of the part")
    parts: int = Field(description="how many the plan has")
    failures_per_day: float = Field(description="of all of them")
    nodes: int = Field(description="that a failure takes away until they are repaired")


class SavedState(Written):
    """A checkpoint."""

    total_bytes: float = Field(description="trained parameters and optimizer states, each once")
    device_bytes: float = Field(description="of the device that writes most, where all that hold a "
                                "part write it together")
    write_s: float = Field(description="until it is in storage")
    pause_s: float = Field(description="that it holds up training")
    interval_s: float = Field(description="of training from one to the next: whole steps, those "
                              "with the least expected time")
    interval_steps: int = Field(description="the same in steps")
    daly_s: float = Field(description="interval by Daly's expansion, for comparison")


class SmallerPlan(Written):
    """A plan for the nodes that are left."""

    lost: int = Field(description="nodes that are missing")
    speed: float = Field(description="its tokens/s over those of the plan; 0: nothing fits; above "
                         "1, of a plan that is not the best of its cluster, counts as 1")


class TimeShares(Written):
    """Shares of the time; their sum is 1."""

    trains: float = Field(description="on tokens that count, by the plan or a smaller one")
    checkpoints: float = Field(description="waiting for checkpoints")
    restarts: float = Field(description="from failures to the next steps")
    repeats: float = Field(description="work that a failure lost")
    waits: float = Field(description="for the repair of nodes, or for a return to the plan")


class SparesChoice(Written):
    """What so many spare nodes give."""

    spares: int
    waits: float = Field(description="share of the time in which nodes are missed and the job "
                         "waits")
    smaller: float = Field(description="share in which a smaller plan trains")
    goodput: float
    tokens_per_day: float
    tokens_per_day_device: float = Field(description="the same for each device, those of spare "
                                         "nodes included")


class Goodput(Shown):
    """What a plan trains in a day on a cluster whose parts fail."""

    schema_: Annotated[str, Field(alias="schema", pattern=SCHEMAS)] = SCHEMA
    devices: int
    nodes: int
    node_devices: int = Field(description="devices that are exchanged together")
    failures: Failures = Field(description="what was assumed")
    domains: tuple[DomainLoss, ...]
    mean_time_s: float = Field(description="between failures of the job")
    step_time_s: float
    checkpoint: SavedState
    smaller_plans: tuple[SmallerPlan, ...] = Field(description="empty: the job waits for repairs")
    spares: int = Field(description="as given, or those that give most tokens for each device")
    goodput: float = Field(description="tokens of a day over those without failures and checkpoints"
                           ", with these spares")
    tokens_per_day: float
    shares: TimeShares
    choices: tuple[SparesChoice, ...] = Field(description="by number of spares")

    def to_json(self, indent: int | None = 2) -> str:
        """The result as the text of one JSON document."""
        return self.model_dump_json(by_alias=True, indent=indent)


def goodput(
    plan: Plan | str | os.PathLike[str] | Mapping[str, Any],
    failures: Failures | str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    replan: bool = True,
    threads: int | None = None,
    time_limit: float | None = None,
) -> Goodput:
    """Find the tokens that a plan trains in a day, and the checkpoints and spares that give most.

    Parameters
    ----------
    plan : what runs: a plan, its file or its data.
    failures : how often parts fail, what restarts take, where checkpoints go; default: rates of
        Llama 3 405B, see :class:`nest.Failures`.
    replan : search plans for the nodes that are left where no spare is; else the job waits for a
        repair.
    threads, time_limit : as of :func:`nest.plan`, for each of these searches.

    Raises
    ------
    InputError : no plan, fields that are not allowed, or a level that the cluster does not have.
    LimitError : as of :func:`nest.plan`.

    References
    ----------
    See :mod:`nest.replanning.renewal`.
    """
    before = load_plan(plan)

    def ask(left: Cluster) -> Plan:
        return fastest(before.inputs.subject, left, before.inputs.job, SearchSpace(),
                       threads=threads, time_limit=time_limit)

    return goodput_of(before, load_failures(failures), ask if replan else None)


def goodput_of(before: Plan, known: Failures, ask: Callable[[Cluster], Plan] | None) -> Goodput:
    """:func:`goodput`; ``ask``: the plan of what is left of the cluster; None: the job waits."""
    cluster = before.inputs.cluster
    each = known.node_size(cluster)
    nodes = -(-cluster.size // each)
    rate, rates = renewal.losing(known, cluster)
    saved = renewal.checkpoint(known, cluster, *saved_bytes(before))
    found = _steps(rate, before.step_time_s, saved, known.restart)
    missing = Missing(rates, known.repair, nodes, 0)

    plans = () if ask is None else tuple(
        SmallerPlan(lost=lost, speed=_speed(before, lost * each, ask))
        for lost in _wanted(missing, known.spares or 0))
    ways = (renewal.never, *([_of(plans)] if plans else ()))
    staffings = renewal.staffings(missing, known.spares, ways, saved.pause + known.restart)
    best = renewal.best_staffing(staffings, nodes)
    day = before.tokens_per_s * renewal.DAY

    def choice(one: Staffed) -> SparesChoice:
        share = found.trains * one.speed
        return SparesChoice(
            spares=one.spares, waits=one.waits, smaller=one.smaller, goodput=share,
            tokens_per_day=day * share,
            tokens_per_day_device=day * share / (cluster.size + one.spares * each))

    chosen = choice(best)
    there = best.whole + best.smaller
    return Goodput(
        devices=cluster.size, nodes=nodes, node_devices=each, failures=known,
        domains=tuple(DomainLoss(name=one.name, parts=one.parts, nodes=one.nodes,
                                 failures_per_day=one.rate * renewal.DAY)
                      for one in known.domains(cluster)),
        mean_time_s=1.0 / rate, step_time_s=before.step_time_s,
        checkpoint=SavedState(
            total_bytes=saved.bytes, device_bytes=saved.device_bytes, write_s=saved.write,
            pause_s=saved.pause, interval_s=found.work,
            interval_steps=round(found.work / before.step_time_s),
            daly_s=renewal.daly_interval(rate, saved.pause)),
        smaller_plans=plans, spares=best.spares, goodput=chosen.goodput,
        tokens_per_day=chosen.tokens_per_day,
        shares=TimeShares(
            trains=found.trains * there, checkpoints=found.pauses * there,
            restarts=found.restarts * there, repeats=found.repeats * there,
            waits=1.0 - there),
        choices=tuple(map(choice, staffings)))


def saved_bytes(plan: Plan) -> tuple[float, float]:
    """Bytes of a checkpoint, and of the device that writes most.

    All devices that hold a part of a stage write equal shares of it, as Megatron-Core's parallel
    save and PyTorch's distributed checkpoints do.
    """
    job, way = plan.inputs.job, plan.configuration
    chain: Chain = chain_of(plan.inputs.subject)
    each, most = renewal.bytes_each(job), 0.0
    for stage in way.stages:
        whole = math.fsum(
            renewal.saved_parameters(chain.kinds[kind], stage.tp)
            for span in stage.chunks for kind, _ in layers_of(chain, way, stage, span))
        holders = (stage.devices[1] - stage.devices[0]) * way.outer_dp * copies(way.schedule)
        most = max(most, each * whole / holders)
    return renewal.saved_bytes(chain, job), most


def _steps(rate: float, step: float, saved: Checkpoint, restart: float) -> Rhythm:
    """The best number of whole steps between checkpoints, as seconds."""
    least = max(1, math.ceil(saved.behind / step))
    near = int(renewal.best_work(rate, saved.pause) / step)
    return max((renewal.rhythm(rate, max(least, steps) * step, saved.pause, restart, saved.behind)
                for steps in (near, near + 1)), key=lambda one: one.trains)


def _wanted(missing: Missing, spares: int) -> list[int]:
    """Numbers of nodes without which a plan is searched: as many as are likely to be missing."""
    mean = missing.repair * sum(size * rate for size, rate in missing.rates.items())
    most = max(missing.rates, default=0) + mean + 4.0 * math.sqrt(mean) - spares
    found = [lost for lost in STEPS if lost < missing.nodes]
    enough = [n for n, lost in enumerate(found) if lost >= most]
    return found[:enough[0] + 1] if enough else found


def _of(plans: tuple[SmallerPlan, ...]) -> Callable[[int], float]:
    """Speed without any number of nodes: that of the next smaller plan, the rest idle."""
    def speed(lost: int) -> float:
        return min(1.0, max((one.speed for one in plans if one.lost >= lost), default=0.0))

    return speed


def _speed(plan: Plan, lost: int, ask: Callable[[Cluster], Plan]) -> float:
    """Tokens/s without the last devices, over those of the plan."""
    from nest.network.hierarchy import device_names
    from nest.network.losses import left_of

    names = device_names(plan.inputs.cluster)
    left = left_of(plan.inputs.cluster, names[-lost:])
    try:
        return plan.step_time_s / ask(left.cluster).step_time_s
    except InfeasibleError:
        return 0.0
