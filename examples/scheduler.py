"""A scheduler's loop: nodes fail and return, and a job goes on with the best plan for the rest.

    python examples/scheduler.py fail:node3 fail:node9 return:node3

NEST plans llama3-8b on 64 devices here; `replan` is `nest.replan`, or that of a server's client.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import nest

GIB = 2**30


@dataclass
class Training:
    """A job on a cluster of which parts fail and return."""

    cluster: nest.Cluster
    plan: nest.Plan
    """What runs, or ran last."""
    replan: Callable[..., nest.Replan] = nest.replan
    lost: set[str] = field(default_factory=set)
    waits: bool = False
    """Nothing fits on what is left."""

    def change(self, event: str) -> nest.Replan | None:
        """Note that a part fails (``fail:node3``) or returns; the next plan, or None: wait."""
        what, _, part = event.partition(":")
        if what not in ("fail", "return"):
            raise nest.InputError(f"event: got {event!r}; allowed: fail:PART or return:PART")
        wanted = self.lost | {part} if what == "fail" else self.lost - {part}
        try:
            found = self.replan(self.plan, sorted(wanted), cluster=self.cluster)
        except (nest.InfeasibleError, nest.LimitError):
            self.lost, self.waits = wanted, True
            return None
        self.lost, self.waits, self.plan = wanted, False, found.plan
        return found


def follow(training: Training, events: Iterable[str]) -> None:
    """Print what each event leads to."""
    for event in events:
        found = training.change(event)
        if found is None:
            print(f"{event}: nothing fits on what is left; waiting")
            continue
        moves = found.moves
        restart = moves.lost_parameters_bytes + moves.lost_optimizer_bytes > 0
        print(f"{event}: {found.plan.parallelism.devices_used} devices, "
              f"{found.plan.step_time_s:.2f} s a step, {moves.total_bytes / GIB:.0f} GiB move"
              f"{', from a checkpoint' if restart else ''}")


def main() -> None:
    """Plan for all nodes, then follow the events given."""
    cluster = nest.load_cluster("h100-spine-leaf", devices=64)
    job = nest.Job(global_batch=512, seq_len=4096)
    plan = nest.plan(nest.load_model("llama3-8b"), cluster, job)
    print(f"start: {plan.parallelism.devices_used} devices, {plan.step_time_s:.2f} s a step")
    follow(Training(cluster, plan), sys.argv[1:])


if __name__ == "__main__":
    main()
