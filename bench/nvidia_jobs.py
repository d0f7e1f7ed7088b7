"""Print NVIDIA's published jobs of three models beside NEST's default plans for them.

    python bench/nvidia_jobs.py [SUBSTRING] > table.txt

One line a job: published seconds of a step (the newest release's), NEST's price of that run with
the range that it states, and the plan that `nest plan` finds with the run's stack and nothing else
given. It ends with 1 if a plan is slower than the price of the run; *: but for runs that leave less
memory free than a plan has to. docs/recipes.md has the table.
Progress goes to standard error.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import nest
from nest.errors import NestError
from nest.evaluation.plans import Plan
from nest.inputs.job import default_margin
from nest.inputs.loading import load_stack
from nest.measured import validation
from nest.measured.validation.runs import Run
from nest.measured.validation.translate import RunQuestion, facts

FILES = [Path(__file__).with_name(name) for name in ("larger_runs.csv", "newer_runs.csv")]
MODELS = re.compile(r"deepseek|qwen.*235|llama.*405", re.IGNORECASE)
DEVICES = ("gb200", "gb300", "b200", "h100")
HEAD = ("job", "published, s", "price, s", "range, s", "in it", "plan, s", "faster by",
        "software of the plan")


class PublishedJob(NamedTuple):
    """A job, and the run of the newest release that did it."""

    run: Run
    asked: RunQuestion

    @property
    def name(self) -> str:
        """Model, devices, format and batch."""
        job, cluster = self.asked.job, self.asked.cluster
        return (f"{self.asked.model.name} on {cluster.size:,} {cluster.device.name}, "
                f"{job.precision}, {job.global_batch:,} x {job.seq_len:,}")

    @property
    def price(self) -> Plan:
        """The run, priced."""
        return nest.evaluate(*self.asked)

    @property
    def keeps_margin(self) -> bool:
        """Whether the run leaves as much memory free as a plan has to, by NEST's count."""
        job = self.asked.job.replace(memory_margin=default_margin(self.asked.job.stack))
        return nest.evaluate(*self.asked._replace(job=job)).feasible

    def plan(self) -> Plan:
        """What `nest plan` answers with the run's stack."""
        stack = load_stack(facts(self.run).stack)
        job = self.asked.job.replace(stack=stack, memory_margin=default_margin(stack))
        return nest.plan(self.asked.model, self.asked.cluster, job)


def jobs(part: str = "") -> list[PublishedJob]:
    """All jobs whose name has this part; of several runs of one, that of the newest release."""
    found: dict[str, PublishedJob] = {}
    for run in (run for file in FILES for run in validation.read(file)):
        if not MODELS.search(run.model) or run.measured_s is None:
            continue
        try:
            one = PublishedJob(run, validation.question(run))
        except NestError:
            continue
        if one.asked.cluster.device.name.startswith(DEVICES) and part in one.name and (
                one.name not in found or _release(run) > _release(found[one.name].run)):
            found[one.name] = one
    return [*found.values()]


def _release(run: Run) -> tuple[int, ...]:
    """The version that the name of the framework has: 26.04.01 is (26, 4, 1)."""
    found = re.findall(r"\d+(?:\.\d+)+", run.framework)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def rows(part: str = "") -> Iterator[tuple[tuple[str, ...], bool]]:
    """Lines of the table, and whether the plan is no slower than the run is priced."""
    for one in jobs(part):
        started, priced = time.perf_counter(), one.price
        plan, known = one.plan(), priced.confidence
        measured = one.run.measured_s or 0.0
        inside = known is not None and known.low_s <= measured <= known.high_s
        margin = one.keeps_margin
        print(f"{one.name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        yield (
            one.name, f"{measured:.4g}", f"{priced.step_time_s:.4g}{'' if margin else '*'}",
            "-" if known is None else f"{known.low_s:.4g} to {known.high_s:.4g}",
            "yes" if inside else "no", f"{plan.step_time_s:.4g}",
            f"{priced.step_time_s / plan.step_time_s - 1.0:+.1%}",
            ", ".join(f"{name} {value}" for name, value in plan.configuration.choices.items())
            or "-"), not margin or plan.step_time_s <= priced.step_time_s * (1.0 + 1e-9)


def main() -> int:
    """Print the table; the exit code."""
    found = [*rows(*sys.argv[1:2])]
    table = [HEAD, *(row for row, _ in found)]
    widths = [max(len(row[n]) for row in table) for n in range(len(HEAD))]
    for row in table:
        print("  ".join([row[0].ljust(widths[0]), *(
            cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)),
            row[-1]]))
    held = sum(row[4] == "yes" for row, _ in found)
    print(f"\n{held} of {len(found)} in range; {sum(ok for _, ok in found)} of {len(found)} plans "
          "no slower than the run's price, or the run keeps no margin (*)")
    return 0 if all(ok for _, ok in found) else 1


if __name__ == "__main__":
    sys.exit(main())
