"""How sure a price is: ranges from measured runs, and what none of them had."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

import nest
from nest import validation
from nest.describe import catalog, load_stack
from nest.pricing.plans import Plan


def priced(device: str = "dgx-h100", devices: int = 16, **job: object) -> Plan:
    cluster = nest.load_cluster(device, devices=devices)
    stage = {"layers": (0, 34), "devices": (0, devices), "dp_in": devices, "zero": 3}
    way = nest.Configuration(micro_batch=devices, stages=[stage])
    model = nest.load_model("llama3-8b")
    return nest.evaluate(model, cluster, nest.Job(global_batch=32 * devices, seq_len=4096, **job),
                         way)


def test_the_range_follows_the_percentiles() -> None:
    plan, known = priced(), load_stack("megatron-core").calibration
    assert plan.confidence is not None and known is not None
    assert plan.confidence.low_s == plan.step_time_s * known.low
    assert plan.confidence.high_s == plan.step_time_s * known.high
    assert plan.confidence.configurations == known.configurations
    assert plan.confidence.beyond == ()
    assert plan.error == pytest.approx((known.high - known.low) / 3.29)


def test_what_was_never_measured_is_named() -> None:
    found = priced("dgx-b200", 4096, precision="fp16").confidence
    assert found is not None
    assert [phrase.split(" (")[0] for phrase in found.beyond] == [
        "device b200-sxm", "4,096 devices", "precision fp16"]
    assert priced(stack="fsdp").confidence is None


def test_the_catalog_says_what_validation_finds() -> None:
    """Where it fails after a change of prices: write the figures found into catalog/stacks.yaml."""
    ratios: dict[str, dict[object, list[float]]] = defaultdict(lambda: defaultdict(list))
    largest: dict[str, int] = defaultdict(int)
    for run in validation.price(validation.read()):
        if run.predicted_s is not None and run.run.measured_s is not None:
            ratios[run.stack][run.key].append(run.run.measured_s / run.predicted_s)
            largest[run.stack] = max(largest[run.stack], run.key[2].cluster.size)
    checked = 0
    for name in catalog.names("stacks"):
        known = load_stack(name).calibration
        if known is None:
            continue
        found = [float(np.median(each)) for each in ratios[name].values()]
        low, high = np.quantile(found, [0.05, 0.95])
        assert (known.configurations, known.most_devices) == (len(found), largest[name]), name
        assert (known.low, known.high) == pytest.approx((low, high), rel=0.01), name
        checked += 1
    assert checked > 8
