"""The public function :func:`replan`, and what it returns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from nest.api import plan as fastest
from nest.errors import InputError
from nest.evaluation.evaluate import chain_of
from nest.evaluation.plan_file import load_plan
from nest.evaluation.plans import Plan
from nest.inputs import Cluster, SearchSpace
from nest.inputs.arguments import need, takes
from nest.inputs.base import Shown, Written
from nest.replanning.moves import received
from nest.schedules.registry import copies
from nest.units import shorten

SCHEMA = "nest.replan/1.0"
SCHEMAS = r"^nest\.replan/1(\.\d{1,9})?$"


class Move(Written):
    """What a device receives."""

    rank: int = Field(description="in the new plan")
    name: str = Field(description="of the device")
    parameters_bytes: float
    optimizer_bytes: float


class Moves(Written):
    """Bytes that devices must receive because they do not hold them yet."""

    total_bytes: float
    most_bytes: float = Field(description="of one device")
    parameters_bytes: float = Field(description="the part of total_bytes that are parameters")
    optimizer_bytes: float = Field(description="the part that are optimizer states")
    lost_parameters_bytes: float = Field(
        description="parameters that no device left holds: a checkpoint must have them")
    lost_optimizer_bytes: float = Field(description="optimizer states likewise")
    devices: tuple[Move, ...] = Field(description="devices that receive something, by rank")


class Replan(Shown):
    """The next plan after devices are lost or return."""

    schema_: Annotated[str, Field(alias="schema", pattern=SCHEMAS)] = SCHEMA
    without: tuple[str, ...] = Field(description="what was lost, as given")
    lost: tuple[str, ...] = Field(description="names of the devices lost")
    idle: tuple[str, ...] = Field(
        description="names of devices that the search left out to keep groups equal")
    step_time_before_s: float = Field(description="step time of the plan before")
    moves: Moves
    plan: Plan = Field(description="the next plan; inputs.cluster is what is left")

    def to_json(self, indent: int | None = 2) -> str:
        """The result as the text of one JSON document."""
        return self.model_dump_json(by_alias=True, indent=indent)


if TYPE_CHECKING:
    from nest.search.progress import Follower


@takes(progress="function")
def replan(
    plan: Plan | str | os.PathLike[str] | Mapping[str, Any],
    without: str | Sequence[str],
    space: SearchSpace | None = None,
    *,
    cluster: Cluster | None = None,
    beyond_stack: bool = False,
    reorder: bool = False,
    threads: int | None = None,
    time_limit: float | None = None,
    progress: Follower | None = None,
) -> Replan:
    """Find the next plan after devices are lost, and count what devices must receive for it.

    Parameters
    ----------
    plan : what runs now: a plan, its file or its data. Model and job stay as they are.
    without : parts that are lost, as ``node17`` or ``["node3..5", "leaf2"]``; see
        :func:`nest.network.losses.left_of`.
    space : bounds of the new plan; default: everything legal.
    cluster : the cluster that ``without`` is taken from; default: that of the plan. Give the whole
        cluster, and all that is lost now, where devices have returned. Its devices are those of the
        plan that have the same names.
    reorder : where the network is one of links, try other orders of the devices too, which takes
        twice as long and gains little; devices of several types are always distributed anew.
    beyond_stack, threads, time_limit, progress : as of :func:`nest.plan`.

    Returns
    -------
    Replan
        With the plan, whose ``inputs.cluster`` is what is left, and the ``moves``
        (:mod:`nest.replanning.moves`).

    Raises
    ------
    InputError : no such part, nothing left, or no plan; or one of DualPipe.
    InfeasibleError : nothing fits on what is left.
    LimitError : as of :func:`nest.plan`.
    """
    from nest.network.hierarchy import device_names
    from nest.network.losses import left_of

    before = load_plan(plan)
    given = (without,) if isinstance(without, str) else without
    if not isinstance(given, Sequence) or not all(isinstance(part, str) for part in given):
        raise InputError(f"without: got {shorten(without)}; allowed: a text or a list of texts")
    if not given and cluster is None:
        raise InputError("without: got nothing; allowed: parts that are lost, such as node17, or "
                         "nothing with a cluster")
    if copies(before.parallelism.schedule) > 1:
        raise InputError(f"plan: got schedule {before.parallelism.schedule}, of which two stages "
                         "hold each layer; allowed: others, for what moves between such copies is "
                         "not counted")
    whole = before.inputs.cluster if cluster is None else cluster
    need("cluster", whole, (Cluster,), "nest.load_cluster or nest.load_network")
    left = left_of(whole, given)
    after = fastest(before.inputs.subject, left.cluster, before.inputs.job, space, threads=threads,
                    time_limit=time_limit, beyond_stack=beyond_stack, progress=progress,
                    reorder=reorder or bool(left.cluster.types))
    found = received(
        chain_of(before.inputs.subject), before.inputs.job, before.configuration,
        device_names(before.inputs.cluster), after.configuration,
        device_names(after.inputs.cluster), left.lost)
    each = zip(after.ranks(), found.parameters.tolist(), found.optimizer.tolist(), strict=True)
    both = found.parameters + found.optimizer
    return Replan(
        without=tuple(given), lost=left.lost, idle=left.idle,
        step_time_before_s=before.step_time_s, plan=after,
        moves=Moves(
            total_bytes=float(both.sum()), most_bytes=float(both.max()),
            parameters_bytes=float(found.parameters.sum()),
            optimizer_bytes=float(found.optimizer.sum()),
            lost_parameters_bytes=found.lost_parameters,
            lost_optimizer_bytes=found.lost_optimizer,
            devices=tuple(
                Move(rank=rank.rank, name=rank.name, parameters_bytes=parameters,
                     optimizer_bytes=optimizer)
                for rank, parameters, optimizer in each if parameters + optimizer > 0.0)))
