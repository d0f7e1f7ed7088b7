"""Failed and slow parts of networks."""

from __future__ import annotations

import numpy as np
import pytest
from topologies import A100, H100, network

from nest.errors import InputError
from nest.network import Topology, degrade, parse_generator, without
from nest.network.topology import Draft

FABRIC = parse_generator("spine-leaf:leaves=3,per_leaf=4,node=2,spines=2")


def rate(topology: Topology, one: str, other: str) -> float:
    ends = (np.array([topology.index[name]]) for name in (one, other))
    link = int(topology.links(*ends)[0])
    return float(topology.bandwidth_E[link]) if link >= 0 else 0.0


def test_a_node_goes_with_all_that_is_in_it() -> None:
    left = without(FABRIC, "node1")
    gone = set(FABRIC.nodes) - set(left.nodes)
    assert gone == {"node1", "node1/gpu0", "node1/gpu1", "node1/nic0", "node1/nic1"}
    assert len(left.device_N) == 10
    kept = [name for name in FABRIC.nodes if name in left.index]
    assert list(left.nodes) == kept  # in the order they had
    for one, other in (("node0/gpu0", "node0"), ("leaf1", "spine1"), ("spine1", "leaf1")):
        assert rate(left, one, other) == rate(FABRIC, one, other) > 0
    assert left.types == (H100,) and (left.type_V[left.device_N] == 0).all()


def test_ranges_and_links() -> None:
    left = without(FABRIC, "node1..3, link:leaf0-spine1")
    assert len(left.device_N) == 6
    assert rate(left, "leaf0", "spine1") == rate(left, "spine1", "leaf0") == 0
    assert rate(left, "leaf0", "spine0") > 0
    # ports still hang from the leaf, but the switch of the node leads to no device any more
    for text in ("node0/gpu0..1", "node0/gpu0..gpu1", "node0/gpu0..node0/gpu1"):
        gone = set(FABRIC.nodes) - set(without(FABRIC, text).nodes)
        assert gone == {"node0", "node0/gpu0", "node0/gpu1"}


def test_names_with_dashes() -> None:
    cables = [("a-b", "s-1", 8.0, 0.0), ("c", "s-1", 8.0, 0.0), ("c", "a-b", 8.0, 0.0)]
    graph = network(["a-b", "c"], cables)
    assert rate(without(graph, "link:a-b-s-1"), "a-b", "s-1") == 0
    assert rate(degrade(graph, "link:s-1-a-b=0.25"), "a-b", "s-1") == 2


def test_links_one_way() -> None:
    draft = Draft("n", "n")
    nodes = [draft.device(f"d{n}", H100) for n in range(3)]
    for one, other in ((0, 1), (1, 2), (2, 0), (1, 0)):
        draft.link(nodes[one], nodes[other], 1.0, 0.0)
    ring = draft.build()
    assert rate(degrade(ring, "link:d2-d0=0.5"), "d2", "d0") == 0.5
    assert rate(degrade(ring, "link:d0-d2=0.5"), "d2", "d0") == 0.5
    with pytest.raises(InputError, match="disconnected"):
        without(ring, "link:d2-d0")


def test_types_that_are_left() -> None:
    draft = Draft("n", "n")
    switch = draft.switch("s")
    for name, device in (("a", H100), ("b", A100), ("c", A100)):
        draft.cable(draft.device(name, device), switch, 1.0, 0.0)
    left = without(draft.build(), "a")
    assert left.types == (A100,)
    assert left.type_V.tolist() == [-1, 0, 0]


def test_slow_links_and_switches() -> None:
    slow = degrade(FABRIC, "link:leaf0-spine1=0.5,spine0=0.1")
    before = rate(FABRIC, "leaf0", "spine1")
    assert rate(slow, "leaf0", "spine1") == rate(slow, "spine1", "leaf0") == before * 0.5
    assert rate(slow, "leaf2", "spine0") == rate(slow, "spine0", "leaf2") == before * 0.1
    assert rate(slow, "leaf2", "spine1") == before
    assert (slow.latency_E == FABRIC.latency_E).all() and slow.types == FABRIC.types


def test_slow_devices() -> None:
    slow = degrade(FABRIC, "node1/gpu0=0.5,node2/gpu0..1=0.5")
    numbers = [FABRIC.number_V[FABRIC.index[n]] for n in ("node1/gpu0", "node2/gpu0", "node2/gpu1")]
    kinds = slow.type_V[slow.device_N]
    assert sorted(set(kinds.tolist())) == [0, 1]
    assert np.flatnonzero(kinds == 1).tolist() == numbers
    assert slow.types[0] == H100 and slow.types[1].name == "h100-sxm x 0.5"
    assert slow.types[1].peak_flops["bf16"] == H100.peak_flops["bf16"] / 2
    assert slow.types[1].memory_bandwidth == H100.memory_bandwidth / 2
    assert slow.types[1].memory == H100.memory
    assert (slow.bandwidth_E == FABRIC.bandwidth_E).all()


def test_a_name_stands_for_what_is_in_it_when_slow_too() -> None:
    slow = degrade(FABRIC, "node1=0.5")
    assert np.flatnonzero(slow.type_V[slow.device_N] == 1).tolist() == [2, 3]
    # the node's switch and its ports are switches; a link between two of them counts once
    assert rate(slow, "node1/gpu0", "node1") == rate(FABRIC, "node1/gpu0", "node1") / 2
    assert rate(slow, "node1/nic0", "leaf0") == rate(FABRIC, "node1/nic0", "leaf0") / 2


@pytest.mark.parametrize(("change", "text", "says"), [
    (without, "node9", "without: got 'node9'; did you mean node5? allowed: node0 to "),
    (without, "", "without: got ''; allowed: names of nodes, ranges"),
    (without, "node1,", "without: got 'node1,'; allowed: names of nodes"),
    (without, "node4..7", "without: got 'node6' in 'node4..7'; did you mean node"),
    (without, "node3..1", "without: got 'node3..1'; allowed: a range that does not fall"),
    (without, "node1..leaf2", "without: got 'node1..leaf2'; allowed: node0 to node5"),
    (without, "link:leaf0-leaf1", "without: got no link between 'leaf0' and 'leaf1'; allowed: a"),
    (without, "link:leaf0-top", "without: got 'top' in 'link:leaf0-top'; allowed: node0 to "),
    (without, "link:leaf0", "without: got 'link:leaf0'; allowed: link:A-B"),
    (without, "spine0,spine1", "without spine0,spine1: got a disconnected network"),
    (without, "node0..5", "without node0..5: got no device; allowed: at least one"),
    (degrade, "node1", "degrade: got 'node1'; allowed: PART=FACTOR"),
    (degrade, "node1=0", "degrade: got 'node1=0'; allowed: PART=FACTOR with a factor above 0"),
    (degrade, "node1=2", "degrade: got 'node1=2'"),
    (degrade, "node1=nan", "degrade: got 'node1=nan'"),
    (degrade, "=0.5", "degrade: got '=0.5'"),
    (degrade, "node9=0.5", "degrade: got 'node9'; did you mean node"),
])
def test_bad_parts(change: object, text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        change(FABRIC, text)  # type: ignore[operator]
    assert says in str(caught.value)
