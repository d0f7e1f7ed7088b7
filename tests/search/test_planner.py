"""A planner that has answered other questions answers as one that has not, bit for bit."""

from __future__ import annotations

import json
import os
import random
from functools import cache

import pytest
from command_line import CLUSTER
from descriptions import MODEL

import nest
from nest.search.cache import Cache, size_of

ORDERS = int(os.environ.get("NEST_ORDERS", "10"))
ASKED = 6
"""Questions of an order, each of one of two families."""
FAMILIES, MEMBERS = 7, 8
"""Questions there are: those of a family differ in the network and the memory alone."""
EFFORT = ("seconds", "compile_seconds", "solved", "pruned", "cells", "labels", "transitions",
          "peak_bytes")
MODELS = tuple(nest.load_model({**MODEL, **changes}) for changes in (
    {"layers": 7}, {"layers": 12, "hidden": 512, "ffn": 2048},
    {"layers": 4, "moe": {"experts": 4, "top_k": 2, "ffn": 64}}))
SPACES = tuple(nest.SearchSpace(**bounds) for bounds in ({}, {}, {"tp": 2}, {"pp": "1..2"}))


def cluster(devices: int, leaf: str, latency: str, memory: str) -> nest.Cluster:
    node, outer = CLUSTER["levels"]
    return nest.load_cluster({
        **CLUSTER, "device": {**CLUSTER["device"], "memory": memory},
        "levels": [node, {**outer, "bandwidth": leaf, "latency": latency}]}, devices)


def question(draw: random.Random) -> tuple:
    """Indices of a question: models, networks, memories, batches, spaces; few are whole spaces."""
    return (draw.choice((0, 0, 1, 2)), draw.choice((8, 8, 16)),
            draw.choice(("5 GB/s", "20 GB/s", "25 GB/s", "26 GB/s")),
            draw.choice(("10 us", "10 us", "40 us")),
            draw.choice(("8 GiB", "8 GiB", "1.9 GiB", "1.76 GiB")),
            draw.choice((16, 16, 24)), draw.choice((128, 8192)), draw.randrange(len(SPACES)),
            draw.random() < 0.1, draw.choice((1, 1, 1, 3)))


def answer(plan, asked: tuple) -> str:
    """All of a plan's document but the effort, or what was said instead."""
    model, devices, leaf, latency, memory, batch, length, space, beyond, top = asked
    try:
        found = plan(
            MODELS[model], cluster(devices, leaf, latency, memory),
            nest.Job(global_batch=batch, seq_len=length), SPACES[space], top=top,
            beyond_stack=beyond, threads=1).as_dict()
    except (nest.InfeasibleError, nest.InputError) as error:
        return f"{error} {json.dumps(getattr(error, 'nearest', None), default=str)}"
    return json.dumps({**found, "search": {
        name: value for name, value in found["search"].items() if name not in EFFORT}})


def families() -> list[list[tuple]]:
    draw = random.Random(4)
    found = []
    for _ in range(FAMILIES):
        first = question(draw)
        found.append([(*first[:2], *question(draw)[2:5], *first[5:]) for _ in range(MEMBERS)])
    return found


@cache
def cold(asked: tuple) -> str:
    return answer(nest.plan, asked)


def forget(kept: Cache, draw: random.Random) -> None:
    """Lose half of the entries: which of them memory has room for must not matter."""
    for key in [*kept._entries]:
        if draw.random() < 0.5:
            for each in (kept._entries, kept._sizes, kept._extents):
                del each[key]


@pytest.mark.kernels
def test_answers_do_not_depend_on_what_was_asked_before():
    """``NEST_ORDERS=2000`` asks in so many random orders; in every second, entries are lost."""
    every = families()
    for seed in range(ORDERS):
        draw = random.Random(seed)
        planner = nest.Planner(draw.choice((10**5, 10**6, 10**8)))
        some = draw.sample(every, 2)
        for number in range(ASKED):
            asked = draw.choice(some[draw.random() < 0.3])
            assert answer(planner.plan, asked) == cold(asked), (seed, number, asked)
            assert planner.held <= planner.memory
            if seed % 2:
                forget(planner._cache, draw)


