"""Print search seconds, cells and peak memory of every case as a Markdown table.

    python bench/table.py [SUBSTRING]

Each case runs in a process of its own, so that its peak memory is its own; the search runs once to
warm up and three times to be timed, the median counts.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from cases import CASES, Case


def measure(case: Case) -> dict[str, float]:
    """Figures of one case, in this process."""
    import resource

    from nest.describe import SearchSpace
    from nest.evaluation import chain_of
    from nest.search import search

    model, cluster, job = case.question()
    chain = chain_of(model)
    runs = [search(chain, cluster, job, SearchSpace()) for _ in range(4)]
    return {
        "seconds": statistics.median(run.seconds for run in runs[1:]),
        "solved": runs[0].solved,
        "cells": runs[0].cells,
        "labels": runs[0].labels,
        "step": runs[0].step_time,
        "threads": runs[0].threads,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    if sys.argv[1:2] == ["--case"]:
        chosen = next(case for case in CASES if str(case) == sys.argv[2])
        print(json.dumps(measure(chosen)))
        return
    print("| model | cluster | devices | search s | outer choices | cells | labels | peak MiB "
          "| step s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in CASES:
        if sys.argv[1:] and sys.argv[1] not in str(case):
            continue
        run = subprocess.run([sys.executable, __file__, "--case", str(case)], check=True,
                             capture_output=True, text=True)
        got = json.loads(run.stdout)
        step = f"{got['step']:.4g}" if got["step"] < float("inf") else "does not fit"
        print(f"| {case.model} | {case.cluster} | {case.devices} | {got['seconds']:.2f} "
              f"| {got['solved']:,} | {got['cells']:,} | {got['labels']:,} "
              f"| {got['peak_mib']:.0f} | {step} |", flush=True)


if __name__ == "__main__":
    main()
