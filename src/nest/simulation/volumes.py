"""Bytes that a device sends in the collectives of a layer, by the functions that price them.

A network counts them: one byte a second over the links of one group, any number over all others,
and no latency. What a layer costs on it in seconds is what is sent over that group in bytes, so
that every size has one definition, in :mod:`nest.costs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from nest.costs.choices import Body, StageSetting, State
from nest.costs.compute import Machine
from nest.costs.layer import layer_costs
from nest.costs.network.collectives import Group, Network
from nest.evaluation.stages import Pricing, body_of, state_of
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.model import Layer
from nest.model.operators import Traffic

GROUPS = ("tp", "swap", "cp", "ep", "etp", "dp", "expert_dp", "inner", "inner_expert", "outer",
          "tied")
"""Groups of ranks: tensor parallel; ranks of context parallelism that exchange by all-to-all (swap)
and by ring or gather (cp), a recurrence in both by all-to-all; expert and expert tensor parallel;
holders of the same dense or expert parameters, in all replicas or in one (inner); the same rank of
all replicas; holders of a tied embedding."""
GATHER, SCATTER, REDUCE, EXCHANGE = "all_gather", "reduce_scatter", "all_reduce", "all_to_all"
_TENSOR = {GATHER: ("forward_gathers", "backward_gathers"),
           SCATTER: ("forward_scatters", "backward_scatters"),
           REDUCE: ("forward_reduces", "backward_reduces")}
_HELD = {"gathered": GATHER, "regathered": GATHER, "scattered": SCATTER, "gather": GATHER}


class Sent(NamedTuple):
    """Collectives of one sort over one group, taken together."""

    field: str
    """Of :class:`nest.costs.layer.LayerCosts`: what they are for."""
    collective: str
    group: str
    size: float
    """Bytes that a device sends to others; a ring of reduce-scatter and all-gather reduces."""

    def buffer(self, members: int) -> float:
        """Bytes of the buffer that a member of a group hands in."""
        if self.collective == GATHER:
            return self.size / (members - 1)
        return self.size * members / (members - 1) / (2.0 if self.collective == REDUCE else 1.0)


def layer_volumes(
    pricing: Pricing, way: Configuration, stage: StageConfiguration, kind: int, again: int
) -> tuple[tuple[Sent, ...], tuple[float, float]]:
    """What a device of a stage sends for one layer, and the seconds that copying it takes.

    Parameters
    ----------
    kind : number of the layer's kind in the chain.
    again : recompute policy, see :func:`nest.costs.choices.policy`.

    Returns
    -------
    For each field with traffic what is sent for a micro-batch, or for a step where the field is
    that of a step; seconds forward and backward in which tensor parallelism copies what it sends
    (``sequence_copies`` of the stack), and context parallelism what it gathers.
    """
    layer, body = pricing.chain.kinds[kind], body_of(stage, way, again, pricing.fabric)
    counter = _Counter(layer, body, state_of(stage, way, pricing.fabric),
                       pricing.setting(way, stage))
    return (tuple(one for one in _sent(counter, stage) if one.size > 0.0),
            (counter.free["tp_forward"] + counter.free["cp_forward"],
             counter.free["tp_backward"] + counter.free["cp_backward"]))


class _Counter:
    """A layer on networks that count."""

    def __init__(self, layer: Layer, body: Body, state: State, s: StageSetting) -> None:
        self.layer, self.stack = layer, s.machine.stack
        sizes = (*body.groups, *state.groups)
        groups = [_group(level, int(group.size[0])) for level, group in enumerate(sizes)]
        self.body = body._replace(
            tp_group=groups[0], swap_group=groups[1], cp_group=groups[2], ep_group=groups[3],
            etp_group=groups[4])
        self.state = state._replace(
            dp_group=groups[5], expert_dp_group=groups[6], inner_group=groups[7],
            inner_expert_group=groups[8], outer_group=groups[9],
            tied_per_byte=np.zeros(1), tied_latency=np.zeros(1))
        bare = self.stack.model_copy(update={"overlap_tp": 0.0, "overlap_cp": 0.0})
        machine = Machine(s.machine.device, bare, s.job.precision)
        machine.tp_exposed = 1.0
        self.setting = replace(s, machine=machine)

    def counted(self, group: str, layer: Layer | None = None) -> dict[str, float]:
        """Bytes over a group by field; 0 for fields without traffic."""
        found = self.costs(group, layer)
        free = self.free if layer is None else self.costs(None, layer)
        return {name: found[name] - free[name] for name in found}

    @cached_property
    def free(self) -> dict[str, float]:
        """What the layer costs where no byte takes any time."""
        return self.costs(None)

    def costs(self, group: str | None, layer: Layer | None = None) -> dict[str, float]:
        """What the layer costs where a byte over one group takes a second, over others nothing."""
        level = GROUPS.index(group) if group is not None else -1
        rate = np.where(np.arange(len(GROUPS)) == level, 1.0, np.inf)
        still = np.zeros(len(GROUPS))
        network = Network(rate, still, np.zeros(len(GROUPS), dtype=bool))
        state = self.state._replace(tied_per_byte=np.ones(1)) if group == "tied" else self.state
        costs = layer_costs(layer or self.layer, self.body, state,
                            replace(self.setting, network=network))
        return {name: float(value[0]) for name, value in vars(costs).items()}


def _group(level: int, size: int) -> Group:
    """A group whose members meet at one level."""
    inside = np.where(np.arange(len(GROUPS)) < level, 1, size)[None, :]
    return Group(inside.astype(np.int64), np.ones(1, dtype=bool))


def _sent(counter: _Counter, stage: StageConfiguration) -> Iterator[Sent]:
    layer, ways = counter.layer, ("forward", "backward")
    for collective, names in _TENSOR.items():
        found = counter.counted("tp", replace(
            layer, traffic=_alone(layer.traffic, names), cross_traffic=None
            if layer.cross_traffic is None else _alone(layer.cross_traffic, names)))
        yield from (Sent(f"tp_{way}", collective, "tp", found[f"tp_{way}"]) for way in ways)
    found = counter.counted("swap")
    yield from (Sent(f"cp_{way}", EXCHANGE, "swap", found[f"cp_{way}"]) for way in ways)
    found = counter.counted("cp")
    if any(op.type == "scan" for op in layer.operators):
        yield from (Sent(f"cp_{way}", EXCHANGE, "cp", found[f"cp_{way}"]) for way in ways)
        found = dict.fromkeys(found, 0.0)
    # Gradients of what was gathered are reduced, as many bytes; those of a ring travel on.
    once = found["cp_forward"]
    scattered = once if stage.cp_comm == "all_gather" else 0.0
    yield Sent("cp_forward", GATHER, "cp", once)
    yield Sent("cp_backward", SCATTER, "cp", scattered)
    if found["cp_backward"] > (1.0 + 1e-9) * scattered:
        yield Sent("cp_backward", GATHER, "cp", found["cp_backward"] - scattered)
    halves = {GATHER: 0.5, SCATTER: 0.5}
    shares = halves if counter.stack.dispatcher == "allgather" else {EXCHANGE: 1.0}
    for group, parts in (("ep", shares), ("etp", halves)):
        found = counter.counted(group)
        yield from (Sent(f"ep_{way}", collective, group, share * found[f"ep_{way}"])
                    for way in ways for collective, share in parts.items())
    for group in GROUPS[5:]:
        found = counter.counted(group)
        yield from (Sent(name, collective, group, found[name])
                    for name, collective in _HELD.items())
        last = REDUCE if group == "outer" or stage.zero == 0 else SCATTER
        yield Sent("sync", last, group, found["sync"])
        if group == "tied":
            yield Sent("tied", REDUCE, group, found["tied"])


def _alone(traffic: Traffic, names: tuple[str, str]) -> Traffic:
    """Only some of the collectives."""
    return replace(traffic, **{name: 0 for pair in _TENSOR.values() for name in pair
                               if name not in names})
