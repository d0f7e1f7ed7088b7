"""`nest schema`: JSON Schema of each file format."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from nest.cli.output import emit
from nest.errors import InputError, did_you_mean

DOCUMENTS = ("plan", "model", "cluster", "job", "space", "configuration", "profile",
             "explanation", "replan", "improvement", "question", "answer", "error", "instance",
             "submission", "score")


def schema(
    name: Annotated[
        str, typer.Argument(metavar="DOCUMENT", help=f"One of {', '.join(DOCUMENTS)}.")],
) -> None:
    """Print the JSON Schema of a file format."""
    if name not in DOCUMENTS:
        raise InputError(f"schema: got {name[:60]!r}; "
                         f"{did_you_mean(name, DOCUMENTS)}allowed: {', '.join(DOCUMENTS)}")
    emit(json.dumps(document(name), indent=2))


def document(name: str) -> dict[str, object]:
    """JSON Schema of one of ``DOCUMENTS``.

    The schemas of a plan, an explanation, a replan, an improvement, an answer, an error, an
    instance and a score describe NEST's output, all others its input.
    """
    from nest.bench.instance import Instance
    from nest.bench.score_document import ScoreDocument
    from nest.bench.submission import PlannerSubmission
    from nest.evaluation.plans import Plan
    from nest.explanation.explanation import Explanation
    from nest.frameworks.improvement import Improvement
    from nest.inputs import (
        Cluster,
        Configuration,
        Description,
        Job,
        Model,
        Profile,
        SearchSpace,
    )
    from nest.questions import Answer, Failure, Question
    from nest.replanning.result import Replan

    written: dict[str, type[Description]] = {
        "plan": Plan, "explanation": Explanation, "replan": Replan,
        "improvement": Improvement, "answer": Answer, "error": Failure, "instance": Instance,
        "score": ScoreDocument}
    if name in written:
        found = written[name].model_json_schema(mode="serialization")
    else:
        classes: dict[str, type[Description]] = {
            "model": Model, "cluster": Cluster, "job": Job, "space": SearchSpace,
            "configuration": Configuration, "profile": Profile, "question": Question,
            "submission": PlannerSubmission}
        found = classes[name].model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
