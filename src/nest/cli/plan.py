"""`nest plan`: the fastest plan that fits."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated, Any

import typer

from nest.cli import options
from nest.cli.follow import Follow
from nest.errors import InputError

BESIDE_A_QUESTION = {"names", "threads", "as_json", "output", "ranks", "map_file", "quiet"}
"""Arguments that `nest plan -` takes; all else is part of the question."""


def plan(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL CLUSTER",
                       help="Catalog names (`nest list models`, `nest list clusters`) or files; "
                       "CLUSTER may also be a graph (docs/topologies.md): a file, or a text such "
                       "as fat-tree:k=8. Or - alone: a question as JSON on stdin "
                       "(docs/planner.md)."),
    ] = None,
    *,
    as_type: options.AsType = None,
    devices: options.Devices = None,
    filling: options.Filling = None,
    device: options.DeviceName = None,
    without: options.Without = None,
    degrade: options.Degrade = None,
    global_batch: options.GlobalBatches = None,
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
    offload: options.Offloads = None,
    top: Annotated[
        int | None,
        options.number("Show the N best plans that differ in outer_dp, micro_batch, pp, vpp or "
                       "schedule; 1 (default) to 100."),
    ] = None,
    time_limit: options.TimeLimit = None,
    beyond_stack: options.BeyondStack = False,
    try_fillings: Annotated[
        bool,
        typer.Option("--try-fillings", help="If groups are partly used, also try other numbers of "
                     "devices per group for a faster plan."),
    ] = False,
    keep_order: Annotated[
        bool,
        typer.Option("--keep-order", help="Keep the device order of a graph; do not try other "
                     "orders for a faster plan."),
    ] = False,
    threads: options.Threads = None,
    as_json: options.Json = False,
    output: options.Output = None,
    ranks: options.Ranks = None,
    map_file: options.Map = None,
    quiet: options.Quiet = False,
) -> None:
    """Find the fastest plan that fits.

    Every plan that the job's stack can run is searched; a SET bounds one dimension of the search.
    Ctrl-C ends the search with the best plan so far and its gap.
    """
    given = {name for name, value in locals().items() if value not in (None, False)}
    from nest.cli.inputs import check_counts, job_from, space_from, subject_and_cluster
    from nest.cli.present import check_map, check_target, present, progress

    check_target(output)
    check_target(ranks)
    check_map(map_file)
    check_counts(threads=threads, top=top)
    if names == ["-"]:
        plan_question(given, threads, output, quiet, ranks, map_file)
        return
    subject, cluster = subject_and_cluster(
        names or (), profile, as_type, devices=devices, filling=filling, device=device,
        without=without or None, degrade=degrade or None)
    batch: Any = global_batch  # as `options` reads it
    several = isinstance(batch, range)
    if several and not batch:
        raise InputError(f"global_batch: got {batch.start}..{batch.stop - 1}; allowed: from the "
                         "smaller to the larger number, such as 4000..4200")
    wanted = job_from(job, stack, global_batch=batch[0] if several else batch,
                      seq_len=seq_len, precision=precision,
                      optimizer=optimizer, memory_margin=memory_margin,
                      routing=routing, expert_imbalance=expert_imbalance,
                      expert_capacity=expert_capacity, expert_padding=expert_padding)
    bounds = space_from(
        space, tp=tp, pp=pp, cp=cp, cp_comm=cp_comm, cp_a2a=cp_a2a, zero=zero,
        shard=shard,
        recompute=recompute, recompute_modules=recompute_modules,
        recompute_layers=recompute_layers, sp=sp, outer_dp=outer_dp, dp_in=dp_in, ep=ep,
        etp=etp, vpp=vpp, group=group, micro_batch=micro_batch, mbs=mbs, schedule=schedule,
        offload=offload,
    )
    check_map(map_file, cluster)
    from nest import api

    what = f"{subject.name[:30]} on {cluster.size:,} devices"
    with progress(quiet), Follow(what, quiet) as follow:
        ask = (partial(api.plan_batches, batches=batch) if several
               else partial(api.plan, near_batches=True))
        found = ask(subject, cluster, wanted, space=bounds, threads=threads, top=top or 1,
                    time_limit=time_limit, reorder=not keep_order, fillings=try_fillings,
                    beyond_stack=beyond_stack, progress=follow)
    present(found, as_json, output, quiet, ranks, map_file)
    if follow.interrupted:
        raise KeyboardInterrupt


def plan_question(
    given: set[str], threads: int | None, output: str | None, quiet: bool, ranks: str | None,
    map_file: str | None,
) -> None:
    """Read a question from stdin, and print its plan as JSON.

    Raises
    ------
    InputError : no question, or options that are part of it.
    """
    from nest.api import Planner
    from nest.cli.output import say
    from nest.cli.present import check_map, present, progress
    from nest.inputs.files import LARGEST
    from nest.questions import read_question

    if more := sorted(given - BESIDE_A_QUESTION):
        names = ", ".join(f"--{name.removesuffix('_type').replace('_', '-')}" for name in more)
        raise InputError(f"arguments: got - with {names}; allowed: the question says it")
    text = b"" if sys.stdin is None else sys.stdin.buffer.read(LARGEST + 1)
    question, notes = read_question(text, "standard input")
    for note in notes:
        say(f"nest: {note}")
    check_map(map_file, question.cluster)
    what = f"{question.subject.name[:30]} on {question.cluster.size:,} devices"
    with progress(quiet), Follow(what, quiet) as follow:
        found = Planner(0).answer(question, threads, follow)
    present(found, True, output, quiet, ranks, map_file)
    if follow.interrupted:
        raise KeyboardInterrupt
