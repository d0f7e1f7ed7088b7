"""Search time of the published models.

    pytest bench -k 1024 --benchmark-columns=median,min,max --benchmark-sort=name

Cells, labels and transitions stand in the extra information of each benchmark
(``--benchmark-json``).
"""

from __future__ import annotations

import pytest
from cases import CASES, Case
from pytest_benchmark.fixture import BenchmarkFixture

import nest
from nest.evaluation.evaluate import chain_of
from nest.search import compiled
from nest.search.branch_and_bound import search_one
from nest.search.query import Query
from nest.search.solution import SearchResult


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    compiled.load()


@pytest.mark.parametrize("case", [case for case in CASES if case.fits], ids=str)
def test_search(benchmark: BenchmarkFixture, case: Case) -> None:
    model, cluster, job = case.question()
    chain = chain_of(model)
    found: SearchResult = benchmark.pedantic(
        search_one, (Query(chain, cluster, job),), rounds=3, warmup_rounds=1
    )
    benchmark.extra_info.update(
        step_time_s=found.step_time, solved=found.effort.solved, cells=found.effort.cells,
        labels=found.effort.labels, transitions=found.effort.transitions,
        threads=found.effort.threads,
    )
    assert found.configuration is not None
    plan = nest.evaluate(model, cluster, job, found.configuration)
    assert plan.feasible
    assert plan.step_time_s == pytest.approx(found.step_time, rel=1e-9)
