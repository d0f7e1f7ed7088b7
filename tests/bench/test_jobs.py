"""Jobs of bench/jobs.yaml: docs/jobs.md has their plans, and all of them can be launched."""

from __future__ import annotations

import re
from pathlib import Path

import jobs
import pytest
import recipes

import nest

ROOT = Path(__file__).parents[2]
NOTABLE = 0.1
"""A gain above this needs a reason."""
TABLE = (ROOT / "docs" / "jobs.md").read_text()
OTHER, OWN = re.findall(r"^```text\n(.*?)^```", TABLE, re.DOTALL | re.MULTILINE)
ROWS = {cells[0]: cells for line in OWN.splitlines() if (cells := re.split(" {2,}", line))}
QUICK = ("llama3-8b on 8 H100", "llama3-8b on 128 H100, torchtitan", "qwen2.5-7b on 64 H100",
         "mixtral-8x7b on 128 H100")
"""Jobs that are planned again; the others take most of a minute together."""


def test_the_table_has_all_jobs() -> None:
    listed = jobs.jobs()
    assert len(listed) == 15
    assert [name for name in ROWS if name != jobs.HEAD[0]] == [job.name for job in listed]
    assert [ROWS[job.name][1] for job in listed] == [job.job.stack.name for job in listed]


def test_all_plans_can_be_launched() -> None:
    for job in jobs.jobs():
        exported = job.job.stack.name == "megatron-core"
        assert ROWS[job.name][4].startswith("exported, launch.sh" if exported else "rules")


def test_every_large_gain_has_a_reason() -> None:
    for job in jobs.jobs():
        gain = float(ROWS[job.name][5].rstrip("%*")) / 100.0
        assert ("reason" in job.given) == (gain > NOTABLE), job.name


def test_notes_are_those_of_the_jobs() -> None:
    notes = [line for line in TABLE.splitlines() if line.startswith("- ")]
    for job in jobs.jobs():
        before, behind = jobs.remark(job)
        assert any(note.startswith(before) and note.endswith(behind) for note in notes), job.name


@pytest.mark.kernels
@pytest.mark.parametrize("name", QUICK)
def test_plans_are_those_of_the_table(name: str) -> None:
    job, = jobs.jobs(name)
    plan = recipes.planned(job, False)
    assert plan is not None and plan.runnable and plan.optimal
    row = ROWS[name]
    assert [recipes.shape(plan), recipes.seconds(plan.step_time_s), jobs.launch(plan)] == row[2:5]


@pytest.mark.kernels
def test_another_stack_may_run_what_everything_adds() -> None:
    """The other table: columns are the job, its stack, Megatron-FSDP, everything."""
    rows = [re.split(" {2,}", line) for line in OTHER.splitlines() if line.startswith("llama2-7b")]
    job, = jobs.jobs("llama2-7b")
    seconds = [nest.plan(job.model, job.cluster, job.job.replace(stack=stack)).step_time_s
               for stack in ("megatron-core", "megatron-fsdp")]
    assert rows[0][1:3] == [f"{one:.4g}" for one in seconds]
