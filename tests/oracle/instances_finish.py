"""Random pipelines of which gradients and optimizer, not the last backward, end the step.

Slow links, layers that differ a thousandfold in parameters, and often a slow first layer: what
later stages still have to reduce, and when they can begin, decides between plans.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from instances import Instance, bounded

from nest.inputs import Cluster, Job, Profile
from nest.model import profile_chain


def _between(rng: Random, low: float, high: float) -> float:
    return float(10 ** rng.uniform(low, high))


def _layer(rng: Random, number: int, slow: int) -> dict[str, Any]:
    forward = slow * _between(rng, -4, -2.7)
    backward = forward * rng.uniform(0.5, 3)
    held = _between(rng, 5, 9) * rng.choice((0.01, 1, 1))
    kept = _between(rng, 6, 8)
    return {
        "name": f"layer {number}",
        "output_bytes": _between(rng, 4, 7),
        "tp": {
            d: {
                "forward": forward / d ** rng.uniform(0.3, 1),
                "backward": backward / d ** rng.uniform(0.3, 1),
                "parameter_bytes": held / d,
                "activation_bytes": kept / d,
            }
            for d in (1, 2)
        },
    }


@cache
def finish_instance(seed: int) -> Instance:
    """Instance number ``seed``, small enough for the oracle."""
    rng = Random(f"finish {seed}")
    slow = rng.choice((1, 1, 4, 8))
    layers = [_layer(rng, n, slow if n == 0 else 1) for n in range(rng.choice((4, 5, 6, 7)))]
    profile = Profile(name="long finish", layers=layers)
    inner, outer = rng.choice((1e10, 1e11)), _between(rng, 9.5, 10.5)
    cluster = Cluster(
        name="slow links",
        device={"name": "d", "memory": _between(rng, 9.3, 11), "memory_bandwidth": 2e12,
                "peak_flops": {"bf16": 1e14}, "launch_overhead": 1e-6},
        levels=[{"name": "pair", "size": 2, "bandwidth": inner, "latency": 1e-6},
                {"name": "all", "size": rng.choice((2, 3, 4)), "bandwidth": outer,
                 "latency": 1e-6}],
    )
    stack = {"base": "vtrain", "overlap_grad_reduce": rng.choice((0, 0.5)),
             "zero_with_pipeline": (0, 1)}
    job = Job(global_batch=rng.choice((4, 6, 8, 12, 16, 24)), seq_len=8, stack=stack)
    bounds: dict[str, Any] = {
        "pp": "3,4", "zero": rng.choice(("0", "0,1")), "outer_dp": rng.choice((1, 2)),
        "recompute": rng.choice(("none", "none,full")),
        "recompute_layers": rng.choice(("9", "1,9", "2")),
        "schedule": rng.choice(("1f1b", "1f1b", "1f1b", "gpipe")),
    }
    chain = profile_chain(profile)
    space = bounded(rng, chain, cluster, job, bounds, 10 ** rng.uniform(4, 5), ())
    return Instance(seed, "finish", profile, chain, cluster, job, space)
