"""The program of an exported DeepSpeed launch; see ``training.py``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import distributed
from training import STEPS, loss_of, main, mean, model, optimizer_of, share, tokens, trained

LENGTH = 32
CLIPPED = 1.0
"""Norm of gradients by default: deepspeed==0.19.8 deepspeed/runtime/constants.py:203."""


def steps_of(given: dict[str, Any]) -> list[float]:
    """The loss of each step of an engine of DeepSpeed."""
    network = model()
    engine, *_ = deepspeed.initialize(
        model=network, optimizer=optimizer_of(network.parameters()), config=given)
    micro_batch = given["train_micro_batch_size_per_gpu"]
    own = share(tokens(given["train_batch_size"], LENGTH), distributed.get_rank(),
                distributed.get_world_size(), micro_batch)
    assert len(own) == given["gradient_accumulation_steps"]
    found = []
    for _ in range(STEPS):
        total = torch.zeros(())
        for batch in own:
            loss = loss_of(engine(batch).logits, batch)
            engine.backward(loss)
            engine.step()
            total += loss.detach() / len(own)
        found.append(mean(total))
    return found


def train(found: dict[str, list[float]]) -> None:
    """The whole model on each rank, then the plan."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int)
    named, _ = deepspeed.add_config_arguments(parser).parse_known_args()
    given = json.loads(Path(named.deepspeed_config).read_text(encoding="utf-8"))
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # minutes of compiling
    deepspeed.init_distributed("gloo")
    found["whole"] = trained(model(), [tokens(given["train_batch_size"], LENGTH)], CLIPPED)
    found["plan"] = steps_of(given)


main(train)
