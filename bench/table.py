"""Print what the search of each case takes as a Markdown table.

    python bench/table.py [SUBSTRING] [--devices N ...]

Each case runs in processes of its own, so that its peak memory is its own: three, of which the
median counts, or one where the search takes over 5 s. The kernels are loaded before the clock
starts. "again" is the same question in the same process, with a network outside the node that is
a tenth faster.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys

from cases import CASES, DEVICES, Case

from nest.evaluation.evaluate import chain_of
from nest.search import compiled
from nest.search.branch_and_bound import search_one
from nest.search.query import Query
from nest.search.solution import SearchResult

RUNS, LONG = 3, 5.0


def ask(case: Case, faster: float = 1.0) -> SearchResult:
    """Search a case once."""
    model, cluster, job = case.question(faster)
    return search_one(Query(chain_of(model), cluster, job, beyond_stack=True))


def measure(case: Case) -> dict[str, float]:
    """Figures of one case, in this process."""
    compiled.load()
    found = ask(case)
    effort = found.effort
    return {
        "seconds": effort.seconds, "again": ask(case, faster=1.1).effort.seconds,
        "solved": effort.solved, "cells": effort.cells, "labels": effort.labels,
        "transitions": effort.transitions,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "step": found.step_time,
    }


def row(case: Case) -> str:
    """The line of a case."""
    runs: list[dict[str, float]] = []
    while len(runs) < RUNS and (not runs or runs[0]["seconds"] <= LONG):
        command = [sys.executable, __file__, "--case", str(case)]
        runs.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    got = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    step = f"{got['step']:.4g}" if got["step"] < math.inf else "does not fit"
    cells = [
        case.model, case.cluster, f"{case.devices:,}", f"{got['seconds']:.2f}",
        f"{got['again']:.2f}",
        *(f"{got[name]:,.0f}" for name in ("solved", "cells", "labels", "transitions", "peak_mib")),
        step,
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="what the search of each case takes")
    parser.add_argument("substring", nargs="?", default="", help="only cases whose name has it")
    parser.add_argument("--devices", type=int, nargs="+", default=DEVICES, choices=DEVICES)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(measure(next(case for case in CASES if str(case) == given.case))))
        return
    print("| model | cluster | devices | search s | again s | outer choices | cells | labels "
          "| transitions | peak MiB | step s |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for case in CASES:
        if given.substring in str(case) and case.devices in given.devices:
            print(row(case), flush=True)


if __name__ == "__main__":
    main()
