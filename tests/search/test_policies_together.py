"""Recompute policies that are searched together give the best plan that one of them alone gives."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from test_alike import EXPERTS, MODEL, cluster

import nest
from nest._kernels.uniform import decided
from nest.inputs import Job, load_model, load_stack
from nest.inputs.space import SearchSpace
from nest.records import LAYER, columns

pytestmark = pytest.mark.kernels
DENSE = "core_attn", "norm", "mlp"
SPARSE = "core_attn", "mlp_act", "moe"


@pytest.mark.parametrize("memory", [100, 140])
@pytest.mark.parametrize(("model", "modules", "schedule"), [
    ({**MODEL, "layers": 7}, DENSE, "interleaved"),
    ({**EXPERTS, "layers": 6}, SPARSE, "interleaved"),
    ({**EXPERTS, "layers": 6}, SPARSE, "combined")])
def test_together_as_alone(model, modules, schedule, memory):
    """A policy that is left out because another takes no longer is never the better one."""
    job = Job(global_batch=8, seq_len=1024,
              stack=load_stack("megatron-core").replace(workspace=0))
    fixed = {"schedule": (schedule,), "pp": 2, "vpp": "1..3", "mbs": 1}
    sets = tuple("+".join(some) for count in range(1, len(modules) + 1)
                 for some in combinations(modules, count))

    def seconds(**space: object) -> float:
        try:
            return nest.plan(load_model(model), cluster(f"{memory} MiB"), job,
                             SearchSpace(**fixed, **space)).step_time_s
        except nest.InfeasibleError:
            return math.inf

    alone = [seconds(recompute="none"), seconds(recompute="full"), *(
        seconds(recompute="selective", recompute_modules=one) for one in sets)]
    assert len({*alone}) > 1
    assert seconds(recompute_modules=sets) == min(alone)


@pytest.mark.parametrize(("slower", "hides", "expected"), [
    (0.0, 0.0, True), (1.0, 0.0, True), (1.0, 1.0, True), (1.0, -1.0, True), (1.0, 1.5, False),
    (0.0, 0.5, False), (-0.5, -1.0, False)])
def test_what_takes_no_longer(slower, hides, expected):
    """A layer that hides more than it adds may shorten a step, and so may one that takes less."""
    own = columns(LAYER, **{name: float(n) for n, name in enumerate(LAYER.names, 1)})[0]
    other = own.copy()
    other.backward += slower
    other.free_backward += hides
    adds = getattr(decided._adds, "py_func", decided._adds)
    assert adds(own, other) == expected
