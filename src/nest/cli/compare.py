"""`nest compare`: NEST and other planners on the same question, priced in the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nest.cli import options, output
from nest.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nest.inputs import Cluster
    from nest.planners.reconfigurable import DirectLinks


def compare(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL CLUSTER",
                       help="Catalog names (`nest list models`, `nest list clusters`) or files."),
    ] = None,
    *,
    planners: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="all (default), or some of nest, manual, zero, mcmc, "
                     "alpa, phaze, piper, exhaustive, joined by commas; or a planner of "
                     "another package (docs/planners.md)."),
    ] = None,
    as_type: options.AsType = None,
    devices: options.Devices = None,
    filling: options.Filling = None,
    device: options.DeviceName = None,
    without: options.Without = None,
    degrade: options.Degrade = None,
    global_batch: options.GlobalBatch = None,
    seq_len: options.SeqLen = None,
    precision: options.Precision = None,
    optimizer: options.Optimizer = None,
    memory_margin: options.MemoryMargin = None,
    routing: options.Routing = None,
    expert_imbalance: options.ExpertImbalance = None,
    expert_capacity: options.ExpertCapacity = None,
    expert_padding: options.ExpertPadding = None,
    stack: options.StackName = None,
    job: options.JobFile = None,
    profile: options.ProfileFile = None,
    space: options.SpaceFile = None,
    tp: options.Tp = None,
    pp: options.Pp = None,
    cp: options.Cp = None,
    cp_comm: options.CpComm = None,
    cp_a2a: options.CpA2a = None,
    zero: options.Zero = None,
    shard: options.Shard = None,
    recompute: options.Recompute = None,
    recompute_modules: options.RecomputeModules = None,
    recompute_layers: options.RecomputeLayers = None,
    sp: options.Sp = None,
    outer_dp: options.OuterDp = None,
    dp_in: options.DpIn = None,
    ep: options.Ep = None,
    etp: options.Etp = None,
    vpp: options.Vpp = None,
    group: options.Group = None,
    micro_batch: options.MicroBatch = None,
    mbs: options.Mbs = None,
    schedule: options.Schedules = None,
    beyond_stack: options.BeyondStack = False,
    seed: Annotated[int | None, options.number("Seed of mcmc; default 0.")] = None,
    proposals: Annotated[
        int | None, options.number("Strategies that mcmc tries, up to 1,000,000; default 4000.")
    ] = None,
    links: Annotated[
        str | None,
        typer.Option(metavar="LEVEL:N",
                     help="For mcmc: at this level an optical switch sets N direct links "
                     "of each group; they are chosen together with the strategy."),
    ] = None,
    threads: options.Threads = None,
    chart: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Also draw the throughputs as bars, as .png or .svg."),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare the plans of NEST and other planners.

    The SETs bound all planners, and all plans are priced in the same way. NEST searches what the
    job's stack can run, the others what their methods do; the table says whether the stack can run
    what they chose. A plan that does not fit is shown with the reason.
    """
    from nest.cli.inputs import check_counts, job_from, space_from, subject_and_cluster
    from nest.cli.present import check_target, progress
    from nest.planners import registered
    from nest.report.figure import check_picture

    check_picture("chart", chart)
    check_target(chart)
    check_counts(threads=threads, proposals=proposals)
    asked = chosen("planners", planners, registered())
    subject, cluster = subject_and_cluster(
        names or (), profile, as_type, devices=devices, filling=filling, device=device,
        without=without or None, degrade=degrade or None)
    wanted = job_from(job, stack, global_batch=global_batch, seq_len=seq_len, precision=precision,
                      optimizer=optimizer, memory_margin=memory_margin,
                      routing=routing, expert_imbalance=expert_imbalance,
                      expert_capacity=expert_capacity, expert_padding=expert_padding)
    bounds = space_from(
        space, tp=tp, pp=pp, cp=cp, cp_comm=cp_comm, cp_a2a=cp_a2a, zero=zero, shard=shard,
        recompute=recompute,
        recompute_modules=recompute_modules, recompute_layers=recompute_layers, sp=sp,
        outer_dp=outer_dp, dp_in=dp_in, ep=ep, etp=etp, vpp=vpp, group=group,
        micro_batch=micro_batch, mbs=mbs, schedule=schedule,
    )
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
        from nest.report.comparison_chart import comparison_figure
        from nest.report.figure import save_figure

        if chart is not None:
            save_figure(chart, comparison_figure(entries, title))

    def text() -> str:
        from nest.report.comparison_text import comparison_text

        return to_json(entries) if as_json else comparison_text(entries, title, **output.page())

    output.deliver(text, draw, quiet=quiet and not as_json)


def chosen(option: str, text: str | None, known: Iterable[str]) -> list[str]:
    """Names joined by commas, each once; None or `all`: all known names.

    Raises
    ------
    InputError : a name is not known.
    """
    names = list(known)
    if text is None or text.strip() == "all":
        return names
    found = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in found:
        if name not in names:
            raise InputError(f"{option}: got {name[:60]!r}; {did_you_mean(name, names)}allowed: "
                             f"all, or some of {', '.join(names)}")
    return found


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
