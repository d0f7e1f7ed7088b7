"""Seconds of the next plan after losses: python bench/replan.py [--devices N].

Each is asked once, for a network that was not seen before, with the kernels loaded. Processor
seconds say what a busy machine hides; the threads of a search add up in them.
"""

from __future__ import annotations

import argparse
import time

import nest

LOSSES = {"h100-spine-leaf": ("node17", "node1,node50", "leaf3"),
          "dgx-h100": ("nvlink17", "nvlink1,nvlink50")}
MODELS = {"llama3-8b": 4096, "llama3-70b": 4096, "llama3.1-405b": 8192, "deepseek-v3": 4096}
LINKS = "spine-leaf:leaves=16,per_leaf=64,node=8"


def seconds(plan: nest.Plan, lost: str, beyond: bool) -> tuple[str, nest.Plan]:
    """Seconds and processor seconds of one replan, and the plan found."""
    started, busy = time.perf_counter(), time.process_time()
    found = nest.replan(plan, lost, beyond_stack=beyond)
    took = f"{time.perf_counter() - started:6.2f} ({time.process_time() - busy:6.2f}) s"
    return took, found.plan


def main() -> None:
    """Print a line for each model, cluster and loss."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1024)
    count = parser.parse_args().devices
    clusters = {name: nest.load_cluster(name, devices=count) for name in LOSSES}
    clusters["links"] = nest.load_network(LINKS, without="node1").replace(name="links")
    print("model           cluster          without           left  stack's own       everything")
    for model, sequence in MODELS.items():
        for name, cluster in clusters.items():
            job = nest.Job(global_batch=4096, seq_len=sequence)
            plan = nest.plan(nest.load_model(model), cluster, job)
            nest.replan(plan, "nvlink9" if name == "dgx-h100" else "node9")  # loads the kernels
            for lost in LOSSES.get(name, ("node2", "node2,node40")):
                own, after = seconds(plan, lost, False)
                whole, _ = seconds(plan, lost, True)
                print(f"{model:15} {name:16} {lost:16} {after.inputs.cluster.size:5}  {own}  "
                      f"{whole}", flush=True)


if __name__ == "__main__":
    main()
