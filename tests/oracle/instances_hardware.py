"""Random clusters and jobs for the instances."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from nest.inputs import Cluster, Job
from nest.model import Chain

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
SMALL = ((4,), (2, 2), (4, 2), (2, 3), (2, 2, 2), (6,), (3, 2), (2, 4), (8,))
PAIRED = ((2, 2), (4, 2), (2, 2, 2), (2, 4), (3, 2), (2, 3), (4, 4))


def log_uniform(rng: Random, low: float, high: float) -> float:
    """Any order of magnitude is as likely as another."""
    return float(low * (high / low) ** rng.random())


def shape(rng: Random, theme: str) -> tuple[int, ...]:
    """Sizes of the levels of a cluster."""
    if theme == "replicas" and rng.random() < 0.6:
        return rng.choice(IRREGULAR)
    if theme in ("close", "graph", "tight", "families"):
        return rng.choice(SMALL)
    if theme in ("outer", "chunks", "experts", "long"):
        return rng.choice(PAIRED)
    return rng.choice(SHAPES)


def need(chain: Chain, job: Job) -> float:
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


def random_cluster(rng: Random, sizes: tuple[int, ...], needed: float, theme: str) -> Cluster:
    """Levels of which the outer ones are mostly slower, and memory that mostly is short."""
    devices = math.prod(sizes)
    levels: list[dict[str, Any]] = []
    bandwidth, latency = log_uniform(rng, 3e9, 9e11), log_uniform(rng, 1e-7, 1e-5)
    if theme in ("outer", "chunks"):
        bandwidth = log_uniform(rng, 1e11, 2e12)
    for n, size in enumerate(sizes):
        level: dict[str, Any] = {
            "name": f"level {n}", "size": size, "latency": latency * rng.uniform(0.3, 3.0),
            "base_time": rng.choice((0.0, latency * rng.uniform(0.0, 5.0))),
            "ramp": rng.choice((0.0, log_uniform(rng, 1e-4, 1e-2))),
            "in_network_reduction": rng.random() < 0.2,
            "efficiency": rng.choice((1.0, 1.0, 0.8)),
        }
        if n and rng.random() < 0.2:
            level["oversubscription"] = rng.choice((1, 2, 4))
        else:
            level["bandwidth"] = bandwidth
        levels.append(level)
        # At times more outside than inside.
        bandwidth *= log_uniform(rng, *((0.005, 0.1) if theme == "outer" else (0.05, 2.0)))
        latency *= log_uniform(rng, 0.5, 10.0)
    torus = Random(repr(levels))  # of its own, and seldom: other draws stay as they were
    if torus.random() < 0.1:
        levels[0]["axes"] = torus.choice((1, 2, 3))
    peak = log_uniform(rng, 3e12, 3e14)
    memory = _memory(rng, devices, needed, theme)
    device = {
        "name": "random device", "memory": memory, "memory_bandwidth": log_uniform(rng, 1e11, 4e12),
        "peak_flops": {"bf16": peak, "tf32": peak / 2, "nvfp4": 4 * peak,
                       **dict.fromkeys(("fp8", "fp8-blockwise", "mxfp8"), 2 * peak)},
        "launch_overhead": rng.choice((0.0, 1e-6, 5e-6)),
        "memory_reserved": memory * rng.choice((0.0, 0.05)),
    }
    return Cluster(name="random cluster", device=device, levels=levels)


def partly(rng: Random, theme: str, cluster: Cluster) -> Cluster:
    """At times fewer devices than the levels hold: the last group of each may have fewer.

    Seldom where experts are to be spread over all devices.
    """
    most, groups = cluster.size, cluster.levels[-1].size
    often = 0.05 if theme == "experts" else 0.3
    if len(cluster.levels) == 1 or most == groups or rng.random() >= often:
        return cluster
    return cluster.replace(devices=rng.randint(most - most // groups + 1, most - 1))


def _memory(rng: Random, devices: int, needed: float, theme: str) -> float:
    if theme in ("tight", "outer"):
        return needed * log_uniform(rng, 1.2 / devices**0.9, 5.0 / devices**0.9)
    if theme == "chunks" or rng.random() < 0.15:
        return needed * log_uniform(rng, 3.0 / devices**0.9, 10.0)
    return needed * log_uniform(rng, 1.5 / devices**0.9, 0.8 if devices > 1 else 4.0)


def random_job(rng: Random, theme: str) -> Job:
    """A job; its sequences are long and its samples few where the theme is ``long``."""
    def share(*usual: float) -> float:
        return rng.choice((*usual, rng.random()))

    stack: dict[str, Any] = {
        "name": "random stack", "overlap_grad_reduce": share(0.0, 0.9, 1.0),
        "overlap_param_gather": share(0.0, 0.9), "overlap_zero3": share(0.0, 0.9, 1.0),
        "overlap_tp": share(0.0, 0.0), "overlap_p2p": share(0.0, 0.0, 1.0),
        "overlap_cp": share(0.0, 0.9, 1.0),
        "flash_attention": rng.random() < 0.7, "gemm_derate": rng.uniform(0.5, 1.0),
        "memory_derate": 0.9, "attention_derate": rng.uniform(0.3, 1.0),
        "layer_overhead": rng.choice((0.0, 0.0, 0.0, log_uniform(rng, 1e-6, 1e-3))),
        "scatter_gather": rng.random() < 0.3, "workspace": rng.choice((0.0, 1e4)),
        "fragmentation": rng.choice((0.0, 0.05)),
        "zero_with_pipeline": rng.choice(((0, 1, 2, 3), (0, 1, 2, 3), (0, 1), (0,), (0, 1, 3))),
        "reshard_after_forward": rng.random() < 0.7,
        "gradient_dtype": rng.choice(("fp32", "fp32", "bf16")),
    }
    more = Random(repr(stack))  # of its own: what else is drawn stays as it was
    stack |= {
        "layer_gap": more.choice((0.0, 0.0, log_uniform(more, 1e-7, 1e-4))),
        "fp8_gradient_dtype": more.choice(("fp32", "bf16")),
        "loss_kept": more.choice((2, 4, 6)), "loss_peak": more.choice((6, 12)),
        **{name: more.random() < 0.5
           for name in ("master_remainders", "fp8_inputs", "selective_products")},
    }
    last = Random(repr(stack))  # the same again
    stack |= {
        "dispatcher": last.choice(("alltoall", "alltoall", "allgather", "deepep", "hybridep")),
        "dispatch_fp8": last.random() < 0.3,
        "cuda_graphs": last.choice(("none", "none", "layers", "step")),
        "expert_gap": last.choice((0.0, log_uniform(last, 1e-7, 1e-4))),
        "expert_overhead": last.choice((0.0, 0.0, log_uniform(last, 1e-6, 1e-3))),
        "fused_experts": last.random() < 0.2,
        "captured_gap": last.choice((0.0, log_uniform(last, 1e-7, 1e-4))),
        "captured_share": last.choice((0.0, 0.5, 1.0)),
    }
    stack["overlap_slowdown"] = Random(repr(stack)).choice((0.0, 0.16, 1.0))
    own = Random(repr(stack))  # once more, and seldom: what is best of most stays as it was
    if own.random() < 0.1:
        stack |= {"fp32_shards": own.random() < 0.5, "dropout": own.random() < 0.5,
                  "loss_peak_split": own.choice((6, 18)), "sequence_copies": own.random() < 0.5}
        stack |= {name: own.random() < 0.5
                  for name in ("wide_ring", "fsdp_copies", "stops_early", "split_inputs")}
    if own.random() < 0.1:
        stack |= {"routing_time": log_uniform(own, 1e-9, 1e-6),
                  "moment_dtype": own.choice(("fp32", "bf16")),
                  **{name: own.random() < 0.5 for name in ("fp8_attention", "fp8_head")}}
    batches = [*range(1, 13), 6, 8, 9, 10, 12]
    lengths = [60, 120, 240, 256, 500, 1024]
    if theme == "pipeline":
        batches = [2, 2, 3, 3, 4, 6, 8, 12]
    elif theme == "chunks":
        batches = [4, 6, 8, 12, 16]
    elif theme == "long":
        batches, lengths = [1, 1, 2], [4096, 6144, 8192, 16384, 32768]
    elif theme == "outer":
        batches = [2, 4, 6, 8, 12]
    found = _random_job(rng, stack, more, last, batches, lengths)
    if Random(repr(stack) + "outputs").random() < 0.04:
        found = found.replace(stack=found.stack.replace(saves_outputs=True))
    own = Random(repr(stack) + "lengths")
    if own.random() >= 0.2:
        return found
    shares = {max(1, found.seq_len // part): own.choice((0.2, 1.0, 9.0))
              for part in own.sample((1, 2, 3, 7, 20), own.randint(2, 4))}
    return found.replace(lengths=shares, packing=own.choice(("packed", "packed", "padded")))


def _random_job(
    rng: Random, stack: dict[str, Any], more: Random, last: Random, batches: list[int],
    lengths: list[int],
) -> Job:
    limit = Random(repr(stack) + "capacity").choice((None,) * 7 + (0.7, 1.0, 1.3))
    return Job(
        expert_capacity=limit,
        expert_padding=limit is not None and Random(repr(stack) + "padding").random() < 0.6,
        memory_margin=more.choice((0.0, 0.0, 0.05, 0.1)),
        expert_imbalance=more.choice((1.0, 1.0, 1.3)),
        global_batch=rng.choice(batches), seq_len=rng.choice(lengths),
        precision=rng.choice((
            "bf16", "bf16", "fp16", "fp32",
            last.choice(("fp8", "fp8-delayed", "fp8-blockwise", "mxfp8", "nvfp4")))),
        optimizer=Random(repr(stack) + "low").choice(8 * (rng.choice((
            "adam", last.choice(("adam", "muon")), "sgd", "sgd-momentum")),)
            + ("adam-8bit", "adafactor")),
        stack=stack | {
            "loss": Random(repr(stack) + "loss").choice(
                ("whole", "whole", "whole", "whole", "chunks", "liger", "cut")),
            "receives_all": Random(repr(stack) + "receives").random() < 0.2,
            "late_reduction": Random(repr(stack) + "late").random() < 0.3,
            "reduces_maxima": Random(repr(stack) + "maxima").random() < 0.7,
            "master_copy": stack["master_remainders"] or stack.get("fp32_shards", False)
            or Random(repr(stack) + "master").random() < 0.9},
    )
