"""What worker processes do with a request: from its text to the text of its answer.

Everything about a request happens here, reading it included, so that one that takes all memory or
crashes ends its worker and not the server.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import tempfile
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, WrapValidator

from nest.errors import InputError, NestError, UnsupportedError
from nest.evaluation.plans import Plan
from nest.inputs import Cluster, Configuration, Model, Profile, SearchSpace
from nest.inputs.base import Description, Flag, at_most
from nest.inputs.files import document_of
from nest.inputs.sources import CATALOG
from nest.questions import Question, failure, read_question
from nest.questions.network import cluster_of
from nest.questions.question import ANSWER, Id, id_of, plain
from nest.search.progress import Follower
from nest.server.followed import FollowedSearch
from nest.studies.questions import Answered, VersionedQuestion, ask, failed, planner
from nest.units import shorten

Part = Annotated[str, Field(max_length=10_000)]
Address = Literal["plan", "evaluate", "compare", "replan"]
MOST_BATCH = 1000
"""Questions of one request (chosen)."""


class PageRequest(Description):
    """What the page of a plan, or of two, shows."""

    plan: dict[str, Any] = Field(description="a plan document")
    other: dict[str, Any] | None = Field(None, description="a second plan to compare it with")
    names: tuple[Part, Part] = Field(("A", "B"), description="of both plans")
    whole: Flag = Field(True, description="all figures; false: the first screen, which needs no "
                        "simulation")


class ExportRequest(Description):
    """Files that launch a plan."""

    plan: dict[str, Any] = Field(description="a plan document")
    target: Part | None = Field(None, description="software, as of nest export --to; null: the "
                                "first that runs the plan")


class Submission(Description):
    """A question that nobody waits for."""

    to: Address = Field("plan", description="what is asked: the last part of /v1/plan or another")
    question: dict[str, Any] = Field(description="what that address takes")


class Batch(Description):
    """Several questions of one kind."""

    to: Address = Field("plan", description="what is asked: the last part of /v1/plan or another")
    questions: Annotated[tuple[dict[str, Any], ...], Field(min_length=1, max_length=MOST_BATCH),
                         at_most(MOST_BATCH)] = Field(description="what that address takes, each")


class ReplanRequest(Description):
    """What :func:`nest.replan` is asked."""

    id: Id | None = Field(None, description="comes back with the answer")
    plan: dict[str, Any] = Field(description="the plan that runs, a plan document")
    without: Annotated[tuple[Part, ...], at_most(10_000)] = Field(
        description="what is lost, such as node17 or node3..5")
    cluster: Annotated[
        Cluster, WrapValidator(cluster_of, json_schema_input_type=Cluster | str | dict[str, Any])
    ] | None = Field(
        None, description="the whole cluster, as of a question, where devices have returned; null: "
        "that of the plan")
    space: SearchSpace = Field(default_factory=SearchSpace, description="bounds of the new plan")
    beyond_stack: Flag = Field(False, description="also what the job's stack cannot run")


STATUS = {"input": 400, "infeasible": 422, "unsupported": 422, "limit": 422}
"""HTTP status of errors, by their names; of others 500."""
_CONFIGURED = ("configuration",)


class Limits(NamedTuple):
    """Sizes of problems that are allowed."""

    devices: int
    layers: int
    seconds: float


class Reply(NamedTuple):
    """What a request is answered with."""

    status: int
    body: bytes
    """A JSON document."""
    lasting: bool = False
    """The same request has the same answer at any time."""


class Read(NamedTuple):
    """What is known of a request once it is read."""

    key: str
    """Hash of all that its answer depends on."""
    notes: tuple[str, ...] = ()
    """Fields that were ignored."""
    id: str | int | None = None
    """Of the question."""

    def named(self, body: bytes) -> bytes:
        """A document with the id and the notes, which are no part of what is kept."""
        head: dict[str, object] = {} if self.id is None else {"id": self.id}
        if self.notes:
            head["notes"] = self.notes
        return json.dumps(head).encode()[:-1] + b", " + body[1:] if head else body


def read(endpoint: str, body: bytes, limits: Limits) -> Read | Reply:
    """Read a request: its key, or the reply that says what is wrong."""
    found: Read | Reply = _told(
        body, lambda data: _READ[endpoint](data, limits)._replace(id=id_of(data)), named=True)
    return found


def answer(endpoint: str, body: bytes, limits: Limits, place: str | None = None) -> Reply:
    """Answer a request; the document has neither its id nor notes.

    Parameters
    ----------
    place : file that tells how far the search of a plan is; None: nobody asks.
    """
    found: Reply
    if endpoint == "plan" and place is not None:
        with FollowedSearch(place) as follow:
            found = _told(body, lambda data: _plan(data, limits, follow), named=False)
    else:
        found = _told(body, lambda data: _ANSWER[endpoint](data, limits), named=False)
    return found


def _told(body: bytes, make: Callable[[dict[str, Any]], Any], named: bool) -> Any:
    """What ``make`` returns, or the reply for the error that it raises."""
    data: Any = None
    try:
        data = plain(body, "request")
        return make(data)
    except Exception as error:
        return refusal(error, id_of(data) if named else None)


def refusal(error: Exception, asked: str | int | None = None) -> Reply:
    """The reply for an error."""
    found = failure(error, asked)
    lasting = isinstance(error, NestError) and found.error in ("input", "infeasible", "unsupported")
    return Reply(STATUS.get(found.error, 500), found.to_json().encode(), lasting)


class BatchParts(NamedTuple):
    """The questions of a request, as requests of their own."""

    to: str
    """Their address."""
    questions: tuple[bytes, ...]


def parts(body: bytes, several: bool) -> BatchParts | Reply:
    """Take a request apart that submits a question, or several.

    Parameters
    ----------
    several : it is a :class:`Batch`, else a Submission.
    """
    def read(data: dict[str, Any]) -> BatchParts:
        if several:
            asked = Batch.parse(data, "request")
            return BatchParts(asked.to, tuple(json.dumps(one).encode() for one in asked.questions))
        one = Submission.parse(data, "request")
        return BatchParts(one.to, (json.dumps(one.question).encode(),))

    found: BatchParts | Reply = _told(body, read, named=False)
    return found


# ---------------------------------------------------------------- questions


def planned(question: Question, follow: Follower | None = None) -> Plan:
    """Ask the planner: the only place of the server that does."""
    return planner().answer(question, threads=1, progress=follow)


def _question(data: Mapping[str, Any], limits: Limits) -> tuple[Question, tuple[str, ...]]:
    question, notes = read_question(data, "request")
    _check(question.subject, question.cluster, limits)
    seconds = min(question.search.time_limit or limits.seconds, limits.seconds)
    search = question.search.replace(time_limit=seconds)
    return question.model_copy(update={"search": search}), notes


def _check(subject: Model | Profile, cluster: Cluster, limits: Limits) -> None:
    """Refuse problems that are larger than the server takes."""
    from nest.evaluation.evaluate import chain_of

    problems = []
    if cluster.size > limits.devices:
        problems.append(f"request: cluster: got {cluster.size} devices; allowed: "
                        f"{limits.devices}, as many as this server takes")
    layers = subject.layers if isinstance(subject, Model) else len(chain_of(subject))
    if layers > limits.layers:
        problems.append(f"request: model: got {layers} layers; allowed: {limits.layers}, as many "
                        "as this server takes")
    if problems:
        raise InputError("\n".join(problems), tuple(problems))


def _key(endpoint: str, question: Question, *more: object) -> str:
    """Hash of a question without its id, and of what else is asked."""
    from nest.studies.study import VERSION

    asked = question.as_dict()
    asked.pop("id", None)
    text = json.dumps([VERSION, endpoint, asked, *more], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _read_plan(data: dict[str, Any], limits: Limits) -> Read:
    question, notes = _question(data, limits)
    return Read(_key("plan", question), notes)


def _plan(data: dict[str, Any], limits: Limits, follow: Follower | None = None) -> Reply:
    question, _ = _question(data, limits)
    plan = planned(question, follow)
    ended = plan.search is None or plan.search.seconds < (question.search.time_limit or 0.0)
    return Reply(200, _answer(plan), plan.optimal or ended)


def _answer(plan: Plan) -> bytes:
    return f'{{"schema": "{ANSWER}", "plan": {plan.to_json(None)}}}'.encode()


# ---------------------------------------------------------------- configurations


def _split(data: dict[str, Any], names: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The question of a request, and its fields besides."""
    question = {name: value for name, value in data.items() if name not in names}
    return question, {name: data[name] for name in names if name in data}


