"""Steps of samples of many lengths: what of them was never measured."""

from __future__ import annotations

from collections.abc import Iterator

from nest.inputs.configuration import Configuration
from nest.inputs.job import Job


def waiting_doubts(job: Job, plan: Configuration) -> Iterator[str]:
    """What of samples of many lengths was never measured."""
    if not job.uneven:
        return
    # bench/packed_runs.csv, bench/lora_runs.csv
    yield ("prices of packed samples were compared with ten runs of short ones alone: the busiest "
           "replica of samples dealt at random is priced, without sorting or balancing them")
    waits = {"experts exchange tokens": any(stage.ep > 1 for stage in plan.stages),
             "ZeRO-3 gathers": any(stage.zero == 3 for stage in plan.stages),
             "stages work on unlike micro-batches at once": plan.pp > 1}
    if why := [name for name, holds in waits.items() if holds]:
        yield f"waits in each micro-batch ({', '.join(why)}) were compared with drawn samples alone"
