"""Modules of recompute beyond the first four: `mlp`, `mla_up_proj`, `shared_experts`."""

from __future__ import annotations

from itertools import combinations
from operator import itemgetter

import pytest
from test_alike import EXPERTS, MODEL, TIED, cluster, every, seconds_of

import nest
from nest.costs.choices import policy
from nest.errors import InputError
from nest.evaluation.even import even_configuration
from nest.inputs import Job, load_model, load_stack
from nest.inputs.space import LARGEST, SearchSpace
from nest.model import build_chain
from nest.search.formulating import formulate
from nest.search.query import Query
from nest.search.runnable import SpacePart
from nest.search.ways import search

pytestmark = pytest.mark.kernels


def job(**changes: float) -> Job:
    stack = load_stack("megatron-core").replace(workspace=0)
    return Job(global_batch=4, seq_len=256, memory_margin=0.0, stack=stack, **changes)


def test_no_runnable_pipeline_is_faster() -> None:
    """The naive enumeration lists every alike pipeline, with `mlp` as its one module."""
    model, where, batch = load_model(TIED), cluster("27 MiB"), job()
    chain = build_chain(model)
    found = search(Query(chain, where, batch, SearchSpace(
        cp=1, recompute_modules="mlp", tp=(1, 2, 4), pp="1..3", vpp="1..2", zero=(0, 1),
        recompute_layers=f"1,{LARGEST}")))
    fitting = seconds_of(chain, where, batch, (
        way.replace(stages=tuple(
            stage.replace(recompute_modules=("mlp",)) if stage.recompute == "selective" else stage
            for stage in way.stages))
        for way in every(chain, where, batch)))
    best, way = min(fitting, key=itemgetter(0))
    assert found.step_time == pytest.approx(best, rel=1e-9)
    plan = nest.evaluate(model, where, batch, way)
    assert plan.runnable and plan.feasible and plan.step_time_s == best


@pytest.mark.kernels(uncompiled=True)
def test_a_module_that_is_named_saves_memory() -> None:
    model, batch = load_model(MODEL), job()
    space = SearchSpace(cp=1, tp=1, pp=1, mbs=2, zero=1, recompute="selective")
    needs = {}
    for modules in ("core_attn", "mlp", "core_attn+mlp"):
        plan = nest.plan(model, cluster("400 MiB"), batch, space.replace(
            recompute_modules=modules), threads=1, beyond_stack=False)
        assert plan.runnable
        assert plan.stages[0].recompute_modules == tuple(modules.split("+"))
        needs[modules] = plan.stages[0].memory_bytes.activations
    assert needs["core_attn+mlp"] <= needs["mlp"] < needs["core_attn"]


@pytest.mark.kernels(uncompiled=True)
def test_a_module_that_the_model_lacks_is_refused() -> None:
    for model, module in ((MODEL, "mla_up_proj"), (EXPERTS, "shared_experts")):
        with pytest.raises(InputError, match=f"recompute_modules {module} is in no layer"):
            nest.evaluate(load_model(model), cluster("4 GiB"), job(), even_configuration(
                load_model(model), cluster("4 GiB"), job(), recompute="selective",
                recompute_modules=(module,)))


@pytest.mark.kernels(uncompiled=True)
@pytest.mark.parametrize(("name", "groups", "runs"), [
    ("llama3-8b", ["core_attn norm mlp_act mlp"], "core_attn mlp"),
    ("mixtral-8x7b", ["core_attn norm mlp_act moe"], "core_attn mlp_act moe"),
    ("qwen3-next-80b-a3b", ["core_attn norm mlp_act moe shared_experts gdn_norm_out"],
     "core_attn mlp_act moe shared_experts"),
    ("deepseek-v3", ["core_attn norm mlp_act moe", "norm mlp_act mlp mla_up_proj shared_experts"],
     "core_attn norm mlp_act moe mlp mla_up_proj shared_experts")])
