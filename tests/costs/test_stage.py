"""Layers on a device put together: what hides what, by hand and as properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from plain import chunk, stack

from nest.costs.stage import chunk_costs, hop, with_parts
from nest.inputs import Stack
from nest.schedules.chunk import ChunkCosts, LayerSeconds, delayed, longer
from nest.schedules.path import Path
from nest.schedules.registry import SCHEDULES
from nest.schedules.traits import Hop


def layer(**given: float) -> LayerSeconds:
    """A layer that computes 4 s forward and 8 s backward and has no traffic but what is given."""
    zero = dict.fromkeys(LayerSeconds._fields, 0.0)
    plain = {"free_forward": 4.0, "forward": 4.0, "free_backward": 8.0, "backward": 8.0}
    return LayerSeconds(**{**zero, **plain, **given})


def costs(*layers: LayerSeconds, **software: float) -> ChunkCosts:
    return chunk_costs(layers, 0.0, 0.0, stack(**software))


# ---------------------------------------------------------------- by hand


def test_layers_add_up() -> None:
    found = chunk_costs([layer(forward=5.0), layer(backward=9.0)], 3.0, 2.0, stack())
    assert found == chunk(9.0, 17.0, update=3.0, tied=2.0)


def test_maxima_are_reduced_once_each_pass() -> None:
    # 5 + 1 s forward, 9 + 1 backward: not of every layer. Of a backward in two parts, of which 3 s
    # of the second layer are for weights, the first part has it: 9 - 3 + 1.
    layers = [layer(maxima=1.0, forward=1.0, backward=1.0), layer(maxima=1.0)]
    found = costs(*layers)
    assert (found.forward, found.backward) == (6.0, 10.0)
    two = with_parts(found, layers, [0.0, 3.0], [(0.0, 0.0)] * 2, stack())
    assert (two.inputs, two.weights) == (7.0, 3.0)


def test_gradients_hide_under_the_layers_below() -> None:
    # Backward from the last to the first. Half of 8 s hides 4 s. Gradients of the third: 10 s, of
    # which 4 hide under the second: 6, and its own 1 s make 7; 4 hide under the first: 3, and the
    # first's own 2 s under nothing: 5.
    found = costs(layer(sync=2.0), layer(sync=1.0), layer(sync=10.0), overlap_grad_reduce=0.5)
    assert found.left == 5.0
    # Long computing below hides all of them, but never the first layer's.
    assert costs(layer(sync=2.0), layer(free_backward=99.0), layer(sync=10.0),
                 overlap_grad_reduce=0.5).left == 2.0
    assert (found.sync, found.hides_sync) == (13.0, 12.0)


def test_parameters_are_gathered_under_the_layers_before() -> None:
    # Half of 4 s hides 2 s. The first waits for its own 1 s, the second for 1 + 5 - 2 = 4 s in
    # all, the third for 6 + 1 - 4 = 3.
    found = costs(layer(gather=1.0), layer(gather=5.0), layer(gather=1.0),
                  overlap_param_gather=0.5)
    assert found.wait == 4.0
    assert (found.gather, found.hides_gather) == (7.0, 6.0)


def test_zero_2_scatters_under_the_layer_below() -> None:
    # Half of 8 s hides 4 of the upper layer's 5 s: 1 is exposed. The first layer's 13 s run on
    # under the next forward, 4 s in all, and the first 4 s of the next backward: 5 are exposed
    # where others follow, and all 13 at the end of the step.
    found = costs(layer(scattered=13.0), layer(scattered=5.0), overlap_zero3=0.5)
    assert (found.forward, found.backward) == (8.0, 17.0)
    assert found.pace == 5.0
    assert found.left == 13.0
    assert found.zero == 1.0


def test_what_hides_zero_traffic_hides_no_reduction() -> None:
    # As above, and 3 s of the upper layer's gradients are reduced over replicas once a step: all
    # 4 s of the first layer's computing that may hide traffic hide the scatter.
    software = {"overlap_zero3": 0.5, "overlap_grad_reduce": 0.5}
    found = costs(layer(), layer(scattered=5.0, sync=3.0), **software)
    assert found.left == 3.0
    # 1 s of scatter leaves 6 of its 8 s of computing, which hide 3.
    assert costs(layer(), layer(scattered=1.0, sync=3.0), **software).left == 0.0


def test_zero_3_gathers_one_layer_ahead() -> None:
    # Three layers, 5 s to gather and 7 s to scatter each; half of 4 s forward hides 2, half of 8
    # backward 4. Where the stage waited, two layers' parameters are there at the start of a pass:
    # forward the third's 5 s run beside the second: 3 exposed. Backward beside the second the
    # third's scatter and the first's gather: 12 - 4 = 8; beside the first the second's scatter: 3,
    # and what the next pass gathers first, 5 more, since its gather comes before that scatter.
    one = layer(gathered=5.0, regathered=5.0, scattered=7.0)
    found = costs(one, one, one, overlap_zero3=0.5)
    assert (found.forward, found.backward) == (12.0 + 3.0, 24.0 + 11.0 + 5.0)
    assert (found.late, found.late_back) == (5.0, 5.0)
    # A forward behind a forward: beside the last its first's gather, 3, beside the first the
    # second's, 3. Behind a backward: by the end of the second layer the second's and the third's
    # gathers and the scatter of the backward before, 17 - 4 = 13, of which 3 count in any case.
    assert (found.queue_forward, found.chase) == (6.0, 10.0)
    # A backward behind a forward: the third's own gather and, beside it, the second's, 5 - 4;
    # behind a backward: beside the third the second's gather and the scatter before: 12 - 4.
    assert (found.turn, found.queue_backward) == (3.0 + 1.0, 8.0)
    # 5 s at the start of a step, and 3 s of the second's; the first's scatter at the end.
    assert (found.wait, found.left, found.pace) == (5.0 + 3.0, 7.0, 14.0)


def test_passes_through_chunks_that_meet() -> None:
    # Chunk a has two layers with 5 s to gather and 7 s to scatter, b a single one with 20 and 30;
    # a layer hides 2 s forward and 4 backward.
    one = layer(gathered=5.0, regathered=5.0, scattered=7.0)
    other = layer(gathered=20.0, regathered=20.0, scattered=30.0)
    a, b = costs(one, one, overlap_zero3=0.5), costs(other, overlap_zero3=0.5)
    # Behind a forward: the first gather beside its last layer, the second beside the first.
    assert longer(a, 0, b, 0) == longer(a, 0, b, 1) == 20.0 - 2.0
    assert longer(b, 0, a, 0) == (5.0 - 2.0) + (5.0 - 2.0)
    assert longer(b, 0, a, 1) == (5.0 - 2.0) + (5.0 - 4.0)
    # Behind a backward of a: its end has waited, for 7 + 20 - 4 s instead of 7 - 4.
    assert (delayed(a, 20.0), longer(a, 1, b, 0), longer(a, 1, b, 1)) == (20.0, 0.0, 0.0)
    # Behind one of b: 5 - 4 s, then its scatter beside the first layer, with a gather of 5 s.
    assert delayed(b, 5.0) == 0.0
    assert longer(b, 1, a, 0) == (5.0 - 4.0) + (5.0 + 30.0 - 2.0)
    assert longer(b, 1, a, 1) == (5.0 - 4.0) + (5.0 + 30.0 - 4.0)


def test_a_single_layer_scatters_beside_two_passes() -> None:
    # One stage of two chunks of one layer, as b above, two micro-batches. The first gather takes 20
    # s: F0 20-24. F1 20 - 2 s later: 42-46, B1 64-72. F0 of the second micro-batch 20 - 4 s later:
    # 88-92; from 88 on B1's gradients are scattered, till 118 + 2 beside F0, then B0's parameters
    # gathered: B0 140-148. F1 at 164: 20 - 4 s later, and so long the stream takes. Likewise F1
    # 164-168, B1 at 164 + 30 + 2 + 20: 216-224, B0 240-248; its scatter is left.
    other = layer(gathered=20.0, regathered=20.0, scattered=30.0)
    chunks = [costs(other, overlap_zero3=0.5)] * 2
    form = SCHEDULES["interleaved"].step_time
    assert form([chunks], [[Hop(0.0, 0.0)] * 2], 2).total == 248.0 + 30.0


def test_exchange_of_copies() -> None:
    """Stages with a copy of a tied embedding wait for each other, others for none."""
    # 1F1B, one micro-batch, stages of 1 s forward, 2 back: stage 2 ends at 5, 1 at 7, 0 at 9.
    stages = [[chunk(1.0, 2.0, left=1.0, tied=2.0, update=1.0)], [chunk(1.0, 2.0, left=9.0)],
              [chunk(1.0, 2.0, left=7.0, tied=5.0, update=1.0)]]
    # Ready at 10 and 12; the slower side takes 5 s, then the optimizer. Stage 1 ends at 16.
    assert SCHEDULES["1f1b"].step_time(stages, [[Hop(0.0, 0.0)]] * 2, 1).total == 12 + 5 + 1
    stages[1] = [chunk(1.0, 2.0, left=12.0)]
    assert SCHEDULES["1f1b"].step_time(stages, [[Hop(0.0, 0.0)]] * 2, 1).total == 19


def test_stages_gather_while_they_wait() -> None:
    # One micro-batch takes 2 + 1 + 2 + 4 = 9 s. It is at the second stage after 2 s, which waits
    # 2 s more for its parameters, 4 s in all: everything after that is 2 s later.
    for form in (SCHEDULES["1f1b"], SCHEDULES["gpipe"]):
        stages = [[chunk(2.0, 4.0)], [chunk(1.0, 2.0, wait=4.0)]]
        assert form.step_time(stages, [[Hop(0.0, 0.0)]], 1).total == 11.0
        stages[1] = [chunk(1.0, 2.0, wait=2.0)]
        assert form.step_time(stages, [[Hop(0.0, 0.0)]], 1).total == 9.0
    # Finished with its own 7 s of gradients at 4 + 1 + 2 + 7.
    stages[1] = [chunk(1.0, 2.0, wait=4.0, left=7.0)]
    assert SCHEDULES["1f1b"].step_time(stages, [[Hop(0.0, 0.0)]], 1).total == 14.0


def test_a_full_link_sets_the_pace() -> None:
    # Eight messages of 10 s each way, however short a pass is: the last arrives 70 s after the
    # first. GPipe: forward and backward one after the other.
    stages, hops = [[chunk(1.0, 1.0)]] * 2, [[Hop(0.0, 10.0)]]
    assert SCHEDULES["1f1b"].step_time(stages, hops, 8).total == 4.0 + 7 * 10.0
    assert SCHEDULES["gpipe"].step_time(stages, hops, 8).total == 4.0 + 2 * 7 * 10.0


def test_hop() -> None:
    # 8 bytes in 4 lanes of 2 bytes at 1 byte/s and 3 s of latency, there and back: 10 s.
    assert hop(8.0, 4.0, 1.0, 3.0, stack()) == (10.0, 2.0)
    assert hop(8.0, 4.0, 1.0, 3.0, stack(overlap_p2p=0.75)) == (2.5, 2.0)


# ---------------------------------------------------------------- properties


def random_layers(rng: np.random.Generator, zero: int, count: int) -> list[dict[str, float]]:
    """Layers with the traffic of a ZeRO stage, some without computing or without parameters."""
    found = []
    for _ in range(count):
        x, y, size = rng.random(3) * (rng.random(3) < 0.8)
        traffic = 3.0 * size * rng.random()
        found.append({
            "free_forward": x, "forward": x + rng.random(), "free_backward": 2 * y,
            "backward": 2 * y + rng.random(), "gathered": traffic if zero == 3 else 0.0,
            "regathered": traffic if zero == 3 else 0.0,
            "scattered": 2 * traffic if zero >= 2 else 0.0,
            "sync": 2 * traffic if zero < 2 or rng.random() < 0.5 else 0.0,
            "gather": traffic if zero in (1, 2) else 0.0,
        })
    return found


GROWS = (("free_forward", "forward"), ("forward",), ("free_backward", "backward"), ("backward",),
         ("gathered", "regathered"), ("scattered",), ("sync",), ("gather",))
"""What grows together: computing, and traffic of each kind."""
ONLY = {"gathered": (3,), "scattered": (2, 3), "gather": (1, 2)}


TWO_CHUNKS = ("zb-v", "v-half", "v-min", "dualpipev", "dualpipe")


def costs_of(layers: list[LayerSeconds], end: list[float], software: Stack) -> ChunkCosts:
    """A chunk whose layers compute 40 % of their backward for weights; half of the rest is traffic
    of experts."""
    return with_parts(
        chunk_costs(layers, *end, software), layers, [0.4 * x.free_backward for x in layers],
        [((x.forward - x.free_forward) / 2, (x.backward - x.free_backward) / 2) for x in layers],
        software)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_second_of_a_layer_that_grows_shortens_a_step(schedule: str) -> None:
    """What dominance, and "faster devices are never slower", rely on."""
    rng = np.random.default_rng(17)
    path = isinstance(SCHEDULES[schedule], Path)
    for _ in range(800):
        p, v = int(rng.integers(1, 5)), 1
        m = int(rng.integers(1, 12))
        if path:
            p = max(p, 2)
            v = 1 if schedule == "zb1p" else (
                2 if schedule in TWO_CHUNKS else int(rng.integers(2, 4)))
            p += p % 2 if schedule == "dualpipe" else 0
            m = p * int(rng.integers(2, 4))
        most = SCHEDULES[schedule].most_zero
        zeros = ([int(rng.integers(most + 1))] * p if v > 1
                 else rng.integers(0, most + 1, p).tolist())
        ends = rng.random((p, v, 2)) * (rng.random((p, v, 2)) < 0.4)
        # Where chunks of few layers meet, each takes part in what the other exposes.
        layers = [[random_layers(rng, zero, int(rng.integers(1, 5 if v == 1 else 3)))
                   for _ in range(v)] for zero in zeros]
        busy = 10 ** rng.uniform(-1, 1)
        for one in (one for stage in layers for run in stage for one in run):
            for name in ("gathered", "regathered", "scattered"):
                one[name] *= busy
        software = stack(overlap_zero3=rng.random(), overlap_grad_reduce=rng.random(),
                         overlap_param_gather=rng.random())
        hops = [[Hop(*pair) for pair in rng.random((v, 2))] for _ in range(p)]

        def total(
            layers: Any = layers, ends: Any = ends, software: Stack = software, hops: Any = hops,
            m: int = m, v: int = v,
        ) -> float:
            stages = [[
                costs_of([LayerSeconds(**one) for one in run], end, software)
                for run, end in zip(stage, own, strict=True)
            ] for stage, own in zip(layers, ends.tolist(), strict=True)]
            return float(SCHEDULES[schedule].step_time(stages, hops, m).total)

        before = total()
        assert before < np.inf
        s, c = int(rng.integers(p)), int(rng.integers(v))
        some = layers[s][c][int(rng.integers(len(layers[s][c])))]
        names = GROWS[int(rng.integers(len(GROWS)))]
        if zeros[s] not in ONLY.get(names[0], (0, 1, 2, 3)):
            continue
        more = 10 ** rng.uniform(-3, 1)
        for name in names:
            some[name] += more
        assert total() >= before * (1 - 1e-12), (schedule, names, zeros[s])


def test_computing_longer_leaves_no_more_than_it_takes() -> None:
    """Forward with what waits for it, backward with what is left: neither falls."""
    rng = np.random.default_rng(18)
    for _ in range(4000):
        zero = int(rng.integers(4))
        layers = random_layers(rng, zero, int(rng.integers(1, 6)))
        software = stack(overlap_zero3=rng.random(), overlap_grad_reduce=rng.random(),
                         overlap_param_gather=rng.random())
        now = []
        for names in ((), ("free_forward", "forward"), ("free_backward", "backward")):
            some, more = layers[int(rng.integers(len(layers)))], 10 ** rng.uniform(-3, 0.5)
            for name in names:
                some[name] += more
            c = chunk_costs([LayerSeconds(**one) for one in layers], 0.0, 0.0, software)
            now.append(np.array([
                c.forward, c.backward, c.backward - c.late, c.forward + c.queue_forward,
                c.backward + c.queue, c.forward + c.backward + c.pace - c.turn,
                c.forward + c.wait, c.backward - c.late + c.left,
                c.backward + c.turn + c.forward,
                c.forward + c.backward - c.late + c.turn + c.left,
                c.forward + c.backward + c.pace, c.backward - c.hides_sync,
                c.forward - c.hides_gather if zero < 3 else 0.0]))
        assert (now[1] >= now[0] - 1e-12).all()
        assert (now[2] >= now[1] - 1e-12).all()
