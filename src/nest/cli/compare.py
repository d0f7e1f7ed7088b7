"""`nest compare`: NEST and other planners on the same question, priced in the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from nest.cli import options, output
from nest.cli.options import chosen
from nest.errors import InputError

if TYPE_CHECKING:
    from nest.inputs import Cluster
    from nest.planners.reconfigurable import DirectLinks


def compare(
    names: Annotated[list[str] | None, options.argument(
        "Catalog names (`nest list models`, `nest list clusters`) or files.",
        "MODEL CLUSTER")] = None,
    *,
    planners: Annotated[str | None, options.text(
        "all (default), or some of nest, manual, zero, mcmc, alpa, phaze, piper, exhaustive, "
        "joined by commas; or a planner of another package (docs/planners.md).", "NAMES")] = None,
    problem: options.ProblemOptions,
    space: options.SpaceOptions,
    beyond_stack: options.BeyondStack = False,
    seed: Annotated[int | None, options.number("Seed of mcmc; default 0.")] = None,
    proposals: Annotated[int | None, options.number(
        "Strategies that mcmc tries, up to 1,000,000; default 4000.")] = None,
    links: Annotated[str | None, options.text(
        "For mcmc: at this level an optical switch sets N direct links of each group; they are "
        "chosen together with the strategy.", "LEVEL:N")] = None,
    threads: options.Threads = None,
    chart: Annotated[str | None, options.text(
        "Also draw the throughputs as bars, as .png, .svg or .pdf.", "FILE")] = None,
    page_file: options.Page = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare the plans of NEST and other planners.

    The SETs bound all planners, and all plans are priced in the same way. NEST searches what the
    job's stack can run, the others what their methods do; the table says whether the stack can run
    what they chose. A plan that does not fit is shown with the reason.
    """
    from nest.cli.present import check_target, write_page
    from nest.cli.progress import progress
    from nest.planners import registered
    from nest.report.figure import check_picture

    check_picture("chart", chart)
    check_target(chart)
    check_target(page_file)
    options.check_counts(threads=threads, proposals=proposals)
    asked = chosen("planners", planners, registered())
    subject, cluster = problem.subject_and_cluster(names or ())
    wanted, bounds = problem.described_job(cluster), space.described()
    given = {"seed": seed, "proposals": proposals, "links": _links(links, cluster)}
    mcmc = {name: value for name, value in given.items() if value is not None}
    if mcmc and "mcmc" not in asked:
        raise InputError(f"command line: got --{next(iter(mcmc))} without the planner mcmc; "
                         "allowed: with it")
    from nest.planners.compare import compare as ask
    from nest.planners.compare import to_json

    with progress(quiet):
        entries = ask(subject, cluster, wanted, bounds, asked,
                      {"mcmc": mcmc, "nest": {"threads": threads, "beyond_stack": beyond_stack}})
    title = f"{subject.name} on {cluster.name}, {cluster.size:,} devices"

    def draw() -> None:
        from nest.report.comparison_text import comparison_figure
        from nest.report.figure import save_figure

        if chart is not None:
            save_figure(chart, comparison_figure(entries, title))
        if page_file is not None:
            from nest.report.web.planners import comparison_document

            write_page(page_file, comparison_document(entries))

    def text() -> str:
        from nest.report.comparison_text import comparison_text

        return to_json(entries) if as_json else comparison_text(entries, title, **output.page())

    output.deliver(text, draw, quiet=quiet and not as_json)


def _links(text: str | None, cluster: Cluster) -> DirectLinks | None:
    """Direct links from text such as `leaf:4`; the level by its name or number."""
    if text is None:
        return None
    from nest.planners.reconfigurable import DirectLinks

    levels: dict[str, Any] = {str(n): n for n in range(len(cluster.levels))}
    levels |= {level.name: n for n, level in enumerate(cluster.levels)}
    name, _, degree = text.rpartition(":")
    if name not in levels or not (degree.isascii() and degree.isdigit()):
        raise InputError(f"links: got {text[:60]!r}; allowed: a level of {cluster.name} and a "
                         f"number of links, as {cluster.levels[-1].name}:4")
    found = DirectLinks(levels[name], int(degree))
    found.check(cluster)
    return found
