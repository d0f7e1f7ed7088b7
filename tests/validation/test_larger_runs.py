"""Larger mixtures of experts, to whose runs no figure is fitted (bench/larger_runs.csv)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nest import validation

FILE = Path(__file__).parents[2] / "bench" / "larger_runs.csv"
MEDIAN, NINE_OF_TEN = 0.075, 0.165
"""Errors that were accepted; before figures of captured layers and fused products 0.165, 0.37."""


def test_larger_runs_are_priced_as_well_as_they_were() -> None:
    priced = validation.price(validation.read(FILE))
    assert [row.reason for row in priced if row.reason is not None] == []
    errors = np.abs([row.error for row in priced])
    assert np.median(errors) <= MEDIAN
    assert np.quantile(errors, 0.9) <= NINE_OF_TEN
    inside = [(row.low_s or 0.0) <= (row.run.measured_s or 0.0) <= (row.high_s or 0.0)
              for row in priced]
    assert np.mean(inside) >= 0.85
