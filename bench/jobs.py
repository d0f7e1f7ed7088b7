"""Print NEST's plans for fifteen jobs, in their stacks' own spaces and beyond, as Markdown.

    python bench/jobs.py [SUBSTRING] > table.md

The jobs are in bench/jobs.yaml, docs/jobs.md explains the columns. Progress goes to standard error.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from cases import aligned
from recipes import Recipe, planned, recipes, seconds, shape

import nest
from nest.errors import UnsupportedError
from nest.evaluation.plans import Plan
from nest.frameworks.megatron.write import RULES, SOFTWARE

FILE = Path(__file__).with_name("jobs.yaml")
SMALL = 0.01
"""Gain of everything below which nothing is said of it."""
HEAD = ("job", "stack", "plan that can be launched", "step, s", "launch", "beyond the stack")


def jobs(part: str = "") -> list[Recipe]:
    """All jobs whose name has this part; they have no degrees of their own."""
    return recipes(part, FILE)


def launch(plan: Plan) -> str:
    """How it was checked that a plan can be launched: exported, or by the stack's rules."""
    known = plan.inputs.job.stack.capabilities
    assert known is not None
    if known.software in SOFTWARE and known.version == RULES:
        try:
            return f"exported, {' + '.join(nest.export(plan, 'megatron'))}"
        except UnsupportedError as error:
            return f"not exported: {error}"
    return "rules" if plan.runnable else "no"


def row(job: Recipe) -> tuple[tuple[str, ...], str]:
    """The line of the table, and what is said of the job below it."""
    started = time.perf_counter()
    own, every = planned(job, False), planned(job, True)
    assert own is not None
    gain = 0.0 if every is None else max(0.0, own.step_time_s / every.step_time_s - 1.0)
    proven = "" if every is not None and every.optimal else "*"
    cells = (job.name, job.job.stack.name, shape(own), seconds(own.step_time_s), launch(own),
             f"{gain:+.1%}{proven}")
    print(f"{job.name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    faster = f" Faster: {shape(every)}." if every is not None and gain > SMALL else ""
    before, behind = remark(job)
    return cells, f"{before}{faster}{behind}"


def remark(job: Recipe) -> tuple[str, str]:
    """What is said of a job before and behind the faster plan."""
    why = f" {job.given['reason']}" if "reason" in job.given else ""
    return f"- {job.name}: {job.given['batch']}.", why


def main() -> None:
    rows = [row(job) for job in jobs(sys.argv[1] if sys.argv[1:] else "")]
    print(aligned([HEAD, *(cells for cells, _ in rows)], 3))
    print("\n" + "\n".join(text for _, text in rows))


if __name__ == "__main__":
    main()
