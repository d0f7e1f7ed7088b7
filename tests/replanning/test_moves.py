"""Bytes that devices receive, against a count over every piece of every parameter."""

from __future__ import annotations

import math
import os
from itertools import product
from random import Random

import numpy as np
import pytest
from instances import Instance, instance
from random_plans import random_plan

from nest.costs.memory import recipe
from nest.costs.operators import share_of
from nest.errors import InputError
from nest.evaluation.evaluate import evaluate
from nest.evaluation.plans import Plan
from nest.model import EXPERT
from nest.replanning.moves import received

SEEDS = range(int(os.environ.get("NEST_INSTANCES", "60")))


def legal(x: Instance, rng: Random) -> Plan | None:
    """A random plan that can be built, from at most a hundred."""
    for _ in range(100):
        try:
            return evaluate(x.chain.model or x.chain.profile, x.cluster, x.job, random_plan(rng, x))
        except InputError:
            continue
    return None


def held(x: Instance, plan: Plan, grid: dict, names: list[str], states: bool) -> dict:
    """Cells of each device, and the bytes of one cell by layer and operator.

    A cell is (layer, operator, place on the side that tensor parallelism cuts, on the other).
    """
    found: dict[str, dict] = {}
    way = plan.configuration
    r = recipe(x.job)
    order = way.order or range(len(x.chain))
    for rank in plan.ranks():
        stage, cells = way.stages[rank.stage], {}
        block = stage.devices[1] - stage.devices[0]
        device = rank.replica * way.stride + stage.devices[0] + (
            rank.tp + stage.tp * (rank.cp + stage.cp * rank.dp_in))
        each = r.parameter
        if states:
            each = r.sharded_optimizer if stage.zero else r.optimizer
            each -= r.merged if stage.zero == 3 else 0.0
        cut = stage.zero == 3 or (states and stage.zero > 0)
        layers = [order[n] for span in stage.chunks for n in range(*span)]
        one_stage = {order[n] for n in range(len(x.chain))} == set(layers) and way.vpp == 1
        for layer in layers:
            kind = x.chain.order[layer]
            if one_stage:
                kind = x.chain.shared.get(kind, kind)
            kind = x.chain.kinds[kind]
            for number, (expert, ranks, size) in enumerate(
                    operators(kind, stage, each, 0.0 if states else r.parameter)):
                if expert:
                    copies = block // (stage.ep * stage.etp)
                    side, first, pieces = rank.etp, rank.ep, stage.ep
                    mine, of = rank.expert_dp, copies * way.outer_dp
                    if stage.shard == "dp_in":
                        mine, of = rank.expert_dp % copies, copies
                else:
                    side, first, pieces = rank.tp * ranks // stage.tp, 0, 1
                    mine, of = rank.dp * stage.cp + rank.cp, way.outer_dp * stage.dp_in * stage.cp
                    if stage.shard == "dp_in":
                        mine, of = rank.dp_in * stage.cp + rank.cp, stage.dp_in * stage.cp
                if not cut:
                    mine, of = 0, 1
                wide, tall = grid[layer, number]
                high = tall // pieces // of
                low = (first * of + mine) * high
                for a, b in product(range(side * wide // ranks, (side + 1) * wide // ranks),
                                    range(low, low + high)):
                    cells[layer, number, a, b] = size * ranks * pieces / (wide * tall)
        found[names[device]] = cells
    return found


def operators(
    kind, stage, trained: float = 1.0, frozen: float = 0.0
) -> list[tuple[bool, int, float]]:
    """Whether of experts, ranks, and bytes on a device, of each operator of a layer.

    ``trained``, ``frozen``: bytes of such a parameter, if it has no format of its own.
    """
    if kind.measured:
        return [(False, stage.tp, trained * kind.measured[stage.tp].parameters)]
    found = []
    for op in kind.operators:
        ranks, padding = (float(y[0]) for y in share_of(
            op, np.array([stage.tp]), np.array([stage.etp])))
        expert = op.split in EXPERT
        learning = op.parameters if op.trained is None else op.trained
        own = op.stored if op.stored is not None and frozen else frozen
        size = learning * trained + (op.parameters - learning) * own
        found.append((expert, int(ranks), size / ranks * (1 / stage.ep if expert else padding)))
    return found


def grids(x: Instance, plans: list[Plan]) -> dict:
    """Cells of each side of every operator, fine enough for all plans."""
    found: dict = {}
    for layer, kind in enumerate(x.chain.order):
        for plan in plans:
            for stage in plan.configuration.stages:
                block = stage.devices[1] - stage.devices[0]
                for number, (expert, ranks, _) in enumerate(operators(x.chain.kinds[kind], stage)):
                    wide, tall = found.get((layer, number), (1, 1))
                    inside = stage.ep * stage.etp if expert else stage.tp
                    other = block // inside * plan.configuration.outer_dp * (
                        stage.ep if expert else 1)
                    found[layer, number] = math.lcm(wide, ranks), math.lcm(tall, other)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_are_those_of_a_count_over_every_piece(seed: int) -> None:
    rng, x = Random(seed), instance(seed)
    old, new = legal(x, rng), legal(x, rng)
    if old is None or new is None:
        pytest.skip("no legal plan was drawn")
    grid = grids(x, [old, new])
    if max(wide * tall for wide, tall in grid.values()) > 20_000:
        pytest.skip("too many pieces to count")
    old_names = [f"d{n}" for n in range(x.cluster.size)]
    lost = rng.sample(old_names, rng.randint(0, min(3, x.cluster.size - 1)))
    new_names = [f"spare{name}" if name in lost else name for name in old_names]
    rng.shuffle(new_names)
    found = received(x.chain, x.job, old.configuration, old_names, new.configuration, new_names,
                     lost)
    used = {rank.rank: name for rank, name in zip(new.ranks(), _names(new, new_names), strict=True)}
    for states, bytes_, nowhere in ((False, found.parameters, found.lost_parameters),
                                    (True, found.optimizer, found.lost_optimizer)):
        before = held(x, old, grid, old_names, states)
        after = held(x, new, grid, new_names, states)
        for rank, name in used.items():
            kept = before.get(name, {}) if name not in lost else {}
            expected = sum(size for cell, size in after[name].items() if cell not in kept)
            assert bytes_[rank] == pytest.approx(expected, rel=1e-9, abs=1e-3)
        everything = {cell: size for cells in before.values() for cell, size in cells.items()}
        left = {cell for name, cells in before.items() if name not in lost for cell in cells}
        assert nowhere == pytest.approx(
            sum(size for cell, size in everything.items() if cell not in left), rel=1e-9, abs=1e-3)


