"""The expert's rules on documented configurations, and one by one."""

from __future__ import annotations

import pytest
from descriptions import CLUSTER, JOB, MODEL

import nest
import nest.evaluation.even
from nest.errors import NoPlanError
from nest.evaluation.divisions import even_sizes
from nest.evaluation.evaluate import chain_of
from nest.evaluation.plans import Plan
from nest.inputs import load_stack
from nest.planners.manual import Manual, ManualDegrees, _Rules
from nest.planners.prices import PlannerPrices

SPACE = nest.SearchSpace()
NEAR = 1.06
"""What a published configuration may take more than what the rules go on to (chosen: prices of the
runs of arXiv:2104.04473 are off by 4.6 % in the median, docs/accuracy.md, narayanan_sc21_tab1)."""


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


def start(model: nest.Model, cluster: nest.Cluster, job: nest.Job, space: nest.SearchSpace = SPACE
          ) -> ManualDegrees:
    """What the rules come to before larger degrees: the first that fits, at best on all."""
    rules = _Rules(chain_of(model), cluster, job, space)
    fitting = []
    for degrees in rules.degrees():
        smallest = next(rules.variants(degrees), None)
        if smallest is not None and rules.prices.price(smallest).excess == 0.0:
            fitting.append(degrees)
            if degrees.devices == cluster.size:
                break
    return max(fitting, key=lambda degrees: degrees.devices)


@pytest.mark.parametrize(("model", "devices", "batch", "published", "chosen"), [
    ((24, 2304, 24), 32, 512, (1, 1), (1, 1)),  # 1.7B
    ((36, 4096, 32), 128, 512, (4, 1), (4, 2)),  # 7.5B
    ((40, 6144, 48), 256, 1024, (8, 1), (8, 4)),  # 18.4B
    ((48, 8192, 64), 512, 1536, (8, 2), (8, 4)),  # 39.1B
    ((60, 10240, 80), 1024, 1792, (8, 4), (8, 4)),  # 76.1B
    ((80, 12288, 96), 1536, 2304, (8, 8), (8, 8)),  # 145.6B
    ((96, 16384, 128), 1920, 2160, (8, 16), (8, 16)),  # 310.1B
    ((128, 25600, 160), 3072, 3072, (8, 64), (8, 64)),  # 1008B
])
def test_megatron_table_1(model, devices, batch, published, chosen):
    """tp and pp of arXiv:2104.04473, table 1 (A100-80GB, fp16, sequences of 2,048).

    All are where the rules start. Three go on to more stages, with which a device reduces half the
    gradients: this software hides none of that. The paper has no such runs to compare with.
    """
    job = nest.Job(memory_margin=0.0, global_batch=batch, seq_len=2048, precision="fp16",
                   stack=load_stack("megatron-2021"))
    cluster = dgx("dgx-a100", devices)
    found = start(gpt(*model), cluster, job)
    assert (found.tp, found.pp) == published
    plan = Manual().plan(gpt(*model), cluster, job, SPACE)
    assert plan.feasible and shape(plan)[:2] == chosen
    assert plan.parallelism.devices_used == devices
    assert plan.stages[0].zero == 0  # that software had no sharded optimizer
    if chosen != published:
        space = nest.SearchSpace(tp=published[0], pp=published[1])
        paper = Manual().plan(gpt(*model), cluster, job, space)
        assert plan.step_time_s < paper.step_time_s < NEAR * plan.step_time_s


def test_megatron_530b_takes_stages_that_divide_its_layers():
    """No power of two fits on 2,520 devices. Table 1 has 35 stages; 21 are the fewest that fit."""
    job = nest.Job(memory_margin=0.0, global_batch=2520, seq_len=2048, precision="fp16",
                   stack=load_stack("megatron-2021"))
    space = nest.SearchSpace(recompute="full")
    model, cluster = gpt(105, 20480, 128), dgx("dgx-a100", 2520)
    assert start(model, cluster, job, space)[:4] == (8, 1, 1, 21)
    plan = Manual().plan(model, cluster, job, space)
    assert plan.feasible and shape(plan)[:2] == (8, 21)
    paper = Manual().plan(model, cluster, job, space.replace(pp=35))
    assert paper.feasible and shape(paper)[:2] == (8, 35)


