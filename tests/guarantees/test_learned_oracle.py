"""Factors that runs taught a stack: the search applies them as `evaluate` does."""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random

import pytest
from instances import Instance
from test_stack_oracle import decided, no_explanations, question

from nest.inputs.job import Factors

assert no_explanations  # a fixture of this file too
WITHOUT_JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
INSTANCES = 16 if WITHOUT_JIT else 32
CHUNKS = 2


def taught(seed: int) -> Instance:
    """An instance whose stack has learned factors between a third and three."""
    x, rng = question(seed), Random(f"learned {seed}")
    factors = {name: 3.0 ** rng.uniform(-1.0, 1.0) for name in Factors.model_fields}
    stack = x.job.stack.replace(learned=Factors(**factors))
    return replace(x, job=x.job.replace(stack=stack))


@pytest.mark.kernels
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_configuration_is_faster_as_runs_taught(chunk: int) -> None:
    done, fit = decided(taught, range(chunk, INSTANCES, CHUNKS))
    assert WITHOUT_JIT or (done > INSTANCES // 16 and fit > 0)
