"""What all tests share: which of them reach the kernels, and where xdist runs them.

`.ci/run` runs the tests that reach no kernel once, without the compiler, where it also counts
lines, and the others compiled. So a test that reaches kernels says so (``kernels``) or fails, and
says where it is quick without the compiler too (``uncompiled``).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from typing import Any

import pytest

WITHOUT_JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
APART = ("test_exact.py", "test_exact_graphs.py", "test_golden_plans.py", "test_guarantees.py",
         "test_guarantees_graphs.py")
"""Long files whose tests share nothing but results of :mod:`shared`."""
UNCOUNTED = tuple(f"tests/{tests}" for tests in (
    "docs/test_references.py", "guarantees/", "kernels/test_dominance.py", "oracle/",
    "costs/schedules/test_schedules.py::test_add_stage_never_decreases",
    "costs/schedules/test_schedules.py::test_no_step_is_above_a_simulation",
    "costs/schedules/test_schedules.py::test_no_time_that_grows_shortens_the_step",
    "costs/schedules/test_schedules.py::test_slower_stages_never_shorten_a_step",
    "costs/test_costs_layer.py::test_chain_has_the_parameters_of_the_model",
    "costs/test_stage.py::test_no_second_of_a_layer_that_grows_shortens_a_step",
    "cli/test_cli_topology.py::test_other_graphs_are_planned_by_their_links",
    "planners/test_planners_exhaustive.py::test_no_point_of_a_naive_grid_is_better",
    "planners/test_planners_exhaustive.py::test_prices_are_those_of_evaluate",
    "planners/test_planners_manual.py::test_gpt3_175b_stays_inside_a_node",
    "planners/test_planners_manual.py::test_larger_degrees_are_taken_while_they_pay",
    "planners/test_planners_manual.py::test_megatron",
    "planners/test_planners_mcmc.py::test_strategies_are_visited_with_boltzmann_weights",
    "planners/test_planners_phaze.py::test_the_program_equals_listing",
    "planners/test_planners_piper.py::test_the_program_equals_listing",
    "planners/test_planners_prices.py::test_they_take_what_evaluate_takes",
    "pricing/test_confidence.py::test_the_catalog_says_what_validation_finds",
    "pricing/test_unequal_chunks.py::test_prices_are_those",
    "search/test_compiled.py::test_layer_sums",
    "search/test_distinct_plans.py", "validation/test_validation.py::test_runs_that_ran_fit",
    "validation/test_validation.py::test_the_own_table"))
"""Many or large cases of what other tests run too: counting lines triples the time they take."""
COUNTED_ONCE = tuple(f"tests/planners/{tests}" for tests in (
    "test_planners_alpa.py::test_leaving_limits_out_changes_nothing",
    "test_planners_alpa.py::test_stages_cost_what_evaluate_says_on_a_two_level_network",
    "test_planners_alpa.py::test_the_dynamic_program_equals_listing",
    "test_planners_alpa.py::test_the_integer_program_equals_listing",
    "test_planners_alpa_profile.py::test_one_stage_takes_what_evaluate_says_on_any_stack",
    "test_planners_alpa_profile.py::test_stages_alone_take_what_their_layers_do_on_any_stack"))
"""Random cases of one test, whose lines are counted for the first case alone."""
_folders: list[tempfile.TemporaryDirectory[str]] = []


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of :mod:`shared` before xdist starts its workers, which inherit its name."""
    if not hasattr(config, "workerinput"):
        _folders.append(tempfile.TemporaryDirectory(prefix="nest-tests-"))
        os.environ["NEST_TEST_SHARED"] = _folders[0].name


def pytest_unconfigure(config: pytest.Config) -> None:
    while _folders:
        _folders.pop().cleanup()


@pytest.hookimpl(trylast=True)
def pytest_sessionstart() -> None:
    """Load the kernels with their cache of compiled code, before tests import them by name.

    Not earlier: pytest-cov counts lines from its own hook on.
    """
    from nest.search import compiled

    compiled._import(None if WITHOUT_JIT else compiled.cache_folder())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is slow without the compiler; count no lines of what repeats lines."""
    counted: set[str] = set()
    for item in items:
        test = item.nodeid.partition("[")[0]
        if item.nodeid.startswith(UNCOUNTED) or (
                item.nodeid.startswith(COUNTED_ONCE) and test in counted):
            item.add_marker("no_cover")
        counted.add(test)
    if WITHOUT_JIT:
        config.hook.pytest_deselected(items=[item for item in items if not _quick(item)])
        items[:] = filter(_quick, items)


def _quick(item: pytest.Item) -> bool:
    """Whether a test is quick without the compiler."""
    reaches = item.get_closest_marker("kernels")
    return reaches is None or reaches.kwargs.get("uncompiled", False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test that reaches kernels, itself or by its fixtures, and does not say so."""
    from nest.search import compiled

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("reaches the kernels: needs pytest.mark.kernels")

    if any(item.iter_markers("kernels")):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "load", refuse)
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file in one process, for what they share, but for files in ``APART``."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return nodeid if file.endswith(APART) else file

    return Scheduling(config, log) if config.option.dist == "loadfile" else None
