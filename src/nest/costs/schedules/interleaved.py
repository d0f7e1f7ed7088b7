"""Interleaved 1F1B: every device holds several chunks of layers, far apart in the model.

arXiv:2104.04473, section 2.2.2; the order of Megatron-Core's interleaved schedule: micro-batches in
groups of p, each stage warms up with 2 (p - s - 1) + (v - 1) p chunk forwards, then runs one
forward and one backward in turn. All stages hold v chunks; p divides the micro-batches.

There are few such pipelines, since all stages have one configuration. So the step is no closed form
but the longest path through all passes, which a stage runs in that order: it is exact, and no time
that grows makes it shorter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nest.costs.schedules.steps import StepTime
from nest.costs.stage import ChunkCosts, Hop


def warm_up(stage: int, stages: int, micro_batches: int, vpp: int) -> int:
    """Chunk forwards that a stage runs before its first backward."""
    return min(micro_batches * vpp, 2 * (stages - stage - 1) + (vpp - 1) * stages)


def in_flight(stage: int, stages: int, micro_batches: int, vpp: int) -> int:
    """Most chunks of which a stage holds the activations of a micro-batch at once."""
    return min(micro_batches * vpp, warm_up(stage, stages, micro_batches, vpp) + 1)


def held(
    activations: Sequence[float], stage: int, stages: int, micro_batches: int
) -> float:
    """Most bytes of activations that a stage holds at once, given those of each chunk.

    The order of passes says which chunks are held when. It repeats itself with every group of p
    micro-batches, so that a few groups show the most.
    """
    p, v = stages, len(activations)
    m = min(micro_batches, 4 * p)
    warm = warm_up(stage, p, m, v)
    now = most = 0.0
    for k in range(m * v):
        now += activations[k // p % v]
        most = max(most, now)
        if k >= warm:
            now -= activations[v - 1 - (k - warm) // p % v]
    return most


def first_forward(chunks: Sequence[ChunkCosts], stages: int) -> list[float]:
    """Earliest start of each chunk's first forward: its parameters have to be there.

    Gathers run from the start of the step, at the full rate while the stage waits and at their
    share of it while it computes: the p forwards of each chunk before.
    """
    result, before = [], 0.0
    for n, c in enumerate(chunks):
        result.append(before + c.wait if c.gather or not n else 0.0)
        before += c.gather + stages * (c.forward + c.chase_forward - c.hides_gather)
    return result


def reduced(chunks: Sequence[ChunkCosts], ends: Sequence[float], stages: int) -> float:
    """When all gradients of a stage are reduced; ``ends`` of the last backward of each chunk.

    From there on the gradients of a chunk and of those below it are to be reduced, beside the p
    backwards of each chunk below.
    """
    ready, below = ends[0], 0.0
    for n, (c, end) in enumerate(zip(chunks, ends, strict=True)):
        ready = max(ready, end + below + c.left - (c.scattered if n else 0.0))
        below += c.sync + stages * (c.backward + c.chase_backward - c.hides_sync)
    return ready


def step_time(
    stages: Sequence[Sequence[ChunkCosts]], hops: Sequence[Sequence[Hop]], micro_batches: int
) -> StepTime:
    """Seconds of a step of p stages, first stage first, each with its v chunks.

    ``hops[s][c]`` is behind chunk c of stage s: to the next stage, from the last one to the next
    chunk of the first. Messages of one direction arrive in the order of the passes, no two closer
    than the link takes for one.
    """
    p, v = len(stages), len(stages[0])
    total = micro_batches * v
    clock, starts = [0.0] * p, [first_forward(chunks, p) for chunks in stages]
    scatter = [-math.inf] * p  # when gradients of a last backward are scattered (ZeRO-2)
    ends = [[0.0] * v for _ in stages]
    # When the input of the k-th forward and backward of a stage is there; NaN: not known yet.
    arrives = [[[math.nan] * total for _ in stages] for _ in range(2)]
    for k in range(total):
        if k // p % v == 0:
            arrives[0][0][k] = 0.0
    links = [[-math.inf] * p for _ in range(2)]
    done = [[0, 0] for _ in stages]

    def send(way: int, link: int, to: int, k: int, end: float, hop: Hop) -> None:
        links[way][link] = max(end + hop.both / 2, links[way][link] + hop.gap)
        arrives[way][to][k] = links[way][link]

    def run(s: int) -> bool:
        """Run the next pass of a stage, if its input is there."""
        ahead, back = done[s]
        warm = warm_up(s, p, micro_batches, v)
        way = 0 if ahead < total and (ahead < warm or ahead - warm == back) else 1
        k = done[s][way]
        arrival = arrives[way][s][k]
        if math.isnan(arrival):
            return False
        done[s][way] += 1
        c = k // p % v
        # ZeRO-3 traffic goes on while the stage waits.
        if way == 0:
            start = max(clock[s] + stages[s][c].chase_forward, arrival)
            if k == c * p:
                start = max(start, starts[s][c])
            end = clock[s] = start + stages[s][c].forward
            scatter[s] += stages[s][c].forward - stages[s][c].trails_forward
            if s < p - 1:
                send(0, s, s + 1, k, end, hops[s][c])
            elif c < v - 1:
                send(0, s, 0, k + p, end, hops[s][c])
            else:  # the loss: its gradient is there at once
                arrives[1][s][k - (v - 1) * p] = end
        else:
            c = v - 1 - c
            start = max(clock[s] + stages[s][c].chase_backward, arrival,
                        scatter[s] - stages[s][c].trails_backward)
            end = ends[s][c] = clock[s] = start + stages[s][c].backward
            scatter[s] = end + stages[s][c].trailing
            if s:
                send(1, s - 1, s - 1, k, end, hops[s - 1][c])
            elif c:
                send(1, p - 1, p - 1, k + p, end, hops[p - 1][c - 1])
        return done[s][1] < total

    while any(done[s][1] < total for s in range(p)):
        for s in range(p):
            while done[s][1] < total and run(s):
                pass
    ready = [reduced(chunks, end, p) for chunks, end in zip(stages, ends, strict=True)]
    # Copies of a tied embedding are exchanged when all stages that hold one are ready.
    tied = [sum(c.tied for c in chunks) for chunks in stages]
    update = [sum(c.update for c in chunks) for chunks in stages]
    together = max((r for r, t in zip(ready, tied, strict=True) if t), default=0.0)
    exchange = max((t + u for t, u in zip(tied, update, strict=True) if t), default=0.0)
    finish = max(
        together + exchange if t else r + u for r, t, u in zip(ready, tied, update, strict=True))
    return StepTime(max(clock), finish - max(clock))
