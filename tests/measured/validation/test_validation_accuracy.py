"""Prices of measured runs get no worse: against `golden/accuracy.json`."""

from __future__ import annotations

import copy

import pytest
from accuracy import SLACK, golden, measured, reasons, table, worse

Scores = dict[str, dict[str, float | int | None]]


@pytest.fixture(scope="module")
def now() -> Scores:
    return measured()


def test_no_group_is_priced_worse_than_it_was(now: Scores) -> None:
    """Where it fails on purpose: run `python tests/measured/validation/refresh_accuracy.py`."""
    assert not worse(golden(), now, reasons()), table(golden(), now)


def test_every_group_is_watched(now: Scores) -> None:
    assert list(golden()) == list(now)


def test_the_gate_sees_what_gets_worse(now: Scores) -> None:
    """More than a point is seen, less is not; so is a row that is no longer priced."""
    for change, seen in ((SLACK * 0.9, 0), (SLACK * 1.1, 1), (-0.1, 0)):
        changed = copy.deepcopy(now)
        changed["vtrain_multi"]["median_abs_error"] += change
        assert len(worse(now, changed)) == seen
    changed = copy.deepcopy(now)
    changed["vtrain_multi"]["priced"] -= 1
    del changed["simumax_b200"]
    assert worse(now, changed) == ["vtrain_multi: 48 rows are priced, 49 were",
                                   "simumax_b200: the group is gone"]


def test_a_stated_reason_allows_an_error_up_to_its_figure(now: Scores) -> None:
    changed = copy.deepcopy(now)
    error = changed["vtrain_multi"]["median_abs_error"] = now["vtrain_multi"][
        "median_abs_error"] + 0.02
    for stated, seen in (({"vtrain_multi": error}, 0), ({"vtrain_multi": error - 0.001}, 1),
                         ({"simumax_b200": 1.0}, 1)):
        assert len(worse(now, changed, stated)) == seen
    (head, row) = table(now, changed).split("\n")
    assert head.split() == ["group", "rows", "median", "bias", "memory"]
    assert row.startswith("vtrain_multi    49  3.8 % ->  5.8 %")
    assert table(now, now) == ""
