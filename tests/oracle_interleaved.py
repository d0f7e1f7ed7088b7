"""Interleaved pipelines for the oracle: all of them are listed, each one priced.

Shapes: E choices of one block size under an outer choice, P recompute policies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from oracle_listing import Question, Wrap
from oracle_plans import Found, Key, later, write_stage
from oracle_prices import Pricer, StagePrice
from oracle_rules import Choice, Outer, Policy, shards
from oracle_schedules import interleaved_in_flight, interleaved_seconds

from nest.describe import Configuration

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def wrapped(
    question: Question, pricer: Pricer, rows: Sequence[tuple[int, Choice]]
) -> tuple[int, list[Found]]:
    """How many interleaved plans fit, and the best of each key."""
    at: dict[tuple[int, int, int], list[int]] = {}
    for n, (number, c) in enumerate(rows):
        if c.state.zero in question.job.stack.zero_with_pipeline:
            at.setdefault((number, c.start, c.size), []).append(n)
    plans, best = 0, dict[Key, Found]()
    for wrap in question.wraps():
        # The choices of blocks of one size come in one order, wherever the block is.
        own = [np.array(at.get((wrap.outer, s * wrap.size, wrap.size), []), dtype=np.int64)
               for s in range(wrap.pp)]
        if not len(own[0]):
            continue
        outer = question.outers[wrap.outer]
        chunks = [question.chunks(wrap, s) for s in range(wrap.pp)]
        policies = question.policies(*(chunk for stage in chunks for chunk in stage))
        prices = []
        for stage, chosen in zip(chunks, own, strict=True):
            table = pricer.stage(stage, (1 << stage[0][0]) - 1, policies)
            prices.append(StagePrice(*(figure[pricer.row_C[chosen]] for figure in table)))
        ranges = [[(chunk[0], chunk[-1] + 1) for chunk in stage] for stage in chunks]
        lanes = np.array([shards(rows[n][1].split, question.job) for n in own[0]])
        m = np.array([question.job.global_batch // (outer.outer_dp * outer.micro_batch)])
        hops = wrapped_hops(pricer, outer, wrap, ranges, lanes)
        seconds, memory = interleaved(pricer, wrap, prices, hops, m)
        fits = np.all([held <= pricer.limit for held in memory], axis=0)
        plans += int(fits.sum())
        seconds = np.where(fits, seconds, np.inf)
        entry, policy = np.unravel_index(int(seconds.argmin()), seconds.shape)
        key = (outer.outer_dp, outer.micro_batch, wrap.pp, wrap.vpp, "interleaved")
        if seconds[entry, policy] < (best[key].seconds if key in best else np.inf):
            best[key] = Found(
                float(seconds[entry, policy]), key,
                later(wrapped_configuration, outer, wrap, [rows[x[entry]][1] for x in own],
                       policies[policy], ranges))
    return plans, list(best.values())


def wrapped_hops(
    pricer: Pricer, outer: Outer, wrap: Wrap, chunks: Sequence[Sequence[tuple[int, int]]],
    lanes: Ints,
) -> list[Floats]:
    """Hand-over of the largest chunk behind each stage, there and back; shape (E, 1) each."""
    hops = []
    for s, stage in enumerate(chunks):
        last = s == wrap.pp - 1
        start = wrap.size * (s + 1) - 1, 0 if last else wrap.size * (s + 1)
        outputs = [stop for _, stop in stage if stop < len(pricer.chain)]
        handed = [pricer.handed(outer, (1 << stop) - 1, *start) for stop in outputs]
        hops.append(pricer.hop(max(size for size, _ in handed), handed[0][1], lanes[:, None]))
    return hops


def interleaved(
    pricer: Pricer, wrap: Wrap, prices: Sequence[StagePrice], hops: Sequence[Floats], m: Ints
) -> tuple[Floats, list[Floats]]:
    """Seconds, and bytes of each stage; shape (E, P)."""
    p, v, stack = wrap.pp, wrap.vpp, pricer.job.stack
    seconds = interleaved_seconds(
        [x.forward for x in prices], [x.backward for x in prices], [x.finish for x in prices],
        [x.unhidden for x in prices], hops, m, v,
        0.5 * stack.overlap_grad_reduce + 0.25 * stack.overlap_param_gather)
    memory = [
        x.resident + interleaved_in_flight(p - 1 - s, p, v, m) / v * x.activations
        for s, x in enumerate(prices)
    ]
    return seconds, memory


def wrapped_configuration(
    outer: Outer, wrap: Wrap, choices: Sequence[Choice], policy: Policy,
    chunks: Sequence[Sequence[tuple[int, int]]],
) -> Configuration:
    """An interleaved plan."""
    return Configuration(
        outer_dp=outer.outer_dp, micro_batch=outer.micro_batch, stride=outer.stride,
        vpp=wrap.vpp, schedule="interleaved",
        stages=tuple(write_stage(c, policy, own) for c, own in zip(choices, chunks, strict=True)))
