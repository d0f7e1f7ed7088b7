"""Measurements for the tests of calibration: made up from known figures, or in a real format."""

from __future__ import annotations

import csv
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

PUBLISHED = Path(os.environ.get("NEST_RUNS") or "nowhere/runs.csv").parent
"""Folder with the published runs.csv, gemm.csv and collectives.csv."""
NOT_PUBLISHED = "NEST_RUNS does not name the published runs.csv, with the other tables beside it"
PEAK, MEMORY = 1e15, 2e12
DEVICE = {"name": "d", "memory": "8 GiB", "memory_bandwidth": MEMORY,
          "peak_flops": {"bf16": PEAK, "fp8": 2 * PEAK}, "memory_efficiency": 0.7,
          "launch_overhead": "4 us"}
SIDES = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def gemm_seconds(m: float, n: float, k: float, figures: dict[str, float]) -> float:
    """The formula of docs/costs.md, written once more."""
    share = figures["peak_fraction"] * m / (m + figures["half"]) * n / (n + figures["half"])
    share *= k / (k + figures["k_half"])
    share /= 1 + figures["decline"] * math.log2(1 + 2 * m * n * k / 1e12)
    element = figures.get("element", 2)
    moved = element * (m * k + k * n) + 2 * m * n
    work = max(2 * m * n * k / (figures.get("peak", PEAK) * share),
               moved / (MEMORY * figures["memory"]))
    return work + figures["launch"] + figures.get("cast", 0.0) * m * k / MEMORY


BF16 = {"peak_fraction": 0.82, "half": 70.0, "k_half": 150.0, "decline": 0.04, "memory": 0.6,
        "launch": 5e-6}
FP8 = {**BF16, "peak": 2 * PEAK, "element": 1, "k_half": 300.0, "launch": 11e-6, "cast": 8.0}


def products(
    path: Path, figures: dict[str, dict[str, float]], noise: float = 0.01,
    sides: tuple[int, ...] = SIDES, unit: str = "us",
) -> Path:
    """A table of products by number format, in a random order."""
    random = np.random.default_rng(1)
    scale = {"us": 1e6, "ms": 1e3, "s": 1.0}[unit]
    rows = [(name, m, n, k, gemm_seconds(m, n, k, own) * scale
             * math.exp(noise * random.standard_normal()))
            for name, own in figures.items() for m in sides for n in sides for k in sides]
    random.shuffle(rows)
    return table(path, ["dtype", "m", "n", "k", f"latency_{unit}"], rows)


def table(path: Path, header: list[str], rows: Any) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(rows)
    return path


RANKS = """\
#  Rank  0 Group  0 Pid   1887 on   worker-1 device  0 [0000:8d:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   1888 on   worker-1 device  1 [0000:91:00] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid   1885 on   worker-0 device  0 [0000:8d:00] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid   1886 on   worker-0 device  1 [0000:91:00] NVIDIA H100 80GB HBM3
"""
HEADER = """\
#
#                                                              out-of-place                       \
in-place          
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   \
algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  \
(GB/s)  (GB/s)       
"""
ALL_REDUCE = f"""\
# nccl-tests version 2.17.6 nccl-headers=22803 nccl-library=22803
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 536870912 maxBytes 8589934592 step: 2(factor) warmup iters: 1 iters: \
20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
{RANKS}{HEADER}\
           0             0     float     sum      -1     5.58    0.00    0.00      0     5.57    \
0.00    0.00      0
   536870912     134217728     float     sum      -1   1806.7  297.16  586.06      0   1835.9  \
292.43  576.74      0
  1073741824     268435456     float     sum      -1   3108.8  345.38  681.17      0   2924.7  \
367.13  724.06      0
  8589934592    2147483648     float     sum      -1    20299  423.16  834.57    N/A    20006  \
429.37  846.82    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 745.53
#
# Collective test concluded: all_reduce_perf
"""
ALL_GATHER_2020 = """\
mpirun -np 2 ./build/all_gather_perf -b 1M -e 4M -f 2
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20 \
validation: 1
#
# Using devices
#   Rank  0 Pid   1320 on ip-172-31-20-228 device  0 [0x00] Tesla V100-SXM2-16GB
#   Rank  1 Pid   2066 on ip-172-31-22-230 device  0 [0x00] Tesla V100-SXM2-16GB
#
#                                             out-of-place                       in-place
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        131072   float    91.20   11.50    5.75  0e+00    90.11   11.64    5.82  0e+00
     2097152        262144   float   171.30   12.24    6.12  0e+00   170.20   12.32    6.16  0e+00
     4194304        524288   float   331.80   12.64    6.32  0e+00   330.90   12.68    6.34  0e+00
"""


def nccl_json(**changes: Any) -> str:
    """What `all_reduce_perf -g 4 -J FILE` writes on two nodes."""
    device = {"rank": 0, "group": 0, "pid": 11, "device": 0, "device_hex": "0000:8d:00",
              "device_info": "NVIDIA H100 80GB HBM3"}
    result = {"size": 1048576, "count": 262144, "type": "float", "redop": "sum", "root": "    -1",
              "out_of_place": {"time": 38.42, "alg_bw": 27.29, "bus_bw": 47.76, "nwrong": 0.0},
              "in_place": {"time": 38.9, "alg_bw": 26.9, "bus_bw": 47.1, "nwrong": 0.0},
              "actual_iterations": 20, "experiment_name": ""}
    document = {
        "version": 1, "start_time": "2026-01-01 10:00:00",
        "args": ["./build/all_reduce_perf", "-g", "4", "-J", "out.json"],
        "env": ["NCCL_DEBUG=WARN"], "nccl_version": 22803,
        "config": {"nthreads": 1, "ngpus": 4, "minimum_bytes": 1048576, "step_factor": 2,
                   "devices": [{**device, "hostname": "a"},
                               {**device, "hostname": "b", "rank": 4}]},
        "results": [result, {**result, "size": 2097152, "out_of_place": None},
                    {**result, "size": 4194304,
                     "out_of_place": {"time": 80.0, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 3.0}}],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 47.5, "okay": "unchecked"},
        "end_time": "2026-01-01 10:00:09", "errors": []}
    return json.dumps({**document, **changes})
