"""`nest list` and `nest schema`: the catalog, and the JSON Schema of each file format."""

from __future__ import annotations

import json
from typing import Annotated

from nest.cli import options, output
from nest.errors import InputError

SECTIONS = ("models", "clusters", "devices", "stacks", "support")
DOCUMENTS = ("plan", "model", "cluster", "job", "space", "configuration", "profile", "failures",
             "explanation", "diagnosis", "learned", "replan", "goodput", "improvement", "capture",
             "question", "answer", "error", "instance", "submission", "score", "simulation")


def show(
    section: Annotated[str, options.argument(f"One of {', '.join(SECTIONS)}.", "SECTION")],
    details: Annotated[bool, options.text(
        "Stacks only: what each can run, rule by rule.", None, "--details")] = False,
    as_json: options.Json = False,
) -> None:
    """List the models, clusters, devices or stacks of the catalog.

    `support`: what prices of each stack, device and kind of model rest on.
    """
    options.one_of("list", section, SECTIONS)
    if details and section != "stacks":
        raise InputError(f"details: got --details with {section}; allowed: with stacks")
    if section == "support":
        from nest.report.catalog_text import support_rows, support_text

        output.emit(json.dumps([row._asdict() for row in support_rows()], indent=2) if as_json
                    else support_text(**output.page()))
        return
    from nest.report.catalog_text import (
        capabilities_rows,
        capabilities_text,
        catalog_rows,
        catalog_text,
    )

    if as_json:
        rows = capabilities_rows() if details else catalog_rows(section)  # type: ignore[arg-type]
        output.emit(json.dumps(rows, indent=2))
    else:
        output.emit(capabilities_text(**output.page()) if details
                    else catalog_text(section, **output.page()))  # type: ignore[arg-type]


def schema(
    name: Annotated[str, options.argument(f"One of {', '.join(DOCUMENTS)}.", "DOCUMENT")],
) -> None:
    """Print the JSON Schema of a file format."""
    options.one_of("schema", name, DOCUMENTS)
    output.emit(json.dumps(document(name), indent=2))


def document(name: str) -> dict[str, object]:
    """JSON Schema of one of ``DOCUMENTS``.

    The schemas of a plan, an explanation, a diagnosis, what was learned, a replan, a goodput, an
    improvement, a capture, an answer, an error, an instance, a score and a simulation describe
    NEST's output, all others its input.
    """
    from nest import inputs, questions
    from nest.bench.instance import Instance
    from nest.bench.score import ScoreDocument
    from nest.bench.submission import PlannerSubmission
    from nest.evaluation.plans import Plan
    from nest.explanation.explanation import Explanation
    from nest.frameworks.capture.document import Capture
    from nest.frameworks.improvement import Improvement
    from nest.measured.diagnosis import Diagnosis
    from nest.measured.learning.learned import Learned
    from nest.replanning.goodput import Goodput
    from nest.replanning.replan import Replan
    from nest.simulation import Simulation

    written: dict[str, type[inputs.Description]] = {
        "plan": Plan, "explanation": Explanation, "diagnosis": Diagnosis, "learned": Learned,
        "replan": Replan, "goodput": Goodput, "improvement": Improvement,
        "capture": Capture, "answer": questions.Answer, "error": questions.Failure,
        "instance": Instance,
        "score": ScoreDocument, "simulation": Simulation}
    read: dict[str, type[inputs.Description]] = {
        "model": inputs.Model, "cluster": inputs.Cluster, "job": inputs.Job,
        "space": inputs.SearchSpace, "configuration": inputs.Configuration,
        "profile": inputs.Profile, "failures": inputs.Failures, "question": questions.Question,
        "submission": PlannerSubmission}
    found = (written[name].model_json_schema(mode="serialization") if name in written
             else read[name].model_json_schema())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
