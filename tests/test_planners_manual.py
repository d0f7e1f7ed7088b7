"""The expert's rules on documented configurations, and one by one."""

from __future__ import annotations

import pytest
from descriptions import CLUSTER, JOB, MODEL

import nest
import nest.even
from nest.describe import load_stack
from nest.errors import NoPlanError
from nest.evaluation import chain_of
from nest.even import even_sizes
from nest.planners.manual import Manual, _Rules
from nest.planners.prices import Prices
from nest.plans import Plan

SPACE = nest.SearchSpace()


def gpt(layers: int, hidden: int, heads: int) -> nest.Model:
    """A model of arXiv:2104.04473, table 1."""
    return nest.Model(
        name="gpt", layers=layers, hidden=hidden, heads=heads, ffn=4 * hidden, gated=False,
        vocab=51200, tied_embeddings=True, norm="layernorm", bias=True, max_seq_len=2048)


def dgx(name: str, devices: int) -> nest.Cluster:
    """Nodes of 8, whatever their number."""
    cluster = nest.load_cluster(name)
    levels = (cluster.levels[0], cluster.levels[1].replace(size=devices // 8))
    return cluster.replace(levels=levels, devices=None, default_devices=None)


def shape(plan: Plan) -> tuple[int, int, int]:
    stage = plan.stages[0]
    assert {(s.tp, s.cp, s.ep, s.zero, s.recompute) for s in plan.stages} == {
        (stage.tp, stage.cp, stage.ep, stage.zero, stage.recompute)}
    return stage.tp, plan.parallelism.pp, stage.ep


@pytest.mark.parametrize(("model", "devices", "batch", "published"), [
    ((24, 2304, 24), 32, 512, (1, 1)),  # 1.7B
    ((36, 4096, 32), 128, 512, (4, 1)),  # 7.5B
    ((40, 6144, 48), 256, 1024, (8, 1)),  # 18.4B
    ((48, 8192, 64), 512, 1536, (8, 2)),  # 39.1B
    ((60, 10240, 80), 1024, 1792, (8, 4)),  # 76.1B
    ((80, 12288, 96), 1536, 2304, (8, 8)),  # 145.6B
    ((96, 16384, 128), 1920, 2160, (8, 16)),  # 310.1B
    ((128, 25600, 160), 3072, 3072, (8, 64)),  # 1008B
])
def test_megatron_table_1(model, devices, batch, published):
    """tp and pp of arXiv:2104.04473, table 1 (A100-80GB, fp16, sequences of 2,048)."""
    job = nest.Job(global_batch=batch, seq_len=2048, precision="fp16",
                   stack=load_stack("megatron-2021"))
    plan = Manual().plan(gpt(*model), dgx("dgx-a100", devices), job, SPACE)
    assert plan.feasible
    assert shape(plan)[:2] == published
    assert plan.parallelism.devices_used == devices
    assert plan.stages[0].zero == 0  # that software had no sharded optimizer


def test_megatron_530b_takes_stages_that_divide_its_layers():
    """No power of two fits on 2,520 devices. Table 1 has 35 stages; 21 are the fewest that fit."""
    job = nest.Job(global_batch=2520, seq_len=2048, precision="fp16",
                   stack=load_stack("megatron-2021"))
    plan = Manual().plan(gpt(105, 20480, 128), dgx("dgx-a100", 2520), job,
                         nest.SearchSpace(recompute="full"))
    assert plan.feasible and shape(plan)[:2] == (8, 21)
    paper = Manual().plan(gpt(105, 20480, 128), dgx("dgx-a100", 2520), job,
                          nest.SearchSpace(recompute="full", pp=35))
    assert paper.feasible and shape(paper)[:2] == (8, 35)


def test_gpt3_175b_stays_inside_a_node():
    """tp 8 and pipeline stages (arXiv:2104.04473, section 5.2: model-parallel size 96 = 8 x 12)."""
    job = nest.Job(global_batch=1536, seq_len=2048, precision="fp16",
                   stack=load_stack("megatron-2021"))
    plan = Manual().plan(nest.load_model("gpt3-175b"), dgx("dgx-a100", 1024), job, SPACE)
    assert plan.feasible and shape(plan)[:2] == (8, 16)
    assert plan.inputs.cluster.levels[0].size == 8
    # 12 stages do not divide 1,024 devices; on the 384 of its table 2 they are legal and fit
    paper = Manual().plan(nest.load_model("gpt3-175b"), dgx("dgx-a100", 384), job,
                          nest.SearchSpace(pp=12))
    assert paper.feasible and shape(paper)[:2] == (8, 12)


def test_llama_3_405b():
    """tp 8, cp 1, pp 16, dp 128 on 16,384 H100 (arXiv:2407.21783, table 4).

    Its FSDP shards optimizer and gradients (section 3.3.2). The fewest stages that fit are 8 then,
    and 32 if only the optimizer is sharded, as the rules have it; the published 16 lie between.
    """
    model, cluster = nest.load_model("llama3.1-405b"), nest.load_cluster("dgx-h100", devices=16384)
    job = nest.Job(global_batch=2048, seq_len=8192)
    plan = Manual().plan(model, cluster, job, nest.SearchSpace(zero=2, pp=16))
    stage = plan.stages[0]
    assert plan.feasible and shape(plan) == (8, 16, 1)
    assert (stage.cp, stage.dp_in * plan.parallelism.outer_dp, stage.recompute) == (1, 128, "none")
    assert shape(Manual().plan(model, cluster, job, nest.SearchSpace(zero=2))) == (8, 8, 1)
    assert shape(Manual().plan(model, cluster, job, SPACE)) == (8, 32, 1)


def test_mixtral_8x7b():
    """tp 1, ep 8, mbs 1 and 8 virtual stages on 64 H100 (Megatron-Core v0.8, MoE README).

    Published with 4 stages; 2 are the fewest that fit.
    """
    model, cluster = nest.load_model("mixtral-8x7b"), nest.load_cluster("dgx-h100", devices=64)
    job = nest.Job(global_batch=256, seq_len=4096)
    plan = Manual().plan(model, cluster, job, SPACE)
    assert plan.feasible and shape(plan) == (1, 2, 8)
    stage, p = plan.stages[0], plan.parallelism
    assert (stage.etp, stage.zero, p.micro_batch // stage.dp_in, p.vpp) == (1, 1, 1, 8)
    assert shape(Manual().plan(model, cluster, job, nest.SearchSpace(pp=4))) == (1, 4, 8)


# ---------------------------------------------------------------- rule by rule


def small(**changes: object) -> nest.Model:
    return nest.Model.parse({**MODEL, "layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096,
                             **changes})


def cluster_with(memory: str) -> nest.Cluster:
    """24 devices: nodes of 4, leaves of 8."""
    return nest.Cluster.parse({**CLUSTER, "device": {**CLUSTER["device"], "memory": memory}})


JOB24 = nest.Job.parse({**JOB, "global_batch": 48, "stack": {
    "base": "megatron-core", "workspace": 0, "fragmentation": 0}})


def test_model_parallel_size_grows_as_memory_shrinks():
    """tp to the 4 devices of a node, only then stages, only then recompute."""
    found = []
    for memory in (2000, 500, 400, 250, 150):
        plan = Manual().plan(small(), cluster_with(f"{memory} MiB"), JOB24, SPACE)
        assert plan.feasible
        found.append((*shape(plan)[:2], plan.stages[0].recompute))
    assert found == [(1, 1, "none"), (2, 1, "none"), (4, 1, "none"), (4, 2, "none"),
                     (4, 4, "full")]


def test_tensor_parallelism_leaves_the_node_last():
    """One layer cannot be staged: 8 devices share it only where 4 are too few even recomputing."""
    cluster = cluster_with("24 MiB")
    plan = Manual().plan(small(layers=1), cluster, JOB24, SPACE)
    assert plan.feasible and shape(plan)[0] > 4
    inside = Manual().plan(small(layers=1), cluster, JOB24, nest.SearchSpace(tp="1..4"))
    assert not inside.feasible
    roomier = Manual().plan(small(layers=1), cluster_with("48 MiB"), JOB24, SPACE)
    assert roomier.feasible and shape(roomier)[0] == 4


def test_experts_spread_over_what_a_stage_has():
    """8 experts, nodes of 4: ep 4 inside a node, 2 where a stage has 2 devices."""
    moe = small(moe={"experts": 8, "top_k": 2, "ffn": 64})
    for devices, pp, ep in ((24, 1, 4), (4, 2, 2), (4, 4, 1)):
        cluster = cluster_with("4 GiB").with_devices(devices)
        plan = Manual().plan(moe, cluster, JOB24, nest.SearchSpace(pp=pp))
        assert plan.feasible and (shape(plan)[2], plan.stages[0].etp) == (ep, 1)


def test_micro_batch_and_virtual_stages_are_the_best():
    model, cluster = small(), cluster_with("200 MiB")
    plan = Manual().plan(model, cluster, JOB24, nest.SearchSpace(pp=2, tp=4))
    p, s = plan.parallelism, plan.stages[0]
    tried = 0
    for mbs in (1, 2, 4, 8, 16):
        for vpp in (1, 2, 4):
            for dp_in, outer_dp in ((3, 1), (1, 3)):
                try:
                    way = nest.even.even_configuration(
                        model, cluster, JOB24, pp=2, tp=4, zero=1, mbs=mbs, vpp=vpp, dp_in=dp_in,
                        outer_dp=outer_dp, recompute=s.recompute)
                    other = nest.evaluate(model, cluster, JOB24, way)
                except nest.InputError:
                    continue
                tried += other.feasible
                assert not other.feasible or other.step_time_s >= plan.step_time_s * (1 - 1e-9)
    assert tried > 3
    assert p.pp == 2


def test_cuts_are_even():
    plan = Manual().plan(small(layers=7), cluster_with("200 MiB"), JOB24,
                         nest.SearchSpace(pp=4, vpp=1))
    sizes = [b - a for a, b in (s.layers for s in plan.stages)]
    assert sizes == [n + (s in (0, 3)) for s, n in enumerate(even_sizes(7, 4))]


def test_space_bounds_the_rules():
    space = nest.SearchSpace(tp="2", zero="0", recompute="full", mbs="2", vpp=1, outer_dp=3)
    plan = Manual().plan(small(), cluster_with("2 GiB"), JOB24, space)
    s, p = plan.stages[0], plan.parallelism
    assert (s.tp, s.zero, s.recompute, p.micro_batch // s.dp_in, p.outer_dp) == (2, 0, "full", 2, 3)
    with pytest.raises(NoPlanError, match="rules lead to no legal configuration"):
        Manual().plan(small(), cluster_with("2 GiB"), JOB24, nest.SearchSpace(cp=3, tp=16, sp=True))


def test_what_fits_nowhere_is_the_nearest_miss():
    plan = Manual().plan(small(), cluster_with("20 MiB"), JOB24, SPACE)
    assert not plan.feasible and "short" in plan.problems[0]
    chain, cluster = chain_of(small()), cluster_with("20 MiB")
    rules = _Rules(chain, cluster, JOB24, SPACE)
    smallest = [next(rules.variants(degrees), None) for degrees in rules.degrees()]
    excess = [rules.prices.price(way).excess for way in smallest if way is not None]
    found = Prices(chain, cluster, JOB24).price(plan.configuration).excess
    assert found == min(excess) < excess[0]


def test_devices_stay_idle_only_where_the_batch_asks_for_it():
    job = JOB24.replace(global_batch=5)
    plan = Manual().plan(small(), cluster_with("2 GiB"), job, SPACE)
    assert plan.feasible
    used = plan.parallelism.devices_used
    assert used == 20  # 5 replicas of tp 4; 24 would need a batch of 6, or 3 or 6 stages of tp 4