@pytest.mark.kernels
def test_what_memory_lost_is_found_anew():
    """Some entries name parts of others by numbers, which others have when they are made again."""
    model, job = nest.load_model("llama3-70b"), nest.Job(global_batch=512, seq_len=8192)
    whole = nest.load_cluster("h100-spine-leaf", devices=64)
    clusters = [whole.replace(
        device=whole.device.replace(memory=memory),
        levels=(*whole.levels[:-1], whole.levels[-1].replace(bandwidth=bandwidth)))
        for memory, bandwidth in ((80e9, 50e9), (96e9, 25e9), (80e9, 25e9), (96e9, 50e9))]
    wanted = [nest.plan(model, each, job, threads=1).configuration for each in clusters]
    draw, planner = random.Random(1), nest.Planner()
    for _ in range(4):
        for number in draw.sample(range(4), 4):
            found = planner.plan(model, clusters[number], job, threads=1)
            assert found.configuration == wanted[number]
            forget(planner._cache, draw)


@pytest.mark.kernels
def test_networks_share_what_follows_from_none():
    """Which way of exchanging keys and values is the fastest depends on the network."""
    planner, job = nest.Planner(), nest.Job(global_batch=16, seq_len=8192)
    kept = set()
    for leaf in ("26 GB/s", "5 GB/s", "1 GB/s", "200 MB/s"):
        for latency in ("1 us", "40 us"):
            planner.plan(MODELS[0], cluster(8, leaf, latency, "8 GiB"), job, threads=1)
            kept.add(len(planner._cache))
    assert len(kept) == 1


@pytest.mark.kernels
def test_a_planner_solves_less_and_stays_within_its_memory():
    """Falling bandwidths are what it is best at; many families are more than it may keep."""
    planner, solved = nest.Planner(3 * 10**6), []
    for leaf in range(26, 10, -2):
        plan = planner.plan(MODELS[0], cluster(16, f"{leaf} GB/s", "10 us", "2 GiB"),
                            nest.Job(global_batch=32, seq_len=256), threads=1)
        solved.append(plan.search.transitions)
    assert min(solved[2:]) < 0.6 * solved[0]
    seen = []
    for batch in range(4, 40):
        planner.plan(MODELS[0], cluster(8, "25 GB/s", "10 us", "8 GiB"),
                     nest.Job(global_batch=batch, seq_len=128), threads=1)
        seen.append(planner.held)
    assert max(seen) <= planner.memory and max(seen) > planner.memory / 2
    assert not nest.Planner(0).held


@pytest.mark.kernels(uncompiled=True)
def test_a_planner_is_not_asked_by_its_own_progress():
    """Which would wait for ever; another planner may be, and this one after the error."""
    planner, said = nest.Planner(), []
    asked = MODELS[0], cluster(4, "25 GB/s", "10 us", "8 GiB"), nest.Job(
        global_batch=4, seq_len=128), nest.SearchSpace(tp=1, pp=1, zero=0, recompute="none")

    def follow(progress):
        said.append(nest.plan(*asked, threads=1).step_time_s)
        planner.plan(*asked, threads=1)

    with pytest.raises(nest.InputError, match="progress of its own question; allowed: nest.plan"):
        planner.plan(*asked, threads=1, progress=follow)
    assert planner.plan(*asked, threads=1).step_time_s == said[0]


def test_cached_objects_go_in_the_order_of_their_use():
    kept = Cache(10**4)
    for name in "abc":
        kept.of(name, lambda: bytearray(3000))
    kept.of("a", lambda: pytest.fail("made again"))
    kept.settle()
    assert kept.size <= kept.most
    kept.of("d", lambda: bytearray(3000))
    kept.settle()
    made = []
    for name in "acdb":
        kept.of(name, lambda name=name: made.append(name))
    assert made == ["b"]


def test_cached_objects_are_measured_again_when_they_grow():
    class Grows:
        def __init__(self):
            self.parts = []

        @property
        def extent(self):
            return len(self.parts)

    kept, lengths = Cache(10**4), []
    for _ in range(9):
        kept.of("one", Grows).parts.append(bytearray(2000))
        kept.settle()
        lengths.append(len(kept))
        assert kept.size <= kept.most
    assert lengths[:4] == [1] * 4 and 0 in lengths[4:]
    assert size_of([bytearray(2000)] * 3) < 2500


def test_what_a_planner_may_keep_is_a_number():
    with pytest.raises(nest.InputError, match="memory: got 'much'"):
        nest.Planner("much")
