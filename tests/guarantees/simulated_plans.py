"""Varied plans to simulate, priced by ``evaluate``; the same seed gives the same plans."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import count
from random import Random
from typing import Any, NamedTuple

import nest
from nest.errors import InputError
from nest.evaluation.evaluate import chain_of
from nest.evaluation.even import even_configuration
from nest.evaluation.plans import Plan
from nest.inputs.loading import load_stack

MODELS = ("gpt2-xl", "llama3-8b", "llama3-70b", "mixtral-8x7b", "bert-large", "opt-30b",
          "qwen3-30b-a3b", "llama2-7b", "small")
CLUSTERS = ("h100-spine-leaf", "dgx-a100", "dgx-h100", "gb200-nvl64", "dgx-b200", "slow")
SMALL = {"name": "small", "layers": 12, "hidden": 1024, "heads": 16, "ffn": 4096, "gated": True,
         "vocab": 32000, "tied_embeddings": True, "norm": "rmsnorm", "bias": False}
SLOW = {
    "name": "slow", "device": "a100-sxm-80gb",
    "levels": [
        {"name": "node", "size": 4, "bandwidth": "50 GB/s", "latency": "5 us"},
        {"name": "rack", "size": 4, "bandwidth": "2 GB/s", "latency": "20 us"},
        {"name": "hall", "size": "n", "oversubscription": 4, "latency": "50 us"},
    ],
    "default_devices": 16,
}
EVEN = 0.10
"""Stages that differ by less are even."""


class Case(NamedTuple):
    """A plan and the family that its error is counted in."""

    plan: Plan
    schedule: str
    even: bool
    zero: int

    @property
    def family(self) -> str:
        return f"{self.schedule:11} {'even' if self.even else 'uneven':6} ZeRO-{self.zero}"


def spread(plan: Plan) -> float:
    """How much longer the slowest stage takes for a micro-batch than the fastest one."""
    times = [s.time_s.total - s.time_s.handover for s in plan.stages]
    return max(times) / min(times) - 1.0


@cache
def model(name: str) -> nest.Model:
    return nest.Model.parse(SMALL) if name == "small" else nest.load_model(name)


@cache
def cluster(name: str, devices: int) -> nest.Cluster:
    if name == "slow":
        return nest.Cluster.parse(SLOW).with_devices(devices)
    return nest.load_cluster(name, devices=devices)


def draw(rng: Random) -> Plan | None:
    """One random plan; None where what was drawn does not go together."""
    devices = rng.choice((8, 16, 32, 64, 128))
    subject = model(rng.choice(MODELS))
    schedule = rng.choice(("1f1b", "1f1b", "interleaved", "gpipe"))
    pp = rng.choice((1, 2, 4, 8, 16) if schedule == "1f1b" else (2, 4, 8))
    wanted: dict[str, Any] = {
        "pp": pp, "tp": rng.choice((1, 1, 2, 4, 8)), "mbs": rng.choice((1, 1, 2, 4)),
        "dp_in": rng.choice((1, 1, 2, 4)), "zero": rng.choice((0, 0, 1, 1, 2, 3)),
        "shard": rng.choice(("dp", "dp", "dp_in")),
        "recompute": rng.choice(("none", "none", "selective", "full")), "schedule": schedule,
        "vpp": rng.choice((2, 3, 4)) if schedule == "interleaved" else 1,
    }
    if wanted["recompute"] == "full" and rng.random() < 0.5:
        wanted["recompute_layers"] = rng.choice((1, 2, 3))
    where = cluster(rng.choice(CLUSTERS), devices)
    try:
        stack = load_stack(rng.choice(("megatron-core", "megatron-core", "fsdp", "megatron-2021")))
        way = even_configuration(
            subject, where, nest.Job(global_batch=1, seq_len=128), **wanted)
        m = rng.choice((1, 2, 3, 5, 8, 16, 40, 128)) if way.vpp == 1 else pp * rng.choice((1, 2, 6))
        job = nest.Job(global_batch=m * way.outer_dp * way.micro_batch,
                       seq_len=rng.choice((512, 1024, 2048)), stack=stack)
        if way.vpp == 1 and pp > 1 and rng.random() < 0.75:
            way = balanced(way, subject, where, job, rng)
        return nest.evaluate(subject, where, job, way)
    except InputError:
        return None


def balanced(
    way: nest.Configuration, subject: nest.Model, where: nest.Cluster, job: nest.Job, rng: Random
) -> nest.Configuration:
    """Cuts moved from the slow stages to the fast ones; or, at times, anywhere."""
    if rng.random() < 0.3:
        length = len(chain_of(subject))
        return cut_at(way, sorted(rng.sample(range(1, length), way.pp - 1)), length)
    best, value = way, spread(nest.evaluate(subject, where, job, way))
    for _ in range(4):
        plan = nest.evaluate(subject, where, job, best)
        times = [s.time_s.total - s.time_s.handover for s in plan.stages]
        slow = max(range(way.pp), key=lambda s: times[s])
        fast = min(range(way.pp), key=lambda s: times[s])
        step = 1 if fast > slow else -1
        cuts = [s.layers[1] for s in best.stages[:-1]]
        for s in range(slow, fast, step):
            cuts[s if step > 0 else s - 1] -= step
        if sorted(set(cuts)) != cuts or cuts[0] < 1 or cuts[-1] >= best.stages[-1].layers[1]:
            break
        tried = cut_at(best, cuts, best.stages[-1].layers[1])
        now = spread(nest.evaluate(subject, where, job, tried))
        if now >= value:
            break
        best, value = tried, now
    return best


def cut_at(way: nest.Configuration, cuts: list[int], length: int) -> nest.Configuration:
    """A configuration with its layers cut elsewhere."""
    bounds = [0, *cuts, length]
    stages = []
    for number, stage in enumerate(way.stages):
        data = stage.model_dump(exclude={"chunks"})
        data["layers"] = (bounds[number], bounds[number + 1])
        stages.append(nest.StageConfiguration(**data))
    return way.model_copy(update={"stages": tuple(stages)})


def cases(seed: int, wanted: int) -> Iterator[Case]:
    """So many plans."""
    found = 0
    for number in count():
        if found == wanted:
            return
        plan = draw(Random(f"simulated plan {seed} {number}"))
        if plan is not None:
            found += 1
            yield Case(plan, plan.parallelism.schedule, spread(plan) < EVEN, plan.stages[0].zero)
