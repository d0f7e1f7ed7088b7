"""The closed form of the 1F1B step against figures worked out by hand and a simulation."""

from __future__ import annotations

from dataclasses import fields
from typing import NamedTuple

import numpy as np
import pytest
from plain import stack
from simulation import ends, order, simulate

from nest.costs.layer import SUMMED, LayerCosts, Sums, sums
from nest.costs.pipeline import add_stage, step_time
from nest.costs.stage import hop_seconds, stage_costs


class Case(NamedTuple):
    """A random pipeline."""

    forward: list[float]
    backward: list[float]
    link: list[float]
    m: int

    def closed_form(self) -> float:
        nothing = [0.0] * len(self.forward)
        hops = [2.0 * c for c in self.link]
        return step_time(self.forward, self.backward, nothing, hops, self.m).pipeline

    def simulated(self) -> float:
        return simulate(self.forward, self.backward, self.link, self.m)


def draw(rng: np.random.Generator, uneven: float, slowest: float) -> Case:
    """Stages that differ by up to ``uneven``; links of up to ``slowest`` forward times."""
    depth, m = int(rng.integers(1, 13)), int(rng.integers(1, 49))
    t = 1.0 + uneven * rng.random(depth)
    ratio = rng.uniform(1, 3) if rng.random() < 0.5 else rng.uniform(1, 3, depth)
    forward = t / (1 + ratio)
    link = slowest * forward.mean() * rng.random(depth - 1)
    return Case(forward.tolist(), (t - forward).tolist(), link.tolist(), m)


def test_order_of_a_stage() -> None:
    # Three micro-batches, one stage behind: F0, F1 B0, F2 B1, B2.
    assert [kind[0] + str(k) for kind, k in order(1, 3)] == ["f0", "f1", "b0", "f2", "b1", "b2"]
    assert [kind[0] + str(k) for kind, k in order(5, 2)] == ["f0", "f1", "b0", "b1"]


def test_simulation_by_hand() -> None:
    # F0 0-2, F1 2-4 | F0 2-3, B0 3-5, F1 5-6, B1 6-8 | B0 5-9, B1 9-13.
    assert simulate((2, 1), (4, 2), (0,), 2) == 13
    # 1.5 s between them: F0 3.5-4.5, B0 4.5-6.5, F1 6.5-7.5, B1 7.5-9.5 | B0 8-12, B1 12-16.
    assert simulate((2, 1), (4, 2), (1.5,), 2) == 16


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
        last = ends(*case)
        true = max(e + g for e, g in zip(last, finish, strict=True))
        hops = [2.0 * c for c in case.link]
        found = step_time(case.forward, case.backward, finish, hops, case.m).total
        errors.append(found / true - 1)
    assert np.percentile(np.abs(errors), 95) < 0.015
    assert max(map(abs, errors)) < 0.07


def test_no_time_that_grows_shortens_the_step() -> None:
    rng = np.random.default_rng(6)
    for _ in range(2000):
        case = draw(rng, 0.5, 0.3)
        depth = len(case.forward)
        finish = (6.0 * rng.random(depth)).tolist()
        times = [list(case.forward), list(case.backward), finish, [2.0 * c for c in case.link]]
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
    assert worst < 0.02, f"worst error {worst:.2%}"
    assert float(np.quantile(errors, 0.95)) < 0.01


def test_uneven_stages_stay_near() -> None:
    rng = np.random.default_rng(4)
    errors = []
    for _ in range(400):
        case = draw(rng, 0.5, 0.3)
        errors.append(abs(case.closed_form() / case.simulated() - 1))
    assert max(errors) < 0.10
    assert float(np.quantile(errors, 0.95)) < 0.03


def test_add_stage_never_decreases() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20_000):
        n, m = int(rng.integers(0, 12)), int(rng.integers(1, 40))
        after = rng.uniform(0, 10) if n else 0.0
        rest = after + rng.uniform(0, 30) if n else 0.0
        state = np.array([rest, after, *rng.uniform(0.01, 3, 2), rng.uniform(0, 2) if n else 0.0])
        larger = state.copy()
        larger[rng.integers(0 if n else 2, 5 if n else 4)] += 10 ** rng.uniform(-6, 0)
        if larger[1] > larger[0]:
            continue
        before, now = (add_stage(x[0], x[1], x[2], x[3], x[4], n, m) for x in (state, larger))
        assert now[0] >= before[0] * (1 - 1e-12)
        assert now[1] >= before[1]


def test_slower_stages_never_shorten_a_step() -> None:
    rng = np.random.default_rng(6)
    for _ in range(2000):
        case = draw(rng, 0.5, 1.0)
        slower = Case(list(case.forward), list(case.backward), list(case.link), case.m)
        changed = (slower.forward, slower.backward, slower.link)[rng.integers(0, 3)]
        if changed:
            changed[rng.integers(0, len(changed))] *= 1 + rng.random()
        assert slower.closed_form() >= case.closed_form() * (1 - 1e-12)


# ---------------------------------------------------------------- stages


def layer_of(**given: float) -> LayerCosts:
    return LayerCosts(**{f.name: np.array([given.get(f.name, 0.0)]) for f in fields(LayerCosts)})


def test_stage_costs() -> None:
    # Two layers. 4 + 6 s of gradients, half of 12 s of backward and recompute hides 6: 4. 3 s of
    # gathers, a quarter of 8 s of forward: 1. 2 s that nothing hides: 7 in all.
    # 60 + 40 bytes stay, and the largest layer's 20 and 30.
    first = layer_of(forward=3, tp_forward=1, backward=5, recompute=3, sync=4, gather=3, update=1,
                     parameters=30, gradients=20, optimizer=10, activations=2, work=20, buffers=5)
    second = layer_of(forward=5, backward=4, tp_backward=2, sync=6, tied=1, parameters=40,
                      activations=3, work=10, buffers=30)
    software = stack(overlap_grad_reduce=0.5, overlap_param_gather=0.25)
    folded = [sums(layer, software) for layer in (first, second)]
    stage = Sums(*(a + b for a, b in zip(*(f[:SUMMED] for f in folded), strict=True)),
                 *(np.maximum(a, b) for a, b in zip(*(f[SUMMED:] for f in folded), strict=True)))
    assert stage_costs(stage) == (9, 14, 7, 150, 5)


def test_nothing_is_left_of_what_is_hidden() -> None:
    hidden = sums(layer_of(forward=8, backward=16, sync=4, gather=1, tied=2, update=3),
                  stack(overlap_grad_reduce=0.5, overlap_param_gather=0.5))
    assert stage_costs(hidden).finish == 5


def test_hop() -> None:
    # 8 bytes in 4 lanes of 2 bytes at 1 byte/s and 3 s of latency, there and back: 10 s.
    assert hop_seconds(8.0, 4.0, 1.0, 3.0, stack()) == 10.0
    assert hop_seconds(8.0, 4.0, 1.0, 3.0, stack(overlap_p2p=0.75)) == 2.5
