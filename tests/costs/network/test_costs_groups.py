"""Closed forms of groups against sets of device numbers, over every small layout."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from oracle_rules import alike_blocks, spread

from nest.costs.choices import Site, bodies, states
from nest.costs.network import placement
from nest.costs.network.collectives import Group
from nest.costs.network.fabric import Fabric
from nest.inputs import Cluster, Level, load_device

SHAPES = (
    (1,), (4,), (7,), (12,), (2, 2), (3, 2), (2, 3), (4, 6), (6, 4), (5, 3), (1, 6, 2), (2, 2, 2),
    (2, 3, 2), (3, 2, 2), (6, 3, 2), (2, 2, 2, 2), (2, 1, 3, 2), (3, 2, 2, 2), (2, 2, 3, 3),
    (4, 9), (5, 3, 4), (2, 3, 5, 2), (8, 4, 3),
)


def cumulated(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(itertools.accumulate(shape, int.__mul__))


def layouts(sizes: tuple[int, ...]) -> Iterator[tuple[int, int, int, int]]:
    """(start, block, outer_dp, stride) of every aligned block and its replicas."""
    devices = sizes[-1]
    for outer_dp in range(1, devices + 1):
        for stride in placement.strides(devices, outer_dp, sizes):
            for start in range(stride):
                for block in range(1, stride - start + 1):
                    origins = [start + r * stride for r in range(outer_dp)]
                    if all(placement.aligned(o, block, sizes) for o in origins):
                        yield start, block, outer_dp, stride


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


@pytest.mark.parametrize("shape", SHAPES)
def test_aligned(shape: tuple[int, ...]) -> None:
    sizes = cumulated(shape)
    for start in range(sizes[-1]):
        for block in range(1, sizes[-1] - start + 1):
            assert placement.aligned(start, block, sizes) == alike_blocks(start, block, sizes)


def test_aligned_at_every_level() -> None:
    # Levels 6 x 3 x 2: some level holds [1, 7) in one group, but it cuts two groups of 6.
    assert placement.aligned(0, 1, (6, 18, 36))
    assert not placement.aligned(1, 6, (6, 18, 36))


def test_shared_level() -> None:
    # Groups of 2, 6 and 12: 0 and 1 in a pair, 1 and 2 in a six, 5 and 6 in the twelve.
    found = [placement.shared_level(a, b, (2, 6, 12)) for a, b in ((0, 1), (1, 2), (5, 6))]
    assert found == [0, 1, 2]
    assert placement.shared_level(3, 3, (2, 6, 12)) == 0


def test_strides() -> None:
    # 36 devices on 6 x 3 x 2: 5 replicas take 7 each, or one group of 6 apart.
    assert placement.strides(36, 5, (6, 18, 36)) == (7, 6)
    assert placement.strides(36, 2, (6, 18, 36)) == (18,)
    assert placement.strides(36, 10, (6, 18, 36)) == (3,)


@pytest.mark.parametrize("shape", SHAPES)
def test_inner_groups(shape: tuple[int, ...]) -> None:
    sizes = cumulated(shape)
    for start, block, outer_dp, _ in layouts(sizes):
        if outer_dp > 1:
            continue
        for size in divisors(block):
            for stride in divisors(block // size):
                span = stride * size
                members = [
                    [start + first + offset + stride * n for n in range(size)]
                    for first in range(0, block, span) for offset in range(stride)
                ]
                found = placement.inner_group(sizes, block, stride, size)
                assert found == spread(members, sizes), (start, block, stride, size)


@pytest.mark.parametrize("shape", SHAPES)
def test_replica_groups(shape: tuple[int, ...]) -> None:
    sizes = cumulated(shape)
    for start, block, outer_dp, stride in layouts(sizes):
        for inner in divisors(block):
            members = [
                [start + offset + inner * d + stride * r
                 for r in range(outer_dp) for d in range(block // inner)]
                for offset in range(inner)
            ]
            found = placement.replica_group(sizes, start, block, inner, outer_dp, stride)
            assert found == spread(members, sizes), (start, block, inner, outer_dp, stride)


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_place_class_means_equal_groups(shape: tuple[int, ...]) -> None:
    sizes = cumulated(shape)
    seen: dict[tuple[object, ...], set[object]] = {}
    for start, block, outer_dp, stride in layouts(sizes):
        place = placement.place_class(start, outer_dp, stride, sizes)
        for inner in divisors(block):
            members = [
                [start + offset + inner * d + stride * r
                 for r in range(outer_dp) for d in range(block // inner)]
                for offset in range(inner)
            ]
            seen.setdefault((place, block, inner, outer_dp, stride), set()).add(
                spread(members, sizes))
    assert all(len(found) == 1 for found in seen.values())


# ---------------------------------------------------------------- groups of a configuration


def degrees(block: int) -> Iterator[tuple[int, int, int, int]]:
    """(tp, cp, ep, etp) that a block has room for."""
    for tp in divisors(block):
        for cp in divisors(block // tp):
            for ep in divisors(block):
                for etp in divisors(block // ep):
                    yield tp, cp, ep, etp


def read(group: Group) -> tuple[tuple[int, ...], bool]:
    """A single group as :func:`oracle_rules.spread` gives it."""
    return tuple(group.inside[0].tolist()), bool(group.even[0])


@pytest.mark.parametrize("shape", [(12,), (2, 3, 2), (4, 3), (3, 2, 2), (8, 2)])
def test_groups_of_a_configuration(shape: tuple[int, ...]) -> None:
    """Devices of a block count tensor, context, data parallel ranks, the first the fastest.

    Experts count expert-tensor, expert, expert-data parallel ranks.
    """
    sizes = cumulated(shape)
    fabric = Fabric(Cluster(name="c", device=load_device("h100-sxm"), levels=tuple(
        Level(name=f"l{n}", size=size, bandwidth=1e9, latency=0.0)
        for n, size in enumerate(shape))))
    seen = set()
    for start, block, outer_dp, stride in layouts(sizes):
        origins = [start + r * stride for r in range(outer_dp)]
        for tp, cp, ep, etp in degrees(block):
            key = (placement.place_class(start, outer_dp, stride, sizes), block, outer_dp, stride,
                   tp, cp, ep, etp)
            if key in seen:
                continue
            seen.add(key)
            flat = np.arange(block)
            dense = flat.reshape(-1, cp, tp)  # data, context, tensor
            sparse = flat.reshape(-1, ep, etp)
            site = Site(*(np.array([x]) for x in (start, block, outer_dp, stride)))
            one = [np.array([x]) for x in (1, tp, tp > 1, cp, 1, False, ep, etp)]
            body = bodies(fabric, site, *one, recompute=np.array([0]))
            state = states(fabric, site, *(np.array([x]) for x in (tp, ep * etp, 0, 0)))
            apart, together = [(o,) for o in origins], [tuple(origins)]
            for group, ranks, over in (
                # The degrees of a micro-batch: groups of the first replica.
                (body.tp_group, dense.reshape(-1, tp), apart[:1]),
                (body.cp_group, dense.swapaxes(1, 2).reshape(-1, cp), apart[:1]),
                (body.ep_group, sparse.swapaxes(1, 2).reshape(-1, ep), apart[:1]),
                (body.etp_group, sparse.reshape(-1, etp), apart[:1]),
                # Holders of the same parameters: in all replicas, or in the block alone.
                (state.dp_group, dense.reshape(-1, tp).T, together),
                (state.expert_dp_group, sparse.reshape(-1, ep * etp).T, together),
                (state.inner_group, dense.reshape(-1, tp).T, apart[:1]),
                (state.inner_expert_group, sparse.reshape(-1, ep * etp).T, apart[:1]),
                (state.outer_group, flat[:, None], together),
            ):
                members = [[origin + device for origin in where for device in rank]
                           for where in over for rank in ranks.tolist()]
                assert read(group) == spread(members, sizes), key
