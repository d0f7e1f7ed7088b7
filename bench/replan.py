"""Seconds of the next plan after losses: python bench/replan.py [--devices N]."""

from __future__ import annotations

import argparse
import time

import nest

LOSSES = {"h100-spine-leaf": ("node17", "node1,node50", "leaf3"),
          "dgx-h100": ("nvlink17", "nvlink1,nvlink50")}
MODELS = {"llama3-8b": 4096, "llama3-70b": 4096, "llama3.1-405b": 8192, "deepseek-v3": 4096}
LINKS = "spine-leaf:leaves=16,per_leaf=64,node=8"


def seconds(plan: nest.Plan, lost: str, beyond: bool) -> tuple[float, nest.Plan]:
    """Of one replan, and the plan found."""
    started = time.perf_counter()
    found = nest.replan(plan, lost, beyond_stack=beyond)
    return time.perf_counter() - started, found.plan


def main() -> None:
    """Print a line for each model, cluster and loss."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1024)
    count = parser.parse_args().devices
    clusters = {name: nest.load_cluster(name, devices=count) for name in LOSSES}
    clusters["links"] = nest.load_network(LINKS, without="node1").replace(name="links")
    print("model           cluster          without           left  stack's own   everything")
    for model, sequence in MODELS.items():
        for name, cluster in clusters.items():
            job = nest.Job(global_batch=4096, seq_len=sequence)
            plan = nest.plan(nest.load_model(model), cluster, job)
            nest.replan(plan, LOSSES.get(name, ("node2",))[0], beyond_stack=True)  # warms
            for lost in LOSSES.get(name, ("node2", "node2,node40")):
                own, after = seconds(plan, lost, False)
                whole, _ = seconds(plan, lost, True)
                print(f"{model:15} {name:16} {lost:16} {after.inputs.cluster.size:5} "
                      f"{own:10.2f} s {whole:10.2f} s", flush=True)


if __name__ == "__main__":
    main()