def _read_evaluate(data: dict[str, Any], limits: Limits) -> Read:
    if "configuration" not in data and document_of(data) == "plan":
        text = json.dumps(data, sort_keys=True)
        return Read(hashlib.sha256(b"plan" + text.encode()).hexdigest())
    asked, rest = _split(data, _CONFIGURED)
    if not isinstance(rest.get("configuration"), dict):
        raise InputError("request: configuration: missing; needed: a configuration, or a plan "
                         "document in the place of the request")
    question, notes = _question(asked, limits)
    return Read(_key("evaluate", question, rest), notes)


def _evaluate(data: dict[str, Any], limits: Limits) -> Reply:
    from nest.evaluation.evaluate import evaluate

    _read_evaluate(data, limits)
    if "configuration" not in data:
        return _reprice(data, limits)
    asked, rest = _split(data, _CONFIGURED)
    question, _ = _question(asked, limits)
    way = Configuration.parse(rest["configuration"], "configuration")
    plan = evaluate(question.subject, question.cluster, question.job, way)
    return Reply(200, _answer(plan), True)


def _reprice(data: dict[str, Any], limits: Limits) -> Reply:
    return Reply(200, _answer(_plan_of(data, limits)), True)


def _plan_of(data: Mapping[str, Any], limits: Limits) -> Plan:
    """The plan of a document, priced again; sizes are checked as soon as they are known."""
    from nest.evaluation.plan_file import reread

    plan, _ = reread(data)
    _check(plan.inputs.subject, plan.inputs.cluster, limits)
    return plan


