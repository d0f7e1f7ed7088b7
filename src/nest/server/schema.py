"""The description of a server for other programs, OpenAPI 3.1."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from nest import __version__
from nest.inputs import Description
from nest.inputs.catalog import SECTIONS
from nest.questions import Answer, Failure, Question
from nest.replanning.replan import Replan
from nest.server.work import Batch, ExportRequest, PageRequest, ReplanRequest, Submission
from nest.studies.study import Study

TEMPLATE = "#/components/schemas/{model}"
TEXTS = {"metrics": "text/plain; version=0.0.4", "events": "text/event-stream", "csv": "text/csv",
         "page": "text/html; charset=utf-8"}
_COUNT = {"type": "integer", "minimum": 0}
_STATE = {
    "type": "object",
    "required": ["schema", "id", "name", "state", "points", "answered", "asked", "message"],
    "properties": {
        "schema": {"type": "string"}, "id": {"type": "string"}, "name": {"type": "string"},
        "state": {"enum": ["running", "done", "cancelling", "cancelled", "failed",
                           "interrupted"]},
        "points": _COUNT, "answered": _COUNT,
        "asked": _COUNT, "message": {"type": ["string", "null"]}}}
_COMPARISON = {
    "type": "object", "required": ["schema", "planners"],
    "properties": {"schema": {"type": "string"}, "id": {"type": ["string", "integer", "null"]},
                   "notes": {"type": "array", "items": {"type": "string"}},
                   "planners": {"type": "array", "items": {"type": "object"}}}}
_NAMES = {"type": "array", "items": {"type": "string"}}
_CATALOG = {"type": "object", "properties": {
    "models": _NAMES, "clusters": _NAMES, "devices": _NAMES, "stacks": _NAMES,
    "precisions": _NAMES, "targets": _NAMES, "limits": {"type": "object", "properties": {
        "devices": _COUNT, "layers": _COUNT, "bytes": _COUNT, "seconds": {"type": "number"}}}}}
_ANY = {"type": "object"}
_SUBMITTED = {
    "type": "object", "required": ["schema", "id", "to", "state", "status", "answer"],
    "properties": {
        "schema": {"type": "string"}, "id": {"type": "string"}, "to": {"type": "string"},
        "state": {"enum": ["running", "done", "cancelled"]},
        "status": {"type": ["integer", "null"], "minimum": 200, "maximum": 599,
                   "description": "HTTP status of the answer, as of the address asked"},
        "answer": {"type": ["object", "null"], "description": "its answer or error"}}}
_PAGE = {"type": "object", "required": ["schema", "page"], "properties": {
    "schema": {"type": "string"}, "id": {"type": ["string", "integer", "null"]},
    "page": {"type": "object", "description": "what the page shows"}}}
_EXPORT = {"type": "object", "required": ["schema", "target", "files"], "properties": {
    "schema": {"type": "string"}, "id": {"type": ["string", "integer", "null"]},
    "target": {"type": "string"},
    "files": {"type": "object", "additionalProperties": {"type": "string"}}}}
_ENTRY = {"type": "object", "required": ["fields", "facts"], "properties": {
    "fields": {"type": "object", "description": "as the catalog has it"},
    "facts": {"type": "object", "description": "in SI units"}}}
_BATCH = {
    "type": "object", "required": ["schema", "answers"], "properties": {
        "schema": {"type": "string"},
        "answers": {"type": "array", "items": _ANY, "description": "answers and errors, in the "
                    "order of the questions"}}}
_READY = {"type": "object", "required": ["status", "version"], "properties": {
    "status": {"type": "string"}, "version": {"type": "string"}}}
_REFUSED = ("400", "401", "403", "408", "413", "415", "422", "429", "431", "500", "503")

QUESTION: dict[str, Any] = {
    "id": 1, "model": "bert-large", "cluster": {"base": "dgx-a100", "devices": 8},
    "job": {"global_batch": 64, "seq_len": 512}}
"""An example; the tests ask it, and those below that are made of it."""
STUDY = {"name": "lengths", **{name: QUESTION[name] for name in ("model", "cluster", "job")},
         "axes": {"job.seq_len": [256, 512]}}
EXAMPLES: dict[str, dict[str, Any]] = {
    "plan": QUESTION, "compare": {**QUESTION, "planners": ["nest", "manual"]},
    "evaluate": {**QUESTION, "configuration": {"outer_dp": 8, "micro_batch": 8, "stages": [
        {"layers": [0, 26], "devices": [0, 1]}]}},
    "batch": {"to": "plan", "questions": [QUESTION, {**QUESTION, "id": 2, "top": 3}]},
    "submit": {"to": "plan", "question": QUESTION}, "startSweep": STUDY}
"""An example of each request, by the operation; that of replan needs a whole plan."""


_CLASSES: tuple[tuple[type[Description], Literal["validation", "serialization"]], ...] = (
    (Question, "validation"), (Study, "validation"), (ReplanRequest, "validation"),
    (PageRequest, "validation"), (ExportRequest, "validation"),
    (Batch, "validation"), (Submission, "validation"),
    (Answer, "serialization"), (Replan, "serialization"), (Failure, "serialization"))


def _schema(name: str) -> dict[str, str]:
    return {"$ref": TEMPLATE.format(model=name)}


def _answered(description: str, schema: dict[str, Any], status: str = "200", text: str = "") -> Any:
    """Responses of an address: one that it is for, and errors."""
    errors = {code: {"description": "an error", "content": {
        "application/json": {"schema": _schema("Failure")}}} for code in _REFUSED}
    what = {"description": description, "content": {text or "application/json": {"schema": schema}}}
    return {status: what, **errors}


def _post(operation: str, summary: str, body: dict[str, Any], responses: Any) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": body}
    if operation in EXAMPLES:
        content["example"] = EXAMPLES[operation]
    return {"operationId": operation, "summary": summary, "responses": responses,
            "requestBody": {"required": True, "content": {"application/json": content}}}


def _get(operation: str, summary: str, responses: Any, **more: Any) -> dict[str, Any]:
    return {"operationId": operation, "summary": summary, "responses": responses, **more}


@cache
def openapi() -> dict[str, Any]:
    """The whole description."""
    schemas: dict[str, Any] = {}
    for cls, mode in _CLASSES:
        found = cls.model_json_schema(ref_template=TEMPLATE, mode=mode)
        for name, one in found.pop("$defs", {}).items():
            schemas.setdefault(name, one)
        schemas[cls.__name__] = found
    question = {name: value for name, value in schemas["Question"].items() if name != "title"}
    wider = {**question, "properties": {**question["properties"], "configuration": _ANY},
             "required": [*question["required"], "configuration"]}
    compared = {**question, "properties": {**question["properties"], "planners": _NAMES}}
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"},
            "description": "id of the sweep"}
    states = {"404": {"description": "no such sweep", "content": {
        "application/json": {"schema": _schema("Failure")}}}}
    form = {"name": "format", "in": "query", "schema": {"enum": ["json", "csv", "page"]}}
    one = {"parameters": [name]}
    wait = {"name": "wait", "in": "query", "description": "seconds to wait for its end, at most "
            "60", "schema": {"type": "number", "minimum": 0, "default": 0}, "example": 30}
    asked = {"parameters": [{**name, "description": "id of the question"}]}
    paths: dict[str, Any] = {
        "/v1/plan": {"post": _post("plan", "The fastest plan of a question", _schema("Question"),
                                   _answered("the plan", _schema("Answer")))},
        "/v1/evaluate": {"post": _post(
            "evaluate", "The price of a configuration, or of a plan document",
            {"anyOf": [wider, {"type": "object", "required": ["schema", "inputs"]}]},
            _answered("the priced plan", _schema("Answer")))},
        "/v1/compare": {"post": _post("compare", "Plans of several planners", compared,
                                      _answered("a plan each", _COMPARISON))},
        "/v1/replan": {"post": _post("replan", "The next plan after a loss of devices",
                                     _schema("ReplanRequest"),
                                     _answered("the plan and what moves", _schema("Replan")))},
        "/v1/page": {"post": _post("page", "What the page of a plan, or of two, shows",
                                   _schema("PageRequest"), _answered("it", _PAGE))},
        "/v1/export": {"post": _post("export", "Files that launch a plan",
                                     _schema("ExportRequest"),
                                     _answered("texts by name", _EXPORT))},
        "/v1/batch": {"post": _post("batch", "Many questions in one request", _schema("Batch"),
                                    _answered("answers in their order", _BATCH))},
        "/v1/questions": {"post": _post(
            "submit", "Ask a question and come back for its answer", _schema("Submission"),
            _answered("it is being answered", _SUBMITTED, "202"))},
        "/v1/questions/{name}": {
            **asked, "get": _get("result", "How far a question is, and its answer",
                                 {**_answered("its state", _SUBMITTED), **states},
                                 parameters=[wait]),
            "delete": _get("cancel", "Stop answering a question",
                           {**_answered("its state", _SUBMITTED), **states})},
        "/v1/questions/{name}/events": {**asked, "get": _get(
            "follow", "Better plans and the progress of the proof as server-sent events", {
                **_answered("events", {"type": "string"}, text=TEXTS["events"]), **states})},
        "/v1/sweeps": {
            "post": _post("startSweep", "Ask all questions of a study", _schema("Study"),
                          _answered("the sweep runs", _STATE, "202")),
            "get": _get("listSweeps", "All sweeps", _answered("their states", {
                "type": "object", "properties": {"sweeps": {"type": "array", "items": _STATE}}}))},
        "/v1/sweeps/{name}": {
            **one, "get": _get("getSweep", "State of a sweep",
                               {**_answered("its state", _STATE), **states}),
            "delete": _get("cancelSweep", "Ask nothing more",
                           {**_answered("its state", _STATE, "202"), **states})},
        "/v1/sweeps/{name}/points": {**one, "get": _get(
            "getPoints", "All points with their answers",
            {**_answered("a table", _ANY), **states}, parameters=[form])},
        "/v1/sweeps/{name}/events": {**one, "get": _get(
            "followSweep", "Progress as server-sent events", {
                **_answered("events", {"type": "string"}, text=TEXTS["events"]), **states})},
        "/v1/catalog": {"get": _get("catalog", "Names that questions may use",
                                    _answered("names", _CATALOG))},
        "/v1/catalog/{section}/{name}": {
            "parameters": [
                {"name": "section", "in": "path", "required": True,
                 "schema": {"enum": [*SECTIONS]}, "example": "clusters"},
                {"name": "name", "in": "path", "required": True, "schema": {"type": "string"},
                 "example": "dgx-h100"}],
            "get": _get("entry", "What the catalog says of a name",
                        {**_answered("its fields", _ENTRY), **states})},
        "/": {"get": _get("explorer", "The explorer, a page for a browser", {
            "200": {"description": "the page", "content": {
                TEXTS["page"]: {"schema": {"type": "string"}}}}}, security=[])},
        "/healthz": {"get": _get("health", "Whether the server answers",
                                 _answered("it does", _READY), security=[])},
        "/readyz": {"get": _get("ready", "Whether its workers have their kernels",
                                _answered("they have", _READY), security=[])},
        "/metrics": {"get": _get("metrics", "Figures for Prometheus", _answered(
            "figures", {"type": "string"}, text=TEXTS["metrics"]))},
        "/openapi.json": {"get": _get("description", "This description", _answered("it", _ANY))},
    }
    paths["/v1/sweeps/{name}/points"]["get"]["responses"]["200"]["content"][TEXTS["csv"]] = {
        "schema": {"type": "string"}}
    return {
        "openapi": "3.1.0", "info": {"title": "NEST", "version": __version__}, "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {
            "token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}, {}]}
