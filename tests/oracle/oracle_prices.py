"""Prices of stages for the oracle: layers under the choices given, put together as asked for.

Array names end in what an entry stands for: ``_C`` a choice, ``_B`` choices that no layer can tell
apart (a row of the tables), ``_P`` a recompute policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from oracle_links import Pace, Seen, arrays, fabric
from oracle_rules import FULL, NONE, Choice, Outer, Policy, shards, shared_level, spreads

from nest.costs.choices import Body, StageSetting, State
from nest.costs.compute import Machine
from nest.costs.imbalance import ALONE, Meeting, Waits
from nest.costs.layer import layer_costs
from nest.costs.network.collectives import Group, Network
from nest.inputs import Cluster, Configuration, Job, Stack
from nest.model import Chain, Layer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Run(NamedTuple):
    """What a step sees of layers that run one after the other: a stage, or one chunk of it."""

    forward: Floats
    """After the device has waited: the parameters of two layers are there."""
    backward: Floats
    """The same, and the last of its step: nothing is gathered for a task behind it."""
    late_f: Floats
    """Until what a forward behind a backward needs first is there, its end waits so much more."""
    late_b: Floats
    """The same where a backward is behind it."""
    f_after_f: Floats
    """What a forward takes longer right behind a forward."""
    f_after_b: Floats
    b_after_f: Floats
    b_after_b: Floats
    gathers: Floats
    """Above 0: parameters are gathered for each task."""
    alone: Floats
    """Above 0: it is a single layer."""
    regathered: Floats
    """Of the last layer, before each backward."""
    below: Floats
    """Of the last layer but one, while the last one goes backward."""
    above: Floats
    """Scatter of the second layer, while the first one goes backward."""
    under_first: Floats
    """What the first layer hides going backward."""
    under_last: Floats
    """What the last one hides going forward."""
    ahead: Floats
    """Traffic of the second and third layer, less what the first two hide going forward."""
    begun: Floats
    """Of the second layer, what the first one does not hide going forward."""
    third: Floats
    """Of the third layer, what the second one does not hide going forward."""
    trailing: Floats
    """Scatter of the first layer that runs on behind a backward."""
    under_forward: Floats
    """Of it, what one forward hides."""
    under_backward: Floats
    """Of it, what the next backward hides."""
    gathered: Floats
    """Of the first layer, before each forward."""
    wait: Floats
    """For parameters before the first forward, besides ``gathered``."""
    scattered: Floats
    """Of the first layer, after each backward."""
    left: Floats
    """Gradient reduction after the last backward, besides ``scattered``."""
    sync: Floats
    hidden_backward: Floats
    """Gradient reduction that one backward behind another hides."""
    gather: Floats
    hidden_forward: Floats
    """Gather of parameters that one forward hides."""
    update: Floats
    tied: Floats
    resident: Floats
    work: Floats
    buffers: Floats
    activations: Floats
    limit: Floats
    """Bytes that a device of the stage may hold."""


    @property
    def hollow(self) -> bool:
        """Whether there are no layers."""
        names = set(self._fields) - {"limit", "activations", "resident"}
        return not any(np.any(getattr(self, name)) for name in names)


class LayerPrice(NamedTuple):
    """What a run sees of one layer; shape (B, codes of recompute)."""

    forward: Floats
    """With exposed traffic of tp, cp and ep."""
    backward: Floats
    free_forward: Floats
    free_backward: Floats
    gathered: Floats
    regathered: Floats
    scattered: Floats
    sync: Floats
    gather: Floats
    update: Floats
    tied: Floats
    resident: Floats
    activations: Floats
    work: Floats
    buffers: Floats
    maxima: Floats
    """Of each task of a run that begins with the layer."""


PARTS = {
    "forward": ("forward", "tp_forward", "cp_forward", "ep_forward", "offload_forward",
                "slowed_forward"),
    "backward": ("backward", "recompute", "tp_backward", "cp_backward", "ep_backward",
                 "offload_backward", "slowed_backward"),
    "resident": ("parameters", "gradients", "optimizer"),
}
"""Of which costs of a layer a price is the sum, where it is not one of them."""


def waits_of(pp: int, schedule: str, zeros: Sequence[int], shards: Sequence[str]) -> Waits:
    """How ranks wait for longer samples: stages count as the next of 1, 2, 3, 4, 6, 8, 12, ...; one
    with ZeRO-3 makes all that share parameters wait in each micro-batch, or those of its block
    where all stages that shard do so inside blocks.
    """
    meet: Meeting = "step"
    if 3 in zeros:
        sharding = {shard for zero, shard in zip(zeros, shards, strict=True) if zero}
        meet = "block" if sharding == {"dp_in"} else "all"
    stages = min(n for k in range(8) for n in (2**k, 3 * 2**k) if n >= pp)
    return Waits(stages, {"1f1b": "none", "gpipe": "all"}.get(
        schedule if pp > 1 else "", "some"), meet)  # type: ignore[arg-type]


def waits_in(job: Job, plan: Configuration) -> Waits:
    """Those of a plan."""
    return waits_of(plan.pp, plan.schedule, [stage.zero for stage in plan.stages],
                    [stage.shard for stage in plan.stages]) if job.uneven else ALONE


class Pricer:
    """Prices of all layers under all choices, each choice under its outer choice."""

    def __init__(
        self, chain: Chain, cluster: Cluster, job: Job, rows: Sequence[tuple[Outer, Choice]],
        policies: Sequence[Policy], waits: Waits = ALONE,
    ) -> None:
        self.chain, self.cluster, self.job, self.policies = chain, cluster, job, policies
        self.network = Network(
            np.array(cluster.resolved_bandwidth),
            np.array([level.latency for level in cluster.levels]),
            np.array([level.in_network_reduction for level in cluster.levels]),
            np.array([level.base_time for level in cluster.levels]),
            np.array([level.ramp for level in cluster.levels]),
            np.array([float(level.axes) for level in cluster.levels]),
            np.array([float(level.size) for level in cluster.levels]),
        )
        self.fabric = fabric(cluster)
        devices = (cluster.device, *cluster.types)
        self.settings = [StageSetting(Machine(device, job.stack, job.precision), self.network, job,
                                      waits=waits)
                         for device in devices]
        used = 1.0 - job.stack.fragmentation - job.memory_margin
        self.limits = [device.memory * used - device.memory_reserved - job.stack.workspace
                       for device in devices]
        self.codes = sorted({NONE, *(policy.code for policy in policies)})
        self._groups: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._coded: dict[tuple[int, tuple[int, ...]], LayerPrice] = {}
        index: dict[tuple[Any, ...], int] = {}
        self.row_C = np.array(
            [index.setdefault(self._key(*row), len(index)) for row in rows], dtype=np.int64)
        self.keys = list(index)
        self.limit_B = np.array([self.limits[key[12]] for key in self.keys])
        self.received_B = np.array([key[-1] for key in self.keys])
        # Samples that a device works on, and how many devices share each of them.
        self.samples_B = np.array([key[0] for key in self.keys])
        self.shared_B = np.array([cp * (tp if sp else 1) for _, tp, sp, cp, *_ in self.keys])

    @cached_property
    def layers(self) -> list[LayerPrice]:
        """Every figure of every kind of layer."""
        return [self._layer(kind) for kind in self.chain.kinds]

    def between(self, outer: Outer, start: int, stop: int) -> Pace:
        """Seconds per byte, and of a message, between two devices of the slowest replica."""
        if self.fabric is not None:
            return self.fabric.between(outer, start, stop)
        sizes = self.cluster.group_sizes
        level = max(shared_level(r * outer.stride + start, r * outer.stride + stop, sizes)
                    for r in range(outer.outer_dp))
        return 1.0 / self.network.bandwidth[level], self.network.latency[level]

    def _key(self, outer: Outer, c: Choice) -> tuple[Any, ...]:
        """All that a layer can tell of a choice."""
        s = c.split
        place = outer.outer_dp, outer.stride, c.start, c.size, s.tp, s.cp, s.ep, s.etp, s.inner
        if place not in self._groups:
            found = spreads(self.cluster.group_sizes, *place)
            groups = map(Seen, found)
            if self.fabric is not None:
                groups = self.fabric.seen(
                    outer, c.start, c.size, s.tp, s.cp, (s.ep, s.etp), found, s.inner)
            tied = self.between(outer, 0, outer.stride - 1)
            # Who has samples of its own, where they differ in length: all, and in the block.
            own = (outer.outer_dp * s.dp_in, s.dp_in) if self.job.lengths else (1, 1)
            self._groups[place] = (*tied, self.device(c.start), own, *groups)
        samples = 0.0  # of a step, for which a device of a pipeline has buffers
        if self.job.stack.receives_all:
            samples = self.job.global_batch / outer.outer_dp / shards(s, self.job)
        return (outer.micro_batch // s.dp_in, *s[1:], *c.state, *self._groups[place], samples)

    def device(self, start: int) -> int:
        """Type of the devices of a block."""
        return 0 if self.cluster.type_numbers is None else self.cluster.type_numbers[start]

    def _layer(self, kind: Layer) -> LayerPrice:
        """Every figure of one kind of layer."""
        codes = len(self.codes)
        table = np.zeros((len(LayerPrice._fields), len(self.keys), codes))
        for device, (rows, body, state) in self._asked.items():
            costs = layer_costs(kind, body, state, self.settings[device])
            for figure, name in zip(table, LayerPrice._fields, strict=True):
                parts = PARTS.get(name, (name,))
                figure[rows] = sum(getattr(costs, part) for part in parts).reshape(-1, codes)
        return LayerPrice(*table)

    @cached_property
    def _asked(self) -> dict[int, tuple[Ints, Body, State]]:
        """For each type of device its rows, and these under every code of recompute."""
        found, times = {}, len(self.codes)
        device_B = np.array([key[12] for key in self.keys])
        for device in set(device_B.tolist()):
            rows = np.flatnonzero(device_B == device)
            columns = list(zip(*(self.keys[row] for row in rows), strict=True))
            samples, tp, sp, cp, inner, gather, ep, etp, *state = (
                np.repeat(column, times) for column in columns[:12])
            # In the order of Spreads, which is that of Body and State.
            groups = [arrays(column, times) for column in columns[14:-1]]
            codes = np.tile(self.codes, len(rows))
            body = Body(samples, tp, sp, cp, inner, gather, ep, etp, codes, *groups[:5],
                        *np.repeat(np.array(columns[13]), times, axis=0).T)
            found[device] = rows, body, State(
                tp, ep, etp, *state, *groups[5:-1], all_group=self.reducing(groups[-1]))
        return found

    def reducing(self, every: Group) -> Group | None:
        """Who reduces maxima: all devices of a stage, or none."""
        maxima = self.job.precision == "fp8-delayed" and self.job.stack.reduces_maxima
        return every if maxima else None

    def run(self, layers: Sequence[int], before: int, policies: Sequence[Policy], piped: bool
            ) -> Run:
        """Layers that run one after the other, behind the layers ``before``; shape (B, P).

        ``piped``: on one of several stages.
        """
        parts, seen = [], 0
        for kind in self.chain.stage(layers):
            code_P = tuple(self.codes.index(self._code(policy, seen)) for policy in policies)
            seen += self.chain.kinds[kind].checkpointed
            if (kind, code_P) not in self._coded:
                self._coded[kind, code_P] = LayerPrice(
                    *(figure[:, code_P] for figure in self.layers[kind]))
            parts.append(self._coded[kind, code_P])
        limit = np.repeat(self.limit_B[:, None], len(policies), axis=1)
        inside = sum(1 << layer for layer in layers)
        received = (self.received_B * (self.size(before) + self.size(before | inside)))[:, None]
        if not parts:
            nothing = Run(*[np.zeros_like(limit)] * len(Run._fields))
            return nothing._replace(limit=limit, resident=received + nothing.resident)
        relayed = self.relayed(before, layers) * self.samples_B / self.shared_B
        run = run_of(parts, reducing(self.job.stack, piped), relayed[:, None], limit)
        return run._replace(resident=run.resident + received)

    @staticmethod
    def _code(policy: Policy, seen: int) -> int:
        """Recompute of a layer with ``seen`` checkpointed layers in front in its chunk."""
        last = policy.code == FULL and policy.first is not None and seen >= policy.first
        return NONE if last else policy.code

    def crossing(self, before: int) -> list[int]:
        """Numbers of the tensors that the layers ``before`` hand to those behind."""
        return [
            n for n, tensor in enumerate(self.chain.tensors)
            if before >> tensor.producer & 1
            and any(not before >> consumer & 1 for consumer in tensor.consumers)
        ]

    def size(self, before: int) -> float:
        """Bytes per sample of these."""
        return sum(map(self.tensor_bytes, self.crossing(before)), 0.0)

    def relayed(self, before: int, layers: Sequence[int]) -> float:
        """Bytes per sample of what arrives and no layer of the stage keeps anyhow."""
        size = 0.0
        for n in self.crossing(before):
            tensor = self.chain.tensors[n]
            if not (tensor.kept and any(consumer in layers for consumer in tensor.consumers)):
                size += self.tensor_bytes(n)
        return size

    def tensor_bytes(self, number: int) -> float:
        """Bytes of a tensor per sample."""
        tensor = self.chain.tensors[number]
        layer = self.chain.kinds[self.chain.order[tensor.producer]]
        if layer.output_bytes is not None:
            return float(layer.output_bytes)
        elements = tensor.copies * (layer.tokens or self.job.seq_len) * layer.hidden
        return float(elements * (4 if self.job.precision == "fp32" else 2))

    def handed(
        self, outer: Outer, before: int, start: int, stop: int
    ) -> tuple[float, float, float]:
        """Bytes handed over at a cut; seconds per byte, and of a message, between two devices."""
        return outer.micro_batch * self.size(before), *self.between(outer, start, stop)

    def hop(self, size: Any, per_byte: Any, latency: Any, lanes: Any) -> Any:
        """Seconds to hand ``size`` bytes over and as many back."""
        once = self.gap(size, per_byte, lanes) + latency
        return 2.0 * (1.0 - self.job.stack.overlap_p2p) * once

    def gap(self, size: Any, per_byte: Any, lanes: Any) -> Any:
        """Seconds for which a message of ``size`` bytes fills its lanes, overlapped or not."""
        return size / lanes * per_byte


def exposed(traffic: Floats, hidden: float, free: Floats) -> Floats:
    """Seconds of traffic that do not run under computing."""
    return np.maximum(0.0, traffic - hidden * free)


def unused(free: Floats, traffic: Floats, o: float) -> Floats:
    """Seconds of computing that hide no ZeRO traffic; all or nothing where none is hidden."""
    if o:
        return np.maximum(0.0, free - traffic / o)
    return np.where(traffic > 0.0, 0.0, free)


def tasks_in_a_row(layers: Sequence[LayerPrice], o: float) -> tuple[Floats, ...]:
    """What ZeRO-3 adds where tasks follow each other: LATE_F .. B_AFTER_B of a run."""
    first, end = layers[0], layers[-1]
    x, y, x_end, y_end = (o * first.free_forward, o * first.free_backward,
                          o * end.free_forward, o * end.free_backward)
    zero = np.zeros_like(x)

    def more(traffic: Floats, hidden: Floats) -> Floats:
        return np.maximum(0.0, traffic - hidden)

    f_after_f, b_after_f = more(first.gathered, x_end), more(end.regathered, x_end)
    if len(layers) == 1:
        cycle = more(first.gathered + first.regathered + first.scattered, x + y)
        f_after_b = np.maximum(more(first.gathered, y), cycle - b_after_f)
        return (zero, zero, f_after_f, f_after_b, b_after_f,
                more(first.scattered + end.regathered, y))
    second, above = layers[1].gathered, layers[1].scattered
    f_after_f = f_after_f + more(second, x)
    f_after_b = more(second + first.scattered, x)
    if len(layers) > 2:
        third, x_second = layers[2].gathered, o * layers[1].free_forward
        f_after_b = np.maximum(more(second, x), more(
            second + first.scattered + third, x + x_second) - more(third, x_second))
    below = layers[-2].regathered
    return (more(above + first.gathered, y) - more(above, y),
            more(above + end.regathered, y) - more(above, y),
            f_after_f, f_after_b, b_after_f + more(below, y_end),
            more(below + first.scattered, y_end))


def around(layers: Sequence[LayerPrice], o: float) -> tuple[Floats, ...]:
    """ALONE .. THIRD of a run: traffic at its borders, and what hides it."""
    first, end = layers[0], layers[-1]
    nothing = np.zeros_like(first.forward)
    below = above = ahead = begun = third = nothing
    if len(layers) > 1:
        below, above = layers[-2].regathered, layers[1].scattered
        ahead = layers[1].gathered - o * first.free_forward
        begun = exposed(layers[1].gathered, o, first.free_forward)
    if len(layers) > 2:
        ahead = ahead + layers[2].gathered - o * layers[1].free_forward
        third = exposed(layers[2].gathered, o, layers[1].free_forward)
    return (nothing + (len(layers) == 1), end.regathered, below, above,
            o * first.free_backward, o * end.free_forward, ahead, begun, third)


def reducing(stack: Stack, piped: bool) -> Stack:
    """The stack as it reduces gradients on one of several stages, or on a single one."""
    return stack.replace(overlap_grad_reduce=0.0) if piped and stack.late_reduction else stack


def run_of(
    layers: Sequence[LayerPrice], stack: Stack, relayed: Floats, limit: Floats
) -> Run:
    """Layers that run one after the other; all figures of one shape.

    While a layer computes, parameters of the next one are gathered and gradients of the one before
    are scattered. Besides, a backward hides the reduction of gradients that are complete by then.
    After the device has waited, what its first two layers need is there already.
    """
    o, r, q = stack.overlap_zero3, stack.overlap_grad_reduce, stack.overlap_param_gather
    first, end, last = layers[0], layers[-1], len(layers) - 1
    zeros = np.zeros_like(first.forward)
    gathers = np.any([x.gathered > 0.0 for x in layers], axis=0)
    forward = backward = first.maxima
    spare = in_a_row = free = sync = gather = left = wait = zeros
    for i, x in enumerate(layers):
        forward, backward = forward + x.forward, backward + x.backward
        if 0 < i < last:
            forward = forward + exposed(layers[i + 1].gathered, o, x.free_forward)
        behind = layers[i + 1].scattered if i < last else zeros
        below = layers[i - 1].regathered if i > 0 else zeros
        if i < last:
            backward = backward + exposed(behind + below, o, x.free_backward)
        back = behind + (below if i > 0 else x.gathered)
        # A reduction begins with its layer's backward over: only layers in front hide it.
        sync, gather = sync + x.sync, gather + x.gather
        left = np.maximum(left, sync - r * spare)
        wait = np.maximum(wait, gather - q * free)
        spare = spare + unused(x.free_backward, back, o)
        # Behind another backward, what that leaves to scatter is beside the last layer; in front
        # of another one, what that gathers is beside the first.
        back = back + (first.scattered if i == last else 0.0)
        if i == 0:
            back = back - x.gathered + np.maximum(x.gathered, end.regathered)
        in_a_row = in_a_row + unused(x.free_backward, back, o)
        free = free + x.free_forward
    if last:
        wait = wait + exposed(layers[1].gathered, o, first.free_forward)
    between = [np.where(gathers, figure, 0.0) for figure in tasks_in_a_row(layers, o)]
    trailing = np.where(gathers, 0.0, first.scattered)
    under_f, under_b = o * free, o * end.free_backward
    return Run(
        forward, backward, *between, np.where(gathers, 1.0, 0.0), *around(layers, o), trailing,
        under_f, under_b, first.gathered, wait, first.scattered, left, sync, r * in_a_row, gather,
        q * free,
        np.sum([x.update for x in layers], axis=0), np.sum([x.tied for x in layers], axis=0),
        np.sum([x.resident for x in layers], axis=0), np.max([x.work for x in layers], axis=0),
        np.max([x.buffers for x in layers], axis=0),
        np.sum([x.activations for x in layers], axis=0) + relayed, limit,
    )
