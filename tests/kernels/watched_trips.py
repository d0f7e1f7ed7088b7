"""Print what bounds of looped layouts are of what they bound, at the most, by schedule.

Kernels run as plain Python, so that each layout can be priced where the search would leave it.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from typing import Any

os.environ["NUMBA_DISABLE_JIT"] = "1"

import numpy as np
from test_alike import EXPERTS, MODEL, TIED, cluster

import nest
from nest._kernels import orders
from nest._kernels.uniform import bound, fits, layouts, price, stages, work
from nest.inputs import Job, load_model, load_stack
from nest.inputs.space import SearchSpace
from nest.schedules.registry import SCHEDULES

NUMBER = {name: number for number, name in enumerate(SCHEDULES)}
DEEPER = {**MODEL, "layers": 7}
MANY = {**EXPERTS, "layers": 6, "moe": {"experts": 64, "top_k": 1, "ffn": 512}}
found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
times: list[float] = []
pairs: list[float] = []
of_trips, of_pairs, held, longest = fits.of_trips, price.of_pairs, fits.held, work.longest_path


def note(name: str, schedule: int, bound: float, value: float) -> None:
    """Note a bound of a value."""
    if value < np.inf:
        one = found[list(SCHEDULES)[schedule]]
        one[name] = max(one[name], bound / value if value > 0.0 else float(bound > 0.0))


def whole(*arguments: Any) -> float:
    """The path to its end."""
    times.append(longest(*arguments[:-1], np.inf))
    return times[-1]


def unbounded(*arguments: Any) -> float:
    """Note the bound of pairs, which rules out nothing."""
    pairs.append(of_pairs(*arguments))
    return np.nan


def watched(t: Any, q: Any, a: Any, w: Any, c: int, k: int) -> float:
    """Compare the bounds of a layout with its price."""
    least, now, pipe = of_trips(t, q, a, w, c, k), w.now[0].copy(), a.pipe[k]
    schedule, p, v, m = pipe.schedule, pipe.pp, pipe.vpp, t.micro_batches
    if now.first < 0:
        return least
    pairs.clear()
    price.price(t, q, a, w, -np.inf)
    note("trips", schedule, least, times[-1])
    if pairs:
        note("pairs", schedule, pairs.pop(), times[-1])
    ranks = w.rank[:p]
    note("gathers", schedule, (ranks["own"] + ranks["fresh"] - ranks["spared"]).max(), times[-1])
    if not orders.split_of(schedule):
        note("reductions", schedule, (ranks["own"] + ranks["reduced"]).max(),
             times[-1])
    note("first look", schedule, 1.0 if may_be_best(t, q, a, w, k, times[-1]) else 2.0, 1.0)
    body, model = w.body[0], w.before[len(a.order)]
    all_layers = model.forward + model.backward
    if orders.together_of(schedule):
        all_layers -= bound.hidden_of(body.exchanged_forward, body.exchanged_backward,
                                      body.busy_forward, body.busy_backward)
    note("ends", schedule, bound.ends_of(schedule, body) + pipe.warm * all_layers, times[-1])
    note_in_flight(schedule, p, v, m, pipe.group)
    order = price.passes_of(a, w, k, m, price.few_in(pipe, m))
    for s in range(p):
        kept = w.kept_back[s] if orders.split_of(schedule) else w.activations[s]
        if schedule != NUMBER["looped-bfs"]:
            note("held", schedule, held(w.activations[s][:v], kept[:v], s, order, np.inf),
                 w.rank[s].held)
    y = q.place[pipe.row, q.size[c], 0]
    note("begin", schedule, body.begin, w.figures[y, a.signature[w.cuts[0], w.cuts[1]]].wait)
    if not orders.split_of(schedule):
        note("left", schedule, body.end, w.rank[0].left)
        one = stages.figures_of(t, q, a, w, y, 0, 1)  # a chunk of the first layer
        note("end", schedule, body.end, one.left + one.update + one.tied)
    assert all(now[name] == w.now[0][name] for name in ("candidate", "policy", "first", "option"))
    return least


def note_in_flight(schedule: int, p: int, v: int, m: int, group: int) -> None:
    """Of micro-batches the n-th stage holds at least min(n, m), in some order of the stages."""
    held = [min(orders.ahead_of(schedule, p, v, m, group, s, d) for d in range(v))
            for s in range(p)]
    for n, fewest in enumerate(sorted(held), 1):
        note("in flight", schedule, min(n, m), fewest)


def may_be_best(t: Any, q: Any, a: Any, w: Any, k: int, seconds: float) -> bool:
    """Whether the first look at the layout of ``w.cuts`` leaves it, if steps may take as long."""
    pipe = a.pipe[k]
    parts = pipe.pp * pipe.vpp + 1
    number = next(n for n in range(pipe.first, pipe.last) if np.array_equal(
        a.layouts[a.begin[n]:a.begin[n] + parts], w.cuts[:parts]))
    kept = [(one, one.copy()) for one in (w.now, w.decided)]
    w.now[0].quicker, w.now[0].run = 0, -1
    left = layouts.next_layout(t, q, a, w, k, number, seconds * (1.0 + 1e-9)) == number
    for one, before in kept:
        one[:] = before
    return bool(left)


def main() -> None:
    """Search small questions."""
    fits.of_trips, work.longest_path, price.of_pairs = watched, whole, unbounded
    rng = np.random.default_rng(int(sys.argv[1]))
    one: dict[str, Any] = {"cp": 1, "recompute_modules": "core_attn", "outer_dp": (1, 2)}
    for stack, schedule, model in (
            ("torchtitan", "interleaved", DEEPER), ("torchtitan", "interleaved", TIED),
            ("torchtitan-eager", "interleaved-zb", DEEPER), ("torchtitan", "looped-bfs", DEEPER),
            ("torchtitan-eager", "zb1p", DEEPER), ("megatron-core", "interleaved", DEEPER),
            ("megatron-core", "interleaved", TIED), ("megatron-core", "interleaved", EXPERTS),
            ("megatron-core", "combined", EXPERTS), ("megatron-core", "combined", EXPERTS),
            # Experts' traffic outlasts what few micro-batches compute.
            ("megatron-core", "interleaved", MANY), ("megatron-core", "combined", MANY),
            ("torchtitan-eager", "interleaved-zb", MANY), ("torchtitan", "looped-bfs", MANY)):
        for pp, mbs in ((2, 1), (3, 1), (2, 2), (4, 1)):
            batch = mbs * int(rng.choice((4, 6, 8, 12)))
            job = Job(global_batch=batch, seq_len=int(rng.choice((64, 256, 1024))),
                      stack=load_stack(stack).replace(workspace=0))
            space = SearchSpace(schedule=(schedule,), pp=pp, vpp="1..3", mbs=mbs,
                                tp=int(rng.choice((1, 2))), **one)
            try:
                nest.plan(load_model(model), cluster(f"{rng.integers(100, 500)} MiB"), job, space,
                          threads=1)
            except nest.InfeasibleError:
                continue
    for p, rounds in ((2, 2), (3, 2), (4, 3), (8, 2)):  # whose chunks are placed in a V
        for schedule in (NUMBER["zb-v"], NUMBER["dualpipev"]):
            note_in_flight(schedule, p, 2, rounds * p, p)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
