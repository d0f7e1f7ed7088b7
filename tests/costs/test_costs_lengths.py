"""Samples of many lengths: attention within them, the busiest replica, padding."""

from __future__ import annotations

import json
import math
from random import Random

import numpy as np
import pytest
from command_line import run
from plain import S, block, cost, model

import nest
from nest.costs.imbalance import ALONE, Keys, Ranks, Waits, busiest, largest_of
from nest.inputs.lengths import lognormal, mean_length
from nest.model import build_chain, model_flop

HALF = {S: 1.0, S // 2: 2.0}
"""Half of all tokens are in samples of S, half in samples of S / 2."""


def test_attention_stays_within_samples() -> None:
    # A causal mask leaves a token S / 2 keys, or S / 4 in a sample of half the length.
    layer = block()
    whole, half, short = (cost(layer, lengths=lengths, attention_derate=0.01) for lengths in (
        None, HALF, {S // 2: 5.0}))
    for way in ("forward", "backward"):
        a, b, c = (getattr(one, way)[0] for one in (whole, half, short))
        assert b == pytest.approx((a + c) / 2.0) and c < 0.8 * a
    assert half.activations == whole.activations
    flop = [model_flop(build_chain(model()), S, given) for given in (None, HALF, {S // 2: 5.0})]
    assert flop[1] == pytest.approx((flop[0] + flop[2]) / 2.0)


def test_what_lengths_do_not_change() -> None:
    layer = block()
    whole = cost(layer)
    for other in (cost(layer, lengths={S: 7.0}), cost(layer, lengths=HALF, packing="padded")):
        assert (other.forward, other.backward) == (whole.forward, whole.backward)
    plain = [cost(layer, lengths=lengths, flash_attention=False) for lengths in (None, HALF)]
    assert plain[0].forward == plain[1].forward  # scores of whole sequences are masked


def test_a_window_hides_keys_of_long_samples_alone() -> None:
    # Samples of S see w s - w^2 / 2 pairs within a window of S / 2, those of S / 2 all they have.
    tower = model(window=S // 2)
    flop = [model_flop(build_chain(tower), S, lengths) for lengths in (None, {S // 2: 1.0})]
    free = model_flop(build_chain(model()), S, {S // 2: 1.0})
    assert flop[1] == free < flop[0]


def test_the_largest_of_some_normal_numbers() -> None:
    # Tippett 1925: 1 / sqrt(pi) of two, 1.53875 of ten.
    assert largest_of(1) == pytest.approx((0.0, 1.0), abs=1e-5)
    two = 1 / math.sqrt(math.pi), math.sqrt(1 - 1 / math.pi)
    assert largest_of(2) == pytest.approx(two, abs=1e-5)
    assert largest_of(10).mean == pytest.approx(1.53875, abs=1e-5)


@pytest.mark.parametrize(("rows", "replicas"), [(16, 8), (4, 32)])
def test_the_busiest_replica_against_samples_drawn_at_random(rows: int, replicas: int) -> None:
    lengths, rng = {256: 0.5, 1024: 0.3, 4096: 0.2}, Random(3)
    pool = rng.choices(list(lengths), list(lengths.values()), k=3 * 10**5)
    total = sum(size * share for size, share in lengths.items())
    keys = [Keys(size, size * share / total, size / 2) for size, share in lengths.items()]
    budget, mean = rows * 8192, sum(one.share * one.keys for one in keys)
    drawn, at, found = [], 0, list[float]()
    while at + 500 * rows < len(pool):
        left = budget
        pairs = 0.0
        while left:  # the last sample of a replica is cut
            size = min(pool[at], left)
            pairs, left, at = pairs + size * pool[at] / 2, left - size, at + 1
        found.append(pairs / budget)
    for n in range(0, len(found) - replicas, replicas):
        drawn.append(max(found[n:n + replicas]))
    ranks = Ranks(np.array([replicas, 1]), np.array([1, 1]), float(budget * replicas))
    most = busiest(keys, ranks, [np.array([1, 1])], ALONE)
    assert most[1] == pytest.approx(1.0)
    assert most[0] == pytest.approx(np.mean(drawn) / mean, rel=0.04)
    above = busiest(keys, ranks, [np.array([1, 1])], Waits(above=1.0)) - most
    assert above[0] == pytest.approx(np.std(drawn) / mean, rel=0.5)


def test_no_replica_has_more_than_the_longest_samples() -> None:
    keys = [Keys(100, 0.9, 50), Keys(1000, 0.1, 500)]
    ranks = Ranks(np.array([1024]), np.array([1]), 1e3)
    assert busiest(keys, ranks, [np.array([1])], ALONE) == pytest.approx(500 / 95)


def test_replicas_wait_for_the_busiest() -> None:
    layer = block()
    one, many = (cost(layer, lengths=HALF, outer=outer, attention_derate=0.01)
                 for outer in (1, 8))
    assert many.forward > one.forward and many.backward > one.backward
    assert many.cp_forward == one.cp_forward


def test_a_lognormal_distribution_keeps_its_moments() -> None:
    found = lognormal(900.0, 1.0, 10**6)
    assert mean_length(found) == pytest.approx(900 * math.exp(0.5), rel=0.01)
    square = sum(share * size**2 for size, share in found.items()) / sum(found.values())
    assert square == pytest.approx(900**2 * math.exp(2.0), rel=0.05)
    short = lognormal(900.0, 1.0, 900)
    assert max(short) == 900 and short[900] == pytest.approx(0.5, abs=0.01)


def test_lengths_that_are_not_allowed() -> None:
    for given, text in (("x", "512:30"), ("512:0", "more than 0"), ("lognormal:9:9:9", "512:30"),
                        ({"a": 1}, "a whole number"), ({}, "1 to 1000"),
                        ("9000:1", "at most seq_len = 8192")):
        with pytest.raises(nest.InputError, match=text):
            nest.Job(global_batch=8, seq_len=8192, lengths=given)  # type: ignore[arg-type]


def test_a_plan_says_how_steps_differ(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", "llama3-8b", "dgx-h100", "--devices", "16", "--global-batch", "32",
             "--seq-len", "8192", "--tp", "2", "--pp", "2", "--zero", "1"]
    given = ["--lengths", "512:30,2048:70"]
    whole, packed, padded = (json.loads(run(capsys, *words, *more, "--json")[0]) for more in (
        [], given, [*given, "--packing", "padded"]))
    assert packed["step_time_s"] < whole["step_time_s"] == padded["step_time_s"]
    assert whole["step_spread_s"] is padded["step_spread_s"] is None
    assert 0.0 < packed["step_spread_s"] < 0.05 * packed["step_time_s"]
    assert padded["tokens_per_s"] == pytest.approx(
        whole["tokens_per_s"] * (0.3 * 512 + 0.7 * 2048) / 8192)
    assert "samples of many lengths" in packed["confidence"]["beyond"]
    assert any("stages work on unlike micro-batches" in one for one in packed["doubts"])
    text = " ".join(run(capsys, *words, *given, "--details")[0].split())
    assert "attention stays within them; steps differ by" in text
    again = nest.Job.parse(packed["inputs"]["job"])
    assert again.lengths == {512: 30.0, 2048: 70.0}
