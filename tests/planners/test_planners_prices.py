"""Fast prices of planners: they take the configurations that `evaluate` takes, at its prices."""

from __future__ import annotations

from random import Random

import pytest
from instances import instance
from instances_graphs import graph_instance
from random_plans import random_plan

from nest.errors import InputError
from nest.evaluation.evaluate import evaluate
from nest.planners.prices import PlannerPrices


@pytest.mark.parametrize(("draw", "refused"), [
    (instance, {"divide", "straddle"}), (graph_instance, {"several types", "shard dp_in"})])
def test_they_take_what_evaluate_takes(draw, refused):
    taken, reasons = 0, ""
    for seed in range(22):
        x, rng = draw(seed), Random(f"taken {seed}")
        prices = PlannerPrices(x.chain, x.cluster, x.job)
        for _ in range(25):
            way = random_plan(rng, x)
            try:
                plan = evaluate(x.model, x.cluster, x.job, way)
            except InputError as error:
                reasons += str(error)
                assert not prices.legal(way), (seed, str(error))
                continue
            taken += 1
            assert prices.legal(way), (seed, way)
            assert prices.price(way).step_time == plan.step_time_s
            assert (prices.price(way).excess == 0.0) == plan.feasible
    assert taken > 100
    assert all(reason in reasons for reason in refused)


def test_a_sequence_that_the_model_does_not_take():
    """Learned positions end before the sequence: `evaluate` says no, and so do prices."""
    x = next(x for x in map(instance, range(500)) if x.chain.model and x.chain.model.positions)
    rng = Random("sequence")
    long = x.job.replace(seq_len=2 * x.chain.model.positions)
    while not PlannerPrices(x.chain, x.cluster, x.job).legal(way := random_plan(rng, x)):
        pass
    with pytest.raises(InputError, match="learned positions"):
        evaluate(x.model, x.cluster, long, way)
    assert not PlannerPrices(x.chain, x.cluster, long).legal(way)
