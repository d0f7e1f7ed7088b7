"""Print published recipes and NEST's plans for the same jobs, as Markdown.

    python bench/recipes.py [SUBSTRING] > table.md

The recipes are in bench/recipes.yaml, docs/recipes.md explains the columns. Progress goes to
standard error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from cases import aligned

import nest
from nest.errors import LimitError
from nest.evaluation.even import even_configuration
from nest.evaluation.plans import Plan
from nest.inputs import Cluster, Configuration, Job, Model

SECONDS = 15.0
"""Limit of a search of everything."""
FILE = Path(__file__).with_name("recipes.yaml")
HEAD = ("recipe", "measured, s", "price, s", "NEST's plan, s", "gain", "over measured",
        "beyond the stack")


class Recipe(NamedTuple):
    """A recipe and its job."""

    name: str
    given: Mapping[str, Any]
    model: Model
    cluster: Cluster
    job: Job

    @property
    def configuration(self) -> Configuration:
        """What the recipe does on every device."""
        degrees = dict(self.given["degrees"])
        block = degrees.get("tp", 1) * degrees.get("pp", 1) * degrees.get("cp", 1)
        return even_configuration(
            self.model, self.cluster, self.job,
            **{"dp_in": self.cluster.size // block, "outer_dp": 1, **degrees})

    @property
    def price(self) -> Plan:
        """The recipe, priced."""
        return nest.evaluate(self.model, self.cluster, self.job, self.configuration)

    @property
    def measured(self) -> float | None:
        """Published seconds of a step."""
        found = self.given.get("measured", {})
        if "tokens" not in found:
            return found.get("seconds")
        return self.job.global_batch * self.job.seq_len / (self.cluster.size * found["tokens"])


def recipes(part: str = "", file: Path = FILE) -> list[Recipe]:
    """All recipes of a file whose name has this part."""
    every = yaml.safe_load(file.read_text())
    return [_recipe(name, given) for name, given in every.items() if part in name]


def _recipe(name: str, given: Mapping[str, Any]) -> Recipe:
    job = dict(given["job"])
    model, cluster = nest.load_model(job.pop("model")), nest.load_cluster(
        job.pop("cluster"), devices=job.pop("devices"))
    if "layers" in job:
        model = model.replace(layers=job.pop("layers"))
    if "device" in job:
        cluster = cluster.replace(device=job.pop("device"))
    described = Job(**job)
    software = described.stack.replace(**given.get("software", {}))
    return Recipe(name, given, model, cluster, described.replace(stack=software))


def planned(recipe: Recipe, beyond_stack: bool) -> Plan | None:
    """NEST's plan with the recipe's software; None: nothing was found in time."""
    job = recipe.job.replace(stack=recipe.job.stack.replace(choices={}))
    try:
        return nest.plan(recipe.model, recipe.cluster, job, beyond_stack=beyond_stack,
                         time_limit=SECONDS if beyond_stack else None)
    except LimitError:
        return None


def row(recipe: Recipe) -> tuple[tuple[str, ...], str | None]:
    """The line of the table, and the note below it if the gain has a reason."""
    started = time.perf_counter()
    price, measured = recipe.price, recipe.measured
    own, every = planned(recipe, False), planned(recipe, True)
    assert own is not None
    more = 1.0 if every is None else max(1.0, own.step_time_s / every.step_time_s)
    proven = "" if every is not None and every.optimal else "*"
    gain = price.step_time_s / own.step_time_s - 1.0
    cells = (recipe.name, seconds(measured), shown(price), seconds(own.step_time_s), f"{gain:+.1%}",
             "" if measured is None else f"{measured / own.step_time_s - 1.0:+.1%}",
             f"{more - 1.0:+.1%}{proven}")
    print(f"{recipe.name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    before, behind = remarks(recipe)
    note = f"{before}{shape(price)} -> {shape(own)}.{behind}" if "reason" in recipe.given else None
    return cells, note


def remarks(recipe: Recipe) -> tuple[str, str]:
    """What is said of a recipe with a reason, before and behind the degrees."""
    given = recipe.given
    note = f" Not priced: {given['note']}." if "note" in given else ""
    return f"- {recipe.name}: ", f"{note} {given.get('reason', '')}"


def seconds(step: float | None) -> str:
    """Seconds of a step; nothing where they are not known."""
    return "" if step is None else f"{step:.4g}"


def shown(price: Plan) -> str:
    """Seconds of a recipe, and whether it does not fit by NEST's figures."""
    return f"{seconds(price.step_time_s)}{'' if price.feasible else '†'}"


def shape(plan: Plan) -> str:
    """The degrees of identical stages, without those of 1, micro-batch 1 and recompute none."""
    way = plan.configuration
    stage = way.stages[0]
    dense = plan.inputs.model is not None and plan.inputs.model.moe is None
    found = {"tp": stage.tp, "cp": stage.cp, "pp": way.pp, "vpp": way.vpp, "ep": stage.ep,
             "etp": 1 if dense else stage.etp, "zero": stage.zero}
    schedule = "" if way.schedule in ("1f1b", "interleaved") else f", {way.schedule}"
    modules = "+".join(stage.recompute_modules)
    layers = f" of {stage.recompute_layers} layers" if stage.recompute_layers else ""
    parts = [" ".join(f"{name} {value}" for name, value in found.items()
                      if value != 1 or name == "zero")]
    samples = way.micro_batch // stage.dp_in
    parts += [f"micro-batch {samples}"] * (samples != 1)
    if stage.recompute != "none":
        parts.append(f"recompute {modules or stage.recompute}{layers}")
    return f"{', '.join(parts)}{schedule}"


def main() -> None:
    rows = [row(recipe) for recipe in recipes(sys.argv[1] if sys.argv[1:] else "")]
    print(aligned([HEAD, *(cells for cells, _ in rows)]))
    print("\n" + "\n".join(text for _, text in rows if text))


if __name__ == "__main__":
    main()
