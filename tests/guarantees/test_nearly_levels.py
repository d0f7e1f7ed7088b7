"""A link that is slower by a hair turns a hierarchy into links; prices hardly move, and only up.

Slower and failed leaves and nodes never make anything faster, be what is left levels or links.
"""

from __future__ import annotations

import re
from functools import partial
from random import Random

import numpy as np
import pytest
from linked import groups, places
from test_levels_as_links import ADAPTERS, NAMES, SIZES

import nest
from nest.costs.choices import network
from nest.costs.network import collectives
from nest.costs.network.collectives import Group
from nest.inputs import Cluster, Configuration, Job
from nest.network import parse_generator, without

NO_LEVELS = (
    ("spine-leaf:leaves=4,per_leaf=16,node=8", "node7"),
    ("spine-leaf:leaves=3,per_leaf=12,node=4,oversubscription=2", "node4..5,spine1"),
    ("fat-tree:k=4,node=2", "node3/gpu1"),
    ("rail-optimized:nodes=4,node=8,oversubscription=4", ""),
    ("rail-optimized:nodes=2,units=2,node=4,spines=2", "leaf3"),
    ("dragonfly:a=4,p=4,h=1,node=4,groups=3", ""),
)
"""Networks of nodes that are no hierarchy, and what has failed of them."""
HAIR, CLOSE, DRAWN = 1e-7, 1e-6, 40


def cables(text: str, failed: str = "") -> list[str]:
    """One cable of each kind: of nodes whose names differ in more than numbers."""
    topology = parse_generator(text)
    if failed:
        topology = without(topology, failed)
    kinds: dict[frozenset[str], str] = {}
    for ends in zip(topology.source_E.tolist(), topology.target_E.tolist(), strict=True):
        one, other = (topology.nodes[end] for end in ends)
        kind = frozenset(re.sub(r"\d+", "#", name) for name in (one, other))
        kinds.setdefault(kind, f"link:{one}-{other}")
    return list(kinds.values())


def seconds(cluster: Cluster, group: Group, name: str) -> np.ndarray:
    function = getattr(collectives, name)
    found: np.ndarray = function(
        SIZES, network(cluster), group.take(np.zeros(len(SIZES), dtype=np.int64)))
    return found


def compare(before: Cluster, after: Cluster, seed: str, most: float) -> int:
    """Groups drawn at random cost as much afterwards, or up to so much more; how many did."""
    assert (after.group_sizes, after.order) == (before.group_sizes, before.order)
    compared = 0
    for at in places(before, Random(seed), DRAWN):
        pairs = list(zip(groups(before, at), groups(after, at), strict=True))
        for names, (one, other) in zip((NAMES, NAMES[:3]), pairs, strict=True):
            by_levels = before.links is None or after.links is None
            if by_levels and not (one.even[0] and (names is NAMES or at.shares_alike)):
                continue
            for name in names:
                least, found = seconds(before, one, name), seconds(after, other, name)
                assert (found >= least * (1 - 1e-9)).all(), (at, name)
                assert (found <= least * (1 + most)).all(), (at, name)
            compared += int(one.size[0] > 1)
    return compared


# ---------------------------------------------------------------- by a hair


@pytest.mark.parametrize("text", ADAPTERS)
def test_a_link_slower_by_a_hair_changes_no_price_of_a_hierarchy(text: str) -> None:
    levels, links = nest.load_network(text), 0
    assert levels.links is None
    for cable in cables(text):
        slow = nest.load_network(text, degrade=f"{cable}={1 - HAIR}")
        if slow.links is not None:  # else it was the only one of its tier
            links += 1
            assert compare(levels, slow, cable, CLOSE) > DRAWN // 2
    assert links >= 4


@pytest.mark.parametrize(("text", "failed"), NO_LEVELS)
def test_nor_of_any_other_network(text: str, failed: str) -> None:
    load = partial(nest.load_network, text, without=failed or None)
    whole = load()
    assert whole.links is not None
    for cable in cables(text, failed):
        assert compare(whole, load(degrade=f"{cable}={1 - HAIR}"), cable, CLOSE) > DRAWN // 2


def test_the_price_of_a_plan_does_not_jump() -> None:
    # ZeRO-3 over all of 32 devices: one ring on links took 3.04 s, eight by levels 2.088 s.
    model, job = nest.load_model("mixtral-8x7b"), Job(global_batch=64, seq_len=4096)
    plan = Configuration(micro_batch=32, stride=32, stages=[{
        "layers": (0, 34), "devices": (0, 32), "dp_in": 32, "zero": 3,
        "recompute": "selective", "recompute_modules": ("mlp_act",)}])
    text = "spine-leaf:leaves=2,per_leaf=16,node=8"
    levels = nest.evaluate(model, nest.load_network(text), job, plan)
    for cable in ("leaf0", *cables(text)):
        slow = nest.load_network(text, degrade=f"{cable}={1 - HAIR}")
        links = nest.evaluate(model, slow, job, plan)
        assert slow.links is not None
        assert links.step_time_s == pytest.approx(levels.step_time_s, rel=CLOSE)
        assert links.stages[0].collectives == levels.stages[0].collectives


