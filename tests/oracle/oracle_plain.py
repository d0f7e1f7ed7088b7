"""One plan priced a second time for the oracle's own tests, with plain numbers.

It shares with the oracle which devices form groups and what crosses a cut. Runs of layers, memory
and steps are written again: sums over all that is in front, and a simulation that starts every
task at 0 and moves it back until nothing waits any more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from oracle_links import arrays
from oracle_plain_runs import NO_TIME, Figures, Hand, Hands, PlainRun, Runs
from oracle_plans import read_stage
from oracle_prices import Pricer, reducing, waits_in
from oracle_rules import FULL, NONE, Outer, Policy, shards
from simulation import Task, interleaved

from nest.costs.choices import Body, State
from nest.costs.layer import layer_costs
from nest.inputs import Cluster, Configuration, Job
from nest.model import Chain


def plain_price(plan: Configuration, m: int, runs: Runs, hands: Hands) -> tuple[float, list[float]]:
    """Seconds of a step of ``m`` micro-batches, and bytes of each stage."""
    p, memory = plan.pp, []
    for s, stage in enumerate(runs):
        resident = sum(x.total("parameters", "gradients", "optimizer") for x in stage)
        resident += sum(x.received for x in stage)
        resident += max(x.most("work") for x in stage) + max(x.most("buffers") for x in stage)
        memory.append(resident + _held(plan.schedule, s, p, m, stage))
    if plan.schedule == "interleaved":
        return wrapped_step(runs, hands, m), memory
    single, between = [stage[0] for stage in runs], [stage[0] for stage in hands]
    form = gpipe_step if plan.schedule == "gpipe" else one_f_one_b_step
    return form(single, between, m), memory


def plain_parts(
    chain: Chain, cluster: Cluster, job: Job, plan: Configuration
) -> tuple[list[list[PlainRun]], list[list[Hand]]]:
    """Every chunk of every stage, and what is handed over behind it."""
    outer = Outer(plan.outer_dp, plan.micro_batch, plan.stride)
    order = plan.order or tuple(range(len(chain)))
    chosen = [read_stage(stage) for stage in plan.stages]
    pricer = Pricer(chain, cluster, job, [(outer, c) for c, _ in chosen], [],
                    waits_in(job, plan))
    runs: list[list[PlainRun]] = []
    hands: list[list[Hand]] = []
    for s, (stage, (c, policy)) in enumerate(zip(plan.stages, chosen, strict=True)):
        key = pricer.keys[pricer.row_C[s]]
        known: dict[tuple[int, int], Figures] = {}
        software = reducing(job.stack, plan.pp > 1)
        runs.append([])
        hands.append([])
        for i, j in stage.chunks:
            layers, before = order[i:j], sum(1 << n for n in order[:i])
            figures, seen = [], 0
            for kind in chain.stage(layers):
                code = _code(policy, seen)
                if (kind, code) not in known:
                    known[kind, code] = _layer(pricer, chain.kinds[kind], key, code)
                figures.append(known[kind, code])
                seen += chain.kinds[kind].checkpointed
            samples, tp, sp, cp, *_ = key
            relayed = pricer.relayed(before, layers) * samples / (cp * (tp if sp else 1))
            received = 0.0
            if job.stack.receives_all:
                m = job.global_batch // (plan.outer_dp * plan.micro_batch)
                behind = before | sum(1 << n for n in layers)
                each = plan.micro_batch * (pricer.size(before) + pricer.size(behind))
                received = m * each / shards(c.split, job)
            runs[s].append(PlainRun(
                figures or [NO_TIME], software, relayed if figures else 0.0, received))
            if (s, len(runs[s])) == (plan.pp - 1, plan.vpp):
                hands[s].append(Hand(0.0, 0.0))
                continue
            to = (s + 1) % plan.pp
            size, per_byte, latency = pricer.handed(
                outer, sum(1 << n for n in order[:j]), stage.devices[1] - 1,
                plan.stages[to].devices[0])
            lanes = min(shards(c.split, job), shards(chosen[to][0].split, job))
            gap = size / lanes * per_byte
            hands[s].append(Hand(2.0 * (1.0 - job.stack.overlap_p2p) * (gap + latency), gap))
    return runs, hands


def _code(policy: Policy, seen: int) -> int:
    """Recompute of a layer behind ``seen`` others that recompute applies to."""
    beyond = policy.code == FULL and policy.first is not None and seen >= policy.first
    return NONE if beyond else policy.code


def _layer(pricer: Pricer, kind: Any, key: tuple[Any, ...], code: int) -> Figures:
    """One layer under one choice of degrees."""
    samples, tp, sp, cp, inner, gather, ep, etp, *state = (np.array([x]) for x in key[:12])
    groups = [arrays([seen]) for seen in key[14:-1]]
    return Figures(layer_costs(
        kind, Body(samples, tp, sp, cp, inner, gather, ep, etp, np.array([code]), *groups[:5],
             *(np.array([own]) for own in key[13])),
        State(tp, ep, etp, *state, *groups[5:-1], all_group=pricer.reducing(groups[-1])),
        pricer.settings[key[12]]))


def _held(schedule: str, s: int, p: int, m: int, stage: Sequence[PlainRun]) -> float:
    """Bytes of activations when most are alive."""
    held = [x.total("activations") + x.relayed for x in stage]
    if schedule != "interleaved":
        return held[0] * (m if schedule == "gpipe" else min(p - s, m))
    tasks = interleaved(s, p, m, len(stage))
    return max(
        sum(held[t.chunk] for t in tasks[: n + 1] if t.kind == "f")
        - sum(held[t.chunk] for t in tasks[:n] if t.kind == "b")
        for n in range(len(tasks)))


# ---------------------------------------------------------------- one range of layers a stage


class Alternating:
    """1F1B: what each stage sees of its own passes, from the start of its first one on."""

    def __init__(self, x: Sequence[PlainRun], hands: Sequence[Hand], m: int) -> None:
        self.p, self.m, self.hop = len(x), m, [hand.hop for hand in hands]
        self.f, self.end = [run.f for run in x], [run.b for run in x]
        # Behind the last backward there is nothing to gather, behind all others a forward.
        self.late = [run.late_f if m > 1 else 0.0 for run in x]
        self.b = [end + late for end, late in zip(self.end, self.late, strict=True)]
        self.both = [f + b for f, b in zip(self.f, self.b, strict=True)]
        self.queue = [run.b + run.in_a_row - b for run, b in zip(x, self.b, strict=True)]
        self.in_turn = [run.in_turn for run in x]
        self.first_row = [run.longer("f", "f") for run in x]
        self.turn = [run.longer("f", "b") for run in x]
        self.gap = [hand.gap for hand in hands]
        self.rest = [0.0] * self.p
        # Ends of backwards, by how many follow: those that are looked at.
        self.early = [{j: 0.0 for j in {1, m // 2} if m > 1} for _ in x]
        for s in range(self.p - 1, -1, -1):
            for j in self.early[s]:
                self.early[s][j] = self.start(s, j) + self.b[s]
            ends = self.start(s, 0) + self.end[s]
            if s < self.p - 1:
                ends = max(ends, self.after(s) - self.late[s] + (m - 1) * self.gap[s])
            self.rest[s] = ends
            # Behind the first backward the others are as far apart as on average, or closer.
            apart = (ends - self.after(s)) / (m - 1) if m > 1 else 0.0
            for j in self.early[s]:
                self.early[s][j] = max(self.early[s][j], ends - j * apart)

    def after(self, s: int) -> float:
        """One micro-batch from the start of stage s to its end there."""
        return sum(self.both[s:]) + sum(self.hop[s:-1]) + self.turn[-1]

    def trip(self, s: int) -> float:
        """From the end of a forward of stage s to the start of that micro-batch's backward."""
        return self.after(s + 1) + self.hop[s] if s < self.p - 1 else self.turn[s]

    def reach(self, s: int, depth: int) -> float:
        """One micro-batch from stage s on to those up to ``depth`` behind it, without its own."""
        stages = range(s + 1, s + 1 + depth)
        return sum(self.hop[a - 1] + self.both[a] for a in stages) + self.turn[s + depth]

    def sends(self, s: int) -> dict[int, int]:
        """Forwards in front of a round trip of 1 or 2 stages, as often as the last one may."""
        n = self.p - 1 - s
        return {depth: min(n - depth, self.m - 1) for depth in (1, 2) if depth <= n}

    def away(self, s: int) -> float:
        """From the first forward's end to the first backward by way of stages behind."""
        row = self.f[s] + self.first_row[s]
        return max(self.trip(s), *(
            count * row + self.reach(s, depth) for depth, count in self.sends(s).items()))

    def first(self, s: int) -> float:
        """Start of the first backward."""
        ahead = min(self.p - 1 - s, self.m - 1)
        found = ahead * (self.f[s] + self.first_row[s]) + self.turn[s]
        if s < self.p - 1:
            found = max(found, self.away(s))
        return self.f[s] + found

    def passing(self, s: int, count: int) -> float:
        """Seconds in which so many micro-batches pass while forwards and backwards take turns."""
        chase, n = self.in_turn[s], self.p - 1 - s
        one = self.both[s] + chase + self.turn[s]
        if n == 0:
            return count * one
        whole = self.both[s] + self.trip(s) + chase
        most = 0.0
        for trips, left in ((0, count), divmod(count, n + 1)):
            smaller = [left * one]
            for depth in range(1, min(n, 2) + 1):
                seconds, rest = 0.0, left
                for k in range(depth, 0, -1):
                    seconds += rest // (k + 1) * (self.both[s] + self.reach(s, k) + chase)
                    rest %= k + 1
                smaller.append(seconds + rest * max(one, self.both[s + 1] + self.turn[s + 1]))
            most = max(most, trips * whole + max(smaller))
        return most

    def sent(self, s: int) -> float:
        """End of the last forward: in the first row, or behind all backwards but those in it."""
        turns = self.m - 1 - (self.p - s)
        if turns < 0:
            return self.m * self.f[s] + (self.m - 1) * self.first_row[s]
        return (self.first(s) + self.b[s] + self.in_turn[s] + self.passing(s, turns)
                + self.f[s])

    def leaves(self, s: int) -> float:
        """The same where all but the first and last micro-batch may pass the next stage alone."""
        turns = self.m - (self.p - s)
        if turns < 0:
            return self.sent(s)
        there = self.f[s] + self.away(s) - self.hop[s]
        return max(self.sent(s), there + turns * (self.both[s + 1] + self.turn[s + 1]))

    def last_trip(self, s: int) -> float:
        """From the last forward's start to the last backward's end."""
        found = min(self.p - 1 - s, self.m - 1) * (self.b[s] + self.queue[s]) + self.turn[s]
        if s < self.p - 1:
            found = max(found, self.back(s, 0))
        return self.f[s] + found + self.end[s]

    def back(self, s: int, behind: int) -> float:
        """From the last forward's end to the backward with so many behind it, by way of others."""
        ways = [(count - behind) * (self.b[s] + self.queue[s]) + self.reach(s, depth)
                for depth, count in self.sends(s).items() if count >= max(behind, 1)]
        if behind == 0:
            ways.append(self.hop[s] + self.last_trip(s + 1))
        return max(ways, default=-math.inf)

    def start(self, s: int, behind: int) -> float:
        """Start of the backward that so many follow."""
        n, m, queued = self.p - 1 - s, self.m, self.b[s] + self.queue[s]
        if behind > n and m > n + 1:
            own = self.first(s) + self.passing(s, m - 1 - behind)
        elif m > n + 1:
            own = self.sent(s) + self.turn[s] + (n - behind) * queued
        else:
            own = self.first(s) + (m - 1 - behind) * queued
        if n == 0:
            return own
        ways = [own, self.leaves(s) + self.back(s, behind)]
        if behind == 0:
            ways += [self.f[s] + self.hop[s] + self.rest[s + 1], self.sent(s) + self.trip(s)]
        for before, end in self.early[s + 1].items():
            if before == behind or behind < before <= n:
                ways.append(self.f[s] + self.hop[s] + end + (before - behind) * queued)
        return max(ways)


