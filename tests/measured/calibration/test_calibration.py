"""The fit itself: figures that are known are found, and what is not told stays where it was."""

from __future__ import annotations

import numpy as np
import pytest

from nest.measured.calibration.fit import Fit, Parameter, fit, fit_slow, median_and_tail, without

SIZE = np.geomspace(1.0, 1e4, 40)
RATE, START = 20.0, 3.0
"""What the measurements are made with: seconds = START + size / RATE."""


def parameters(**changes: float) -> list[Parameter]:
    """Rate and start, elsewhere than they are, and one that nothing depends on."""
    rate = {"catalog": 10.0, "low": 1.0, "high": 100.0, "spread": 20.0, **changes}
    return [Parameter("rate", **rate), Parameter("start", 1.0, 0.0, 50.0, 5.0, "s"),
            Parameter("colour", 7.0, 0.0, 10.0, 2.0)]


def measured(noise: float, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (START + SIZE / RATE) * np.exp(noise * random.standard_normal(len(SIZE)))


def misfits_of(seconds: np.ndarray, rows: np.ndarray | slice = slice(None)):
    return lambda x: np.log((x[1] + SIZE[rows] / x[0] + 0.0 * x[2]) / seconds[rows])


def fitted(noise: float = 0.02, seed: int = 0, **changes: float) -> Fit:
    return fit(parameters(**changes), misfits_of(measured(noise, seed)), 0.005)


def test_known_figures_are_found_within_their_errors() -> None:
    rate, start, _ = fitted().estimates
    assert rate.value == pytest.approx(RATE, rel=0.02)
    assert start.value == pytest.approx(START, rel=0.02)
    assert abs(rate.value - RATE) < 3 * rate.error < 0.1 * RATE
    assert abs(start.value - START) < 3 * start.error < 0.1 * START
    assert rate.determined and start.determined and not rate.bound and not start.bound


def test_errors_before_are_those_of_the_catalog() -> None:
    found = fitted()
    assert np.allclose(found.before, misfits_of(measured(0.02))(np.array([10.0, 1.0, 7.0])))
    assert median_and_tail(found.after)[0] < 2.5 < 30.0 < median_and_tail(found.before)[0]
    assert found.spread == pytest.approx(0.02, rel=0.5)


def test_what_nothing_depends_on_stays_and_says_so() -> None:
    colour = fitted().estimates[2]
    assert colour.value == 7.0
    assert not colour.determined
    assert colour.error == pytest.approx(2.0)


def test_figures_that_only_work_together_are_not_told_apart() -> None:
    """A product of two: one goes back to the catalog, the other takes what is left."""
    seconds = np.full(20, 12.0)
    pair = [Parameter(name, 2.0, 0.1, 100.0, 5.0) for name in ("a", "b")]
    found = fit(pair, lambda x: np.log(x[0] * x[1] / seconds), 0.01)
    assert sorted(each.determined for each in found.estimates) == [False, True]
    assert sorted(each.value for each in found.estimates) == pytest.approx([2.0, 6.0], rel=0.01)


@pytest.mark.parametrize("share", [0.1, 0.2])
def test_outliers_do_not_move_the_figures(share: float) -> None:
    seconds = measured(0.02)
    seconds[:: int(1 / share)] *= 4.0
    found = fit(parameters(), misfits_of(seconds), 0.005)
    assert found.values()["rate"] == pytest.approx(RATE, rel=0.05)


def test_standard_errors_are_neither_too_small_nor_too_large() -> None:
    found = [fitted(0.05, seed).estimates for seed in range(40)]
    for number, truth in enumerate((RATE, START)):
        away = np.array([abs(each[number].value - truth) / each[number].error for each in found])
        assert np.mean(away < 2.0) >= 0.85
        assert np.median(away) > 0.3


def test_a_figure_on_its_bound_says_so() -> None:
    rate = fitted(high=15.0).estimates[0]
    assert rate.value == pytest.approx(15.0)
    assert rate.bound == "upper"


def test_a_start_on_a_bound_is_left() -> None:
    found = fitted(catalog=1.0)
    assert found.values()["rate"] == pytest.approx(RATE, rel=0.05)


def test_few_measurements_far_from_the_catalog_win_over_it() -> None:
    """A wide spread before the fit is no reason to believe that measurements are noise."""
    share = [Parameter("share", 0.9, 0.2, 1.0, 0.15)]
    wanted = 0.5 * np.exp([0.02, -0.12, 0.33, -0.06, 0.1])
    found = fit(share, lambda x: np.log(x[0] / wanted), 0.03)
    assert found.values()["share"] == pytest.approx(0.5, rel=0.2)


def test_more_noise_makes_errors_larger() -> None:
    quiet, loud = fitted(0.01).estimates[0], fitted(0.2).estimates[0]
    assert 5 * quiet.error < loud.error


def test_weights_count() -> None:
    """Half of the measurements say another rate; without weight they say nothing."""
    seconds = measured(0.01)
    seconds[::2] *= 2.0
    weights = np.where(np.arange(len(SIZE)) % 2, 1.0, 1e-9)
    found = fit(parameters(), misfits_of(seconds), 0.005, weights)
    assert found.values()["rate"] == pytest.approx(RATE, rel=0.05)


def test_the_slow_fit_comes_to_the_same() -> None:
    seconds, calls = measured(0.02), []
    plain = misfits_of(seconds)
    found = fit_slow(parameters(), lambda x: (calls.append(1), plain(x))[1], 0.005)
    assert found.values() == pytest.approx(fitted().values(), rel=0.01)
    assert len(calls) < 40
    assert np.allclose(found.after, plain(np.array(list(found.values().values()))))


def test_without_a_measurement_is_what_a_fit_without_it_gives() -> None:
    seconds = measured(0.05)
    whole = fit(parameters(), misfits_of(seconds), 0.05)
    for row in (0, 20, 39):
        rows = np.setdiff1d(np.arange(len(SIZE)), [row])
        again = fit(parameters(), misfits_of(seconds, rows), 0.05).values()
        near = without(whole, [row])
        moved = np.array(list(again.values())) - np.array(list(whole.values().values()))
        assert np.allclose(near - np.array(list(whole.values().values())), moved,
                           rtol=0.3, atol=0.002 * RATE)


def test_the_same_again() -> None:
    assert fitted().values() == fitted().values()
