"""Stages that differ: how many there are, and where planning ends with a message."""

from __future__ import annotations

import random
import time

import pytest

import nest
from nest.search import branch_and_bound, compiled, signatures
from nest.search.progress import Watch
from nest.search.signatures import distinct_spans


def profile(layers: int, repeat: int = 1) -> nest.Profile:
    return nest.Profile.parse({"name": "noisy", "layers": [
        {"name": f"l{n}", "output_bytes": 1e6, "repeat": repeat, "tp": {1: {
            "forward": 1e-3 + 1e-6 * n, "backward": 2e-3, "parameter_bytes": 1e6,
            "activation_bytes": 1e6}}} for n in range(layers)]})


def test_the_number_of_different_spans_is_that_of_listing_them():
    for seed in range(300):
        draw = random.Random(seed)
        kinds = [draw.randrange(draw.randint(1, 5)) for _ in range(draw.randint(1, 14))]
        spans = {tuple(kinds[i:j]) for j in range(len(kinds) + 1) for i in range(j)}
        assert distinct_spans(kinds) == len(spans), kinds
    assert distinct_spans(range(500)) == 500 * 501 // 2
    assert distinct_spans([7] * 10_000) == 10_000


def test_stages_have_one_signature_exactly_where_their_layers_are_the_same():
    """Found by what a stage has in common with an earlier one, and here by listing all."""
    for seed in range(200):
        draw = random.Random(seed)
        pattern = [draw.randrange(draw.randint(1, 4)) for _ in range(draw.randint(1, 12))]
        order = (pattern * 3)[: draw.randint(1, 24)]
        found = signatures._Found()
        index = found._spans(order)
        of = {}
        for i in range(len(order)):
            for j in range(i + 1, len(order) + 1):
                assert of.setdefault(tuple(order[i:j]), index[i, j]) == index[i, j]
                assert found.part[index[i, j]] == (index[i, j - 1] if j > i + 1 else -1)
        assert len({*of.values()}) == len(of) == len(found.part)


def test_layers_that_are_alike_are_looked_up_once(monkeypatch):
    """2,000 layers have 2 million stages, whose grouping took seconds before a time limit began."""
    found = signatures._Found()
    asked, extend = [], found.extend
    monkeypatch.setattr(found, "extend", lambda *given: asked.append(given) or extend(*given))
    found._spans([0, *[1, 1, 2] * 600, 3])
    assert len(asked) < 10 * 1802


@pytest.mark.kernels
def test_too_many_different_layers_end_in_a_message_before_any_work():
    subject, job = profile(2000), nest.Job(global_batch=1024, seq_len=1)
    cluster = nest.load_cluster("h100-spine-leaf", devices=1024)
    with pytest.raises(nest.LimitError):
        nest.plan(profile(502), cluster, job, beyond_stack=True)  # kernels are loaded
    started = time.process_time()
    with pytest.raises(nest.LimitError, match=r"noisy: got 2,000 layers of 2,000 different kinds, "
                       r"which form 2,001,000 different stages; allowed: 126,000"):
        nest.plan(subject, cluster, job, beyond_stack=True)
    assert time.process_time() - started < 2.0


def test_layers_that_repeat_are_no_different_ones(monkeypatch):
    from nest.evaluation.evaluate import chain_of

    monkeypatch.setattr(signatures, "MOST", 100)
    job = nest.Job(global_batch=8, seq_len=1)
    assert len(signatures.signatures(chain_of(profile(1, repeat=100)), job).part) <= 101
    with pytest.raises(nest.LimitError):
        signatures.signatures(chain_of(profile(14)), job)


def test_a_time_limit_counts_no_compiling():
    watch = Watch(0.2)
    watch.begin()
    watch.excuse(60.0)
    time.sleep(0.25)
    assert not watch.over
    watch = Watch(0.01)
    watch.excuse(60.0)  # before the clock runs
    watch.begin()
    time.sleep(0.02)
    assert watch.over


@pytest.mark.kernels
def test_kernels_that_take_longer_than_the_limit_leave_time_to_search(monkeypatch):
    load, slept = compiled.load, []

    def slow(names):
        started = time.perf_counter()
        if not slept:
            slept.append(time.sleep(6.0))
        return load(names)[0], time.perf_counter() - started

    monkeypatch.setattr(branch_and_bound.compiled, "load", slow)
    plan = nest.plan(profile(4), nest.load_cluster("dgx-a100", devices=8),
                     nest.Job(global_batch=8, seq_len=1), time_limit=5, beyond_stack=True)
    assert plan.optimal
