"""Large runs of dense models, to whose seconds no figure is fitted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nest.measured import validation
from nest.measured.validation import hardware

FOLDER = Path(__file__).parents[3] / "bench"


@pytest.mark.parametrize(("file", "median", "largest", "memory"), [
    ("known_runs.csv", 0.067, 0.15, None), ("torchtitan_runs.csv", 0.08, 0.25, 0.16),
    ("long_runs.csv", 0.05, 0.16, None), ("automodel_runs.csv", 0.12, 0.20, None)])
def test_large_runs_are_priced_as_well_as_they_were(
    file: str, median: float, largest: float, memory: float | None
) -> None:
    """Errors that were accepted: of seconds the median and the largest, of memory the median."""
    priced = validation.price(validation.read(FOLDER / file))
    assert [row.reason for row in priced if row.reason is not None] == []
    errors = np.abs([row.error for row in priced])
    assert np.median(errors) <= median
    assert np.max(errors) <= largest
    held = [row.predicted_memory / row.run.measured_memory - 1.0 for row in priced
            if row.run.measured_memory]
    assert not held if memory is None else np.median(np.abs(held)) <= memory


def test_parameters_without_a_master_copy_fit() -> None:
    # With fp32 copies and moments six of the seven would not.
    runs = validation.read(FOLDER / "automodel_runs.csv")
    usual = {"automodel": hardware.stack("automodel").replace(
        master_copy=True, moment_dtype="fp32")}
    assert validation.score(validation.price(runs)).overall.misfits == 0
    assert validation.score(validation.price(runs, stacks=usual)).overall.misfits == 6