def one_f_one_b_step(x: Sequence[PlainRun], hands: Sequence[Hand], m: int) -> float:
    """From each stage to each one behind it, with every place where the last micro-batch leaves."""
    p, own = len(x), Alternating(x, hands, m)

    def until(k: int, s: int) -> float:
        """From the start of stage k to the last backward of stage s behind it or of itself."""
        later = [own.f[a] + hands[a].hop / 2 for a in range(s)]
        ways = [sum(later[k:s]) + own.rest[s]]
        for a in range(k, s):
            leaves = max(own.sent(a), own.f[a] + (m - 1) * hands[a].gap)
            ways.append(sum(later[k:a]) + leaves + hands[a].hop / 2 + sum(later[a + 1 : s])
                        + own.after(s) - own.late[s])
        return max(ways)

    steps = []
    for k in range(p):
        copies = [s for s in range(k, p) if x[s].total("tied") > 0.0]
        exchange = max((x[s].total("tied", "update") for s in copies), default=-math.inf)
        end = max(until(k, s) + x[s].whole_left
                  + (exchange if s in copies else x[s].total("update")) for s in range(k, p))
        begun = max(sum(own.end[a] + hands[a].hop / 2 for a in range(k, s)) + x[s].whole_wait
                    + own.rest[s] for s in range(k, p))
        begun += x[k].whole_left + (exchange if k in copies else x[k].total("update"))
        steps += [x[k].whole_wait + end, begun]
    return max(steps)


