"""Guarantee G5 on models of the catalog: a larger space never slows a plan, and often helps."""

from __future__ import annotations

from functools import cache

import pytest
from test_guarantees import CASES, SLOWER, WHOLE, freed

import nest
from nest.inputs import SearchSpace

pytestmark = pytest.mark.kernels
DIMENSIONS = tuple(name for name in SearchSpace.model_fields if name not in ("offload", "loss"))
"""Those that are free unless they are bounded."""


@cache
def enlarged(number: int) -> dict[str, float]:
    """Seconds of a step over the space of a case, with each dimension freed, with all of them."""
    case = CASES[number]
    spaces = {"none": case.space, "all": WHOLE}
    spaces |= {name: freed(case.space, name) for name in DIMENSIONS if case.has(name)}
    return {name: nest.plan(case.model, case.hardware, case.job, space,
                            beyond_stack=True).step_time_s
            for name, space in spaces.items()}


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_no_dimension_that_is_freed_slows_a_model(number: int) -> None:
    case, found = CASES[number], enlarged(number)
    free = {name for name, bound in case.space.describe().items() if bound == "any"}
    assert not any(map(case.has, free)), "every dimension has a bound"
    for name in filter(case.has, DIMENSIONS):
        assert found["all"] / SLOWER <= found[name] <= found["none"] * SLOWER, name


def test_every_dimension_helps_some_model() -> None:
    helped = {name for number in range(len(CASES)) for name, value in enlarged(number).items()
              if value * SLOWER < enlarged(number)["none"]}
    assert helped == {*DIMENSIONS, "all"}
