"""The closed forms of the schedules against figures worked out by hand and a simulation."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from plain import chunk
from simulation import Task, ends, gpipe, interleaved, most_held, one_f_one_b

from nest.schedules import one_f_one_b as one_f_one_b_figures
from nest.schedules.closed import Closed
from nest.schedules.one_f_one_b import (
    BEFORE_LAST,
    DONE,
    FIGURES,
    NOTHING,
    PAIR,
    REST,
    SHARE,
    add_passes,
    add_stage,
    stage_of,
)
from nest.schedules.path import Path
from nest.schedules.registry import SCHEDULES
from nest.schedules.traits import Hop, StepTime

one_f_one_b_form, gpipe_form, interleaved_form = (
    SCHEDULES[name] for name in ("1f1b", "gpipe", "interleaved"))


def short(tasks: list[Task]) -> str:
    """Tasks as kind, chunk where there are several, and micro-batch."""
    chunks = any(task.chunk for task in tasks)
    return " ".join(f"{t.kind}{t.chunk if chunks else ''}{t.micro_batch}" for t in tasks)


def step_time(
    forward: Sequence[float], backward: Sequence[float], finish: Sequence[float],
    hops: Sequence[float], m: int, form: Closed | Path = one_f_one_b_form,
) -> StepTime:
    """Stages that take ``finish`` seconds after their last backward; round trips between them."""
    stages = [[chunk(f, b, update=g)] for f, b, g in zip(forward, backward, finish, strict=True)]
    return form.step_time(stages, [[Hop(hop, 0.0)] for hop in hops], m)


class Case(NamedTuple):
    """A random pipeline of one chunk a stage."""

    forward: list[float]
    backward: list[float]
    link: list[float]
    m: int

    @property
    def hops(self) -> list[float]:
        return [2.0 * c for c in self.link]

    def closed_form(self) -> float:
        nothing = [0.0] * len(self.forward)
        return step_time(self.forward, self.backward, nothing, self.hops, self.m).pipeline

    def ends(self) -> list[float]:
        stages = len(self.forward)
        orders = [one_f_one_b(s, stages, self.m) for s in range(stages)]
        return ends(orders, [[f] for f in self.forward], [[b] for b in self.backward], self.link)

    def simulated(self) -> float:
        return self.ends()[0]


class Ring(NamedTuple):
    """A random interleaved pipeline; times of a chunk, hand-overs one way."""

    forward: list[float]
    backward: list[float]
    link: list[float]
    wrap: float
    m: int
    v: int
    head: float = 0.0
    """What the last chunk of all takes longer, in chunks."""
    embedding: float = 0.0
    """The same of the first one."""

    def chunks(self) -> tuple[list[list[float]], list[list[float]]]:
        both = [[x] * self.v for x in self.forward], [[x] * self.v for x in self.backward]
        for times in both:
            times[-1][-1] *= 1 + self.head
            times[0][0] *= 1 + self.embedding
        return both

    def step(self, finish: Sequence[float] = ()) -> StepTime:
        """What the cost functions say; of each stage a finish after its last backward."""
        stages = [[chunk(f, b) for f, b in zip(*times, strict=True)]
                  for times in zip(*self.chunks(), strict=True)]
        for s, seconds in enumerate(finish):
            stages[s][0] = stages[s][0]._replace(update=seconds)
        hops = [[Hop(2.0 * c, 0.0)] * self.v for c in (*self.link, self.wrap)]
        return interleaved_form.step_time(stages, hops, self.m)

    def priced(self) -> float:
        return self.step().pipeline

    def ends(self) -> list[float]:
        stages = len(self.forward)
        orders = [interleaved(s, stages, self.m, self.v) for s in range(stages)]
        return ends(orders, *self.chunks(), self.link, self.wrap)

    def simulated(self) -> float:
        return self.ends()[0]


def draw(rng: np.random.Generator, uneven: float, slowest: float) -> Case:
    """Stages that differ by up to ``uneven``; links of up to ``slowest`` forward times."""
    depth, m = int(rng.integers(1, 13)), int(rng.integers(1, 49))
    t = 1.0 + uneven * rng.random(depth)
    ratio = rng.uniform(1, 3) if rng.random() < 0.5 else rng.uniform(1, 3, depth)
    forward = t / (1 + ratio)
    link = slowest * forward.mean() * rng.random(depth - 1)
    return Case(forward.tolist(), (t - forward).tolist(), link.tolist(), m)


def draw_ring(
    rng: np.random.Generator, uneven: float, slowest: float, heavy: float = 0.0
) -> Ring:
    """The same for chunks; forward to backward is one ratio, as stages have one configuration."""
    depth, v = int(rng.integers(2, 9)), int(rng.integers(2, 5))
    t = 1.0 + uneven * rng.random(depth)
    forward = t / (1 + rng.uniform(1, 3))
    link = slowest * forward.mean() * rng.random(depth)
    return Ring(forward.tolist(), (t - forward).tolist(), link[1:].tolist(), float(link[0]),
                depth * int(rng.integers(1, 6)), v, *(heavy * rng.random(2)).tolist())


# ---------------------------------------------------------------- the simulation


def test_orders_of_a_stage() -> None:
    assert short(one_f_one_b(0, 2, 3)) == "f0 f1 b0 f2 b1 b2"
    assert short(one_f_one_b(0, 6, 2)) == "f0 f1 b0 b1"
    assert short(one_f_one_b(1, 2, 2)) == "f0 b0 f1 b1"
    assert short(gpipe(0, 2, 2)) == "f0 f1 b0 b1"
    # Two stages of two chunks: stage 0 fills with 2 (2 - 1 - 0) + (2 - 1) 2 = 4, stage 1 with 2.
    assert short(interleaved(0, 2, 2, 2)) == "f00 f01 f10 f11 b10 b11 b00 b01"
    assert short(interleaved(1, 2, 2, 2)) == "f00 f01 f10 b10 f11 b11 b00 b01"
    assert short(interleaved(0, 2, 4, 2)) == (
        "f00 f01 f10 f11 f02 b10 f03 b11 f12 b00 f13 b01 b12 b13 b02 b03")


@pytest.mark.parametrize(
    ("m", "wait", "seconds"),
    [
        # F0 0-2, F1 2-4 | F0 2-3, B0 3-5, F1 5-6, B1 6-8 | B0 5-9, B1 9-13.
        (2, 0.0, 13.0),
        # 1.5 s between: F0 3.5-4.5, B0 4.5-6.5, F1 6.5-7.5, B1 7.5-9.5 | B0 8-12, B1 12-16.
        (2, 1.5, 16.0),
        # F0 0-2, F1 2-4 | F0 2-3, B0 3-5, F1 5-6, B1 6-8 | B0 5-9, F2 9-11, B1 11-15
        # | F2 11-12, B2 12-14 | B2 15-19.
        (3, 0.0, 19.0),
    ],
)
def test_one_f_one_b_by_hand(m: int, wait: float, seconds: float) -> None:
    assert Case([2, 1], [4, 2], [wait], m).simulated() == seconds


def test_gpipe_by_hand() -> None:
    # F0 0-2, F1 2-4 | F0 2-3, F1 4-5, B0 5-7, B1 7-9 | B0 7-11, B1 11-15.
    orders = [gpipe(s, 2, 2) for s in range(2)]
    assert ends(orders, [[2], [1]], [[4], [2]], [0]) == [15, 9]
    # 1 s between: F0 3-4, F1 5-6, B0 6-8, B1 8-10 | B0 9-13, B1 13-17.
    assert ends(orders, [[2], [1]], [[4], [2]], [1]) == [17, 10]


def test_interleaved_by_hand() -> None:
    # Chunks of 1 s forward and 2 s backward; f10 is chunk 1 of micro-batch 0.
    # m = 2. Stage 0: f00 0-1, f01 1-2, f10 2-3, f11 3-4.
    # Stage 1: f00 1-2, f01 2-3, f10 3-4, b10 4-6, f11 6-7, b11 7-9.
    # Stage 0: b10 6-8, b11 9-11. Stage 1: b00 9-11 (ready at 8), b01 11-13.
    # Stage 0: b00 11-13, b01 13-15. The formula: 2 x 6 + 1 x 3 = 15.
    assert Ring([1, 1], [2, 2], [0], 0, 2, 2).ends() == [15, 13]
    # m = 4. Stage 1: f00 1-2, f01 2-3, f10 3-4, b10 4-6, f11 6-7, b11 7-9, f02 9-10, b00 10-12,
    # f03 12-13, b01 13-15, f12 15-16, b12 16-18, f13 18-19, b13 19-21, b02 21-23, b03 23-25.
    # Stage 0: f00 f01 f10 f11 f02 0-5, b10 6-8, f03 8-9, b11 9-11, f12 11-12, b00 12-14, f13 14-15,
    # b01 15-17, b12 18-20, b13 21-23, b02 23-25, b03 25-27. The formula: 4 x 6 + 3 = 27.
    assert Ring([1, 1], [2, 2], [0], 0, 4, 2).ends() == [27, 25]
    # m = 2, 1 s between the stages and 2 s back to the first.
    # Stage 0: f00 0-1, f01 1-2, waits for stage 1, f10 5-6, f11 6-7.
    # Stage 1: f00 2-3, f01 3-4, f10 7-8, b10 8-10, f11 10-11, b11 11-13.
    # Stage 0: b10 11-13, b11 14-16. Stage 1: b00 15-17, b01 18-20. Stage 0: b00 18-20, b01 21-23.
    assert Ring([1, 1], [2, 2], [1], 2, 2, 2).ends() == [23, 20]


def test_orders_that_wait_for_each_other_are_found() -> None:
    with pytest.raises(AssertionError, match="wait for each other"):
        ends([[Task("b", 0, 0), Task("f", 0, 0)]], [[1]], [[1]], [])


@pytest.mark.parametrize("m", [1, 2, 5, 8])
def test_in_flight_is_what_the_orders_hold(m: int) -> None:
    for p in (1, 2, 4):
        for s in range(p):
            assert SCHEDULES["1f1b"].in_flight(s, p, m, 1) == most_held(one_f_one_b(s, p, m))
            assert SCHEDULES["gpipe"].in_flight(s, p, m, 1) == most_held(gpipe(s, p, m))
            for v in (2, 3):
                held = most_held(interleaved(s, p, m * p, v))
                assert SCHEDULES["interleaved"].in_flight(s, p, m * p, v) == held


# ---------------------------------------------------------------- GPipe


def test_gpipe_is_exact() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        case = draw(rng, 1.0, 2.0)
        stages = len(case.forward)
        orders = [gpipe(s, stages, case.m) for s in range(stages)]
        true = ends(orders, [[f] for f in case.forward], [[b] for b in case.backward], case.link)
        finish = rng.random(stages).tolist()
        found = step_time(
            case.forward, case.backward, finish, case.hops, case.m, gpipe_form)
        assert found.pipeline == pytest.approx(true[0], rel=1e-12)
        # The longest finish counts whole: never too short.
        assert found.total >= max(e + g for e, g in zip(true, finish, strict=True)) * (1 - 1e-12)


def test_gpipe_is_exact_where_messages_fill_links() -> None:
    """Looped BFS of one chunk a stage is GPipe; its step is the longest path through all passes."""
    rng = np.random.default_rng(15)
    for _ in range(300):
        p, m = int(rng.integers(2, 8)), int(rng.integers(1, 12))
        stages = [[chunk(*rng.uniform(0.1, 2.0, 2).tolist())] for _ in range(p)]
        gaps = rng.uniform(0.0, 4.0, p - 1) * (rng.random(p - 1) < 0.6)
        hops = [[Hop(float(gap * rng.choice((0.0, 2.0))), float(gap))] for gap in gaps]
        path = SCHEDULES["looped-bfs"].step_time(stages, [*hops, [Hop(0.0, 0.0)]], m)
        found = gpipe_form.step_time(stages, hops, m)
        assert found.total == pytest.approx(path.total, rel=1e-12)


# ---------------------------------------------------------------- 1F1B


@pytest.mark.parametrize(("hop", "seconds"), [(0.0, 13.0), (3.0, 16.0)])
def test_two_uneven_stages(hop: float, seconds: float) -> None:
    # As above; the sum of stage times and (m - 1) x the slowest would be 15 without hand-over.
    assert step_time((2, 1), (4, 2), (0, 0), (hop,), 2).pipeline == seconds


def test_one_stage() -> None:
    assert step_time((2.0,), (4.0,), (5.0,), (), 7) == (42.0, 5.0)
    assert step_time((2.0,), (4.0,), (5.0,), (), 7).total == 47.0


def test_finish_of_any_stage() -> None:
    # As above: the second stage's last backward ends at 8, 9 s more make 17 = 13 + 4.
    assert step_time((2, 1), (4, 2), (1, 9), (0,), 2).finish == 4
    assert step_time((2, 1), (4, 2), (6, 9), (0,), 2).finish == 6
    # One micro-batch: F 0-3, B 3-4, 4-6, 6-9; the last stage ends at 4, 20 s more make 24 = 9 + 15.
    assert step_time((1, 1, 1), (3, 2, 1), (0, 0, 20), (0, 0), 1).finish == 15


def test_finish_is_close_to_a_simulation() -> None:
    """The step ends with the last stage to finish: its last backward and what follows."""
    rng = np.random.default_rng(5)
    errors = []
    for _ in range(600):
        case = draw(rng, 0.3, 0.1)
        finish = (rng.choice((0.5, 2.0, 6.0)) * rng.random(len(case.forward))).tolist()
        last = case.ends()
        true = max(e + g for e, g in zip(last, finish, strict=True))
        found = step_time(case.forward, case.backward, finish, case.hops, case.m).total
        errors.append(found / true - 1)
    assert np.percentile(np.abs(errors), 95) < 0.003
    assert max(map(abs, errors)) < 0.012


def test_no_time_that_grows_shortens_the_step() -> None:
    rng = np.random.default_rng(6)
    for _ in range(2000):
        case = draw(rng, 0.5, 0.3)
        depth = len(case.forward)
        finish = (6.0 * rng.random(depth)).tolist()
        times = [list(case.forward), list(case.backward), finish, case.hops]
        before = step_time(*times, case.m).total
        grown = times[int(rng.integers(4 if depth > 1 else 3))]
        grown[int(rng.integers(len(grown)))] += 10 ** rng.uniform(-4, 1)
        assert step_time(*times, case.m).total >= before * (1 - 1e-12)


def test_even_stages_without_hand_over_are_exact() -> None:
    # (m + p - 1)(f + b), bubble (p - 1)/m of the ideal (arXiv:2104.04473, section 2.2.1).
    for depth in (1, 2, 3, 8, 16):
        for m in (1, 2, 5, 16, 40):
            case = Case([1.0] * depth, [2.5] * depth, [0.0] * (depth - 1), m)
            assert case.closed_form() == pytest.approx((m + depth - 1) * 3.5, rel=1e-12)
            assert case.simulated() == pytest.approx((m + depth - 1) * 3.5, rel=1e-12)


def test_stages_alike_without_hand_over_are_exact() -> None:
    rng = np.random.default_rng(2)
    for _ in range(300):
        case = draw(rng, 0.099, 0.0)
        assert case.closed_form() == pytest.approx(case.simulated(), rel=1e-9)


def test_stages_alike_with_hand_over_are_close() -> None:
    rng = np.random.default_rng(3)
    errors = []
    for _ in range(600):
        case = draw(rng, 0.099, 0.1)
        errors.append(abs(case.closed_form() / case.simulated() - 1))
    worst = max(errors)
    assert worst < 0.012, f"worst error {worst:.2%}"
    assert float(np.quantile(errors, 0.95)) < 0.0025


def test_uneven_stages_stay_near() -> None:
    rng = np.random.default_rng(4)
    errors = []
    for _ in range(400):
        case = draw(rng, 0.5, 0.3)
        errors.append(abs(case.closed_form() / case.simulated() - 1))
    assert max(errors) < 0.02
    assert float(np.quantile(errors, 0.95)) < 0.004


def test_no_step_is_above_a_simulation() -> None:
    """Each term is a path through the passes, so that none is longer than the longest."""
    rng = np.random.default_rng(14)
    errors = []
    for _ in range(1500):
        case = draw(rng, rng.choice((0.1, 0.5, 3.0)), rng.choice((0.0, 0.1, 1.0, 5.0)))
        errors.append(case.closed_form() / case.simulated() - 1)
    assert max(errors) < 1e-12
    assert np.mean(np.array(errors) > -1e-9) > 0.4


@pytest.mark.parametrize(("forward", "backward", "m", "seconds"), [
    # The next stage turns the last micro-batch round by itself. Stage 0: F 0-1, 1-2, 2-3, 3-4;
    # stage 1: F 1-5, 5-9; stage 2: F 5-6, B 6-7; stage 1: B 9-13, F 13-17, B 17-21, F 21-25,
    # B 25-29, 29-33; stage 0: B 33-34.
    ((1, 4, 1), (1, 4, 1), 4, 34),
    # 2 s there and back between stages. A round trip through all takes 3 x 2 + 3 x 2 = 12 s, and
    # between the first and the last one two of 3 x 2 + 2 x 2 = 10 s pass three micro-batches each.
    # By 6 s for two the six would take 18 s, by 2 s for one 12 s.
    ((1, 1, 1, 0), (1, 1, 1, 0), 11, 44),
])
def test_paths_by_hand(
    forward: Sequence[float], backward: Sequence[float], m: int, seconds: float
) -> None:
    hop = 2.0 if len(forward) == 4 else 0.0
    case = Case(list(forward), list(backward), [hop / 2] * (len(forward) - 1), m)
    assert case.simulated() == seconds
    assert case.closed_form() == seconds


def test_backwards_come_back_at_the_pace_of_a_link() -> None:
    """A message to the last stage fills the link for 6 s."""
    # Backwards of stage 1 end at 7, 13, 19 and 25 s. Stage 0: F 0-3, B 7-11, F 11-12, B 13-17,
    # 20-24, 27-31: one right behind another begins 3 s later.
    stages = [[chunk(1.0, 4.0, queue_backward=3.0)], [chunk(2.0, 1.0)], [chunk(1.0, 2.0)]]
    links = [[Hop(0.0, 0.0)], [Hop(0.0, 6.0)]]
    assert sum(one_f_one_b_form.step_time(stages, links, 4)) == 31.0


def test_backwards_no_slower_than_on_average_change_no_step() -> None:
    """The form without that term takes the same where nothing is gathered: docs/proofs.md,
    Lemma 10 (average)."""
    source = inspect.getsource(one_f_one_b_figures)
    average = "max(start + b, rest - j * ((rest - after) / (m - 1)))"
    assert source.count(average) == 1
    without: dict[str, Any] = {"__name__": "without"}
    exec(source.replace(average, "start + b"), without)
    rng, differ = np.random.default_rng(19), 0
    for _ in range(1000):
        case = draw(rng, rng.choice((0.1, 0.5, 3.0)), rng.choice((0.0, 0.1, 1.0)))
        rows, last = [], len(case.forward) - 1
        for form in (vars(one_f_one_b_figures), without):
            old, new = list(NOTHING), [0.0] * FIGURES
            for s in range(last, -1, -1):
                stage = stage_of(chunk(case.forward[s], case.backward[s]))
                hop = case.hops[s] if s < last else 0.0
                form["add_stage"](old, stage, hop, 0.0, last - s, case.m, case.m // 2, new)
                old, new = new, [0.0] * FIGURES
            rows.append(old)
        assert rows[0][REST] == pytest.approx(rows[1][REST], rel=1e-12)
        assert rows[0][DONE] == pytest.approx(rows[1][DONE], rel=1e-12)
        differ += rows[0][BEFORE_LAST] > rows[1][BEFORE_LAST] * (1 + 1e-9)
    assert differ > 100


def test_add_stage_never_decreases() -> None:
    names = ("forward", "backward", "turn", "chase", "queue_forward", "queue_backward", "wait",
             "left")
    carried = [x for x in range(FIGURES) if x != SHARE]
    rng = np.random.default_rng(5)
    for _ in range(20_000):
        n, m = int(rng.integers(0, 12)), int(rng.integers(1, 40))
        state = np.array(NOTHING)
        if n:
            state[carried] = rng.uniform(0, 30, len(carried))
        state[PAIR] *= n > 1  # behind the last stage there is none to go to and back
        own = dict(zip(names, rng.uniform(0.01, 3, len(names)).tolist(), strict=True))
        own["late"] = own["late_back"] = rng.uniform(0, own["backward"])
        copy = {"tied": float(rng.random())} if rng.random() < 0.3 else {}
        hop, gap = (rng.uniform(0, 2, 2) * (n > 0) * (1, rng.integers(2))).tolist()

        def put(
            state: np.ndarray = state, own: dict[str, float] = own, hop: float = hop,
            gap: float = gap, n: int = n, m: int = m, copy: dict[str, float] = copy,
        ) -> np.ndarray:
            found = [0.0] * FIGURES
            stage = stage_of(chunk(**own, **copy))
            sent = add_passes(state.tolist(), stage, hop, gap, n, m, m // 2, found)
            add_stage(state.tolist(), stage, hop, gap, n, m, m // 2, found)
            return np.array([*found, sent])

        before = put()
        which, more = int(rng.integers(11)), 10 ** rng.uniform(-6, 0)
        if n and rng.integers(2):
            state[rng.choice([x for x in carried if x != PAIR or n > 1])] += more
        elif which < 8:
            own[names[which]] += more
        elif which == 8:  # the last backward alone
            own["late"] = own["late_back"] = max(0.0, own["late"] - more)
        elif n:
            assert (put(hop=hop + more) >= before * (1 - 1e-12)).all()
            assert (put(gap=gap + more) >= before * (1 - 1e-12)).all()
            continue
        assert (put(state, own) >= before * (1 - 1e-12)).all()


def test_slower_stages_never_shorten_a_step() -> None:
    rng = np.random.default_rng(6)
    for _ in range(2000):
        case = draw(rng, 0.5, 1.0)
        slower = Case(list(case.forward), list(case.backward), list(case.link), case.m)
        changed = (slower.forward, slower.backward, slower.link)[rng.integers(0, 3)]
        if changed:
            changed[rng.integers(0, len(changed))] *= 1 + rng.random()
        assert slower.closed_form() >= case.closed_form() * (1 - 1e-12)


# ---------------------------------------------------------------- interleaved


def test_even_interleaved_stages() -> None:
    # m t + (p - 1) t / v: the bubble is 1/v of that of 1F1B (arXiv:2104.04473, section 2.2.2).
    for p in (2, 3, 8):
        for v in (2, 4):
            for m in (p, 3 * p):
                ring = Ring([1.0] * p, [2.5] * p, [0.0] * (p - 1), 0.0, m, v)
                assert ring.priced() == pytest.approx((m * v + p - 1) * 3.5, rel=1e-12)
                assert ring.simulated() == pytest.approx((m * v + p - 1) * 3.5, rel=1e-12)


def test_interleaved_is_exact() -> None:
    """Stages and links of any kind, heavier first and last chunks, a finish of each stage."""
    rng = np.random.default_rng(12)
    for _ in range(300):
        ring = draw_ring(rng, rng.choice((0.0, 0.1, 2.0)), rng.choice((0.0, 0.3, 1.0)),
                         rng.choice((0.0, 2.0)))
        finish = (6.0 * rng.random(len(ring.forward))).tolist()
        true = ring.ends()
        found = ring.step(finish)
        assert found.pipeline == pytest.approx(max(true), rel=1e-12)
        assert found.total == pytest.approx(
            max(e + g for e, g in zip(true, finish, strict=True)), rel=1e-12)


def test_messages_of_a_full_link_arrive_one_by_one() -> None:
    # Two stages of two chunks, m = 2, as in test_interleaved_by_hand, without hand-over, but a
    # message fills the link from stage 0 to stage 1 for 4 s: f01 arrives at 1 + 4 = 5, f10 at 9,
    # f11 at 13. Stage 1: f00 1-2, f01 5-6; stage 0: f10 2-3, f11 6-7. Stage 1: f10 9-10, b10 10-12,
    # f11 13-14, b11 14-16. Back b10 at 12 and b11 at 16: stage 0 b10 12-14, b11 16-18, stage 1 b00
    # 16-18, b01 18-20; back at 16 + 4: b00 20-22, b01 at 24: 24-26.
    stages = [[chunk(1.0, 2.0)] * 2] * 2
    hops = [[Hop(0.0, 4.0)] * 2, [Hop(0.0, 0.0)] * 2]
    assert interleaved_form.step_time(stages, hops, 2).total == 26.0


def test_bytes_held_by_chunks() -> None:
    # As many as the order of the simulation holds, whatever each chunk's share.
    rng = np.random.default_rng(13)
    for _ in range(300):
        p, v = int(rng.integers(2, 7)), int(rng.integers(2, 5))
        m, s = p * int(rng.integers(1, 8)), int(rng.integers(p))
        sizes = rng.random(v).tolist()
        now = most = 0.0
        for task in interleaved(s, p, m, v):
            now += sizes[task.chunk] * (1 if task.kind == "f" else -1)
            most = max(most, now)
        assert interleaved_form.held(sizes, s, p, m) == pytest.approx(most, rel=1e-12)
        alike = interleaved_form.held([1.0] * v, s, p, m)
        assert alike == SCHEDULES["interleaved"].in_flight(s, p, m, v)
