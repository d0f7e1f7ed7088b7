"""A training step as SimAI's workload: the lines that its devices go through.

Columns, groups and header: aliyun/SimAI@cef83f9ddd
astra-sim-alibabacloud/astra-sim/workload/Workload.cc:1136 to 1540, example/workload_analytical.txt;
bubbles of a pipeline follow from the header: Layer.cc:504 beside it. Times are in nanoseconds,
sizes in bytes of the whole buffer.

All devices go through the same lines, so that these are those of the stage that computes longest,
for all micro-batches: forward from the first line to the last, then backward from the last to the
first. A line has one collective each way; a layer with several has several lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

from nest.errors import UnsupportedError
from nest.evaluation.plans import Plan
from nest.simulation.graph import StageLayer, StepGraph, unlike
from nest.simulation.volumes import EXCHANGE, GATHER, REDUCE, SCATTER, Sent

WORKLOAD = "workload.txt"
MOST_LINES = 1_000_000
"""Chosen: about 100 MB."""
_TYPES = {REDUCE: "ALLREDUCE", GATHER: "ALLGATHER", SCATTER: "REDUCESCATTER",
          EXCHANGE: "ALLTOALL"}
_GROUPS = {"tp": "", "etp": "", "ep": "_EP", "dp": "", "expert_dp": "_DP_EP"}
"""Endings of the types by group: none is tensor parallelism in a pass, and data parallelism of
weights."""
_NONE = "NONE", 0
_PASS = ("tp", "cp", "ep")


class Line(NamedTuple):
    """A line: seconds and a collective, forward, backward for inputs, and for weights."""

    name: str
    forward: float = 0.0
    sent: tuple[str, int] = _NONE
    inputs: float = 0.0
    sent_back: tuple[str, int] = _NONE
    weights: float = 0.0
    sent_of_weights: tuple[str, int] = _NONE


def files(plan: Plan) -> dict[str, str | bytes]:
    """The workload.

    Raises
    ------
    UnsupportedError : it has no groups or no passes for what the plan does, or more lines than
        allowed.
    """
    problems = [*_problems(plan)]
    if not problems:
        graph = StepGraph(plan)
        busiest = max(range(len(graph.stages)), key=lambda number: sum(
            node.seconds for node in graph.stages[number]))
        layers = [layer for chunk in graph.layers[busiest] for layer in chunk]
        found = [*_step(graph, busiest, layers), *(
            line for _ in range(graph.micro_batches) for layer in layers
            for line in _passes(graph, busiest, layer))]
        if len(found) > MOST_LINES:
            problems.append(f"{len(found)} lines; allowed: {MOST_LINES}; trace a plan of fewer "
                            "micro-batches")
    if problems:
        raise UnsupportedError("\n".join(["simai cannot express this plan:", *problems]),
                               tuple(problems))
    return {WORKLOAD: "\n".join([_header(plan, graph), str(len(found)), *_texts(found)]) + "\n"}


def _problems(plan: Plan) -> Iterator[str]:
    way, stage = plan.configuration, plan.stages[0]
    yield from plan.problems
    yield from unlike(way)
    if stage.cp > 1:
        yield f"cp {stage.cp}: it has no groups of context parallelism"
    if stage.zero > 1:
        yield f"zero {stage.zero}: passes have no collectives over data-parallel groups"
    if stage.zero and stage.shard == "dp_in" and way.outer_dp > 1:
        yield "shard dp_in: it has no groups of a part of the data-parallel ranks"
    if plan.inputs.model is not None and plan.inputs.model.moe is not None and (
            stage.etp != stage.tp):
        yield f"etp {stage.etp}: experts are divided as the other products, tp {stage.tp}"
    if way.pp > 1 and way.schedule not in ("1f1b", "interleaved"):
        yield f"schedule {way.schedule}: its bubbles are those of 1F1B, interleaved or not"
    if way.pp > 1 and plan.inputs.model is not None and plan.inputs.model.tied_embeddings:
        yield "tied embeddings: it has no group of both ends of a pipeline"


def _header(plan: Plan, graph: StepGraph) -> str:
    way, stage = plan.configuration, plan.stages[0]
    messages = [node.size for nodes in graph.stages for node in nodes if node.peer is not None]
    handed = f" pp_comm: {round(max(messages))}" if messages else ""
    return (f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: {stage.tp} "
            f"ep: {stage.ep} pp: {way.pp} vpp: {way.vpp} ga: {graph.micro_batches} "
            f"all_gpus: {len(graph.ranks)} checkpoints: 0 checkpoint_initiates: 0{handed}")


def _step(graph: StepGraph, stage: int, layers: list[StageLayer]) -> Iterator[Line]:
    """What happens once a step; backward comes last, from the last of these lines on."""
    once: dict[tuple[str, str, str], float] = {}
    for layer in layers:
        for field in ("gather", "sync"):
            for sent in layer.sent.get(field, ()):
                key = field, sent.collective, sent.group
                once[key] = once.get(key, 0.0) + sent.size
    update = sum(layer.priced.costs["update"] for layer in layers)
    rows = {field: [Line(f"parameters_{field}", sent_of_weights=_collective(
        graph, stage, Sent(field, collective, group, size)))
        for (name, collective, group), size in once.items() if name == field]
        for field in ("gather", "sync")}
    yield from rows["gather"]
    yield Line("optimizer", weights=update)
    yield from rows["sync"]


def _passes(graph: StepGraph, stage: int, layer: StageLayer) -> Iterator[Line]:
    """The lines of a layer for one micro-batch."""
    ahead, back = ([_collective(graph, stage, sent) for name in _PASS
                    for sent in layer.sent.get(f"{name}_{way}", ())]
                   for way in ("forward", "backward"))
    name = "embedding_layer" if layer.name == "embedding" else layer.name.replace(" ", "_")
    # Backward starts with the last line, whose computing comes before its collective.
    pairs = [*zip_longest(ahead, back, fillvalue=_NONE)] or [(_NONE, _NONE)]
    for at, ((there, _), (_, again)) in enumerate(zip(pairs, reversed(pairs), strict=True)):
        yield Line(name, layer.forward * (at == 0), there,
                   layer.backward * (at == len(pairs) - 1), again)


def _collective(graph: StepGraph, stage: int, sent: Sent) -> tuple[str, int]:
    """Type and bytes of the whole buffer."""
    rank = next(one for one in graph.ranks if one.stage == stage)
    members = len(graph.members(sent.group, rank))
    size = sent.buffer(members) * (members if sent.collective == GATHER else 1)
    return _TYPES[sent.collective] + _GROUPS[sent.group], round(size)


def _texts(lines: list[Line]) -> Iterator[str]:
    """Lines as text; nanoseconds are rounded over all lines, so that they add up to the sum."""
    seconds, whole = [0.0] * 3, [0] * 3
    for line in lines:
        times = []
        for n, each in enumerate((line.forward, line.inputs, line.weights)):
            seconds[n] += each
            until = round(seconds[n] * 1e9)
            times.append(until - whole[n])
            whole[n] = until
        yield "\t".join(map(str, (
            line.name, -1, times[0], *line.sent, times[1], *line.sent_back, times[2],
            *line.sent_of_weights, 100)))