def test_gpt3_175b_stays_inside_a_node():
    """tp 8 and pipeline stages (arXiv:2104.04473, section 5.2: model-parallel size 96 = 8 x 12)."""
    job = nest.Job(memory_margin=0.0, global_batch=1536, seq_len=2048, precision="fp16",
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
    job = nest.Job(memory_margin=0.0, global_batch=2048, seq_len=8192)
    plan = Manual().plan(model, cluster, job, nest.SearchSpace(zero=2, pp=16))
    stage = plan.stages[0]
    assert plan.feasible and shape(plan) == (8, 16, 1)
    assert (stage.cp, stage.dp_in * plan.parallelism.outer_dp, stage.recompute) == (1, 128, "none")
    assert shape(Manual().plan(model, cluster, job, nest.SearchSpace(zero=2))) == (8, 8, 1)
    assert shape(Manual().plan(model, cluster, job, SPACE)) == (8, 32, 1)


def test_mixtral_8x7b():
    """tp 1, ep 8, mbs 1 and 8 virtual stages on 64 H100 (Megatron-Core v0.8, MoE README).

    Published with 4 stages, too.
    """
    model, cluster = nest.load_model("mixtral-8x7b"), nest.load_cluster("dgx-h100", devices=64)
    job = nest.Job(memory_margin=0.0, global_batch=256, seq_len=4096)
    plan = Manual().plan(model, cluster, job, SPACE)
    assert plan.feasible and shape(plan) == (1, 4, 8)
    stage, p = plan.stages[0], plan.parallelism
    assert (stage.etp, stage.zero, p.micro_batch // stage.dp_in) == (1, 1, 1)
    published = Manual().plan(model, cluster, job, nest.SearchSpace(vpp=8))
    assert published.step_time_s == pytest.approx(plan.step_time_s, rel=1e-3)
    assert shape(Manual().plan(model, cluster, job, nest.SearchSpace(pp=4))) == (1, 4, 8)


# ---------------------------------------------------------------- rule by rule


def small(**changes: object) -> nest.Model:
    return nest.Model.parse({**MODEL, "layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096,
                             **changes})


def cluster_with(memory: str) -> nest.Cluster:
    """24 devices: nodes of 4, leaves of 8."""
    return nest.Cluster.parse({**CLUSTER, "device": {**CLUSTER["device"], "memory": memory}})


JOB24 = nest.Job.parse({**JOB, "global_batch": 48, "memory_margin": 0, "stack": {
    "base": "megatron-core", "workspace": 0, "fragmentation": 0}})


def test_model_parallel_size_grows_as_memory_shrinks():
    """tp to the 4 devices of a node, only then stages, only then recompute."""
    found = []
    for memory in (2000, 500, 400, 250, 140):
        first = start(small(), cluster_with(f"{memory} MiB"), JOB24)
        found.append((first.tp, first.pp, first.recompute))
        plan = Manual().plan(small(), cluster_with(f"{memory} MiB"), JOB24, SPACE)
        assert plan.feasible and plan.stages[0].recompute == first.recompute
        assert shape(plan)[0] >= first.tp and shape(plan)[1] >= first.pp
    assert found == [(1, 1, "none"), (2, 1, "none"), (4, 1, "none"), (4, 2, "none"),
                     (4, 4, "full")]


@pytest.mark.parametrize(("name", "cluster", "devices", "first", "chosen"), [
    ("llama3-70b", "h100-spine-leaf", 1024, (8, 1), (8, 4)),
    ("mixtral-8x7b", "h100-spine-leaf", 1024, (1, 1), (1, 8)),
    ("llama2-7b", "h100-spine-leaf", 1024, (1, 1), (1, 1)),
    ("llama2-7b", "tpuv4-fat-tree", 64, (1, 1), (2, 1)),
    ("bert-large", "tpuv4-fat-tree", 1024, (1, 1), (1, 2)),
])
def test_larger_degrees_are_taken_while_they_pay(name, cluster, devices, first, chosen):
    """A slow leaf makes gradients dear: more stages leave less of them to a device."""
    model, place = nest.load_model(name), nest.load_cluster(cluster, devices=devices)
    job = nest.Job(memory_margin=0.0, global_batch=4 * devices,
                   seq_len=512 if name == "bert-large" else 4096)
    found = start(model, place, job)
    plan = Manual().plan(model, place, job, SPACE)
    assert (found.tp, found.pp) == first and shape(plan)[:2] == chosen
    rules = _Rules(chain_of(model), place, job, SPACE)
    best = found._replace(tp=chosen[0], pp=chosen[1],
                          dp=found.dp * first[0] * first[1] // (chosen[0] * chosen[1]))
    assert rules._fastest(best)[0] == pytest.approx(plan.step_time_s, rel=1e-9)
    larger = list(rules.larger(best))
    assert (best.tp, 2 * best.pp) in [(n.tp, n.pp) for n in larger]
    dense = model.moe is None
    assert ((2 * best.tp, best.pp) in [(n.tp, n.pp) for n in larger]) == (dense and best.tp < 8)
    for n in larger:
        assert rules._fastest(n)[0] >= plan.step_time_s
    assert rules._fastest(found)[0] >= plan.step_time_s


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
                    way = nest.evaluation.even.even_configuration(
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
    found = PlannerPrices(chain, cluster, JOB24).price(plan.configuration).excess
    assert found == min(excess) < excess[0]


def test_devices_stay_idle_only_where_the_batch_asks_for_it():
    job = JOB24.replace(global_batch=5)
    plan = Manual().plan(small(), cluster_with("2 GiB"), job, SPACE)
    assert plan.feasible
    used = plan.parallelism.devices_used
    assert used == 20  # 5 replicas of tp 4; 24 would need a batch of 6, or 3 or 6 stages of tp 4
