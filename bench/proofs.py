"""What a study takes that asks only what it cannot prove, beside one that asks everything.

    python bench/proofs.py [POINTS ...]           figures as JSON; every row is compared
    python bench/proofs.py sampled [POINTS ...]   the whole study by a sample of its points

A study of Llama-3-8B on 16 and 32 devices: two bandwidths, memory and its bandwidth, with prices
that grow with each but the last.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections import Counter
from typing import Any

from nest.studies.sweep import Sweep, sweep
from nest.studies.text import records

WITHIN, SAMPLE = 0.01, 100
PRICES = {
    "device_hour": "2.2 + 0.004 * cluster.device.memory / 1073741824",
    "adapter": "300 + 3 * cluster.levels[1].bandwidth / 1e9 * 8 + 30 * "
               "cluster.levels[0].bandwidth / 1e9",
    "switch": 40000, "port_bandwidth": "400 Gb/s", "power": 0.08, "device_watts": 1000,
    "switch_watts": 2000}


def study(points: int) -> dict[str, Any]:
    """About so many points."""
    each = max(2, round((points / 4 / 2) ** (1 / 3)))
    return {
        "name": f"proofs-{points}", "model": "llama3-8b",
        "cluster": {"base": "dgx-h100", "devices": 32},
        "job": {"global_batch": 128, "seq_len": 4096},
        "space": {"schedule": "1f1b,interleaved"},
        "axes": {
            "cluster.devices": [16, 32],
            "cluster.levels.0.bandwidth": {"from": "150 GB/s", "to": "900 GB/s", "count": each},
            "cluster.levels.1.bandwidth": {"from": "50 Gb/s", "to": "800 Gb/s", "count": each},
            "cluster.device.memory": {"from": "40 GiB", "to": "192 GiB", "count": each},
            "cluster.device.memory_bandwidth": {"from": "2.4 TB/s", "to": "4.8 TB/s", "count": 4}},
        "prices": PRICES}


def front(done: Sweep) -> dict[int, tuple[Any, ...]]:
    """Points of the front with what they are compared by, and the best of each objective."""
    with done.results() as results:
        best = {one.number for name in done.study.wanted
                for one in results.best(name).values()}
        return {row["number"]: (row["front"], row["tokens_per_s"], row["tokens_per_money"])
                for row in records(results) if row["front"] or row["number"] in best}


def told(done: Sweep, seconds: float) -> dict[str, Any]:
    """Processor seconds of all answers, refuted ones too, and how many points were asked."""
    with done.results() as results:
        return {"processor_s": round(seconds, 1), "points": results.counts.total(),
                **Counter(results.counts)}


def worst(whole: Sweep, some: Sweep) -> float:
    """Share by which a point of all plans is better than each of the others in some objective."""
    with whole.results() as results, some.results() as known:
        kept = [one.values for one in known.light]
        names = len(whole.study.wanted)
        return max(min(max(mine[k] and known_one[k] / mine[k] if mine[k] > 0 else
                           mine[k] / known_one[k] for k in range(names)) for known_one in kept)
                   for mine in (one.values for one in results.light
                                if one.number in results.front)) - 1.0


def compared(points: int) -> dict[str, Any]:
    """A study asked whole, exactly proved, and within ``WITHIN``."""
    given, found = study(points), dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        runs = {}
        for name, more in (("all", {}), ("exact", {"prove": True}), ("within", {"within": WITHIN})):
            begun = time.process_time()
            runs[name] = sweep(given, f"{folder}/{name}", engine="inline", **more)
            found[name] = told(runs[name], time.process_time() - begun)
        first = found["all"]["processor_s"]
        for name in ("exact", "within"):
            found[name]["share"] = round(found[name]["processor_s"] / first, 3)
        found["front_equal"] = front(runs["all"]) == front(runs["exact"])
        found["front"] = len(front(runs["all"]))
        found["within_worst"] = round(worst(runs["all"], runs["within"]), 6)
        rows = [{row["number"]: row for row in runs[name].rows()} for name in ("all", "exact")]
        found["rows_differ"] = sum(
            one["status"] == "ok" and not math.isclose(
                one["step_time_s"], rows[0][number]["step_time_s"], rel_tol=1e-9)
            for number, one in rows[1].items())
    return found


def sampled(points: int) -> dict[str, Any]:
    """Processor seconds of a study that proves, beside those of all its points by a sample."""
    given, found = study(points), dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        some = {**given, "sample": {"method": "random", "count": SAMPLE}}
        for name, data, more in (("all", some, {}), ("exact", given, {"prove": True}),
                                 ("within", given, {"within": WITHIN})):
            begun = time.process_time()
            done = sweep(data, f"{folder}/{name}", engine="inline", **more)
            found[name] = told(done, time.process_time() - begun)
        whole = found["all"]["processor_s"] / SAMPLE * found["exact"]["points"]
        found["all_estimated_s"] = round(whole, 1)
        for name in ("exact", "within"):
            found[name]["share"] = round(found[name]["processor_s"] / whole, 3)
    return found


def warmed() -> None:
    """Compile what the questions need."""
    given = study(16)
    given["axes"] = {"cluster.devices": [16]}
    with tempfile.TemporaryDirectory() as folder:
        sweep(given, folder, engine="inline")


if __name__ == "__main__":
    warmed()
    words = sys.argv[1:]
    ask = sampled if words[:1] == ["sampled"] else compared
    for count in [int(word) for word in words if word.isdigit()] or [2000]:
        print(json.dumps(ask(count)), flush=True)
