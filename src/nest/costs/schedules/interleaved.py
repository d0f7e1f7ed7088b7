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
from nest.costs.stage import ChunkCosts, Hop, delayed, longer


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
        before += c.gather + stages * (c.forward - c.hides_gather)
    return result


def reduced(chunks: Sequence[ChunkCosts], ends: Sequence[float], stages: int) -> float:
    """When all gradients of a stage are reduced; ``ends`` of the last backward of each chunk.

    From there on the gradients of a chunk and of those below it are to be reduced, beside the p
    backwards of each chunk below.
    """
    ready, below = ends[0], 0.0
    for n, (c, end) in enumerate(zip(chunks, ends, strict=True)):
        ready = max(ready, end + below + c.left - (c.scattered if n else 0.0))
        back = c.backward + c.queue_backward + c.late_back - c.late
        below += c.sync + stages * (back - c.hides_sync)
    return ready


class _Stage:
    """A stage as it runs its passes; ways are 0 forward, 1 backward."""

    def __init__(self, chunks: Sequence[ChunkCosts]) -> None:
        self.clock = 0.0
        """End of its last pass."""
        self._gathers = any(c.gathers for c in chunks)
        self._front: tuple[ChunkCosts, int] | None = None
        """The last pass: its chunk, and its way."""
        self._scattered = -math.inf
        """When what a backward leaves to scatter is through (ZeRO-2; ZeRO-3: of single layers)."""

    def free(self, c: ChunkCosts, way: int) -> float:
        """When a pass may begin, as far as the stage goes; its traffic goes on while it waits."""
        if not self._gathers:
            return max(self.clock, self._scattered - c.trails_backward) if way else self.clock
        if self._front is None:
            return self.clock
        front, way_before = self._front
        start = self.clock + longer(front, way_before, c, way)
        if not front.alone:
            self._scattered = self.clock + front.scattered if way_before else -math.inf
            return start
        # What an earlier backward left is in front of what this pass gathers.
        self._scattered += (c.regathered if way else c.gathered) + (
            front.backward - front.under_first if way_before
            else front.forward - front.under_last)
        start = max(start, self._scattered)
        if way_before:
            self._scattered = start + front.scattered
        return start

    def run(self, c: ChunkCosts, way: int, start: float, behind: float) -> float:
        """End of a pass; ``behind`` is what the one behind it gathers first."""
        self._front = c, way
        self.clock = start + (c.backward if way else c.forward)
        if self._gathers:
            self.clock += delayed(c, behind) - c.late if way else 0.0
        elif way:
            self._scattered = self.clock + c.trailing
        else:
            self._scattered += c.forward - c.trails_forward
        return self.clock


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
    running, starts = [_Stage(c) for c in stages], [first_forward(c, p) for c in stages]
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

    def coming(s: int) -> tuple[int, int]:
        """Way and chunk of the next pass of a stage."""
        ahead, back = done[s]
        warm = warm_up(s, p, micro_batches, v)
        if ahead < total and (ahead < warm or ahead - warm == back):
            return 0, ahead // p % v
        return 1, v - 1 - back // p % v

    def run(s: int) -> bool:
        """Run the next pass of a stage, if its input is there."""
        way, c = coming(s)
        k = done[s][way]
        arrival = arrives[way][s][k]
        if math.isnan(arrival):
            return False
        start = max(running[s].free(stages[s][c], way), arrival)
        if way == 0 and k == c * p:
            start = max(start, starts[s][c])
        done[s][way] += 1
        behind = 0.0
        if done[s][1] < total:
            way_behind, n = coming(s)
            behind = stages[s][n].regathered if way_behind else stages[s][n].gathered
        end = running[s].run(stages[s][c], way, start, behind)
        if way:
            ends[s][c] = end
        if way and s:
            send(1, s - 1, s - 1, k, end, hops[s - 1][c])
        elif way and c:
            send(1, p - 1, p - 1, k + p, end, hops[p - 1][c - 1])
        elif not way and s < p - 1:
            send(0, s, s + 1, k, end, hops[s][c])
        elif not way and c < v - 1:
            send(0, s, 0, k + p, end, hops[s][c])
        elif not way:  # the loss: its gradient is there at once
            arrives[1][s][k - (v - 1) * p] = end
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
    pipeline = max(stage.clock for stage in running)
    return StepTime(pipeline, finish - pipeline)
