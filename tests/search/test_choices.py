"""Choices of software in a search: which values are tried, how they are bounded and recorded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from command_line import run

import nest
from nest.errors import InputError
from nest.evaluation.evaluate import chain_of
from nest.evaluation.even import even_configuration
from nest.evaluation.plan_file import load_plan
from nest.inputs.layers import MoE
from nest.search.choices import combinations
from nest.search.query import Query

pytestmark = pytest.mark.kernels

SMALL = nest.Model(
    name="small experts", layers=4, hidden=1024, heads=8, ffn=2048, vocab=8192, gated=True,
    norm="rmsnorm", bias=False, tied_embeddings=False,
    moe=MoE(experts=8, top_k=2, ffn=1024))
DENSE = SMALL.replace(name="small", moe=None)
SPACE = nest.SearchSpace(tp=1, cp=1, recompute="none", pp=(1, 2), mbs=1)


def cluster(name: str, devices: int = 8) -> nest.Cluster:
    return nest.load_cluster(name, devices=devices)


def job(stack: Any = "megatron-bridge", precision: str = "mxfp8") -> nest.Job:
    return nest.Job(global_batch=16, seq_len=1024, precision=precision, stack=stack)


def tried(model: nest.Model, where: str, what: nest.Job, **bounds: Any) -> list[dict[str, str]]:
    query = Query(chain_of(model), cluster(where), what, SPACE.replace(**bounds))
    return [dict(one.choices) for one in combinations(query)]


def test_dense_models_have_one_combination() -> None:
    """Graphs save them no priced time but take memory, and they have no dispatcher."""
    assert tried(DENSE, "dgx-h100", job("megatron-core", "bf16")) == [{}]
    assert tried(DENSE, "gb300-nvl72", job(precision="nvfp4")) == [{}]


def test_what_is_never_slower_nor_larger_is_taken() -> None:
    found = tried(DENSE, "dgx-h100", job("megatron-core", "fp8"))
    assert found == [{"fp8_gather": "true"}]  # half the bytes of gathered parameters


def test_a_device_has_its_own_values() -> None:
    hopper = tried(SMALL, "dgx-h100", job("megatron-bridge", "bf16"))
    # deepep takes multiprocessors for the same
    assert {one.get("dispatcher") for one in hopper} == {None, "hybridep"}
    blackwell = tried(SMALL, "gb300-nvl72", job())
    assert {"fused_experts": "true"}.items() <= blackwell[-1].items()
    assert all("fused_experts" not in one for one in tried(SMALL, "dgx-h100", job()))


def test_what_needs_other_software_is_tried_where_it_is_named() -> None:
    core = job("megatron-core", "bf16")
    assert tried(SMALL, "dgx-h100", core) == [{}]
    assert tried(SMALL, "dgx-h100", core, dispatcher=("deepep", "hybridep")) == [
        {"dispatcher": "hybridep"}]
    plan = nest.plan(SMALL, cluster("dgx-h100"), core, SPACE, threads=1)
    assert plan.search is not None
    [left] = [one.sentence for one in plan.search.left_out if one.figure == "choices"]
    assert "dispatcher hybridep" in left
    named = nest.plan(SMALL, cluster("dgx-h100"), core, SPACE.replace(dispatcher="hybridep"),
                      threads=1)
    assert named.inputs.job.stack.dispatcher == "hybridep"


def test_a_captured_step_of_experts_needs_what_its_rules_say() -> None:
    steps = [one for one in tried(SMALL, "gb300-nvl72", job()) if one.get("cuda_graphs") == "step"]
    assert steps
    assert all(one["dispatcher"] == "hybridep" and one["fused_experts"] == "true" for one in steps)
    assert not any("step" in one.values() for one in tried(
        SMALL, "gb300-nvl72", job("megatron-core", "mxfp8")))  # 0.16.1 has no room for tokens
    padded = job("megatron-core", "bf16").replace(expert_capacity=1.0, expert_padding=True)
    assert any("step" in one.values() for one in tried(SMALL, "dgx-h100", padded))


def test_unfused_experts_are_searched_where_fused_ones_are_forbidden() -> None:
    query = Query(chain_of(SMALL), cluster("gb300-nvl72"), job(), SPACE)
    slow = [one for one in combinations(query) if "fused_experts" not in one.choices]
    assert slow and all(one.bounds["etp"].smallest == 2 for one in slow)


@pytest.mark.parametrize("own, bounds, gives_way", [
    ({"cuda_graphs": "layers"}, {"recompute": "full"}, ("cuda_graphs", ("none", "step"))),
    ({"cuda_graphs": "layers"}, {"recompute": "selective", "recompute_modules": "moe"},
     ("cuda_graphs", ("none", "step"))),
    ({"fused_experts": True}, {"etp": 2, "tp": 2, "mbs": 1}, ("fused_experts", ("false",))),
    ({"dispatcher": "alltoall"}, {"cuda_graphs": "step"}, ("dispatcher", ("hybridep",))),
    ({"cuda_graphs": "step", "dispatcher": "hybridep", "fused_experts": True},
     {"dispatcher": "alltoall"}, ("cuda_graphs", ("none", "layers"))),
    ({"cuda_graphs": "step", "dispatcher": "hybridep", "fused_experts": True},
     {"zero": 3, "pp": 1, "dp_in": 8}, ("cuda_graphs", ("none",))),
])
def test_what_a_stack_does_by_itself_gives_way_to_a_bound(
    own: dict[str, Any], bounds: dict[str, Any], gives_way: tuple[str, tuple[str, ...]]
) -> None:
    """Figures that a rule forbids beside a bound are no reason to answer that nothing fits."""
    where = cluster("gb300-nvl72")
    what = job({"base": "megatron-bridge", "name": "own", **own})
    plan = nest.plan(SMALL, where, what, SPACE.replace(**bounds), threads=1)
    name, values = gives_way
    assert plan.runnable and plan.configuration.choices[name] in values
    assert f"{name} {plan.configuration.choices[name]}" in " ".join(str(plan).split())
    stack = what.stack.replace(choices={})
    with pytest.raises((InputError, nest.InfeasibleError)):
        nest.plan(SMALL, where, what.replace(stack=stack), SPACE.replace(**bounds), threads=1)


def test_what_no_combination_allows_names_the_rule_in_the_way() -> None:
    """HybridEP, which a captured step of experts needs, is there: only fused products lack."""
    with pytest.raises(nest.InfeasibleError) as error:
        nest.plan(SMALL, cluster("dgx-b200"), job(precision="bf16"),
                  SPACE.replace(cuda_graphs="step"), threads=1)
    text = str(error.value)
    assert "fused_experts no: " in text and "dispatcher" not in text
    assert re.search("It would fit with cuda_graphs (none|layers) instead of step", text)


def test_a_stack_without_rules_keeps_to_what_it_does_by_itself() -> None:
    free = job().replace(stack=job().stack.replace(capabilities=None))
    assert tried(SMALL, "gb300-nvl72", free) == [{}]
    assert tried(SMALL, "gb300-nvl72", free, cuda_graphs="step", dispatcher=("alltoall", "hybridep")
                 ) == [{"cuda_graphs": "step"}, {"cuda_graphs": "step", "dispatcher": "hybridep"}]


def test_the_plan_says_what_it_chose_and_evaluate_prices_it(tmp_path: Path) -> None:
    where, what = cluster("gb300-nvl72"), job()
    plan = nest.plan(SMALL, where, what, SPACE, threads=1)
    chosen = plan.configuration.choices
    assert chosen["cuda_graphs"] == "step" and plan.runnable
    assert plan.inputs.job.stack.cuda_graphs == "step"
    assert "cuda_graphs step" in " ".join(str(plan).split())
    again = nest.evaluate(SMALL, where, what, plan.configuration)
    assert (again.step_time_s, again.configuration) == (plan.step_time_s, plan.configuration)
    plain = nest.evaluate(SMALL, where, what, plan.configuration.replace(choices={}))
    assert plain.step_time_s > plan.step_time_s
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json(), encoding="utf-8")
    assert load_plan(file).configuration == plan.configuration


def test_bounds_fix_a_choice_and_never_make_a_plan_faster() -> None:
    where, what = cluster("gb300-nvl72"), job()
    free = nest.plan(SMALL, where, what, SPACE, threads=1)
    for bounds in ({"cuda_graphs": "none"}, {"dispatcher": "alltoall"}, {"fused_experts": False},
                   {"cuda_graphs": ("none", "layers"), "fp8_head": "false"}):
        bound = nest.plan(SMALL, where, what, SPACE.replace(**bounds), threads=1)
        assert bound.step_time_s >= free.step_time_s * (1.0 - 1e-12)
        stack = bound.inputs.job.stack
        for name, values in bounds.items():
            given = values if isinstance(values, tuple) else (values,)
            assert str(getattr(stack, name)).lower() in [str(one).lower() for one in given]


def test_captured_graphs_take_memory() -> None:
    where, what = cluster("gb300-nvl72"), job()
    way = even_configuration(SMALL, where, what, ep=8, tp=1)
    plain = nest.evaluate(SMALL, where, what, way)
    captured = nest.evaluate(SMALL, where, what, way.replace(choices={"cuda_graphs": "layers"}))
    assert plain.stages[0].memory_limit_bytes - captured.stages[0].memory_limit_bytes == (
        what.stack.graph_memory) == 10 * 2**30


@pytest.mark.parametrize("given, says", [
    ({"dispatcher": "deepep"}, "dispatcher: got deepep; allowed with stack megatron-bridge on "
     "gb300: alltoall, hybridep"),
    ({"cuda_graphs": "some"}, "cuda_graphs: got some; "),
])
def test_a_value_that_is_not_there_is_refused(given: dict[str, str], says: str) -> None:
    where, what = cluster("gb300-nvl72"), job()
    with pytest.raises(InputError, match=says):
        nest.plan(SMALL, where, what, SPACE.replace(**given))
    way = even_configuration(SMALL, where, what, choices=given)
    with pytest.raises(InputError, match=says):
        nest.evaluate(SMALL, where, what, way)


def test_a_stack_without_a_choice_says_so() -> None:
    with pytest.raises(InputError, match="nothing, it has no such choice"):
        nest.plan(SMALL, cluster("dgx-h100"), job("unknown", "bf16"),
                  SPACE.replace(cuda_graphs="layers"))


def test_a_value_names_figures_of_a_stack() -> None:
    with pytest.raises(InputError, match=r"choices.cuda_graphs.all.figures: got 'graphs'"):
        job({"base": "megatron-core", "choices": {"cuda_graphs": {
            "all": {"figures": {"graphs": 1}}}}})


def test_options_bound_and_fix_choices(capsys: pytest.CaptureFixture[str]) -> None:
    problem = ["qwen3-30b-a3b", "dgx-b200", "--devices", "8", "--global-batch", "64",
               "--seq-len", "4096", "--precision", "mxfp8", "--stack", "megatron-bridge"]
    degrees = ["--ep", "8", "--zero", "1"]
    text, _ = run(capsys, "evaluate", *problem, *degrees, "--dispatcher", "hybridep",
                  "--cuda-graphs", "layers")
    assert "cuda_graphs layers, dispatcher hybridep" in " ".join(text.split())
    _, error = run(capsys, "plan", *problem, "--fp8-head", "maybe", code=2)
    assert "--fp8-head: got maybe; allowed with stack megatron-bridge: false, true" in error


def test_the_other_planners_have_what_nest_chose() -> None:
    from nest.planners.compare import compare

    plans = compare(SMALL, cluster("gb300-nvl72"), job(), SPACE, names=("nest", "manual"))
    stacks = [one.plan.inputs.job.stack.cuda_graphs for one in plans if one.plan is not None]
    assert stacks == ["step", "step"]
