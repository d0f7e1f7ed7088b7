"""The program of exported FSDP2 launches; see ``training.py``.

``MODULES``: the folder of their modules, each of which divides the model and trains it."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from torch import distributed
from training import main, model, share, tokens, trained


def train(found: dict[str, list[float]]) -> None:
    """The whole model on each rank, then each plan."""
    distributed.init_process_group("gloo")
    for path in sorted(Path(os.environ["MODULES"]).glob("parallelize_*.py")):
        plan = importlib.import_module(path.stem)
        ranks = plan.mesh("cpu")
        dp = ranks["dp_replicate", "dp_shard"]
        replicas, shards = dp.mesh.shape
        at = dp.get_local_rank("dp_replicate") * shards + dp.get_local_rank("dp_shard")
        batch = tokens(replicas * shards * plan.MICRO_BATCH * plan.MICRO_BATCHES, plan.SEQ_LEN)
        if "whole" not in found:
            found["whole"] = trained(model(), [batch])
        network = model()
        plan.parallelize(network, ranks)
        found[path.stem] = trained(
            network, share(batch, at, replicas * shards, plan.MICRO_BATCH))


main(train)
