"""The catalog: every entry loads, matches what is published, and names its sources."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from nest.costs.compute import Machine, gemm_seconds
from nest.errors import InputError
from nest.evaluation.evaluate import evaluate
from nest.evaluation.even import even_configuration
from nest.evaluation.evidence import chip
from nest.inputs import Job, catalog, load_cluster, load_device, load_model, load_stack
from nest.stacks.rules import default_stack

MODELS = catalog.names("models")
CLUSTERS = catalog.names("clusters")
DEVICES = catalog.names("devices")

PUBLISHED_ACTIVE = {
    "mixtral-8x7b": 12.9e9,  # arXiv:2401.04088: 13B active parameters
    "qwen3-235b-a22b": 22e9,
    "qwen3-30b-a3b": 3.3e9,
    "deepseek-v3": 37e9,
    "gpt-oss-120b": 5.13e9 + 0.58e9,  # arXiv:2508.10925, table 1, which leaves out the embedding
}


def test_the_catalog_holds_what_is_promised():
    needed = {"bert-large", "llama2-7b", "llama3-70b", "mixtral-8x7b", "gpt3-175b", "llama3.1-8b"}
    needed |= {"llama3.1-405b", "qwen3-235b-a22b", "deepseek-v3", "opt-30b"}
    needed |= {"t5-11b", "llava1.5-7b"}
    assert needed <= set(MODELS)
    needed = {"tpuv4-fat-tree", "h100-spine-leaf", "dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200"}
    assert needed | {"gb200-nvl72"} <= set(CLUSTERS)
    assert {"megatron-core", "megatron-2021", "vtrain", "fsdp"} <= set(catalog.names("stacks"))


@pytest.mark.parametrize("name", MODELS)
def test_parameters_match_the_published_count(name):
    model = load_model(name)
    assert model.published_parameters is not None
    assert model.parameters() == pytest.approx(model.published_parameters, rel=0.005)
    assert model.active_parameters() <= model.parameters()
    assert "count:" in model.source
    assert "sizes:" in model.source


@pytest.mark.parametrize(("name", "active"), PUBLISHED_ACTIVE.items())
def test_active_parameters_match_the_published_count(name, active):
    assert load_model(name).active_parameters() == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_cluster_loads_names_its_sources_and_can_be_sized(name):
    cluster = load_cluster(name)
    assert cluster.source
    assert cluster.device.source
    assert all(level.source for level in cluster.levels)
    bandwidth = cluster.resolved_bandwidth
    assert all(a >= b > 0 for a, b in pairwise(bandwidth))
    inner = cluster.group_sizes[-2]
    assert load_cluster(name, devices=3 * inner).size == 3 * inner
    assert load_cluster(name, devices=1).group_sizes == (1,)


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_names_its_source(name):
    device = load_device(name)
    assert device.source
    assert device.memory > 15e9


@pytest.mark.parametrize("name", DEVICES)
def test_efficiencies_are_plausible_and_say_whether_they_are_measured(name):
    device = load_device(name)
    for dtype, gemm in device.gemm.items():
        assert 0.5 < gemm.peak_fraction < 0.95
        assert 0.3 < gemm.fraction(4096, 4096, 4096) < 0.9
        assert (gemm.cast_bytes > 0) == (dtype in ("fp8", "fp8-blockwise"))
    assert 1e-6 <= device.launch_overhead <= 5e-6
    same = "all else as" in device.source
    assert same or "gemm: fit to ai-dynamo/aiconfigurator" in device.source or (
        "assumed" in device.source)


def test_fitted_products_take_the_measured_time():
    # ai-dynamo/aiconfigurator, gemm_perf.parquet of a100_sxm: 8192 x 65536 x 4096 in bf16
    # took 16.70 ms; the fit is within 3.4 % (median) of such rows.
    stack = load_stack("fsdp").replace(gemm_derate=1.0, memory_derate=1.0)
    machine = Machine(load_device("a100-sxm-80gb"), stack, "bf16")
    sides = (np.array([8192.0]), np.array([65536.0]), np.array([4096.0]))
    assert gemm_seconds(machine, *sides) == pytest.approx([16.70e-3], rel=0.034)


@pytest.mark.parametrize("name", catalog.names("stacks"))
def test_every_stack_loads(name):
    assert load_stack(name).source


@pytest.mark.parametrize("name", CLUSTERS)
def test_published_clusters_reach_all_of_their_bandwidth_the_others_what_is_measured(name):
    shares = [level.efficiency for level in load_cluster(name).levels]
    if name in ("tpuv4-fat-tree", "h100-spine-leaf"):
        assert set(shares) == {1.0}
    else:
        assert all(0.5 < share < 0.95 for share in shares)


def test_published_clusters_are_as_printed():
    tpu = load_cluster("tpuv4-fat-tree", devices=1024)
    assert [level.size for level in tpu.levels] == [8, 4, 32]
    assert tpu.nominal_bandwidth == (900e9, 100e9, 400e9)
    assert tpu.resolved_bandwidth == (900e9, 100e9, 100e9)
    assert [level.latency for level in tpu.levels] == pytest.approx([1e-4, 2e-4, 3e-4])
    assert tpu.device.memory == 64e9
    h100 = load_cluster("h100-spine-leaf", devices=1024)
    assert h100.nominal_bandwidth == (900e9, 12.5e9, 50e9)
    assert h100.device.memory == 90e9


def test_names_are_found_in_any_case_and_unknown_ones_get_suggestions():
    assert load_model("LLaMA3-70B").name == "llama3-70b"
    with pytest.raises(InputError, match=r"lama3-70b.*allowed: .*llama3-70b.*nest list models"):
        load_model("lama3-70b")
    with pytest.raises(InputError, match="tpuv4-fat-tree"):
        load_cluster("tpu4-fat-tree")
    with pytest.raises(InputError, match=r"allowed: a name in the catalog: .*bert-large"):
        load_model("!?")


def test_a_catalog_entry_cannot_be_changed_by_who_loads_it():
    catalog.load("devices", "h100-sxm")["peak_flops"]["bf16"] = 1
    assert load_device("h100-sxm").peak_flops["bf16"] == 989e12


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_model_is_priced_on_every_cluster_with_software_of_its_devices(name):
    cluster = load_cluster(name, devices=64)
    job = Job(global_batch=64, seq_len=4096, stack=default_stack(cluster))
    model = load_model("llama3-8b")
    plan = evaluate(model, cluster, job, even_configuration(
        model, cluster, job, zero=3 if job.stack.name == "maxtext" else 1, recompute="full"))
    assert plan.step_time_s > 0 and plan.runnable is not False
    assert job.stack.name != "unknown"
    measured = {chip(row["device"]) for row in catalog.evidence() if row["stack"] == job.stack.runs}
    assert plan.evidence is not None
    if chip(cluster.device.name) not in measured:  # every plan says so
        assert plan.evidence.word in ("extrapolated", "never measured")
