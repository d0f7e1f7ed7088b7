"""Guarantees G1 to G3: the planner against the oracle, on random instances of every kind.

``NEST_INSTANCES`` sets how many (default 1,000, and half as many of which the finish decides; 60
where numba compiles nothing).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from instances import THEMES, Instance, instance
from instances_finish import finish_instance
from oracle import apart, price, solve
from oracle_plans import Answer
from oracle_rules import cuts
from shared import shared

import nest
from nest.explanation import infeasible
from nest.inputs import Configuration, SearchSpace, StageConfiguration
from nest.inputs.choices import CHOICES

pytestmark = pytest.mark.kernels
uncompiled = pytest.mark.kernels(uncompiled=True)
WITHOUT_JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
INSTANCES = int(os.environ.get("NEST_INSTANCES", "60" if WITHOUT_JIT else "1000"))
CHUNKS = 40
SEEN = 1000
"""Instances among which every maximum and every choice has to occur."""
TOP = 3
CLOSE = 1e-9
EXPLAINED = 200
"""Instances of which, where nothing fits, the nearest miss is looked for too: a search of its own
that takes longer than all else about them."""


@shared
def solved(seed: int) -> Answer:
    x = instance(seed)
    return solve(x.chain, x.cluster, x.job, x.space, top=TOP)


def planned(x: Instance, top: int = 1) -> nest.Plan | None:
    with pytest.MonkeyPatch.context() as patch:
        if x.seed >= EXPLAINED or top > 1:  # once is enough
            patch.setattr(infeasible, "explain", lambda *_: nest.InfeasibleError("nothing fits"))
        try:
            return nest.plan(x.model, x.cluster, x.job, x.space, top=top, reorder=False,
                             beyond_stack=True)
        except (nest.InfeasibleError, nest.InputError):  # the latter: a bound without legal value
            return None


def mismatch(x: Instance, best: Answer) -> str | None:
    """What the planner got wrong on an instance; None when all of it holds."""
    seed = x.seed
    plan = planned(x)
    if plan is None or best.seconds is None:
        if plan is None and best.seconds is None:
            return None
        return f"instance {seed}: oracle {best.seconds} s, plan {plan and plan.step_time_s} s"
    found = plan.step_time_s
    if abs(found - best.seconds) > CLOSE * best.seconds:
        return (f"instance {seed}: found {found} s, best of {best.plans} is {best.seconds} s: "
                f"{plan.configuration} against {best.configuration}")
    return unlike(x, found, plan.configuration)


def unlike(x: Instance, seconds: float, configuration: Configuration) -> str | None:
    """What is wrong with a plan that is said to take ``seconds``."""
    priced = price(x.chain, x.cluster, x.job, configuration)
    if abs(seconds - priced.seconds) > CLOSE * priced.seconds:
        return f"instance {x.seed}: reports {seconds} s, its plan takes {priced.seconds} s"
    if not priced.fits:
        return f"instance {x.seed}: {priced.memory} bytes, {priced.limits} allowed"
    again = nest.evaluate(x.model, x.cluster, x.job, configuration).step_time_s
    if abs(seconds - again) > CLOSE * again:
        return f"instance {x.seed}: reports {seconds} s, evaluate says {again} s"
    return None


@uncompiled
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_plan_is_the_best_of_all(chunk: int) -> None:
    wrong = [text for seed in range(chunk, INSTANCES, CHUNKS)
             if (text := mismatch(instance(seed), solved(seed)))]
    assert not wrong, "\n".join(wrong[:3])


@uncompiled
@pytest.mark.parametrize("chunk", range(8))
def test_plan_is_the_best_where_the_finish_decides(chunk: int) -> None:
    wrong = []
    for seed in range(chunk, INSTANCES // 2, 8):
        x = finish_instance(seed)
        best = solve(x.chain, x.cluster, x.job, x.space)
        wrong += [text for text in [mismatch(x, best)] if text]
    assert not wrong, "\n".join(wrong[:3])


def test_ranks_of_a_block_wait_for_longer_samples() -> None:
    # Drawn instances seldom shard within blocks: these may do nothing else.
    space, own = SearchSpace(zero=3, shard="dp_in", outer_dp="2..8", tp=1, cp=1), {
        "zero_with_pipeline": [0, 1, 2, 3], "flash_attention": True, "attention_derate": 0.05}
    for seed in (44, 115, 170, 230):
        x = instance(seed)
        job = x.job.replace(
            global_batch=8, memory_margin=0.0, packing="packed",
            lengths={x.job.seq_len: 1.0, max(1, x.job.seq_len // 7): 3.0},
            stack={**x.job.stack.as_dict(), **own})
        x = replace(x, job=job, space=space)
        best = solve(x.chain, x.cluster, x.job, x.space)
        assert best.seconds and mismatch(x, best) is None, seed


@uncompiled
@pytest.mark.parametrize(("seed", "module"), [
    (71, "qkv_linear"), (1699, "qkv_linear"), (456, "attn_proj"), (1655, "attn_proj")])
def test_outputs_that_are_named_are_modules(seed: int, module: str) -> None:
    """Of stacks that name outputs: projections of attention run again, beside norms. Seldom that of
    the output is best, so that all sets are asked to have it."""
    x = instance(seed)
    x = replace(x, job=x.job.replace(stack=x.job.stack.replace(saves_outputs=True)))
    sets = ["+".join(one) for one in x.chain.sets_under(x.job.stack) if module in one]
    x = replace(x, space=x.space.replace(
        recompute="selective", recompute_modules=sets if module == "attn_proj" else None))
    best = solve(x.chain, x.cluster, x.job, x.space)
    assert not mismatch(x, best)
    assert best.configuration is not None
    assert any(module in stage.recompute_modules for stage in best.configuration.stages)


@pytest.mark.parametrize("chunk", range(8))
def test_alternatives_are_the_next_best(chunk: int) -> None:
    several = 0
    for seed in range(chunk, min(INSTANCES, 160), 8):
        x, best = instance(seed), solved(seed).best
        plan = planned(x, TOP)
        if plan is None:
            assert not best, seed
            continue
        several += len(best) > 1
        found: list[Any] = [plan, *plan.alternatives]
        assert [p.step_time_s for p in found] == pytest.approx(
            [b.seconds for b in best], rel=CLOSE), seed
        keys = [apart((c.outer_dp, c.micro_batch, c.pp, c.vpp, c.schedule), x.job)
                for c in (p.configuration for p in found)]
        assert len(set(keys)) == len(keys), seed
        for p in plan.alternatives:
            assert unlike(x, p.step_time_s, p.configuration) is None
    assert several


# ---------------------------------------------------------------- what the instances reach


def test_maxima_occur() -> None:
    seen = [instance(seed) for seed in range(SEEN)]
    assert max(len(x.chain) for x in seen) == 11
    assert max(x.cluster.size for x in seen) == 16
    assert {len(x.cluster.levels) for x in seen} == {1, 2, 3, 4}
    assert max(len(cuts(x.chain)) for x in seen) > 50
    plans = [plan for x in seen if (plan := solved(x.seed).configuration)]
    assert max(p.pp for p in plans) >= 7
    assert max(p.vpp for p in plans) == 4
    for name in ("dp_in", "tp", "cp", "ep", "etp"):
        assert max(getattr(s, name) for p in plans for s in p.stages) >= 8, name
    assert max(solved(x.seed).plans for x in seen) > 1e5
    infeasible = sum(solved(x.seed).seconds is None for x in seen)
    assert 0.02 * SEEN < infeasible < 0.25 * SEEN


TRAITS = {
    "outer_dp": {"outer_dp 1", "outer_dp 2..", "irregular stride", "unused devices"},
    "dp_in": {"dp_in 1", "dp_in 2.."},
    "tp": {"tp 1", "tp 2..", "tp 3.."},
    "sp": {"sp", "tp without sp"},
    "cp": {"cp 1", "cp 2..", "cp 3.."},
    "cp_comm": {"cp p2p", "cp a2a", "cp all_gather", "cp a2a+p2p"},
    "cp_a2a": {"cp a2a+p2p"},
    "ep": {"ep 1", "ep 2..", "ep 3.."},
    "etp": {"etp 1", "etp = tp", "etp of its own"},
    "pp": {"pp 1", "pp 2..", "pp 3.."},
    "vpp": {"vpp 2..", "vpp 3.."},
    "micro_batch": {"micro_batch 1", "micro_batch 2..", "many micro-batches"},
    "mbs": {"mbs 1", "mbs 2.."},
    "zero": {"zero 0", "zero 1", "zero 2", "zero 3"},
    "shard": {"shard dp", "shard dp_in"},
    "recompute": {"recompute none", "recompute selective", "recompute full"},
    "recompute_modules": {"core_attn", "norm", "mlp_act", "moe", "several modules"},
    "recompute_layers": {"first layers"},
    "schedule": {"1f1b", "interleaved", "gpipe"},
}
"""What some best plan has to make use of, for each dimension of the space."""
OTHERS = {"order", "uneven blocks", "configurations per stage", "degrees that are no powers of two",
          "a group that is partly filled", "adapters", "frozen layers", "converted weights",
          "packed samples of several replicas", "packed samples in a pipeline",
          "packed samples under ZeRO-3"}


def traits(x: Instance, plan: Configuration) -> Iterator[str]:
    """What a plan makes use of."""
    stages, sizes = plan.stages, x.cluster.group_sizes
    for stage in stages:
        yield from stage_traits(x, plan, stage)
    for name in ("outer_dp", "pp", "vpp", "micro_batch"):
        yield from degree(name, getattr(plan, name))
    if x.job.uneven:
        for name, holds in (("of several replicas", plan.outer_dp > 1),
                            ("in a pipeline", plan.pp > 1 and plan.outer_dp * plan.micro_batch
                             < x.job.global_batch),
                            ("under ZeRO-3", any(stage.zero == 3 for stage in stages))):
            if holds:
                yield f"packed samples {name}"
    if plan.outer_dp > 1 and any(plan.stride % g and g % plan.stride for g in sizes):
        yield "irregular stride"
    if plan.outer_dp * plan.micro_batch < x.job.global_batch:
        yield "many micro-batches"
    if plan.outer_dp * stages[-1].devices[1] < x.cluster.size:
        yield "unused devices"
    used = (plan.outer_dp - 1) * plan.stride + stages[-1].devices[1]
    if any(used > x.cluster.size // g * g for g in sizes[:-1]):
        yield "a group that is partly filled"
    if len({s.devices[1] - s.devices[0] for s in stages}) > 1:
        yield "uneven blocks"
    if len({(s.tp, s.dp_in, s.zero, s.recompute) for s in stages}) > 1:
        yield "configurations per stage"
    if plan.order is not None and plan.order != tuple(range(len(x.chain))):
        yield "order"
    yield plan.schedule
    trained = None if x.chain.model is None else x.chain.model.trainable
    if trained is not None:
        if trained.lora is not None:
            yield "adapters"
        if any(not x.chain.kinds[kind].passes and x.chain.kinds[kind].repeated
               for kind in x.chain.order):
            yield "frozen layers"
        if trained.frozen_precision is not None:
            yield "converted weights"


def stage_traits(x: Instance, plan: Configuration, s: StageConfiguration) -> Iterator[str]:
    """What a stage makes use of."""
    for name, value in (("dp_in", s.dp_in), ("tp", s.tp), ("cp", s.cp), ("ep", s.ep),
                        ("mbs", plan.micro_batch // s.dp_in)):
        yield from degree(name, value)
        if name != "mbs" and value & (value - 1):
            yield "degrees that are no powers of two"
    if s.tp > 1:
        yield "sp" if s.sp else "tp without sp"
    if s.cp > 1:
        yield f"cp {s.cp_comm}"
    if x.chain.model is not None and x.chain.model.moe is not None and s.tp > 1:
        yield "etp 1" if s.etp == 1 else "etp = tp" if s.etp == s.tp else "etp of its own"
    yield f"zero {s.zero}"
    if s.zero and plan.outer_dp > 1 and s.dp_in * s.cp > 1:
        yield f"shard {s.shard}"
    yield f"recompute {s.recompute}"
    yield from s.recompute_modules
    if len(s.recompute_modules) > 1:
        yield "several modules"
    if s.recompute_layers is not None:
        yield "first layers"


def degree(name: str, value: int) -> Iterator[str]:
    """1, more than one, more than two."""
    if value == 1:
        yield f"{name} 1"
    else:
        yield f"{name} 2.."
        if value > 2:
            yield f"{name} 3.."


def test_every_dimension_has_its_traits() -> None:
    apart = {"offload", "group", *CHOICES}  # test_offloading.py, test_stack_oracle.py
    assert {*TRAITS, *apart} == set(SearchSpace.model_fields)


def test_every_choice_is_made_by_some_best_plan() -> None:
    made: set[str] = set()
    for seed in range(SEEN):
        best = solved(seed).configuration
        if best is not None:
            made.update(traits(instance(seed), best))
    wanted = OTHERS.union(*TRAITS.values())
    assert made >= wanted, wanted - made


def test_every_theme_has_its_instances() -> None:
    assert {instance(seed).theme for seed in range(SEEN)} == set(THEMES)
