"""Bytes that devices must receive where one plan follows another.

A parameter of a layer is a rectangle. Tensor parallelism cuts one side of it into equal pieces;
expert parallelism cuts the other side, and ZeRO cuts what is left of that side over the holders.
Optimizer states are cut as ZeRO-1 does, parameters themselves as ZeRO-3 does. A device receives the
part of its rectangle in the new plan that its rectangle in the old plan does not cover. Bytes are
those of :mod:`nest.costs.layer`: a device that held nothing receives ``memory_bytes.parameters``
and ``memory_bytes.optimizer``, and, where hosts keep optimizer states, what they would take on the
device. Gradients and activations do not outlive a step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.memory import recipe
from nest.costs.operators import share_of
from nest.costs.zero import frozen_bytes, trained_share
from nest.evaluation.stages import layers_of
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.inputs.job import Job
from nest.model import EXPERT, Chain

Floats = NDArray[np.float64]
Cells = tuple[Floats, Floats, Floats, Floats]
"""Rectangles: lower and upper end of the side that tensor parallelism cuts, then of the other."""


class Shard(NamedTuple):
    """How a stage holds parameters that are cut in one way."""

    ranks: int
    """Pieces of the side that tensor parallelism cuts."""
    expert: bool


class Held(NamedTuple):
    """Devices of a plan and their places, arrays of shape (D,)."""

    name: NDArray[np.str_]
    stage: NDArray[np.int64]
    replica: NDArray[np.int64]
    place: NDArray[np.int64]


class Received(NamedTuple):
    """Bytes that the devices of a plan receive, by rank; float64, shape (D,)."""

    parameters: Floats
    optimizer: Floats
    lost_parameters: float
    """Bytes that no device left has a part of."""
    lost_optimizer: float


def received(
    chain: Chain, job: Job, old: Configuration, old_names: Sequence[str], new: Configuration,
    new_names: Sequence[str], lost: Sequence[str],
) -> Received:
    """Bytes that each device of a new plan receives.

    Parameters
    ----------
    chain, job : of both plans; a batch or software that differs does not matter.
    old, new : the plans.
    old_names, new_names : names of the devices of their clusters, in order. A device is the same
        if it has the same name.
    lost : devices that hold nothing any more.
    """
    before, after = _held(old, old_names), _held(new, new_names)
    gone = np.isin(before.name, np.array(lost, dtype=np.str_))
    number = {name: at for at, name in enumerate(before.name.tolist()) if not gone[at]}
    same = np.array([number.get(name, -1) for name in after.name.tolist()])
    found = [_one_state(chain, job, old, before, new, after, same, ~gone, states)
             for states in (False, True)]
    return Received(found[0][0], found[1][0], found[0][1], found[1][1])


def _held(way: Configuration, names: Sequence[str]) -> Held:
    """Devices in the order of ranks, see :func:`nest.evaluation.ranks.ranks`."""
    spans = [stage.devices for stage in way.stages]
    stage = np.repeat(np.arange(way.pp), [stop - first for first, stop in spans])
    place = np.concatenate([np.arange(stop - first) for first, stop in spans])
    first = np.array([span[0] for span in spans])
    replica = np.repeat(np.arange(way.outer_dp), len(stage))
    stage, place = np.tile(stage, way.outer_dp), np.tile(place, way.outer_dp)
    device = replica * way.stride + first[stage] + place
    return Held(np.array(names, dtype=np.str_)[device], stage, replica, place)


def _one_state(
    chain: Chain, job: Job, old: Configuration, before: Held, new: Configuration, after: Held,
    same: NDArray[np.int64], left: NDArray[np.bool_], states: bool,
) -> tuple[Floats, float]:
    """Bytes of parameters, or of optimizer states, by rank; and those that nobody has."""
    missing = np.zeros(len(after.stage))
    for number, stage in enumerate(new.stages):
        mine = np.flatnonzero(after.stage == number)
        wanted = _layers(chain, new, stage)
        missing[mine] = sum(
            size / _grid(new, stage, shard, states)[1]
            for (shard, _), size in _sizes(chain, job, new, stage, wanted, states).items())
        for other, source in enumerate(old.stages):
            kept = mine[(same[mine] >= 0) & (before.stage[same[mine]] == other)]
            shared = wanted & _layers(chain, old, source)
            if not len(kept) or not shared:
                continue
            for (shard, was), size in _sizes(
                    chain, job, new, stage, shared, states, source).items():
                have = _cells(old, source, was, before, same[kept], states)
                want = _cells(new, stage, shard, after, kept, states)
                size /= _grid(new, stage, shard, states)[1]
                missing[kept] -= size * _covered(want, have)
    return np.maximum(missing, 0.0), _nowhere(chain, job, old, before, left, states)


def _bytes_each(job: Job, stage: StageConfiguration, states: bool) -> float:
    """Bytes of a trained parameter, or of its optimizer states."""
    r = recipe(job)
    if not states:
        return r.parameter
    if stage.zero == 0:
        return r.optimizer
    return r.sharded_optimizer - r.merged * (stage.zero == 3)


def _layers(chain: Chain, way: Configuration, stage: StageConfiguration) -> set[int]:
    """Layers of all chunks of a stage, by their numbers in the model."""
    order = way.order or range(len(chain))
    return {order[place] for start, stop in stage.chunks for place in range(start, stop)}


def _sizes(
    chain: Chain, job: Job, way: Configuration, stage: StageConfiguration, layers: set[int],
    states: bool, was: StageConfiguration | None = None,
) -> dict[tuple[Shard, Shard], float]:
    """Bytes of some layers on a device of a stage before ZeRO, by how they are cut.

    Parameters
    ----------
    layers : by number; with all of a model one copy of tied embeddings counts.
    states : optimizer states, which frozen parameters lack; else parameters.
    was : stage whose cut is the second of each key; None: ``stage`` itself.
    """
    order = way.order or range(len(chain))
    found: dict[tuple[Shard, Shard], float] = defaultdict(float)
    kinds: Counter[int] = Counter()
    for span in stage.chunks:
        members = sorted(order[span[0]:span[1]])
        pairs = layers_of(chain, way, stage, span)
        kinds.update(kind for member, (kind, _) in zip(members, pairs, strict=True)
                     if member in layers)
    tp, etp = np.array([stage.tp]), np.array([stage.etp])
    each = _bytes_each(job, stage, states)
    for kind, times in kinds.items():
        layer = chain.kinds[kind]
        if layer.measured:
            cut = Shard(stage.tp, False)
            size = layer.measured[stage.tp].parameters
            found[cut, Shard((was or stage).tp, False)] += times * size * each
            continue
        for op in layer.operators:
            if not op.parameters:
                continue
            expert = op.split in EXPERT
            ranks, padding = (float(figure[0]) for figure in share_of(op, tp, etp))
            cut = Shard(int(ranks), expert)
            source = cut
            if was is not None:
                ways = np.array([was.tp]), np.array([was.etp])
                source = Shard(int(share_of(op, *ways)[0][0]), expert)
            size = op.parameters / ranks * (1.0 / stage.ep if expert else padding)
            held = trained_share(op) * each + (0.0 if states else frozen_bytes(op, job))
            found[cut, source] += times * size * held
    return found


def _grid(way: Configuration, stage: StageConfiguration, shard: Shard, states: bool
          ) -> tuple[int, int, int]:
    """Pieces of the other side by expert parallelism, by ZeRO, and holders in a block."""
    inside = stage.ep * stage.etp if shard.expert else stage.tp
    holders = (stage.devices[1] - stage.devices[0]) // inside
    cut = stage.zero >= (1 if states else 3)
    everywhere = 1 if stage.shard == "dp_in" else way.outer_dp
    return stage.ep if shard.expert else 1, holders * everywhere if cut else 1, holders


def _pieces(
    way: Configuration, stage: StageConfiguration, shard: Shard, at: Held, rows: NDArray[np.int64],
    states: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Number of the piece of each side that devices hold, and the pieces of the other side."""
    experts, pieces, holders = _grid(way, stage, shard, states)
    place, replica = at.place[rows], at.replica[rows]
    if shard.expert:
        copy, inner = np.divmod(place, stage.ep * stage.etp)
        expert, side = np.divmod(inner, stage.etp)
    else:
        copy, inner = np.divmod(place, stage.tp)
        expert, side = 0 * inner, inner * shard.ranks // stage.tp
    copy = copy if pieces == 1 or stage.shard == "dp_in" else replica * holders + copy
    other: NDArray[np.int64] = expert * pieces + (copy if pieces > 1 else 0 * copy)
    return side, other, experts * pieces


