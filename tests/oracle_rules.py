"""What a plan may be made of, written again for the oracle: groups, blocks, degrees.

Everything is found by looking at explicit sets of device numbers, level by level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from nest.describe import Cluster, Job, SearchSpace
from nest.graph import Chain

Spread = tuple[tuple[int, ...], bool]
RECOMPUTE = ("none", "selective", "full")


class Outer(NamedTuple):
    """What all stages of a plan have in common."""

    outer_dp: int
    micro_batch: int
    stride: int


class Choice(NamedTuple):
    """Degrees of a stage on a block; ``recompute`` indexes :data:`RECOMPUTE`."""

    start: int
    size: int
    dp_in: int
    tp: int
    sp: bool
    ep: int
    etp: int
    zero: int
    recompute: int


# ---------------------------------------------------------------- devices


def alike_blocks(start: int, size: int, sizes: Sequence[int]) -> bool:
    """Whether a block lies inside one group or is whole groups, at every level."""
    devices = set(range(start, start + size))
    for g in sizes:
        groups = {d // g for d in devices}
        filled = {d for group in groups for d in range(group * g, group * g + g)}
        if len(groups) > 1 and filled != devices:
            return False
    return True


def spread(groups: list[list[int]], sizes: Sequence[int]) -> Spread:
    """Fewest members in a subgroup of each level over all groups, and whether all are even."""
    fewest, even = [], True
    for g in sizes:
        counts: list[int] = []
        for members in groups:
            found: dict[int, int] = {}
            for device in members:
                found[device // g] = found.get(device // g, 0) + 1
            counts.extend(found.values())
        fewest.append(min(counts))
        even = even and min(counts) == max(counts)
    return tuple(fewest), even


@cache
def spreads(
    sizes: tuple[int, ...], outer_dp: int, stride: int, start: int, size: int,
    tp: int, ep: int, etp: int,
) -> tuple[Spread, Spread, Spread, Spread, Spread]:
    """Spread of the tp, ep, etp, dp and expert-dp groups of a block and its replicas."""
    origins = [r * stride + start for r in range(outer_dp)]
    folded = ep * etp
    inner = []
    for ranks in (
        [range(d * tp, d * tp + tp) for d in range(size // tp)],
        [range(x * folded + z, x * folded + folded, etp)
         for x in range(size // folded) for z in range(etp)],
        [range(y * etp, y * etp + etp) for y in range(size // etp)],
    ):
        seen = {spread([[o + i for i in group] for group in ranks], sizes) for o in origins}
        assert len(seen) == 1, "aligned replicas are alike"
        inner.append(seen.pop())
    data = [[o + d * tp + t for o in origins for d in range(size // tp)] for t in range(tp)]
    expert = [[o + x * folded + i for o in origins for x in range(size // folded)]
              for i in range(folded)]
    return inner[0], inner[1], inner[2], spread(data, sizes), spread(expert, sizes)


def shared_level(a: int, b: int, sizes: Sequence[int]) -> int:
    """Lowest level that has both devices in one group."""
    return min(v for v, g in enumerate(sizes) if a // g == b // g)


# ---------------------------------------------------------------- what is legal


def outer_choices(cluster: Cluster, job: Job, space: SearchSpace) -> list[Outer]:
    """All ways to split devices and samples among replicas of the super-pipeline."""
    found = []
    for outer_dp in range(1, cluster.size + 1):
        share = cluster.size // outer_dp
        strides = sorted({share // g * g for g in (1, *cluster.group_sizes)} - {0})
        for micro_batch in range(1, job.global_batch + 1):
            whole = job.global_batch % (outer_dp * micro_batch) == 0
            if whole and _in(space.outer_dp, outer_dp) and _in(space.micro_batch, micro_batch):
                found += [Outer(outer_dp, micro_batch, stride) for stride in strides]
    return found


def _in(bound: Any, value: object) -> bool:
    return bound is None or value in bound


def tp_legal(chain: Chain, job: Job, tp: int, sp: bool) -> bool:
    """Whether the model can be split this way."""
    model = chain.model
    if model is None:
        return all(tp in layer.measured for layer in chain.kinds)
    if tp == 1:
        return not sp
    widths = [model.heads]
    if not all(model.is_moe_layer(i) for i in range(model.layers)):
        widths.append(model.ffn)
    if model.moe is not None:
        widths.append(model.moe.shared_ffn)
    if any(width % tp for width in widths):
        return False
    if model.kv_heads % tp != 0 and tp % model.kv_heads != 0:
        return False
    if sp:
        return job.seq_len % tp == 0
    return model.moe is None


def expert_degrees(chain: Chain, size: int, tp: int, etps: Any) -> Iterator[tuple[int, int]]:
    """(ep, etp) that the model and the block allow; ``etps`` as the search space gives them."""
    moe = chain.model.moe if chain.model is not None else None
    if moe is None:
        if _in(etps, tp):
            yield 1, tp
        return
    for etp in range(1, size + 1):
        if etp not in ((1, tp) if etps is None else etps) or moe.ffn % etp:
            continue
        for ep in range(1, moe.experts + 1):
            if moe.experts % ep == 0 and size % (ep * etp) == 0:
                yield ep, etp


def choices(
    chain: Chain, cluster: Cluster, job: Job, space: SearchSpace, outer: Outer
) -> Iterator[Choice]:
    """Every legal stage on every aligned block of a super-pipeline."""
    sizes = cluster.group_sizes
    zeros = [z for z in range(4) if _in(space.zero, z)]
    policies = [r for r, name in enumerate(RECOMPUTE) if _in(space.recompute, name)]
    origins = [r * outer.stride for r in range(outer.outer_dp)]
    for start in range(outer.stride):
        for size in range(1, outer.stride - start + 1):
            if not all(alike_blocks(o + start, size, sizes) for o in origins):
                continue
            for dp_in, tp, sp in _splits(chain, job, space, outer, size):
                for ep, etp in expert_degrees(chain, size, tp, space.etp):
                    if not _in(space.ep, ep):
                        continue
                    for zero in zeros:
                        for policy in policies:
                            yield Choice(start, size, dp_in, tp, sp, ep, etp, zero, policy)


def _splits(
    chain: Chain, job: Job, space: SearchSpace, outer: Outer, size: int
) -> Iterator[tuple[int, int, bool]]:
    for tp in range(1, size + 1):
        dp_in, left = divmod(size, tp)
        if left or outer.micro_batch % dp_in or not _in(space.tp, tp):
            continue
        if not _in(space.dp_in, dp_in) or not _in(space.mbs, outer.micro_batch // dp_in):
            continue
        flags: Sequence[bool] = (True, False) if space.sp is None else tuple(space.sp)
        for sp in flags if tp > 1 else (False,):
            if tp_legal(chain, job, tp, sp):
                yield dp_in, tp, sp


def shards(c: Choice) -> int:
    """Distinct parts of a hand-over that the devices of a stage hold."""
    return c.dp_in * (c.tp if c.sp else 1)
