"""A few steps of a tiny transformer by exported files, and without them. Run by the frameworks'
Python as the program of an exported `launch.sh`, on CPUs.

``TRAINED``: a file that the first rank writes: losses by name, those of the whole model as "whole".
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import distributed

STEPS = 6
VOCAB, WIDTH, LAYERS, HEADS, KV_HEADS = 512, 64, 2, 4, 2
RATE = 0.003


def model(width: int = WIDTH, layers: int = LAYERS, kv_heads: int = KV_HEADS) -> Any:
    """A Llama of transformers, with the same weights each time."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=HEADS, num_key_value_heads=kv_heads, tie_word_embeddings=False,
        use_cache=False))


def tokens(samples: int, length: int) -> torch.Tensor:
    """The samples of all steps, the same in each."""
    return torch.randint(VOCAB, (samples, length), generator=torch.Generator().manual_seed(2))


def loss_of(logits: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """Mean over the tokens of a batch."""
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].reshape(-1, VOCAB), batch[:, 1:].reshape(-1))


def optimizer_of(parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The same for all."""
    return torch.optim.AdamW(parameters, lr=RATE)


def trained(network: Any, batches: list[torch.Tensor], norm: float = 0.0) -> list[float]:
    """The loss of each step of PyTorch's own; ``batches``: the micro-batches of a rank.

    ``norm``: of the gradients, at most; 0: any.
    """
    optimizer, found = optimizer_of(network.parameters()), []
    for _ in range(STEPS):
        total = torch.zeros(())
        for batch in batches:
            loss = loss_of(network(batch).logits, batch) / len(batches)
            loss.backward()
            total += loss.detach()
        if norm:
            torch.nn.utils.clip_grad_norm_(network.parameters(), norm)
        optimizer.step()
        optimizer.zero_grad()
        found.append(mean(total))
    return found


def mean(loss: torch.Tensor) -> float:
    """Over all ranks: those that divide a sample have the same loss."""
    distributed.all_reduce(loss)
    return float(loss) / distributed.get_world_size()


def share(batch: torch.Tensor, rank: int, ranks: int, micro_batch: int) -> list[torch.Tensor]:
    """The micro-batches of a data-parallel rank."""
    return list(batch.chunk(ranks)[rank].split(micro_batch))


def main(train: Callable[[dict[str, list[float]]], None]) -> None:
    """Train as ``train`` does, and write the losses."""
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {}
    train(found)
    if distributed.get_rank() == 0:
        with open(os.environ["TRAINED"], "w", encoding="utf-8") as stream:
            json.dump(found, stream)
    distributed.destroy_process_group()