# ---------------------------------------------------------------- other planners


def _planners(given: Any) -> list[str]:
    from nest.errors import did_you_mean
    from nest.planners import registered

    known = registered()
    names = list(known) if given is None else given
    if not isinstance(names, list) or not names:
        raise InputError(f"request: planners: got {shorten(names)}; allowed: a list of names")
    for name in names:
        if not isinstance(name, str) or name not in known:
            near = did_you_mean(name, known) if isinstance(name, str) else ""
            raise InputError(f"request: planners: got {shorten(name)}; {near}allowed: "
                             f"{', '.join(known)}")
    return list(dict.fromkeys(names))


def _read_compare(data: dict[str, Any], limits: Limits) -> Read:
    asked, rest = _split(data, ("planners",))
    question, notes = _question(asked, limits)
    return Read(_key("compare", question, _planners(rest.get("planners"))), notes)


def _compare(data: dict[str, Any], limits: Limits) -> Reply:
    from nest.planners.compare import compare

    asked, rest = _split(data, ("planners",))
    question, _ = _question(asked, limits)
    found = compare(question.subject, question.cluster, question.job, question.space,
                    _planners(rest.get("planners")),
                    {"nest": {"threads": 1, "beyond_stack": question.search.beyond_stack}})
    document = {"schema": "nest.comparison/1.0",
                "planners": [entry.document() for entry in found]}
    return Reply(200, json.dumps(document).encode(), True)


# ---------------------------------------------------------------- losses


def _replan(data: dict[str, Any], limits: Limits) -> Reply:
    from nest.replanning.replan import replan

    asked = ReplanRequest.parse(data, "request")
    plan = _plan_of(asked.plan, limits)
    found = replan(plan, asked.without, asked.space, cluster=asked.cluster,
                   beyond_stack=asked.beyond_stack, threads=1, time_limit=limits.seconds)
    ended = found.plan.search is None or found.plan.search.seconds < limits.seconds
    return Reply(200, found.to_json(None).encode(), ended)


# ---------------------------------------------------------------- pages and files of plans


def _read_as(endpoint: str, cls: type[Description]) -> Callable[[dict[str, Any], Limits], Read]:
    """Reads a request of one kind, whose plans are priced only as it is answered."""
    def read(data: dict[str, Any], limits: Limits) -> Read:
        cls.parse(data, "request")
        text = json.dumps({**data, "id": None}, sort_keys=True)
        return Read(hashlib.sha256(f"{endpoint}\n{text}".encode()).hexdigest())
    return read


def _page(data: dict[str, Any], limits: Limits) -> Reply:
    from nest.frameworks.targets import launch_files
    from nest.report.web.compared import pair_document
    from nest.report.web.document import facts, first_document, plan_document

    asked = PageRequest.parse(data, "request")
    one = _plan_of(asked.plan, limits)
    if not asked.whole:
        return _paged(first_document(one).data())
    if asked.other is None:
        return _paged(plan_document(one, facts(one), launch=launch_files(one)).data())
    plans = one, _plan_of(asked.other, limits)
    first, second = (plan_document(plan, facts(plan)) for plan in plans)
    return _paged(pair_document(plans, (first, second), asked.names).data())


def _paged(document: dict[str, Any]) -> Reply:
    return Reply(200, json.dumps({"schema": "nest.page/1.0", "page": document}).encode(), True)


def _export(data: dict[str, Any], limits: Limits) -> Reply:
    from nest.frameworks.targets import export, launch_files

    asked = ExportRequest.parse(data, "request")
    plan = _plan_of(asked.plan, limits)
    found = launch_files(plan) if asked.target is None else (
        asked.target, export(plan, asked.target))
    if found is None:
        reason = "no software that NEST exports to runs this plan"
        raise UnsupportedError(reason, (reason,))
    target, texts = found
    return Reply(200, json.dumps({
        "schema": "nest.export/1.0", "target": target,
        "files": {name: str(text) for name, text in texts.items()}}).encode(), True)