def gpipe_step(x: Sequence[PlainRun], hands: Sequence[Hand], m: int) -> float:
    """All forwards at the pace of the slowest, the turn, then all backwards."""
    p = len(x)

    def slowest(first: int, seconds: Sequence[float]) -> float:
        """Of the stages and links from this stage on."""
        return max(max(seconds[a], hands[a].gap) for a in range(first, p))

    rows = [run.f + run.longer("f", "f") for run in x]
    turn = max(x[s].whole_wait + sum(x[a].f + hands[a].hop / 2 for a in range(s, p))
               + (m - 1) * slowest(s, rows) for s in range(p))
    rows = [run.b + run.in_a_row for run in x]

    def home(s: int) -> float:
        """From the turn to the last backward of stage s: behind its own, or from one behind."""
        begin = x[-1].longer("f", "b")
        if m == 1:
            return begin + sum(x[a].b + hands[a].hop / 2 for a in range(s, p))
        ends = []
        for a in range(s, p):
            # The last micro-batch but one ends here, behind all others, with another behind it.
            before = begin + sum(
                x[k].b + x[k].late_b + hands[k].hop / 2 for k in range(a, p))
            before += (m - 2) * slowest(a, rows)
            left = x[a].b + x[a].late_b
            own = before + max(rows[a] - left, hands[a].gap - left) + x[a].b
            ends.append(own + sum(x[k].b + hands[k].hop / 2 for k in range(s, a)))
        return max(ends)

    finish = [turn + home(s) + x[s].whole_left for s in range(p)]
    copies = [s for s in range(p) if x[s].total("tied") > 0.0]
    ends = [finish[s] + x[s].total("update") for s in range(p) if s not in copies]
    if copies:
        ends.append(max(finish[s] for s in copies)
                    + max(x[s].total("tied", "update") for s in copies))
    return max(ends)


