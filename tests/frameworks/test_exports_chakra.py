"""Chakra traces: read back by the rules of Protocol Buffers, and compared with the plan."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from test_exports_megatron import small

import nest
from nest.errors import InputError, UnsupportedError
from nest.simulation import chakra

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a message's fields: wire types 0, 1 and 2."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
            yield key >> 3, value
        elif key & 7 == 2:
            size, at = varint(data, at)
            yield key >> 3, data[at:at + size]
            at += size
        else:
            yield key >> 3, struct.unpack("<d", data[at:at + 8])[0]
            at += 8


def messages(data: bytes) -> list[dict[str, Any]]:
    """Nodes of a trace, with their attributes by name; the first message is the metadata."""
    found, at = [], 0
    while at < len(data):
        size, at = varint(data, at)
        node: dict[str, Any] = {"id": 0, "after": [], "micros": 0, "type": 0}
        for number, value in fields(data[at:at + size]):
            if number == 10:
                (_, name), (_, one) = fields(value)
                node[name.decode()] = one.decode() if isinstance(one, bytes) else one
            elif number == 5:
                place = 0
                while place < len(value):
                    one, place = varint(value, place)
                    node["after"].append(one)
            else:
                node[{1: "id", 2: "name", 3: "type", 7: "micros"}[number]] = value
        found.append(node)
        at += size
    return found[1:]


@pytest.fixture(scope="module")
def plan() -> nest.Plan:
    return small(tp=2, pp=2, zero=1)


@pytest.fixture(scope="module")
def traces(plan: nest.Plan) -> dict[int, list[dict[str, Any]]]:
    files = nest.export(plan, "chakra")
    return {n: messages(files[f"plan.{n}.et"]) for n in range(len(plan.ranks()))}


def test_nodes_wait_for_earlier_ones(traces: dict[int, list[dict[str, Any]]]) -> None:
    for nodes in traces.values():
        assert [node["id"] for node in nodes] == list(range(len(nodes)))
        assert all(before < node["id"] for node in nodes for before in node["after"])
        assert {node["is_cpu_op"] for node in nodes} == {0}


def test_microseconds_add_up_to_those_of_the_plan(
    plan: nest.Plan, traces: dict[int, list[dict[str, Any]]]
) -> None:
    m = plan.parallelism.micro_batches
    for rank in plan.ranks():
        t = plan.stages[rank.stage].time_s
        *computed, update = (node["micros"] for node in traces[rank.rank]
                             if node["type"] == COMPUTE)
        # The last one is the optimizer; sums are rounded once.
        assert sum(computed) == pytest.approx(m * (t.forward + t.backward + t.recompute) * 1e6,
                                              abs=1.0)
        assert update > 0


def test_members_of_a_group_do_the_same(
    plan: nest.Plan, traces: dict[int, list[dict[str, Any]]]
) -> None:
    groups = json.loads(nest.export(plan, "chakra")[chakra.GROUPS])
    for name, members in groups.items():
        each = [[(node["comm_type"], node["comm_size"]) for node in traces[member]
                 if node.get("pg_name") == name] for member in members]
        assert each[0] and all(one == each[0] for one in each)
    used = {node["pg_name"] for nodes in traces.values() for node in nodes if "pg_name" in node}
    assert used == {*groups} and "0" not in groups  # ASTRA-sim: 0 is all ranks


def test_each_message_has_two_ends(traces: dict[int, list[dict[str, Any]]]) -> None:
    ends: dict[Any, list[int]] = defaultdict(list)
    for rank, nodes in traces.items():
        for node in nodes:
            if node["type"] in (SEND, RECEIVE):
                assert node["comm_src" if node["type"] == SEND else "comm_dst"] == rank
                ends[node["comm_src"], node["comm_dst"], node["comm_tag"], node["comm_size"]
                     ].append(node["type"])
    assert ends and all(sorted(found) == [SEND, RECEIVE] for found in ends.values())


def test_sizes_worked_out_by_hand(
    plan: nest.Plan, traces: dict[int, list[dict[str, Any]]]
) -> None:
    """An all-gather takes a member's share, a reduce-scatter the whole buffer."""
    model, job = plan.inputs.model, plan.inputs.job
    assert model is not None
    sizes = {(node["name"].decode(), node["comm_size"]) for node in traces[0]
             if node["type"] == COLLECTIVE and node["name"].startswith(b"tp_forward")}
    # Micro-batch of 1, bf16, sequence parallelism, before attention and before the MLP.
    whole = 2 * job.seq_len * model.hidden
    assert ("tp_forward all_gather", 2 * whole // 2) in sizes
    assert ("tp_forward reduce_scatter", 2 * whole) in sizes
    [message] = {node["comm_size"] for node in traces[0] if node["type"] == SEND}
    assert message == whole // 2


def test_what_cannot_be_traced_is_refused(monkeypatch: pytest.MonkeyPatch, plan: nest.Plan) -> None:
    monkeypatch.setattr(chakra, "MOST_NODES", 10)
    with pytest.raises(UnsupportedError, match="nodes; allowed: 10; trace a plan of fewer"):
        nest.export(plan, "chakra")
    with pytest.raises(InputError, match="hosts, gpus_per_node: got values with chakra; allowed"):
        nest.export(plan, "chakra", gpus_per_node=8)


def test_the_command(
    plan: nest.Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    folder = tmp_path / "traces"
    out, _ = run(capsys, "export", str(tmp_path / "plan.json"), "--to", "chakra", "-o",
                 str(folder))
    assert len(out.split()) == len(plan.ranks()) + 1
    assert (folder / "plan.0.et").read_bytes() == nest.export(plan, "chakra")["plan.0.et"]
