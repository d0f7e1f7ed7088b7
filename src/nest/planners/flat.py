"""The view of planners before NEST: a flat network, ways to split a layer, and costs of stages.

Shapes: K kinds of layers, C columns (ways to split, with further choices of a planner), J cuts that
a stage may end at.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import FULL, Site, bodies, setting, states
from nest.costs.layer import body_costs
from nest.costs.network.fabric import fabric_of
from nest.costs.network.placement import aligned
from nest.costs.zero import StateCosts, state_costs
from nest.inputs.cluster import Cluster, Level
from nest.inputs.job import Job
from nest.inputs.space import SearchSpace
from nest.model import Chain, boundary_bytes
from nest.model.legality import expert_problem, tensor_degrees, tp_problem

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


# ---------------------------------------------------------------- the network


def flat_network(cluster: Cluster) -> Cluster:
    """All pairs of devices equal: one level with the figures of the outermost one.

    The methods take one bandwidth, "from each device to the outside" (Piper, README of
    msr-fiddle/piper): the outermost level is the one available to any two devices.
    """
    return _leveled(cluster, (_level("network", cluster.size, cluster, _outermost(cluster)),))


def two_level_network(cluster: Cluster) -> Cluster:
    """All devices of a node equal, and all nodes equal: the view of Alpa (arXiv:2201.12023, section
    2).

    The node is the innermost level that joins devices; between nodes the outermost level counts,
    as in :func:`flat_network`.
    """
    inner = next((v for v, level in enumerate(cluster.levels) if level.size > 1), 0)
    node = cluster.group_sizes[inner]
    levels = [_level("node", node, cluster, inner)]
    if cluster.size > node:
        levels.append(_level("network", -(-cluster.size // node), cluster, _outermost(cluster)))
    return _leveled(cluster, tuple(levels))


def _outermost(cluster: Cluster) -> int:
    """The outermost level that joins anything."""
    return max((v for v, level in enumerate(cluster.levels) if level.size > 1), default=0)


def _level(name: str, size: int, cluster: Cluster, like: int) -> Level:
    return cluster.levels[like].replace(
        name=name, size=size, whole=None, bandwidth=cluster.resolved_bandwidth[like],
        oversubscription=None, efficiency=1.0)


def _leveled(cluster: Cluster, levels: tuple[Level, ...]) -> Cluster:
    return cluster.replace(
        levels=levels, devices=cluster.size, default_devices=None, links=None)


# ---------------------------------------------------------------- what may be chosen


class LayerSplit(NamedTuple):
    """How the devices that share a sample split a layer."""

    tp: int
    sp: bool
    ep: int
    etp: int


def sequence_split(chain: Chain, job: Job, space: SearchSpace, tp: int) -> bool | None:
    """Sequence parallelism if it is legal, since it costs nothing; None: tp is not possible."""
    for sp in (True, False) if tp > 1 else (False,):
        if (space.allows("tp", tp) and (tp == 1 or space.allows("sp", sp))
                and not tp_problem(chain, job, tp, sp)):
            return sp
    return None


def ways(chain: Chain, cluster: Cluster, job: Job, space: SearchSpace) -> list[LayerSplit]:
    """Ways to split a layer over tp devices, by tp.

    The methods take them as measured input. Experts are split in their widths (etp) or distributed
    (ep) over the same tp devices; no method uses more devices for them.
    """
    found = []
    for tp in tensor_degrees(chain, cluster.size):
        sp = sequence_split(chain, job, space, tp)
        pairs = ((1, tp),) if chain.experts is None else tuple({(1, tp), (tp, 1)})
        for ep, etp in sorted(pairs):
            if (sp is not None and space.allows("ep", ep) and space.allows("etp", etp)
                    and not expert_problem(chain, ep, etp)):
                found.append(LayerSplit(tp, sp, ep, etp))
    return found


def policies(space: SearchSpace) -> tuple[str, ...]:
    """Recompute policies of the methods that a space allows: nothing or everything."""
    return tuple(name for name in ("none", "full") if space.allows("recompute", name))


def full_allowed(space: SearchSpace, layers: Ints) -> NDArray[np.bool_]:
    """Whether stages with this many recomputed layers may run all of them again."""
    given = space.recompute_layers
    return np.full(np.shape(layers), True) if given is None else layers <= given.largest


def legal_starts(size: int, cluster: Cluster) -> Ints:
    """First devices that a block of ``size`` devices may have, ascending."""
    return np.array([start for start in range(cluster.size - size + 1)
                     if aligned(start, size, cluster.group_sizes)], dtype=np.int64)


def most_that_fit(room: Array, each: Array) -> Array:
    """How many times ``each`` bytes fit into ``room``; at most 10**6."""
    many = np.where(each > 0, room / np.where(each > 0, each, 1.0), np.inf)
    return np.where(room < 0, 0.0, np.floor(np.minimum(many, 1e6)))


# ---------------------------------------------------------------- prices


class BodyPrices(NamedTuple):
    """Costs of a micro-batch by layer kind; seconds and bytes, shape (K, C)."""

    forward: Array
    backward: Array
    again: Array
    """Extra backward time with full recompute."""
    kept: Array
    """Bytes per micro-batch in flight."""
    spared: Array
    """Part of ``kept`` that full recompute drops."""
    work: Array
    """Largest, not summed: temporary bytes within a layer."""
    full_work: Array
    """The same with full recompute."""


def body_prices(
    chain: Chain, cluster: Cluster, job: Job, found: Sequence[LayerSplit], samples: Sequence[int]
) -> BodyPrices:
    """Each layer kind on tp neighbouring devices, as in a profile.

    Parameters
    ----------
    cluster : the network that the tp devices are on.
    found, samples : C ways to split, and samples of the micro-batch that each takes.
    """
    one = np.ones(len(found), dtype=np.int64)
    tp, sp, ep, etp = (np.array(column) for column in zip(*found, strict=True))
    body = bodies(fabric_of(cluster), Site.alone(tp), np.array(samples), tp, sp, one, one,
                  one == 0, ep, etp, recompute=np.array([[0, FULL]]))
    rows = []
    for kind in chain.kinds:
        c = body_costs(kind, body, setting(cluster, job))
        ahead = c.forward + c.tp_forward + c.ep_forward
        back = c.backward + c.recompute + c.tp_backward + c.ep_backward
        rows.append((ahead[:, 0], back[:, 0], back[:, 1] - back[:, 0], c.activations[:, 0],
                     c.activations[:, 0] - c.activations[:, 1], c.work[:, 0], c.work[:, 1]))
    return BodyPrices(*(np.stack(column) for column in zip(*rows, strict=True)))


def replicated(
    chain: Chain, cluster: Cluster, job: Job, found: Sequence[LayerSplit], copies: Sequence[int]
) -> list[StateCosts]:
    """Parameters of each layer kind held by ``copies`` data-parallel ranks, without ZeRO.

    One entry per layer kind; arrays of shape (C,). ``cluster`` is the network between the ranks.
    """
    tp, _, ep, etp = (np.array(column) for column in zip(*found, strict=True))
    zero = np.zeros_like(tp)
    state = states(fabric_of(cluster), Site.alone(tp * np.array(copies)), tp, ep * etp, zero, zero)
    return [state_costs(kind, state, setting(cluster, job)) for kind in chain.kinds]


# ---------------------------------------------------------------- stages


class Cuts:
    """Where a chain may be cut, and sums over the layers between two cuts.

    Parameters
    ----------
    masks : the layers before each cut as bits, from none to all; downsets of the chain.
    """

    def __init__(self, chain: Chain, job: Job, masks: Sequence[int]) -> None:
        self.chain, self.masks = chain, tuple(masks)
        self.last = len(self.masks) - 1
        counts = np.zeros((len(self.masks), len(chain.kinds)), dtype=np.int64)
        for cut, mask in enumerate(self.masks):
            for layer in layers_in(mask):
                counts[cut, chain.order[layer]] += 1
        self._counts = counts
        self._whole = np.bincount(chain.stage(range(len(chain))), minlength=len(chain.kinds))
        self.bytes = np.array([boundary_bytes(chain, job, mask) for mask in self.masks])
        """Bytes per sample that cross each cut."""
        self._after = [
            np.array([j for j in range(i + 1, self.last + 1)
                      if not self.masks[i] & ~self.masks[j]], dtype=np.int64)
            for i in range(self.last + 1)]

    def after(self, i: int) -> Ints:
        """Cuts that a stage may end at which begins at cut ``i``, ascending; (J,)."""
        return self._after[i]

    def counts(self, i: int) -> Ints:
        """Layers of each kind of the stages that begin at cut ``i``; (J, K)."""
        after = self._after[i]
        found: Ints = self._counts[after] - self._counts[i]
        if i == 0:
            found[after == self.last] = self._whole
        return found

    def sums(self, i: int, each: Array) -> Array:
        """Sums of ``each``, (K, C), over the layers of these stages; (J, C)."""
        return np.asarray(self.counts(i) @ each, dtype=np.float64)

    def largest(self, i: int, each: Array) -> Array:
        """Largest of ``each``, (K, C), over the layers of these stages; (J, C)."""
        here = self.counts(i)[:, :, None] > 0
        return np.asarray(np.where(here, each[None], 0.0).max(axis=1))

    def recomputed(self, i: int) -> Ints:
        """Layers that recompute applies to in these stages; (J,)."""
        return np.asarray(self.counts(i) @ self._checkpointed, dtype=np.int64)

    @cached_property
    def _checkpointed(self) -> Ints:
        return np.array([kind.checkpointed for kind in self.chain.kinds], dtype=np.int64)

    def spans(self, path: Sequence[int]) -> list[tuple[int, int]]:
        """Layers [i, j) of each stage of a path of cuts, in the order of :meth:`order`."""
        sizes = [self.masks[cut].bit_count() for cut in path]
        return list(zip(sizes, sizes[1:], strict=False))

    def order(self, path: Sequence[int]) -> tuple[int, ...] | None:
        """Layers in the order of the stages of a path; None: as the model lists them."""
        found: list[int] = []
        for before, after in zip(path, path[1:], strict=False):
            found += layers_in(self.masks[after] & ~self.masks[before])
        return None if found == sorted(found) else tuple(found)


def layers_in(mask: int) -> list[int]:
    """Numbers of the layers of a bitmask, ascending."""
    return [n for n in range(mask.bit_length()) if mask >> n & 1]