# ---------------------------------------------------------------- interleaved


def wrapped_step(x: Runs, hands: Hands, m: int) -> float:
    """From the ends of all tasks to that of the step."""
    p, ends = len(x), _ends(x, hands, m)
    done, copies, exchange = [], [], []
    for s in range(p):
        times = [max(end for (stage, _), end in ends.items() if stage == s)]
        for c, run in enumerate(x[s]):
            if run.hollow:
                continue
            last = max(end for (stage, task), end in ends.items()
                       if (stage, task.kind, task.chunk) == (s, "b", c))
            times.append(last + (run.left if c > _real(x[s]) else run.whole_left) + sum(
                y.total("sync") + p * (y.b + y.late_b + y.longer("b", "b") - y.hidden_b)
                for y in x[s][:c]))
        update, tied = (sum(run.total(name) for run in x[s]) for name in ("update", "tied"))
        if tied > 0.0:
            copies.append(max(times))
            exchange.append(tied + update)
        else:
            done.append(max(times) + update)
    return max(done + [max(copies) + max(exchange)] if copies else done)


def _ends(x: Runs, hands: Hands, m: int) -> dict[tuple[int, Task], float]:
    """End of every task: all are moved back until each one's conditions hold."""
    p, v = len(x), len(x[0])
    orders = [interleaved(s, p, m, v) for s in range(p)]
    number = {(s, c): c * p + s for s in range(p) for c in range(v)}
    place = {n: at for at, n in number.items()}
    first = [[_first(stage, c, p) for c in range(v)] for stage in x]
    ends = {(s, task): 0.0 for s in range(p) for task in orders[s]}
    came: dict[tuple[int, Task], float] = {}
    moved = True
    while moved:
        moved = False
        # Messages first, from what is known of ends; then tasks, from what came.
        for s in range(p):
            for kind, step in (("f", 1), ("b", -1)):
                before = -math.inf
                for task in (t for t in orders[s] if t.kind == kind):
                    goal = place.get(number[s, task.chunk] + step)
                    if goal is None:
                        continue
                    hand = hands[s][task.chunk] if kind == "f" else hands[goal[0]][goal[1]]
                    before = max(ends[s, task] + hand.hop / 2, before + hand.gap)
                    came[goal[0], task._replace(chunk=goal[1])] = before
        for s in range(p):
            line = _line(x[s], orders[s], [came.get((s, t), 0.0) for t in orders[s]], first[s])
            for task, end in zip(orders[s], line, strict=True):
                moved = moved or end != ends[s, task]
                ends[s, task] = end
    return ends


