"""What a stack can run against everything, on random instances whose stacks have rules."""

from __future__ import annotations

import math
import os
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
from instances import Instance, instance
from instances_graphs import graph_instance
from oracle import solve

import nest
from nest.explanation import infeasible
from nest.inputs import load_stack
from nest.inputs.capabilities import Rule
from nest.inputs.catalog import names
from nest.inputs.model import Model
from nest.model.build import build_chain
from nest.stacks.rules import impossible

WITHOUT_JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
INSTANCES = int(os.environ.get("NEST_INSTANCES", "16" if WITHOUT_JIT else "1000")) // 8
CHUNKS = 4
NETWORKS = INSTANCES // 2
CLOSE = 1e-9
SAME_SCHEDULES = ("megatron-core", "megatron-bridge", "internevo", "deepspeed", "megatron-2021")
"""Stacks all of whose schedules are searched as everything, too: the oracle lists no others."""


@pytest.fixture(autouse=True)
def no_explanations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infeasible, "explain", lambda *_: nest.InfeasibleError("nothing fits"))


RULED = tuple(name for name in names("stacks") if name != "torchtitan-2024"
              and (known := load_stack(name).capabilities) is not None and known.rules)
"""Stacks of the catalog with rules, but for one with the rules of another."""


PLAIN = {"cuda_graphs": "none", **dict.fromkeys(
    ("fused_experts", "fp8_attention", "fp8_head"), False)}
"""What no rule forbids."""


def ruled(seed: int, stacks: tuple[str, ...], links: bool = False) -> Instance:
    """An instance whose stack can run what one of the catalog can; ``links``: on a network, often
    with devices of several types."""
    x = graph_instance(seed) if links else instance(seed)
    rules = load_stack(stacks[seed % len(stacks)]).capabilities
    assert rules is not None
    changes = {"capabilities": rules}
    if seed % 5 and any("cuda_graphs" in rule.fields for rule in rules.rules.values()):
        changes["cuda_graphs"] = "none"  # others leave little of the space
    job = x.job.replace(stack=x.job.stack.replace(**changes))
    if seed % 5 and impossible(x.chain, job):  # these may leave nothing
        job = job.replace(stack=job.stack.replace(**PLAIN))
    if impossible(x.chain, job) and job.optimizer in ("adam-8bit", "adafactor"):
        job = job.replace(optimizer="adam")
    if seed % 5 and impossible(x.chain, job) and isinstance(x.model, Model):
        model = x.model.replace(trainable=None)
        x = replace(x, model=model, chain=build_chain(model))
    return replace(x, job=job)


def filled(seed: int) -> Instance:
    """One whose stack has no chunks without layers, as the oracle of everything."""
    x = ruled(seed, SAME_SCHEDULES)
    known = x.job.stack.capabilities
    assert known is not None
    rule = Rule.parse({"fields": "empty_chunks", "allowed": "0", "sentence": "filled",
                       "source": "this test"}, "rule")
    stack = x.job.stack.replace(capabilities=known.replace(rules={**known.rules, "filled": rule}))
    return replace(x, job=x.job.replace(stack=stack))


def fastest(x: Instance, beyond_stack: bool) -> nest.Plan | None:
    try:
        return nest.plan(x.model, x.cluster, x.job, x.space, reorder=False,
                         beyond_stack=beyond_stack)
    except (nest.InfeasibleError, nest.InputError):  # the latter: a bound without legal value
        return None


@pytest.mark.kernels(uncompiled=True)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_everything_is_never_slower_than_what_the_stack_can_run(chunk: int) -> None:
    stacks, slower, ran = RULED, 0, 0
    for seed in range(chunk, 2 * INSTANCES, CHUNKS):
        x = ruled(seed, stacks)
        own = fastest(x, beyond_stack=False)
        if own is None:
            continue
        everything = fastest(x, beyond_stack=True)
        assert own.runnable is (None if x.chain.unlisted else True) and own.optimal, seed
        assert everything is not None, seed
        assert everything.step_time_s <= own.step_time_s * (1.0 + CLOSE), seed
        ran += 1
        slower += everything.step_time_s < 0.999 * own.step_time_s
    assert WITHOUT_JIT or INSTANCES < 100 or (ran > 15 and slower > 4)


