"""The program that `bench/loop.py` starts by exported FSDP2 launches; see ``training.py``.

``MODULES``: the folder of their modules, each of which divides the model and trains it. ``TIMES``:
a file that the first rank writes: by module the seconds of each step, of the slowest rank, and the
loss of the first one. ``WIDTH``, ``LAYERS``: of the model.

Plans are trained one after another in rounds, so that a slow minute of the machine does not fall on
one of them.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from training import HEADS, loss_of, mean, model, optimizer_of, share, tokens

ROUNDS, WARM, STEPS = 2, 1, 2


def timed(network: Any, batches: list[torch.Tensor]) -> tuple[list[float], float]:
    """Seconds of each step behind the first ones, and the loss of the first."""
    optimizer, found, first = optimizer_of(network.parameters()), [], 0.0
    for number in range(WARM + STEPS):
        distributed.barrier()
        begin = time.perf_counter()
        total = torch.zeros(())
        for batch in batches:
            loss = loss_of(network(batch).logits, batch) / len(batches)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        taken = torch.tensor([time.perf_counter() - begin])
        distributed.all_reduce(taken, distributed.ReduceOp.MAX)
        found.append(float(taken))
        first = first if number else mean(total)
    return found[WARM:], first


def main() -> None:
    """Train each plan, and write the times."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    found: dict[str, dict[str, Any]] = {}
    for _ in range(ROUNDS):
        for path in sorted(Path(os.environ["MODULES"]).glob("parallelize_*.py")):
            plan = importlib.import_module(path.stem)
            ranks = plan.mesh("cpu")
            dp = ranks["dp_replicate", "dp_shard"]
            replicas, shards = dp.mesh.shape
            at = dp.get_local_rank("dp_replicate") * shards + dp.get_local_rank("dp_shard")
            batch = tokens(replicas * shards * plan.MICRO_BATCH * plan.MICRO_BATCHES, plan.SEQ_LEN)
            network = model(int(os.environ["WIDTH"]), int(os.environ["LAYERS"]), HEADS)
            plan.parallelize(network, ranks)
            seconds, loss = timed(network, share(batch, at, replicas * shards, plan.MICRO_BATCH))
            row = found.setdefault(path.stem.removeprefix("parallelize_"),
                                   {"seconds": [], "loss": loss})
            row["seconds"] += seconds
    if distributed.get_rank() == 0:
        Path(os.environ["TIMES"]).write_text(json.dumps(found), encoding="utf-8")
    distributed.destroy_process_group()


main()
