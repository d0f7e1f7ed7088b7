"""Asking all questions of a study: those that nobody has answered, a few at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import suppress
from typing import NamedTuple, Protocol

from nest.errors import InputError, LimitError, NestError
from nest.studies.axes import Choice
from nest.studies.engines import Engine, prepare
from nest.studies.points import Point, Points, best_first
from nest.studies.proving import DONE, Placed, Proved, Prover
from nest.studies.questions import (
    About,
    Answered,
    Outcome,
    Proof,
    VersionedQuestion,
    ask,
    failed,
)
from nest.studies.store import Store
from nest.studies.study import Study

AHEAD = 2
"""Questions in flight for each worker: none waits for the parent (chosen)."""
CHUNK = 200
"""Points that are noted at once (chosen)."""
NOTED = 1.0
"""Seconds after which points are noted in any case, for those who look at a running study."""
POLL = 0.2
"""Seconds between two looks at what another process answers."""
LIVES = 2
"""Deaths of a worker over one question, alone, after which the question has failed."""

STARTS = 3
"""Times that workers are started in vain, one after another, before a sweep ends (chosen)."""


class StudyProgress(NamedTuple):
    """How far a sweep is."""

    total: int
    """Points, as far as known: less those that constraints are seen to exclude."""
    done: int
    """Points with an answer, or without a question."""
    asked: int
    """Answers that this process has stored."""


class Follower(Protocol):
    """Told how far a sweep is; returning False ends it after the questions in flight."""

    def __call__(self, now: StudyProgress) -> bool | None: ...


class Sweeping:
    """One run of a study.

    Parameters
    ----------
    study, store : what is asked, and where answers are kept.
    engine : where it is asked.
    follow : told after each answer.
    question : answers a question; others than :func:`nest.studies.questions.ask` are for tests.
    within : ask only what may change the front or the best plans by more than this share; None:
        ask everything.
    """

    def __init__(self, study: Study, store: Store, engine: Engine, follow: Follower,
                 question: Callable[[VersionedQuestion], Answered] = ask,
                 within: float | None = None) -> None:
        self._study, self._store, self._engine, self._follow = study, store, engine, follow
        self._ask, self._within = question, within
        self._prover: Prover | None = None
        self._digest = study.digest
        self._points = Points(study)
        self._executor: Executor | None = None
        self._running: dict[Future[Answered], tuple[str, VersionedQuestion]] = {}
        self._rows: list[tuple[int, str | None, str, str]] = []
        self._suspects: list[tuple[str, VersionedQuestion, int]] = []
        self._elsewhere: list[tuple[int, tuple[Choice, ...]]] = []
        self._total, self._done, self._asked = study.size, 0, 0
        self.stopped = False
        """The follower ended it."""

    def run(self) -> int:
        """Ask until all is answered, or the follower ends it.

        Returns
        -------
        int
            Answers that this process has stored.

        Raises
        ------
        OutputError : an answer cannot be stored; those before are.
        InputError : the workers cannot run NEST, or another version of it.
        LimitError : workers end while they start.
        """
        store, digest = self._store, self._digest
        store.begin(digest, json.dumps(self._study.as_dict()), time.time())
        store.forget(digest, "failed")
        self._forget_proofs()
        try:
            if self._within is None:
                for point in self._all():
                    if self.stopped:
                        break
                    self._take(point)
                self._drain()
            else:
                self._prove(self._within)
            while self._elsewhere and not self.stopped:
                waiting, self._elsewhere = self._elsewhere, []
                for number, choices in waiting:
                    found = self._points.point(number, choices)
                    if found is not None:
                        self._take(found, choices)
                    if self.stopped:
                        break
                self._drain()
                if self._elsewhere and len(self._elsewhere) == len(waiting):
                    time.sleep(POLL)
                    self._tell()
            self._note()
        except BaseException:
            self._end(kill=True)
            with suppress(NestError):
                self._note()
            raise
        self._end(kill=False)
        return self._asked

    # ------------------------------------------------------------ proofs

    def _forget_proofs(self) -> None:
        """Reopen points whose proofs do not hold for what is asked now, and their answers."""
        store, digest, within = self._store, self._digest, self._within
        if not within:
            store.forget(digest, "near")
        kept = []
        for number, question, labels, about in store.proved_points(digest):
            with store.reading(f"point {number}"):
                known = About.parse(json.loads(about), "about")
            if known.proof is not None and (within is None or known.proof.within > within):
                kept.append((number, question, labels, _json(known.unchecked(proof=None))))
        store.add_points(digest, kept)

    def _prove(self, within: float) -> None:
        """Ask what may change the front or the best plans, and prove the rest."""
        asked = [Placed(point, self._here) for point in self._every()]
        self._done = self._total - len(asked)
        self._prover = prover = Prover(self._study, asked, within)
        known = {row[0] for row in self._store.proved_points(self._digest)}
        for place, one in enumerate(asked):
            if one.point.number in known:
                prover.state[place] = DONE
            elif (answer := self._answer(one.point.key or "")) is not None:
                self._learn(place, answer)
        self._done += int((prover.state == DONE).sum())
        self._keep_proofs()
        while not self.stopped:
            chosen = prover.next()
            if chosen is not None:
                point = asked[chosen].point
                assert point.key is not None
                if self._store.claim(point.key):
                    self._submit(point.key, prover.question(chosen))
                elif (answer := self._answer(point.key)) is not None:
                    self._settle(point.key, answer)
                else:
                    self._elsewhere.append((point.number, asked[chosen].choices))
            elif self._running:
                self._collect()
            else:
                break

    def _every(self) -> Iterator[Point]:
        """All points with a question, which are noted in the store the first time."""
        known = self._store.count(self._digest)
        if known is None:
            yield from (point for point in self._all() if point.question is not None)
            return
        self._total = known
        for number, choices in best_first(self._study):
            point = self._points.point(number, choices)
            if point is not None and point.question is not None:
                self._here = choices
                yield point

    def _learn(self, place: int, answer: Outcome) -> None:
        assert self._prover is not None
        if answer.status == "proved":
            self._prover.refuted(place, answer)
        else:
            self._prover.answered(place, answer)

    def _settle(self, key: str, answer: Outcome) -> None:
        """Note an answer at all points that ask the question, and what it proves."""
        prover = self._prover
        assert prover is not None
        rows = []
        for place in prover.places[key]:
            if prover.state[place] != DONE:
                self._done += 1
            self._learn(place, answer)
            if answer.status == "proved":
                rows.append(Proved(place, prover.proof(place)))
        self._keep_proofs(rows)

    def _keep_proofs(self, more: Sequence[Proved] = ()) -> None:
        """Store proofs, which no answer can change."""
        assert self._prover is not None
        found = [*self._prover.proved()]
        self._done += len(found)
        rows = []
        for place, proof in (*more, *found):
            point = self._prover.points[place].point
            rows.append((point.number, point.key, json.dumps(point.labels), _about(point, proof)))
        if rows:
            self._note()
            self._store.add_points(self._digest, rows)

    # ------------------------------------------------------------ points

    def _all(self) -> Iterator[Point]:
        """All points with open questions; they are noted in the store the first time."""
        known = self._store.count(self._digest)
        if known is not None:
            left = set(self._store.open_points(self._digest))
            self._total, self._done = known, known - len(left)
            self._tell()
            for number, choices in best_first(self._study) if left else ():
                if number in left and (point := self._points.point(number, choices)):
                    self._here = choices
                    yield point
            return
        count, noted = 0, time.monotonic()
        for number, choices in best_first(self._study):
            point = self._points.point(number, choices)
            if point is None:
                self._total -= 1
                continue
            count += 1
            self._rows.append((number, point.key, json.dumps(point.labels), _about(point)))
            if len(self._rows) >= CHUNK or time.monotonic() - noted > NOTED:
                self._note()
                noted = time.monotonic()
            self._here = choices
            yield point
        self._note()
        self._store.complete(self._digest, count)
        self._total = count

    def _note(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            self._store.add_points(self._digest, rows)

    def _take(self, point: Point, choices: tuple[Choice, ...] | None = None) -> None:
        """Ask a point's question, unless it is answered or being asked."""
        if point.question is None or point.key is None or self._answer(point.key):
            self._done += 1
            self._tell(often=False)
        elif self._store.claim(point.key):
            self._submit(point.key, point.question)
        elif self._store.status(point.key):
            self._done += 1
        else:
            self._elsewhere.append((point.number, self._here if choices is None else choices))

    def _answer(self, key: str) -> Outcome | None:
        """The answer to a question; one that is not near enough now is forgotten."""
        text = self._store.answer(key)
        if text is None:
            return None
        with self._store.reading(f"the answer to {key[:16]}"):
            found = Outcome.parse(json.loads(text), "answer")
        if found.status == "near" and (found.gap or 0.0) > (self._within or 0.0):
            self._store.forget_answer(key)
            return None
        return found

    def _submit(self, key: str, question: VersionedQuestion) -> None:
        """Hand a question to the workers once there is room."""
        while not self.stopped:
            if self._executor is None:  # before the first question, and after a worker's death
                self._executor = self._started()
            if len(self._running) < AHEAD * self._width(self._executor):
                break
            self._collect()
        if self.stopped or self._executor is None:
            self._store.release(key)
            return
        try:
            self._running[self._executor.submit(self._ask, question)] = (key, question)
        except BrokenExecutor:
            self._suspects.append((key, question, 0))
            self._clear_suspects()
        except Exception as error:
            raise self._lost(error) from None
        if self._executor is not None and self._engine.name == "inline":
            self._collect()

    def _width(self, executor: Executor) -> int:
        try:
            return self._engine.width(executor)
        except Exception as error:
            raise self._lost(error) from None

    def _lost(self, error: Exception) -> InputError:
        """The engine as a whole has failed, not the answer to a question."""
        said = f"{type(error).__name__} {' '.join(str(error).split())[:200]}".strip()
        return InputError(f"engine: {self._engine.name} is lost ({said}); what is answered is "
                          "stored, the same command goes on")

    def _started(self) -> Executor:
        """A new executor, whose first worker has loaded the kernels.

        Raises
        ------
        InputError : the workers cannot run NEST.
        LimitError : its first worker ended, each time.
        """
        for _ in range(STARTS):
            executor = self._engine.make()
            try:
                if self._ask is ask:
                    executor.submit(prepare).result()
                return executor
            except BrokenExecutor:
                self._engine.kill(executor)
            except NestError:
                raise
            except Exception as error:
                self._engine.kill(executor)
                raise InputError(f"engine: the workers of {self._engine.name} cannot run NEST "
                                 f"({type(error).__name__}: "
                                 f"{' '.join(str(error).split())[:300]})") from None
        raise LimitError(
            f"engine: a worker of {self._engine.name} ended while it started, {STARTS} times in a "
            "row: something ended it, such as a limit of memory or processes; what is answered is "
            "stored, and the same command goes on (fewer --workers need less)")

    def _drain(self) -> None:
        while self._running:
            self._collect()

    def _collect(self) -> None:
        """Store what is answered, at least one answer; see to workers that have died."""
        ready = wait(self._running, timeout=1.0, return_when="FIRST_COMPLETED").done
        if not ready:
            self._tell()
        for future in ready:
            key, question = self._running.pop(future)
            if future.cancelled():
                self._store.release(key)
                if not self.stopped:
                    raise self._lost(CancelledError())
                continue
            error = future.exception()
            if error is None:
                self._keep(key, future.result())
            elif isinstance(error, BrokenExecutor):
                self._suspects.append((key, question, 0))
            elif isinstance(error, NestError):
                raise error
            else:  # of the cluster: it has asked the question several times
                self._keep(key, failed(f"{type(error).__name__}: {error}"))
        if self._suspects:
            self._clear_suspects()

    def _clear_suspects(self) -> None:
        """After the death of a worker, ask what it may have died of again, one at a time."""
        for future, (key, question) in [*self._running.items()]:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._keep(key, future.result())
            else:
                self._suspects.append((key, question, 0))
        self._running.clear()
        self._end(kill=True)
        while self._suspects:
            key, question, deaths = self._suspects.pop(0)
            if self.stopped:
                self._store.release(key)
                continue
            if self._executor is None:
                self._executor = self._started()
            try:
                self._keep(key, self._executor.submit(self._ask, question).result())
            except BrokenExecutor:
                self._end(kill=True)
                if deaths + 1 < LIVES:
                    self._suspects.insert(0, (key, question, deaths + 1))
                else:
                    self._keep(key, failed("the process that asked it ended, twice"))

    def _keep(self, key: str, found: Answered) -> None:
        self._note()  # its point, too: whoever is killed next leaves no answer without one
        self._asked += 1
        if found.status == "proved":  # of this study alone
            self._store.release(key)
        else:
            self._store.add(key, found.status, found.answer, found.plan)
        if self._prover is not None:
            self._settle(key, Outcome.parse(json.loads(found.answer), "answer"))
        else:
            self._done += 1
        self._tell()

    _told = 0.0
    _here: tuple[Choice, ...] = ()

    def _tell(self, often: bool = True) -> None:
        """Tell the follower, which may end the sweep."""
        now = time.monotonic()
        if not often and now - self._told < POLL:
            return
        self._told = now
        if self._follow(StudyProgress(self._total, self._done, self._asked)) is False:
            self.stop()

    def stop(self) -> None:
        """Ask nothing more; what runs is waited for."""
        if not self.stopped:
            self.stopped = True
            for future in self._running:
                future.cancel()

    def _end(self, kill: bool) -> None:
        executor, self._executor = self._executor, None
        if executor is None:
            return
        for future in self._running:
            future.cancel()
        self._running.clear()
        if not kill:
            executor.shutdown()
        self._engine.kill(executor)
        if kill:
            with suppress(Exception):  # of an engine that is lost
                executor.shutdown(wait=False)


def _about(point: Point, proof: Proof | None = None) -> str:
    """What a row says of a point besides its axes, as JSON."""
    devices = 0 if point.question is None else point.question.cluster.size
    hour, watts, _ = point.bill or (None, None, 0)
    return _json(About(problem=point.problem, devices=devices, hour=hour, watts=watts,
                       proof=proof, **point.run._asdict()))


def _json(about: About) -> str:
    return about.model_dump_json(exclude_defaults=True)
