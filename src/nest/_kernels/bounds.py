"""What the stages in front of a cell add to a step at the least.

Shapes as in :mod:`nest._kernels.pipeline`, whose ``Problem`` they bound; proofs:
docs/proofs.md, Lemma 25 (bounds of a cell).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nest._kernels import leaf
from nest._kernels.labels import LabelWork
from nest.records import Rows
from nest.records.problems import Problem


@leaf
def _fill_least(problem: Problem, least: Rows, need: int, behind: int) -> None:
    """Least t, t + finish, ... of the options of (price, signature) with ``need`` in flight."""
    P, G, m = problem.first.shape[0], problem.first.shape[1] - 1, problem.micro_batches
    for x in range(P):
        for g in range(G):
            begin, end = problem.first[x, g], problem.first[x, g + 1]
            if begin == end:
                continue
            low = least[begin]
            low.time = low.finished = low.step = low.step_finished = np.inf
            low.backward = low.backward_finished = low.backward_ready = np.inf
            low.forward = low.sent = low.rounds = low.rounds_finished = np.inf
            for o in range(begin, end):
                option = problem.option[o]
                if option.held < need:
                    continue
                # What every backward takes, the last one of a step too.
                f, b = option.forward, option.last
                t, finish = f + b, option.left + option.later
                low.time, low.finished = min(low.time, t), min(low.finished, t + finish)
                low.step = min(low.step, m * t)
                low.step_finished = min(low.step_finished, m * t + finish)
                low.backward = min(low.backward, b)
                low.backward_finished = min(low.backward_finished, b + finish)
                low.backward_ready = min(
                    low.backward_ready, b + option.left if option.later > 0.0 else -np.inf)
                low.forward = min(low.forward, f)
                low.sent = min(low.sent, m * f + max(0, m - behind - 1) * b)
                low.rounds = min(low.rounds, (m - behind) * t)
                low.rounds_finished = min(low.rounds_finished, (m - behind) * t + finish)


@leaf
def _unknown(work: LabelWork, here: Any) -> None:
    """A cell to which no way is known."""
    front = work.front[here]
    front.added = front.forced = front.hidden = front.ready = np.inf
    front.fronts = front.arrives = front.trips = np.inf
    work.stages[here] = 0


@leaf
def reach(
    problem: Problem, work: LabelWork, need: int, behind: int, limit: float, count: int,
) -> int:
    """Fill ``work.front`` with what the stages in front of (i, k) add to a step; the cells reached.

    For a label with ``behind`` stages, the step is no shorter than REST + ``added``, ``forced``,
    DONE + ``fronts``, IDLE + ``arrives`` and, where the micro-batches outnumber all stages, 2 AFTER
    + ``trips``. Under GPipe REST is counted as the seconds there and back. What DONE has over REST,
    and IDLE over AFTER, makes no difference up to ``hidden``; what a label's READY has over REST,
    and IDLE_READY over AFTER, up to ``ready`` (-inf where the first stage may hold no copy of an
    embedding). inf where nothing below ``limit`` leads. Every stage in front is priced with
    ``need`` micro-batches in flight, no more than it will hold. ``work.stages``: how many are in
    front at the most.

    ``work.place`` numbers the cells that can be reached and holds -1 for the others. It is filled
    where ``count``, the cells reached before, is 0; later calls reach no others, for more is asked
    of each stage.

    ``arrives`` and ``trips`` hold (m - n - 1) b and (m - n) t of a stage with n behind it: every
    further stage in between takes one b or t, at most limit / m, away.
    """
    L, K, m = len(problem.depths) - 1, problem.price.shape[1] - 1, problem.micro_batches
    place, cells, stages, least = work.place, work.front, work.stages, work.least
    _fill_least(problem, least, need, behind)
    for here in range(count):
        _unknown(work, here)
    if count == 0:
        place[0, 0], count = 0, 1
    begin = cells[0]
    begin.added = begin.forced = begin.hidden = begin.ready = begin.fronts = 0.0
    begin.trips = begin.arrives = -np.inf
    stages[0] = 0
    slowest = limit / m
    for i in range(L):
        for k in range(K):
            here = place[i, k]
            if here < 0 or cells[here].added == np.inf:
                continue
            front = cells[here]
            added, forced, fronts = front.added, front.forced, front.fronts
            for x in range(len(problem.sizes)):
                kind, stop = problem.price[x, k], k + problem.sizes[x]
                if kind < 0 or stop > K:
                    continue
                for j in range(problem.ends[0, kind, i], problem.ends[1, kind, i]):
                    g = problem.signature[i, j]
                    row = problem.first[kind, g]
                    if g < 0 or row == problem.first[kind, g + 1]:
                        continue
                    low = least[row]
                    t = low.time
                    if t == np.inf:
                        continue
                    hop = 0.0
                    if j < L:
                        hop = problem.hop_bytes[j] * problem.hop_per_byte[stop] / problem.lanes[x]
                        hop = problem.both * (hop + problem.hop_latency[stop])
                    # A stage's own finish follows the forward passes in front of it.
                    total = max(added + t, fronts + low.finished) + hop
                    must = max(forced, added + low.step, fronts + low.step_finished)
                    if max(total, must) >= limit:
                        continue
                    forward = low.forward + hop / 2
                    arrives = max(front.arrives + forward - slowest, fronts + low.sent + hop / 2)
                    trips = max(front.trips + 2.0 * (t + hop) - slowest,
                                added + low.rounds + 2.0 * hop,
                                fronts + low.rounds_finished + 2.0 * hop)
                    at = place[j, stop]
                    if at < 0:
                        at, count = count, count + 1
                        place[j, stop] = at
                        _unknown(work, at)
                    to = cells[at]
                    to.added, to.forced = min(to.added, total), min(to.forced, must)
                    to.hidden = min(to.hidden, front.hidden + (
                        low.backward_finished if i == 0 else low.backward))
                    to.ready = min(to.ready, front.ready + (
                        low.backward_ready if i == 0 else low.backward))
                    to.fronts = min(to.fronts, fronts + forward)
                    to.arrives, to.trips = min(to.arrives, arrives), min(to.trips, trips)
                    stages[at] = max(stages[at], stages[here] + 1)
    begin.ready = -np.inf  # in front of a whole plan is nothing: it may begin without a copy
    return count
