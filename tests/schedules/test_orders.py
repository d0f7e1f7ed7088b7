"""Orders of passes, and the longest path through them: published formulas, by hand, an oracle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import oracle_orders as oracle
import pytest
from plain import chunk, stack

from nest.costs.stage import chunk_costs, with_parts
from nest.inputs import Stack
from nest.schedules import controlled, orders, passes
from nest.schedules.chunk import EMPTY, ChunkCosts, LayerSeconds
from nest.schedules.passes import (
    BACKWARD,
    BESIDE,
    FORWARD,
    INPUTS,
    PASSES,
    WEIGHTS,
    Order,
    Room,
    step_seconds,
)
from nest.schedules.path import Path
from nest.schedules.registry import ONE_F_ONE_B, SCHEDULES
from nest.schedules.traits import Hop

ALIKE = chunk(1.0, 2.0, inputs=1.0, weights=1.0)
"""F = B_in = W = 1."""
Rows = list[list[oracle.Task]]


def path(name: str) -> Path:
    found = SCHEDULES[name]
    assert isinstance(found, Path)
    return found


def alike(name: str, p: int, v: int, m: int, each: ChunkCosts = ALIKE) -> float:
    """Step of equal chunks without hand-over."""
    return path(name).step_time([[each] * v] * p, [[Hop(0.0, 0.0)] * v] * p, m).total


def folded(p: int, v: int, m: int, group: int, order: Order) -> None:
    """DualPipeV whose pairs run together."""
    orders.folded(p, order)
    orders.dual_pipe(p, m, p, BESIDE, order)


# ---------------------------------------------------------------- published formulas


@pytest.mark.parametrize("p", [2, 4, 8])
def test_bubbles_are_those_of_the_publications(p: int) -> None:
    m, f, b, w = 3 * p, 1.0, 2.0, 1.0
    # arXiv:2412.19437, table 2: ZB1P (p - 1)(F + B - 2 W), where B_in is no shorter than F.
    assert alike("zb1p", p, 1, m) - 3 * m == (p - 1) * (f + b - 2 * w)
    # 1F1B (p - 1)(F + B), of which interleaving leaves 1 / v for v chunks of a stage.
    assert ONE_F_ONE_B.step_time([[ALIKE]] * p, [[Hop(0, 0)]] * p, m).total - 3 * m == (
        (p - 1) * (f + b))
    for v in (2, 3):
        assert alike("interleaved", p, v, m) - 3 * m * v == (p - 1) * (f + b)
        assert alike("looped-bfs", p, v, m) - 3 * m * v == (p - 1) * (f + b)
        assert alike("interleaved-zb", p, v, m) - 3 * m * v == (p - 1) * (f + b - 2 * w)
    # ZB-V: one chunk's forward a stage, from the first pass of all to the last.
    assert alike("zb-v", p, 2, m) - 6 * m == (p - 1) * f
    # DualPipe (p / 2 - 1)(F&B + B - 3 W), m micro-batches from each end; DualPipeV has half as
    # many ranks as stages.
    pair = f + b
    assert alike("dualpipe", p, 2, 2 * m) - 6 * m == (p / 2 - 1) * (pair + b - 3 * w)
    assert Path(folded).step_time([[ALIKE] * 2] * p, [[Hop(0, 0)] * 2] * p, m).total - 6 * m == (
        (p - 1) * (pair + b - 3 * w))
    assert alike("dualpipev", p, 2, m) < Path(folded).step_time(
        [[ALIKE] * 2] * p, [[Hop(0, 0)] * 2] * p, m).total


@pytest.mark.parametrize("p", [2, 5, 8])
def test_memory_is_that_of_the_publications(p: int) -> None:
    m = 3 * p
    for s in range(p):
        # Freed by the backward for inputs, ZB1P holds what 1F1B does; else as much as the first.
        assert path("zb1p").held([1.0], s, p, m, kept=[0.0]) == p - s
        assert path("zb1p").held([1.0], s, p, m, kept=[1.0]) == p
        assert path("zb1p").in_flight(s, p, m, 1) == p
        # ZB-V: 2 p chunks, which are p stages (arXiv:2405.15362, section 3).
        assert path("zb-v").in_flight(s, p, m, 2) == 2 * p
        # DualPipe: p + 1 stages (arXiv:2412.19437, table 2), of which DualPipeV has 2 p.
        assert path("dualpipev").in_flight(s, p, m, 2) == 2 * p + 1
        # A forward beside a backward takes what that frees; the middle ranks have one without.
        if p % 2 == 0:
            middle = s in (p // 2 - 1, p // 2)
            assert path("dualpipe").in_flight(s, p, 2 * m, 2) == p + middle
            assert path("dualpipe").held([1.0] * 2, s, p, 2 * m, layer=0.5) == (
                p + middle + 0.5)
        # Megatron-Core: 2 (p - s - 1) + (v - 1) N + 1 chunks; combined, whose backward
        # frees layer by layer what the forward beside it takes, as many and a layer.
        for group in (p, p + 1):
            wanted = 2 * (p - s - 1) + 2 * group + 1
            assert path("interleaved").in_flight(s, p, 4 * group, 3, group) == wanted
            assert path("combined").in_flight(s, p, 4 * group, 3, group) == wanted
            assert path("combined").held([1.0] * 3, s, p, 4 * group, group, layer=0.5) == (
                wanted + 0.5)
            assert path("interleaved").held([1.0] * 3, s, p, 4 * group, group, layer=0.5) == wanted


@pytest.mark.parametrize("p", [*range(2, 13), 16])
def test_v_half_and_v_min_are_those_of_their_publication(p: int) -> None:
    """The table of the authors' README (39f2c18) and of their page of the paper: activations of
    (p + 2) // 2 and (p + 4) // 3 micro-batches; of 1F1B's bubble a half, and two thirds, which
    warm-up and drain cut by up to a micro-batch's seconds here."""
    m, bubble = 4 * p, 6 * (p - 1)
    for name, most, share in (("v-half", 2 * ((p + 2) // 2), bubble / 2),
                              ("v-min", 2 * ((p + 4) // 3), 2 * bubble / 3)):
        assert max(path(name).in_flight(s, p, m, 2) for s in range(p)) == most
        assert share - 6 < alike(name, p, 2, m) - 6 * m <= share
    assert path("v-min").in_flight(0, p, m, 2) <= path("v-half").in_flight(0, p, m, 2) <= 2 * p


@pytest.mark.parametrize("name", ["v-half", "v-min"])
def test_a_few_micro_batches_say_what_more_of_them_do(name: str) -> None:
    """Orders of many micro-batches repeat a part of the stable phase."""
    block = controlled.half if name == "v-half" else controlled.least
    for p in range(2, 11):
        for m in (1, 2, p, p + 3, p + 4, p + 5, p + 6, 3 * p + 5):
            order = path(name).order(p, m, 2)
            found = [order.codes[i:j] for i, j in pairwise(order.rows)]
            assert found == controlled.rows(block, p, m), (p, m)


def test_kept_bytes_are_walked() -> None:
    # Rank 1 of ZB1P, 2 ranks: F I F I W W with 10 bytes of which 4 are left: 10, 4, 14, 8, 4, 0.
    assert path("zb1p").held([10.0], 1, 2, 2, kept=[4.0]) == 14.0
    # More left than held: 10, 12, 22, 24.
    assert path("zb1p").held([10.0], 1, 2, 2, kept=[12.0]) == 24.0


def test_a_few_groups_hold_the_most() -> None:
    rng = np.random.default_rng(7)
    for _ in range(300):
        x = draw(rng)
        sizes, left = rng.random(x.v).tolist(), rng.random(x.v).tolist()
        order = x.path.order(x.p, x.m, x.v, x.group)
        for s in range(x.p):
            full = orders.held(sizes, left, s, order, math.inf)
            assert x.path.held(sizes, s, x.p, x.m, x.group, left) == pytest.approx(full, rel=1e-12)


# ---------------------------------------------------------------- by hand


def row(name: str, p: int, v: int, m: int, s: int, group: int | None = None) -> str:
    """Passes of a rank: kind, and chunk where there are several."""
    order = path(name).order(p, m, v, group)
    codes = order.codes[order.rows[s]:order.rows[s + 1]]
    return " ".join(
        "FBIWO"[code % PASSES] + (str(code // PASSES) if v > 1 else "") for code in codes)


@pytest.mark.parametrize(("name", "p", "v", "m", "rows", "seconds"), [
    # Rank 1 forwards 1-2 and 3-4, inputs 2-3 and 4-5, weights 5-7; rank 0 inputs 3-4 and 5-6,
    # weights 4-5 and 6-7.
    ("zb1p", 2, 1, 2, ("F F I W I W", "F I F I W W"), 7),
    # Rank 0 until 4, waits; rank 1 F 1-3, F1 3-4, I1 4-5, F1 5-6, I1 6-7, W1 7-8. Rank 0 F1 of the
    # first comes 4: I1 5-6, W1 6-7, I1 7-8, W1 8-9; rank 1 I0 8-9, W1 9-10, I0 10-11, W0 11-13;
    # rank 0 I0 9-10, W0 10-11, I0 11-12, W0 12-13.
    ("interleaved-zb", 2, 2, 2, ("F0 F0 F1 F1 I1 W1 I1 W1 I0 W0 I0 W0",
                                 "F0 F0 F1 I1 F1 I1 W1 I0 W1 I0 W0 W0"), 13),
    # Rank 1 F0 1-2, F1 2-3, F0 3-4, F1 4-5; rank 0 F1 3-4, I1 4-5, W1 5-6, F1 6-7, I1 7-8, W1 8-9;
    # rank 1 I1 5-6, W1, I0 7-8, W0, I1 9-10, W1, I0 11-12, W0; rank 0 I0 9-10, W0, I0 12-13, W0.
    ("zb-v", 2, 2, 2, ("F0 F0 F1 I1 W1 F1 I1 W1 I0 W0 I0 W0",
                       "F0 F1 F0 F1 I1 W1 I0 W0 I1 W1 I0 W0"), 14),
    # All forwards of a rank 0-4 and 1-5; backwards of the second chunk 5-9 on rank 1 and 7-11 on
    # rank 0; of the first 9-13 on rank 1 and 11-15 on rank 0.
    ("looped-bfs", 2, 2, 2, ("F0 F0 F1 F1 B1 B1 B0 B0", "F0 F0 F1 F1 B1 B1 B0 B0"), 15),
    # One stage: F 0-1, twice F and B together, B 7-9.
    ("combined", 1, 1, 3, ("F O B O B B",), 9),
])
def test_steps_by_hand(
    name: str, p: int, v: int, m: int, rows: Sequence[str], seconds: float
) -> None:
    assert tuple(row(name, p, v, m, s) for s in range(p)) == rows
    assert alike(name, p, v, m) == seconds


def test_dual_pipe_v_by_hand() -> None:
    # Rank 0 F0 0-3, F1 3-4, I1 W1 4-6, F1 6-7, F0 7-8; rank 1 F0 1-2, F1 2-3, F0 3-4, F1 4-5, F0
    # 5-6, B1 6-8 (first ready at 5), F1 8-9, B0 9-11, F0 11-12, B1 12-14 (rank 0's second chunk has
    # it back at 10, when its second backward ends), F1 14-15, B0 15-17, ...
    assert row("dualpipev", 2, 2, 4, 0) == (
        "F0 F0 F0 F1 I1 W1 F1 F0 B1 F1 B0 F1 B0 B1 F1 B0 B1 I0 W0 I0 W0".replace(
            "B1 F1 B0 F1 B0 B1 F1", "B1 F1 B0 B1 F1"))
    assert row("dualpipev", 2, 2, 4, 1) == (
        "F0 F1 F0 F1 F0 B1 F1 B0 F0 B1 F1 B0 B1 B0 I1 I0 W1 W0")
    assert alike("dualpipev", 2, 2, 4) == 25.0


def test_pairs_hide_the_all_to_alls_of_each_other() -> None:
    # Forward 5 s, 2 of them all-to-alls; backward 9 s, 4 of them. Backward computing of 5 s hides
    # 2, forward computing of 3 s hides 3 of the 4: 14 - 5 = 9. Two micro-batches on one stage: the
    # first forward 5, both 9, the last backward 9.
    each = chunk(5.0, 9.0, exchanged_forward=2.0, exchanged_backward=4.0, busy_forward=3.0,
                 busy_backward=5.0)
    assert alike("combined", 1, 1, 2, each) == 23.0
    assert path("combined").hidden([each], 0, 1, 2) == 5.0


def test_gradients_are_scattered_behind_backwards_for_weights() -> None:
    # ZeRO-2, one stage in the order of ZB1P: F 0-1, I 1-2, W 2-3, and 2 s to scatter until 5. The
    # next F, I of 1 s hide half a second each, then W: its own first layer hides 0.25. 5 - 0.25 +
    # ... F 3-4 and I 4-5 move the end by 0.5 each: 6. W begins at 5.75 and ends at 6.75.
    each = chunk(1.0, 2.0, inputs=1.0, weights=1.0, trailing=2.0, trails_forward=0.5,
                 trails_inputs=0.5, trails_weights=0.25)
    assert path("zb1p").step_time([[each]], [[Hop(0.0, 0.0)]], 2).total == 6.75


def test_gradients_are_reduced_beside_what_follows() -> None:
    # Two stages, ZB-V, 2 micro-batches: stage 0 ends chunk 1 at 9 (as above), then I0 W0 I0 W0
    # follow. 20 s of chunk 1 are hidden for half of these 4 s: left from 9 on are 20 - 2, and what
    # follows runs as well: 9 + 4 + 18 = 31.
    far = chunk(1.0, 2.0, inputs=1.0, weights=1.0, sync=20.0, left_weights=20.0)
    near = ALIKE._replace(hides_inputs=0.5, hides_weights=0.5)
    found = path("zb-v").step_time([[near, far], [ALIKE, ALIKE]], [[Hop(0.0, 0.0)] * 2] * 2, 2)
    assert found.total == 31.0


def test_rows_that_wait_for_each_other_never_end() -> None:
    """A rest of fewer micro-batches than stages, in groups of as many or one more."""
    waiting = 0
    for p, v, m, group in ((4, 3, 5, 4), (5, 2, 7, 5), (5, 3, 7, 6), (4, 2, 5, 4), (4, 3, 9, 5)):
        mine = path("interleaved").step_time(
            [[ALIKE] * v] * p, [[Hop(0.0, 0.0)] * v] * p, m, group)
        rows = oracle.interleaved(p, v, m, group)
        stuck = oracle.ends(rows, plain_times(p * v), p * v, lambda q, way: (q, way)) is None
        assert math.isinf(mine.total) == stuck
        waiting += stuck
    assert waiting == 3


# ---------------------------------------------------------------- the oracle


def plain_times(positions: int) -> oracle.Times:
    return oracle.Times(*([1.0] * positions for _ in range(3)), *([0.0] * positions for _ in "ab"))


class Drawn(NamedTuple):
    name: str
    path: Path
    rows: Rows
    p: int
    v: int
    m: int
    group: int | None = None
    chains: int = 1


def draw(rng: np.random.Generator) -> Drawn:
    p, v, m = int(rng.integers(2, 6)), int(rng.integers(2, 5)), int(rng.integers(1, 24))
    name = str(rng.choice(("1f1b", "interleaved", "combined", "looped-bfs", "zb1p",
                           "interleaved-zb", "zb-v", "dualpipev", "together", "v-half", "v-min")))
    group = None
    if name in ("interleaved", "combined", "interleaved-zb"):
        group = int(rng.integers(min(p, m), m + 1))
        if 0 < m % group < p:
            group = m
    size = group or m
    if name in ("dualpipev", "together"):
        m += 2 * p
    rows: dict[str, Callable[[], Rows]] = {
        "1f1b": lambda: in_turn(p, m),
        "interleaved": lambda: oracle.interleaved(p, v, m, size),
        "combined": lambda: oracle.interleaved(p, v, m, size, True),
        "looped-bfs": lambda: oracle.breadth_first(p, v, m),
        "zb1p": lambda: oracle.zero_bubble(p, 1, m, m),
        "interleaved-zb": lambda: oracle.zero_bubble(p, v, m, size),
        "zb-v": lambda: oracle.zero_bubble_v(p, m),
        "v-half": lambda: oracle.controlled(p, m, True),
        "v-min": lambda: oracle.controlled(p, m, False),
        "dualpipev": lambda: oracle.dual_pipe(p, m, False),
        "together": lambda: oracle.dual_pipe(p, m, True),
    }
    own = {"1f1b": ONE_F_ONE_B, "together": Path(folded)}
    v = {"1f1b": 1, "zb1p": 1, "zb-v": 2, "dualpipev": 2, "together": 2, "v-half": 2,
         "v-min": 2}.get(name, v)
    return Drawn(name, own[name] if name in own else path(name), rows[name](), p, v, m, group)


def in_turn(p: int, m: int) -> Rows:
    """1F1B."""
    return [[*(("f", s, k) for k in range(min(p - 1 - s, m))),
             *(task for k in range(m - min(p - 1 - s, m))
               for task in (("f", s, k + p - 1 - s), ("b", s, k))),
             *(("b", s, k) for k in range(m - min(p - 1 - s, m), m))] for s in range(p)]


def test_rows_are_those_of_the_oracle() -> None:
    rng, seen = np.random.default_rng(1), set()
    for _ in range(600):
        x = draw(rng)
        seen.add(x.name)
        order = x.path.order(x.p, x.m, x.v, x.group)
        for s, wanted in enumerate(x.rows):
            found = [("fbiwf"[code % PASSES], order.at[s * x.v + code // PASSES])
                     for code in order.codes[order.rows[s]:order.rows[s + 1]]]
            flat = [part for kind, q, _ in wanted
                    for part in (list(zip("fb", q, strict=True)) if kind == "fb" else [(kind, q)])]
            assert found == flat, (x.name, x.p, x.v, x.m, s)
    assert len(seen) == 11


def test_steps_are_those_of_the_oracle() -> None:
    """Stages and links of any kind, a link that a message fills."""
    rng = np.random.default_rng(2)
    for _ in range(600):
        x = draw(rng)
        mine, theirs = steps(rng, x)
        assert mine == pytest.approx(theirs, rel=1e-12), (x.name, x.p, x.v, x.m)


def test_dual_pipe_is_that_of_the_oracle() -> None:
    rng = np.random.default_rng(3)
    for _ in range(100):
        half = int(rng.integers(1, 4))
        p, m = 2 * half, 2 * half + int(rng.integers(0, 9))
        x = Drawn("dualpipe", path("dualpipe"), oracle.dual_pipe(half, m, True, crossed=True), p, 2,
                  2 * m, None, 2)
        mine, theirs = steps(rng, x)
        assert mine == pytest.approx(theirs, rel=1e-12), (p, m)


def steps(rng: np.random.Generator, x: Drawn) -> tuple[float, float]:
    """Longest path, and end of the oracle's events, of random chunks and links."""
    positions, depth = x.p * x.v, x.p * x.v // x.chains
    f, i, w = (rng.uniform(0.2, 2.0, positions).tolist() for _ in range(3))
    hop, gap = (rng.uniform(0.0, 1.0, positions) * rng.integers(0, 2) for _ in range(2))
    v_shaped = x.name in ("zb-v", "dualpipev", "together", "v-half", "v-min")
    if v_shaped:  # nothing is handed over within a rank
        hop[x.p - 1] = gap[x.p - 1] = 0.0
    order = x.path.order(x.p, x.m, x.v, x.group)
    at = [[order.at[s * x.v + n] for n in range(x.v)] for s in range(x.p)]
    ranks = [[chunk(f[q], i[q] + w[q], inputs=i[q], weights=w[q]) for q in own] for own in at]
    hops = [[Hop(2.0 * hop[q], gap[q]) for q in own] for own in at]
    holder = {q: s for s, own in enumerate(at) for q in own}

    def wire(q: int, ahead: bool) -> Any:
        ends_ = holder[q], holder[(q + 1) % positions]
        if v_shaped or x.chains == 2:
            return ends_ if ahead else ends_[::-1]
        return holder[q], ahead

    times = oracle.Times(f, i, w, hop.tolist(), gap.tolist())
    true = oracle.ends(x.rows, times, depth, wire)
    assert true is not None
    return x.path.step_time(ranks, hops, x.m, x.group).pipeline, max(true)


def test_every_forward_has_its_backward() -> None:
    rng = np.random.default_rng(4)
    for _ in range(200):
        x = draw(rng)
        order = x.path.order(x.p, x.m, x.v, x.group)
        for s in range(x.p):
            kinds = [code % PASSES for code in order.codes[order.rows[s]:order.rows[s + 1]]]
            ahead = kinds.count(FORWARD) + kinds.count(BESIDE)
            assert ahead == x.m * x.v == len(kinds) - ahead - kinds.count(WEIGHTS)


# ---------------------------------------------------------------- chunks without layers


def one_rank(rng: np.random.Generator, v: int, m: int, split: bool) -> list[int]:
    """Codes of all passes of one rank in any order in which each finds its input."""
    done = np.zeros((4, v), dtype=int)  # by kind and chunk
    found: list[int] = []
    back = INPUTS if split else BACKWARD
    while done[WEIGHTS if split else BACKWARD].sum() < m * v:
        n, kind = int(rng.integers(v)), int(rng.choice((FORWARD, back, *([WEIGHTS] * split))))
        before = {FORWARD: done[FORWARD, n - 1] if n else m, WEIGHTS: done[INPUTS, n],
                  back: done[back, n + 1] if n < v - 1 else done[FORWARD, n]}[kind]
        if done[kind, n] < before:
            done[kind, n] += 1
            found.append(n * PASSES + kind)
    return found


def test_empty_chunks_leave_traffic_to_the_passes_around_them() -> None:
    """With ZeRO 0 to 3, a rank takes as long as without its chunks that have no layers."""
    rng, seen = np.random.default_rng(5), set()
    for _ in range(400):
        v, m, zero = int(rng.integers(1, 6)), int(rng.integers(1, 4)), int(rng.integers(4))
        software = stack(**{name: rng.random() for name in (
            "overlap_zero3", "overlap_grad_reduce", "overlap_param_gather")})
        split = zero < 3 and bool(rng.integers(2))
        chunks = [of_layers(rng, int(rng.integers(4)), zero, software) for _ in range(v)]
        codes = one_rank(rng, v, m, split)
        kept = [n for n in range(v) if chunks[n] != EMPTY]
        if not kept:
            assert seconds(codes, chunks, m) == 0.0
            continue
        fewer = [kept.index(code // PASSES) * PASSES + code % PASSES
                 for code in codes if code // PASSES in kept]
        seen.add((zero, split, len(kept) < v))
        assert seconds(codes, chunks, m) == pytest.approx(
            seconds(fewer, [chunks[n] for n in kept], m), rel=1e-12)
    assert len(seen) == 14


def of_layers(
    rng: np.random.Generator, count: int, zero: int, software: Stack, scale: float = 1.0
) -> ChunkCosts:
    """A chunk of some layers, with the traffic that a ZeRO stage has."""
    used = {"gathered": (3,), "regathered": (3,), "scattered": (2, 3), "gather": (1, 2)}
    layers = []
    for _ in range(count):
        drawn = {name: scale * float(rng.random()) * (zero in used.get(name, (0, 1, 2, 3)))
                 for name in LayerSeconds._fields}
        drawn["forward"], drawn["backward"] = (
            drawn["free_forward"] + scale * rng.random(),
            drawn["free_backward"] + scale * rng.random())
        layers.append(LayerSeconds(**drawn))
    found = chunk_costs(layers, count * 0.1, 0.0, software)
    return with_parts(found, layers, [layer.free_backward / 2 for layer in layers],
                      [(0.0, 0.0)] * count, software) if zero < 3 else found


def seconds(codes: list[int], chunks: list[ChunkCosts], m: int) -> float:
    """Step of one rank without hand-over."""
    def write(p: int, v: int, m: int, group: int, order: Order) -> None:
        orders.looped(p, v, order)
        order.codes[:len(codes)] = codes
        order.rows[:] = [0, len(codes)]

    return Path(write).step_time([chunks], [[Hop(0.0, 0.0)] * len(chunks)], m).total


# ---------------------------------------------------------------- what the search knows of orders


def test_forwards_before_the_first_backward_are_counted() -> None:
    """For groups of any size, the last one smaller."""
    rng, smaller = np.random.default_rng(11), 0
    for _ in range(400):
        x = draw(rng)
        if x.name not in ("interleaved", "combined", "zb1p", "interleaved-zb"):
            continue
        group, slope = x.group or x.p, 1 if x.path.split else 2
        order = x.path.order(x.p, x.m, x.v, x.group)
        for s in range(x.p):
            ran = [0] * x.v
            for code in order.codes[order.rows[s]:order.rows[s + 1]]:
                if code % PASSES != FORWARD:
                    break
                ran[code // PASSES] += 1
            count = min(x.m * x.v, orders.warm_up(s, x.p, x.v, x.m, group, slope, 0) + 1)
            found = [orders.begun(d, count, x.v, group) for d in range(x.v)]
            assert found == ran, (x.name, x.p, x.v, x.m, x.group, s)
            smaller += x.m % group > 0 and count > x.m // group * group * x.v
    assert smaller > 5


def until(
    x: Drawn, ranks: Sequence[Sequence[ChunkCosts]], hops: Sequence[Sequence[Hop]], limit: float,
) -> float:
    """Seconds of a step, or as soon as that is known a number of ``limit`` or more."""
    return at_least(x, ranks, hops, limit, 0)[0]


def at_least(
    x: Drawn, ranks: Sequence[Sequence[ChunkCosts]], hops: Sequence[Sequence[Hop]], limit: float,
    more: int,
) -> tuple[float, float]:
    """The same of one with ``more`` groups, at the least; what it may take besides."""
    q = x.p * x.v
    room = Room(*([0.0] * (4 * q * x.m) if name == "arrives" else [0] * (8 * q)
                  for name in Room._fields))
    order = x.path.order(x.p, x.m, x.v, x.group)
    if more:
        order = order._replace(more=[0, 0], stops=[0] * (2 * x.p))
        orders.leave_out(x.p, x.v, x.m, x.group or x.p, more, order)
    end = step_seconds(ranks, hops, x.p, x.v, x.m, q, order, room, limit)
    return end, room.unsure[0]


def test_no_step_below_the_limit_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are left where what they take at the least says so, and only there."""
    monkeypatch.setattr(passes, "LOOKS", 1)
    rng, left = np.random.default_rng(12), dict[str, int]()
    for _ in range(500):
        x = draw(rng)
        f, i, w = (rng.uniform(0.2, 2.0, x.p * x.v).tolist() for _ in range(3))
        away, back = rng.uniform(0.0, 0.9 if x.name in ("combined", "together") else 0.0,
                                 (2, x.p * x.v)).tolist()
        ranks = [[chunk(f[n], i[n] + w[n], inputs=i[n], weights=w[n], update=rng.uniform(0.0, 2.0),
                        exchanged_forward=away[n] * f[n], busy_forward=(1.0 - away[n]) * f[n],
                        exchanged_backward=back[n] * (i[n] + w[n]),
                        busy_backward=(1.0 - back[n]) * (i[n] + w[n]))
                  for n in range(s * x.v, (s + 1) * x.v)] for s in range(x.p)]
        hops = [[Hop(*rng.uniform(0.0, 0.5, 2).tolist()) for _ in own] for own in ranks]
        whole = until(x, ranks, hops, math.inf)
        if math.isinf(whole):
            continue
        assert until(x, ranks, hops, whole * (1.0 + 1e-12)) == whole, x
        found = until(x, ranks, hops, 0.9 * whole)
        assert 0.9 * whole <= found <= whole * (1.0 + 1e-12), x
        left[x.name] = left.get(x.name, 0) + (found < whole)
    assert min(left.values()) > 5 and len(left) == 11, left


def test_a_step_takes_what_fewer_groups_say() -> None:
    """No less, and no more but for what is unsure: nothing, as a rule. Whatever the traffic of the
    data-parallel groups, the links and the last group."""
    rng, sure = np.random.default_rng(13), list[bool]()
    for _ in range(160):
        name = str(rng.choice(("interleaved", "combined", "zb1p", "interleaved-zb")))
        p, v = int(rng.integers(2, 6)), 1 if name == "zb1p" else int(rng.integers(2, 5))
        group = p if name == "zb1p" else int(rng.integers(p, 2 * p + 1))
        more, rest = int(rng.integers(1, 6)), int(rng.integers(group))
        few = int(rng.integers(3, 6)) * group + (rest if rest >= p else 0)
        x = Drawn(name, path(name), [], p, v, few, group)
        zero = int(rng.integers(3 if x.path.split else 4))
        software = stack(**{part: rng.random() for part in (
            "overlap_zero3", "overlap_grad_reduce", "overlap_param_gather")})
        ranks = [[of_layers(rng, int(rng.integers(1, 4)), zero, software, scale)
                  for scale in 10.0 ** rng.uniform(-2.0, 1.0, v)] for _ in range(p)]
        hops = [[Hop(*(10.0 ** rng.uniform(-2.0, 1.0, 2) * rng.integers(0, 2)).tolist())
                 for _ in own] for own in ranks]
        whole = until(x._replace(m=few + more * group), ranks, hops, math.inf)
        found, unsure = at_least(x, ranks, hops, math.inf, more)
        assert found <= whole * (1.0 + 1e-12) and whole <= (found + unsure) * (1.0 + 1e-12), x
        sure.append(unsure <= passes.SURE * found)
        # Which is what a plan is priced with, where it is sure.
        once, every = (path.step_time(ranks, hops, few + more * group, group)
                       for path in (x.path, replace(x.path, grouped=False)))
        assert tuple(once) == pytest.approx(tuple(every), rel=0.0, abs=1e-12 * whole), x
        if name != "combined":
            assert at_least(x, ranks, hops, 0.9 * whole, more)[0] <= whole * (1.0 + 1e-12), x
    assert 100 < sum(sure) < 160, sum(sure)


def test_a_row_takes_what_its_passes_gather() -> None:
    """With ZeRO-3, behind the first pass and, where it has waited, the first backward."""
    rng, close = np.random.default_rng(14), 0
    for _ in range(150):
        p, v = int(rng.integers(2, 5)), int(rng.integers(2, 5))
        group = int(rng.integers(p, 2 * p + 1))
        m = int(rng.integers(1, 4)) * group
        x = Drawn(str(rng.choice(("interleaved", "looped-bfs"))), path("interleaved"), [], p, v, m)
        x = x._replace(path=path(x.name), group=group if x.name == "interleaved" else None)
        software = stack(overlap_zero3=rng.random())
        ranks = [[of_layers(rng, int(rng.integers(1, 4)), 3, software, 10.0 ** rng.uniform(-1, 1))
                  for _ in range(v)] for _ in range(p)]
        hops = [[Hop(*rng.uniform(0.0, 0.5, 2).tolist()) for _ in own] for own in ranks]
        order = x.path.order(p, m, v, x.group)
        total = x.path.step_time(ranks, hops, m, x.group).total
        for s, own in enumerate(ranks):
            hidden = max(max(one.under_first, one.under_last) for one in own)
            there, back = ([passes.gathering(one, way, hidden) for one in own] for way in range(2))
            row = m * sum(one.forward + one.backward - one.late for one in own)
            row += m * (sum(there) + sum(back))
            assert row - there[0] <= total * (1.0 + 1e-12), x
            close += row - there[0] > 0.8 * total
            ran = 0.0
            for code in order.codes[order.rows[s]:order.rows[s + 1]]:
                if code % PASSES != FORWARD:
                    break
                ran += own[code // PASSES].forward + there[code // PASSES]
            # The first backward waits for the first micro-batch to pass all chunks.
            front = sum(one.forward for each in ranks for one in each)
            front += sum(hop.both / 2 for each in hops for hop in each[:-1])
            front += sum(hops[r][-1].both / 2 for r in range(p - 1))
            assert front - ran - back[-1] + row <= total * (1.0 + 1e-12), x
    assert close > 20, close
