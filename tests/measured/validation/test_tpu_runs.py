"""Runs of MaxText on TPUs: errors by generation, also of runs that no figure was chosen on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import nest
from nest.measured import validation
from nest.measured.validation.pricing import PricedRun

RUNS = validation.read(Path(__file__).parents[3] / "bench" / "tpu_runs.csv")


@pytest.fixture(scope="module")
def priced() -> dict[str, PricedRun]:
    return {row.run.run_id: row for row in validation.price(RUNS)}


def test_all_are_priced(priced: dict[str, PricedRun]) -> None:
    assert len(priced) == 81
    assert [row.reason for row in priced.values() if row.reason is not None] == []


@pytest.mark.parametrize(("begins", "rows", "median", "bias"), [
    # In brackets: median and bias with all figures assumed and tori priced as switches.
    ("v5e_16b v5e_32b v5e_64b", 18, 0.06, 0.03),  # 0.084, +0.080
    ("v5e_128b", 6, 0.07, 0.02),  # 0.263, +0.236; tp_exposed was chosen here
    # No figure was chosen on these.
    ("v5p_32b v5p_64b v5p_128b v5p_256b v5p_512b v5p_1024b v5p_llama", 18, 0.07, 0.03),
    # 0.134, +0.145
    ("v6e_llama70 v6e_llama2 v6e_mistral", 6, 0.05, 0.03),
    ("v6e_gpt3 v6e_llama405", 2, 0.13, 0.13),
    ("v6e_gemma3", 3, 0.10, 0.10),
    ("v6e_mixtral", 2, 0.09, 0.05),
    ("v7_llama405 v7_llama70_fp8 v7_llama70_128k_fp8", 5, 0.05, 0.04),
    ("v7_deepseek_bf16 v7_qwen3_bf16", 3, 0.02, 0.03),  # 0.360, +0.199
    ("v7_deepseek_fp8 v7_qwen3_fp8", 3, 0.14, 0.13),
    ("v7_gptoss", 2, 0.30, 0.30),  # not explained
])
def test_runs_are_priced_as_well_as_they_were(
    priced: dict[str, PricedRun], begins: str, rows: int, median: float, bias: float
) -> None:
    errors = np.array([row.error for name, row in priced.items()
                       if name.startswith(tuple(begins.split()))])
    assert len(errors) == rows
    assert np.median(np.abs(errors)) <= median
    assert abs(errors.mean()) <= bias


@pytest.mark.parametrize(("gpu", "hosts", "device", "levels"), [
    ("tpu-v6e", 64, "tpu-v6e", (64,)), ("TPU v6e", 4, "tpu-v6e", (64,)),
    ("Trillium", 4, "tpu-v6e", (64,)), ("TPU v5p", 4, "tpu-v5p", (64,)),
    ("TPU v5p", 32, "tpu-v5p", (32, 64))])
def test_a_slice_is_one_level(
    gpu: str, hosts: int, device: str, levels: tuple[int, ...]
) -> None:
    run = next(run for run in RUNS if run.run_id == "v6e_llama8_64")
    fields = {**run.fields, "gpu": gpu, "gpus_per_node": str(hosts)}
    cluster = validation.question(replace(run, fields=fields)).cluster
    assert (cluster.device.name, cluster.group_sizes) == (device, levels)


@pytest.mark.parametrize(("chips", "rates"), [
    # An axis of 16 has 200 GB/s both ways; lines of 8 have half of it, 8 x 16 one of each.
    (64, [100e9]), (128, [150e9]), (256, [200e9]), (1024, [200e9, 12.5e9])])
def test_open_lines_have_half_the_rate_of_rings(chips: int, rates: list[float]) -> None:
    run = next(run for run in RUNS if run.run_id == "v6e_llama8_64")
    text = str(chips)
    fields = {**run.fields, "n_gpus": text, "gpus_per_node": "4", "dp": text, "fsdp_shard": text,
              "gbs_seqs": str(5 * chips)}
    cluster = validation.question(replace(run, fields=fields)).cluster
    assert list(cluster.nominal_bandwidth) == rates
    # So do the slices that plans are made for.
    assert nest.load_cluster("tpu-v6e", devices=chips).nominal_bandwidth[0] == rates[0]


def test_experts_of_a_stated_capacity() -> None:
    run = next(run for run in RUNS if run.run_id == "v6e_mixtral8x7")
    job = validation.question(run).job
    assert (job.expert_capacity, job.expert_padding) == (1.25, True)
