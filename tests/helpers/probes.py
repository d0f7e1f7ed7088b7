"""A probe of H100 nodes, made up of what the cost model says that each measurement takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from nest.costs.compute import Machine, attention_seconds, gemm_seconds, grouped_seconds
from nest.inputs import Device, load_cluster, load_device
from nest.measured.calibration.collectives import COLLECTIVES, MeasuredCollective, misfits
from nest.measured.calibration.gemms import alone

TRUE: dict[str, Any] = {
    "attention_fraction": 0.6, "attention_edge": 300.0, "attention_narrow": 0.7,
    "memory_efficiency": 0.7, "launch_overhead": 2e-6}
"""Figures of the device that is measured, beside those of the catalog."""
GROUPED = {"rate": 0.8, "memory_share": 0.9, "group_time": 9e-6, "fused_rate": 0.9}
LAYER, CONTEXT, BUFFERS, LINK = 250e-6, 600_000_000, 1_900_000_000, 51e9


def measured_device() -> Device:
    known = load_device("h100-sxm")
    group = known.grouped["default"].model_copy(update=GROUPED)
    return known.replace(**TRUE).model_copy(update={"grouped": {"default": group}})


@cache
def rows(hosts: int = 2) -> tuple[dict[str, Any], ...]:
    """Measurements of ranks that agree within 2 %."""
    return tuple({**row, "seconds": float(seconds), "low": 0.99 * float(seconds),
                  "high": 1.01 * float(seconds), "slowest": 3, "slower": 1.02}
                 for row, seconds in _timed(hosts))


def _timed(hosts: int) -> Iterator[tuple[dict[str, Any], Any]]:
    device = measured_device()
    machine = Machine(device, alone(), "bf16")
    fused = Machine(device, alone().replace(fused_experts=True), "bf16")
    for m in (256, 1024, 4096, 16384):
        for n in (256, 1024, 8192):
            for k in (256, 4096):
                sizes = (np.array(float(one)) for one in (m, n, k))
                yield ({"part": "products", "dtype": "bf16", "m": m, "n": n, "k": k},
                       gemm_seconds(machine, *sizes))
    for way, on in (("each", machine), ("fused", fused)):
        for groups in (4, 16, 64):
            for m in (16, 256, 4096):
                sizes = (np.array(float(one)) for one in (m, 4096, 1536, groups))
                yield ({"part": "grouped", "dtype": "bf16", "way": way, "groups": groups, "m": m,
                        "n": 4096, "k": 1536}, grouped_seconds(on, *sizes, on.element, 0.0))
    for tokens in (1024, 4096, 16384):
        for width in (64, 128):
            for way in ("forward", "backward"):
                yield ({"part": "attention", "dtype": "bf16", "way": way, "heads": 32,
                        "width": width, "tokens": tokens}, attention_seconds(
                    machine, np.array(float(tokens)), np.array(64.0 * width),
                    tokens / 2 + TRUE["attention_edge"], width, way == "backward"))
    for kernel, size in (("copy", 2**31), ("add", 3 * 2**30), ("adam", 7 * 2**29)):
        yield ({"part": "bytes", "kernel": kernel, "bytes": size},
               size / device.memory_bandwidth / TRUE["memory_efficiency"])
    yield {"part": "host", "what": "kernel", "count": 100}, 100 * TRUE["launch_overhead"]
    for way in ("forward", "backward"):
        yield {"part": "host", "what": f"layer {way}", "count": 8}, 8 * LAYER
    for way in ("to device", "to host"):
        yield {"part": "host", "what": way, "bytes": 2**28}, 2**28 / LINK
    cluster = load_cluster("dgx-h100", devices=max(16, 8 * hosts))
    for nodes, ranks in ((1, 2), (1, 4), (1, 8), *(((hosts, hosts), (hosts, 8 * hosts))
                                                   if hosts > 1 else ())):
        for name in COLLECTIVES:
            for size in (2**12, 2**18, 2**21, 2**24, 2**27, 2**30):
                one = MeasuredCollective(name, ranks, nodes, float(size), 1.0)
                yield ({"part": "collectives", "collective": name, "n_ranks": ranks,
                        "n_nodes": nodes, "message_bytes": size},
                       np.exp(misfits(cluster, [one])[0]))
    for what, seconds in (("product", 0.02), ("collective", 0.01), ("both", 0.0225)):
        yield {"part": "overlap", "what": what, "n_ranks": 8 * hosts}, seconds


def document(*hosts: str, **changes: Any) -> dict[str, Any]:
    """What the program writes for hosts of 8."""
    return {
        "schema": "nest.probe/1", "torch": "2.9.0+cu130", "hosts": [
            host for host in hosts for _ in range(8)],
        "device": {"kind": "cuda", "name": "NVIDIA H100 80GB HBM3", "capability": 90,
                   "memory_bytes": 81559 * 2**20},
        "host_memory_bytes": 252 * 2**30, "rows": list(rows(len(hosts))), "left": {},
        "seconds": 702.0, "context_bytes": CONTEXT, "buffer_bytes": BUFFERS, **changes}


def written(folder: Path, *hosts: str, **changes: Any) -> str:
    """The same as a file."""
    path = folder / "probe.json"
    path.write_text(json.dumps(document(*hosts, **changes)), encoding="utf-8")
    return str(path)
