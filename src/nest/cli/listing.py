"""`nest list`: the contents of the catalog."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from nest.cli import options, output
from nest.errors import InputError, did_you_mean

SECTIONS = ("models", "clusters", "devices", "stacks")


def show(
    section: Annotated[
        str, typer.Argument(metavar="SECTION", help=f"One of {', '.join(SECTIONS)}.")],
    details: Annotated[
        bool, typer.Option("--details", help="Stacks only: what each can run, rule by rule.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """List the models, clusters, devices or stacks of the catalog."""
    if section not in SECTIONS:
        raise InputError(f"list: got {section[:60]!r}; "
                         f"{did_you_mean(section, SECTIONS)}allowed: {', '.join(SECTIONS)}")
    if details and section != "stacks":
        raise InputError(f"details: got --details with {section}; allowed: with stacks")
    from nest.report.catalog_text import catalog_rows, catalog_text

    if details:
        from nest.report.capabilities_text import capabilities_rows, capabilities_text

        output.emit(json.dumps(capabilities_rows(), indent=2) if as_json
                    else capabilities_text(**output.page()))
        return

    if as_json:
        output.emit(json.dumps(catalog_rows(section), indent=2))  # type: ignore[arg-type]
    else:
        output.emit(catalog_text(section, **output.page()))  # type: ignore[arg-type]
