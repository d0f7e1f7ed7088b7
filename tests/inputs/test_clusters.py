"""Clusters, jobs, spaces, configurations and profiles."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from descriptions import CLUSTER, DEVICE, JOB, PROFILE, STAGE, TEMPLATE, changed, message, put

from nest.inputs import (
    Cluster,
    Configuration,
    Device,
    GemmEfficiency,
    IntSet,
    Job,
    Level,
    SearchSpace,
    Stack,
    StageConfiguration,
    catalog,
    load_cluster,
    load_device,
    load_profile,
    load_space,
    load_stack,
)
from nest.inputs.cluster import LinkKind
from nest.schedules.registry import Schedule

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def test_the_least_size_from_a_number_on_fills_groups():
    cluster = load_cluster(CLUSTER)  # levels 4 x 2 x 3
    assert [cluster.size_from(n) for n in (1, 3, 4, 5, 8, 9, 24, 25)] == [1, 3, 4, 8, 8, 16, 24, 32]


def test_bandwidth_of_levels_is_the_narrowest_on_the_way():
    cluster = load_cluster(CLUSTER)
    assert cluster.size == 24
    assert cluster.group_sizes == (4, 8, 24)
    assert cluster.nominal_bandwidth == (100e9, 50e9, 25e9)
    faster = changed(changed(CLUSTER, "levels.1.bandwidth", "900 GB/s"), "levels.0.efficiency", 0.5)
    assert load_cluster(faster).resolved_bandwidth == (50e9, 50e9, 50e9)
    assert load_cluster(faster).nominal_bandwidth == (100e9, 900e9, 50e9)


@pytest.mark.parametrize(
    ("devices", "sizes"),
    [
        (24, (4, 2, 3)),
        (80, (4, 2, 10)),
        (8, (4, 2)),
        (4, (4,)),
        (3, (3,)),
        (1, (1,)),
        (16, (4, 2, 2)),
    ],
)
@pytest.mark.parametrize("data", [CLUSTER, TEMPLATE])
def test_the_number_of_devices_sizes_the_levels(data, devices, sizes):
    cluster = load_cluster(data, devices=devices)
    assert tuple(level.size for level in cluster.levels) == sizes
    assert cluster.size == devices


@pytest.mark.parametrize("devices", [0, -8, 10**9, 2.5, True, "8"])
def test_an_impossible_number_of_devices_says_which_are_not(devices):
    text = message(load_cluster, CLUSTER, devices=devices)
    assert "devices: got" in text and "allowed: " in text


def test_the_outermost_size_n_needs_a_default_or_a_number(tmp_path):
    path = put(tmp_path, TEMPLATE)
    assert f"{path}: default_devices: got None" in message(load_cluster, path)
    assert load_cluster({**TEMPLATE, "default_devices": 32}).size == 32
    assert load_cluster({**TEMPLATE, "default_devices": 30}).group_sizes == (4, 8, 32)
    assert "at least 8" in message(load_cluster, {**TEMPLATE, "default_devices": 7})
    assert load_cluster({**CLUSTER, "devices": 24}, devices=8).devices is None


def test_a_device_can_be_named_or_changed_from_a_named_one():
    assert load_cluster({**CLUSTER, "device": "H100-SXM"}).device == load_device("h100-sxm")
    changes = {"base": "h100-sxm", "memory": "64 GiB", "peak_flops": {"bf16": "500 TFLOP/s"}}
    device = load_cluster({**CLUSTER, "device": changes}).device
    assert (device.memory, device.peak("bf16")) == (64 * 2**30, 500e12)
    assert device.peak("fp8") == 1979e12
    assert device.name == "h100-sxm (changed)"
    assert "peak_flops: got no tf32; allowed: bf16" in message(load_device(DEVICE).peak, "tf32")


def test_efficiency_of_matrix_products():
    gemm = GemmEfficiency(peak_fraction=0.8, m_half=100, n_half=0, k_half=300)
    assert gemm.fraction(100, 7, 300) == pytest.approx(0.2)
    device = Device(name="d", memory=2e9, memory_bandwidth=1e9, peak_flops={"bf16": 1e12})
    assert device.gemm_for("fp16").peak_fraction == 0.75
    assert Level(name="l", size=2, bandwidth=1e9, latency=0).efficiency == 1.0


def test_a_job_has_a_default_stack_and_takes_others():
    assert Job(global_batch=8, seq_len=16).stack == load_stack("megatron-core")
    assert Job(global_batch=8, seq_len=16, stack="fsdp").stack == load_stack("FSDP")
    stack = load_stack("vtrain")
    assert isinstance(stack, Stack) and Job(**JOB, stack=stack).stack is stack


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (8, "8"),
        ("8", "8"),
        ("1..16", "1..16"),
        ("1,2,4", "1..2,4"),
        ([4, 1, 2], "1..2,4"),
        (" 1 .. 3 , 7 ", "1..3,7"),
        (["1..3", 2, 9], "1..3,9"),
        ((5, 5), "5"),
        (range(3), "0..2"),
    ],
)
def test_sets_of_numbers(given, text):
    numbers = IntSet.of(given)
    assert str(numbers) == text
    assert IntSet.of(str(numbers)) == numbers
    assert list(numbers) == sorted(numbers.values(10**7))
    assert all(n in numbers for n in numbers) and len(numbers) == len(list(numbers))


def test_a_large_range_takes_no_room():
    numbers = IntSet.of("1..1000000")
    assert numbers.ranges == ((1, 1_000_000),)
    assert 999_999 in numbers and 0 not in numbers and "a" not in numbers
    assert numbers.values(5) == (1, 2, 3, 4, 5)
    assert (numbers.smallest, numbers.largest) == (1, 1_000_000)


def test_a_space_says_what_it_allows():
    space = load_space({"tp": 8, "pp": "1..16", "zero": "0,1", "recompute": "none", "sp": True})
    told = space.describe()
    assert told["tp"] == "8" and told["pp"] == "1..16" and told["zero"] == "0..1"
    assert told["recompute"] == "none" and told["sp"] == "true"
    assert told["outer_dp"] == told["cp"] == "any" and told["schedule"] == "default"
    assert load_space({"schedule": "any"}).schedule == get_args(Schedule)
    assert set(told) == set(SearchSpace.model_fields)
    assert SearchSpace().describe()["tp"] == "any"
    assert load_space({"tp": None, "zero": "any", "recompute": None, "sp": "on,off"}).tp is None
    assert load_space({"recompute": ["full", "full"]}).recompute == ("full",)


def test_defaults_of_a_configuration():
    stage = StageConfiguration(layers=(0, 4), devices=(0, 8), tp=4, dp_in=2)
    assert (stage.etp, stage.sp, stage.ep, stage.zero, stage.recompute) == (4, True, 1, 0, "none")
    assert StageConfiguration(layers=(0, 4), devices=(0, 8)).sp is False
    configuration = Configuration(micro_batch=2, stages=(stage, {**STAGE, "devices": [8, 12]}))
    assert (configuration.stride, configuration.pp, configuration.vpp) == (12, 2, 1)


def test_the_example_profiles_agree():
    one, two = load_profile(EXAMPLES / "profile.yaml"), load_profile(EXAMPLES / "profile.csv")
    assert one.degrees == (1, 2) and one.length == 26
    pairs = zip(one.layers, two.layers, strict=True)
    for a, b in pairs:
        assert (a.name, a.repeat, a.output_bytes) == (b.name, b.repeat, b.output_bytes)
        for degree, m in a.tp.items():
            assert m.forward == pytest.approx(b.tp[degree].forward)
            assert m.backward == pytest.approx(b.tp[degree].backward)
            assert m.parameter_bytes == b.tp[degree].parameter_bytes
            assert m.activation_bytes == b.tp[degree].activation_bytes


def test_problems_between_layers_of_a_profile():
    first = PROFILE["layers"][0]
    other = {**first, "name": "b", "tp": {2: first["tp"]["1"]}}
    assert "no tp degree that every layer has" in message(
        load_profile, {**PROFILE, "layers": [first, other]}
    )
    assert "layers.1.name: got 'a' again" in message(
        load_profile, {**PROFILE, "layers": [first, first]}
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"devices": -3}, "devices: got -3; allowed: at least 1"),
        ({"default_devices": "many"}, "default_devices: got 'many'; allowed: a whole number"),
        ({"order": [0, -1]}, "order.1: got -1; allowed: at least 0"),
        ({"names": 7}, "names: got 7; allowed: a list"),
    ],
)
def test_fields_that_a_number_of_devices_replaces_are_checked_too(changes, expected):
    for data in (CLUSTER, TEMPLATE):
        assert expected in message(load_cluster, {**data, **changes}, devices=16)


@pytest.mark.parametrize(
    ("name", "devices", "filling", "groups", "numbers"),
    [
        ("dgx-h100", 320, None, (8, 160, 320), {159: 159, 160: 256, 319: 415}),
        ("dgx-h100", 320, 256, (8, 256, 512), {}),
        ("dgx-h100", 320, 128, (8, 128, 384), {128: 256, 319: 575}),
        ("dgx-h100", 640, None, (8, 256, 768), {}),
        ("dgx-h100", 1000, None, (8, 256, 1024), {}),
        ("dgx-h100", 9, None, (8, 16), {}),
        ("dgx-h100", 12, None, (6, 12), {5: 5, 6: 8, 11: 13}),
        ("dgx-h100", 512, 128, (8, 128, 512), {511: 895}),
        ("gb200-nvl72", 256, None, (64, 256), {63: 63, 64: 72, 255: 279}),
        ("gb200-nvl72", 256, 56, (56, 280), {224: 288, 255: 319}),
        ("gb200-nvl72", 60, None, (60,), {}),
        ("gb200-nvl72", 64, 32, (32, 64), {32: 72}),
        ("gb200-nvl72", 10**6, 72, (72, 1000008), {}),
    ],
)
def test_any_number_of_devices_fills_groups(name, devices, filling, groups, numbers):
    """Evenly where that is exact; else, or with a filling, all but the last group alike."""
    cluster = load_cluster(name, devices=devices, filling=filling)
    assert cluster.size == devices and cluster.group_sizes == groups
    found = cluster.numbers
    assert (found is None) == (not numbers)
    assert all(found[device] == number for device, number in numbers.items())
    assert Cluster.parse(cluster.as_dict()) == cluster
    back = cluster.with_devices(devices if filling is None else 2 * groups[0])
    assert filling is not None or back == cluster


@pytest.mark.parametrize("filling", [0, -1, 60, 300, 320, 10**7, 2.5, True])
def test_a_filling_that_no_level_has_says_which_are_allowed(filling):
    text = message(load_cluster, "dgx-h100", devices=320, filling=filling)
    assert "got" in text and ("1 to 8, 8 x (1 to 32)" in text or "whole number" in text)


def test_a_cluster_with_links_has_no_filling():
    cluster = Cluster.parse({**CLUSTER, "levels": CLUSTER["levels"][:1], "links": {
        "switches": 1, "source": [0, 1, 2, 3, 4, 4, 4, 4], "target": [4, 4, 4, 4, 0, 1, 2, 3],
        "bandwidth": [1e9] * 8, "latency": [0.0] * 8}})
    assert "allowed: 4, those of its links" in message(cluster.with_devices, 4, 2)
    assert "allowed: 4" in message(cluster.with_devices, 3)
    assert "allowed: at least size = 4" in message(
        Cluster.parse, {**CLUSTER, "levels": [{**CLUSTER["levels"][0], "whole": 3}]})


def test_a_kind_of_link_stands_for_figures_left_out():
    inner = {"name": "node", "size": 8, "link": "nvlink4"}
    outer = {"name": "leaf", "size": 2, "link": "infiniband", "bandwidth": "200G", "latency": 9e-6}
    cluster = load_cluster({"name": "c", "device": "h100-sxm", "levels": [inner, outer]})
    near, far = cluster.levels
    known = load_cluster("dgx-h100").levels
    for name in ("bandwidth", "latency", "efficiency", "base_time", "ramp"):
        assert getattr(near, name) == getattr(known[0], name)
    assert near.defaults(cluster.device) == (
        "bandwidth", "latency", "efficiency", "base_time", "ramp")
    assert (far.bandwidth, far.latency, far.efficiency) == (25e9, 9e-6, known[1].efficiency)
    assert far.defaults(cluster.device) == ("efficiency",)
    assert Cluster.parse(cluster.as_dict()).levels == cluster.levels
    wide = load_cluster({"name": "c", "device": "h100-sxm", "levels": [
        inner, {"name": "leaf", "size": 2, "link": "roce", "oversubscription": 2}]})
    assert wide.levels[1].bandwidth is None and wide.levels[1].defaults(wide.device) == (
        "latency", "efficiency")
    bare = {"name": "node", "size": 8, "bandwidth": "400G"}
    assert "latency: missing; needed: seconds of one message through this level, or a kind" in (
        message(load_cluster, {"name": "c", "device": "h100-sxm", "levels": [bare]}))


def test_every_kind_of_link_has_figures_and_a_source():
    kinds = catalog.link_kinds()
    assert sorted(kinds) == sorted(get_args(LinkKind))
    for kind, figures in kinds.items():
        assert figures["source"]
        level = Level.parse({"name": "l", "size": 2, "link": kind})
        assert level.bandwidth and 0.5 < level.efficiency < 0.95 and level.latency < 2e-5


HEADER = "layer,tp,forward_s,backward_s,parameter_bytes,activation_bytes,output_bytes,repeat\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty; allowed: columns layer"),
        ("layer,tp\n", "column forward_s is missing"),
        (HEADER.replace("repeat", "colour"), "unknown column 'colour'"),
        (HEADER.replace("repeat", "tp"), "column tp comes twice"),
        (HEADER + "a,1,1\n", "line 2: got 3 cells; allowed: 8"),
        (HEADER + "a,x,1,1,1,1,1,1\n", "line 2: tp: got 'x'; allowed: a whole number"),
        (HEADER + "a,1,1,1,1,1,1,1\na,1,1,1,1,1,1,1\n", "line 3: tp: got 1 again for 'a'"),
        (HEADER + "a,1,1,1,1,1,1,1\na,2,1,1,1,1,2,1\n", "line 3: output_bytes: got '2'"),
        (HEADER + "a,1,fast,1,1,1,1,1\n", "layers.0.tp.1.forward: got 'fast'"),
        (HEADER + "a,1,,1,1,1,1,1\n", "forward: missing"),
        (HEADER + 'a,1,"1,1,1,1,1,1\n', "malformed CSV"),
        (HEADER, "layers: got []; allowed: at least 1 entries"),
    ],
)
def test_a_bad_table_says_which_line(text, expected, tmp_path):
    path = put(tmp_path, text, "p.csv")
    found = message(load_profile, path)
    assert found.startswith(str(path)) and expected in found


def test_a_bandwidth_in_gigabytes_needs_its_unit():
    """450 is 450 bytes/s, which no level has."""
    levels = [{"name": "nvlink", "size": 8, "bandwidth": 450, "latency": "2 us"}]
    said = message(load_cluster, {"name": "c", "device": "h100-sxm", "levels": levels})
    assert said == ("cluster: levels.0.bandwidth: got 450, in bytes/s as no unit is given; "
                    "allowed: at least 1 MB/s, such as '450 GB/s'")


@pytest.mark.parametrize(("device", "link", "rate"), [
    ("h100-sxm", "nvlink4", 450e9), ("h800", "nvlink4", 200e9), ("H800", "nvlink4", 200e9),
    ("h20", "nvlink4", 450e9), ("mi300x", "xgmi", 448e9), ("mi355x", "xgmi", 535.5e9),
    ("tpu-v4", "ici", 300e9), ("tpu-v5p", "ici", 600e9), ("tpu-v5e", "ici", 200e9),
    ({"base": "h800", "memory": "96 GB"}, "nvlink4", 200e9),
    ({"base": "h800", "name": "ours"}, "nvlink4", 200e9),
    ({"base": "a100-sxm-80gb", "name": "a800-sxm"}, "nvlink3", 200e9),
    (load_device("h800"), "nvlink4", 200e9)])  # figures: the table of docs/catalog.md, Links
def test_the_rate_of_a_link_is_that_of_the_device_on_it(device, link, rate):
    def level(**given):
        return load_cluster({"name": "c", "device": device, "levels": [
            {"name": "node", "size": 8, "link": link, **given}]}).levels[0]

    assert level().bandwidth == rate
    assert level(bandwidth="7 GB/s").bandwidth == 7e9


def test_a_rate_that_is_the_devices_is_a_default_unless_the_level_has_a_source():
    level = {"name": "node", "size": 8, "link": "nvlink4"}
    known, stated = (load_cluster({"name": "c", "device": "h800", "levels": [one]})
                     for one in (level, {**level, "source": "measured"}))
    assert "bandwidth" in known.levels[0].defaults(known.device)
    assert stated.levels[0].defaults(stated.device) == ()


@pytest.mark.parametrize(("name", "device", "rates"), [
    ("dgx-h100", "h800", (200e9, 50e9, 50e9)), ("dgx-h100", "h200-sxm", (450e9, 50e9, 50e9)),
    ("dgx-h100", "b200-sxm", (450e9, 50e9, 50e9)),  # other links, which a note names
    ("h100-spine-leaf", "h800", (900e9, 12.5e9, 50e9))])  # stated there, not by a kind of link
def test_the_rate_inside_a_node_follows_another_device(name, device, rates):
    other = load_cluster(name).with_device(load_device(device))
    assert other.nominal_bandwidth == rates and other.device.name == device
    data = {**catalog.load("clusters", name), "device": device}
    assert load_cluster(data).nominal_bandwidth[1:] == rates[1:]
