"""A study from its file to its results: :func:`sweep`, and :func:`stored` what it left.

`load_study` makes plain data of the file, that no other file is needed for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from nest.errors import InputError
from nest.inputs import load_model, read_description
from nest.inputs.arguments import need_path, takes
from nest.inputs.files import document_of
from nest.inputs.sources import Catalog, Files
from nest.limits import count_problem
from nest.studies.engines import Engine, engine
from nest.studies.questions import Answered, Resolver, VersionedQuestion, ask, plan_of
from nest.studies.results import Results
from nest.studies.running import Follower, StudyProgress, Sweeping
from nest.studies.store import FILE, Store, make_folder
from nest.studies.study import Study
from nest.units import shorten

if TYPE_CHECKING:
    from nest.evaluation.plans import Plan
    from nest.report.page import PageOptions


def load_study(
    source: str | os.PathLike[str] | Mapping[str, Any] | Study, *, sources: Catalog | None = None
) -> Study:
    """Read a study from YAML, JSON, TOML or plain data.

    Parameters
    ----------
    source : path, mapping, or a Study, which is returned unchanged. Files that it names are
        relative to its own folder, and read now.
    sources : what its texts may name; default: files too.

    Raises
    ------
    InputError : an unreadable file, or fields that are missing or not allowed, one line each.
    """
    if isinstance(source, Study):
        return source
    where, folder = "study", Path()
    if isinstance(source, Mapping):
        data = dict(source)
    else:
        need_path("study", source, ", or a mapping")
        where, folder = shorten(os.fspath(source), 300)[1:-1], Path(source).parent
        data = {"name": Path(source).stem, **read_description(source)}
    _need_study(data, where, "FILE" if isinstance(source, Mapping) else where)
    study = Study.parse(data, where)
    problems: list[str] = []
    plain = _plain_data(study, sources or Files(folder), where, problems)
    if problems:
        raise InputError("\n".join(problems), tuple(problems))
    found = study.unchecked(**plain)
    _try(found, where)
    return found


def _need_study(data: Mapping[str, Any], where: str, file: str) -> None:
    """Refuse a document of another kind: one line, instead of one for each of its fields."""
    document = document_of(data)
    if document is not None:
        hint = f"; `nest evaluate {file}` prices a plan" if document == "plan" else ""
        raise InputError(f"{where}: schema: got {shorten(data['schema'])}, a {document} file; "
                         "allowed: a study, which has job and axes and no schema (docs/sweeps.md)"
                         f"{hint}")


def _plain_data(
    study: Study, sources: Catalog, where: str, problems: list[str]
) -> dict[str, Any]:
    """Fields of a study with names and files of models and clusters replaced by their content."""

    def plain(path: str, value: Any, place: str) -> Any:
        try:
            return _PLAIN[path](value, sources) if path in _PLAIN and value is not None else value
        except InputError as error:
            problems.extend(f"{where}: {place}: {line}" for line in error.problems)
            return value

    axes = {}
    for name, axis in study.axes.items():
        if axis.choices is not None:
            axes[name] = axis.unchecked(choices={
                label: {path: plain(path, value, f"axes.{name}.{label}")
                        for path, value in fields.items()}
                for label, fields in axis.choices.items()})
        elif axis.values is not None and name in _PLAIN:  # labels stay what was written
            labels = [choice.label for choice in study.listed(name)]
            axes[name] = axis.unchecked(values=None, choices={
                str(label): {name: plain(name, value, f"axes.{name}")}
                for label, value in zip(labels, axis.values, strict=True)})
        else:
            axes[name] = axis
    return {"model": plain("model", study.model, "model"),
            "cluster": plain("cluster", study.cluster, "cluster"), "axes": axes, "_listed": {}}


def _model(value: Any, sources: Catalog) -> Any:
    if isinstance(value, dict) and "base" in value:
        return _changed(_model(value["base"], sources), value)
    return load_model(value, sources=sources).as_dict()


def _cluster(value: Any, sources: Catalog) -> Any:
    """Plain data of a cluster; a catalog's or a file's template stays one, for any size."""
    if isinstance(value, dict) and "base" in value:
        return _changed(_cluster(value["base"], sources), value)
    if isinstance(value, dict):
        return value
    from nest.network.network import network_data

    return network_data(value, sources)


def _changed(base: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """The fields of a base with changes."""
    return {**base, **{name: one for name, one in value.items() if name != "base"}}


_PLAIN = {"model": _model, "cluster": _cluster}


def _try(study: Study, where: str) -> None:
    """Refuse a section without an axis that is wrong, and a path that no value can be set at.

    Raises
    ------
    InputError : what is wrong with the section; the path, and why the first value of its axis
        cannot be set there.
    """
    resolver = Resolver(study)
    varied = {path.split(".")[0] for name in study.axes for path in study.paths(name)}
    first = {name: (study.axes[name].at(name, 0.5) if study.axes[name].continuous
                    else study.listed(name)[0]) for name in study.axes}
    problems = [f"{where}: {problem}" for problem in resolver.fixed_problems(varied)]
    for name in study.axes:
        for problem in resolver.unknown_fields(name, first):
            problems.append(f"{where}: axes.{name}: {problem}")
    if problems:
        raise InputError("\n".join(problems), tuple(problems))


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
        from nest.studies.text import records

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

    def report(self, files: tuple[str, ...] = (), **page: Unpack[PageOptions]) -> str:
        """The results as text, as ``nest sweep`` prints them.

        Parameters
        ----------
        files : to be named as written.
        page : arguments of :class:`nest.report.page.Page`.
        """
        from nest.studies.text import report_text

        with self.results() as results:
            return report_text(results, files, **page)

    def document(self) -> dict[str, Any]:
        """What the page of the study shows, as `nest report` of its folder."""
        from nest.studies.charts import objective_of, pair_of
        from nest.studies.page import study_document

        pair = pair_of(self.study, None, None) if len(self.study.axes) > 1 else None
        with self.results() as results:
            return study_document(results, objective_of(self.study, None), pair)

    def to_html(self) -> str:
        """The page of the study: one file, which sends no request."""
        from nest.report.web.pages import page

        return page(self.document())

    def _repr_html_(self) -> str:
        from nest.report.web.pages import frame

        return frame(self.document())

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
    prove: bool = False,
    within: float = 0.0,
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
    prove : ask only what may change the front of a group or its best plans; the status of all
        other points is ``proved`` (:mod:`nest.studies.proving`).
    within : the same for points that may be better than a known one by at most this share, 0 to 1.
    question : how a question is answered, for tests.

    Raises
    ------
    InputError : a bad study, engine or folder.
    OutputError : the answers cannot be stored.
    LimitError : workers end while they start.
    """
    found = load_study(study)
    place = os.fspath(folder) if folder is not None else folder_of(found.name)
    if prove or within:
        found.need_waiting("prove" if prove else "within")
    if problem := count_problem("threads", workers):
        raise InputError(problem.replace("threads", "workers"))
    where = engine if isinstance(engine, Engine) else _engine(engine, workers)
    make_folder(place)
    with Store(os.path.join(place, FILE)) as store:
        run = Sweeping(found, store, where, progress or _silent, question,
                       need_within(within) if prove or within else None)
        run.run()
        return Sweep(found, place, not run.stopped)


_engine = engine  # the argument of `sweep` has the same name


def _silent(now: StudyProgress) -> None:
    pass


def need_within(value: object) -> float:
    """Refuse what is no share.

    Raises
    ------
    InputError : with what is allowed.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InputError(f"within: got {shorten(value)}; allowed: a share from 0 to 1, such as "
                         "0.01 or 1%")
    return float(value)


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
