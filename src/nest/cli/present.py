"""The output of a priced plan, and the files that it is written to."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from nest.cli import options, output
from nest.errors import InputError

if TYPE_CHECKING:
    from nest.evaluation.plans import Plan
    from nest.inputs import Cluster


@dataclass(frozen=True, kw_only=True)
class PlanOutput:
    """Options of what is shown and written of a plan."""

    as_json: options.Json = False
    output: options.Output = None
    ranks: options.Ranks = None
    map_file: Annotated[str | None, options.text(
        "Also draw the network with the stages in colour, as .png, .svg or .pdf.", "FILE",
        "--map")] = None
    quiet: options.Quiet = False
    details: options.Details = False

    def check(self, cluster: Cluster | None = None) -> None:
        """Refuse files that cannot be written, and a picture that cannot be drawn.

        Parameters
        ----------
        cluster : once it is known.

        Raises
        ------
        InputError : a bad name as for :func:`check_target`, another suffix of a picture than .png
            and .svg, or a network that is too large for one.
        """
        check_target(self.output)
        check_target(self.ranks)
        if self.map_file is None:
            return
        from nest.report.figure import check_picture

        check_picture("map", self.map_file)
        check_target(self.map_file)
        if cluster is not None:
            from nest.report.network.sketch import sketch

            sketch(cluster)

    def present(self, plan: Plan) -> None:
        """Write the files of a plan that fits, and print it.

        Raises
        ------
        InputError : the network is too large for a picture.
        OutputError : a file cannot be written; the plan is printed all the same.
        """
        writes = plan_writes(plan, self.output, self.ranks) if plan.feasible else []
        if self.map_file is not None and plan.feasible:
            from nest.report.figure import save_figure
            from nest.report.network.chart import network_chart

            place, figure = self.map_file, network_chart(plan)
            writes.append(lambda: save_figure(place, figure))
        output.deliver(
            lambda: plan.to_json() if self.as_json else plan.report(
                details=self.details, **output.page()), *writes,
            quiet=self.quiet and not self.as_json)


def plan_writes(
    plan: Plan, file: str | None, ranks: str | None
) -> list[Callable[[], None]]:
    """What writes a plan, and the places of its ranks."""
    from nest.inputs.files import write_text_atomic
    from nest.report.files import ranks_text

    writes: list[Callable[[], None]] = []
    if file is not None:
        writes.append(lambda: write_text_atomic(file, plan.to_json() + "\n"))
    if ranks is not None:
        writes.append(lambda: write_text_atomic(ranks, ranks_text(plan)))
    return writes


def check_target(file: str | None) -> None:
    """Refuse a file that cannot be written, before any work is done for it.

    Raises
    ------
    InputError : the name is empty or a folder, or its folder does not exist.
    """
    from nest.units import shorten

    if file is None:
        return
    folder = os.path.dirname(file) or "."
    if not file or "\0" in file or os.path.isdir(file):
        given = "got no name" if not file else "is a folder" if "\0" not in file else "is no name"
        raise InputError(f"{shorten(file, 300)[1:-1] or repr(file)}: {given}; allowed: a file to "
                         "write")
    if not os.path.isdir(folder):
        raise InputError(f"{file}: cannot be written (no folder {folder}); allowed: a file in a "
                         "folder that exists")


def write_page(place: str, document: Mapping[str, Any]) -> None:
    """Write a document as one HTML page.

    Raises
    ------
    OutputError : the file cannot be written.
    """
    from nest.inputs.files import write_text_atomic
    from nest.report.web.pages import page

    write_text_atomic(place, page(document))
