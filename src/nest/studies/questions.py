"""A question to the planner: from a study's plain data to descriptions, and to an answer."""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import time
import zlib
from collections.abc import Container, Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field

from nest.errors import InfeasibleError, InputError, LimitError, NoFasterError
from nest.inputs import Cluster, Job, Model, SearchSpace, load_cluster, load_device
from nest.inputs.base import Description
from nest.inputs.failures import Failures
from nest.inputs.job import DEFAULT_STACK
from nest.inputs.sources import CATALOG
from nest.questions import Question, Search
from nest.search.cache import Identity
from nest.studies.axes import Choice
from nest.studies.study import SECTIONS, VERSION, Study, with_field

if TYPE_CHECKING:
    from nest.api import Planner
    from nest.evaluation.plans import Plan

Status = Literal["ok", "near", "infeasible", "invalid", "limit", "failed", "proved"]
STATUSES: Mapping[str, str] = {
    "ok": "there is a plan",
    "near": "there is a plan, as near to the best as --within asks; asked again without it",
    "proved": "not asked: no plan there would be on the front or the best of its group",
    "infeasible": "nothing in the space fits",
    "invalid": "the descriptions are wrong or do not go together",
    "limit": "a limit ended the search before a plan was found",
    "failed": "the planner failed, or the process that asked it ended; asked again by the next run",
}

MOST_PLAN = 2**28
"""Bytes of a plan's JSON that are unpacked (chosen: far more than 10 million devices need)."""


class VersionedQuestion(Question):
    """All that an answer depends on."""

    version: str = VERSION
    """Of NEST, where the sweep was started."""
    below: float = math.inf
    floor: float = 0.0
    within: float = 0.0
    """Which plans are of use: see :class:`nest.api.OfUse`. No answer that is stored depends on
    ``below`` and ``floor``."""
    failures: Failures | None = None
    """Of which the answer has the share of time that trains, with smaller plans."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Sections travel as bytes, which most questions of a study share: each is packed once, and
        unpacked once in a worker, whose planner then knows it again at once."""
        return _unpacked_question, ({
            name: _packed(Identity(value)) if isinstance(value, Description) else value
            for name, value in self.__dict__.items()},)


def _unpacked_question(packed: Mapping[str, Any]) -> VersionedQuestion:
    return VersionedQuestion.model_construct(**{
        name: _unpacked(value) if isinstance(value, bytes) else value
        for name, value in packed.items()})


@lru_cache(maxsize=256)
def _packed(section: Identity) -> bytes:
    return pickle.dumps(section.what, pickle.HIGHEST_PROTOCOL)


@lru_cache(maxsize=256)
def _unpacked(section: bytes) -> Any:
    return pickle.loads(section)


class Outcome(Description):
    """What the planner said to a question, without the plan."""

    status: Status
    message: Annotated[str, Field(max_length=4000)] | None = None
    step_time_s: float | None = None
    low_s: float | None = Field(None, description="of the expected range of the step time")
    high_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    peak_memory_bytes: float | None = None
    optimal: bool | None = None
    gap: float | None = None
    low: float | None = Field(None, description="seconds that no plan takes less than")
    plan: str | None = Field(None, description="degrees, a line")
    productive: float | None = Field(None, description="share of the time that trains, with "
                                     "smaller plans; null: they are not asked for")
    spares: float | None = Field(None, description="spare devices then, for each of the cluster")
    seconds: float = Field(0.0, description="of a processor")


NEVER = 1e300
"""Seconds of a step where nothing fits: JSON has no infinity."""


class Proof(Description):
    """Why no plan of a point would be on the front, or the best of its group."""

    low_s: float = Field(description="seconds that no plan there takes less than")
    known_by: int | None = Field(None, description="point, no worse in anything, of whose plans "
                                 "this is known; null: the sum over layers and devices")
    beaten_by: int | None = Field(None, description="point that is no worse in any objective; "
                                  "null: the training is late")
    within: float = Field(0.0, description="share by which the point may still be better")

    def __str__(self) -> str:
        if self.low_s >= NEVER:
            return f"nothing fits, as at point {self.known_by}, which has no less of anything"
        known = "by layers and devices" if self.known_by is None else f"point {self.known_by}"
        beaten = "too late" if self.beaten_by is None else (
            f"not better than point {self.beaten_by}")
        more = f" by more than {100 * self.within:g} %" if self.within else ""
        return f"{beaten}{more}: no plan takes less than {self.low_s:.6g} s ({known})"