@pytest.mark.kernels
@pytest.mark.parametrize("text", [
    "spine-leaf:leaves=4,per_leaf=16,node=8,oversubscription=4", "fat-tree:k=4,node=4",
    "nvl-domains:domains=4,size=8"])
def test_the_best_plan_stays_as_fast(text: str) -> None:
    model, levels = nest.load_model("llama2-7b"), nest.load_network(text)
    job = Job(global_batch=2 * levels.size, seq_len=4096)
    best = nest.plan(model, levels, job, beyond_stack=True)
    for cable in cables(text):
        slow = nest.load_network(text, degrade=f"{cable}={1 - HAIR}")
        for found in (nest.plan(model, slow, job, beyond_stack=True),
                      nest.evaluate(model, slow, job, best.configuration)):
            assert found.step_time_s == pytest.approx(best.step_time_s, rel=CLOSE)


# ---------------------------------------------------------------- slow and failed parts


@pytest.mark.parametrize(("text", "leaves"), [
    ("spine-leaf:leaves=3,per_leaf=16,node=8,oversubscription=2", 3),
    ("spine-leaf:leaves=2,per_leaf=12,node=4", 2), ("nvl-domains:domains=3,size=8", 3)])
def test_slower_leaves_make_nothing_faster(text: str, leaves: int) -> None:
    # One leaf after the other: links, and levels again when all are alike.
    for factor in (0.95, 0.3):
        found = [nest.load_network(text)]
        for n in range(leaves):
            slow = ",".join(f"leaf{m}={factor}" for m in range(n + 1))
            found.append(nest.load_network(text, degrade=slow))
        assert [cluster.links is None for cluster in found] == [
            True, *[False] * (leaves - 1), True]
        for before, after in zip(found, found[1:], strict=False):
            assert compare(before, after, f"{text} {factor}", 1 / factor) > DRAWN // 2


@pytest.mark.kernels
@pytest.mark.parametrize(("text", "parts"), [
    ("spine-leaf:leaves=4,per_leaf=16,node=8,oversubscription=8",
     ("node7", "node6..7", "node5..7", "node4..7", "node3..7")),
    ("rail-optimized:nodes=4,node=8", ("node3", "node2..3", "node1..3")),
    ("nvl-domains:domains=4,size=8", ("domain0/gpu7", "domain0/gpu6..7", "domain0")),
    ("fat-tree:k=4,node=4", ("node3", "node2..3")),
    ("spine-leaf:leaves=4,per_leaf=16,node=8", ("spine0", "spine0..1")),
    ("spine-leaf:leaves=4,per_leaf=16,node=8", ("node0", "node0..1,node2"))])
def test_failed_parts_make_no_plan_faster(text: str, parts: tuple[str, ...]) -> None:
    """One chunk a stage: idle devices in the middle move blocks, and chunks wrap around them."""
    model, job = nest.load_model("llama2-7b"), Job(global_batch=96, seq_len=4096)
    clusters = [nest.load_network(text, without=failed) for failed in (None, *parts)]
    found = [nest.plan(model, where, job, nest.SearchSpace(vpp=1), beyond_stack=True)
             for where in clusters]
    for where, before, after in zip(clusters, found, found[1:], strict=False):
        if after.step_time_s < before.step_time_s:
            # Levels again, whose groups choose among more algorithms than groups of links: with the
            # devices that failed, the same plan takes as long as the best.
            again = nest.evaluate(model, where, job, after.configuration)
            assert again.step_time_s >= before.step_time_s
            assert after.step_time_s > before.step_time_s * (1.0 - 2e-3)


@pytest.mark.kernels
@pytest.mark.parametrize(("text", "leaves"), [
    ("spine-leaf:leaves=4,per_leaf=16,node=8,oversubscription=2", 4),
    ("rail-optimized:nodes=4,node=8", 8)])
def test_slower_leaves_make_no_plan_faster(text: str, leaves: int) -> None:
    model, job = nest.load_model("llama2-7b"), Job(global_batch=96, seq_len=4096)
    for factor in (0.5, 0.1):
        slow = [",".join(f"leaf{m}={factor}" for m in range(n)) for n in (1, 2, leaves)]
        found = [nest.plan(model, nest.load_network(text, degrade=text_), job,
                           beyond_stack=True).step_time_s
                 for text_ in (None, *slow)]
        assert found == sorted(found)
