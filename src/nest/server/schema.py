"""The description of a server for other programs, OpenAPI 3.1."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from nest import __version__
from nest.describe import Description
from nest.questions import Answer, Failure, Question
from nest.replanning.result import Replan
from nest.server.requests import ReplanRequest
from nest.sweeps.study import Study

TEMPLATE = "#/components/schemas/{model}"
TEXTS = {"metrics": "text/plain; version=0.0.4", "events": "text/event-stream", "csv": "text/csv"}
_STATE = {
    "type": "object",
    "required": ["schema", "id", "name", "state", "points", "answered", "asked", "message"],
    "properties": {
        "schema": {"type": "string"}, "id": {"type": "string"}, "name": {"type": "string"},
        "state": {"enum": ["running", "done", "cancelling", "cancelled", "failed",
                           "interrupted"]},
        "points": {"type": "integer"}, "answered": {"type": "integer"},
        "asked": {"type": "integer"}, "message": {"type": ["string", "null"]}}}
_COMPARISON = {
    "type": "object", "required": ["schema", "planners"],
    "properties": {"schema": {"type": "string"}, "id": {"type": ["string", "integer", "null"]},
                   "notes": {"type": "array", "items": {"type": "string"}},
                   "planners": {"type": "array", "items": {"type": "object"}}}}
_NAMES = {"type": "array", "items": {"type": "string"}}
_CATALOG = {"type": "object", "properties": {
    "models": _NAMES, "clusters": _NAMES, "devices": _NAMES, "stacks": _NAMES}}
_ANY = {"type": "object"}
_REFUSED = ("400", "401", "403", "413", "415", "422", "429", "500", "503")


_CLASSES: tuple[tuple[type[Description], Literal["validation", "serialization"]], ...] = (
    (Question, "validation"), (Study, "validation"), (ReplanRequest, "validation"),
    (Answer, "serialization"), (Replan, "serialization"), (Failure, "serialization"))


def _schema(name: str) -> dict[str, str]:
    return {"$ref": TEMPLATE.format(model=name)}


def _answered(description: str, schema: dict[str, Any], status: str = "200", text: str = "") -> Any:
    """Responses of an address: one that it is for, and errors."""
    errors = {code: {"description": "an error", "content": {
        "application/json": {"schema": _schema("Failure")}}} for code in _REFUSED}
    what = {"description": description, "content": {text or "application/json": {"schema": schema}}}
    return {status: what, **errors}


def _post(summary: str, body: dict[str, Any], responses: Any) -> dict[str, Any]:
    content = {"application/json": {"schema": body}}
    return {"summary": summary, "requestBody": {"required": True, "content": content},
            "responses": responses}


def _get(summary: str, responses: Any, **more: Any) -> dict[str, Any]:
    return {"summary": summary, "responses": responses, **more}


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
    form = {"name": "format", "in": "query", "schema": {"enum": ["json", "csv"]}}
    one = {"parameters": [name]}
    paths = {
        "/v1/plan": {"post": _post("The fastest plan of a question", _schema("Question"),
                                   _answered("the plan", _schema("Answer")))},
        "/v1/evaluate": {"post": _post(
            "The price of a configuration, or of a plan document",
            {"anyOf": [wider, {"type": "object", "required": ["schema", "inputs"]}]},
            _answered("the priced plan", _schema("Answer")))},
        "/v1/compare": {"post": _post("Plans of several planners", compared,
                                      _answered("a plan each", _COMPARISON))},
        "/v1/replan": {"post": _post("The next plan after a loss of devices",
                                     _schema("ReplanRequest"),
                                     _answered("the plan and what moves", _schema("Replan")))},
        "/v1/sweeps": {
            "post": _post("Ask all questions of a study", _schema("Study"),
                          _answered("the sweep runs", _STATE, "202")),
            "get": _get("All sweeps", _answered("their states", {
                "type": "object", "properties": {"sweeps": {"type": "array", "items": _STATE}}}))},
        "/v1/sweeps/{name}": {
            **one, "get": _get("State of a sweep", {**_answered("its state", _STATE), **states}),
            "delete": _get("Ask nothing more", {**_answered("its state", _STATE, "202"),
                                                **states})},
        "/v1/sweeps/{name}/points": {**one, "get": _get(
            "All points with their answers", {**_answered("a table", _ANY), **states},
            parameters=[form])},
        "/v1/sweeps/{name}/events": {**one, "get": _get(
            "Progress as server-sent events", {
                **_answered("events", {"type": "string"}, text=TEXTS["events"]), **states})},
        "/v1/catalog": {"get": _get("Names that questions may use", _answered("names", _CATALOG))},
        "/healthz": {"get": _get("Whether the server answers", _answered("it does", _ANY),
                                 security=[])},
        "/metrics": {"get": _get("Figures for Prometheus", _answered(
            "figures", {"type": "string"}, text=TEXTS["metrics"]))},
        "/openapi.json": {"get": _get("This description", _answered("it", _ANY))},
    }
    paths["/v1/sweeps/{name}/points"]["get"]["responses"]["200"]["content"][TEXTS["csv"]] = {
        "schema": {"type": "string"}}
    return {
        "openapi": "3.1.0", "info": {"title": "NEST", "version": __version__}, "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {
            "token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}, {}]}
