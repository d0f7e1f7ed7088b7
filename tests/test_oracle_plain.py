"""The oracle against an even plainer search: every way to put layers, devices and degrees together.

Layers are dealt to stages one by one; degrees are all tuples of numbers, looked at rule by rule.
Single plans, drawn from all there are, are priced a second time by :mod:`oracle_plain`; steps of
stages of a few seconds are worked out by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest
from instances import THEMES, Instance, instance
from oracle import price, solve
from oracle_drawn import drawn
from oracle_interleaved import Link
from oracle_interleaved import interleaved as wrapped
from oracle_listing import Question
from oracle_plain import plain_parts, plain_price
from oracle_plain_runs import Hands, Runs
from oracle_plans import Key, write_stage
from oracle_prices import LayerPrice, Run, run_of
from oracle_rules import Choice, Outer, Split, checkpointed, policies
from oracle_schedules import GPipe, OneFOneB
from plain import stack

from nest.describe import Configuration, SearchSpace

FEW = 120
"""Plans of an instance, finished or not, that are few enough."""
DEALT = 5000
"""Ways to deal layers to stages, legal or not."""
DRAWN = 220
"""Instances of which single plans are drawn."""


def stages_of(x: Instance, count: int) -> Iterator[list[tuple[int, ...]]]:
    """All ways to deal the layers to stages so that no tensor goes back."""
    for stage in product(range(count), repeat=len(x.chain)):
        flows = all(stage[t.producer] <= stage[c] for t in x.chain.tensors for c in t.consumers)
        if flows and set(stage) == set(range(count)):
            yield [tuple(n for n, s in enumerate(stage) if s == k) for k in range(count)]


def placed(
    choices: Sequence[Choice], count: int, device: int = 0
) -> Iterator[tuple[Choice, ...]]:
    """All ways to put stages on blocks, one behind the other."""
    if count == 0:
        yield ()
        return
    for c in choices:
        if c.start == device:
            for rest in placed(choices, count - 1, device + c.size):
                yield (c, *rest)


def one_range_each(
    x: Instance, schedule: str, outer: Outer, choices: Sequence[Choice]
) -> Iterator[Configuration]:
    """Plans whose stages hold one range of layers each."""
    for count in range(1, len(x.chain) + 1):
        if not x.space.allows("pp", count) or not x.space.allows("vpp", 1):
            continue
        for blocks in placed(choices, count):
            if count > 1 and any(
                    c.state.zero not in x.job.stack.zero_with_pipeline for c in blocks):
                continue
            for layers in stages_of(x, count):
                own = [policies(x.chain, x.space, checkpointed(x.chain, part)) for part in layers]
                order = tuple(n for part in layers for n in part)
                ends = [sum(map(len, layers[:k])) for k in range(count + 1)]
                for chosen in product(*own):
                    yield Configuration(
                        outer_dp=outer.outer_dp, micro_batch=outer.micro_batch,
                        stride=outer.stride, schedule=schedule,
                        order=None if x.chain.is_chain else order,
                        stages=tuple(
                            write_stage(c, policy, [(ends[k], ends[k + 1])])
                            for k, (c, policy) in enumerate(zip(blocks, chosen, strict=True))))


def dealt_out(x: Instance, outer: Outer, choices: Sequence[Choice]) -> Iterator[Configuration]:
    """Interleaved plans: chunks are dealt to the stages in turn."""
    low, high = x.chain.body
    m = x.job.global_batch // (outer.outer_dp * outer.micro_batch)
    for pp, vpp in product(range(2, len(x.chain) + 1), repeat=2):
        parts, left = divmod(high - low, pp * vpp)
        if left or not parts or m % pp or not x.chain.is_chain:
            continue
        if not (x.space.allows("pp", pp) and x.space.allows("vpp", vpp)):
            continue
        ends = [0, *range(low + parts, high, parts), len(x.chain)]
        chunks = list(zip(ends, ends[1:], strict=False))
        most = max(checkpointed(x.chain, range(*chunk)) for chunk in chunks)
        for c in choices:
            blocks = [c._replace(start=s * c.size) for s in range(pp)]
            piped = c.state.zero in x.job.stack.zero_with_pipeline
            if c.start == 0 and piped and all(block in choices for block in blocks):
                for policy in policies(x.chain, x.space, most):
                    yield Configuration(
                        outer_dp=outer.outer_dp, micro_batch=outer.micro_batch,
                        stride=outer.stride, schedule="interleaved", vpp=vpp,
                        stages=tuple(write_stage(block, policy, chunks[s::pp])
                                     for s, block in enumerate(blocks)))


def every_plan(x: Instance) -> Iterator[Configuration]:
    question = Question(x.chain, x.cluster, x.job, x.space)
    choices = list(question.choices())
    for number, outer in enumerate(question.outers):
        own = [c for n, c in choices if n == number]
        for schedule in x.space.schedule:
            if schedule == "interleaved":
                yield from dealt_out(x, outer, own)
            else:
                yield from one_range_each(x, schedule, outer, own)


def small(x: Instance) -> bool:
    question = Question(x.chain, x.cluster, x.job, x.space)
    return question.counts()[0] <= FEW and question.deepest ** len(x.chain) <= DEALT


def narrowed(x: Instance) -> Instance:
    """The same with so few degrees that few plans are left."""
    space = x.space.model_dump(exclude_none=True)
    if x.theme == "chunks":
        space["schedule"] = ["interleaved"]
    for name, value in (("zero", [1]), ("tp", [1, 2]), ("micro_batch", [1, 2]), ("cp", [1]),
                        ("recompute_modules", ["core_attn"]), ("sp", [False]), ("outer_dp", [1]),
                        ("recompute", ["none", "full"]), ("pp", [1, 2]), ("dp_in", [1])):
        if small(x):
            return x
        space[name] = value
        x = replace(x, space=SearchSpace(**space))
    return x


@pytest.mark.parametrize("theme", range(len(THEMES)), ids=THEMES)
def test_solve_is_the_best_of_all_plans(theme: int) -> None:
    checked = 0
    for seed in range(theme, 60 * len(THEMES), len(THEMES)):
        x = narrowed(instance(seed))
        if checked < 4 and small(x):
            checked += compared(x) > 1
    assert checked == 4


def compared(x: Instance) -> int:
    """Hold the oracle against the best of all plans; how many of them fit."""
    best: dict[Key, float] = {}
    count = 0
    for plan in every_plan(x):
        priced = price(x.chain, x.cluster, x.job, plan)
        if priced.fits:
            count += 1
            key = plan.outer_dp, plan.micro_batch, plan.pp, plan.vpp, plan.schedule
            best[key] = min(best.get(key, priced.seconds), priced.seconds)
    answer = solve(x.chain, x.cluster, x.job, x.space, top=3)
    assert answer.plans == count, x.seed
    assert [found.seconds for found in answer.best] == pytest.approx(
        sorted(best.values())[:3], rel=1e-12), x.seed
    for found in answer.best:
        assert found.seconds == pytest.approx(best[found.key], rel=1e-12), x.seed
    return count


def seen_in(plan: Configuration, runs: Runs, hands: Hands) -> set[str]:
    """What of the definition of a step there is in a plan."""
    flat = [run for stage in runs for run in stage]
    copies = sum(any(run.total("tied") > 0.0 for run in stage) for stage in runs)
    slow = [hand.gap > max(run.f, run.b) for stage, behind in zip(runs, hands, strict=True)
            for run, hand in zip(stage, behind, strict=True)]
    return {f"{plan.schedule} {name}" for name, yes in (
        ("alone", plan.pp == 1), ("deep", plan.pp > 2), ("copies", copies > 1),
        ("gathers", any(run.gathers for run in flat)), ("slow link", any(slow)),
        ("trails", any(run.trailing > run.under_f + run.under_b for run in flat)),
        ("chases", any(run.chase_f > 0.0 for run in flat)),
        ("chases back", any(run.chase_b > 0.0 for run in flat)),
        ("turns", any(run.turn > 0.0 for run in runs[-1])),
        ("wait", any(run.wait > 0.0 for run in flat)),
        ("left", any(run.left > 0.0 for run in flat)),
        ("hidden", any(0.0 < run.left < run.total("sync") for run in flat)),
    ) if yes}


def test_prices_of_drawn_plans() -> None:
    seen: set[str] = set()
    for seed in range(DRAWN):
        x, rng = instance(seed), Random(f"drawn {seed}")
        for _ in range(10 if x.theme == "chunks" else 3):
            plan = drawn(x, rng)
            if plan is None:
                continue
            priced = price(x.chain, x.cluster, x.job, plan)
            parts = plain_parts(x.chain, x.cluster, x.job, plan)
            m = x.job.global_batch // (plan.outer_dp * plan.micro_batch)
            seconds, memory = plain_price(plan, m, *parts)
            assert priced.seconds == pytest.approx(seconds, rel=1e-12), (seed, plan)
            assert priced.memory == pytest.approx(memory, rel=1e-12), (seed, plan)
            seen |= seen_in(plan, *parts)
    names = ("chases", "chases back", "copies", "deep", "gathers", "hidden", "left", "slow link",
             "trails", "turns", "wait")
    assert seen == {f"{schedule} {name}" for schedule in ("1f1b", "gpipe", "interleaved")
                    for name in names} | {"1f1b alone", "gpipe alone"}


def plain_splits(x: Instance, micro_batch: int, size: int) -> set[Split]:
    """Every tuple of numbers that no rule speaks against."""
    chain, space, found = x.chain, x.space, set()
    lengths, heads = chain.lengths(x.job.seq_len), chain.kv_heads
    moe = chain.model.moe if chain.model is not None else None
    degrees = range(1, size + 1)
    for dp_in, tp, cp, ep, etp in product(degrees, repeat=5):
        if dp_in * tp * cp != size or micro_batch % dp_in or size % (ep * etp):
            continue
        for sp, a2a in product((False, True), repeat=2):
            rules = [
                not sp or tp > 1,
                not a2a or cp > 1,
                not a2a or all(n % (tp * cp) == 0 for n in heads),
                cp == 1 or chain.model is not None,
                cp == 1 or all(n % (2 * cp) == 0 for n in lengths),
                not sp or chain.model is None or all(n % (tp * cp) == 0 for n in lengths),
                all(width % tp == 0 for _, width in chain.tensor_widths),
                all(n % tp == 0 or tp % n == 0 for n in heads),
                chain.model is not None or all(tp in k.measured for k in chain.kinds),
                moe is None or tp == 1 or sp,
                moe is not None or (ep, etp) == (1, tp),
                moe is None or (moe.experts % ep == 0 and moe.ffn % etp == 0),
                *(space.allows(name, value) for name, value in (
                    ("dp_in", dp_in), ("tp", tp), ("cp", cp), ("ep", ep), ("etp", etp),
                    ("mbs", micro_batch // dp_in))),
                tp == 1 or space.allows("sp", sp),
                cp == 1 or space.allows("cp_comm", "a2a" if a2a else "p2p"),
            ]
            if all(rules):
                found.add(Split(dp_in, tp, sp, cp, a2a, ep, etp))
    return found


def test_degrees_are_all_that_no_rule_forbids() -> None:
    kinds: set[str] = set()
    for seed in range(0, 120):
        x = instance(seed)
        question = Question(x.chain, x.cluster, x.job, x.space)
        for micro_batch, size in ((1, 2), (2, 4), (6, 6)):
            listed = question.splits(micro_batch, size)
            assert len(listed) == len(set(listed))
            assert set(listed) == plain_splits(x, micro_batch, size), (seed, micro_batch, size)
            kinds |= {name for name, yes in (
                ("a2a", any(s.a2a for s in listed)), ("ep", any(s.ep > 1 for s in listed)),
                ("etp", any(s.etp not in (1, s.tp) for s in listed))) if yes}
    assert kinds == {"a2a", "ep", "etp"}


# ---------------------------------------------------------------- schedules by hand


def run(**figures: float) -> Run:
    """1 s forward and 1 s backward; what is not named is 0."""
    named = {"forward": 1.0, "backward": 1.0} | figures
    return Run(**{name: np.array([[named.get(name, 0.0)]]) for name in Run._fields})


def step(form: OneFOneB | GPipe, m: int, *runs: Run, hop: float = 0.0) -> float:
    """The step of ``m`` micro-batches; hand-over there and back behind the first stage alone."""
    behind, none = form.nothing(1), np.zeros(1)
    for n, x in enumerate(reversed(runs)):
        flat, first = Run(*(figure[0] for figure in x)), n == len(runs) - 1
        behind = form.put(
            behind, n, np.array([m]), flat, np.array([hop]) if first else none, none)
    return float(form.seconds(behind)[0])


def chunk(layers: Sequence[dict[str, float]], **overlaps: float) -> dict[str, float]:
    """What a step sees of layers; all time is free. What is not named is 0."""
    prices = []
    for given in layers:
        named = {"forward": given["free_forward"], "backward": given["free_backward"]} | given
        prices.append(LayerPrice(
            **{name: np.array([named.get(name, 0.0)]) for name in LayerPrice._fields}))
    found = run_of(prices, stack(**overlaps), np.zeros(1), np.zeros(1))
    return {name: figure.item() for name, figure in found._asdict().items()}


def test_a_chunk_that_gathers() -> None:
    # Layers hide 1, 2, 1, 1 s of what is gathered and 1, 1, 2, 1 s going back.
    free, back = (2.0, 4.0, 2.0, 2.0), (2.0, 2.0, 4.0, 2.0)
    found = chunk([
        {"free_forward": x, "free_backward": y, "gathered": 1.0 + i, "regathered": 2.0 + i,
         "scattered": 1.0 + i} for i, (x, y) in enumerate(zip(free, back, strict=True))
    ], overlap_zero3=0.5)
    # After waiting 3 and 4 s are gathered under layers 1 and 2; else 2 + 1 s under layer 0 and
    # 5 s under layer 3, too: 2 + 4 s more.
    assert (found["forward"], found["chase_forward"]) == (10.0 + 1.0 + 3.0, 2.0 + 4.0)
    # After waiting 2 s are scattered under layer 0, 3 + 2 and 4 + 3 s under 1 and 2; else 1 s of
    # gathers under 0 and 4 s under 3, too: 1 + 3 s more.
    assert (found["backward"], found["chase_backward"]) == (10.0 + 1.0 + 4.0 + 5.0, 1.0 + 3.0)
    # The last layer's own 5 s under its forward, the 4 s of the one in front under its backward.
    assert found["turn"] == 4.0 + 3.0
    assert (found["pace"], found["trailing"]) == (6.0 + 4.0, 0.0)
    assert (found["under_forward"], found["under_backward"]) == (5.0, 1.0)
    # 2 s of layer 1 under layer 0.
    assert (found["gathered"], found["wait"]) == (1.0, 1.0)
    assert found["hidden_backward"] == 0.0


@pytest.mark.parametrize(("hidden", "expected"), [
    # 2 s of 4 s under layer 0 go to the scatter of layer 1, and 5 s of 6 s of the next backward
    # of layer 1 to that of layer 0: half of 2 + 1 s hide reductions. 3.5 s of them less half of
    # what layer 0 leaves.
    (1.0, {"backward": 10.0, "pace": 0.0, "under_forward": 6.0, "under_backward": 6.0,
           "hidden_backward": 1.5, "left": 2.5}),
    # 4 s under layer 0 and 10 s under layer 1 would be used up.
    (0.5, {"backward": 10.0, "pace": 0.0, "under_forward": 3.0, "under_backward": 3.0,
           "hidden_backward": 0.0, "left": 3.5}),
    # Half of all 10 s.
    (0.0, {"backward": 12.0, "pace": 5.0, "under_forward": 0.0, "under_backward": 0.0,
           "hidden_backward": 5.0, "left": 1.5}),
])
def test_a_chunk_that_scatters(hidden: float, expected: dict[str, float]) -> None:
    found = chunk([
        {"free_forward": 2.0, "free_backward": 4.0, "scattered": 5.0, "gather": 1.0, "sync": 1.0},
        {"free_forward": 4.0, "free_backward": 6.0, "scattered": 2.0, "gather": 3.0, "sync": 2.5},
    ], overlap_zero3=hidden, overlap_grad_reduce=0.5, overlap_param_gather=0.5)
    always = {"forward": 6.0, "chase_forward": 0.0, "chase_backward": 0.0, "turn": 0.0,
              "trailing": 5.0, "scattered": 5.0, "wait": 3.0, "hidden_forward": 3.0}
    assert {name: found[name] for name in always | expected} == always | expected


def test_a_backward_right_behind_its_forward() -> None:
    # F 0-1, 1-2 | F 1-2, then 1 + 1 s, B 2-4, then 2 s, F 6-7, B 7-9 | B 9-10.
    last = run(turn=1.0, pace=3.0)
    assert step(OneFOneB(), 2, run(turn=5.0), last) == pytest.approx(10.0)
    # Alone: F 0-1, B 1-3, F 5-6, B 6-8.
    assert step(OneFOneB(), 2, last) == pytest.approx(8.0)


def test_gpipe_chases() -> None:
    # 4 s for the first micro-batch. Of two more the forwards take 1 + 2 s each, the backwards
    # 1 + 1.5 s and 2 - 0.5 s of the scatter before.
    slow = run(chase_forward=2.0, chase_backward=1.5, trailing=2.0, under_backward=0.5,
               under_forward=9.0, turn=9.0, pace=9.0)
    assert step(GPipe(), 3, run(), slow) == pytest.approx(4.0 + 2 * (3.0 + 4.0))
    assert step(GPipe(), 3, slow, run()) == pytest.approx(4.0 + 2 * (3.0 + 4.0))
    # Hidden under the next backward.
    assert step(GPipe(), 3, run(), run(trailing=2.0, under_backward=3.0)) == pytest.approx(8.0)


def test_a_stage_that_waits_for_parameters() -> None:
    # F0 0-1, F1 2.5-3.5, B1 3.5-4.5, B0 4.5-5.5, then 6 s; the last stage ends at 4.5 + 2 s.
    runs = run(left=5.0, update=1.0), run(wait=2.0, gathered=0.5, update=2.0)
    assert step(OneFOneB(), 1, *runs) == pytest.approx(11.5)
    # It ends the step itself where it has more to do.
    assert step(OneFOneB(), 1, runs[0], runs[1]._replace(
        scattered=np.array([[3.0]]), left=np.array([[4.0]]))) == pytest.approx(4.5 + 9.0)
    # GPipe: the longest finish follows the end of all: 5.5 + 9 s.
    assert step(GPipe(), 1, runs[0], runs[1]._replace(
        scattered=np.array([[3.0]]), left=np.array([[4.0]]))) == pytest.approx(5.5 + 9.0)


def test_copies_wait_for_each_other() -> None:
    # The first has its gradients at 6 + 1 s, the last at 4 + 5 s; both sum them and step, 7 s the
    # slower one. The middle one ends at 5 + 20 s or at 5 + 5 s.
    first, last = run(left=1.0, tied=2.0, update=5.0), run(left=5.0, tied=2.0, update=4.0)
    assert step(OneFOneB(), 1, first, run(update=5.0), last) == pytest.approx(9.0 + 7.0)
    assert step(OneFOneB(), 1, first, run(update=20.0), last) == pytest.approx(25.0)
    # GPipe counts from the end of the first.
    assert step(GPipe(), 1, first, run(update=5.0), last) == pytest.approx(6.0 + 5.0 + 7.0)
    assert step(GPipe(), 1, first, run(update=20.0), last) == pytest.approx(26.0)


def test_the_last_micro_batch_leaves_late() -> None:
    # F 0-3, 3-6 | F 3-4, B 4-5, F 6-7, B 7-8, then 10 s and 1 s.
    assert step(OneFOneB(), 2, run(forward=3.0), run(left=10.0, update=1.0)) == pytest.approx(19.0)
    # The same for a copy; the other one has its gradients at 9 s.
    assert step(OneFOneB(), 2, run(forward=3.0, tied=0.5), run(left=10.0, tied=1.0)) == (
        pytest.approx(19.0))


@pytest.mark.parametrize("tied", [0.0, 1.0])
def test_the_last_micro_batch_waits_for_a_gradient(tied: float) -> None:
    # 2 s each way: F 0-3, 3-6 | F 5-6, B 6-7 | B 9-11, F 11-14 | F 16-17, B 17-18, then 11 s.
    last = run(left=10.0 - tied, tied=tied, update=1.0)
    assert step(OneFOneB(), 3, run(forward=3.0, backward=2.0), last, hop=4.0) == (
        pytest.approx(29.0))
    # Without hand-over: F 0-3, 3-6 | B 6-7, F 7-10 | F 10-11, B 11-12.
    assert step(OneFOneB(), 3, run(forward=3.0), last) == pytest.approx(23.0)


def test_two_micro_batches_go_to_the_next_stage_and_back() -> None:
    # 1 s each way between the first two. Stage 0: F 0-1, 1-2, 2-3, B 8-9, F 9-10, B 11-12,
    # F 12-13, B 15-16, F 16-17, B 18-19, 22-23, 24-25. Stage 1: F 2-3, 3-4, B 5-7, F 7-8, B 8-10,
    # F 11-12, B 12-14, F 14-15, B 15-17, F 18-19, B 19-21, 21-23. Every two take 2 + 2 + 3 s.
    runs = run(), run(backward=2.0), run()
    assert step(OneFOneB(), 6, *runs, hop=2.0) == pytest.approx(25.0)
    # A last stage counts with its turn: 2 + 4 + 3 s. The form takes that twice, for fill and drain,
    # and half of it for the one micro-batch between; event by event it would end at 21 s.
    assert step(OneFOneB(), 4, run(), run(turn=1.0), hop=4.0) == pytest.approx(22.5)


def simulated(gap: float = 0.0, hop: float = 0.0, **changes: dict[str, float]) -> float:
    """Two stages of two chunks of 1 s and 2 s, two micro-batches; ``s1c0`` changes a chunk."""
    runs = [[run(**({"backward": 2.0} | changes.get(f"s{s}c{c}", {}))) for c in (0, 1)]
            for s in (0, 1)]
    behind, none = Link(np.array([[hop]]), np.array([[gap]])), Link(*np.zeros((2, 1, 1)))
    seconds, _ = wrapped(runs, [[behind, behind], [none, none]], 2)
    return float(seconds.item())


def test_ends_of_interleaved_chunks() -> None:
    # Stage 0: F 0-1, 1-2 | F' 2-3, 3-4 | B' 6-8, 9-11 | B 11-13, 13-15; stage 1: F 1-2, 2-3 |
    # F' 3-4, B' 4-6 | F' 6-7, B' 7-9 | B 9-11, 11-13.
    assert simulated() == pytest.approx(15.0)
    # Chunk 1 of stage 1 ends at 9 s, has 10 s left, and less than 2 x 2 s of the other one's
    # time: 1 s is what its reduction leaves. The scatter of its own first layer has passed.
    assert simulated(
        s1c0={"hidden_backward": 1.5}, s1c1={"left": 10.0, "scattered": 9.0, "update": 0.5}
    ) == pytest.approx(9.0 + 10.0 + 1.0 + 0.5)
    # Gathers delay chunk 0 by 1 s a backward, and leave 2 s more to the other one.
    assert simulated(
        s1c0={"hidden_backward": 1.5, "chase_backward": 1.0}, s1c1={"left": 10.0}
    ) == pytest.approx(9.0 + 10.0 + 3.0)
    # That of chunk 0 counts: 15 + 2 + 3 s.
    assert simulated(s0c0={"left": 2.0, "scattered": 3.0}) == pytest.approx(20.0)
    # Copies on both: 15 s, and the longer of 1 + 2 and 3 + 1 s.
    assert simulated(s0c0={"tied": 1.0, "update": 2.0}, s1c1={"tied": 3.0, "update": 1.0}) == (
        pytest.approx(15.0 + 4.0))


def test_starts_of_interleaved_chunks() -> None:
    # Stage 1 begins chunk 0 at 1 + 1 s, chunk 1 at 2 + 2 x 0.5 + 4 s: F 2-3, 3-4 | F' 7-8, B' 8-10
    # | F' 10-11, B' 11-13 | B 13-15, 15-17; stage 0: B' 10-12, 13-15 | B 15-17, 17-19.
    first = {"gather": 2.0, "hidden_forward": 0.5, "wait": 1.0, "gathered": 1.0}
    second = {"gather": 0.1, "wait": 4.0, "gathered": 50.0}
    assert simulated(s1c0=first, s1c1=second) == pytest.approx(19.0)
    # Chunk 1 waits for nothing that is gathered each time: F 2-3, 3-4 | F' 4-5, B' 5-7 |
    # F' 7-8, B' 8-10 | B 10-12, 12-14; stage 0 ends 2 s later.
    assert simulated(s1c0=first, s1c1=second | {"gather": 0.0}) == pytest.approx(16.0)
    # A forward of chunk 0 takes 1 s more, and so chunk 1 begins 2 s later: F 2-3, 4-5 | F' 9-10,
    # B' 10-12 | F' 12-13, B' 13-15 | B 15-17, 17-19.
    assert simulated(s1c0=first | {"chase_forward": 1.0}, s1c1=second) == pytest.approx(21.0)


def test_interleaved_tasks_right_behind_another() -> None:
    # A backward of chunk 1 of stage 1 starts 1 s later: B' 5-7, F' 7-8, B' 9-11; B 11-13, 13-15.
    assert simulated(s1c1={"chase_backward": 1.0, "pace": 9.0, "turn": 9.0}) == pytest.approx(17.0)
    # Those of stage 0 have waited for their gradients: B' 6-8, 10-12, not at 9 s | B 12-14; 14-16.
    assert simulated(s0c1={"chase_backward": 2.0}) == pytest.approx(16.0)
    # The very first forward, too: F 1-2, 3-4 | F' 4-5, 5-6; stage 1: F 2-3, 4-5 | F' 5-6, B' 6-8 |
    # F' 8-9, B' 9-11 | B 11-13, 13-15; stage 0: B' 8-10, 11-13 | B 13-15, 15-17.
    assert simulated(s0c0={"chase_forward": 1.0}) == pytest.approx(17.0)


def test_a_scatter_trails_an_interleaved_backward() -> None:
    # Stage 1: F' 3-4, B' 4-6, scatter until 10 and, as F' 6-7 hides 0.5 s of it, 10.5 s: B' begins
    # 1 s before, 9.5-11.5, scatter until 15.5 | B 15.5-17.5, 17.5-19.5; stage 0 ends 2 s later.
    trails = {"trailing": 4.0, "under_forward": 0.5, "under_backward": 1.0}
    assert simulated(s1c1=trails) == pytest.approx(21.5)
    # The backward of chunk 0 hides 2 s: B 13.5-15.5, 15.5-17.5.
    assert simulated(s1c1=trails, s1c0={"under_backward": 2.0}) == pytest.approx(19.5)
    # Forwards of chunk 0 hide nothing: they are over before the first backward.
    assert simulated(s1c1=trails, s1c0={"under_forward": 9.0}) == pytest.approx(21.5)


def test_messages_of_interleaved_chunks() -> None:
    # Every 3 s one. Chunk 0 comes at 1 and 4, chunk 1 at 7 and 10: F 1-2, 4-5 | F' 7-8, B' 8-10 |
    # F' 10-11, B' 11-13 | B 13-15, 15-17; gradients come at 10, 13, 16 and 19: B 16-18, 19-21.
    assert simulated(gap=3.0) == pytest.approx(21.0)
    # 1 s each way. Stage 1: F 2-3, 3-4 | F' 5-6, B' 6-8 | F' 8-9, B' 9-11 | B 11-13, 14-16;
    # stage 0: F' 3-4, 4-5 | B' 9-11, 12-14 | B 14-16, 17-19.
    assert simulated(hop=2.0) == pytest.approx(19.0)