# ---------------------------------------------------------------- studies


class ReadStudy(NamedTuple):
    """A study that can be asked."""

    digest: str
    text: str
    """All of it as JSON."""
    name: str


def read_study(body: bytes, limits: Limits) -> ReadStudy | Reply:
    """Read a study, none of whose texts names a file, and limit its searches."""
    found: ReadStudy | Reply = _told(body, lambda data: _study(data, limits), named=True)
    return found


def _study(data: dict[str, Any], limits: Limits) -> ReadStudy:
    from nest.studies.sweep import load_study

    axes = data.get("axes")
    for axis, values in (axes if isinstance(axes, dict) else {}).items():
        _no_time_limit(str(axis), values)
    search = data.setdefault("search", {})
    if isinstance(search, dict):
        given = search.get("time_limit")
        known = isinstance(given, (int, float)) and not isinstance(given, bool)
        if given is None or (known and given > limits.seconds):
            search["time_limit"] = limits.seconds
    study = load_study({"name": "study", **data}, sources=CATALOG)
    return ReadStudy(study.digest, json.dumps(study.as_dict()), study.name)


def _no_time_limit(axis: str, values: Any) -> None:
    """Refuse an axis that sets the time of a search."""
    choices = values.get("choices", values) if isinstance(values, dict) else {}
    paths = [axis]
    for choice in choices.values() if isinstance(choices, dict) else ():
        paths += map(str, choice) if isinstance(choice, dict) else ()
    for path in paths:
        if path == "search" or path.startswith("search.time_limit"):
            raise InputError(f"axes.{axis[:100]}: got {shorten(path)}; allowed: other fields: the "
                             "server limits the time")


def ask_study(limits: Limits, data: bytes) -> Answered:
    """Answer a question of a study.

    Parameters
    ----------
    data : the question, pickled by the process of the sweep.
    """
    question: VersionedQuestion = pickle.loads(data)
    try:
        _check(question.subject, question.cluster, limits)
    except InputError as error:
        return failed(error)
    return ask(question)


class StoredStudy(NamedTuple):
    """A study that an earlier server has asked."""

    study: ReadStudy
    points: int
    open: int
    """Points without an answer."""
    whole: bool
    """All its points are known."""


def stored_studies(folder: str) -> list[StoredStudy]:
    """The studies of a folder that this version of NEST can go on with, the first one first."""
    from nest.studies.store import FILE, Store
    from nest.studies.study import Study

    path, found = os.path.join(folder, FILE), []
    if not os.path.isfile(path):
        return []
    with Store(path, reads=True) as store:
        for digest, text in [*store.studies()]:
            try:
                study = Study.parse(json.loads(text), "study")
            except (ValueError, RecursionError):
                continue
            if study.digest != digest:  # of another version
                continue
            left, count = sum(1 for _ in store.open_points(digest)), store.count(digest)
            known = sum(1 for _ in store.rows(digest)) if count is None else count
            found.append(StoredStudy(
                ReadStudy(digest, text, study.name), known, left, count is not None))
    return found


def study_table(text: str, folder: str, file_format: str) -> bytes | Reply:
    """All points of a study with their answers so far, as the text of a file; `page`: what its page
    shows."""
    from nest.studies.study import Study
    from nest.studies.sweep import Sweep
    from nest.studies.text import write

    with tempfile.TemporaryDirectory(prefix="nest-serve-") as place:
        path = os.path.join(place, f"points.{file_format}")
        try:
            sweep = Sweep(Study.parse(json.loads(text), "study"), folder, False)
            if file_format == "page":
                return _paged(sweep.document()).body
            with sweep.results() as results:
                write(results, file_format, path)
        except Exception as error:
            return refusal(error)
        with open(path, "rb") as stream:
            return stream.read()


_READ: Mapping[str, Callable[[dict[str, Any], Limits], Read]] = {
    "plan": _read_plan, "evaluate": _read_evaluate, "compare": _read_compare,
    "replan": _read_as("replan", ReplanRequest), "page": _read_as("page", PageRequest),
    "export": _read_as("export", ExportRequest)}
_ANSWER: Mapping[str, Callable[[dict[str, Any], Limits], Reply]] = {
    "plan": _plan, "evaluate": _evaluate, "compare": _compare, "replan": _replan,
    "page": _page, "export": _export}
ENDPOINTS = tuple(_ANSWER)
