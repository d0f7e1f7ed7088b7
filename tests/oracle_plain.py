"""One plan priced a second time for the oracle's own tests, with plain numbers.

It shares with the oracle which devices form groups and what crosses a cut; of 1F1B also the form
of a stage in front of others. Runs of layers, memory and steps are written
again: sums over all that is in front, and a simulation that starts every task at 0 and moves it
back until nothing waits any more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from oracle_links import arrays
from oracle_plain_runs import Figures, Hand, Hands, PlainRun, Runs
from oracle_plans import read_stage
from oracle_prices import Pricer
from oracle_rules import FULL, NONE, Outer, Policy, shards
from oracle_schedules import add_front
from simulation import Task, interleaved

from nest.costs.choices import Body, State
from nest.costs.layer import layer_costs
from nest.describe import Cluster, Configuration, Job
from nest.graph import Chain


def plain_price(plan: Configuration, m: int, runs: Runs, hands: Hands) -> tuple[float, list[float]]:
    """Seconds of a step of ``m`` micro-batches, and bytes of each stage."""
    p, memory = plan.pp, []
    for s, stage in enumerate(runs):
        resident = sum(x.total("parameters", "gradients", "optimizer") for x in stage)
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
    pricer = Pricer(chain, cluster, job, [(outer, c) for c, _ in chosen], [])
    runs: list[list[PlainRun]] = []
    hands: list[list[Hand]] = []
    for s, (stage, (c, policy)) in enumerate(zip(plan.stages, chosen, strict=True)):
        key = pricer.keys[pricer.row_C[s]]
        known: dict[tuple[int, int], Figures] = {}
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
            runs[s].append(PlainRun(figures, job.stack, pricer._relayed(key, before, layers)))
            if j == len(chain):
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
    samples, tp, sp, cp, a2a, ep, etp, *state = (np.array([x]) for x in key[:11])
    groups = [arrays([seen]) for seen in key[12:]]
    return Figures(layer_costs(
        kind, Body(samples, tp, sp, cp, a2a, ep, etp, np.array([code]), *groups[:4]),
        State(tp, ep, etp, *state, *groups[4:]), pricer.settings[key[11]]))


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


def one_f_one_b_step(x: Sequence[PlainRun], hands: Sequence[Hand], m: int) -> float:
    """From each stage to each one behind it, with every place where the last micro-batch leaves."""
    p = len(x)
    f, b, pace = [run.f for run in x], [run.b for run in x], [run.pace for run in x]
    # Each backward of the last stage follows the forward of its own micro-batch.
    b[-1] += x[-1].turn
    pace[-1] -= x[-1].turn
    rest, after = [0.0] * p, [0.0] * p
    for s in range(p - 1, -1, -1):
        n = p - 1 - s
        behind = (rest[s + 1], after[s + 1], f[s + 1] + b[s + 1]) if n else (0.0,) * 3
        given = [np.array(seconds) for seconds in (*behind, f[s], b[s], hands[s].hop)]
        front, _ = add_front(
            given[0], given[1], given[2], given[3], given[4], given[5], n, np.array(m))
        after[s] = sum(f[a] + b[a] + hands[a].hop for a in range(s, p))
        rest[s] = max(float(front), m * (f[s] + b[s]) + (m - 1) * pace[s])
        if n:
            rest[s] = max(rest[s], after[s] + (m - 1) * hands[s].gap)

    def until(k: int, s: int) -> float:
        """From the start of stage k to the last backward of stage s behind it or of itself."""
        later = [f[a] + hands[a].hop / 2 for a in range(s)]
        ways = [sum(later[k:s]) + rest[s]]
        for a in range(k, s):
            n, leaves = p - 1 - a, m * f[a]
            if m > n + 1:
                # The first backward waits for its gradient.
                leaves += (m - n - 1) * b[a] + max(0.0, after[a + 1] + hands[a].hop - n * f[a])
            leaves = max(leaves, f[a] + (m - 1) * hands[a].gap)
            ways.append(sum(later[k:a]) + leaves + hands[a].hop / 2 + sum(later[a + 1 : s])
                        + after[s])
        return max(ways)

    steps = []
    for k in range(p):
        copies = [s for s in range(k, p) if x[s].total("tied") > 0.0]
        exchange = max((x[s].total("tied", "update") for s in copies), default=-math.inf)
        end = max(until(k, s) + x[s].whole_left
                  + (exchange if s in copies else x[s].total("update")) for s in range(k, p))
        late = max(sum(b[a] + hands[a].hop / 2 for a in range(k, s)) + x[s].whole_wait + rest[s]
                   for s in range(k, p))
        late += x[k].whole_left + (exchange if k in copies else x[k].total("update"))
        steps += [x[k].whole_wait + end, late]
    return max(steps)


def gpipe_step(x: Sequence[PlainRun], hands: Sequence[Hand], m: int) -> float:
    """All forwards at the pace of the slowest, then all backwards."""
    p, ends = len(x), []
    for s in range(p):
        once = sum(x[a].f + x[a].b + hands[a].hop for a in range(s, p))
        slow = max(max(x[a].f + x[a].chase_f, hands[a].gap) for a in range(s, p))
        slow += max(max(x[a].b + x[a].chase_b + max(0.0, x[a].trailing - x[a].under_b),
                        hands[a].gap) for a in range(s, p))
        ends.append(sum(x[a].b + hands[a].hop / 2 for a in range(s))
                    + x[s].whole_wait + once + (m - 1) * slow)
    copies = [run for run in x if run.total("tied") > 0.0]
    finish = [run.whole_left + run.total("update") for run in x if run not in copies]
    if copies:
        finish.append(max(run.whole_left for run in copies)
                      + max(run.total("tied", "update") for run in copies))
    return max(ends) + max(finish)


# ---------------------------------------------------------------- interleaved


def wrapped_step(x: Runs, hands: Hands, m: int) -> float:
    """From the ends of all tasks to that of the step."""
    p, ends = len(x), _ends(x, hands, m)
    done, copies, exchange = [], [], []
    for s in range(p):
        times = [max(end for (stage, _), end in ends.items() if stage == s)]
        for c, run in enumerate(x[s]):
            last = max(end for (stage, task), end in ends.items()
                       if (stage, task.kind, task.chunk) == (s, "b", c))
            times.append(last + (run.left if c else run.whole_left) + sum(
                y.total("sync") + p * (y.b + y.chase_b - y.hidden_b) for y in x[s][:c]))
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
            for n, task in enumerate(orders[s]):
                run, start = x[s][task.chunk], came.get((s, task), 0.0)
                clock = ends[s, orders[s][n - 1]] if n else 0.0
                if task.kind == "f":
                    start = max(start, clock + run.chase_f)
                    if task.micro_batch == 0:
                        start = max(start, first[s][task.chunk])
                else:
                    known = [ends[s, t] for t in orders[s][:n]]
                    start = max(start, clock + run.chase_b,
                                _trailed(x[s], orders[s][:n], known) - run.under_b)
                clock = start + (run.f if task.kind == "f" else run.b)
                moved = moved or clock != ends[s, task]
                ends[s, task] = clock
    return ends


def _first(stage: Sequence[PlainRun], c: int, p: int) -> float:
    """When the parameters of a chunk are there for the first time."""
    if c == 0:
        return stage[0].whole_wait
    if stage[c].total("gather") == 0.0:
        return 0.0
    return stage[c].wait + sum(
        y.total("gather") + p * (y.f + y.chase_f - y.hidden_f) for y in stage[:c])


def _trailed(stage: Sequence[PlainRun], tasks: Sequence[Task], ends: Sequence[float]) -> float:
    """Until when the scatter behind the last backward of these tasks keeps the next one waiting."""
    backwards = [n for n, task in enumerate(tasks) if task.kind == "b"]
    if not backwards:
        return -math.inf
    n = backwards[-1]
    return ends[n] + stage[tasks[n].chunk].trailing + sum(
        stage[t.chunk].f - stage[t.chunk].under_f for t in tasks[n + 1 :])
