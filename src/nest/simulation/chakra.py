"""Chakra execution traces of one training step, a file for each rank, for ASTRA-sim.

Nodes: mlcommons/chakra@21585d8f2d schema/protobuf/et_def.proto:88 to 147, written one behind the
other with their lengths in front. Attributes, groups of ranks
(``comm_group.json``) and the meaning of sizes: astra-sim/astra-sim@518bd513ae
astra-sim/workload/Workload.cc:71 (groups), 213 (durations), 283 (collectives), 391 (messages) and
astra-sim/system/astraccl/native_collectives/collective_algorithm/Ring.cc:69: an all-gather takes
the bytes of a member, the others take those of the whole buffer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from nest.errors import UnsupportedError
from nest.evaluation.plans import Plan
from nest.evaluation.ranks import Rank
from nest.simulation import protobuf
from nest.simulation.graph import Node, StepGraph, unlike
from nest.simulation.volumes import EXCHANGE, GATHER, REDUCE, SCATTER

VERSION = "Chakra 0.0.4"
"""As ASTRA-sim's own traces say it: examples/workload/microbenchmarks of astra-sim."""
MOST_NODES = 3_000_000
"""Nodes of all ranks (chosen: about 300 MB)."""
GROUPS = "comm_group.json"
Part = tuple[str, int]
"""What a rank has of its own in a node: a group, or the stage that it sends to or receives from."""
_COMPUTE, _SEND, _RECEIVE, _COLLECTIVE = 4, 5, 6, 7
_TYPES = {REDUCE: 0, GATHER: 2, EXCHANGE: 6, SCATTER: 7}
_BOOL, _INT32, _INT64, _TEXT = 27, 7, 9, 29
"""Numbers of AttributeProto's fields."""


def files(plan: Plan) -> dict[str, str | bytes]:
    """``plan.0.et`` and so on by rank, and the groups of ranks.

    Ranks are numbered in the order of the cluster.

    Raises
    ------
    UnsupportedError : stages of other degrees, or more nodes than allowed.
    """
    problems = [*_problems(plan)]
    if problems:
        raise UnsupportedError("\n".join(["chakra cannot express this plan:", *problems]),
                               tuple(problems))
    graph = StepGraph(plan)
    count = sum(len(graph.stages[rank.stage]) for rank in graph.ranks)
    if count > MOST_NODES:
        reason = (f"{count} nodes; allowed: {MOST_NODES}; trace a plan of fewer micro-batches or "
                  "devices")
        raise UnsupportedError(f"chakra cannot express this plan:\n{reason}", (reason,))
    groups: dict[tuple[int, ...], int] = {}
    title = protobuf.block(1, VERSION.rpartition(" ")[2].encode()) + protobuf.block(
        2, _text("nest", f"{plan.step_time_s:.6g} s per step"))
    shared = [[*_shared(graph, number)] for number in range(plan.parallelism.pp)]
    found: dict[str, str | bytes] = {}
    for rank in graph.ranks:
        own = {part: _own(graph, rank, part, groups)
               for part in dict.fromkeys(part for _, part in shared[rank.stage])}
        messages = (message + own[part] for message, part in shared[rank.stage])
        found[f"plan.{rank.rank}.et"] = b"".join(
            map(protobuf.delimited, (title, *messages)))
    found[GROUPS] = json.dumps({str(number): list(members) for members, number in groups.items()},
                               indent=1) + "\n"
    return found


def _problems(plan: Plan) -> Iterator[str]:
    yield from plan.problems
    yield from unlike(plan.configuration)


def _shared(graph: StepGraph, stage: int) -> Iterator[tuple[bytes, Part]]:
    """Nodes of a stage but for what its ranks have of their own, and what that is."""
    first = next(one for one in graph.ranks if one.stage == stage)
    seconds, micros = 0.0, 0
    for at, node in enumerate(graph.stages[stage]):
        seconds += node.seconds  # rounded over the step, so that all microseconds add up to it
        until = round(seconds * 1e6)
        type_, attributes, part = _attributes(graph, first, node)
        yield b"".join((
            protobuf.number(1, at), protobuf.block(2, node.name.encode()),
            protobuf.number(3, type_), protobuf.packed(5, node.after),
            protobuf.number(7, until - micros),
            *(protobuf.block(10, one) for one in (_flag("is_cpu_op", False), *attributes)))), part
        micros = until


def _attributes(graph: StepGraph, rank: Rank, node: Node) -> tuple[int, list[bytes], Part]:
    """Type of a node, attributes that all ranks of the stage share, and those that they do not."""
    if node.peer is not None:
        return _RECEIVE if node.receives else _SEND, [
            _whole("comm_size", round(node.size)), _small("comm_tag", node.tag)
        ], ("receives" if node.receives else "sends", node.peer)
    if node.sent is None:
        return _COMPUTE, [], ("", 0)
    size = node.sent.buffer(len(graph.members(node.sent.group, rank)))
    return _COLLECTIVE, [_whole("comm_type", _TYPES[node.sent.collective]),
                         _whole("comm_size", round(size))], (node.sent.group, 0)


def _own(
    graph: StepGraph, rank: Rank, part: Part, groups: dict[tuple[int, ...], int]
) -> bytes:
    """Attributes of a rank: ends of a message, or a group, which gets a number from 1 on."""
    name, stage = part
    if not name:
        return b""
    if name in ("sends", "receives"):
        ends = rank.rank, graph.peer(rank, stage)
        source, target = ends if name == "sends" else ends[::-1]
        found = [_small("comm_src", source), _small("comm_dst", target)]
    else:
        members = graph.members(name, rank)
        found = [_text("pg_name", str(groups.setdefault(members, len(groups) + 1)))]
    return b"".join(protobuf.block(10, one) for one in found)


def _whole(name: str, value: int) -> bytes:
    return protobuf.block(1, name.encode()) + protobuf.chosen(_INT64, value)


def _small(name: str, value: int) -> bytes:
    return protobuf.block(1, name.encode()) + protobuf.chosen(_INT32, value)


def _flag(name: str, value: bool) -> bytes:
    return protobuf.block(1, name.encode()) + protobuf.chosen(_BOOL, int(value))


def _text(name: str, value: str) -> bytes:
    return protobuf.block(1, name.encode()) + protobuf.block(_TEXT, value.encode())
