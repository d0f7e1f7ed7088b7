"""Devices of several types: who gets which share, what each stage may hold, what is refused."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from command_line import run

import nest
from nest.evaluation.even import even_configuration
from nest.inputs import Configuration, Job, Model, load_device
from nest.network import Topology, mixtures
from nest.network.network import load_network, other_orders
from nest.network.readers.format import topology_from
from nest.planners.compare import compare

pytestmark = pytest.mark.kernels(uncompiled=True)
SLOW, FAST = load_device("a100-sxm-80gb"), load_device("h100-sxm")


def network(slow: int, fast: int, each: int = 4, spare: int = 0) -> Topology:
    """Nodes of slow and of fast devices at one leaf, and slow devices of their own."""
    nodes: list[dict[str, object]] = [{"name": "leaf", "kind": "switch"}]
    links: list[dict[str, object]] = []
    kinds = ["a100-sxm-80gb"] * slow + ["h100-sxm"] * fast
    for n, kind in enumerate(kinds):
        nodes.append({"name": f"node{n}", "kind": "switch"})
        links.append({"source": f"node{n}", "target": "leaf", "bandwidth": f"{50 * each} GB/s",
                      "latency": "3 us"})
        for g in range(each):
            nodes.append({"name": f"node{n}/gpu{g}", "kind": "device", "device": kind})
            links.append({"source": f"node{n}/gpu{g}", "target": f"node{n}",
                          "bandwidth": "300 GB/s", "latency": "1 us"})
    for n in range(spare):
        nodes.append({"name": f"spare{n}", "kind": "device", "device": "a100-sxm-80gb"})
        links.append({"source": f"spare{n}", "target": "leaf", "bandwidth": "10 GB/s",
                      "latency": "4 us"})
    return topology_from({"name": "mixed", "nodes": nodes, "links": links}, "mixed.yaml", None)


def model(layers: int = 12) -> Model:
    return Model(name="small", layers=layers, hidden=2048, heads=16, ffn=8192, vocab=32000,
                 gated=False, tied_embeddings=False, norm="layernorm", bias=True)


JOB = Job(global_batch=64, seq_len=2048)


def test_copies_of_a_layer_have_devices_of_one_type() -> None:
    """DualPipe's stages 0 and 1 hold the same layers."""
    for slow, fast in ((2, 0), (1, 1)):
        cluster = load_network(network(slow, fast))
        plan = even_configuration(model(), cluster, JOB, pp=2, tp=4, schedule="dualpipe")
        if not fast:
            assert abs(nest.simulate(nest.evaluate(
                model(), cluster, JOB, plan)).relative_difference) < 1e-9
            continue
        with pytest.raises(nest.InputError, match="stages.0: has other devices than stage 1, whi"):
            nest.evaluate(model(), cluster, JOB, plan)


def test_every_replica_takes_the_same_share_of_each_type() -> None:
    found = [one for one, _ in mixtures(network(2, 4), [2])]
    # Nodes 0 and 1 are slow (devices 0..7), 2 to 5 fast (8..23): one and two for each of two.
    assert [one.order_N.tolist() for one in found] == [
        [*range(4), *range(8, 16), *range(4, 8), *range(16, 24)],
        [*range(8, 16), *range(4), *range(16, 24), *range(4, 8)]]
    assert [one.cluster.group_sizes for one in found] == 2 * [(4, 12, 24)]
    for one in found:
        kinds = one.cluster.type_numbers
        assert kinds is not None and kinds[:12] == kinds[12:]
        assert one.cluster.device_types[one.cluster.type_at(0)] in (SLOW, FAST)


def test_less_than_a_node_is_dealt_out_by_devices() -> None:
    # Eight replicas of two nodes and four: one slow device and two fast ones each.
    first, _ = next(mixtures(network(2, 4), [8]))
    assert first.cluster.group_sizes == (3, 24)
    assert first.order_N[:6].tolist() == [0, 8, 9, 1, 10, 11]


