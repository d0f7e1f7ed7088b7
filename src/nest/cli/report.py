"""`nest report` and `nest plot`: what a plan is, as a page to look at, and its figures."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from nest.cli import options, output
from nest.cli.options import argument, text
from nest.cli.plan_commands import plan_of
from nest.cli.present import check_target
from nest.cli.progress import progress
from nest.errors import InputError

if TYPE_CHECKING:
    from nest.report.web.document import PlanDocument


def report(
    file: Annotated[str, argument(
        "A plan, as `nest plan -o` writes it; what `nest diagnose --json` or `nest compare --json` "
        "printed; the folder of a study's answers; or a table of runs (.csv).", "PLAN.json")],
    other: Annotated[str | None, argument(
        "A second plan, to be compared with the first.", "[OTHER.json]")] = None,
    target: Annotated[str | None, text(
        "The page to write; default: the name of the file or folder with .html.",
        "FILE.html", "--output", "-o")] = None,
    search: Annotated[float | None, options.seconds(
        "Also search for so long for simpler plans, and for the best plan with 10 % more of each "
        "resource; default: the plan as it is is priced with them.")] = None,
    threads: options.Threads = None,
    quiet: options.Quiet = False,
) -> None:
    """Write a plan, a study, a diagnosis or runs as one HTML page.

    One page with all figures. Of a plan it shows what to run, how sure its speed is, the devices,
    the simulated step, memory, links, other plans and the launch files. It opens from disk and
    sends no request.
    """
    from nest.inputs.files import write_text_atomic
    from nest.units import shorten

    options.check_counts(threads=threads)
    study, table = os.path.isdir(file), file.endswith(".csv")
    made = None if study or table else _other_document(file)
    if (study or table or made is not None) and (other is not None or search is not None):
        raise InputError(f"report: got {'a second file' if other is not None else '--search'} with "
                         f"{shorten(file)}, which is no plan; allowed: with plans")
    if other is not None and search is not None:
        raise InputError("search: got it with two plans; allowed: with one")
    place = target or os.path.splitext(file.rstrip(os.sep))[0] + ".html"
    check_target(place)
    from nest.studies.sweep import stored

    with progress(quiet):
        document = (made if made is not None else
                    stored(file).document() if study else _validation(file) if table else
                    _plan(file, search, threads).data() if other is None else
                    _pair(file, other))
    from nest.report.web.pages import page

    output.deliver(lambda: place, partial(write_text_atomic, place, page(document)), quiet=quiet)


def _other_document(file: str) -> dict[str, Any] | None:
    """The document of a diagnosis or of a comparison; None: the file is none of them.

    Raises
    ------
    InputError : it is one, and not whole.
    """
    from nest.inputs.files import document_of, parse_text, read_text

    if not (file.endswith(".json") and os.path.isfile(file)):
        return None
    found = parse_text(read_text(file), ".json", file)
    listed = found.get("planners") if isinstance(found, dict) else found
    if isinstance(found, dict) and document_of(found) == "diagnosis":
        from nest.measured.diagnosis.result import Diagnosis
        from nest.report.web.diagnosed import diagnosis_document

        return diagnosis_document(Diagnosis.parse(found, file), os.path.basename(file))
    if not isinstance(listed, list):
        return None
    from nest.planners.compare import entries_of
    from nest.report.web.planners import comparison_document

    return comparison_document(entries_of(listed, file))


def _plan(file: str, search: float | None, threads: int | None) -> PlanDocument:
    from nest.evaluation.problems import told
    from nest.frameworks.targets import launch_files
    from nest.report.web.document import MORE, facts, plan_document

    plan, found = plan_of("report", file), None
    with told(file):
        if search is not None:
            from nest.explanation.explanation import explain

            found = explain(plan, threads=threads, time_limit=search, more=MORE)
        return plan_document(plan, facts(plan, found), os.path.basename(file), launch_files(plan))


def _pair(file: str, other: str) -> dict[str, Any]:
    from nest.report.web.compared import pair_document

    names = os.path.basename(file), os.path.basename(other)
    if names[0] == names[1]:
        names = file, other
    plans = plan_of("report", file), plan_of("report", other)
    documents = _plan(file, None, None), _plan(other, None, None)
    return pair_document(plans, documents, names).data()


def _validation(file: str) -> dict[str, Any]:
    from nest.measured import validation
    from nest.report.web.validated import validation_document

    return validation_document(validation.score(validation.price(validation.read(file))), file)


def plot(
    file: options.PlanFile,
    target: Annotated[str, text(
        "The picture to write, as .svg, .png or .pdf.", "FILE", "--output", "-o")],
    kind: Annotated[str, text(
        "What is drawn: timeline (default), memory, cluster, waterfall or links.",
        "KIND")] = "timeline",
) -> None:
    """Draw one figure of a plan's report as a picture.

    Needs the extra plot. A cluster is drawn as by nest plan --map.
    """
    from nest.errors import did_you_mean
    from nest.evaluation.problems import told
    from nest.report.figure import check_picture, save_figure

    check_picture("output", target)
    check_target(target)
    from nest.report.web.plots import FIGURES
    from nest.units import shorten

    if kind not in FIGURES:
        raise InputError(f"kind: got {shorten(kind)}; {did_you_mean(kind, FIGURES)}allowed: "
                         f"{', '.join(FIGURES)}")
    plan = plan_of("plot", file)
    with told(file):
        figure = FIGURES[kind](plan)
    output.deliver(lambda: target, partial(save_figure, target, figure))
