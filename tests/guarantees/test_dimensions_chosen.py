"""Each dimension of a stack's own space is chosen by the best plan of some random instance."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from instances import Instance
from test_stack_oracle import question

import nest
from nest.inputs import StageConfiguration

Chosen = Callable[[Instance, nest.Plan], bool]


def schedule(name: str) -> Chosen:
    """Whether the best plan has a schedule."""
    return lambda _, plan: plan.configuration.schedule == name


def stage(holds: Callable[[StageConfiguration], bool]) -> Chosen:
    """Whether a stage is so."""
    return lambda _, plan: any(map(holds, plan.configuration.stages))


def sharded(zero: int) -> Chosen:
    """Whether stages of a pipeline have a way of ZeRO."""
    return lambda _, plan: plan.configuration.pp > 1 and plan.configuration.stages[0].zero == zero


def again(module: str) -> Chosen:
    """Whether a module is computed again."""
    return stage(lambda s: module in s.recompute_modules)


def alone(*names: str) -> Chosen:
    """Whether a chunk of a pipeline holds these kinds of layers and no others."""
    def holds(x: Instance, plan: nest.Plan) -> bool:
        kinds = [x.chain.kinds[kind].name for kind in x.chain.order]
        held = [{name.split("_")[0] for name in kinds[i:j]}
                for s in plan.configuration.stages for i, j in s.chunks]
        return len(held) > 1 and {*names} in held
    return holds


def unequal(x: Instance, plan: nest.Plan) -> bool:
    """Whether several chunks a stage hold different numbers of layers of the body."""
    first, last = x.chain.body
    return plan.configuration.vpp > 1 and len({
        max(0, min(j, last) - max(i, first))
        for s in plan.configuration.stages for i, j in s.chunks}) > 1


def larger(_: Instance, plan: nest.Plan) -> bool:
    """Whether more micro-batches than stages pass a chunk in a row."""
    return (plan.configuration.group or 0) > plan.configuration.pp


def partly(x: Instance, _: nest.Plan) -> bool:
    """Whether a group of devices is partly used."""
    return x.cluster.size < math.prod(level.size for level in x.cluster.levels)


CASES: list[tuple[str, Chosen, tuple[int, ...]]] = [
    *((name, schedule(name), seeds) for name, seeds in {
        "1f1b": (1, 10), "gpipe": (129, 203), "interleaved": (7, 62),
        "combined": (679, 1309), "zb1p": (95,), "interleaved-zb": (78,),
        "zb-v": (311,), "dualpipev": (294, 1047), "looped-bfs": (1844,)}.items()),
    ("group above pp", larger, (7, 71)), ("unequal chunks", unequal, (7, 62)),
    ("embedding alone", alone("embedding"), (62, 91)), ("head alone", alone("head"), (7, 62)),
    ("multi-token prediction alone", alone("mtp"), (1099, 1415)),
    ("multi-token prediction with the head", alone("mtp", "head"), (1352, 2383)),
    ("part of a group", partly, (10, 34)),
    ("cp, ring", stage(lambda s: s.cp > 1 and s.cp_comm == "p2p"), (217, 259)),
    ("cp, all-to-all", stage(lambda s: s.cp_comm == "a2a"), (16, 37)),
    ("cp, all-gather", stage(lambda s: s.cp_comm == "all_gather"), (38, 59)),
    ("ep", stage(lambda s: s.ep > 1), (37, 61)),
    ("etp", stage(lambda s: s.ep > 1 and s.etp > 1), (259, 547)),
    *((f"zero {zero} with a pipeline", sharded(zero), seeds)
      for zero, seeds in {0: (7, 71), 1: (62, 95)}.items()),
    ("hsdp", stage(lambda s: s.shard == "dp_in"), (25, 34)),
    *((f"recompute of {name}", again(name), seeds) for name, seeds in {
        "core_attn": (61, 71), "norm": (215, 677), "mlp_act": (215, 448),
        "moe": (2989,),
        "mla_up_proj": (160,)}.items()),
    ("full recompute", stage(lambda s: s.recompute == "full"), (79, 89)),
    ("recompute of first layers", stage(lambda s: s.recompute_layers is not None), (241,)),
]
"""What is chosen, and seeds of instances whose best plan has it; one that has it suffices."""


@pytest.mark.kernels
@pytest.mark.parametrize(("chosen", "seeds"), [case[1:] for case in CASES],
                         ids=[case[0] for case in CASES])
def test_some_best_plan_has_it(chosen: Chosen, seeds: tuple[int, ...]) -> None:
    for seed in seeds:
        x = question(seed)
        plan = nest.plan(x.model, x.cluster, x.job, x.space, threads=1, reorder=False)
        assert plan.runnable is (None if x.chain.unlisted else True) and plan.optimal, seed
        if chosen(x, plan):
            return
    pytest.fail(f"no best plan of the seeds {seeds} has it: look for others")
