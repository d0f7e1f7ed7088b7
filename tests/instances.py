"""Random small instances whose plans can all be listed; the same seed gives the same instance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from oracle import entries, listed

from nest.describe import Cluster, Job, Model, Profile, SearchSpace
from nest.graph import Chain, build_chain, profile_chain

# Level sizes, innermost first: odd and even, one to four levels, up to 16 devices.
SHAPES: tuple[tuple[int, ...], ...] = (
    (1,), (2,), (3,), (4,), (5,), (7,), (8,), (2, 2), (2, 3), (3, 2), (5, 2), (4, 2), (2, 5),
    (3, 3), (4, 3), (3, 5), (4, 4), (7, 2), (2, 7), (8, 2), (13,), (16,), (1, 6), (6, 1, 2),
    (2, 2, 2), (3, 2, 2), (2, 3, 2), (2, 2, 3), (2, 4, 2), (4, 2, 2), (3, 1, 4), (5, 3, 1),
    (2, 2, 2, 2), (1, 3, 2, 2), (2, 1, 2, 3), (3, 2, 1, 2),
)
# Shapes where replicas of a super-pipeline lie differently in the groups.
IRREGULAR = ((2, 3), (4, 3), (3, 5), (5, 3), (2, 5), (3, 3), (2, 3, 2), (2, 2, 3), (3, 2, 2),
             (5, 2), (7, 2), (2, 1, 2, 3))
MODEL_KINDS = ("dense", "gqa", "moe", "mla", "encoder", "shared")


@dataclass(frozen=True)
class Instance:
    """One question to the planner."""

    seed: int
    model: Model | Profile
    chain: Chain
    cluster: Cluster
    job: Job
    space: SearchSpace


@cache
def instance(seed: int) -> Instance:
    """Instance number ``seed``, bounded so that the oracle can list its plans."""
    rng = Random(f"instance {seed}")
    # A quarter each: anything; pipelines; replicas; ways that are nearly as good as each other.
    theme = ("any", "pipeline", "close", "replicas")[seed % 4]
    sizes = rng.choice(IRREGULAR if theme == "replicas" and rng.random() < 0.6 else SHAPES)
    if theme == "close":
        sizes = rng.choice(((4,), (2, 2), (4, 2), (2, 3), (2, 2, 2), (6,), (3, 2), (2, 4), (8,)))
    measured = rng.random() < {"close": 1.0, "pipeline": 0.7}.get(theme, 0.3)
    model = _profile(rng, theme) if measured else _model(rng, rng.choice(MODEL_KINDS))
    chain = profile_chain(model) if isinstance(model, Profile) else build_chain(model)
    job = _job(rng, theme)
    cluster = _cluster(rng, sizes, _need(chain, job))
    most = 10 ** rng.uniform(4.0, 6.1)
    bounds = _space(rng, chain, math.prod(sizes), theme)
    space = _bounded(rng, chain, cluster, job, bounds, most)
    return Instance(seed, model, chain, cluster, job, space)


def _log(rng: Random, low: float, high: float) -> float:
    return low * (high / low) ** rng.random()


# ---------------------------------------------------------------- models


def _model(rng: Random, kind: str) -> Model:
    layers = rng.choice((1, 2, 3, 4, 5))
    heads = rng.choice((2, 4, 6, 8, 12, 15))
    head_dim = rng.choice((16, 32, 64))
    data: dict[str, Any] = {
        "name": f"random {kind}", "layers": layers, "heads": heads, "head_dim": head_dim,
        "hidden": heads * head_dim * rng.choice((1, 1, 2)), "gated": rng.random() < 0.5,
        "ffn": 60 * rng.choice((2, 8, 16, 40)), "vocab": rng.choice((500, 4001, 32000)),
        "tied_embeddings": rng.random() < 0.4, "norm": rng.choice(("rmsnorm", "layernorm")),
        "bias": False,
    }
    if kind in ("dense", "gqa", "moe"):
        data["kv_heads"] = rng.choice([d for d in range(1, heads + 1) if heads % d == 0])
        data["qk_norm"] = rng.random() < 0.3
    if kind == "mla":
        data["mla"] = {"q_rank": rng.choice((0, 48)), "kv_rank": 32, "nope_dim": head_dim,
                       "rope_dim": 8, "value_dim": head_dim}
        del data["head_dim"]
    if kind == "encoder":
        data |= {"kind": "encoder", "positions": 4096, "token_types": 2, "embedding_norm": True,
                 "bias": True, "head_transform": True, "head_bias": True, "pooler": True}
    if kind in ("moe", "shared"):
        experts = rng.choice((2, 3, 4, 6, 8))
        data["moe"] = {"experts": experts, "top_k": rng.randint(1, min(3, experts)),
                       "ffn": 60 * rng.choice((1, 4, 16)), "every": 1 + (layers > 2)}
    if kind == "shared":
        data["moe"] |= {"shared_ffn": 60 * rng.choice((1, 4)), "every": 1,
                        "shared_gate": rng.random() < 0.5, "first_dense": int(layers > 1)}
    return Model(**data)


def _profile(rng: Random, theme: str) -> Profile:
    """Measured layers that differ by up to an order of magnitude."""
    length = rng.choice((1, 2, 3, 4, 5, 6, 7, 7))
    degrees = [d for d in (1, 2, 3, 4, 5, 8) if d == 1 or rng.random() < 0.45]
    if theme == "close":
        length, degrees = rng.choice((3, 4, 5)), [1, 2, 3, 4]
    if rng.random() < 0.05:
        degrees = [2, 4]
    # Whole milliseconds, or 4 ms in all whatever the degree: many ways take equally long.
    coarse = rng.choice(("whole", "even") if theme == "close" else ("no", "no", "whole", "even"))
    # At times large hand-overs and few parameters, so that lanes decide.
    handed = rng.choice((1.0, 1.0, 20.0))
    layers: list[dict[str, Any]] = []
    left = length
    while left:
        repeat = rng.randint(1, min(left, 3)) if rng.random() < 0.3 else 1
        left -= repeat
        tp = {}
        forward, ratio = _log(rng, 2e-4, 4e-3), rng.uniform(1.0, 3.0)
        held, kept = _log(rng, 1e7, 1e9) / handed**2, _log(rng, 1e6, 1e9)
        for d in degrees:
            ahead = forward / d ** rng.uniform(0.4, 1.0)
            back = forward * ratio / d ** rng.uniform(0.4, 1.0)
            if coarse == "whole":
                ahead, back = 1e-3 * rng.randint(1, 3), 1e-3 * rng.randint(1, 4)
            elif coarse == "even":
                ahead = 1e-3 * rng.randint(1, 3) / d
                back = 4e-3 / d - ahead
            tp[d] = {
                "forward": ahead, "backward": back, "parameter_bytes": held / d,
                "activation_bytes": kept / d,
                "work_bytes": rng.choice((0.0, 0.3, 2.0)) * kept / d,
            }
        if len(layers) == 1 and rng.random() < 0.3:
            tp[6] = dict(tp[degrees[0]])  # a degree that the other layers lack
        layers.append({"name": f"layer {len(layers)}", "output_bytes": handed * _log(rng, 1e5, 1e8),
                       "repeat": repeat, "tp": tp})
    return Profile(name="random profile", bytes_per_parameter=rng.choice((2, 4)), layers=layers)


# ---------------------------------------------------------------- clusters and jobs


def _need(chain: Chain, job: Job) -> float:
    """Bytes that one device would take for everything, roughly."""
    total = 0.0
    for kind in chain.order:
        layer = chain.kinds[kind]
        if layer.measured:
            first = next(iter(layer.measured.values()))
            total += 18 * first.parameters + 2 * first.activation_bytes
        else:
            kept = sum(op.saved_elements for op in layer.operators)
            total += 18 * layer.parameters + 4 * kept * job.seq_len
    return total


def _cluster(rng: Random, sizes: tuple[int, ...], need: float) -> Cluster:
    devices = math.prod(sizes)
    levels: list[dict[str, Any]] = []
    bandwidth, latency = _log(rng, 3e9, 9e11), _log(rng, 1e-7, 1e-5)
    for n, size in enumerate(sizes):
        level: dict[str, Any] = {
            "name": f"level {n}", "size": size, "latency": latency * rng.uniform(0.3, 3.0),
            "in_network_reduction": rng.random() < 0.2,
            "efficiency": rng.choice((1.0, 1.0, 0.8)),
        }
        if n and rng.random() < 0.2:
            level["oversubscription"] = rng.choice((1, 2, 4))
        else:
            level["bandwidth"] = bandwidth
        levels.append(level)
        bandwidth *= _log(rng, 0.05, 2.0)  # at times more outside than inside
        latency *= _log(rng, 0.5, 10.0)
    roomy = rng.random() < 0.15
    memory = need * (10.0 if roomy else _log(rng, 1.5 / devices**0.9, 0.8 if devices > 1 else 4.0))
    peak = _log(rng, 3e12, 3e14)
    device = {
        "name": "random device", "memory": memory, "memory_bandwidth": _log(rng, 1e11, 4e12),
        "peak_flops": {"bf16": peak, "fp8": 2 * peak, "tf32": peak / 2},
        "launch_overhead": rng.choice((0.0, 1e-6, 5e-6)),
        "memory_reserved": memory * rng.choice((0.0, 0.05)),
    }
    return Cluster(name="random cluster", device=device, levels=levels)


def _job(rng: Random, theme: str) -> Job:
    def share(*usual: float) -> float:
        return rng.choice((*usual, rng.random()))

    stack: dict[str, Any] = {
        "name": "random stack", "overlap_grad_reduce": share(0.0, 0.9, 1.0),
        "overlap_param_gather": share(0.0, 0.9), "overlap_zero3": share(0.0, 0.9, 1.0),
        "overlap_tp": share(0.0, 0.0), "overlap_p2p": share(0.0, 0.0, 1.0),
        "flash_attention": rng.random() < 0.7, "gemm_derate": rng.uniform(0.5, 1.0),
        "memory_derate": 0.9, "workspace": rng.choice((0.0, 1e4)),
        "fragmentation": rng.choice((0.0, 0.05)),
        "zero_with_pipeline": rng.choice(((0, 1, 2, 3), (0, 1, 2, 3), (0, 1), (0,), (0, 1, 3))),
        "reshard_after_forward": rng.random() < 0.7,
        "gradient_dtype": rng.choice(("fp32", "fp32", "bf16")),
    }
    batches = [2, 2, 3, 3, 4, 6, 8, 12] if theme == "pipeline" else [*range(1, 13), 6, 8, 9, 10, 12]
    return Job(
        global_batch=rng.choice(batches),
        seq_len=rng.choice((60, 120, 240, 256, 500, 1024)),
        precision=rng.choice(("bf16", "bf16", "fp16", "fp32", "fp8")),
        optimizer=rng.choice(("adam", "adam", "sgd", "sgd-momentum")), stack=stack,
    )


# ---------------------------------------------------------------- search spaces


def _space(rng: Random, chain: Chain, devices: int, theme: str) -> dict[str, Any]:
    """Bounds that some instances have anyway; ZeRO and recompute stay free on small ones only."""
    size = devices * len(chain)
    options = 12 if size <= 32 else 8 if size <= 50 else 5
    zero = rng.sample(range(4), rng.randint(1, min(4, options)))
    most = max(1, options // len(zero))
    policies = rng.sample(("none", "selective", "full"), rng.randint(1, min(3, most)))
    space: dict[str, Any] = {"zero": zero, "recompute": policies}
    if theme == "close":
        space = {"zero": zero[:1], "recompute": policies[:1], "sp": [False], "outer_dp": [1]}
    moe = chain.model is not None and chain.model.moe is not None
    deepest = min(devices, len(chain))
    stages = [(1, 1), (2, 2), (1, 2), (2, 4), (2, 7), (3, 7), (3, 3)]
    stages = stages[3:] if theme in ("pipeline", "replicas") and deepest > 1 else stages
    for name, values, chance in (
        ("tp", [[1], [1, 2], [2], [3], [1, 4]], 0.08),
        ("sp", [[True, False], [False], [False]], 0.15 if chain.model is not None else 0.5),
        ("pp", [list(range(low, high + 1)) for low, high in stages if low <= deepest],
         {"pipeline": 1.0, "replicas": 0.6}.get(theme, 0.25)),
        ("mbs", [[1], [1, 2], [3]], 0.08),
        ("dp_in", [[1], [1, 2], [2], [1, 3]], 0.08),
        ("outer_dp", [[2], [3], ["2..5"]] if theme == "replicas" else [[1], [1, 2], [3]],
         0.9 if theme == "replicas" else 0.08),
        ("micro_batch", [[1], [1], [1], [2, 4], [3], ["1..3"]], 0.2),
        ("ep", [[1], [2], [1, 2, 3]], 0.1 * moe),
        ("etp", [[1], [1, 2, 3], [1, 2, 4]], 0.25 * moe),
    ):
        if rng.random() < chance:
            space[name] = rng.choice(values)
    return space


def _bounded(
    rng: Random, chain: Chain, cluster: Cluster, job: Job, bounds: dict[str, Any], most: float
) -> SearchSpace:
    """Take away values until at most ``most`` plans, finished or not, are left to list."""
    bounds = dict(bounds)
    while True:
        space = SearchSpace(**bounds)
        outers, rows, found = listed(chain, cluster, job, space)
        count, finished = entries(chain, space, found)
        if not finished and set(bounds) != {"zero", "recompute"}:
            bounds = {name: bounds[name] for name in ("zero", "recompute")}
            continue
        if count <= most:
            return space
        choices = [c for _, c in rows]
        present: dict[str, list[Any]] = {
            "zero": sorted({c.zero for c in choices}),
            "recompute": [("none", "selective", "full")[r] for r in
                          sorted({c.recompute for c in choices})],
            "tp": sorted({c.tp for c in choices}),
            "ep": sorted({c.ep for c in choices}),
            "dp_in": sorted({c.dp_in for c in choices}),
            "outer_dp": sorted({o.outer_dp for o in outers}),
            "micro_batch": sorted({o.micro_batch for o in outers}),
            "pp": [n for n in range(1, len(chain) + 1) if space.pp is None or n in space.pp],
        }
        for _ in range(1 + int(math.log10(count / most))):
            names = [name for name, values in present.items() if len(values) > 1]
            name = rng.choice(names)
            present[name].remove(max(present[name]) if name == "pp" else rng.choice(present[name]))
            bounds[name] = list(present[name])
