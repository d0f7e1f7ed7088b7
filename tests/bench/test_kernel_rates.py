"""bench/kernels.py clocks every part of a search and counts what a transition does."""

from __future__ import annotations

import kernels
import pytest
from cases import Case


@pytest.mark.kernels
def test_every_part_of_a_search_is_clocked() -> None:
    run = kernels.profile(Case("bert-large", "h100-spine-leaf", 16))
    named = {name: seconds for name, seconds in run.parts.items() if name != "the rest"}
    assert set(named) == {"prices of all layers", "arrays of an outer choice", "select", "solve",
                          "useful", "alike"}
    assert all(seconds > 0.0 for seconds in named.values()) and run.pairs > 0
    assert sum(named.values()) <= run.seconds

    transitions = kernels.count(run.problem)
    assert transitions > 0
    done = kernels.TALLY.bounds + kernels.TALLY.labels
    assert {"additions", "comparisons", "loads", "stores"} <= set(done)
