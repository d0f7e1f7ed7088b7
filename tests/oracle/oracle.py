"""Exhaustive twin of the planner: every legal plan is built and priced, none is left out.

It shares with the package the descriptions, the chain and the cost functions of one layer; cuts,
groups, legality, sums over stages, memory, hand-overs and the step time are written again, plainly.
:func:`price` looks at one plan with loops. :func:`solve` lists all of them, as arrays with one
entry per (unfinished) plan: a plan grows at its front, one stage at a time, and no entry is ever
dropped because another one is better.

Array names end in what an entry stands for: ``_C`` a choice of degrees on a block under an outer
choice, ``_O`` an option (a choice, a recompute policy and two cuts), ``_P`` a recompute policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from oracle_crossed import crossed
from oracle_interleaved import interleaved, wrapped, wrapped_links
from oracle_listing import Question, Wrap
from oracle_plans import Answer, Found, Key, Priced, Ranked, later, read_stage, write_stage
from oracle_prices import Pricer, Run, waits_in, waits_of
from oracle_rules import FULL, Choice, Outer, Policy, shards
from oracle_schedules import SCHEDULES, Behind, Schedule

from nest.costs.imbalance import ALONE, Waits
from nest.inputs import Cluster, Configuration, Job, SearchSpace, StageConfiguration
from nest.model import Chain

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MOST_ENTRIES = 6_000_000
# ---------------------------------------------------------------- one plan


def price(chain: Chain, cluster: Cluster, job: Job, plan: Configuration) -> Priced:
    """Price one plan, stage by stage from the last to the first.

    Raises
    ------
    ValueError : the plan is not legal.
    """
    outer = Outer(plan.outer_dp, plan.micro_batch, plan.stride)
    stages = [read_stage(s) for s in plan.stages]
    cuts = check(Question(chain, cluster, job, SearchSpace(schedule=plan.schedule)), plan, stages)
    order = plan.order or tuple(range(len(chain)))
    pricer = Pricer(chain, cluster, job, [(outer, c) for c, _ in stages],
                    [policy for _, policy in stages], waits_in(job, plan))
    runs: list[list[Run]] = []
    for s, (stage, (_, policy)) in enumerate(zip(plan.stages, stages, strict=True)):
        tables = [pricer.run(order[i:j], sum(1 << n for n in order[:i]), [policy], plan.pp > 1)
                  for i, j in stage.chunks]
        runs.append([Run(*(figure[[pricer.row_C[s]]] for figure in table)) for table in tables])
    m = job.global_batch // (outer.outer_dp * outer.micro_batch)
    if plan.schedule == "interleaved":
        wrap = Wrap(0, stages[0][0].size, plan.pp, plan.vpp)
        links = wrapped_links(pricer, outer, wrap, [list(s.chunks) for s in plan.stages],
                              np.array([shards(stages[0][0].split, job)]))
        seconds, memory = interleaved(runs, links, m)
        limits = tuple(stage[0].limit.item() for stage in runs)
        return Priced(seconds.item(), tuple(held.item() for held in memory), limits)
    alone = [Run(*(figure[0] for figure in stage[0])) for stage in runs]
    return one_by_one(pricer, plan, stages, cuts, alone, np.array([m]))


def one_by_one(
    pricer: Pricer, plan: Configuration, stages: Sequence[tuple[Choice, Policy]],
    cuts: Sequence[int], runs: Sequence[Run], m: Ints,
) -> Priced:
    """A plan whose stages hold one range of layers each."""
    schedule = next(x for x in SCHEDULES if x.name == plan.schedule)
    outer = Outer(plan.outer_dp, plan.micro_batch, plan.stride)
    behind = schedule.nothing(1)
    memory: list[float] = []
    for s in range(plan.pp - 1, -1, -1):
        run, n, hop, gap = runs[s], plan.pp - 1 - s, np.zeros(1), np.zeros(1)
        if n:
            start = stages[s + 1][0].start
            lanes = min(shards(c.split, pricer.job) for c, _ in stages[s : s + 2])
            size, per_byte, latency = pricer.handed(outer, cuts[s + 1], start - 1, start)
            hop = hop + pricer.hop(size, per_byte, latency, lanes)
            gap = gap + pricer.gap(size, per_byte, lanes)
        behind = schedule.put(behind, n, m, run, hop, gap)
        held = run.resident + run.work + run.buffers + schedule.in_flight(n, m) * run.activations
        memory.insert(0, float(held[0]))
    limits = tuple(run.limit.item() for run in runs)
    return Priced(float(schedule.seconds(behind)[0]), tuple(memory), limits)


def check(
    question: Question, plan: Configuration, stages: Sequence[tuple[Choice, Policy]]
) -> list[int]:
    """Layers in front of each stage; refuse a plan that is not among those enumerated."""
    chain, outer = question.chain, Outer(plan.outer_dp, plan.micro_batch, plan.stride)
    if outer not in question.outers:
        raise ValueError(f"{outer} is no outer choice")
    order = plan.order or tuple(range(len(chain)))
    if sorted(order) != list(range(len(chain))) or (chain.is_chain and plan.order is not None):
        raise ValueError("order of the layers")
    before, layer, device, cuts = 0, 0, 0, []
    for s, (c, policy) in zip(plan.stages, stages, strict=True):
        if c.start != device or (plan.vpp == 1 and s.layers[0] != layer):
            raise ValueError(f"stage {s} does not follow the one in front")
        layer, device = s.layers[1], s.devices[1]
        if (c.start, c.size) not in question.blocks(outer):
            raise ValueError(f"block of stage {s} is not aligned")
        if c.split not in question.splits(outer.micro_batch, c.size):
            raise ValueError(f"degrees of stage {s}")
        piped = len(stages) > 1
        if c.state not in question.states(outer, c.split, piped):
            raise ValueError(f"zero or shard of stage {s}")
        if policy.code != FULL and policy not in question.policies(()):
            raise ValueError(f"recompute of stage {s}")
        cuts.append(before)
        before |= sum(1 << n for n in order[slice(*s.layers)])
        if plan.vpp == 1 and before not in question.cuts:
            raise ValueError(f"layers of stage {s} need some behind it")
    if layer != len(chain) or device > outer.stride:
        raise ValueError("layers or devices of the last stage")
    if plan.vpp > 1:
        check_wrapped(question, plan, stages)
    return cuts


def check_wrapped(
    question: Question, plan: Configuration, stages: Sequence[tuple[Choice, Policy]]
) -> None:
    """Refuse an interleaved pipeline that is none; its chunks may be of any length, or empty."""
    m = question.job.global_batch // (plan.outer_dp * plan.micro_batch)
    if plan.pp < 2 or m % plan.pp or not question.chain.is_chain:
        raise ValueError("stages of an interleaved pipeline")
    for s, (stage, (choice, policy)) in enumerate(zip(plan.stages, stages, strict=True)):
        if (choice[1:], policy) != (stages[0][0][1:], stages[0][1]):
            raise ValueError(f"stage {stage} is not as the first one")
        if len(stage.chunks) != plan.vpp:
            raise ValueError(f"chunks of stage {s}")
    layers = [n for c in range(plan.vpp) for stage in plan.stages
              for n in range(*stage.chunks[c])]
    if layers != list(range(len(question.chain))):
        raise ValueError("layers of the chunks")


# ---------------------------------------------------------------- all plans


def solve(
    chain: Chain, cluster: Cluster, job: Job, space: SearchSpace | None = None, top: int = 1
) -> Answer:
    """The best of all legal plans that fit, of the ``top`` best keys that differ.

    Ties go to the schedule and to the plan with fewer stages that are listed first.
    """
    question = Question(chain, cluster, job, space or SearchSpace())
    plans, found = 0, list[Found]()
    for part, waits, counted in parted(question):
        fitting, best = listed(part, waits)
        plans, found = plans + fitting * counted, found + best
    found.sort(key=lambda x: x.seconds)
    unlike: dict[tuple[object, ...], Found] = {}
    for one in found:
        unlike.setdefault(apart(one.key, job), one)
    found = list(unlike.values())
    return Answer(plans, tuple(Ranked(x.seconds, x.key, x.configuration()) for x in found[:top]))


def parted(question: Question) -> Iterator[tuple[Question, Waits, bool]]:
    """Parts of a question in which ranks wait alike for longer samples, and whether to count its
    plans: wider parts hold those of narrower ones too, priced too high."""
    space, job = question.space, question.job
    if not job.uneven:
        yield question, ALONE, True
        return
    zeros = [zero for zero in range(4) if space.allows("zero", zero)]
    for pp in range(1, question.deepest + 1):
        names = space.schedules if space.allows("pp", pp) else ()
        for slack in ({"1f1b"}, {"gpipe"}, {*names} - {"1f1b", "gpipe"}):
            own = [name for name in names if pp == 1 or name in slack]
            if not own or (pp == 1 and "1f1b" not in slack):
                continue
            part = space.replace(pp=pp, schedule=own)
            for most, shard in ((2, None), (3, "dp_in"), (3, None)):
                some = [zero for zero in zeros if zero <= most]
                if not some or (shard and not space.allows("shard", shard)):
                    continue
                inside = part.replace(zero=some) if shard is None else part.replace(
                    zero=some, shard=shard)
                waits = waits_of(pp, own[0], [most], [shard or "dp"])
                yield replace(question, space=inside), waits, most == 3 and shard is None


def listed(question: Question, waits: Waits) -> tuple[int, list[Found]]:
    """How many plans fit, and the best of each key."""
    if question.counts()[0] > MOST_ENTRIES:
        raise MemoryError("too many plans to list")
    rows = list(question.choices())
    if not rows:
        return 0, []
    policies = sorted({policy for i, j in question.pairs
                       for policy in question.policies(question.layers(i, j))}, key=repr)
    pricer = Pricer(question.chain, question.cluster, question.job,
                    [(question.outers[o], c) for o, c in rows], policies, waits)
    plans, found = 0, list[Found]()
    if question.trees:
        table = Table(question, pricer, rows)
        for schedule in SCHEDULES:
            if schedule.name in question.trees:
                fitting, best = table.grown(schedule)
                plans, found = plans + fitting, found + best
    for fitting, best in (
            wrapped(question, pricer, rows),
            crossed(question) if "dualpipe" in question.space.schedules else (0, [])):
        plans, found = plans + fitting, found + best
    return plans, found


def apart(key: Key, job: Job) -> tuple[object, ...]:
    """What a key is when names that may stand for the same plan are one.

    A stage alone is data parallel over its block and its replicas together; where one micro-batch
    goes there and back the schedule has no choice.
    """
    replicas, samples, pp, vpp, schedule = key
    at_once = replicas * samples
    if schedule == "gpipe" and at_once == job.global_batch:
        schedule = "1f1b"
    return (at_once if pp == 1 else (replicas, samples)), pp, vpp, schedule


class Options(NamedTuple):
    """All that a stage can be: a choice, a policy and the cuts around it. An entry an option."""

    choice: Ints
    policy: Ints
    before: Ints
    """Number of the cut in front."""
    after: Ints
    outer: Ints
    start: Ints
    end: Ints


class Partial(NamedTuple):
    """Unfinished plans with equally many stages. Arrays, an entry a plan."""

    option: Ints
    parent: Ints
    """Entry of the plan behind, among those with one stage less; -1: none."""
    behind: Behind


class Table:
    """Prices of all options, and how plans grow by them."""

    def __init__(
        self, question: Question, pricer: Pricer, rows: Sequence[tuple[int, Choice]]
    ) -> None:
        self.question, self.pricer, self.rows = question, pricer, rows
        self.options, self.price = self._options()
        o = self.options
        self.shards = np.array([shards(c.split, question.job) for _, c in rows])[o.choice]
        batch = question.job.global_batch
        self.m = np.array(
            [batch // (x.outer_dp * x.micro_batch) for x in question.outers])[o.outer]
        self.handed = self._handed()

    def _options(self) -> tuple[Options, Run]:
        """Every stage of every plan, priced."""
        question, pricer, last = self.question, self.pricer, len(self.question.cuts) - 1
        outer_C = np.array([o for o, _ in self.rows])
        start_C = np.array([c.start for _, c in self.rows])
        end_C = start_C + np.array([c.size for _, c in self.rows])
        room_C = np.array([question.outers[o].stride for o, _ in self.rows]) > end_C
        piped_C = np.array(
            [c.state.zero in question.job.stack.zero_with_pipeline for _, c in self.rows])
        parts, prices = [], []
        for i, j in question.pairs:
            legal = (start_C == 0) == (i == 0)
            if j < last:
                legal = legal & room_C
            if (i, j) != (0, last):
                legal = legal & piped_C
            layers = question.layers(i, j)
            policies = question.policies(layers)
            numbers = [pricer.policies.index(policy) for policy in policies]
            chosen = np.flatnonzero(legal)
            choice = np.repeat(chosen, len(numbers))
            parts.append(np.stack([
                choice, np.tile(numbers, len(chosen)), np.full_like(choice, i),
                np.full_like(choice, j), outer_C[choice], start_C[choice], end_C[choice]]))
            piped = len(layers) < len(question.chain)
            table = pricer.run(layers, question.cuts[i], policies, piped)
            prices.append(np.stack([x[pricer.row_C[chosen]].ravel() for x in table]))
        return (Options(*np.concatenate(parts, axis=1)),
                Run(*np.concatenate(prices, axis=1)))

    def _handed(self) -> Floats:
        """Bytes, seconds per byte and of a message of the hand-over behind each option; (3, O)."""
        question, o = self.question, self.options
        found = np.zeros((3, len(o.choice)))
        inner = np.flatnonzero(o.after < len(question.cuts) - 1)
        places, back = np.unique(
            np.stack([o.outer, o.after, o.end])[:, inner], axis=1, return_inverse=True)
        handed = [
            self.pricer.handed(question.outers[outer], question.cuts[cut], device - 1, device)
            for outer, cut, device in places.T.tolist()
        ]
        if handed:
            found[:, inner] = np.array(handed).T[:, back.ravel()]
        return found

    def grown(self, schedule: Schedule) -> tuple[int, list[Found]]:
        """How many plans of a schedule fit, and the best of each key."""
        question, plans = self.question, 0
        levels: list[Partial] = []
        found: list[Found] = []
        for depth in range(1, question.deepest + 1):
            levels.append(self._grow(schedule, levels[-1] if levels else None, depth))
            done = np.flatnonzero(self.options.before[levels[-1].option] == 0)
            if not question.space.allows("pp", depth) or not len(done):
                continue
            plans += len(done)
            option = levels[-1].option[done]
            behind = tuple(figure[done] for figure in levels[-1].behind)
            seconds = schedule.seconds(behind)
            for key, entry in self._best(seconds, option):
                found.append(Found(
                    float(seconds[entry]), (*key, depth, 1, schedule.name),
                    later(self._configuration, schedule, levels[:depth], int(done[entry]))))
        return plans, found

    def _best(self, seconds: Floats, option: Ints) -> list[tuple[tuple[int, int], int]]:
        """The fastest entry of each (outer_dp, micro_batch)."""
        outers = [(o.outer_dp, o.micro_batch) for o in self.question.outers]
        names = sorted(set(outers))
        name = np.array([names.index(x) for x in outers])[self.options.outer[option]]
        order = np.lexsort((seconds, name))
        unique, first = np.unique(name[order], return_index=True)
        return [(names[n], int(order[k])) for n, k in zip(unique, first, strict=True)]

    def _grow(self, schedule: Schedule, behind: Partial | None, depth: int) -> Partial:
        """All plans of ``depth`` stages: those behind with each option that fits in front."""
        o, p = self.options, self.price
        held = p.resident + p.work + p.buffers
        held = held + schedule.in_flight(depth - 1, self.m) * p.activations
        fits = held <= p.limit
        if behind is None:
            option = np.flatnonzero(fits & (o.after == len(self.question.cuts) - 1))
            parent = np.full(len(option), -1)
            carried = schedule.nothing(len(option))
            hop = gap = np.zeros(len(option))
        else:
            option, parent = self._joined(behind, np.flatnonzero(fits))
            carried = tuple(figure[parent] for figure in behind.behind)
            lanes = np.minimum(self.shards[option], self.shards[behind.option[parent]])
            size, per_byte, latency = self.handed[:, option]
            hop = self.pricer.hop(size, per_byte, latency, lanes)
            gap = self.pricer.gap(size, per_byte, lanes)
        return Partial(option, parent, schedule.put(
            carried, depth - 1, self.m[option], Run(*(figure[option] for figure in p)), hop, gap))

    def _joined(self, behind: Partial, fitting: Ints) -> tuple[Ints, Ints]:
        """Pairs of an option and a plan that begins where the option ends."""
        o, last = self.options, behind.option
        names = self._cells(o.outer[last], o.before[last], o.start[last])
        order = np.argsort(names, kind="stable")
        wanted = self._cells(o.outer, o.after, o.end)[fitting]
        low = np.searchsorted(names[order], wanted, "left")
        count = np.searchsorted(names[order], wanted, "right") - low
        option = np.repeat(fitting, count)
        begin = np.repeat(low - (np.cumsum(count) - count), count)
        return option, order[begin + np.arange(len(option))]

    def _cells(self, outer: Ints, cut: Ints, device: Ints) -> Ints:
        """One number for an outer choice, the cut and the device that a plan begins with."""
        return (outer * len(self.question.cuts) + cut) * 100 + device

    def _configuration(
        self, schedule: Schedule, levels: Sequence[Partial], entry: int
    ) -> Configuration:
        """The plan that an entry of the last of ``levels`` stands for."""
        question, o = self.question, self.options
        stages: list[StageConfiguration] = []
        order: list[int] = []
        outer = question.outers[0]
        for level in reversed(levels):
            option = int(level.option[entry])
            number, c = self.rows[o.choice[option]]
            outer = question.outers[number]
            layers = question.layers(int(o.before[option]), int(o.after[option]))
            stages.append(write_stage(
                c, self.pricer.policies[o.policy[option]],
                [(len(order), len(order) + len(layers))]))
            order += layers
            entry = int(level.parent[entry])
        return Configuration(
            outer_dp=outer.outer_dp, micro_batch=outer.micro_batch, stages=tuple(stages),
            stride=outer.stride, schedule=schedule.name,
            order=None if question.chain.is_chain else tuple(order))
