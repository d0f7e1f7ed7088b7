"""Prices of measured runs get no worse: against `golden/accuracy.json`."""

from __future__ import annotations

import copy

import pytest
from accuracy import SLACK, golden, measured, worse

Scores = dict[str, dict[str, float | int | None]]


@pytest.fixture(scope="module")
def now() -> Scores:
    return measured()


def test_no_group_is_priced_worse_than_it_was(now: Scores) -> None:
    """Where it fails on purpose: run `python tests/measured/validation/refresh_accuracy.py`."""
    assert not worse(golden(), now)


def test_every_group_is_watched(now: Scores) -> None:
    assert list(golden()) == list(now)


def test_the_gate_sees_what_gets_worse(now: Scores) -> None:
    """More than half a point is seen, less is not; so is a row that is no longer priced."""
    for change, seen in ((SLACK * 0.9, 0), (SLACK * 1.1, 1), (-0.1, 0)):
        changed = copy.deepcopy(now)
        changed["vtrain_multi"]["median_abs_error"] += change
        assert len(worse(now, changed)) == seen
    changed = copy.deepcopy(now)
    changed["vtrain_multi"]["priced"] -= 1
    del changed["simumax_b200"]
    assert worse(now, changed) == ["vtrain_multi: 48 rows are priced, 49 were",
                                   "simumax_b200: the group is gone"]