def _cells(
    way: Configuration, stage: StageConfiguration, shard: Shard, at: Held, rows: NDArray[np.int64],
    states: bool,
) -> Cells:
    side, other, pieces = _pieces(way, stage, shard, at, rows, states)
    return (side / shard.ranks, (side + 1) / shard.ranks, other / pieces, (other + 1) / pieces)


def _covered(want: Cells, have: Cells) -> Floats:
    """Share of the wanted rectangles that is there."""
    shares = [np.maximum(0.0, np.minimum(want[n + 1], have[n + 1]) - np.maximum(want[n], have[n]))
              / (want[n + 1] - want[n]) for n in (0, 2)]
    covered: Floats = shares[0] * shares[1]
    return covered


def _nowhere(
    chain: Chain, job: Job, old: Configuration, before: Held, left: NDArray[np.bool_], states: bool
) -> float:
    """Bytes of the old plan that no device which is left has, without copies."""
    found = 0.0
    for number, stage in enumerate(old.stages):
        mine = np.flatnonzero((before.stage == number) & left)
        layers = _layers(chain, old, stage)
        for (shard, _), size in _sizes(chain, job, old, stage, layers, states).items():
            side, other, pieces = _pieces(old, stage, shard, before, mine, states)
            there = len(np.unique(side * pieces + other))
            whole = size * shard.ranks * (stage.ep if shard.expert else 1)
            found += whole * (1.0 - there / (shard.ranks * pieces))
    return found
