"""Solving instances: each problem once, on the processors of this machine."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, as_completed
from typing import Any, TypeVar

from nest.bench.instance import Instance, Optimum, Solving, digest_of, layers_of
from nest.errors import InputError
from nest.evaluation.evaluate import chain_of
from nest.inputs.files import write_text_atomic
from nest.questions import Question
from nest.studies.engines import Engine, prepare
from nest.studies.questions import Outcome, VersionedQuestion, ask, plan_of
from nest.studies.store import FILE, Store, make_folder
from nest.studies.study import VERSION

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")
TIME_LIMIT = 600.0
"""Seconds of one search by default: six times what the slowest takes (chosen)."""


def solve(
    problems: Mapping[str, Question], folder: str, engine: Engine, time_limit: float = TIME_LIMIT,
    tell: Callable[[str], None] = lambda name: None,
) -> tuple[dict[str, Instance], dict[str, str]]:
    """Write a file for each problem; ask only for answers that are missing.

    Parameters
    ----------
    problems : by name.
    folder : of the files, and of the store of answers.
    engine : where they are solved.
    time_limit : seconds of each search.
    tell : called with the name of each problem that is solved.

    Returns
    -------
    The instances by name, in the order of the problems; and why others have no configuration, such
    as for want of time, which have no file.

    Raises
    ------
    InputError : the folder cannot be made, or a worker has ended.
    OutputError : a file cannot be written; the answers before are stored.
    """
    make_folder(folder)
    asked = {name: VersionedQuestion(
        model=one.model, profile=one.profile, cluster=one.cluster, job=one.job, space=one.space,
        search=one.search.replace(time_limit=time_limit)) for name, one in problems.items()}
    keys = {name: key_of(question) for name, question in asked.items()}
    with Store(os.path.join(folder, FILE)) as store:
        missing = {name: (question,) for name, question in asked.items()
                 if store.status(keys[name]) is None}
        for name, answered in done(engine, ask, missing, prepare):
            if answered.status == "failed":
                raise InputError(
                    f"{name}: {Outcome.model_validate_json(answered.answer).message}")
            store.add(keys[name], *answered)
            tell(name)
        with store.reading("an answer"):
            answers = {name: Outcome.model_validate_json(store.answer(key) or "")
                       for name, key in keys.items()}
            found = {name: _instance(name, problems[name], answer, store.plan(keys[name]) or b"",
                                     time_limit)
                     for name, answer in answers.items() if answer.status == "ok"}
    for name, instance in found.items():
        write_text_atomic(os.path.join(folder, f"{name}.json"), text_of(instance))
    return found, {name: answer.message or "" for name, answer in answers.items()
                   if answer.status != "ok"}


def text_of(instance: Instance) -> str:
    """An instance as the text of its file, with its digest."""
    return _digested(instance).model_dump_json(by_alias=True, indent=1, ensure_ascii=True) + "\n"


def _digested(instance: Instance) -> Instance:
    data = json.loads(instance.model_dump_json(by_alias=True))
    return instance.unchecked(digest=digest_of(data))


def key_of(question: VersionedQuestion) -> str:
    """SHA-256 of all that an answer depends on."""
    return hashlib.sha256(json.dumps(question.as_dict(), sort_keys=True).encode()).hexdigest()


def _instance(
    name: str, question: Question, answer: Outcome, plan: bytes, time_limit: float
) -> Instance:
    """An instance of what is stored; ``evaluate`` prices its configuration once more."""
    best = plan_of(plan)
    assert best.lower_bound_s is not None and best.gap is not None  # it was searched for
    return _digested(Instance(
        name=name, question=question, layers=layers_of(chain_of(question.subject)),
        optimum=Optimum(
            step_time_s=best.step_time_s, proved=best.optimal, lower_bound_s=best.lower_bound_s,
            gap=max(best.gap, 0.0), configuration=best.configuration),
        made=Solving(version=VERSION, seconds=answer.seconds, time_limit=time_limit,
                  command=f"nest bench instances --only {name} --time-limit {time_limit:g}")))


def done(
    engine: Engine, work: Callable[..., R], given: Mapping[K, tuple[Any, ...]],
    first: Callable[[], object] = bool,
) -> Iterator[tuple[K, R]]:
    """Call a function with each of several arguments; yield what it returns, as it comes.

    Parameters
    ----------
    given : arguments by a key, which comes back with the result.
    first : done once in a worker, if there is anything to do.

    Raises
    ------
    InputError : a process has ended.
    """
    if not given:
        return
    executor = engine.make()
    try:
        executor.submit(first).result()
        running = {executor.submit(work, *one): key for key, one in given.items()}
        for future in as_completed(running):
            yield running[future], future.result()
    except BrokenExecutor:
        raise InputError("a process of the benchmark has ended; what is answered is stored, the "
                         "same command goes on") from None
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        engine.kill(executor)
