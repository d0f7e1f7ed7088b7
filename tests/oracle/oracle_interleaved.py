"""Interleaved pipelines for the oracle: all of them are listed, each one simulated.

Shapes: E choices of one block size under an outer choice, P recompute policies. All plans of a
pipeline run the same tasks in the same order, so that one simulation of arrays does for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from oracle_layouts import equal
from oracle_listing import Question, Wrap
from oracle_plans import Found, Key, later, write_stage
from oracle_prices import Pricer, Run
from oracle_rules import Choice, Outer, Policy, shards
from simulation import Task
from simulation import interleaved as published_order

from nest.inputs import Configuration
from nest.stacks.rules import not_runnable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Link(NamedTuple):
    """What is handed over behind a chunk; shape (E, 1)."""

    hop: Floats
    """Seconds there and back."""
    gap: Floats
    """Seconds for which a message fills its lanes."""


def wrapped(
    question: Question, pricer: Pricer, rows: Sequence[tuple[int, Choice]]
) -> tuple[int, list[Found]]:
    """How many interleaved plans fit, and the best of each key.

    Those of unequal chunks are plans if the job's stack has rules, and these allow them; none has a
    chunk without layers.
    """
    known = question.job.stack.capabilities is not None
    at: dict[tuple[int, int, int], list[int]] = {}
    for n, (number, c) in enumerate(rows):
        if c.state.zero in question.job.stack.zero_with_pipeline:
            at.setdefault((number, c.start, c.size), []).append(n)
    plans, best = 0, dict[Key, Found]()
    for wrap in (*question.wraps(), *(question.wraps(unequal=True) if known else ())):
        # The choices of blocks of one size come in one order, wherever the block is.
        own = [np.array(at.get((wrap.outer, s * wrap.size, wrap.size), []), dtype=np.int64)
               for s in range(wrap.pp)]
        if not len(own[0]):
            continue
        outer = question.outers[wrap.outer]
        chunks = [question.chunks(wrap, s) for s in range(wrap.pp)]
        if not all(chunk for stage in chunks for chunk in stage):
            continue
        policies = question.policies(*(chunk for stage in chunks for chunk in stage))
        runs: list[list[Run]] = []
        for stage, chosen in zip(chunks, own, strict=True):
            tables = [pricer.run(chunk, (1 << chunk[0]) - 1, policies, True) for chunk in stage]
            runs.append([Run(*(figure[pricer.row_C[chosen]] for figure in table))
                         for table in tables])
        ranges = [[(chunk[0], chunk[-1] + 1) for chunk in stage] for stage in chunks]
        lanes = np.array([shards(rows[n][1].split, question.job) for n in own[0]])
        m = question.job.global_batch // (outer.outer_dp * outer.micro_batch)
        links = wrapped_links(pricer, outer, wrap, ranges, lanes)
        seconds, memory = interleaved(runs, links, m)
        fits = np.all([held <= stage[0].limit
                       for held, stage in zip(memory, runs, strict=True)], axis=0)
        plans += int(fits.sum())
        seconds = np.where(fits, seconds, np.inf)
        key = (outer.outer_dp, outer.micro_batch, wrap.pp, wrap.vpp, "interleaved")
        for n in np.argsort(seconds, axis=None).tolist():
            entry, policy = np.unravel_index(n, seconds.shape)
            if seconds[entry, policy] >= (best[key].seconds if key in best else np.inf):
                break
            found = later(wrapped_configuration, outer, wrap, [rows[x[entry]][1] for x in own],
                          policies[policy], ranges)
            if wrap.cuts in equal(question.chain, wrap.pp, wrap.vpp) or not not_runnable(
                    question.chain, question.job, found()):
                best[key] = Found(float(seconds[entry, policy]), key, found)
                break
    return plans, list(best.values())


def wrapped_links(
    pricer: Pricer, outer: Outer, wrap: Wrap, chunks: Sequence[Sequence[tuple[int, int]]],
    lanes: Ints,
) -> list[list[Link]]:
    """Hand-over behind each chunk of each stage; nothing behind the very last."""
    links: list[list[Link]] = []
    for s, stage in enumerate(chunks):
        device = wrap.size * (s + 1) - 1, 0 if s == wrap.pp - 1 else wrap.size * (s + 1)
        links.append([])
        for _, stop in stage:
            link = Link(np.zeros((len(lanes), 1)), np.zeros((len(lanes), 1)))
            if (s, len(links[s])) != (wrap.pp - 1, wrap.vpp - 1):
                size, *pace = pricer.handed(outer, (1 << stop) - 1, *device)
                link = Link(pricer.hop(size, *pace, lanes[:, None]),
                            pricer.gap(size, pace[0], lanes[:, None]))
            links[s].append(link)
    return links


def interleaved(
    runs: Sequence[Sequence[Run]], links: Sequence[Sequence[Link]], m: int
) -> tuple[Floats, list[Floats]]:
    """Seconds, and bytes of each stage; by stage and its chunk; shape (E, P)."""
    p = len(runs)
    last, end = simulated(runs, links, m)
    done, reduced, exchange = [], [], []
    for s, stage in enumerate(runs):
        ready, hidden, lowest = last[s], np.zeros(1), real(stage)
        for c, x in enumerate(stage):
            rest = np.zeros(1) if x.hollow else left(c > lowest, x) + hidden
            ready = np.maximum(ready, end[s][c] + rest)
            hidden = hidden + x.sync + p * (
                x.backward + x.late_b + x.b_after_b - x.hidden_backward)
        update = np.sum([x.update for x in stage], axis=0)
        tied = np.sum([x.tied for x in stage], axis=0)
        copy = tied > 0.0
        done.append(np.where(copy, -np.inf, ready + update))
        reduced.append(np.where(copy, ready, -np.inf))
        exchange.append(np.where(copy, tied + update, -np.inf))
    seconds = np.maximum(
        np.maximum.reduce(done), np.maximum.reduce(reduced) + np.maximum.reduce(exchange))
    return seconds, [held(s, p, stage, m) for s, stage in enumerate(runs)]


def real(stage: Sequence[Run]) -> int:
    """The first chunk of a stage that has layers; the first of all where none has."""
    return next((c for c, x in enumerate(stage) if not x.hollow), 0)


def left(later: bool, x: Run) -> Floats:
    """Gradient reduction after the last backward of a chunk, ``later`` than the first one.

    The scatter of its first layer counts in the first chunk only: others run on meanwhile.
    """
    return x.left if later else x.left + x.scattered


def first_forwards(stage: Sequence[Run], p: int) -> list[Floats]:
    """Seconds from the start of the step until each chunk of a stage has its parameters.

    A chunk behind the first waits only if its parameters are gathered once a step.
    """
    found, before, lowest = [], np.zeros(1), real(stage)
    for c, x in enumerate(stage):
        found.append(np.where(x.gather > 0.0, before + x.wait, 0.0) if c > lowest
                     else x.wait + x.gathered)
        before = before + x.gather + p * (x.forward - x.hidden_forward)
    return found


def held(s: int, p: int, stage: Sequence[Run], m: int) -> Floats:
    """Bytes of a stage when most activations are alive."""
    alive, most = [0] * len(stage), np.zeros(1)
    for task in published_order(s, p, m, len(stage)):
        if task.kind == "f":
            alive[task.chunk] += 1
            most = np.maximum(most, np.sum(
                [n * x.activations for n, x in zip(alive, stage, strict=True)], axis=0))
        else:
            alive[task.chunk] -= 1
    bytes_: Floats = np.sum([x.resident for x in stage], axis=0) + most
    for largest in ([x.work for x in stage], [x.buffers for x in stage]):
        bytes_ = bytes_ + np.max(largest, axis=0)
    return bytes_


def simulated(
    runs: Sequence[Sequence[Run]], links: Sequence[Sequence[Link]], m: int
) -> tuple[list[Floats], list[list[Floats]]]:
    """End of the last task of each stage, and of the last backward of each of its chunks.

    A task right behind another one waits for ZeRO traffic, a backward also for what trails the one
    before; tasks without layers are as if they were not there. No sender waits for a message. Those
    of a link and direction come one by one, in the order in which they were sent.
    """
    p, v = len(runs), len(runs[0])
    orders = [published_order(s, p, m, v) for s in range(p)]
    first = [first_forwards(stage, p) for stage in runs]
    hollow = [[x.hollow for x in stage] for stage in runs]
    gathers = [np.any([x.gathers > 0.0 for x in stage], axis=0) for stage in runs]
    clock, place = [np.zeros(1)] * p, [0] * p
    # Where what trails the last backward would end if only forwards followed.
    trails = [np.full(1, -np.inf)] * p
    end = [[np.zeros(1)] * v for _ in range(p)]
    # When the input of a task is there, and when the last message of a link and direction came.
    here: dict[tuple[int, Task], Floats] = {
        (0, Task("f", 0, k)): np.zeros(1) for k in range(m)}
    came: dict[tuple[int, str], Floats] = {}

    def send(s: int, task: Task) -> None:
        """Hand over what a task has made."""
        kind, c, k = task
        if kind == "b" and (s, c) == (0, 0):
            return
        if kind == "f" and (s, c) == (p - 1, v - 1):
            here[s, Task("b", c, k)] = clock[s]
            return
        at, chunk = following(s, c, p) if kind == "f" else preceding(s, c, p)
        # The link behind the stage in front carries both directions.
        link, cut = (s, c) if kind == "f" else (at, chunk)
        hop, gap = links[link][cut]
        arrives = clock[s] + hop / 2
        if (link, kind) in came:
            arrives = np.maximum(arrives, came[link, kind] + gap)
        came[link, kind] = here[at, Task(kind, chunk, k)] = arrives

    while any(place[s] < len(orders[s]) for s in range(p)):
        begun = False
        for s in range(p):
            if place[s] == len(orders[s]) or (s, orders[s][place[s]]) not in here:
                continue
            task, begun = orders[s][place[s]], True
            kind, c, k = task
            x = runs[s][c]
            start = np.maximum(here[s, task], clock[s])
            if kind == "b":
                start = np.where(
                    gathers[s], start, np.maximum(start, trails[s] - x.under_backward))
            around = [[task for task in part if not hollow[s][task.chunk]]
                      for part in (orders[s][: place[s]], orders[s][place[s] + 1 :])]
            place[s] += 1
            if hollow[s][c]:
                clock[s] = np.maximum(here[s, task], clock[s])
                if kind == "b":
                    end[s][c] = clock[s]
                send(s, task)
                continue
            if around[0]:
                kind_before, n, _ = around[0][-1]
                free, queue = in_a_row(kind_before, runs[s][n], kind, x, clock[s], trails[s])
                start = np.where(gathers[s], np.maximum(start, free), start)
                trails[s] = np.where(gathers[s], queue, trails[s])
            if kind == "f":
                if k == 0:
                    start = np.maximum(start, first[s][c])
                clock[s] = start + x.forward
                trails[s] = np.where(
                    gathers[s], trails[s], trails[s] + x.forward - x.under_forward)
            else:
                clock[s] = start + x.backward
                if around[1] and not np.all(x.alone):
                    kind_behind, n, _ = around[1][0]
                    y = runs[s][n]
                    more = y.gathered if kind_behind == "f" else y.regathered
                    clock[s] = clock[s] + np.maximum(0.0, x.above + more - x.under_first) - (
                        np.maximum(0.0, x.above - x.under_first))
                end[s][c] = clock[s]
                trails[s] = np.where(gathers[s], trails[s], clock[s] + x.trailing)
            send(s, task)
        assert begun, "the orders wait for each other"
    return clock, end


def in_a_row(
    kind_before: str, before: Run, kind: str, x: Run, clock: Floats, trails: Floats
) -> tuple[Floats, Floats]:
    """When a task can begin right behind another one under ZeRO-3, and what trails then.

    What it gathers first runs beside the last layer of the task in front, the rest beside its own
    first two. A single layer that goes backward leaves its scatter to the two tasks behind.
    """
    need = x.gathered if kind == "f" else x.regathered
    hides = before.under_last if kind_before == "f" else before.under_first
    single, start = bool(np.all(before.alone)), clock
    if kind_before == "f" or single:
        start = start + np.maximum(0.0, need - hides)
    scattered = np.zeros(1) if kind_before == "f" else before.scattered
    if not np.all(x.alone):
        own = np.maximum(0.0, x.below + scattered - x.under_backward)
        if kind == "f":
            own = np.maximum(x.begun, scattered * (kind_before == "b") + x.ahead - x.third)
        start = start + (x.begun if (kind_before, kind) == ("f", "f") else own)
    if not single:
        return start, clock + scattered if kind_before == "b" else np.full(1, -np.inf)
    took = before.forward if kind_before == "f" else before.backward
    trails = trails + took - hides + need
    start = np.maximum(start, trails)
    return start, start + scattered if kind_before == "b" else trails


def following(s: int, c: int, p: int) -> tuple[int, int]:
    """Stage and chunk behind a chunk."""
    return (s + 1, c) if s < p - 1 else (0, c + 1)


def preceding(s: int, c: int, p: int) -> tuple[int, int]:
    """Stage and chunk in front of a chunk."""
    return (s - 1, c) if s > 0 else (p - 1, c - 1)


def wrapped_configuration(
    outer: Outer, wrap: Wrap, choices: Sequence[Choice], policy: Policy,
    chunks: Sequence[Sequence[tuple[int, int]]],
) -> Configuration:
    """An interleaved plan."""
    return Configuration(
        outer_dp=outer.outer_dp, micro_batch=outer.micro_batch, stride=outer.stride,
        vpp=wrap.vpp, schedule="interleaved",
        stages=tuple(write_stage(c, policy, own) for c, own in zip(choices, chunks, strict=True)))
