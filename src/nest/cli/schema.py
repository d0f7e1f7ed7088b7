"""`nest schema`: JSON Schema of everything that a file may hold."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from nest.cli.output import emit
from nest.errors import InputError

KINDS = ("plan", "model", "cluster", "job", "space", "configuration", "profile",
         "explanation")


def schema(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.")],
) -> None:
    """Print the JSON Schema of one kind of description, for other tools."""
    if kind not in KINDS:
        raise InputError(f"schema: got {kind[:60]!r}; allowed: {', '.join(KINDS)}")
    emit(json.dumps(document(kind), indent=2))


def document(kind: str) -> dict[str, object]:
    """JSON Schema of one of ``KINDS``.

    A plan and an explanation are described as NEST writes them, everything else as a person may
    write it.
    """
    from nest.describe import (
        Cluster,
        Configuration,
        Description,
        Job,
        Model,
        Profile,
        SearchSpace,
    )
    from nest.explanation.explanation import Explanation
    from nest.pricing.plans import Plan

    written: dict[str, type[Description]] = {"plan": Plan, "explanation": Explanation}
    if kind in written:
        found = written[kind].model_json_schema(mode="serialization")
    else:
        classes: dict[str, type[Description]] = {
            "model": Model, "cluster": Cluster, "job": Job, "space": SearchSpace,
            "configuration": Configuration, "profile": Profile}
        found = classes[kind].model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