class About(Description):
    """What a row says of a point besides its axes."""

    proof: Proof | None = Field(None, description="why its question need not be asked")
    problem: str | None = Field(None, description="why nothing is asked there")
    devices: int = Field(0, ge=0)
    hour: float | None = Field(None, description="money for an hour of the cluster")
    watts: float | None = None
    productive: float = Field(1.0, description="share of the time that trains")
    spares: float = Field(0.0, description="spare devices for each of the cluster")


class Answered(NamedTuple):
    """An answer as it travels and is stored: plain text and bytes."""

    status: str
    answer: str
    """:class:`Outcome` as JSON."""
    plan: bytes | None
    """The plan's JSON, compressed with zlib; None: there is none."""


class Resolver:
    """Makes questions of choices; equal sections are read once.

    Parameters
    ----------
    study : whose problem the choices change.
    """

    def __init__(self, study: Study) -> None:
        self._base: dict[str, Any] = {name: getattr(study, name) for name in SECTIONS}
        for name in ("job", "space", "search"):
            self._base[name] = dict(self._base[name])
        self._base["job"].setdefault("stack", DEFAULT_STACK)
        train = study.train
        self._failures = train.failures if train is not None and train.smaller else None

    def data(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The sections with what the choices set: whole sections first, then deeper fields.

        Raises
        ------
        InputError : a path that leads nowhere.
        """
        found: Any = self._base
        fields = [item for choice in choices for item in choice.fields.items()]
        for path, value in sorted(fields, key=lambda item: item[0].count(".")):
            try:
                found = with_field(found, path, value)
            except InputError as error:
                raise InputError(f"{path}: {error}") from None
        return found  # type: ignore[no-any-return]

    def question(self, choices: Sequence[Choice]) -> tuple[VersionedQuestion, str]:
        """What is asked at a point, and its key.

        Raises
        ------
        InputError : a section is not valid.
        """
        data = self.data(choices)
        parts, texts = dict[str, Any](), []
        for name in SECTIONS:
            parts[name], text = _needed(name, data[name])
            texts.append(text)
        if self._failures is not None:
            parts["failures"] = self._failures
            texts.append(self._failures.model_dump_json())
        key = hashlib.sha256("\n".join((VERSION, *texts)).encode()).hexdigest()
        return VersionedQuestion.model_construct(**parts), key  # the parts are checked

    def fixed_problems(self, varied: Container[str]) -> list[str]:
        """Problems of the sections that no axis changes; every point has them.

        Parameters
        ----------
        varied : the other sections.
        """
        found: list[str] = []
        for name in SECTIONS:
            if name not in varied:
                try:
                    _needed(name, self._base[name])
                except InputError as error:
                    found += error.problems
        return found

    def unknown_fields(self, name: str, first: Mapping[str, Choice]) -> list[str]:
        """Problems of the paths of an axis, but not of the values there.

        Parameters
        ----------
        first : a value of each axis, by its name.
        """
        order = [first[name], *(choice for other, choice in first.items() if other != name and all(
            "." not in path for path in choice.fields))]
        try:
            data = self.data(order)
        except InputError as error:
            return [*error.problems]
        found = []
        for section in {path.split(".")[0] for path in first[name].fields}:
            try:
                _section(section, json.dumps(data[section]))
            except InputError as error:
                found += [one for one in error.problems if ": unknown field" in one]
        return found


def _needed(name: str, data: Any) -> tuple[Any, str]:
    """A section, see :func:`_section`, that must be there."""
    if data is None:
        raise InputError(f"{name}: missing; needed: a {name} of the study, or an axis {name}")
    return _section(name, json.dumps(data))


@lru_cache(maxsize=256)
def _section(name: str, text: str) -> tuple[Any, str]:
    """A section as its description, and as the text that the key of a question is made of."""
    found = _READ[name](json.loads(text))
    return found, json.dumps(found.as_dict(), sort_keys=True)


def _cluster(data: dict[str, Any]) -> Cluster:
    devices, filling = data.pop("devices", None), data.pop("filling", None)
    if isinstance(data.get("device"), str):
        data["device"] = _device(data["device"])
    return load_cluster(data, devices, filling, sources=CATALOG)


@lru_cache(maxsize=64)
def _device(name: str) -> Any:
    """A device of the catalog, which most clusters of a study share; its name, if there is none."""
    try:
        return load_device(name, sources=CATALOG)
    except InputError:
        return name  # the message of the cluster says where


_READ: Mapping[str, Any] = {
    "model": lambda data: Model.parse(data, "model"), "cluster": _cluster,
    "job": lambda data: Job.parse(data, "job"),
    "space": lambda data: SearchSpace.parse(data, "space"),
    "search": lambda data: Search.parse(data, "search"),
}


@cache
def planner() -> Planner:
    """The planner of a process, which keeps what its questions share."""
    from nest.api import Planner

    return Planner()


def planned(question: Question) -> Plan:
    """Ask the planner: the only place of a sweep that does."""
    from nest.api import OfUse

    of_use = OfUse() if not isinstance(question, VersionedQuestion) else OfUse(
        question.below, question.floor, question.within)
    return planner().answer(question, threads=1, of_use=of_use)


def ask(question: VersionedQuestion) -> Answered:
    """Answer a question, whatever comes of it; runs in a worker.

    Raises
    ------
    InputError : the worker has another version of NEST.
    """
    if question.version != VERSION:
        raise InputError(f"worker: got NEST {VERSION}; allowed: {question.version}, as where "
                         "the sweep was started")
    started = time.process_time()
    plan = None
    try:
        plan = planned(question)
        answer = _figures(plan).unchecked(**_lasting(plan, question))
    except NoFasterError as error:
        answer = told("proved", error).unchecked(low=error.lower_bound_s)
    except InfeasibleError as error:
        answer = told("infeasible", error)
    except InputError as error:
        answer = told("invalid", error)
    except LimitError as error:
        answer = told("limit", error)
    except Exception as error:
        answer = told("failed", f"{type(error).__name__}: {error}")
    answer = answer.unchecked(seconds=round(time.process_time() - started, 6))
    return Answered(answer.status, answer.model_dump_json(exclude_none=True),
                    None if plan is None else zlib.compress(plan.to_json(None).encode(), 6))


def _lasting(plan: Plan, question: VersionedQuestion) -> dict[str, float]:
    """What failures leave of the time, where plans for fewer nodes go on."""
    if question.failures is None:
        return {}
    from nest.replanning.goodput import goodput_of

    found = goodput_of(plan, question.failures, lambda left: planned(question.unchecked(
        cluster=left, below=math.inf, floor=0.0, within=0.0)))
    spares = found.spares * found.node_devices / found.devices
    return {"productive": found.goodput, "spares": spares}


def told(status: Status, why: object) -> Outcome:
    """An answer without a plan, and why."""
    return Outcome(status=status, message=" ".join(str(why).split())[:4000])


def failed(why: object) -> Answered:
    """The answer to a question that no worker lived to answer."""
    answer = told("failed", why)
    return Answered(answer.status, answer.model_dump_json(exclude_none=True), None)


def plan_of(data: bytes) -> Plan:
    """The plan of an answer, see :class:`Answered`.

    Raises
    ------
    InputError, ValueError, zlib.error : it is none.
    """
    from nest.evaluation.plan_file import load_plan

    unpacker = zlib.decompressobj()
    text = unpacker.decompress(data, MOST_PLAN)
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError(f"a plan that is cut off, or of more than {MOST_PLAN} bytes")
    return load_plan(json.loads(text))


def _figures(plan: Plan) -> Outcome:
    from nest.planners.compare import peak_memory
    from nest.report.comparison_text import in_a_line

    known = plan.confidence
    exact = plan.optimal or plan.search is not None
    return Outcome(
        status="ok" if exact else "near", low=plan.lower_bound_s,
        message="; ".join(plan.doubts)[:4000] or None, step_time_s=plan.step_time_s,
        low_s=known.low_s if known else None, high_s=known.high_s if known else None,
        samples_per_s=plan.samples_per_s,
        tokens_per_s=plan.tokens_per_s, mfu=plan.mfu, peak_memory_bytes=peak_memory(plan),
        optimal=plan.optimal, gap=plan.gap, plan=in_a_line(plan))
