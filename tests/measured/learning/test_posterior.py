"""What runs determine: against sampling of the same model, and in cases with a known answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import t as student

from nest.measured.learning import Observation, Posterior
from nest.measured.learning import posterior as model

BASE = {"compute": 6.0, "tp": 2.0, "exchange": 0.0, "reduction": 1.0, "activations": 30e9,
        "states": 20e9, "limit": 80e9, "sizes": (33.0, 5.0, 12.0)}


def run(name: str, split: float = 0.0, **changes: object) -> Observation:
    """A configuration of one question; ``split``: logarithm of its tp."""
    degrees = (split, 0.0, 5.0 - split, 0.0, 0.0, 0.0, 0.0, 1.0, 0.5, 0.0)
    return Observation.model_validate({**BASE, "name": name, "degrees": degrees, **changes})


def test_without_runs_prices_stay() -> None:
    at = Posterior().forecast([run("a")])
    assert at.seconds[0] == pytest.approx(9.0)
    assert at.needed[0] == pytest.approx(50.0 / 80.0)
    assert all(value == 1.0 for value, _ in Posterior().factors().values())


def test_a_slow_cause_is_found_where_runs_tell_it_apart() -> None:
    told = [run(f"{n}", float(n), compute=c, tp=s, verdict="ran", seconds=1.3 * c + 2.0 * s + 1.0)
            for n, (c, s) in enumerate(((8.0, 0.1), (6.0, 2.0), (4.0, 5.0), (2.0, 7.0)))]
    factors = Posterior(told).factors()
    assert factors["compute"][0] == pytest.approx(1.3, rel=0.08)
    assert factors["tp"][0] == pytest.approx(2.0, rel=0.15)
    assert factors["exchange"][0] == pytest.approx(1.0, rel=1e-6)  # no run has any


def test_the_order_of_runs_does_not_matter() -> None:
    told = [run("a", 0.0, verdict="ran", seconds=11.0), run("b", 1.0, verdict="out of memory"),
            run("c", 2.0, verdict="ran", seconds=10.0)]
    one, other = (Posterior(each).forecast([run("x", 3.0)]) for each in (told, told[::-1]))
    assert one.seconds[0] == pytest.approx(other.seconds[0], rel=1e-9)
    assert one.fits[0] == pytest.approx(other.fits[0], rel=1e-9)


def test_one_wrong_row_does_not_decide() -> None:
    right = [run(f"{n}", n / 2.0, verdict="ran", seconds=9.9) for n in range(6)]
    wrong = run("wrong", 1.25, verdict="ran", seconds=99.0)
    clean, with_wrong = (Posterior(told).forecast([run("x", 2.2)]) for told in (
        right, [*right, wrong]))
    assert with_wrong.seconds[0] == pytest.approx(clean.seconds[0], rel=0.05)


def test_a_surprise_widens_ranges() -> None:
    expected, surprise = (
        Posterior([run("a", verdict="ran", seconds=seconds)]).forecast([run("x", 2.0)]).spread[0]
        for seconds in (9.0, 40.0))
    assert surprise > 1.5 * expected


def test_a_run_that_failed_and_one_that_ran_move_the_chance_to_fit() -> None:
    near = run("x", activations=57e9)
    before = Posterior().forecast([near]).fits[0]
    failed = Posterior([run("a", verdict="out of memory")]).forecast([near]).fits[0]
    ran = Posterior([run("a", activations=59e9, verdict="ran", seconds=9.0)]).forecast([near])
    assert failed < 0.2 * before < before < ran.fits[0]


def test_measured_bytes_tell_more_than_that_it_ran() -> None:
    plain, measured = (
        Posterior([run("a", verdict="ran", seconds=9.0, bytes=size)]).forecast([run("x", 1.0)])
        for size in (None, 60e9))
    assert measured.needed[0] == pytest.approx(60.0 / 80.0, rel=0.06)
    assert measured.doubt[0] < 0.7 * plain.doubt[0]


def test_bytes_agree_with_sampling() -> None:
    """The same model, sampled: verdicts and measured bytes weigh draws of the prior."""
    told = [run("a", 0.0, activations=55e9, verdict="out of memory"),
            run("b", 1.0, activations=40e9, states=10e9, verdict="ran"),
            run("c", 3.0, activations=20e9, verdict="ran", bytes=45e9)]
    points = [*told, run("x", 2.0, activations=56e9)]
    draws = _draws(points, (*model.BYTES.values(), model.SHARED_BYTES), model.ALIKE_BYTES,
                   lambda one: (one.activations, one.states, one.activations + one.states))
    needed = draws + np.log([(one.activations + one.states) / one.limit for one in points])
    chance = (ndtr(needed[:, 0] / (2.0 * model.NOISE_BYTES))
              * ndtr(-needed[:, 1] / (2.0 * model.NOISE_BYTES))
              * np.exp(-0.5 * ((math.log(45.0 / 80.0) - needed[:, 2]) / model.NOISE_BYTES) ** 2))
    mean = float(np.average(needed[:, 3], weights=chance))
    width = math.sqrt(float(np.average((needed[:, 3] - mean) ** 2, weights=chance)))
    at = Posterior(told).forecast(points[3:])
    assert math.log(at.needed[0]) == pytest.approx(mean, abs=0.25 * width)
    assert at.doubt[0] == pytest.approx(width, rel=0.15)


def test_seconds_agree_with_sampling() -> None:
    told = [run("a", 0.0, verdict="ran", seconds=10.5), run("b", 2.0, compute=3.0, tp=5.0,
                                                            verdict="ran", seconds=11.0)]
    points = [*told, run("x", 1.0, compute=4.0, tp=4.0)]
    rng = np.random.default_rng(3)
    count = 400_000
    factors = np.exp(rng.normal(0.0, list(model.SECONDS.values()), (count, 4)))
    parts = np.array([[one.compute, one.tp, one.exchange, one.reduction] for one in points])
    own = _draws(points, (), model.ALIKE_SECONDS, None, count, rng)
    own = own + rng.normal(0.0, model.QUESTION, (count, 1))
    seen = np.log(factors @ parts.T) + own
    misses = (np.log([10.5, 11.0]) - seen[:, :2]) / model.NOISE_SECONDS
    chance = student.pdf(misses, model.TAILS).prod(axis=1)
    mean = float(np.average(seen[:, 2], weights=chance))
    width = math.sqrt(float(np.average((seen[:, 2] - mean) ** 2, weights=chance)))
    at = Posterior(told).forecast(points[2:])
    wider = Posterior(told)._seconds.wider
    assert math.log(at.seconds[0]) == pytest.approx(mean, abs=0.25 * width)
    assert math.sqrt((at.spread[0] ** 2 - model.NOISE_SECONDS**2) / wider) == pytest.approx(
        width, rel=0.2)


def _draws(points, spreads, alike, sizes, count=400_000, rng=None):  # type: ignore[no-untyped-def]
    """Draws of the prior's errors at points; (count, P)."""
    rng = np.random.default_rng(7) if rng is None else rng
    degrees = np.array([one.degrees for one in points])
    far = np.abs(degrees[:, None] - degrees[None]).sum(2)
    found = rng.multivariate_normal(
        np.zeros(len(points)), alike**2 * np.exp(-far / model.LENGTH), count)
    if sizes is not None:
        shares = np.array([sizes(one) for one in points])
        shares = shares / shares[:, -1:]
        found = found + rng.normal(0.0, spreads, (count, len(spreads))) @ shares.T
    return found
