"""Search the pipelines of one outer choice whose stages have one block size and one set of degrees.

A pipeline is an order of passes, p stages and v chunks a stage. Its cuts are free, or one of the
layouts that are listed. The step is the longest path through its passes; what a bound rules out is
not priced.
"""

from __future__ import annotations

import numpy as np

from nest._kernels import entry, known, leaf
from nest._kernels.uniform.cuts import hand_over, try_cuts
from nest._kernels.uniform.decided import bit_of, note_bytes, quicker_than
from nest._kernels.uniform.fits import fits
from nest._kernels.uniform.layouts import has_room, next_layout
from nest._kernels.uniform.price import price
from nest._kernels.uniform.stages import LEAST
from nest._kernels.uniform.sums import fill_layers, may_be_below, sum_up
from nest._kernels.uniform.work import LABELS, UniformWork, work_of
from nest.records import Floats, Ints, Ints2
from nest.records.problems import Legal, Pipelines, Rings, Wide
from nest.records.tables import Degrees


def alike(
    degrees: Degrees, places: Rings, pipelines: Pipelines, legal: Legal, limit: float, spread: bool,
) -> tuple[Floats, Ints, Ints2, int, float]:
    """Best plan of each pipeline below ``limit`` seconds; without ``spread`` only the best of all.

    Returns
    -------
    best : float64 (Q,) step seconds; inf where nothing was found.
    option : int64 (Q,), see ``nest.search.tensors.Formulation.degrees``.
    cuts : int64 (Q, most chunks + 1) first layer of each chunk, in the order of the layers, and
        their number.
    priced : number of plans that were priced.
    unproved : no cuts that were left out take less; inf: none was.
    """
    room = LABELS
    work = work_of(degrees, places, pipelines, room)
    if len(pipelines.pipe):
        quick_try_all(degrees, places, pipelines, legal, work, limit, spread)
    while work.now[0].full:  # once more, with room for more labels
        room *= 8
        work = work_of(degrees, places, pipelines, room)
        quick_try_all(degrees, places, pipelines, legal, work, limit, spread)
    best = work.answer["best"]
    if not spread:
        best[best > best.min(initial=np.inf)] = np.inf
    return best, work.answer["option"], work.found, work.now[0].priced, work.now[0].unproved


@entry
def try_all(
    degrees: Degrees, places: Rings, pipelines: Pipelines, legal: Legal, work: UniformWork,
    limit: float, spread: bool,
) -> None:
    """Fill ``work.answer`` and ``work.found``.

    A first round prices the free cuts with the least bound alone, so that the second has a good
    limit.
    """
    below, choices, some = limit, _choices(degrees), False
    for k in range(len(pipelines.pipe)):
        some |= pipelines.pipe[k].free
    for first in range(1 if some and not spread else 0, -1, -1):
        work.now[0].guess = below
        stop = 0
        while stop < len(pipelines.asked):
            begin, row = stop, pipelines.asked[stop] // choices
            while stop < len(pipelines.asked) and pipelines.asked[stop] // choices == row:
                stop += 1
            c = row // len(degrees.shard)
            place = places.place[0, places.size[c], 0]
            if place >= 0 and places.alike[c, place] == c and _may_gain(
                    degrees, places, pipelines, legal, work, begin, stop, below, first):
                for n in range(begin, stop):
                    below = _answer(degrees, places, pipelines, legal, work, n, below, spread,
                        first)


@leaf
def _choices(degrees: Degrees) -> int:
    """Choices of recompute of a question: the policies, then full recompute of the first layers of
    each chunk alone. With more of them a step takes longer and needs less memory."""
    return degrees.back.shape[1] + (degrees.full >= 0 and degrees.first_layers.any())


