"""Answers of the planners of `nest compare` to instances, each within a time limit."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from nest.bench.instance import Instance
from nest.bench.solving import done
from nest.bench.submission import PlannerSubmission, SubmittedAnswer
from nest.errors import InputError, LimitError
from nest.inputs.files import write_text_atomic
from nest.planners import usable
from nest.studies.engines import Engine
from nest.studies.store import Store, make_folder
from nest.studies.study import VERSION

STORE = "planners.db"
TIME_LIMIT = 60.0
"""Seconds of a processor for an answer by default (chosen)."""


def others() -> list[str]:
    """Planners whose answers are no part of the instances."""
    return [name for name in usable() if name != "nest"]


def answers_of(
    planners: Sequence[str], instances: Mapping[str, Instance], folder: str, engine: Engine,
    time_limit: float = TIME_LIMIT, tell: Callable[[str], None] = lambda text: None,
) -> dict[str, str]:
    """Have planners answer instances; ask only for answers that are missing.

    Parameters
    ----------
    planners : of :func:`others`.
    instances : by name.
    folder : gets PLANNER.json for each planner, a submission, and the store of answers.
    engine : where they plan.
    time_limit : seconds of a processor for each answer.
    tell : called with each planner and instance that is done.

    Returns
    -------
    The file of each planner.

    Raises
    ------
    InputError : the folder cannot be made, or a worker has ended.
    OutputError : a file cannot be written; the answers before are stored.
    """
    make_folder(folder)
    asked = {(planner, name): _key(planner, one, time_limit)
             for planner in planners for name, one in instances.items()}
    with Store(os.path.join(folder, STORE)) as store:
        missing = {pair: (pair[0], instances[pair[1]], time_limit)
                   for pair, key in asked.items() if store.status(key) is None}
        for pair, found in done(engine, answer, missing):
            store.add(asked[pair], "ok", found.model_dump_json(by_alias=True))
            tell(", ".join(pair))
        with store.reading("an answer"):
            answers = {pair: SubmittedAnswer.model_validate_json(store.answer(key) or "")
                       for pair, key in asked.items()}
    files = {}
    for planner in planners:
        whole = PlannerSubmission(
            planner=planner, note=f"nest compare of NEST {VERSION}, {time_limit:g} s an answer",
            answers=tuple(answers[planner, name] for name in instances))
        files[planner] = os.path.join(folder, f"{planner}.json")
        write_text_atomic(files[planner], whole.model_dump_json(by_alias=True, indent=1) + "\n")
    return files


def _key(planner: str, instance: Instance, time_limit: float) -> str:
    asked = [VERSION, planner, instance.question.as_dict(), instance.digest, time_limit]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def answer(planner: str, instance: Instance, time_limit: float) -> SubmittedAnswer:
    """The answer of a planner, or why it has none; runs in a worker.

    Parameters
    ----------
    time_limit : seconds of a processor; where the system has no such clock, there is none.
    """
    from nest.planners.compare import compare

    asked = instance.question
    started = time.process_time()
    configuration, reason = None, None
    try:
        with _limited(time_limit):
            entry, = compare(asked.subject, asked.cluster, asked.job, asked.space, [planner])
        reason = entry.reason
        configuration = None if entry.plan is None else entry.plan.configuration.as_dict()
    except LimitError as error:
        reason = str(error)
    except InputError as error:
        reason = error.problems[0]
    return SubmittedAnswer(instance=instance.name, digest=instance.digest,
                           configuration=configuration,
                     seconds=round(time.process_time() - started, 3),
                     reason=None if reason is None else " ".join(reason.split())[:4000])


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise LimitError after so many seconds of a processor."""
    if not hasattr(signal, "setitimer"):  # not a POSIX system
        yield
        return

    def end(*_: Any) -> None:
        raise LimitError(f"no answer in {seconds:g} s of a processor")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)  # again, where something swallows it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
