"""The canonical form of a plan: what each device computes, holds and sends.

Two plans are the same if this is: their names (replicas or dp_in, 1F1B or GPipe) may differ.
"""

from __future__ import annotations

from typing import Any

from nest.inputs import Configuration, Job


def what_devices_do(way: Configuration, job: Job) -> dict[int, tuple[Any, ...]]:
    """For each device used: its layers and policy, order of passes, samples, groups, neighbours."""
    m = job.global_batch // (way.outer_dp * way.micro_batch)
    passes = (m, way.vpp, "in turn" if m == 1 and way.vpp == 1 else way.schedule, way.order)
    found: dict[int, tuple[Any, ...]] = {}
    for number, stage in enumerate(way.stages):
        blocks = [tuple(range(r * way.stride + stage.devices[0], r * way.stride + stage.devices[1]))
                  for r in range(way.outer_dp)]
        policy = stage.recompute, stage.recompute_modules, stage.recompute_layers
        share = stage.tp * stage.cp
        samples = way.micro_batch // stage.dp_in
        for r, block in enumerate(blocks):
            for place, device in enumerate(block):
                mine = r * stage.dp_in + place // share
                first = place // share * share
                experts = stage.ep * stage.etp
                at = place // experts * experts
                groups = (
                    _members(block[first:first + share], place % stage.tp, stage.tp),
                    _members(block[first:first + share], 0, 1), stage.cp_comm, stage.cp_a2a,
                    stage.sp,
                    block[at:at + experts], stage.ep, stage.etp,
                    _holders(blocks, place, stage.tp), _holders(blocks, place, experts))
                state = None
                if stage.zero:
                    over = [block] if stage.shard == "dp_in" else blocks
                    state = (stage.zero, _holders(over, place, stage.tp),
                             _holders(over, place, experts))
                around = tuple(
                    tuple(range(r * way.stride + other.devices[0],
                                r * way.stride + other.devices[1]))
                    for other in (way.stages[number - 1:number] + way.stages[number + 1:number + 2])
                )
                found[device] = (stage.chunks, policy, passes, samples, mine, groups, state, around)
    return found


def _members(devices: tuple[int, ...], first: int, distance: int) -> tuple[int, ...]:
    """Every ``distance``-th device."""
    return devices[first::distance]


def _holders(blocks: list[tuple[int, ...]], place: int, distance: int) -> tuple[int, ...]:
    """Devices that hold the same parameters, over some replicas."""
    return tuple(d for block in blocks for d in _members(block, place % distance, distance))
