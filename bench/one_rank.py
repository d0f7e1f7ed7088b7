"""Train one rank of a torchtitan job on the GPU of this machine: bytes and seconds of a plan that
needs hundreds of GPUs.

    nest export plan.json --to torchtitan-toml -o launch
    python bench/one_rank.py launch/plan.toml --rank 48 --ranks 64 [options of torchtitan]

Needs torchtitan 0.2.2 with PyTorch 2.11 or newer, and nothing of NEST. All runs as on that rank,
but for collectives: a process group of its own copies what the rank would get if all ranks had the
same data, so that kernels compute finite numbers, and messages arrive at once as random numbers.
Tokens are random, and experts get as many each. Prints one line of JSON: seconds of each step, and
the most bytes that PyTorch had allocated and reserved.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

GIB = 2**30


class Done(dist.Work):
    """A collective that is over."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.result_: Future[list[torch.Tensor]] = Future()
        self.result_.set_result(tensors)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        return self.result_


class Quiet(dist.ProcessGroup):
    """One rank of a group in which all others have the same data."""

    def __init__(self, rank: int, ranks: int) -> None:
        super().__init__(rank, ranks)
        self.own, self.ranks = rank, ranks

    def size(self) -> int:
        return self.ranks

    def getBackendName(self) -> str:  # noqa: N802
        return "quiet"

    @property
    def group_name(self) -> str:
        return str(dist.distributed_c10d._world.pg_names[self])

    def allreduce(self, tensors: Any, opts: Any = None) -> Done:
        return Done(tensors)

    allreduce_coalesced = broadcast = allreduce

    def send(self, tensors: Any, target: int, tag: int = 0) -> Done:
        return Done(tensors)

    def barrier(self, opts: Any = None) -> Done:
        return Done([])

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Done:
        with torch.no_grad():
            for one in tensors:
                one.normal_()
        return Done(tensors)

    def _allgather_base(self, out: Any, own: Any, opts: Any = None) -> Done:
        out.view(self.ranks, -1).copy_(own.reshape(1, -1).expand(self.ranks, -1))
        return Done([out])

    def _reduce_scatter_base(self, out: Any, whole: Any, opts: Any = None) -> Done:
        out.view(-1).copy_(whole.reshape(self.ranks, -1)[self.own])
        return Done([out])

    def allgather(self, outs: Any, owns: Any, opts: Any = None) -> Done:
        for parts, own in zip(outs, owns, strict=True):
            for one in parts:
                one.copy_(own)
        return Done(outs)

    def reduce_scatter(self, outs: Any, wholes: Any, opts: Any = None) -> Done:
        for out, parts in zip(outs, wholes, strict=True):
            out.copy_(parts[self.own])
        return Done(outs)

    def allgather_into_tensor_coalesced(self, outs: Any, owns: Any, opts: Any = None) -> Done:
        for out, own in zip(outs, owns, strict=True):
            self._allgather_base(out, own)
        return Done(outs)

    def reduce_scatter_tensor_coalesced(self, outs: Any, wholes: Any, opts: Any = None) -> Done:
        for out, whole in zip(outs, wholes, strict=True):
            self._reduce_scatter_base(out, whole)
        return Done(outs)

    def alltoall_base(self, out: Any, own: Any, there: Any, here: Any, opts: Any = None) -> Done:
        rows = min(out.shape[0], own.shape[0])
        out[:rows].copy_(own[:rows])
        out[rows:].zero_()
        return Done([out])


def trainer_of(toml: str, options: list[str]) -> Any:
    """torchtitan's trainer, on random tokens."""
    from torchtitan import train
    from torchtitan.config import ConfigManager
    from torchtitan.protocols import train_spec

    config = ConfigManager().parse_args(["--job.config_file", toml, *options])
    config.debug.moe_force_load_balance = True
    spec = train_spec.get_train_spec(config.model.name)
    model, wanted, split = spec.model_args[config.model.flavor], config.training, config.parallelism
    if hasattr(model, "attn_type"):  # others need a tokenizer
        model.attn_type, model.attn_mask_type = "sdpa", "causal"

    class Tokens:
        def __init__(self, **_: Any) -> None:
            pass

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, _: Any) -> None:
            pass

        def __iter__(self) -> Iterator[Any]:
            while True:
                drawn = torch.randint(model.vocab_size, (wanted.local_batch_size,
                                                         wanted.seq_len + 1))
                yield {"input": drawn[:, :-1].contiguous()}, drawn[:, 1:].contiguous()

    def shape(objects: list[Any], **_: Any) -> None:
        """What the stage before would say that it sends."""
        tokens = wanted.seq_len // split.tensor_parallel_degree // split.context_parallel_degree
        objects[0] = (torch.empty(split.pipeline_parallel_microbatch_size, tokens, model.dim,
                                  dtype=torch.bfloat16, device="meta"),)

    own = dataclasses.replace(spec, build_dataloader_fn=Tokens, build_tokenizer_fn=None)
    train_spec.get_train_spec = lambda _: own
    dist.recv_object_list = shape
    dist.send_object_list = lambda *_, **__: None
    return train.Trainer(config)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    given.add_argument("toml")
    given.add_argument("--rank", type=int, required=True)
    given.add_argument("--ranks", type=int, required=True)
    given.add_argument("--steps", type=int, default=5)
    asked, options = given.parse_known_args()
    os.environ |= {"RANK": str(asked.rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(asked.ranks)}
    dist.Backend.register_backend(
        "quiet", lambda _, rank, ranks, __: Quiet(rank, ranks), devices=["cpu", "cuda"])
    dist.init_process_group("quiet", rank=asked.rank, world_size=asked.ranks,
                            store=dist.HashStore())
    trainer = trainer_of(asked.toml, ["--training.steps", "1000", "--metrics.log_freq", "1000",
                                        *options])
    batches = trainer.batch_generator(trainer.dataloader)
    first = [next(batches) for _ in range(trainer.gradient_accumulation_steps)]

    def again() -> Iterator[Any]:
        while True:
            yield from ((dict(inputs), labels) for inputs, labels in first)

    feed, seconds = again(), []
    for trainer.step in range(1, asked.steps + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        trainer.train_step(feed)
        torch.cuda.synchronize()
        seconds.append(round(time.perf_counter() - begin, 4))
    peaks = torch.cuda.memory_stats()
    print(json.dumps({
        "rank": asked.rank, "ranks": asked.ranks, "steps": seconds,
        "seconds": statistics.median(seconds[2:] or seconds),
        "allocated_gib": round(peaks["allocated_bytes.all.peak"] / GIB, 3),
        "reserved_gib": round(peaks["reserved_bytes.all.peak"] / GIB, 3)}), flush=True)
    os._exit(0)  # threads of the compiler are not waited for


if __name__ == "__main__":
    main()
