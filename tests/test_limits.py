"""Counts that the API takes have the limits of the command line."""

from __future__ import annotations

import pytest
from descriptions import CLUSTER, MODEL

import nest
from nest.limits import MOST, count_problem
from nest.planners.mcmc import Mcmc
from nest.search.compiled import load
from nest.search.threads import VARIABLES, thread_count


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


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("text", ["0", "-1", "x", "1000000000", "2.5"])
def test_threads_of_the_environment_are_a_number_of_them(name, text, monkeypatch, capsys):
    for one in VARIABLES:
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setenv(name, text)
    with pytest.raises(nest.InputError, match=rf"^{name}: got '{text}' in the environment; "
                       r"allowed: 1 to 1024, or not set$"):
        load()
    monkeypatch.setenv(name, " 3 ")
    assert thread_count() == 3


def test_limits_are_allowed_themselves():
    assert [count_problem(name, most) for name, most in MOST.items()] == [None] * len(MOST)
    assert count_problem("top", None) is None