@pytest.mark.parametrize("stack", ["megatron-core", "torchtitan"])
def test_sets_that_are_priced(name: str, groups: list[str], runs: str, stack: str) -> None:
    """All sets of a group, less those that rules about modules alone forbid; recompute of ``moe``
    has the shared experts in it. ``runs``: what Megatron-Core can recompute."""
    chain = build_chain(load_model(name))
    batch = Job(global_batch=8, seq_len=256, stack=stack)
    known = batch.stack.capabilities
    assert known is not None
    where, space = nest.load_cluster("dgx-h100", devices=8), SearchSpace(tp=1, cp=1, pp=1, ep=1)
    query = Query(chain, where, batch, space)
    every, some = ({*formulate(query, SpacePart(rules)).choices.policies}
                   for rules in (None, known))
    sets = {frozenset(m) for names in map(str.split, groups)
            for n in range(len(names) + 1) for m in combinations(names, n)
            if not {"moe", "shared_experts"} <= {*m}}
    assert len(every) == len(sets) + 1  # full recompute
    allowed = {0, policy("full", ())} | (
        {policy("", ("norm", "mlp_act"))} if stack == "torchtitan" else
        {policy("", [*m]) for m in sets if m <= {*runs.split()}})
    assert some == allowed


@pytest.mark.kernels
def test_a_policy_of_maxtext_between_full_and_minimal_gains() -> None:
    asked = (load_model("llama3-8b"), nest.load_cluster("dgx-h100", devices=64),
             Job(global_batch=64, seq_len=20480, stack="maxtext"))
    space = SearchSpace(tp=1, pp=1, cp=1, zero=3)
    plan = nest.plan(*asked, space)
    assert plan.stages[0].recompute_modules == ("norm", "mlp_act", "mlp") and plan.runnable
    assert nest.evaluate(*asked, plan.configuration).step_time_s == pytest.approx(
        plan.step_time_s, rel=1e-9)
    without = nest.plan(*asked, space.replace(recompute="full"))
    assert plan.step_time_s < without.step_time_s


@pytest.mark.kernels
def test_outputs_of_attention_that_are_kept_gain() -> None:
    """Where minimal policies need too much, some projections run again, and not all."""
    asked = (load_model("llama3-8b"), nest.load_cluster("dgx-h100", devices=64),
             Job(global_batch=64, seq_len=40960, stack="maxtext"))
    space = SearchSpace(tp=1, pp=1, cp=1, zero=3)
    plan = nest.plan(*asked, space)
    modules = {*plan.stages[0].recompute_modules}
    assert modules & {"qkv_linear", "attn_proj"} and plan.runnable
    assert nest.evaluate(*asked, plan.configuration).step_time_s == pytest.approx(
        plan.step_time_s, rel=1e-9)
    for stack in ("torchtitan", "megatron-core"):
        with pytest.raises(InputError, match="attn_proj needs a stack that keeps named outputs"):
            nest.evaluate(*asked[:2], asked[2].replace(stack=load_stack(stack)),
                          even_configuration(*asked, recompute="selective",
                                             recompute_modules=("attn_proj",)))


@pytest.mark.kernels
def test_a_further_module_gains() -> None:
    """With long sequences `mlp` frees memory for less than all else does."""
    asked = (load_model("llama3.1-8b"), nest.load_cluster("dgx-h100", devices=64),
             Job(global_batch=16, seq_len=131072))
    space = SearchSpace(cp="2..8", cp_comm="a2a", zero="0,1")
    plan = nest.plan(*asked, space)
    assert plan.stages[0].recompute_modules == ("mlp",) and plan.runnable
    without = nest.plan(*asked, space.replace(recompute_modules="core_attn"))
    assert plan.step_time_s < 0.95 * without.step_time_s


def test_recompute_of_moe_has_shared_experts_in_it() -> None:
    """So a search tries no set of both."""
    model, where, batch = load_model("qwen3-next-80b-a3b"), nest.load_cluster(
        "dgx-h100", devices=8), Job(global_batch=8, seq_len=4096)
    both, moe = (nest.evaluate(model, where, batch, even_configuration(
        model, where, batch, tp=8, recompute="selective", recompute_modules=modules))
        for modules in (("moe", "shared_experts"), ("moe",)))
    assert both.step_time_s == moe.step_time_s
    assert both.stages[0].memory_bytes == moe.stages[0].memory_bytes
