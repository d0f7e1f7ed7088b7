"""First picks and memory verdicts in sweeps that others ran, with what they ran out of memory.

    python bench/picks.py RAN.csv OOM.csv

A set is one source_group and, where notes name one, kernel. Its first pick is the fastest by price
of what fits with the default margin of its stack. Verdicts are without a margin, as of runs.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from statistics import fmean
from typing import NamedTuple

import nest
from nest.errors import InputError
from nest.evaluation.plans import Plan
from nest.inputs.job import default_margin
from nest.measured import validation
from nest.measured.learning.observations import variant_of

FEWEST = 3
"""Runs of a set, below which it has no first pick."""


class Tried(NamedTuple):
    """A configuration of a sweep with its price."""

    name: str
    sweep: tuple[str, str]
    plan: Plan
    measured: float | None
    """Seconds; None: it ran out of memory."""

    @property
    def keeps_margin(self) -> bool:
        """Whether it leaves as much memory free as a plan has to."""
        inputs = self.plan.inputs
        kept = default_margin(inputs.job.stack)
        return all(stage.memory_bytes.total <= stage.memory_limit_bytes
                   - kept * inputs.cluster.device_types[
                       inputs.cluster.type_at(stage.devices[0])].memory
                   for stage in self.plan.stages)


def tried(paths: Iterable[str]) -> Iterator[Tried]:
    """All rows that have a price; the others are said on standard error."""
    for run in (run for path in paths for run in validation.read(path)):
        try:
            plan = nest.evaluate(*validation.question(run.configured))
        except InputError as error:
            print(f"{run.run_id}: {error.problems[0]}", file=sys.stderr)
            continue
        yield Tried(run.run_id, (run.group, variant_of(run)), plan, run.measured_s)


def first_picks(found: Iterable[Tried]) -> dict[tuple[str, str], tuple[Tried, float] | None]:
    """Of each set the first pick, and seconds of the fastest run; None: nothing fits."""
    sets: dict[tuple[str, str], list[Tried]] = defaultdict(list)
    for one in found:
        sets[one.sweep].append(one)
    picks: dict[tuple[str, str], tuple[Tried, float] | None] = {}
    for key, every in sorted(sets.items()):
        ran = [one.measured for one in every if one.measured is not None]
        if len(ran) >= FEWEST:
            fit = [one for one in every if one.keeps_margin]
            picks[key] = (min(fit, key=lambda one: one.plan.step_time_s), min(ran)) if fit else None
    return picks


def share(found: Iterable[bool]) -> str:
    """Per cent of those that are true."""
    every = [*found]
    return f"{100 * fmean(every):.1f} % of {len(every)}" if every else "none"


def main() -> None:
    found = [*tried(sys.argv[1:])]
    lost = []
    for (group, kernel), pick in first_picks(found).items():
        said = "nothing fits"
        if pick is not None:
            one, best = pick
            said = f"{one.name}: out of memory"
            if one.measured is not None:
                lost.append(one.measured / best - 1.0)
                said = f"{one.name}: {100 * lost[-1]:.1f} % slower than the fastest"
        print(f"{group:26} {kernel:32} {said}")
    print(f"{len(lost)} of {len(first_picks(found))} first picks run, "
          f"{100 * fmean(lost or [0.0]):.1f} % slower than the fastest in the mean")
    print(f"called infeasible: {share(not o.plan.feasible for o in found if o.measured)} that ran")
    print(f"called feasible: {share(o.plan.feasible for o in found if not o.measured)} that ran "
          "out of memory")


if __name__ == "__main__":
    main()