def test_what_has_no_equal_share_is_idle() -> None:
    # Three devices apart: one for each of three replicas, none for each of four.
    topology = network(0, 4, spare=3)
    assert [one.cluster.size for one, _ in mixtures(topology, [3])] == [15, 15]
    assert not list(mixtures(topology, [4]))


def test_types_may_be_left_out() -> None:
    cluster = load_network(network(2, 4))
    found = [(other.size, count) for other, count in other_orders(cluster, [2])]
    # Slow ones alone, fast ones alone, and both in either order for two replicas.
    assert found == [(8, None), (16, None), (24, 2), (24, 2)]


@pytest.mark.kernels
def test_one_slow_device_costs_no_more_than_its_node() -> None:
    """The groups of all others stay as they are, and the slow one may stay idle.

    Of one chunk a stage: chunks wrap around the idle device.
    """
    slow = load_network("fat-tree:k=4", degrade="gpu5=0.25")
    gone = load_network("fat-tree:k=4", without="gpu5")
    plans = [nest.plan(model(), cluster, JOB, nest.SearchSpace(vpp=1), beyond_stack=True)
             for cluster in (slow, gone)]
    assert plans[0].step_time_s <= plans[1].step_time_s * (1 + 1e-9)
    assert (2, 14) in {cluster.group_sizes for cluster, _ in other_orders(slow, [])}


def test_fast_devices_get_more_layers() -> None:
    cluster = load_network(network(1, 1))
    space = nest.SearchSpace.parse({"pp": 2, "outer_dp": 1, "micro_batch": 4})
    plan = nest.plan(model(), cluster, JOB, space, beyond_stack=True)
    types = [plan.inputs.cluster.type_at(stage.devices[0]) for stage in plan.stages]
    names = [plan.inputs.cluster.device_types[kind].name for kind in types]
    layers = {name: sum(stop - start for start, stop in stage.chunks)
              for name, stage in zip(names, plan.stages, strict=True)}
    assert layers["h100-sxm"] > 1.5 * layers["a100-sxm-80gb"]
    times = [stage.time_s.total for stage in plan.stages]
    assert max(times) < 1.4 * min(times)
    again = nest.evaluate(model(), plan.inputs.cluster, JOB, plan.configuration)
    assert again.step_time_s == plan.step_time_s


@pytest.mark.parametrize("slow", range(4))
def test_chunks_interleave_on_blocks_of_one_type_only(slow: int) -> None:
    """The first block of 8 of 16 devices, or the last one, has a slow device."""
    cluster = load_network("fat-tree:k=4", degrade=f"gpu{slow}=0.5")
    space = nest.SearchSpace.parse({"outer_dp": 1, "vpp": 2})
    plan = nest.plan(model(), cluster, JOB, space, beyond_stack=True)
    for stage in plan.stages:
        assert len({plan.inputs.cluster.type_at(d) for d in range(*stage.devices)}) == 1


@pytest.mark.kernels
def test_the_order_of_the_types_is_chosen() -> None:
    """The plan is the fastest of those for each order; more than one number of replicas."""
    cluster, space = load_network(network(2, 2)), nest.SearchSpace()
    plan = nest.plan(model(), cluster, JOB, space, beyond_stack=True)
    each = []
    for order, count in other_orders(cluster, [1, 2, 4, 8, 16]):
        bounds = space.replace(outer_dp=count) if count else space
        each.append(nest.plan(model(), order, JOB, bounds, reorder=False,
                              beyond_stack=True).step_time_s)
    own = nest.plan(model(), cluster, JOB, space, reorder=False, beyond_stack=True).step_time_s
    assert len(each) > 6
    assert plan.step_time_s == min(own, *each)
    assert plan.step_time_s < max(each)


