"""Runs published since, and larger ones: errors by group, which a change must not make worse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nest.measured import validation
from nest.measured.validation.hardware import older
from nest.measured.validation.pricing import PricedRun

RUNS = validation.read(Path(__file__).parents[3] / "bench" / "newer_runs.csv")


@pytest.fixture(scope="module")
def priced() -> list[PricedRun]:
    return validation.price(RUNS)


def test_all_are_priced(priced: list[PricedRun]) -> None:
    assert len(RUNS) == 155
    assert [row.reason for row in priced if row.reason is not None] == []


@pytest.mark.parametrize(("gpu", "hosts", "device", "levels"), [
    ("tpu-v6e", 64, "tpu-v6e", (64,)), ("TPU v6e", 4, "tpu-v6e", (64,)),
    ("Trillium", 4, "tpu-v6e", (64,)), ("TPU v5p", 4, "tpu-v5p", (64,))])
def test_a_slice_of_tpus_is_one_level(
    gpu: str, hosts: int, device: str, levels: tuple[int, ...]
) -> None:
    run = next(run for run in RUNS if run.run_id == "tpu_8b_v6e64")
    fields = {**run.fields, "gpu": gpu, "gpus_per_node": str(hosts)}
    cluster = validation.question(replace(run, fields=fields)).cluster
    assert (cluster.device.name, cluster.group_sizes) == (device, levels)
    # Slices of 256 are joined by the network of the data centre.
    four = {**fields, "gpu": "tpu-v6e", "n_gpus": "1024", "dp": "1024", "fsdp_shard": "1024",
            "gbs_seqs": "5120"}
    cluster = validation.question(replace(run, fields=four)).cluster
    assert cluster.group_sizes == (256, 1024)
    assert cluster.nominal_bandwidth[1] == 12.5e9


@pytest.mark.parametrize(("group", "median", "bias"), [
    # In brackets: median and bias before reductions of pipelines were exposed, wide products and
    # wide experts had their rates, and routing was a column.
    ("gpt3_h100", 0.05, 0.05),  # 0.055, -0.061
    ("nemotron340_h100", 0.03, 0.035),  # 0.075, -0.081
    ("nemotron340_gb200", 0.01, 0.01),  # 0.020, -0.019
    ("llama405_h100", 0.04, 0.01),  # 0.034, -0.016
    ("llama405_gb200", 0.10, 0.10),  # 0.095, -0.094
    ("grok1_h100", 0.03, 0.015),  # 0.064, +0.053
    ("grok1_gb200", 0.18, 0.18),  # 0.331, +0.330
    ("llama405_bridge", 0.055, 0.03),
    ("mlperf_v6", 0.10, 0.10),  # 0.113, -0.142
])
def test_groups_are_priced_as_well_as_they_were(
    priced: list[PricedRun], group: str, median: float, bias: float
) -> None:
    errors = np.array([row.error for row in priced
                       if row.run.group == group and row.error is not None])
    assert np.median(np.abs(errors)) <= median
    assert abs(errors.mean()) <= bias


@pytest.mark.parametrize(("framework", "stack", "said"), [
    ("Megatron-Bridge 25.09", "megatron-bridge", "release 25.09, priced as 26.08"),
    ("Megatron-Bridge 26.08", "megatron-bridge", None),
    ("Megatron-Bridge", "megatron-bridge", None),
    ("NeMo 24.12", "megatron-core", None)])
def test_a_run_of_another_release_is_remarked(
    framework: str, stack: str, said: str | None
) -> None:
    assert older(framework, stack) == said
