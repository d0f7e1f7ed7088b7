"""One stage of a configuration as the cost functions take it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from nest.costs.choices import Body, Site, State, bodies, policy, states
from nest.costs.network.fabric import Fabric
from nest.costs.stage import Hop, hop
from nest.describe.configuration import Configuration, StageConfiguration
from nest.describe.job import Job, Stack
from nest.graph import Chain, relay_bytes

Span = tuple[int, int]


def layers_of(
    chain: Chain, order: Sequence[int], stage: StageConfiguration, span: Span
) -> list[tuple[int, int]]:
    """Kind and recompute policy of each layer of a chunk, layers [i, j) of ``order``."""
    code, left = policy(stage.recompute, stage.recompute_modules), stage.recompute_layers
    found = []
    for kind in chain.stage(sorted(order[span[0]:span[1]])):
        again = code
        if left is not None and chain.kinds[kind].checkpointed:
            again = code if left > 0 else 0
            left -= 1
        found.append((kind, again))
    return found


def _site(stage: StageConfiguration, plan: Configuration) -> Site:
    start, stop = stage.devices
    return Site(*(np.array([figure]) for figure in
                  (start, stop - start, plan.outer_dp, plan.stride)))


def body_of(
    stage: StageConfiguration, plan: Configuration, recompute: int, fabric: Fabric
) -> Body:
    """The stage as a micro-batch sees it; ``recompute`` as :func:`nest.costs.choices.policy`."""
    degrees = (plan.micro_batch // stage.dp_in, stage.tp, stage.sp, stage.cp,
               stage.cp_comm == "a2a", stage.ep, stage.etp, recompute)
    return bodies(fabric, _site(stage, plan), *(np.array([degree]) for degree in degrees))


def state_of(stage: StageConfiguration, plan: Configuration, fabric: Fabric) -> State:
    """The stage as parameters see it."""
    degrees = (stage.tp, stage.ep * stage.etp, stage.zero, int(stage.shard == "dp_in"))
    return states(fabric, _site(stage, plan), *(np.array([degree]) for degree in degrees))


def shards_of(stage: StageConfiguration, stack: Stack) -> int:
    """Pieces of what a stage hands over that travel side by side."""
    return stage.dp_in * stage.cp * (stage.tp if stage.sp or stack.scatter_gather else 1)


def hops_of(
    fabric: Fabric, job: Job, plan: Configuration, number: int, handed: Callable[[int], float]
) -> list[Hop]:
    """From each chunk of a stage to the next stage, over the worst replica's way.

    Where chunks interleave, the last stage hands over to the first; nothing is handed over behind
    the last layer. ``handed`` gives the bytes per sample behind so many layers.
    """
    stage, after = plan.stages[number], plan.stages[(number + 1) % plan.pp]
    lanes = min(shards_of(stage, job.stack), shards_of(after, job.stack))
    per_byte, latency = fabric.pair(
        stage.devices[1] - 1, after.devices[0], plan.outer_dp, plan.stride)
    end = plan.stages[-1].layers[1]
    return [
        Hop(0.0, 0.0) if stop == end else
        hop(handed(stop) * plan.micro_batch, lanes, per_byte, latency, job.stack)
        for _, stop in stage.chunks
    ]


def relayed_bytes(
    chain: Chain, job: Job, plan: Configuration, order: Sequence[int],
    stage: StageConfiguration, span: Span,
) -> float:
    """Bytes a micro-batch, on a device, of what layers [i, j) of ``order`` keep for later ones."""
    if chain.is_chain:
        return 0.0
    size = relay_bytes(chain, job, mask(order[:span[0]]), mask(order[:span[1]]))
    return size * (plan.micro_batch // stage.dp_in) / (stage.cp * (stage.tp if stage.sp else 1))


def mask(layers: Iterable[int]) -> int:
    """Layers as bits."""
    return sum(1 << layer for layer in layers)
