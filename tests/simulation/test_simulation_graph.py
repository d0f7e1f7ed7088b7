"""A step as a graph: seconds and bytes are those of `evaluate`, and the graph can be run."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nest
from nest.costs.network.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
    ring_pass,
)
from nest.evaluation.even import even_configuration
from nest.evaluation.stages import body_of, state_of
from nest.simulation.graph import Node, StepGraph
from nest.simulation.volumes import EXCHANGE, GATHER, REDUCE, SCATTER, Sent

sys.path.insert(0, str(Path(__file__).parents[1] / "stacks"))
from framework_plans import Case, runnable  # noqa: E402

COUNT = int(os.environ.get("NEST_GRAPH_PLANS", "8"))
BARE = {"overlap_tp": 0.0, "overlap_cp": 0.0, "overlap_grad_reduce": 0.0,
        "overlap_param_gather": 0.0, "layer_gap": 0.0, "expert_gap": 0.0}
PRICES: dict[str, Callable[..., Any]] = {
    GATHER: all_gather, SCATTER: reduce_scatter, REDUCE: all_reduce, EXCHANGE: all_to_all}


def plain(case: Case) -> nest.Plan:
    """The plan of a case where nothing overlaps, on a network without latency."""
    cluster = case.cluster
    levels = [{**level.model_dump(), "latency": 0.0, "base_time": 0.0, "ramp": 0.0,
               "in_network_reduction": False} for level in cluster.levels]
    cluster = nest.Cluster.parse({**cluster.model_dump(exclude_unset=True), "levels": levels})
    stack = case.job.stack.model_copy(update=BARE)
    return nest.evaluate(case.model, cluster, case.job.model_copy(update={"stack": stack}),
                         case.way)


def seconds(graph: StepGraph, stage: nest.StageConfiguration, sent: Sent) -> float:
    """The price of what is sent, on the groups that `evaluate` prices."""
    pricing = graph.pricing
    body, state = (body_of(stage, graph.way, 0, pricing.fabric),
                   state_of(stage, graph.way, pricing.fabric))
    group = {"tp": body.tp_group, "swap": body.swap_group, "cp": body.cp_group, "ep": body.ep_group,
             "etp": body.etp_group, "dp": state.dp_group, "expert_dp": state.expert_dp_group,
             "inner": state.inner_group, "inner_expert": state.inner_expert_group,
             "outer": state.outer_group}[sent.group]
    members = int(group.size[0])
    whole = sent.buffer(members) * (members if sent.collective == GATHER else 1)
    network = pricing.setting(graph.way, stage).network
    ringed = sent.group == "cp" and stage.cp_comm != "all_gather"
    return float((ring_pass if ringed else PRICES[sent.collective])(
        np.array([whole]), network, group)[0])


@pytest.mark.parametrize("stack", ["megatron-core", "megatron-fsdp", "torchtitan"])
def test_totals_are_those_of_evaluate(stack: str) -> None:
    """Seconds of computing, and of all bytes of the collectives, priced."""
    for case in runnable(stack, COUNT // 2):
        plan = plain(case)
        graph, m = StepGraph(plan), plan.parallelism.micro_batches
        assert case.plan is not None  # what a stack hides is sent, too
        assert [[node.sent for node in nodes] for nodes in StepGraph(case.plan).stages] == [
            [node.sent for node in nodes] for nodes in graph.stages]
        for number, (nodes, stage) in enumerate(zip(graph.stages, plan.stages, strict=True)):
            t = stage.time_s
            *computed, update = (node.seconds for node in nodes if node.sent is None)
            copied = sum(computed) - m * (t.forward + t.backward + t.recompute + t.offload)
            nothing = pytest.approx(0.0, abs=1e-9 * m * t.forward)
            gathers = stage.cp > 1 and stage.cp_comm == "all_gather"  # keys are put in order
            if not (gathers or plan.inputs.job.stack.sequence_copies and stage.tp > 1 and stage.sp):
                assert copied == nothing
            spent: dict[str, float] = defaultdict(float)
            for node in nodes:
                if node.sent is not None and node.sent.group != "tied":
                    spent[node.sent.field] += seconds(graph, graph.way.stages[number], node.sent)
            ringed = spent["cp_forward"] + spent["cp_backward"]
            assert copied + spent["tp_forward"] + spent["tp_backward"] + ringed == pytest.approx(
                m * (t.tp + t.cp), abs=1e-9 * m * t.forward)
            if not gathers:
                assert ringed == pytest.approx(m * t.cp)
            if plan.inputs.job.stack.dispatcher in ("alltoall", "allgather"):
                assert spent["ep_forward"] + spent["ep_backward"] == pytest.approx(m * t.ep)
            causes = graph.pricing.stage(graph.way, graph.way.stages[number]).causes
            assert update == pytest.approx(causes["update"])
            for field, times in (("sync", 1), ("gather", 1), ("gathered", m), ("regathered", m),
                                 ("scattered", m)):
                assert spent[field] == pytest.approx(times * causes[field]), field
            if stage.zero < 2 and graph.way.vpp == 1:
                assert spent["sync"] == pytest.approx(stage.grad_sync_s)
                assert spent["gather"] == pytest.approx(stage.param_wait_s)


@pytest.mark.parametrize("stack", ["megatron-core", "torchtitan", "megatron-bridge"])
def test_the_graph_can_be_run(stack: str) -> None:
    """All ranks end; members of a collective agree; messages have two ends of one size."""
    for case in runnable(stack, COUNT // 2):
        assert case.plan is not None
        graph = StepGraph(case.plan)
        end = replayed(graph)
        busiest = max(sum(node.seconds for node in nodes) for nodes in graph.stages)
        assert busiest * (1.0 - 1e-9) <= end


@pytest.mark.parametrize(("schedule", "vpp"), [
    ("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("zb1p", 1), ("zb-v", 2), ("v-half", 2),
    ("v-min", 2), ("dualpipev", 2)])
def test_the_graph_takes_as_long_as_the_simulation(schedule: str, vpp: int) -> None:
    """One replica, priced link by link: passes, traffic and messages in the same places."""
    model = nest.Model.parse({"name": "m", "layers": 8, "hidden": 512, "heads": 8, "kv_heads": 8,
                              "ffn": 1024, "gated": True, "vocab": 1000, "norm": "rmsnorm",
                              "bias": False, "tied_embeddings": False})
    cluster = nest.load_cluster("dgx-h100", devices=8)
    job = nest.Job(global_batch=8, seq_len=512, stack="megatron-core-serial")
    plan = nest.evaluate(model, cluster, job, even_configuration(
        model, cluster, job, tp=2, pp=4, vpp=vpp, schedule=schedule))
    graph = StepGraph(plan)

    def price(node: Node, stage: int) -> float:
        if node.peer is not None:
            ends = sorted((stage, node.peer))
            per_byte, latency = graph.pricing.fabric.pair(
                2 * ends[0] + 1, 2 * ends[1], 1, 0)
            return node.size * per_byte + latency
        assert node.sent is not None
        whole = sum(one.priced.costs[node.sent.field] for chunk in graph.layers[stage]
                    for one in chunk)
        sent = sum(each.size for chunk in graph.layers[stage] for one in chunk
                   for each in one.sent.get(node.sent.field, ()))
        return whole * node.sent.size / sent

    assert replayed(graph, price) == pytest.approx(nest.simulate(plan).step_time_s, rel=1e-9)


def replayed(
    graph: StepGraph, price: Callable[[Node, int], float] = lambda node, stage: 0.0
) -> float:
    """Run all ranks; seconds to the end. ``price``: seconds of traffic."""
    ranks = {one.rank: one for one in graph.ranks}
    done: dict[tuple[int, int], float] = {}
    waiting: dict[Any, dict[int, tuple[int, Node, float]]] = defaultdict(dict)
    free = dict.fromkeys(ranks, 0.0)
    moved = True
    open_ = {number: list(range(len(graph.stages[one.stage]))) for number, one in ranks.items()}
    started: set[tuple[int, int]] = set()
    while moved:
        moved = False
        for number, rank in ranks.items():
            nodes = graph.stages[rank.stage]
            for n in list(open_[number]):
                node = nodes[n]
                if (number, n) in started or any((number, d) not in done for d in node.after):
                    continue
                ready = max((done[number, d] for d in node.after), default=0.0)
                moved = True
                if node.peer is None and node.sent is None:
                    free[number] = done[number, n] = max(ready, free[number]) + node.seconds
                    open_[number].remove(n)
                    continue
                started.add((number, n))
                if node.peer is not None:
                    other = graph.peer(rank, node.peer)
                    ends = (other, number) if node.receives else (number, other)
                    key: Any = ("message", *ends, node.tag)
                    members: tuple[int, ...] = ends
                else:
                    assert node.sent is not None
                    members = graph.members(node.sent.group, rank)
                    key = ("collective", members, n if node.sent.group != "tied" else "tied")
                    assert number in members and len(members) > 1
                waiting[key][number] = (n, node, ready)
                if len(waiting[key]) == len(members):
                    found = waiting.pop(key)
                    assert {*found} == {*members}
                    assert len({(one.sent.collective, one.sent.size) if one.sent else one.size
                                for _, one, _ in found.values()}) == 1
                    last = max(when for _, _, when in found.values()) + price(node, rank.stage)
                    for member, (where, _, _) in found.items():
                        done[member, where] = last
                        open_[member].remove(where)
    assert not waiting and not any(open_.values()), waiting
    return max(done.values())


@pytest.mark.parametrize(("degrees", "wanted"), [
    ({"cp": 2}, {("cp_forward", GATHER, "cp"), ("cp_backward", GATHER, "cp"),
                 ("sync", REDUCE, "dp")}),
    ({"cp": 2, "cp_comm": "a2a"}, {("cp_forward", EXCHANGE, "swap"),
                                   ("cp_backward", EXCHANGE, "swap"), ("sync", REDUCE, "dp")}),
    ({"cp": 2, "cp_comm": "all_gather"}, {
        ("cp_forward", GATHER, "cp"), ("cp_backward", GATHER, "cp"),
        ("cp_backward", SCATTER, "cp"), ("sync", REDUCE, "dp")}),
    ({"cp": 4, "cp_comm": "a2a+p2p", "cp_a2a": 2}, {
        ("cp_forward", EXCHANGE, "swap"), ("cp_backward", EXCHANGE, "swap"),
        ("cp_forward", GATHER, "cp"), ("cp_backward", GATHER, "cp"), ("sync", REDUCE, "dp")}),
    ({"tp": 2, "sp": False}, {("tp_forward", REDUCE, "tp"), ("tp_backward", REDUCE, "tp"),
                              ("sync", REDUCE, "dp")}),
    ({"zero": 1}, {("sync", SCATTER, "dp"), ("gather", GATHER, "dp")}),
    ({"zero": 2, "dp_in": 2, "shard": "dp_in"},
     {("scattered", SCATTER, "inner"), ("gather", GATHER, "inner"), ("sync", REDUCE, "outer")}),
    ({"zero": 3}, {("gathered", GATHER, "dp"), ("regathered", GATHER, "dp"),
                   ("scattered", SCATTER, "dp")})])
def test_collectives_are_those_of_the_dimension(
    degrees: dict[str, Any], wanted: set[tuple[str, str, str]]
) -> None:
    model = nest.Model.parse({"name": "m", "layers": 4, "hidden": 64, "heads": 4, "kv_heads": 4,
                              "ffn": 128, "gated": True, "vocab": 100, "norm": "rmsnorm",
                              "bias": False, "tied_embeddings": False})
    cluster, job = nest.load_cluster("dgx-h100", devices=8), nest.Job(global_batch=16, seq_len=64)
    graph = StepGraph(nest.evaluate(model, cluster, job, even_configuration(
        model, cluster, job, **degrees)))
    assert {(node.sent.field, node.sent.collective, node.sent.group)
            for node in graph.stages[0] if node.sent is not None} == wanted
