"""Plans of models whose layers differ: the search's price is that of `evaluate`."""

from __future__ import annotations

from typing import Any

import pytest
from descriptions import MODEL

import nest

MLA = {"q_rank": 24, "kv_rank": 16, "nope_dim": 8, "rope_dim": 4, "value_dim": 8,
       "indexer": {"heads": 2, "head_dim": 6, "top_k": 32}}
KINDS = [{"name": "a", "window": 32, "chunked": True}, {"name": "n", "kv_heads": 2, "ffn": 64},
         {"name": "r", "mixer": "recurrence", "mlp": "none"},
         {"name": "e", "mixer": "none", "mlp": "experts"}]
DELTA = {"form": "gated_delta", "heads": 4, "head_dim": 8, "groups": 4, "state": 8, "conv": 4}


@pytest.mark.kernels
@pytest.mark.parametrize("changes", [
    {"layers": 8, "recurrence": DELTA, "layer_kinds": KINDS, "layer_types": [*"areraren"],
     "moe": {"experts": 4, "top_k": 2, "ffn": 32}},
    {"mla": MLA},
    {"parallel": True, "layer_norms": 1, "attention_gate": True},
])
@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
def test_a_plan_has_the_price_of_its_evaluation(changes: dict[str, Any], recompute: str) -> None:
    cluster = nest.load_cluster("dgx-h100", devices=8)
    job = nest.Job(global_batch=16, seq_len=128)
    space = nest.SearchSpace(tp="1..4", recompute=recompute)
    plan = nest.plan(nest.load_model({**MODEL, **changes}), cluster, job, space)
    again = nest.evaluate(plan.inputs.model, cluster, job, plan.configuration)
    assert plan.feasible and again.step_time_s == pytest.approx(plan.step_time_s, rel=1e-9)
    if changes.get("mla"):
        assert all(stage.cp == 1 for stage in plan.stages)
    simulated = nest.simulate(plan)
    assert simulated.step_time_s == pytest.approx(plan.step_time_s, rel=0.02)


@pytest.mark.kernels
def test_long_sequences_of_a_recurrence_are_divided() -> None:
    """Few long samples: the best plan has context parallelism, and what was not measured is said.
    """
    cluster = nest.load_cluster("dgx-h200", devices=16)
    model = nest.load_model("qwen3-next-80b-a3b")
    job = nest.Job(global_batch=4, seq_len=262144, stack="megatron-bridge")
    space = nest.SearchSpace(tp=1, pp="1..2", ep="8,16", micro_batch="1..8", recompute="full")
    plan = nest.plan(model, cluster, job, space)
    assert plan.feasible and plan.configuration.stages[0].cp > 1
    assert any("context parallelism with gated_delta" in text for text in plan.doubts)
    assert nest.evaluate(model, cluster, job, plan.configuration).step_time_s == pytest.approx(
        plan.step_time_s, rel=1e-9)
    with pytest.raises(nest.InfeasibleError):  # version 0.16.1 has none of Gated DeltaNet
        nest.plan(model, cluster, job.replace(stack="megatron-core"), space.replace(cp="2..16"))


@pytest.mark.kernels
def test_the_gated_norm_runs_again_in_a_best_plan() -> None:
    cluster = nest.load_cluster("dgx-h200", devices=16)
    model = nest.load_model("qwen3-next-80b-a3b")
    job = nest.Job(global_batch=32, seq_len=4096, stack="megatron-bridge")
    space = nest.SearchSpace(tp=1, pp=1, cp=1, ep="8,16", micro_batch="1..16")
    plan = nest.plan(model, cluster, job, space)
    assert plan.configuration.stages[0].recompute_modules == ("mlp_act", "gdn_norm_out")
