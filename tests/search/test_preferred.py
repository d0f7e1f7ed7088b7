"""Plans that the error of prices does not tell apart."""

from __future__ import annotations

import pytest

import nest
from nest.evaluation.confidence import WORDS
from nest.evaluation.plan_file import reread

MODEL, CLUSTER = nest.load_model("llama3-8b"), nest.load_cluster("dgx-h100", devices=64)
JOB = nest.Job(global_batch=256, seq_len=4096)


@pytest.mark.kernels
def test_a_measured_plan_is_preferred_within_the_error() -> None:
    fastest = nest.plan(MODEL, CLUSTER, JOB, top=8)
    plan = nest.plan(MODEL, CLUSTER, JOB, prefer="measured", top=8)
    error = fastest.error or 0.0
    assert fastest.step_time_s <= plan.step_time_s <= fastest.step_time_s * (1 + error)
    assert plan.evidence is not None and fastest.evidence is not None
    assert plan.lower_bound_s == fastest.step_time_s
    assert plan.optimal == (plan.configuration == fastest.configuration)
    best = min((one for one in fastest.alternatives if one.slower <= error),
               key=lambda one: (WORDS.index(one.word or "never measured"), one.memory))
    key = WORDS.index(plan.evidence.word), plan.memory_share
    assert key <= (WORDS.index(best.word or "never measured"), best.memory)
    assert key <= (WORDS.index(fastest.evidence.word), fastest.memory_share)
    assert plan.memory_share < fastest.memory_share and plan.alternatives[0].slower < 0.0
    again, notes = reread(plan.model_dump(mode="json", by_alias=True))
    assert again.alternatives == plan.alternatives and not notes
    # One plan is given where one is asked for.
    alone = nest.plan(MODEL, CLUSTER, JOB, prefer="measured")
    assert alone.configuration == plan.configuration and not alone.alternatives


@pytest.mark.kernels
def test_overlapping_ranges_are_said() -> None:
    plan = nest.plan(MODEL, CLUSTER, JOB, top=4)
    assert plan.confidence is not None and plan.alternatives[0].overlaps
    assert "The ranges of 3 of them overlap" in " ".join(str(plan).split())
    assert "Safest in memory" in str(plan)
    assert not any("overlap" in line for line in str(nest.plan(MODEL, CLUSTER, JOB)).splitlines())


def test_another_word_is_refused() -> None:
    with pytest.raises(nest.InputError, match="prefer: got 'safest'; allowed: fastest, measured"):
        nest.plan(MODEL, CLUSTER, JOB, prefer="safest")  # type: ignore[arg-type]
