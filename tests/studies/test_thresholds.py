"""The least value for which a goal holds, and curves: those of asking every value."""

from __future__ import annotations

from typing import Any

import pytest
from studies import STUDY, THREE_LEVELS, monotone

from nest.errors import InputError
from nest.studies.axes import quantity
from nest.studies.questions import Answered, VersionedQuestion
from nest.studies.study import Study
from nest.studies.sweep import load_study
from nest.studies.thresholds import Goal, curve, least

BANDWIDTH = "cluster.levels.leaf.bandwidth"
MEMORY = "cluster.device.memory"


def study(**axes: Any) -> Study:
    """The tests' study with other axes."""
    found: Study = load_study({
        **STUDY, "axes": axes, "prices": {"device_hour": 2}, "train": {"tokens": 1e12},
        "cluster": THREE_LEVELS})
    return found


class Asking:
    """Counts what is asked."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, question: VersionedQuestion) -> Answered:
        self.count += 1
        return monotone(question)


WIDE = {BANDWIDTH: {"from": "2 GB/s", "to": "200 GB/s", "count": 60, "scale": "log"},
        "cluster.devices": [8, 24]}


@pytest.mark.parametrize("share", [1.0001, 1.02, 1.1, 1.3])
def test_the_least_is_that_of_asking_all(share: float) -> None:
    given, asking = study(**WIDE), Asking()
    every = curve(given, BANDWIDTH, 0.0, monotone)
    fastest = min(value.high_s for line in every for value in line.values)
    tokens = 16 * 128 / (fastest * share)
    for line, whole in zip(least(given, BANDWIDTH, Goal("tokens_per_s", tokens), asking), every,
                           strict=True):
        holding = [value.value for value in whole.values
                   if value.high_s <= fastest * share * (1 + 1e-9)]
        assert line.least == (holding[0] if holding else None)
        refuted = [value for value in line.values if value.holds is False]
        assert all(value.low_s >= fastest * share * (1 - 1e-6) for value in refuted)
        if line.least is not None:
            assert [value.holds for value in line.values].index(True) == len(refuted)
    assert asking.count < 20  # of 120


def test_a_curve_asks_nothing_between_equal_steps() -> None:
    given, asking = study(**WIDE), Asking()
    some, every = curve(given, BANDWIDTH, 0.01, asking), curve(given, BANDWIDTH, 0.0, monotone)
    assert asking.count < 100  # of 120
    for line, whole in zip(some, every, strict=True):
        for one, exact in zip(line.values, whole.values, strict=True):
            assert one.low_s <= exact.high_s * (1 + 1e-9) <= one.high_s * (1 + 2e-9)
            assert one.high_s <= one.low_s * 1.0101
        prices = [one.elasticity for one in whole.values if one.elasticity is not None]
        assert max(prices) <= 1e-9 and min(prices) < -0.01


def test_the_most_oversubscription_and_the_least_devices() -> None:
    given = study(**{"cluster.levels.spine.oversubscription": [1, 2, 4, 8, 16]})
    line, = curve(given, "cluster.levels.spine.oversubscription", 0.0, monotone)
    assert [value.value for value in line.values] == [16, 8, 4, 2, 1]
    limit = 16 * 128 / line.values[2].high_s
    found, = least(given, "cluster.levels.spine.oversubscription",
                   Goal("tokens_per_s", limit * (1 - 1e-6)), monotone)
    assert found.least == next(
        value.value for value in line.values if value.high_s <= line.values[2].high_s)
    given = study(**{"cluster.devices": [8, 16, 24]})
    line, = curve(given, "cluster.devices", 0.0, monotone)
    found, = least(given, "cluster.devices", Goal("step_time_s", line.values[1].high_s * 1.0001),
                   monotone)
    assert found.least == 16


@pytest.mark.parametrize(("text", "said"), [
    ("fast", "such as"), ("speed >= 3", "tokens_per_s"), ("days >= 3", "days <="),
    ("tokens_per_s >= 0", "number above"), ("money <= x", "number")])
def test_goals_that_are_none(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Goal.of(text, study(**{MEMORY: ["4 GiB", "8 GiB"]}))


def test_goals_and_axes_are_read() -> None:
    given = study(**{MEMORY: ["4 GiB", "8 GiB"], "precision": {"a": {"job.precision": "bf16"}}})
    assert Goal.of(" days <= 30", given) == ("days", 30.0)
    assert quantity("4 GiB") == 4 * 2**30
    with pytest.raises(InputError, match=MEMORY):
        least(given, "cluster.device.memori", Goal("days", 1.0), monotone)
    with pytest.raises(InputError, match="numbers"):
        least(given, "precision", Goal("days", 1.0), monotone)


@pytest.mark.kernels
def test_the_least_bandwidth_of_a_real_question() -> None:
    given = load_study({
        "name": "real", "model": "llama2-7b", "cluster": {"base": "dgx-h100", "devices": 16},
        "job": {"global_batch": 64, "seq_len": 2048},
        "axes": {"cluster.levels.1.bandwidth": {
            "from": "20 Gb/s", "to": "400 Gb/s", "count": 20}}})
    line, = curve(given, "cluster.levels.1.bandwidth", 0.0)
    goal = line.values[10]
    found, = least(given, "cluster.levels.1.bandwidth", Goal("step_time_s", goal.high_s * 1.00001))
    assert found.least == next(value.value for value in line.values
                               if value.high_s <= goal.high_s * 1.00001)
    assert sum(value.asked for value in found.values) <= 6
