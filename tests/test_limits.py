"""Counts that the API takes have the limits of the command line."""

from __future__ import annotations

import pytest
from descriptions import CLUSTER, MODEL

import nest
from nest.limits import MOST, count_problem
from nest.planners.mcmc import Mcmc


@pytest.mark.parametrize("name", ["top", "threads"])
@pytest.mark.parametrize("given", [0, -1, "more", 10**9])
def test_the_api_refuses_what_the_command_line_refuses(name, given):
    given = MOST[name] + 1 if given == "more" else given
    model, cluster = nest.Model.parse(MODEL), nest.Cluster.parse(CLUSTER)
    with pytest.raises(nest.InputError, match=rf"^{name}: got {given}; allowed: 1 to {MOST[name]}"):
        nest.plan(model, cluster, nest.Job(global_batch=8, seq_len=128), **{name: given})


@pytest.mark.parametrize("name", ["proposals", "rounds"])
def test_mcmc_has_a_limit(name):
    with pytest.raises(nest.InputError, match=rf"mcmc: {name}: got 100000000000; allowed: 1 to "):
        Mcmc(**{name: 10**11})


def test_limits_are_allowed_themselves():
    assert [count_problem(name, most) for name, most in MOST.items()] == [None] * len(MOST)
    assert count_problem("top", None) is None
