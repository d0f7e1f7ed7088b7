"""Which run is next."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm
from test_posterior import run

from nest.measured.learning import Forecast, following
from nest.measured.learning.following import SURE, _scores


def test_the_first_run_is_fast_and_fits() -> None:
    candidates = [run("fast but full", activations=62e9, compute=3.0), run("good", 1.0),
                  run("slow", 2.0, compute=12.0)]
    assert following([], candidates)[0].number == 1


def test_after_failures_the_next_run_is_safe() -> None:
    failed = [run("a", 0.5, activations=52e9, verdict="out of memory")]
    candidates = [run("full", 1.0, activations=50e9, compute=5.0),
                  run("safe", 3.0, activations=20e9, compute=9.0)]
    assert following(failed, candidates)[0].number == 1


def test_one_risk_of_memory_at_most() -> None:
    told = [run("a", 0.0, verdict="ran", seconds=12.0)]
    candidates = [*(run(f"risk {n}", 2.0 + n / 4.0, activations=57e9, compute=2.0)
                    for n in range(4)),
                  *(run(f"safe {n}", 1.0 + n / 4.0, activations=10e9) for n in range(4))]
    found = following(told, candidates, runs=4, worth=0.0)
    assert len({one.number for one in found}) == 4
    assert sum(one.fits < SURE for one in found) == 1


def test_it_stops_where_no_run_is_worth_it() -> None:
    told = [run("a", 0.0, verdict="ran", seconds=9.0), run("b", 1.0, verdict="ran", seconds=9.0)]
    slow = [run("x", 2.0, compute=30.0), run("y", 3.0, compute=40.0)]
    assert following(told, slow, runs=3) == []
    assert len(following(told, slow, runs=3, worth=0.0)) == 2


def test_runs_of_another_question_teach_but_are_not_the_best_so_far() -> None:
    other = run("other", verdict="ran", seconds=1.0, sizes=(30.0, 5.0, 12.0))
    found = following([other], [run("x", 1.0)])
    assert found[0].saves is None


@pytest.mark.parametrize("seconds", [8.0, 10.0, 13.0])
def test_expected_saving_is_the_integral(seconds: float) -> None:
    spread, fits, best = 0.2, 0.7, 10.0
    forecast = Forecast(np.array([seconds]), np.array([spread]), np.array([0.5]),
                        np.array([0.1]), np.array([fits]))
    saved = quad(lambda z: max(0.0, np.log(best / seconds) - spread * z) * norm.pdf(z), -9, 9,
                 points=[np.log(best / seconds) / spread])[0]
    assert _scores(forecast, best, 0)[1][0] == pytest.approx(fits * saved, rel=1e-6)
