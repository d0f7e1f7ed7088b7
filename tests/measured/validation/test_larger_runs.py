"""Larger mixtures of experts and hybrid models, to whose runs no figure is fitted (bench/)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nest.measured import validation

BENCH = Path(__file__).parents[3] / "bench"


@pytest.mark.parametrize(("table", "median", "nine_of_ten"), [
    # before figures of captured layers and fused products 0.165, 0.37
    ("larger_runs.csv", 0.075, 0.165),
    # before figures of the kernels of recurrences 0.131, 0.165
    ("hybrid_runs.csv", 0.04, 0.065)])
def test_runs_are_priced_as_well_as_they_were(
    table: str, median: float, nine_of_ten: float
) -> None:
    priced = validation.price(validation.read(BENCH / table))
    assert [row.reason for row in priced if row.reason is not None] == []
    errors = np.abs([row.error for row in priced])
    assert np.median(errors) <= median
    assert np.quantile(errors, 0.9) <= nine_of_ten
    inside = [(row.low_s or 0.0) <= (row.run.measured_s or 0.0) <= (row.high_s or 0.0)
              for row in priced]
    assert np.mean(inside) >= 0.85