@pytest.mark.kernels
def test_each_stage_has_the_memory_of_its_own_type() -> None:
    small = {"base": "h100-sxm", "name": "small", "memory": "20 GiB"}
    topology = network(1, 1)
    cluster = load_network(topology)
    cluster = cluster.replace(types=[small])
    stages = [{"layers": (0, 7), "devices": (0, 4), "dp_in": 4, "tp": 1},
              {"layers": (7, 14), "devices": (4, 8), "dp_in": 4, "tp": 1}]
    plan = nest.evaluate(model(), cluster, JOB, Configuration(
        micro_batch=4, stride=8, outer_dp=1, stages=stages))
    first, second = (stage.memory_limit_bytes for stage in plan.stages)
    assert first - second == pytest.approx(
        (1 - JOB.stack.fragmentation - JOB.memory_margin) * (SLOW.memory - 20 * 2**30)
        - SLOW.memory_reserved + FAST.memory_reserved)
    found = nest.plan(model(30), cluster, JOB, beyond_stack=True)
    for stage in found.stages:
        assert stage.memory_bytes.total <= stage.memory_limit_bytes


def test_a_block_of_two_types_is_refused() -> None:
    stages = [{"layers": (0, 14), "devices": (0, 8), "dp_in": 8}]
    plan = Configuration(micro_batch=8, stride=8, outer_dp=1, stages=stages)
    with pytest.raises(nest.InputError, match=r"stages.0: devices \[0, 8\) are of several types"):
        nest.evaluate(model(), load_network(network(1, 1)), JOB, plan)


@pytest.mark.parametrize(("changes", "message"), [
    ({"type_numbers": None}, "kinds: got one of types and kinds; allowed: both or neither"),
    ({"links": None}, "kinds: got types of a cluster without links; allowed: with links"),
    ({"type_numbers": [0] * 8}, r"kinds: got \[0\]; allowed: all of 0 to 1"),
    ({"type_numbers": [0, 1]}, "kinds: got 2 entries; allowed: 8, as many as devices"),
])
def test_bad_types_are_told(changes: dict[str, object], message: str) -> None:
    with pytest.raises(nest.InputError, match=message):
        load_network(network(1, 1)).replace(**changes)


@pytest.mark.kernels
def test_other_planners_take_all_devices_to_be_alike() -> None:
    found = compare(model(), load_network(network(1, 1)), JOB, names=("nest", "manual", "alpa"))
    assert [entry.plan is not None for entry in found] == [True, False, False]
    reason = "assumes devices of one type; here they are a100-sxm-80gb, h100-sxm"
    assert {entry.reason for entry in found[1:]} == {reason}


@pytest.mark.kernels
def test_the_command_shows_the_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = {"name": "two", "nodes": [{"name": "s", "kind": "switch"}], "links": []}
    for n, kind in enumerate(("a100-sxm-80gb", "a100-sxm-80gb", "h100-sxm", "h100-sxm")):
        text["nodes"].append({"name": f"gpu{n}", "kind": "device", "device": kind})
        text["links"].append({"source": f"gpu{n}", "target": "s", "bandwidth": "100 GB/s",
                              "latency": "2 us"})
    (tmp_path / "two.json").write_text(json.dumps(text), encoding="utf-8")
    words = ("bert-large", "two.json", "--global-batch", "64", "--seq-len", "512")
    out, _ = run(capsys, "plan", *words, "--pp", "2", "--details", "-o", "plan.json")
    assert "h100-sxm" in out and "type" in out and "simulated" in out.casefold()
    again, _ = run(capsys, "evaluate", "plan.json", "--json")
    saved = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert json.loads(again)["step_time_s"] == saved["step_time_s"]
    even, _ = run(capsys, "evaluate", *words, "--pp", "2", "--json")
    stages = json.loads(even)["stages"]
    assert [a["devices"][1] for a in stages] == [b for _, b in (s["devices"] for s in stages)]
    assert all(a["devices"][1] == b["devices"][0] for a, b in pairwise(stages))
