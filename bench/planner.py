"""Processor seconds of near questions: the leaf's bandwidth swept, in the stack's own space.

    python bench/planner.py [POINTS]           asked of nest.plan, and of a planner that keeps
    python bench/planner.py [POINTS] profile   and where the time of the planner goes

The questions come as a sweep asks them: the highest bandwidth first. Seconds are those of one
processor, in one thread, so that other work on the machine counts little; plans/s are for 2 cores.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import time

import nest
from nest.search import compiled

CORES = 2
CASES = {
    "llama3-8b, 256 devices": ("llama3-8b", 256, False, 20.0),
    "llama3-70b, 1,024 devices": ("llama3-70b", 1024, False, 6.0),
}
"""Model, devices, beyond the stack, plans a second wanted."""
LOW, HIGH = 12.5e9, 200e9
"""Bytes/s of the leaf."""
START = 2
"""Questions after which a planner knows the others' surroundings."""


def clusters(devices: int, points: int) -> list[nest.Cluster]:
    base = nest.load_cluster("dgx-h100", devices=devices)
    found = []
    for n in range(points):
        rate = HIGH - (HIGH - LOW) * n / (points - 1)
        found.append(base.replace(levels=[
            level.replace(bandwidth=rate) if level.name == "leaf" else level
            for level in base.levels]))
    return found


def seconds(ask, model: nest.Model, where: list[nest.Cluster], job: nest.Job,
            beyond: bool) -> list[float]:
    """Processor seconds of each question."""
    found = []
    for cluster in where:
        started = time.process_time()
        ask(model, cluster, job, beyond_stack=beyond, threads=1)
        found.append(time.process_time() - started)
    return found


def main(points: int, profiled: bool) -> None:
    compiled.load()
    for name, (model_name, devices, beyond, wanted) in CASES.items():
        model = nest.load_model(model_name)
        job = nest.Job(global_batch=4 * devices, seq_len=4096)
        where = clusters(devices, points)
        nest.plan(model, where[0], job, beyond_stack=beyond, threads=1)
        planner, profile = nest.Planner(), cProfile.Profile()
        cold = seconds(nest.plan, model, where[:5], job, beyond)
        first = seconds(planner.plan, model, where[:START], job, beyond)
        if profiled:
            profile.enable()
        later = seconds(planner.plan, model, where[START:], job, beyond)
        profile.disable()
        each, alone = sum(later) / len(later), sum(cold) / len(cold)
        whole = (sum(first) + sum(later)) / points
        print(f"{name}: {alone:.3f} s of a processor alone; kept {first[0]:.3f}, {first[1]:.3f}, "
              f"then {each:.3f} ({CORES / each:.1f} plans/s on {CORES} cores; {CORES / whole:.1f} "
              f"with the first ones; wanted {wanted:g}); {planner.held / 2**20:.1f} MiB kept",
              flush=True)
        if profiled:
            pstats.Stats(profile).sort_stats("cumulative").print_stats(25)


if __name__ == "__main__":
    main(next((int(word) for word in sys.argv[1:] if word.isdigit()), 40),
         "profile" in sys.argv)
