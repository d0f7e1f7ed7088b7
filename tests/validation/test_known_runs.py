"""Known large runs of dense models, to whose seconds no figure is fitted (bench/known_runs.csv)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nest import validation

FILE = Path(__file__).parents[2] / "bench" / "known_runs.csv"
MEDIAN, LARGEST = 0.075, 0.15
"""Errors that were accepted."""


def test_known_runs_are_priced_as_well_as_they_were() -> None:
    priced = validation.price(validation.read(FILE))
    assert [row.reason for row in priced if row.reason is not None] == []
    errors = np.abs([row.error for row in priced])
    assert np.median(errors) <= MEDIAN
    assert np.max(errors) <= LARGEST
