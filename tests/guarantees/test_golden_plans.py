"""Plans stay what they were, unless a change says why: against `golden/plans.json`."""

from __future__ import annotations

import os

import pytest
from golden_plans import ask, configuration, differences, golden, record
from golden_questions import EXAMPLES, QUESTIONS, Question

from nest.inputs import catalog

NAMES = [question.name for question in QUESTIONS]
several_threads = pytest.mark.skipif(
    os.environ.get("NEST_THREADS") == "1",
    reason="asked with several threads; other tests compare plans of one thread and of several")


@pytest.mark.kernels
@several_threads
@pytest.mark.parametrize("question", QUESTIONS, ids=NAMES)
def test_plans_are_as_written_down(question: Question) -> None:
    """Where this fails on purpose: `python tests/guarantees/refresh_plans.py`, and say why."""
    plan = ask(question)
    assert not differences(golden()[question.name], plan)
    assert configuration(record(plan)) == plan.configuration
    assert question.beyond_stack or not plan.broken_rules


def test_every_question_is_written_down() -> None:
    assert list(golden()) == NAMES and len(set(NAMES)) == 120


def test_everything_is_never_slower_than_what_the_stack_can_run() -> None:
    found = golden()
    pairs = [(found[name]["step_time_s"], found[f"{name}, in its stack"]["step_time_s"])
             for name in found if f"{name}, in its stack" in found]
    assert len(pairs) == 48 and all(a <= b * (1 + 1e-9) for a, b in pairs)
    assert sum(a < 0.999 * b for a, b in pairs) > 10


def test_the_list_has_every_model_and_cluster() -> None:
    models = {question.model for question in QUESTIONS if isinstance(question.model, str)}
    clusters = {question.cluster for question in QUESTIONS if isinstance(question.cluster, str)}
    assert models == set(catalog.names("models"))
    # Rented ones differ from these by rates alone.
    assert clusters >= {name for name in catalog.names("clusters")
                        if name.startswith(("dgx", "gb", "h100", "tpuv4"))}


@pytest.mark.kernels
def test_a_difference_is_seen_and_a_tie_is_none() -> None:
    plan = ask(Question("one replica", EXAMPLES / "profile.yaml", "dgx-a100", 8, 8, 2048, space={
        "pp": 2, "tp": 1, "dp_in": 1, "outer_dp": 1, "schedule": "1f1b"}))
    old = record(plan)
    assert configuration(old) == plan.configuration and not differences(old, plan)
    # the last digits of a price may differ between machines, no others
    assert not differences({**old, "step_time_s": old["step_time_s"] * (1 + 1e-13)}, plan)
    assert len(differences({**old, "step_time_s": old["step_time_s"] * (1 + 1e-11)}, plan)) == 1
    assert len(differences({**old, "optimal": False}, plan)) == 1
    # slower, and refused: the configuration was another
    for change in ({"micro_batch": 2}, {"micro_batch": 3}):
        changed = {**old, "configuration": {**old["configuration"], **change}}
        assert len(differences(changed, plan)) == 1
    # it does not matter where a second replica would begin, nor which device of a node is first
    tied = {**old, "configuration": {**old["configuration"], "stride": 4}, "order": "1..7,0"}
    assert configuration(tied) != plan.configuration and not differences(tied, plan)
