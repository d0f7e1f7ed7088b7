"""Published recipes are accepted, and docs/recipes.md has their prices."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import recipes

ROOT = Path(__file__).parents[2]
NOTABLE = 0.1
"""A gain above this needs a reason."""
TABLE = (ROOT / "docs" / "recipes.md").read_text()
ROWS = {cells[0]: cells for line in TABLE.partition("```text\n")[2].partition("```")[0].splitlines()
        if (cells := re.split(" {2,}", line))}


def test_the_table_has_all_recipes() -> None:
    assert [name for name in ROWS if name != recipes.HEAD[0]] == [
        recipe.name for recipe in recipes.recipes()]


@pytest.mark.parametrize("recipe", recipes.recipes(), ids=lambda recipe: recipe.name)
def test_recipes_are_accepted_and_cost_what_the_table_says(recipe: recipes.Recipe) -> None:
    price = recipe.price
    assert price.runnable, price.not_runnable
    row = ROWS[recipe.name]
    assert row[2] == recipes.shown(price), "python bench/recipes.py makes the table"
    assert row[1] == (recipes.seconds(recipe.measured) or "-")


def test_every_large_gain_has_a_reason() -> None:
    """Of the plan, and no reason without a gain; between these, a reason may stay."""
    for recipe in recipes.recipes():
        gain = float(ROWS[recipe.name][4].rstrip("%")) / 100.0
        assert "reason" in recipe.given or gain <= NOTABLE, recipe.name
        assert "reason" not in recipe.given or gain > NOTABLE / 2.0, recipe.name


def test_software_is_part_of_the_job() -> None:
    for recipe in recipes.recipes():
        stack = recipe.job.stack.as_dict()
        assert stack.items() >= recipe.given.get("software", {}).items(), recipe.name


def test_notes_are_those_of_the_recipes() -> None:
    notes = [line for line in TABLE.splitlines() if line.startswith("- ") and " -> " in line]
    explained = [recipe for recipe in recipes.recipes() if "reason" in recipe.given]
    for recipe, note in zip(explained, notes, strict=True):
        before, behind = recipes.remarks(recipe)
        assert note.startswith(f"{before}{recipes.shape(recipe.price)} -> "), note
        assert note.endswith(behind), note


@pytest.mark.kernels
def test_the_plan_of_a_small_job_is_runnable_and_faster() -> None:
    recipe, = recipes.recipes("llama3-8b on 8 B200")
    plan = recipes.planned(recipe, False)
    assert plan is not None and plan.runnable and plan.optimal
    job, own = plan.inputs.job, recipe.job.stack.choices  # none is free: software is the recipe's
    assert job.replace(stack=job.stack.replace(choices=own)) == recipe.job
    assert plan.step_time_s <= recipe.price.step_time_s
    assert ROWS[recipe.name][3] == recipes.seconds(plan.step_time_s)