@pytest.mark.kernels
def test_networks_device_types_graphs_and_part_groups() -> None:
    """The whole question, with orders, fillings and a better batch, and its answer read again."""
    stacks, seen = RULED, Counter[str]()
    for seed in range(NETWORKS):
        x = ruled(seed, stacks, links=bool(seed % 3))
        plans = []
        for beyond in (False, True):
            with suppress(nest.InfeasibleError, nest.InputError):
                plans.append(nest.plan(x.model, x.cluster, x.job, x.space, beyond_stack=beyond,
                                       fillings=True, near_batches=True))
        if not plans:
            continue
        everything = plans[-1]
        assert everything.search is not None and not everything.search.within_stack, seed
        for own in plans[:-1]:
            assert own.runnable is (None if x.chain.unlisted else True) and own.optimal, seed
            assert everything.step_time_s <= own.step_time_s * (1.0 + CLOSE), seed
            assert nest.load_plan(own.as_dict()) == own, seed
            seen.update(name for name, has in (
                ("types", len(own.inputs.cluster.device_types) > 1),
                ("graph", not x.chain.is_chain), ("links", x.cluster.links is not None),
                ("profile", own.inputs.profile is not None), ("part", x.cluster.size < math.prod(
                    level.size for level in x.cluster.levels))) if has)
    assert NETWORKS < 60 or {*seen} >= {"types", "graph", "links", "profile", "part"}, seen


@pytest.mark.kernels
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_everything_holds_the_unequal_chunks_of_the_stack(chunk: int) -> None:
    for seed in range(chunk, INSTANCES, CHUNKS):
        x = filled(seed)
        best = solve(x.chain, x.cluster, x.job, x.space)
        found = fastest(x, beyond_stack=True)
        assert (found is None) == (best.seconds is None), seed
        if found is not None and found.configuration.group is not None:
            # Larger groups are of the stack's own space, which has an oracle of its own.
            assert found.step_time_s <= best.seconds * (1.0 + CLOSE), seed
        elif found is not None:
            assert found.step_time_s == pytest.approx(best.seconds, rel=CLOSE), seed


@pytest.mark.kernels
@pytest.mark.parametrize("seed", [260, 1206, 1536])
def test_unequal_chunks_of_the_stack_are_the_best_of_all(seed: int) -> None:
    x = filled(seed)
    best, found = solve(x.chain, x.cluster, x.job, x.space), fastest(x, beyond_stack=True)
    assert found is not None and found.step_time_s == pytest.approx(best.seconds, rel=CLOSE)
    first, last = x.chain.body
    assert (last - first) % (found.configuration.pp * found.configuration.vpp)


@pytest.mark.kernels
def test_the_next_best_of_everything_may_be_those_of_the_stack() -> None:
    """Both parts of the space are ranked together, each key once."""
    model, cluster = nest.load_model("bert-large"), nest.load_cluster("dgx-h100", devices=16)
    job = nest.Job(global_batch=64, seq_len=512)
    space = nest.SearchSpace(cp=1, pp="2..4", recompute="none")
    plan = nest.plan(model, cluster, job, space, top=8, beyond_stack=True)
    own = nest.plan(model, cluster, job, space, top=8)
    ways = [plan, *plan.alternatives]
    assert len({(w.configuration.outer_dp, w.configuration.micro_batch, w.configuration.pp,
                 w.configuration.vpp, w.configuration.schedule) for w in ways}) == 8
    times = [w.step_time_s for w in ways]
    assert times == sorted(times)
    for mine, other in zip([own, *own.alternatives], times, strict=True):
        assert other <= mine.step_time_s * (1.0 + CLOSE)
