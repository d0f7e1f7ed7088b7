"""What the search rules out: the bounds of outer choices and the certificate hold."""

from __future__ import annotations

import pytest
from instances import instance
from test_exact import INSTANCES, mismatch, solved

import nest
from nest.evaluation.evaluate import chain_of
from nest.search.formulating import formulate
from nest.search.query import Query

pytestmark = pytest.mark.kernels(uncompiled=True)


def test_no_plan_takes_less_than_the_bound_of_its_outer_choice() -> None:
    for seed in range(min(INSTANCES, 400)):
        x = instance(seed)
        best = solved(seed).best
        f = formulate(Query(x.chain, x.cluster, x.job, x.space))
        bounds = {(o.outer_dp, o.stride, o.micro_batch): bound
                  for o, bound in zip(f.outers, f.bounds, strict=True)}
        for found in best:
            way = found.configuration
            bound = bounds[way.outer_dp, way.stride, way.micro_batch]
            assert bound <= found.seconds * (1 + 1e-9), seed


def test_a_slow_stage_in_front_is_below_the_sum_of_all_and_m_minus_1_slowest() -> None:
    # 14 and 7 layers of 0.1 s, m = 2: F 0.7, 1.4; behind F 1.05, B 1.4 | F 1.75, B 2.1; in front
    # B 2.1, 2.8. The sum of the stages and the slowest once more would be 2.1 + 1.4 = 3.5, and
    # 3.15 at the least over all cuts.
    profile = nest.Profile.parse({"name": "even", "layers": [{
        "name": "layer", "repeat": 21, "output_bytes": 0, "tp": {1: {
            "forward": 0.05, "backward": 0.05, "parameter_bytes": 1, "activation_bytes": 1}}}]})
    cluster = nest.load_cluster("h100-spine-leaf", devices=2)
    job = nest.Job(global_batch=2, seq_len=1)
    space = nest.SearchSpace(outer_dp=1, micro_batch=1, pp="1,2", vpp=1)
    f = formulate(Query(chain_of(profile), cluster, job, space))
    plan = nest.plan(profile, cluster, job, space, beyond_stack=True)
    assert plan.step_time_s < 2.81
    assert f.bounds.tolist() == [2.1]


def test_instances_that_a_bound_slightly_too_high_gets_wrong() -> None:
    # Long chains, few stages: each lost its best plan to a bound that took the sum of the stages
    # and m - 1 times the slowest for the least that 1F1B takes.
    for seed in (1195, 1668, 9247, 10292):
        assert mismatch(instance(seed), solved(seed)) is None
