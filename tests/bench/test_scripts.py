"""Published launch scripts: docs/scripts.md has the figures, and prices are those of today."""

from __future__ import annotations

from pathlib import Path

import pytest
import scripts

import nest

ROOT = Path(__file__).parents[2]
CASES, FIGURES = scripts.cases(), scripts.figures()
READ = [name for name in CASES if "refused" not in FIGURES[name]]
QUICK = ("Mixtral 8x7B, Megatron-LM core_v0.16.1", "SantaCoder 1.1B, BigCode",
         "GPT 1.7B, table 1 of arXiv:2104.04473")
"""Scripts whose plans are searched again."""


def test_the_page_has_the_table() -> None:
    page = (ROOT / "docs" / "scripts.md").read_text(encoding="utf-8")
    assert page.partition("<!-- python bench/scripts.py -->\n\n")[2] == scripts.table()


def test_each_script_is_read_or_refused_with_a_reason() -> None:
    assert [*FIGURES] == [*CASES]
    assert len(READ) >= 30
    assert all(FIGURES[name]["refused"] for name in CASES if name not in READ)
    assert len({CASES[name]["repo"] for name in READ}) >= 5


@pytest.mark.parametrize("name", READ)
def test_prices_are_those_of_today(name: str) -> None:
    figure, cluster = FIGURES[name], CASES[name]["cluster"]
    plan = scripts.priced(figure, "plan", cluster)
    assert plan.step_time_s == pytest.approx(figure["plan"]["step_time_s"], rel=1e-12)
    assert plan.feasible and plan.runnable and figure["plan"]["optimal"]
    if figure["before"] is None:
        assert figure["problems"]
        return
    before = scripts.priced(figure, "before", cluster)
    assert before.step_time_s == pytest.approx(figure["before"]["step_time_s"], rel=1e-12)
    assert bool(figure["problems"]) == (not before.feasible or before.runnable is False)
    assert plan.step_time_s < before.step_time_s or figure["problems"]


@pytest.mark.kernels
@pytest.mark.parametrize("name", QUICK)
def test_plans_are_those_of_today(name: str) -> None:
    plan = scripts.priced(FIGURES[name], "plan", CASES[name]["cluster"])
    inputs = plan.inputs
    assert inputs.model is not None
    again = nest.plan(inputs.model, inputs.cluster, inputs.job)
    assert again.step_time_s == plan.step_time_s
