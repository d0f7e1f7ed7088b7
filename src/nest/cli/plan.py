"""`nest plan`: the fastest plan that fits."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from nest.cli import options
from nest.cli.output import emit, say
from nest.errors import InfeasibleError, InputError, NoPlanError

MOST_THREADS = 1024


def _dimension(text: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(metavar="SET", help=text)
    return found


def plan(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL CLUSTER",
                       help="Catalog names (`nest list models`, `nest list clusters`) or files."),
    ] = None,
    devices: options.Devices = None,
    global_batch: options.GlobalBatch = None,
    seq_len: options.SeqLen = None,
    precision: options.Precision = None,
    optimizer: options.Optimizer = None,
    stack: options.StackName = None,
    job: options.JobFile = None,
    profile: options.ProfileFile = None,
    space: Annotated[
        str | None,
        typer.Option("--space", metavar="FILE",
                     help="Search space as a file; options given win over it."),
    ] = None,
    tp: Annotated[str | None, _dimension("Tensor-parallel degrees, as 8, 1,2,4 or 1..16.")] = None,
    pp: Annotated[str | None, _dimension("Numbers of pipeline stages.")] = None,
    zero: Annotated[str | None, _dimension("ZeRO stages, of 0 to 3.")] = None,
    recompute: Annotated[str | None, _dimension("Of none, selective, full.")] = None,
    sp: Annotated[str | None, _dimension("Sequence parallelism: true, false or both.")] = None,
    outer_dp: Annotated[str | None, _dimension("Numbers of replicas.")] = None,
    dp_in: Annotated[str | None, _dimension("Data-parallel degrees in a block.")] = None,
    ep: Annotated[str | None, _dimension("Expert-parallel degrees.")] = None,
    etp: Annotated[str | None, _dimension("Expert-tensor-parallel degrees.")] = None,
    cp: Annotated[str | None, _dimension("Context-parallel degrees; only 1.")] = None,
    vpp: Annotated[str | None, _dimension("Virtual stages a device; only 1.")] = None,
    micro_batch: Annotated[
        str | None, _dimension("Samples that a super-pipeline takes at once.")
    ] = None,
    mbs: Annotated[str | None, _dimension("Samples that a device takes at once.")] = None,
    schedule: Annotated[str | None, _dimension("Pipeline schedule; only 1f1b.")] = None,
    threads: Annotated[
        int | None, options.number("Outer choices solved at once; does not change the plan.")
    ] = None,
    as_json: options.Json = False,
    output: options.Output = None,
    quiet: options.Quiet = False,
) -> None:
    """Find the fastest plan that fits, over everything legal or over the SETs given."""
    from nest.cli.inputs import job_from, space_from, subject_and_cluster
    from nest.cli.present import check_target, present

    check_target(output)
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise InputError(f"threads: got {threads}; allowed: 1 to {MOST_THREADS}")
    subject, cluster = subject_and_cluster(names or (), profile, devices)
    wanted = job_from(job, stack, global_batch=global_batch, seq_len=seq_len, precision=precision,
                      optimizer=optimizer)
    bounds = space_from(
        space, tp=tp, pp=pp, zero=zero, recompute=recompute, sp=sp, outer_dp=outer_dp,
        dp_in=dp_in, ep=ep, etp=etp, cp=cp, vpp=vpp, micro_batch=micro_batch, mbs=mbs,
        schedule=schedule,
    )
    from nest import api, compiled

    before = compiled.announce
    compiled.announce = (lambda text: None) if quiet else (lambda text: say(f"nest: {text}"))
    try:
        found = api.plan(subject, cluster, wanted, bounds, threads=threads)
    except NoPlanError as error:
        if as_json:
            emit(_no_plan(error))
        raise
    finally:
        compiled.announce = before
    present(found, as_json, output, quiet)


def _no_plan(error: NoPlanError) -> str:
    """The document for programs when there is no plan."""
    kind = "infeasible" if isinstance(error, InfeasibleError) else "limit"
    document = {"schema": "nest.error/1", "error": kind, "message": str(error)}
    nearest = getattr(error, "nearest", None)
    if nearest is not None:
        document["nearest"] = nearest
    return json.dumps(document, indent=2, default=str)
