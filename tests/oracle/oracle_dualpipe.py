"""DualPipe's price, naively: stages with two copies of the layers, one pass at a time.

Prices of a layer are those of one copy, as another schedule has them; rows of passes are those of
:mod:`oracle_orders`. Everything else is written from arXiv:2412.19437, section 3.2.1: which stage
holds what, who holds a parameter, what both copies exchange, and the step. No computing hides
traffic, but for the all-to-alls of experts of pairs; while a stage waits, its traffic goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from oracle_orders import Rows, Task, dual_pipe

import nest
from nest.costs.memory import recipe
from nest.costs.stage import hop
from nest.evaluation.stages import PricedLayer, Pricing, layers_of
from nest.inputs import Configuration, StageConfiguration
from nest.model import EXPERT, Chain, boundary_bytes


class Chunk(NamedTuple):
    """Layers of a stage that follow each other; seconds, and bytes of a micro-batch."""

    forward: float = 0.0
    inputs: float = 0.0
    weights: float = 0.0
    sync: float = 0.0
    gather: float = 0.0
    update: float = 0.0
    exchanged: tuple[float, float] = (0.0, 0.0)
    """All-to-alls of experts forward and backward that another pass may hide."""
    busy: tuple[float, float] = (0.0, 0.0)
    """Computing of layers with experts."""
    held: float = 0.0
    kept: float = 0.0
    """Of that, and of gradients, behind a backward for inputs."""


class Price(NamedTuple):
    """Seconds of a step, and bytes of each stage."""

    step: float
    memory: list[float]


def price(chain: Chain, cluster: nest.Cluster, job: nest.Job, plan: Configuration) -> Price:
    """What a legal configuration of DualPipe takes."""
    alone = plan.replace(schedule="interleaved-zb")
    pricing = Pricing(chain, cluster, job)
    chunks, memory = [], []
    p = plan.pp
    m = job.global_batch // (plan.outer_dp * plan.micro_batch) // 2
    rows = dual_pipe(p // 2, m, True, crossed=True)
    for s, stage in enumerate(plan.stages):
        kinds = [layers_of(chain, alone, stage, span) for span in stage.chunks]
        layers = [[(chain.kinds[kind], layer) for (kind, _), layer in zip(pairs, priced,
                                                                         strict=True)]
                  for pairs, priced in zip(kinds, pricing.stage(alone, stage).layers, strict=True)]
        shares = [[_shared(cluster, job, plan, s, *pair) for pair in run] for run in layers]
        # Chunk 0 of a stage of the first half is on the line from the first to the last stage.
        at = (s, 2 * p - 1 - s) if s < p // 2 else (2 * p - 1 - s, s)
        own = {q: _chunk([layer for _, layer in run], share, job.stack.overlap_ep)
               for q, run, share in zip(at, layers, shares, strict=True)}
        chunks.append(own)
        every = [layer for run in layers for _, layer in run]
        fixed = sum(layer.costs["parameters"] + layer.costs["gradients"] for layer in every)
        fixed += sum(share[2] for run in shares for share in run)
        fixed += sum(max((layer.costs[name] for layer in every), default=0.0)
                     for name in ("work", "buffers"))
        if job.stack.receives_all:
            lanes = stage.dp_in * stage.cp * (
                stage.tp if stage.sp or job.stack.scatter_gather else 1)
            fixed += m * plan.micro_batch / lanes * sum(
                boundary_bytes(chain, job, (1 << cut) - 1) for cut in sum(stage.chunks, ()))
        beside = any(kind == "fb" for kind, _, _ in rows[s])
        largest = max((layer.costs["activations"] for layer in every if layer.repeated),
                      default=0.0) if beside else 0.0
        memory.append(fixed + largest + _most(rows[s], own))
    every_chunk = {q: chunk for own in chunks for q, chunk in own.items()}
    ready = _run(rows, every_chunk, _links(chain, cluster, job, plan), p)
    ends = [at + sum(chunk.update for chunk in own.values())
            for at, own in zip(ready, chunks, strict=True)]
    return Price(max(ends), memory)


def _chunk(
    layers: Sequence[PricedLayer], shares: Sequence[tuple[float, ...]], hidden: float
) -> Chunk:
    maxima = layers[0].costs["maxima"] if layers else 0.0
    found = Chunk(maxima, maxima)
    for layer, (sync, gather, _, update) in zip(layers, shares, strict=True):
        c = layer.costs
        ahead = c["forward"] + c["tp_forward"] + c["cp_forward"] + c["ep_forward"]
        back = (c["backward"] + c["recompute"] + c["tp_backward"] + c["cp_backward"]
                + c["ep_backward"])
        busy = (c["free_forward"], c["free_backward"]) if c["ep_forward"] else (0.0, 0.0)
        found = Chunk(
            found.forward + ahead, found.inputs + back - layer.weights,
            found.weights + layer.weights, found.sync + sync, found.gather + gather,
            found.update + update,
            (found.exchanged[0] + hidden * c["ep_forward"],
             found.exchanged[1] + hidden * c["ep_backward"]),
            (found.busy[0] + busy[0], found.busy[1] + busy[1]),
            found.held + c["activations"], found.kept + layer.kept)
    return found


def _shared(
    cluster: nest.Cluster, job: nest.Job, plan: Configuration, s: int, kind: Any,
    layer: PricedLayer,
) -> tuple[float, float, float, float]:
    """Of a layer of which two stages have a copy: reduction and gather, bytes of the optimizer,
    seconds of its step.
    """
    c, r, stage = layer.costs, recipe(job), plan.stages[s]
    twin = plan.stages[plan.pp - 1 - s]
    pairs = [(x + n * plan.stride, y + n * plan.stride) for n in range(plan.outer_dp)
             for x, y in zip(range(*stage.devices), range(*twin.devices), strict=True)]
    ways = [_way(cluster, x, y) for x, y in pairs]
    per_byte, latency = max(rate for rate, _ in ways), max(late for _, late in ways)
    experts = sum(op.parameters for op in kind.operators if op.split in EXPERT) / (
        stage.ep * stage.etp)
    dense = c["parameters"] / r.parameter - experts
    sync, gather = c["sync"], c["gather"]
    for count, ranks in ((dense, stage.tp), (experts, stage.ep * stage.etp)):
        if count < 0.5:  # none
            continue
        # Those that hold the same part of the layer, in the stage and its replicas.
        holders = len(pairs) // ranks
        if stage.shard == "dp_in":
            holders = len(pairs) // plan.outer_dp // ranks
        if stage.zero == 0 or stage.shard == "dp_in":  # all that was summed, each way
            sync += count / holders * r.traveling_gradient * per_byte + latency
        else:
            sync += count / (2 * holders) * r.traveling_gradient * per_byte + latency
            gather += count / (2 * holders) * r.gathered * per_byte + latency
    launch = cluster.device.launch_overhead
    half = 0.5 if stage.zero and stage.shard == "dp" else 1.0
    return sync, gather, half * c["optimizer"], launch + half * (c["update"] - launch)


def _way(cluster: nest.Cluster, x: int, y: int) -> tuple[float, float]:
    """Seconds per byte and latency of the first level of the network that holds two devices."""
    size = 1
    for level, bandwidth in zip(cluster.levels, cluster.resolved_bandwidth, strict=True):
        size *= level.size
        if x // size == y // size:
            return 1.0 / bandwidth, level.latency
    raise AssertionError("the last level holds all devices")


def _links(
    chain: Chain, cluster: nest.Cluster, job: nest.Job, plan: Configuration
) -> dict[tuple[int, int], tuple[float, float]]:
    """By stage and chunk of a line, numbered from 0 on: seconds of a message from the stage to the
    next one of what is behind the chunk, and those that it fills the link.
    """
    found, layers = {}, len(chain)
    stops = sorted({(min(s, plan.pp - 1 - s), stage.chunks[0][1])
                    for s, stage in enumerate(plan.stages)}
                   | {(max(s, plan.pp - 1 - s), stage.chunks[1][1])
                      for s, stage in enumerate(plan.stages)})
    for s, (one, other) in enumerate(pairwise(plan.stages)):
        ways = [_way(cluster, one.devices[1] - 1 + n * plan.stride,
                     other.devices[0] + n * plan.stride) for n in range(plan.outer_dp)]
        per_byte, latency = max(rate for rate, _ in ways), max(late for _, late in ways)
        size = float(plan.micro_batch * job.seq_len * chain.kinds[chain.order[0]].hidden * 2)
        for q, stop in stops:  # behind the last layer there is nothing to hand over
            both, gap = hop(size if stop < layers else 0.0, _lanes(one, job), per_byte, latency,
                            job.stack)
            found[s, q] = both / 2, gap
    return found


def _lanes(stage: StageConfiguration, job: nest.Job) -> int:
    return stage.dp_in * stage.cp * (stage.tp if stage.sp or job.stack.scatter_gather else 1)


def _most(row: Sequence[Task], own: dict[int, Chunk]) -> float:
    """Most bytes of activations; a forward takes what the backward beside it frees."""
    now = most = 0.0
    for kind, q, _ in row:
        if kind == "fb":
            now += own[q[0]].held - own[q[1]].held
        else:
            change = {"f": own[q].held if kind == "f" else 0.0, "b": -own[q].held,
                      "i": own[q].kept - own[q].held, "w": -own[q].kept}
            now += change[kind]
        most = max(most, now)
    return most


def _run(
    rows: Rows, chunks: dict[int, Chunk], links: dict[tuple[int, int], tuple[float, float]], p: int
) -> list[float]:
    """When each stage has reduced all gradients; positions p to 2 p - 1 are the line back."""
    holder = {q: s for s, row in enumerate(rows) for _, q, _ in row if isinstance(q, int)}
    there: dict[tuple[str, int, int], float] = {}
    came: dict[tuple[int, int], float] = {}
    place, clock, idle = [0] * p, [0.0] * p, [0.0] * p
    begun: list[list[int]] = [[] for _ in range(p)]
    fetched = [0.0] * p
    """Gathers that had to be through, of the chunks that have begun."""
    last = [{q: max(n for n, (kind, at, _) in enumerate(row)
                    if (kind in "bw" and at == q) or (kind == "fb" and at[1] == q))
             for q in holder if holder[q] == s} for s, row in enumerate(rows)]
    queue = [0.0] * p
    """Seconds of reductions that wait."""

    def wait(s: int, until: float) -> None:
        passed = max(0.0, until - clock[s])
        idle[s], queue[s] = idle[s] + passed, max(0.0, queue[s] - passed)
        clock[s] = max(clock[s], until)

    def send(q: int, ahead: bool, k: int, s: int) -> None:
        last_one = q % p == (p - 1 if ahead else 0)
        if last_one:
            if ahead:
                there["b", q, k] = clock[s]
            return
        to = q + 1 if ahead else q - 1
        way = (s, holder[to])
        delay, gap = links[min(way), min(q, to) % p]
        came[way] = max(clock[s] + delay, came.get(way, -1e99) + gap)
        there["f" if ahead else "b", to, k] = came[way]

    moved = True
    while moved:
        moved = False
        for s, row in enumerate(rows):
            if place[s] == len(row):
                continue
            kind, at, number = row[place[s]]
            parts = list(zip("fb", at, number, strict=True)) if kind == "fb" else [
                (kind, at, number)]
            keys = [("b" if part == "i" else part, q, k) for part, q, k in parts]
            needed = [key for key in keys if key[0] != "w" and not (
                key[0] == "f" and key[1] % p == 0)]
            if any(key not in there for key in needed):
                continue
            moved = True
            wait(s, max([clock[s], *(there[key] for key in needed)]))
            for part, q, _ in parts:
                if part == "f" and q not in begun[s]:
                    begun[s].append(q)
                    fetched[s] += chunks[q].gather
                    wait(s, clock[s] + max(0.0, fetched[s] - idle[s]) if chunks[q].gather else 0.0)
            clock[s] += sum(_seconds(chunks[q], part) for part, q, _ in parts)
            if kind == "fb":
                one, other = chunks[at[0]], chunks[at[1]]
                clock[s] -= (min(one.exchanged[0], other.busy[1])
                             + min(other.exchanged[1], one.busy[0]))
            for part, q, k in parts:
                if part != "w":
                    send(q, part == "f", k, s)
                if last[s][q] == place[s] and part != "f":
                    queue[s] += chunks[q].sync
            place[s] += 1
    assert all(place[s] == len(row) for s, row in enumerate(rows)), "rows wait for each other"
    return [clock[s] + queue[s] for s in range(p)]


def _seconds(c: Chunk, kind: str) -> float:
    return {"f": c.forward, "b": c.inputs + c.weights, "i": c.inputs, "w": c.weights}[kind]