def _names(plan: Plan, names: list[str]) -> list[str]:
    """Names of the devices by rank."""
    way = plan.configuration
    return [names[r * way.stride + n] for r in range(way.outer_dp) for stage in way.stages
            for n in range(*stage.devices)]


@pytest.mark.parametrize("seed", SEEDS[:20])
def test_new_devices_receive_what_the_plan_says_they_hold(seed: int) -> None:
    x = instance(seed)
    plan = legal(x, Random(seed))
    if plan is None or plan.parallelism.offload != "none":
        pytest.skip("no legal plan was drawn")
    names = [f"d{n}" for n in range(x.cluster.size)]
    found = received(x.chain, x.job, plan.configuration, names, plan.configuration,
                     [f"new{name}" for name in names], [])
    for rank, parameters, states in zip(plan.ranks(), found.parameters, found.optimizer,
                                        strict=True):
        memory = plan.stages[rank.stage].memory_bytes
        assert parameters == pytest.approx(memory.parameters, rel=1e-9)
        assert states == pytest.approx(memory.optimizer, rel=1e-9)
    assert found.lost_parameters == 0.0 == found.lost_optimizer


@pytest.mark.parametrize("seed", SEEDS[:20])
def test_the_same_plan_moves_nothing(seed: int) -> None:
    x = instance(seed)
    plan = legal(x, Random(seed))
    if plan is None:
        pytest.skip("no legal plan was drawn")
    names = [f"d{n}" for n in range(x.cluster.size)]
    found = received(x.chain, x.job, plan.configuration, names, plan.configuration, names, [])
    assert found.parameters.max() < 1e-3
    assert found.optimizer.max() < 1e-3