@leaf
def _may_gain(
    degrees: Degrees, places: Rings, pipelines: Pipelines, legal: Legal, work: UniformWork,
    begin: int, stop: int, below: float, first: int,
) -> bool:
    """Whether any of the questions from ``begin`` to ``stop``, of one candidate and way of ZeRO,
    may have a plan below the best, as far as the least that layers take under any of their policies
    says; ``work.answer`` gets whether each pipeline is open. Their layers are filled in."""
    choices, count = _choices(degrees), 0
    c, z = divmod(pipelines.asked[begin] // choices, len(degrees.shard))
    for n in range(begin, stop):
        if pipelines.floor[n] < below:
            x = pipelines.asked[n] % choices
            part = x == degrees.back.shape[1]
            work.policies[0, count], work.policies[1, count] = (0, degrees.full) if part else (x, x)
            count += 1
    if count == 0:
        return False
    work.policies[0, count] = 0  # that of layers without recompute
    fill_layers(degrees, places, work, c, z, work.policies[0, :count + 1])
    fill_layers(degrees, places, work, c, z, work.policies[1, :count])
    if count > 1:
        sum_up(degrees, places, pipelines, work, c, work.policies[0, :count],
            work.policies[1, :count])
        _ask(work, c, work.policies[1, 0], LEAST, -2 - c * len(degrees.shard) - z)
    found, work.now[0].looked = False, 0
    for k in range(len(pipelines.pipe)):
        pipe, answer = pipelines.pipe[k], work.answer[k]
        top = min(below, answer.best)
        answer.open = (pipe.free or not first) and (
            _placed(degrees, places, pipelines, legal, c, z, k) and (count == 1 or (
                may_be_below(degrees, pipelines, work, k, top) and (
                    pipe.free or _first_layout(degrees, places, pipelines, work, k, top)
                    < pipe.last))))
        if answer.open:
            found = True
            work.decided[answer.run:answer.layout + pipe.last - pipe.first] = 0
    return found


@leaf
def _answer(
    degrees: Degrees, places: Rings, pipelines: Pipelines, legal: Legal, work: UniformWork, n: int,
    below: float, spread: bool, first: int,
) -> float:
    """Look for plans of question n in the pipelines that are open: the seconds of the best, or
    ``below``, which stays with ``spread``."""
    R, F = degrees.back.shape[1], len(degrees.first_layers)
    row, x = divmod(pipelines.asked[n], _choices(degrees))
    (c, z), part = divmod(row, len(degrees.shard)), x == R
    if pipelines.floor[n] >= below or (part and first):
        return below
    r = degrees.full if part else x
    work.policies[0, 0], work.policies[1, 0] = 0 if part else r, r
    sum_up(degrees, places, pipelines, work, c, work.policies[0, :1], work.policies[1, :1])
    quicker, asked = quicker_than(degrees, places, pipelines, work, c, r), False
    if part:  # some layers have no recompute
        quicker &= 1
    for k in range(len(pipelines.pipe)):
        answer = work.answer[k]
        top, most = min(below, answer.best if spread else below), 1
        if part:
            most = min(F, pipelines.pipe[k].longest)
            while most > 0 and not (
                    degrees.first_layers[most - 1] and legal.first_pipeline[most - 1, k]):
                most -= 1
        if not (answer.open and most > part and not work.decided[answer.run] & quicker
                and may_be_below(degrees, pipelines, work, k, top)
                and legal.policy_pipeline[r, k] and (part or legal.first_pipeline[0, k])):
            continue
        for some in range(LEAST if part else 0, most):
            if part and (some == 0 or (some > 0 and not (
                    degrees.first_layers[some] and legal.first_pipeline[some, k]))):
                continue
            if legal.wide.plain and some >= 0 and not _may_run(
                    legal.wide, 0, legal.wide.plain, c, z, r, some, k, 0):
                continue
            if part or not asked:
                _ask(work, c, r, some, (row * R + r) * F + some)
                work.now[0].quicker, asked = quicker, True
            time = _look(degrees, places, pipelines, legal, work, z, k, top, first)
            if some >= 0:
                top = time
            elif time > 0.0:
                break
            if some > 0 and quicker and work.now[0].undecided == 0:
                break  # more first layers take longer
        below = below if spread else min(below, top)
    if not part:
        work.now[0].looked |= bit_of(r)
    return below


quick_try_all = known(try_all)


@leaf
def _ask(work: UniformWork, c: int, r: int, some: int, option: int) -> None:
    """Note what is asked for: what was found out about other questions holds no more."""
    now = work.now[0]
    now.candidate, now.policy, now.first, now.option, now.quicker = c, r, some, option, 0
    now.number += 1


@leaf
def _placed(
    degrees: Degrees, places: Rings, pipelines: Pipelines, legal: Legal, c: int, z: int, k: int,
) -> bool:
    """Whether a pipeline may have these degrees and this way of ZeRO."""
    return (legal.row_pipeline[c, k] and legal.way_pipeline[z, k]
            and places.place[pipelines.pipe[k].row, places.size[c], pipelines.pipe[k].pp - 1] >= 0
            and not (degrees.forbidden[z] and pipelines.pipe[k].pp > 1))


@leaf
def _may_run(
    wide: Wide, begin: int, end: int, c: int, z: int, r: int, some: int, k: int, number: int,
) -> bool:
    """Whether rules from ``begin`` to ``end`` allow a configuration; ``number``: of its layout."""
    for n in range(begin, end):
        if wide.table[wide.row[n, c] + wide.way[n, z] + wide.policy[n, r] + wide.first[n, some]
                      + wide.pipeline[n, k] + wide.layout[n, number]]:
            return False
    return True


@leaf
def _look(
    degrees: Degrees, places: Rings, pipelines: Pipelines, legal: Legal, work: UniformWork, z: int,
    k: int, top: float, first: int,
) -> float:
    """Look for plans of pipeline k below ``top`` seconds: those of the best, or ``top``.

    With ``first`` only the cuts with the least bound are priced, if no bound was less so far.
    Where the question is whether some cuts may take less (``LEAST``): 0 seconds.
    """
    work.now[0].undecided = 1
    if pipelines.pipe[k].free:
        hand_over(degrees, places, pipelines, work, k)
        return try_cuts(degrees, places, pipelines, work, top, first)
    number = _first_layout(degrees, places, pipelines, work, k, top)
    apart = len(legal.wide.row) > legal.wide.plain and work.now[0].first >= 0
    while number < pipelines.pipe[k].last:
        if apart and not _may_run(
                legal.wide, legal.wide.plain, len(legal.wide.row), work.now[0].candidate, z,
                work.now[0].policy, work.now[0].first, k, number):
            note_bytes(work)  # another policy may have it
        elif fits(degrees, places, pipelines, work, number, top):
            top = price(degrees, places, pipelines, work, top)
        number = next_layout(degrees, places, pipelines, work, k, number + 1, top)
    if work.now[0].undecided == 0 and work.now[0].first == 0:
        work.decided[work.answer[k].run] |= bit_of(work.now[0].policy)
    return top


@leaf
def _first_layout(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, k: int, top: float,
) -> int:
    """First layout of pipeline k that may fit and take less than ``top``, or its last."""
    # The first look knows nothing of groups but that larger ones hold more.
    pipe, now, whole = pipelines.pipe[k], work.now[0], work.now[0].first <= 0
    smallest, answer = work.answer[pipe.smallest], work.answer[k]
    if whole and smallest.barren == now.option + 1 and top <= smallest.under:
        return pipe.last
    hand_over(degrees, places, pipelines, work, k)
    if not has_room(degrees, pipelines, work, k, top):
        return pipe.last
    now.undecided, now.run = 0, -1
    number = next_layout(degrees, places, pipelines, work, k, pipe.first, top)
    if whole and not now.further:
        answer.barren, answer.under = now.option + 1, top
    return number