def _line(
    stage: Sequence[PlainRun], tasks: Sequence[Task], came: Sequence[float],
    first: Sequence[float],
) -> list[float]:
    """Ends of a stage's tasks, given when the input of each has come."""
    gathers, ends = any(run.gathers for run in stage), list[float]()
    some = [n for n, task in enumerate(tasks) if not stage[task.chunk].hollow]
    through = -math.inf  # what backwards have left to scatter, as far as it delays others
    for n, (task, start) in enumerate(zip(tasks, came, strict=True)):
        run = stage[task.chunk]
        if run.hollow:  # the others do not see it
            ends.append(max(start, ends[-1] if n else 0.0))
            continue
        if some[0] < n and gathers:
            last = tasks[max(k for k in some if k < n)]
            front, before = stage[last.chunk], last.kind
            free, left = ends[-1] + run.behind(front, before, task.kind), front.layers[0].scattered
            if front.single:
                # What is left has gone on beside the task in front; what this one needs follows.
                o, layer = front.stack.overlap_zero3, front.layers[0]
                through += run.needs(task.kind) + (
                    front.f - o * layer.free_forward if before == "f"
                    else front.b - o * layer.free_backward)
                free = max(free, through)
                through = free + left if before == "b" else through
            else:
                through = ends[-1] + left if before == "b" else -math.inf
            start = max(start, free)
        elif n:
            start = max(start, ends[-1], through - run.under_b if task.kind == "b" else 0.0)
        if task.kind == "f":
            start = max(start, first[task.chunk] if task.micro_batch == 0 else 0.0)
            ends.append(start + run.f)
            if not gathers:
                through += run.f - run.under_f
        else:
            end = start + run.b
            if gathers and n < some[-1]:
                behind = tasks[min(k for k in some if k > n)]
                end += run.late(stage[behind.chunk].needs(behind.kind))
            ends.append(end)
            if not gathers:
                through = end + run.trailing
    return ends


def _real(stage: Sequence[PlainRun]) -> int:
    """The first chunk with layers."""
    return next((c for c, run in enumerate(stage) if not run.hollow), 0)


def _first(stage: Sequence[PlainRun], c: int, p: int) -> float:
    """When the parameters of a chunk are there for the first time."""
    if c <= _real(stage):
        return stage[c].whole_wait
    if stage[c].total("gather") == 0.0:
        return 0.0
    return stage[c].wait + sum(
        y.total("gather") + p * (y.f - y.hidden_f) for y in stage[:c])
