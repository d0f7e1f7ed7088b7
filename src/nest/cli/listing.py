"""`nest list`: what the catalog holds."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from nest.cli import options, output
from nest.errors import InputError

KINDS = ("models", "clusters", "devices", "stacks")


def show(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.")],
    as_json: options.Json = False,
) -> None:
    """List the models, clusters, devices or stacks of the catalog."""
    if kind not in KINDS:
        raise InputError(f"list: got {kind[:60]!r}; allowed: {', '.join(KINDS)}")
    from nest.report.catalog_text import catalog_rows, catalog_text

    if as_json:
        output.emit(json.dumps(catalog_rows(kind), indent=2))  # type: ignore[arg-type]
    else:
        output.emit(catalog_text(kind, **output.page()))  # type: ignore[arg-type]
