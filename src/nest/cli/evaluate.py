"""`nest evaluate`: the price of exactly one configuration, or of an edited plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nest.cli import options
from nest.cli.output import say
from nest.errors import InputError
from nest.schedules.registry import SCHEDULES

if TYPE_CHECKING:
    from nest.evaluation.plans import Plan

DOES_NOT_FIT = 3
JOB_OPTIONS = ("global_batch", "seq_len", "precision", "optimizer", "memory_margin",
               "routing", "expert_imbalance", "expert_capacity", "expert_padding")


def evaluate(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL CLUSTER | PLAN.json",
                       help="Catalog names or files; CLUSTER may also be a graph "
                       "(docs/topologies.md). Or a plan file, as written or edited."),
    ] = None,
    *,
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
    configuration: Annotated[
        str | None,
        typer.Option("--configuration", metavar="FILE",
                     help="File with every stage; replaces degrees and even stages."),
    ] = None,
    tp: Annotated[int | None, options.number("Tensor-parallel degree; default 1.")] = None,
    pp: Annotated[int | None, options.number("Pipeline stages; default 1.")] = None,
    vpp: Annotated[
        int | None,
        options.number("Virtual stages per device; default 1, or what the schedule has."),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Layers of all chunks as Megatron-Core writes them: "
                     "'Et*3|(t*4|)*30t*3L'; default: even."),
    ] = None,
    first_stage_layers: Annotated[
        int | None, options.number("Transformer layers of the first stage, over all its chunks.")
    ] = None,
    last_stage_layers: Annotated[
        int | None, options.number("Transformer layers of the last stage; the other stages "
                                   "share the rest evenly.")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"{', '.join(SCHEDULES)}; default: 1f1b.")
    ] = None,
    group: Annotated[
        int | None, options.number("Consecutive micro-batches of a virtual stage; default pp.")
    ] = None,
    cp: Annotated[int | None, options.number("Context-parallel degree; default 1.")] = None,
    cp_comm: Annotated[
        str | None,
        typer.Option(metavar="NAME",
                     help="Exchange of keys and values in cp: p2p (ring, default), all_gather, a2a "
                     "or a2a+p2p."),
    ] = None,
    cp_a2a: Annotated[
        int | None, options.number("Ranks of cp that exchange by all-to-all in a2a+p2p.")
    ] = None,
    zero: Annotated[int | None, options.number("ZeRO stage, 0 (default) to 3.")] = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="NAME",
                     help="ZeRO shards over all replicas (dp, default) or within the block (dp_in, "
                     "HSDP)."),
    ] = None,
    micro_batch: Annotated[
        int | None, options.number("Samples per micro-batch of a replica.")
    ] = None,
    mbs: Annotated[
        int | None, options.number("Samples per micro-batch of a device; default 1.")
    ] = None,
    dp_in: Annotated[
        int | None, options.number("Data-parallel degree in a block; default: least for ep x etp.")
    ] = None,
    outer_dp: Annotated[
        int | None, options.number("Number of replicas; default: devices / (pp x tp x cp x dp_in).")
    ] = None,
    ep: Annotated[int | None, options.number("Expert-parallel degree; default 1.")] = None,
    etp: Annotated[
        int | None, options.number("Expert-tensor-parallel degree; default: tp.")
    ] = None,
    sp: Annotated[
        bool | None,
        typer.Option("--sp/--no-sp", help="Sequence parallelism; default: on if tp > 1."),
    ] = None,
    recompute: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Recompute: none (default), selective or full."),
    ] = None,
    recompute_modules: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Modules of selective recompute: core_attn, norm, "
                     "mlp_act, moe, mlp, mla_up_proj, shared_experts, joined by +; default: "
                     "core_attn, or what the stack has only together."),
    ] = None,
    recompute_layers: Annotated[
        int | None,
        options.number("Full recompute of only the first N layers of a stage; default: all."),
    ] = None,
    offload: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What is kept in host memory: none "
                     "(default), or such as optimizer:0.5+core_attn (docs/offloading.md)."),
    ] = None,
    as_json: options.Json = False,
    output: options.Output = None,
    ranks: options.Ranks = None,
    map_file: options.Map = None,
    quiet: options.Quiet = False,
) -> int:
    """Price one configuration, or a plan file.

    A configuration is given by degrees, with layers divided evenly among the stages or as --layout
    says, or by --configuration. A plan file is priced with the inputs that it contains, also after
    its stages were edited. Exit code 3 means that the plan does not fit; the report names every
    shortage.
    """
    from nest.cli.inputs import modules_from
    from nest.cli.present import check_map, check_target, present

    check_target(output)
    check_target(ranks)
    check_map(map_file)
    job_options = {"global_batch": global_batch, "seq_len": seq_len, "precision": precision,
                   "optimizer": optimizer, "memory_margin": memory_margin,
                   "routing": routing, "expert_imbalance": expert_imbalance,
                   "expert_capacity": expert_capacity,
                   "expert_padding": expert_padding, "stack": stack,
                   "job": job, "profile": profile, "as": as_type,
                   "devices": devices, "filling": filling, "device": device,
                   "without": without or None, "degrade": degrade or None}
    degrees = {"tp": tp, "pp": pp, "vpp": vpp, "layout": layout,
               "first_stage_layers": first_stage_layers, "last_stage_layers": last_stage_layers,
               "schedule": schedule, "group": group, "cp": cp, "cp_comm": cp_comm,
               "cp_a2a": cp_a2a, "zero": zero, "shard": shard, "micro_batch": micro_batch,
               "mbs": mbs,
               "dp_in": dp_in, "outer_dp": outer_dp, "ep": ep, "etp": etp, "sp": sp,
               "recompute": recompute, "recompute_modules": modules_from(recompute_modules),
               "recompute_layers": recompute_layers, "offload": offload}
    if len(names or ()) == 1 and profile is None:
        found = _from_plan_file((names or [""])[0], {
            **job_options, **degrees, "configuration": configuration})
    else:
        found = _from_options(names or [], configuration, job_options, degrees)
    present(found, as_json, output, quiet, ranks, map_file)
    if found.feasible:
        return 0
    if as_json or quiet:  # else the report starts with them
        say("nest: does not fit: " + "\n  ".join(found.problems))
    for file in filter(None, (output, ranks, map_file)):
        say(f"nest: {file} is not written, because the plan does not fit")
    return DOES_NOT_FIT


def _from_plan_file(path: str, given: dict[str, Any]) -> Plan:
    from nest.evaluation.plan_file import looks_like_file, reprice

    extra = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if not looks_like_file(path):
        raise InputError(f"arguments: got {path[:60]!r} alone, which is not a file; allowed: "
                         "MODEL CLUSTER, or PLAN.json as `nest plan -o` writes it")
    if extra:
        raise InputError(f"arguments: got {path} alone and {', '.join(extra)}; allowed: a plan "
                         "file alone (it holds model, cluster and job), or MODEL CLUSTER")
    plan, notes = reprice(path)
    for note in notes:
        say(f"nest: note: {note}")
    return plan


def _from_options(
    names: list[str], file: str | None, given: dict[str, Any], degrees: dict[str, Any]
) -> Plan:
    from nest.cli.inputs import job_from, subject_and_cluster
    from nest.cli.naming import COMMAND_LINE
    from nest.evaluation.evaluate import evaluate as price
    from nest.evaluation.even import even_configuration
    from nest.evaluation.problems import told
    from nest.inputs import load_configuration

    subject, cluster = subject_and_cluster(names, given["profile"], given["as"], **{
        name: given[name] for name in ("devices", "filling", "device", "without", "degrade")})
    job = job_from(given["job"], given["stack"], **{
        name: given[name] for name in JOB_OPTIONS})
    chosen = {name: value for name, value in degrees.items() if value is not None}
    if file is not None:
        if chosen:
            words = ", ".join(f"--{name.replace('_', '-')}" for name in chosen)
            raise InputError(f"arguments: got --configuration and {words}; allowed: one of them")
        with told(file):
            return price(subject, cluster, job, load_configuration(file))
    with told(COMMAND_LINE):
        configuration = even_configuration(subject, cluster, job, **chosen)
        if cluster.types:  # each replica takes its share of each type
            from nest.network.network import other_orders

            orders = other_orders(cluster, [configuration.outer_dp])
            cluster = next((order for order, count in orders if count), cluster)
        return price(subject, cluster, job, configuration)
