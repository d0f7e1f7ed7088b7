"""The search of what a stack can run against the exhaustive oracle of that space.

Random instances with the rules of catalog stacks, layouts, all schedules, groups that are partly
filled and margins. ``NEST_INSTANCES`` sets how many seeds are looked at.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from itertools import product
from random import Random
from typing import Any

import pytest
from instances import Instance
from oracle_stack import EVERY, FREE, Best, TooMany, schedules_of, solve
from test_stack_space import PLAIN, RULED, ruled

import nest
from nest.costs.memory import usable_share
from nest.explanation import infeasible

WITHOUT_JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
INSTANCES = int(os.environ.get("NEST_INSTANCES", "16" if WITHOUT_JIT else "96"))
CHUNKS = 4
ONCE = 385, 1047, 1404, 1464, 2510
"""Seeds on which the search and the oracle once differed."""
CLOSE = 1e-9
MOST = 2500
"""Configurations that are listed for an instance; those with more are left out."""
LIKELY = ("torchtitan-eager", "deepspeed", "megatron-deepspeed", "megatron-core")
"""Stacks with many schedules come twice as often."""


@pytest.fixture(autouse=True)
def no_explanations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infeasible, "explain", lambda *_: nest.InfeasibleError("nothing fits"))


def question(seed: int, stacks: tuple[str, ...] = (*RULED, *LIKELY)) -> Instance:
    """An instance whose stack has rules, with few enough configurations as a rule."""
    x, rng = ruled(seed, stacks), Random(f"own {seed}")
    space: dict[str, Any] = {}
    if rng.random() < 0.3:
        space = dict(x.space)
        space["schedule"] = nest.SearchSpace().schedule
    else:
        experts = x.chain.experts is not None
        for name, likely, values in (
            ("cp", 0.9, (1,)), ("tp", 0.9, (1, (1, 2), 2)), ("shard", 0.8, ("dp",)),
            ("recompute_modules", 0.8, ("core_attn", "norm+mlp_act", "core_attn+norm+mlp_act")),
            ("recompute", 0.7, ("none", "selective", ("none", "full"))),
            ("mbs", 0.6, (1, 2)), ("zero", 0.6, (0, 1, 2, (0, 1), (0, 2))),
            ("pp", 0.9, (2, (2, 3), (1, 2), 3, (2, 3, 4))), ("vpp", 0.2, ((1, 2), 2, 3)),
            ("ep", 0.9 * experts, ((1, 2), 2)), ("etp", 0.9 * experts, (1,)),
        ):
            if rng.random() < likely:
                space[name] = rng.choice(values)
    rules = x.job.stack.capabilities
    if rng.random() < 0.4 and rules is not None:
        own = [*dict.fromkeys((*FREE, *schedules_of(rules, nest.SearchSpace(schedule=EVERY))))]
        space["schedule"] = tuple(rng.sample(own, min(len(own), rng.choice((1, 2, 3)))))
    device = x.cluster.device
    roomy = x.cluster.replace(device=device.replace(  # what a stack lacks costs memory
        memory=int(device.memory * rng.choice((1.0, 1.0, 1.5, 2.5, 5.0)))))
    return Instance(**{**vars(x), "cluster": roomy, "space": nest.SearchSpace(**space)})


def held_against(x: Instance, seed: int) -> Best | None:
    """Hold the search against the oracle; None: too many configurations, or a graph."""
    if not x.chain.is_chain:
        return None
    try:
        best = solve(x.chain, x.cluster, x.job, x.space, MOST)
    except TooMany:
        return None
    try:
        found = nest.plan(x.model, x.cluster, x.job, x.space, threads=1, reorder=False)
    except (nest.InfeasibleError, nest.InputError):
        assert best.seconds is None, seed
        return best
    assert best.seconds is not None, seed
    assert found.step_time_s == pytest.approx(best.seconds, rel=CLOSE), seed
    assert found.runnable is (None if x.chain.unlisted else True) and found.optimal, seed
    return best


def decided(instance: Callable[[int], Instance], seeds: Iterable[int]) -> tuple[int, int]:
    """Instances of seeds that the oracle decides, and those of them that fit; all agree."""
    found = [best for seed in seeds if (best := held_against(instance(seed), seed)) is not None]
    return len(found), sum(best.seconds is not None for best in found)


@pytest.mark.kernels
@pytest.mark.parametrize("seed", ONCE)
def test_what_once_differed(seed: int) -> None:
    best = held_against(question(seed), seed)
    assert best is not None and best.seconds is not None


@pytest.mark.kernels
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_configuration_that_the_stack_can_run_is_faster(chunk: int) -> None:
    done, fit = decided(question, range(chunk, INSTANCES, CHUNKS))
    assert WITHOUT_JIT or (done > INSTANCES // 16 and fit > 0)


@pytest.mark.kernels
def test_orders_that_hold_less_than_1f1b() -> None:
    """V-Half and V-Min, of a user's own stack, beside ZB-V and 1F1B."""
    names, chosen = ("1f1b", "zb-v", "v-half", "v-min"), list[str]()
    for seed in range(INSTANCES // 2):
        x = question(seed, ("torchtitan-eager",))
        rules = x.job.stack.capabilities
        assert rules is not None
        own = rules.replace(name="", rules={
            **rules.rules, "schedule": rules.rules["schedule"].replace(
                allowed=list(names[seed % 2 and 2:]))})
        device = x.cluster.device
        best = held_against(Instance(**{
            **vars(x), "job": x.job.replace(stack=x.job.stack.replace(capabilities=own)),
            "cluster": x.cluster.replace(device=device.replace(memory=2 * device.memory)),
            "space": x.space.replace(schedule=names, pp=x.space.pp or (2, 3), zero=(0, 1, 2))}),
            seed)
        if best is not None and best.configuration is not None:
            chosen.append(best.configuration.schedule)
    assert WITHOUT_JIT or INSTANCES < 96 or {"v-half", "v-min"} <= {*chosen}, chosen


VALUES: dict[str, dict[str, Any]] = {
    "cuda_graphs": {"none": {}, "layers": {}, "step": {}},
    "dispatcher": {"alltoall": {}, "deepep": {}, "hybridep": {}},
    "fused_experts": {"false": {}, "true": {}}, "fp8_attention": {"false": {}, "true": {}},
    "fp8_head": {"false": {}, "true": {}}, "fp8_gather": {"false": {}, "true": {}},
    "tp_overlap": {"true": {"figures": {}}, "false": {"figures": {"overlap_tp": 0.0}}},
    "loss": {"whole": {}, "chunks": {"figures": {"loss": "chunks", "loss_chunks": 4}},
             "liger": {}, "cut": {}},
}


def choosing(seed: int) -> tuple[Instance, dict[str, list[str]]]:
    """An instance whose stack lets some values be chosen, and those that its space allows."""
    x, rng = question(seed, ("megatron-core", "megatron-bridge")), Random(f"choices {seed}")
    names = rng.sample([*VALUES], 2 if rng.random() < 0.7 else 3)
    stack = x.job.stack.replace(
        **PLAIN, choices={name: VALUES[name] for name in names},
        graph_memory=rng.choice((0.0, 0.02, 0.1)) * x.cluster.device.memory)
    for name in names:  # what it does by itself may be what rules forbid
        stack = stack.choosing(name, rng.choice([*VALUES[name]]))
    bounds = {name: rng.choice([*VALUES[name]]) for name in names if rng.random() < 0.2}
    x = Instance(**{**vars(x), "job": x.job.replace(stack=stack),
                    "space": x.space.replace(**bounds)})
    return x, {name: [bounds[name]] if name in bounds else [*VALUES[name]] for name in names}


@pytest.mark.kernels
def test_choices_of_software() -> None:
    """The best over all combinations, of stacks and spaces that name some values."""
    chosen, decided, refused = set[str](), 0, 0
    for seed in range(2 * INSTANCES):
        if decided == INSTANCES // 8:
            break
        x, allowed = choosing(seed)
        if not x.chain.is_chain:
            continue
        try:
            plan = nest.plan(x.model, x.cluster, x.job, x.space, threads=1, reorder=False)
        except (nest.InfeasibleError, nest.InputError):
            plan = None
            if refused == INSTANCES // 16:
                continue
        best, found = math.inf, {}
        try:
            for values in product(*allowed.values()):
                stack = x.job.stack
                for name, value in zip(allowed, values, strict=True):
                    stack = stack.choosing(name, value)
                one = solve(x.chain, x.cluster, x.job.replace(stack=stack), x.space, MOST // 10)
                if one.seconds is not None and one.seconds < best * (1.0 - CLOSE):
                    best, found = one.seconds, dict(zip(allowed, values, strict=True))
        except TooMany:
            continue
        if plan is None:
            assert best == math.inf, (seed, found)
            refused += 1
            continue
        assert plan.step_time_s == pytest.approx(best, rel=CLOSE), (seed, found)
        assert plan.runnable is (None if x.chain.unlisted else True) and plan.optimal, seed
        again = nest.evaluate(x.model, x.cluster, x.job, plan.configuration)
        assert again.step_time_s == plan.step_time_s
        decided += 1
        chosen |= {*plan.configuration.choices}
    assert WITHOUT_JIT or INSTANCES < 96 or (
        decided == INSTANCES // 8 and refused and len(chosen) > 4), (decided, refused, chosen)


@pytest.mark.kernels
def test_groups_that_the_space_names() -> None:
    """Any legal ones are taken, and no others; a stack without a choice takes its own, if named."""
    chosen: list[int | None] = []
    for seed in range(INSTANCES // 4):
        x, rng = ruled(seed, ("megatron-core", "megatron-bridge", "torchtitan-eager")), Random(seed)
        device = x.cluster.device
        space = {"pp": rng.choice((2, (2, 3))), "vpp": 2, "cp": 1, "tp": 1, "shard": "dp",
                 "recompute": "none", "zero": (0, 2),
                 "group": rng.choice(("2..6", 3, (3, 5), "4..7", 5))}
        if nest.SearchSpace(**space).group.smallest > x.job.global_batch:
            continue  # refused
        best = held_against(Instance(**{
            **vars(x), "space": nest.SearchSpace(**space), "cluster": x.cluster.replace(
                device=device.replace(memory=4 * device.memory))}), seed)
        if best is not None and best.configuration is not None:
            chosen.append(best.configuration.group)
    assert WITHOUT_JIT or INSTANCES < 96 or len({*chosen}) > 3, chosen


@pytest.mark.kernels
def test_buffers_for_what_all_micro_batches_hand_over() -> None:
    """Devices have a little less memory than the best pipeline needs, most of all for buffers."""
    decided, schedules = 0, set[str]()
    for seed in range(INSTANCES):
        x = question(seed)
        if x.cluster.types or not x.chain.is_chain:
            continue
        plain, job = (x.job.replace(stack=x.job.stack.replace(receives_all=flag))
                      for flag in (False, True))
        device = x.cluster.device
        roomy = x.cluster.replace(device=device.replace(memory=50 * device.memory))
        try:
            best = nest.plan(
                x.model, roomy, plain, x.space.replace(pp=(2, 3, 4)), reorder=False).configuration
        except (nest.InfeasibleError, nest.InputError):
            continue
        plan = nest.evaluate(x.model, roomy, job, best)
        needs = max(stage.memory_bytes.total for stage in plan.stages)
        kept = device.memory_reserved + job.stack.workspace
        memory = int((0.999 * needs + kept) / usable_share(job))
        crowded = roomy.replace(device=device.replace(memory=memory))
        if held_against(Instance(**{
                **vars(x), "job": job, "cluster": crowded,
                "space": x.space.replace(pp=best.pp, schedule=best.schedule)}), seed) is not None:
            decided += 1
            schedules.add(best.schedule)
    assert WITHOUT_JIT or INSTANCES < 96 or (
        decided > INSTANCES // 8 and len(schedules) > 2), schedules
