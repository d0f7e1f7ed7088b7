"""Prices of stages for the oracle: layers under the choices given, summed as they are asked for.

Array names end in what an entry stands for: ``_C`` a choice, ``_B`` choices that no layer can tell
apart (a row of the tables), ``_P`` a recompute policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from oracle_rules import FULL, NONE, Choice, Outer, Policy, shared_level, spreads

from nest.costs.choices import Body, Setting, State
from nest.costs.collectives import Group, Network
from nest.costs.compute import Machine
from nest.costs.layer import layer_costs
from nest.costs.memory import limit_bytes
from nest.describe import Cluster, Job
from nest.graph import Chain, Layer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class StagePrice(NamedTuple):
    """What a step sees of one stage."""

    forward: Floats
    backward: Floats
    finish: Floats
    unhidden: Floats
    """The finish if no traffic were hidden."""
    resident: Floats
    activations: Floats


class LayerPrice(NamedTuple):
    """What a stage sees of one layer; shape (B, codes of recompute)."""

    forward: Floats
    backward: Floats
    sync: Floats
    gather: Floats
    traffic: Floats
    after: Floats
    resident: Floats
    activations: Floats
    work: Floats
    buffers: Floats


class Pricer:
    """Prices of all layers under all choices, each choice under its outer choice."""

    def __init__(
        self, chain: Chain, cluster: Cluster, job: Job, rows: Sequence[tuple[Outer, Choice]],
        policies: Sequence[Policy],
    ) -> None:
        self.chain, self.cluster, self.job, self.policies = chain, cluster, job, policies
        self.network = Network(
            np.array(cluster.resolved_bandwidth),
            np.array([level.latency for level in cluster.levels]),
            np.array([level.in_network_reduction for level in cluster.levels]),
            np.array([level.base_time for level in cluster.levels]),
            np.array([level.ramp for level in cluster.levels]),
        )
        self.setting = Setting(
            Machine(cluster.device, job.stack, job.precision), self.network, job)
        self.limit = limit_bytes(cluster.device, job)
        self.codes = sorted({NONE, *(policy.code for policy in policies)})
        index: dict[tuple[Any, ...], int] = {}
        self.row_C = np.array(
            [index.setdefault(self._key(*row), len(index)) for row in rows], dtype=np.int64)
        self.keys = list(index)
        self.layers = [self._layer(kind) for kind in chain.kinds] if self.keys else []

    def tied_level(self, outer: Outer) -> int:
        """Highest level that a super-pipeline spans, over the replicas."""
        first = [r * outer.stride for r in range(outer.outer_dp)]
        sizes = self.cluster.group_sizes
        return max(shared_level(k, k + outer.stride - 1, sizes) for k in first)

    def _key(self, outer: Outer, c: Choice) -> tuple[Any, ...]:
        """All that a layer can tell of a choice."""
        s = c.split
        groups = spreads(self.cluster.group_sizes, outer.outer_dp, outer.stride, c.start, c.size,
                         s.tp, s.cp, s.ep, s.etp)
        return (outer.micro_batch // s.dp_in, *s[1:], *c.state, self.tied_level(outer), *groups)

    def _layer(self, kind: Layer) -> LayerPrice:
        """Every figure of one kind of layer."""
        wide = [(*key, code) for key in self.keys for code in self.codes]
        columns = list(zip(*wide, strict=True))
        samples, tp, sp, cp, a2a, ep, etp, zero, shard, tied = (np.array(x) for x in columns[:10])
        # In the order of Spreads, which is that of Body and State.
        groups = [
            Group(np.array([s[0] for s in column]), np.array([s[1] for s in column]))
            for column in columns[10:-1]
        ]
        costs = layer_costs(
            kind,
            Body(samples, tp, sp, cp, a2a, ep, etp, np.array(columns[-1]), *groups[:4]),
            State(tp, ep, etp, zero, shard, tied, *groups[4:]),
            self.setting,
        )

        def total(*names: str) -> Floats:
            figures: Floats = sum(getattr(costs, name) for name in names)
            return figures.reshape(len(self.keys), len(self.codes))

        stack = self.job.stack
        return LayerPrice(
            total("forward", "tp_forward", "cp_forward", "ep_forward", "zero_forward"),
            total("backward", "recompute", "tp_backward", "cp_backward", "ep_backward",
                  "zero_backward"),
            total("sync") - stack.overlap_grad_reduce * total("spare"),
            total("gather") - stack.overlap_param_gather * total("free_forward"),
            total("sync", "gather"),
            total("tied", "update"),
            total("parameters", "gradients", "optimizer"),
            total("activations"), total("work"), total("buffers"),
        )

    def stage(
        self, chunks: Sequence[tuple[int, ...]], before: int, policies: Sequence[Policy]
    ) -> StagePrice:
        """Layers of one stage, chunk by chunk, behind the layers ``before``; shape (B, P)."""
        layers = [n for chunk in chunks for n in chunk]
        kinds = self.chain.stage(layers)
        parts, place = [], 0
        for chunk in chunks:
            seen = 0
            for _ in chunk:
                kind, place = kinds[place], place + 1
                code_P = [self.codes.index(self._code(policy, seen)) for policy in policies]
                seen += self.chain.kinds[kind].checkpointed
                parts.append(LayerPrice(*(figure[:, code_P] for figure in self.layers[kind])))
        all_ = LayerPrice(*(np.stack(figures) for figures in zip(*parts, strict=True)))
        relayed = np.array([self._relayed(key, before, layers) for key in self.keys])
        # Under a chunk's ring the next ones compute: of gradients and parameters one share is left.
        sync = np.maximum(0.0, all_.sync.sum(axis=0)) / len(chunks)
        gather = np.maximum(0.0, all_.gather.sum(axis=0)) / len(chunks)
        return StagePrice(
            all_.forward.sum(axis=0),
            all_.backward.sum(axis=0),
            sync + all_.after.sum(axis=0) + gather,
            all_.traffic.sum(axis=0) + all_.after.sum(axis=0),
            all_.resident.sum(axis=0) + all_.work.max(axis=0) + all_.buffers.max(axis=0),
            all_.activations.sum(axis=0) + relayed[:, None],
        )

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

    def _relayed(self, key: tuple[Any, ...], before: int, layers: Sequence[int]) -> float:
        """Bytes per micro-batch of what arrives and no layer of the stage keeps anyhow."""
        samples, tp, sp, cp = key[:4]
        size = 0.0
        for n in self.crossing(before):
            tensor = self.chain.tensors[n]
            if not (tensor.kept and any(consumer in layers for consumer in tensor.consumers)):
                size += self.tensor_bytes(n)
        return float(size * samples / (cp * (tp if sp else 1)))

    def tensor_bytes(self, number: int) -> float:
        """Bytes of a tensor per sample."""
        tensor = self.chain.tensors[number]
        layer = self.chain.kinds[self.chain.order[tensor.producer]]
        if layer.output_bytes is not None:
            return float(layer.output_bytes)
        elements = tensor.copies * (layer.tokens or self.job.seq_len) * layer.hidden
        return float(elements * (4 if self.job.precision == "fp32" else 2))

    def handed(self, outer: Outer, before: int, start: int, stop: int) -> tuple[float, int]:
        """Bytes handed over at a cut, and the level between devices ``start`` and ``stop``."""
        sizes = self.cluster.group_sizes
        level = max(shared_level(r * outer.stride + start, r * outer.stride + stop, sizes)
                    for r in range(outer.outer_dp))
        return outer.micro_batch * sum(map(self.tensor_bytes, self.crossing(before))), level

    def hop(self, size: Any, level: Any, lanes: Any) -> Any:
        """Seconds to hand ``size`` bytes over and as many back."""
        once = size / lanes / self.network.bandwidth[level] + self.network.latency[level]
        return 2.0 * (1.0 - self.job.stack.overlap_p2p) * once
