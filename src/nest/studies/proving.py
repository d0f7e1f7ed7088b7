"""Which questions of a study need not be asked, and which one is asked next.

The front of each group and the best of each objective are wanted. Each objective of a point is a
known multiple of the seconds of its step, or of their inverse. So a lower bound of the step says
how good the point can be at the most, and the limit from which on it is of no use says which plans
its search need find. Lower bounds come from totals
(:mod:`nest.search.question_bound`) and from the answers of questions that are no worse in anything
(:mod:`nest.studies.standing`). Proof: docs/proofs.md, Lemma 56 (points that are not asked).

Shapes: N points, K objectives, F figures of a standing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.compute import peak_flops
from nest.errors import InputError
from nest.evaluation.evaluate import chain_of
from nest.model import Chain, model_flop
from nest.search.question_bound import least_seconds
from nest.studies.axes import Choice
from nest.studies.points import Point
from nest.studies.questions import NEVER, Outcome, Proof, VersionedQuestion
from nest.studies.results import OBJECTIVES, figures_at
from nest.studies.standing import Standing, standing, wider
from nest.studies.study import Study

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
MOST_PROVED = 100_000
"""Points of a study whose proofs are kept in memory (chosen: some 10 kB each)."""
TIE = 1e-12
"""Logarithms apart by less are those of equal figures."""
SURE = 1e-9
"""What a search is told besides its limit: a share by which sums may be rounded."""
OPEN, ASKED, DONE = range(3)


class Placed(NamedTuple):
    """A point with a question, and the values of its axes."""

    point: Point
    choices: tuple[Choice, ...]


class Proved(NamedTuple):
    """A point that need not be asked."""

    place: int
    proof: Proof


class Bounds:
    """Lower bounds of questions, and which of them bound others.

    Parameters
    ----------
    found : the standing of each question.
    low : (N,) what is known of each by totals.
    """

    def __init__(self, found: Sequence[Standing], low: Floats) -> None:
        self.low = low
        """(N,) logarithm of the seconds that no plan takes less than."""
        self.low_by = np.full(len(found), -1, dtype=np.int64)
        """(N,) place of the question whose answer that is; -1: totals."""
        families: dict[str, list[int]] = {}
        for place, one in enumerate(found):
            families.setdefault(one.same, []).append(place)
        spaces = {one.space: None for one in found}
        numbers = {space: n for n, space in enumerate(spaces)}
        self._space = np.array([numbers[one.space] for one in found], dtype=np.int64)
        self._wider: Bools = np.array([[wider(one, other) for other in spaces] for one in spaces],
                                      dtype=np.bool_).reshape(len(spaces), len(spaces))
        self._family = np.zeros(len(found), dtype=np.int64)
        self._members, self._figures = list[NDArray[np.int64]](), list[Floats]()
        self._row = np.zeros(len(found), dtype=np.int64)
        for number, places in enumerate(families.values()):
            self._family[places], self._row[places] = number, range(len(places))
            self._members.append(np.array(places))
            self._figures.append(np.array([found[place].figures for place in places]))

    def below(self, place: int) -> NDArray[np.int64]:
        """Places of the points that a point dominates, itself included."""
        family = self._family[place]
        members, figures = self._members[family], self._figures[family]
        under = (figures <= figures[self._row[place]]).all(axis=1)
        under &= self._wider[self._space[place], self._space[members]]
        found: NDArray[np.int64] = members[under]
        return found

    def raise_low(self, place: int, low: float) -> None:
        """Raise lower bounds of all points that a point dominates."""
        under = self.below(place)
        more = under[self.low[under] < low]
        self.low[more], self.low_by[more] = low, place


class Prover:
    """Bounds of the points of a study, and what its best points are so far.

    Parameters
    ----------
    study : whose objectives count.
    points : those with a question, in the order in which equally promising ones are asked.
    within : share by which a point may be better than a known one and not be asked all the same.

    Raises
    ------
    InputError : more than ``MOST_PROVED`` points, or trainings that share a cluster.
    """

    def __init__(self, study: Study, points: Sequence[Placed], within: float = 0.0) -> None:
        if len(points) > MOST_PROVED:
            raise InputError(f"prove: got a study of {len(points):,} points; allowed: at most "
                             f"{MOST_PROVED:,}, or without --prove and --within")
        if study.together is not None:
            raise InputError("prove: got a study with trainings together; allowed: `nest design`, "
                             "which finds the best cluster for them, or without --prove")
        self.points, self._within = points, within
        self._slack = math.log1p(within)
        self._number = np.array([one.point.number for one in points], dtype=np.int64)
        self._scales(study)
        self.state = np.zeros(len(points), dtype=np.int64)
        self._beyond = np.full(len(points), np.inf)
        """Logarithm of the seconds from which on a known point is no worse in any objective."""
        self._beaten_by = np.full(len(points), -1, dtype=np.int64)
        self._best = np.full((self._groups, self._base.shape[1]), np.inf)
        self._best_number = np.full(self._best.shape, np.iinfo(np.int64).max)
        self._turn = 0

    # ------------------------------------------------------------ what is known beforehand

    def _scales(self, study: Study) -> None:
        """Logarithms of the objectives of a step of a second, turned so that less is better."""
        names = [*study.axes]
        places = [names.index(name) for name in study.groups]
        numbers: dict[tuple[Any, ...], int] = {}
        totals, chains = LeastSteps(), dict[Any, Chain]()
        base, low, late, group = [], [], [], []
        for point, _ in self.points:
            question = point.question
            assert question is not None and question.model is not None
            model, cluster, job = question.model, question.cluster, question.job
            if model not in chains:
                chains[model] = chain_of(model)
            peak = sum(peak_flops(cluster.device_types[kind], job.precision) * count
                       for kind, count in _counted(cluster.type_numbers, cluster.size))
            tokens = job.tokens
            answer = Outcome(
                status="ok", step_time_s=1.0, tokens_per_s=tokens,
                mfu=model_flop(chains[model], job.seq_len, job.samples)
                * job.global_batch / peak)
            found = figures_at(answer, point, study.train)
            base.append([_scale(getattr(found, name), OBJECTIVES[name].most)
                         for name in study.wanted])
            limit = study.train.days if study.train is not None else None
            late.append(math.inf if limit is None or not found.days
                        else math.log(limit / found.days))
            low.append(totals.of(chains[model], question))
            key = tuple(point.labels[place] for place in places)
            group.append(numbers.setdefault(key, len(numbers)))
        shape = (len(self.points), len(study.wanted))
        self._base: Floats = np.array(base).reshape(shape)
        self._late: Floats = np.array(late)
        self.bounds = Bounds(
            [standing(one.point.question) for one in self.points],  # type: ignore[arg-type]
            np.array(low))
        self._group = np.array(group, dtype=np.int64)
        self._groups = len(numbers)
        self._timed: Bools = np.array([name != "devices" for name in study.wanted])
        """(K,) objectives that a longer step makes worse."""

    # ------------------------------------------------------------ answers

    def answered(self, place: int, answer: Outcome) -> None:
        """Note the answer to a point's question."""
        self.state[place] = DONE
        if answer.status == "infeasible":
            self.bounds.raise_low(place, math.inf)
        if answer.status not in ("ok", "near") or not answer.step_time_s:
            return
        low = answer.low
        if low is None and answer.gap is not None:
            low = answer.step_time_s / (1.0 + answer.gap)
        if low:
            self.bounds.raise_low(place, math.log(low))
        seconds = math.log(answer.step_time_s)
        if seconds <= self._late[place]:
            self._witness(place, self._base[place] + self._timed * seconds)

    def refuted(self, place: int, answer: Outcome) -> None:
        """Note that no plan of a point takes less than it was asked for."""
        self.state[place] = DONE
        if answer.low:
            self.bounds.raise_low(place, math.log(answer.low))

    def _witness(self, place: int, values: Floats) -> None:
        """Compare all points of its group with one that has a plan in time."""
        group, timed = self._group[place], self._timed
        first = self._number[place] < self._number
        tie = np.where(first, -TIE, TIE) - self._slack
        fixed = (values[~timed] <= self._base[:, ~timed]).all(axis=1)
        if timed.any():
            beyond = (values[timed] - self._base[:, timed]).max(axis=1) + tie
        else:
            better = (values < self._base).any(axis=1)
            beyond = np.where(better | first, -np.inf, np.inf)
        lower = (self._group == group) & fixed & (beyond < self._beyond)
        lower[place] = False
        self._beyond[lower], self._beaten_by[lower] = beyond[lower], place
        number, best, known = self._number[place], self._best[group], self._best_number[group]
        better = (values < best - TIE) | ((values <= best + TIE) & (number < known))
        best[better], known[better] = values[better], number

    # ------------------------------------------------------------ what is left

    @property
    def useless(self) -> Floats:
        """(N,) logarithm of the seconds from which on a plan of a point is of no use."""
        best, number = self._best[self._group], self._best_number[self._group]
        tie = np.where(number < self._number[:, None], -TIE, TIE) - self._slack
        with np.errstate(invalid="ignore"):
            each = np.where(self._timed, best - self._base + tie, np.where(
                (best < self._base) | ((best == self._base) & (number < self._number[:, None])),
                -np.inf, np.inf))
        found: Floats = np.minimum(np.maximum(self._beyond, each.max(axis=1)), self._late)
        return found

    def proved(self) -> Iterator[Proved]:
        """Points that need not be asked any more; each is given once."""
        found = np.flatnonzero((self.state == OPEN) & (self.bounds.low >= self.useless))
        self.state[found] = DONE
        for place in found.tolist():
            yield Proved(place, self.proof(place))

    def proof(self, place: int) -> Proof:
        """Why no plan of a point is of use."""
        low, known = self.bounds.low[place], self.bounds.low_by[place]
        beaten = self._beaten_by[place]
        late = bool(low >= self._late[place]) or beaten < 0
        return Proof(
            low_s=_seconds(low), known_by=None if known < 0 else int(self._number[known]),
            beaten_by=None if late else int(self._number[beaten]),
            within=0.0 if late else self._within)

    def next(self) -> int | None:
        """Place of the question to ask next, which counts as asked; None: none is left to ask.

        The objectives take turns: the open point that may be best in one comes first.
        """
        open_points = self.state == OPEN
        if not open_points.any():
            return None
        turns = self._base.shape[1] + (self._base.shape[1] > 1)
        turn, self._turn = self._turn % turns, self._turn + 1
        hope = self._base + self._timed * np.where(
            np.isfinite(self.bounds.low), self.bounds.low, 0.0)[:, None]
        score = hope.mean(axis=1) if turn == self._base.shape[1] else hope[:, turn]
        place = int(np.argmin(np.where(open_points, score, np.inf)))
        if not open_points[place]:
            place = int(np.flatnonzero(open_points)[0])
        self.state[place] = ASKED
        return place

    def question(self, place: int) -> VersionedQuestion:
        """The question of a point, with the plans that are of use."""
        question, useless = self.points[place].point.question, self.useless[place]
        assert question is not None
        return question.unchecked(
            below=math.exp(useless) * (1.0 + SURE) if useless < 700.0 else math.inf,
            floor=_seconds(self.bounds.low[place]) if np.isfinite(self.bounds.low[place]) else 0.0,
            within=self._within)

    def reopen(self, place: int) -> None:
        """Let a question that was not asked after all be asked."""
        self.state[place] = OPEN

    @cached_property
    def places(self) -> dict[str, list[int]]:
        """Places of the points of each question, by its key."""
        found: dict[str, list[int]] = {}
        for place, one in enumerate(self.points):
            assert one.point.key is not None
            found.setdefault(one.point.key, []).append(place)
        return found


class LeastSteps:
    """Lower bounds of questions by totals; those of one device and job are worked out once."""

    def __init__(self) -> None:
        self._known: dict[Any, float] = {}

    def of(self, chain: Chain, question: VersionedQuestion) -> float:
        """Logarithm of the seconds."""
        cluster, job = question.cluster, question.job
        key = question.model, job, cluster.device, cluster.types, cluster.size
        if key not in self._known:
            self._known[key] = least_seconds(chain, cluster, job)
        seconds = self._known[key]
        return math.log(seconds / (1.0 + SURE)) if seconds else -math.inf


def _counted(numbers: Sequence[int] | None, size: int) -> Iterator[tuple[int, int]]:
    """Types of device and how many there are."""
    if numbers is None:
        yield 0, size
        return
    yield from ((kind, numbers.count(kind)) for kind in sorted({*numbers}))


def _scale(value: float | None, most: bool) -> float:
    """The logarithm of an objective; a large one where it has no value."""
    if not value:
        return 1e6
    return -math.log(value) if most else math.log(value)


def _seconds(low: float) -> float:
    """Seconds of a logarithm."""
    return min(math.exp(min(low, 700.0)), NEVER)
