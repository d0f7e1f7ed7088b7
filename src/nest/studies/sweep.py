"""A study from its file to its results: :func:`sweep`, and :func:`stored` what it left."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nest.errors import InputError
from nest.inputs.arguments import takes
from nest.limits import count_problem
from nest.studies.engines import Engine, engine
from nest.studies.loading import load_study
from nest.studies.questions import Answered, VersionedQuestion, ask, plan_of
from nest.studies.results import Results
from nest.studies.running import Follower, StudyProgress, Sweeping
from nest.studies.store import FILE, Store, make_folder
from nest.studies.study import Study
from nest.units import shorten

if TYPE_CHECKING:
    from nest.evaluation.plans import Plan


class Sweep:
    """The answers of a study.

    Parameters
    ----------
    study : what was asked.
    folder : where its answers are.
    complete : every question has an answer; False: the sweep was ended before.
    """

    def __init__(self, study: Study, folder: str, complete: bool) -> None:
        self.study, self.folder, self.complete = study, folder, complete

    @contextmanager
    def results(self) -> Iterator[Results]:
        """The results, as long as they are read."""
        with Store(os.path.join(self.folder, FILE), reads=True) as store:
            yield Results(self.study, store)

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """All points as plain data, in order, as the CSV has them."""
        from nest.studies.tables import records

        with self.results() as results:
            yield from records(results)

    def plan(self, number: int) -> Plan:
        """The plan of a point.

        Parameters
        ----------
        number : of the point, as in the rows.

        Raises
        ------
        InputError : no such point, or it has no plan.
        """
        with Store(os.path.join(self.folder, FILE), reads=True) as store:
            row = next((row for row in store.rows(self.study.digest) if row.number == number), None)
            data = None if row is None or row.question is None else store.plan(row.question)
            if data is None:
                raise InputError(f"point: got {shorten(number)}; allowed: the number of a point "
                                 "that has a plan")
            with store.reading(f"the plan of point {number}"):
                return plan_of(data)
        raise AssertionError

    def report(self, files: tuple[str, ...] = (), **page: Any) -> str:
        """The results as text, as ``nest sweep`` prints them.

        Parameters
        ----------
        files : to be named as written.
        page : arguments of :class:`nest.report.page.Page`.
        """
        from nest.studies.text import report_text

        with self.results() as results:
            return report_text(results, files, **page)

    def __str__(self) -> str:
        return self.report()


@takes(folder="path", workers="whole", progress="function", question="function")
def sweep(
    study: str | os.PathLike[str] | Mapping[str, Any] | Study,
    folder: str | os.PathLike[str] | None = None,
    *,
    engine: str | Engine = "local",
    workers: int | None = None,
    progress: Follower | None = None,
    question: Callable[[VersionedQuestion], Answered] = ask,
) -> Sweep:
    """Ask the planner all questions of a study that have no answer yet.

    Parameters
    ----------
    study : file or plain data, see :class:`nest.studies.study.Study`.
    folder : of the answers, made if need be; None: see :func:`folder_of`. What is there is kept:
        a sweep that was ended in any way goes on.
    engine : ``local``, ``dask://HOST:PORT``, ``mpi``, ``ray``, ``inline``; see
        :data:`nest.studies.engines.NAMES`.
    workers : processes of this machine; None: one for each processor. Each has one thread.
    progress : told after each answer; returning False ends the sweep after the questions in flight.
    question : how a question is answered, for tests.

    Raises
    ------
    InputError : a bad study, engine or folder.
    OutputError : the answers cannot be stored.
    LimitError : workers end while they start.
    """
    found = load_study(study)
    place = os.fspath(folder) if folder is not None else folder_of(found.name)
    if problem := count_problem("threads", workers):
        raise InputError(problem.replace("threads", "workers"))
    where = engine if isinstance(engine, Engine) else _engine(engine, workers)
    make_folder(place)
    with Store(os.path.join(place, FILE)) as store:
        run = Sweeping(found, store, where, progress or _silent, question)
        run.run()
        return Sweep(found, place, not run.stopped)


_engine = engine  # the argument of `sweep` has the same name


def _silent(now: StudyProgress) -> None:
    pass


def folder_of(name: str) -> str:
    """The folder of a study's answers where none is given: beside where it is run.

    Raises
    ------
    InputError : the name would lead to another place.
    """
    if name.startswith(".") or set(name) & {"/", "\\", ":"}:
        raise InputError(f"name: got {shorten(name)}, which names no folder here; allowed: a name "
                         "without / \\ : that begins with no point, or -o FOLDER")
    return f"{name}-sweep"


@takes(folder="path")
def stored(folder: str | os.PathLike[str]) -> Sweep:
    """The study that was started last in a folder.

    Raises
    ------
    InputError : there is none, or it is damaged, or of another version.
    """
    place = os.fspath(folder)
    with Store(os.path.join(place, FILE), reads=True) as store:
        latest = store.latest()
        if latest is None:
            raise InputError(f"{shorten(place, 300)[1:-1]}: got no study; allowed: a folder in "
                             "which one was started")
        digest, text = latest
        with store.reading("the study"):
            study = Study.parse(json.loads(text), "study")  # opens no file, whatever it names
        if study.digest != digest:
            raise store.damaged(f"the study is not that of {digest[:16]}, or of another version "
                                "of NEST")
        complete = store.count(digest) is not None and not any(store.open_points(digest))
    return Sweep(study, place, complete)
