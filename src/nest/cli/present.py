"""Progress messages, and the output of a priced plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nest.cli import output
from nest.errors import InputError
from nest.inputs.files import write_text_atomic
from nest.units import shorten

if TYPE_CHECKING:
    from nest.evaluation.plans import Plan
    from nest.inputs import Cluster



def check_target(file: str | None) -> None:
    """Refuse a file that cannot be written, before any work is done for it.

    Raises
    ------
    InputError : the name is empty or a folder, or its folder does not exist.
    """
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


def check_map(file: str | None, cluster: Cluster | None = None) -> None:
    """Refuse a picture of a network that cannot be drawn or written.

    Parameters
    ----------
    file : None: no picture.
    cluster : once it is known.

    Raises
    ------
    InputError : a bad name as for :func:`check_target`, another suffix than .png and .svg, or a
        network that is too large.
    """
    if file is None:
        return
    from nest.report.figure import check_picture

    check_picture("map", file)
    check_target(file)
    if cluster is not None:
        from nest.report.network.sketch import sketch

        sketch(cluster)


@contextmanager
def progress(quiet: bool) -> Iterator[None]:
    """Report steps that take seconds on stderr, unless ``quiet``."""
    from nest.search import compiled

    before = compiled.announce
    compiled.announce = (
        (lambda text: None) if quiet else (lambda text: output.say(f"nest: {text}")))
    try:
        yield
    finally:
        compiled.announce = before


def present(
    plan: Plan, as_json: bool, file: str | None, quiet: bool, ranks: str | None = None,
    map_file: str | None = None,
) -> None:
    """Write the files of a plan that fits, and print it.

    Raises
    ------
    InputError : the network is too large for a picture.
    OutputError : a file cannot be written; the plan is printed all the same.
    """
    writes: list[Callable[[], None]] = []
    if file is not None:
        writes.append(lambda: write_text_atomic(file, plan.to_json() + "\n"))
    if ranks is not None:
        from nest.report.ranks import ranks_text

        writes.append(lambda: write_text_atomic(ranks, ranks_text(plan)))
    if map_file is not None and plan.feasible:
        from nest.report.figure import save_figure
        from nest.report.network.chart import network_chart

        figure = network_chart(plan)
        writes.append(lambda: save_figure(map_file, figure))

    def text() -> str:
        return plan.to_json() if as_json else plan.report(**output.page())

    output.deliver(text, *(writes if plan.feasible else ()), quiet=quiet and not as_json)

