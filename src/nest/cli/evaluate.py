"""`nest evaluate`: the price of exactly one configuration, or of an edited plan."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from nest.cli import options
from nest.cli.options import COMMAND_LINE, number, text
from nest.cli.output import note, say
from nest.cli.present import PlanOutput
from nest.errors import InputError
from nest.schedules.registry import SCHEDULES

if TYPE_CHECKING:
    from nest.evaluation.plans import Plan

DOES_NOT_FIT = 3


@dataclass(frozen=True, kw_only=True)
class DegreeOptions:
    """One configuration with even stages, or with a layout."""

    tp: Annotated[int | None, number("Tensor-parallel degree; default 1.")] = None
    pp: Annotated[int | None, number("Pipeline stages; default 1.")] = None
    vpp: Annotated[int | None, number(
        "Virtual stages per device; default 1, or what the schedule has.")] = None
    layout: Annotated[str | None, text(
        "Layers of all chunks as Megatron-Core writes them: 'Et*3|(t*4|)*30t*3L'; default: even.",
        "TEXT")] = None
    first_stage_layers: Annotated[int | None, number(
        "Transformer layers of the first stage, over all its chunks.")] = None
    last_stage_layers: Annotated[int | None, number(
        "Transformer layers of the last stage; the other stages share the rest evenly.")] = None
    schedule: Annotated[str | None, text(
        f"{', '.join(SCHEDULES)}; default: 1f1b.", "NAME")] = None
    group: Annotated[int | None, number(
        "Consecutive micro-batches of a virtual stage; default pp.")] = None
    cp: Annotated[int | None, number("Context-parallel degree; default 1.")] = None
    cp_comm: Annotated[str | None, text(
        "Exchange of keys and values in cp: p2p (ring, default), all_gather, a2a or a2a+p2p.",
        "NAME")] = None
    cp_a2a: Annotated[int | None, number(
        "Ranks of cp that exchange by all-to-all in a2a+p2p.")] = None
    zero: Annotated[int | None, number("ZeRO stage, 0 (default) to 3.")] = None
    shard: Annotated[str | None, text(
        "ZeRO shards over all replicas (dp, default) or within the block (dp_in, HSDP).",
        "NAME")] = None
    micro_batch: Annotated[int | None, number("Samples per micro-batch of a replica.")] = None
    mbs: Annotated[int | None, number("Samples per micro-batch of a device; default 1.")] = None
    dp_in: Annotated[int | None, number(
        "Data-parallel degree in a block; default: least for ep x etp.")] = None
    outer_dp: Annotated[int | None, number(
        "Number of replicas; default: devices / (pp x tp x cp x dp_in).")] = None
    ep: Annotated[int | None, number("Expert-parallel degree; default 1.")] = None
    etp: Annotated[int | None, number("Expert-tensor-parallel degree; default: tp.")] = None
    sp: Annotated[bool | None, text(
        "Sequence parallelism; default: on if tp > 1.", None, "--sp/--no-sp")] = None
    recompute: Annotated[str | None, text(
        "Recompute: none (default), selective or full.", "NAME")] = None
    recompute_modules: Annotated[str | None, text(
        "Modules of selective recompute: core_attn, norm, mlp_act, moe, mlp, mla_up_proj, "
        "shared_experts, gdn_norm_out, qkv_linear, attn_proj, joined by +; default: core_attn, or "
        "what the stack has only together.",
        "NAMES")] = None
    recompute_layers: Annotated[int | None, number(
        "Full recompute of only the first N layers of a stage; default: all.")] = None
    offload: Annotated[str | None, text(
        "What is kept in host memory: none (default), or such as optimizer:0.5+core_attn "
        "(docs/offloading.md).", "TEXT")] = None
    cuda_graphs: Annotated[str | None, text(
        "CUDA graphs of: none, layers, step; default of this and the next seven: as the stack "
        "says.", "NAME")] = None
    dispatcher: Annotated[str | None, text(
        "How tokens reach experts: alltoall, allgather, deepep, hybridep.", "NAME")] = None
    fused_experts: Annotated[str | None, text(
        "Activation functions as part of experts' products: true or false.", "FLAG")] = None
    fp8_attention: Annotated[str | None, text(
        "Attention core in 8 bits: true or false.", "FLAG")] = None
    fp8_head: Annotated[str | None, text("Head in 8 bits: true or false.", "FLAG")] = None
    fp8_gather: Annotated[str | None, text(
        "ZeRO gathers parameters in 8 bits: true or false.", "FLAG")] = None
    tp_overlap: Annotated[str | None, text(
        "Tensor-parallel traffic overlaps with products: true or false.", "FLAG")] = None
    loss: Annotated[str | None, text(
        "How the loss runs: whole, or with the head in chunks, as liger, or as cut "
        "cross-entropy.", "NAME")] = None


def evaluate(
    names: Annotated[list[str] | None, options.argument(
        "Catalog names or files; CLUSTER may also be a graph (docs/topologies.md). Or a plan file, "
        "as written or edited; or a document of `nest capture` as MODEL.",
        "MODEL CLUSTER | PLAN.json")] = None,
    *,
    problem: options.ProblemOptions,
    configuration: Annotated[str | None, text(
        "File with every stage; replaces degrees and even stages.", "FILE")] = None,
    degrees: DegreeOptions,
    shown: PlanOutput,
) -> int:
    """Price one configuration, or a plan file.

    A configuration is given by degrees, with layers divided evenly among the stages or as --layout
    says, or by --configuration. A plan file is priced with the inputs that it contains, also after
    its stages were edited. Exit code 3 means that the plan does not fit; the report names every
    shortage.
    """
    shown.check()
    given = options.given(degrees)
    if degrees.recompute_modules is not None:
        given["recompute_modules"] = options.modules_from(degrees.recompute_modules)
    if len(names or ()) == 1 and problem.profile is None:
        more = [*options.given(problem), *given, *["configuration"] * (configuration is not None)]
        found = _from_plan_file((names or [""])[0], more)
    elif launch := _captured(names or []):
        more = [*options.given(problem), *given]
        found = _from_capture(*launch, more + ["configuration"] * (configuration is not None))
    else:
        found = _from_options(names or [], problem, configuration, given)
    shown.present(found)
    if found.feasible:
        return 0
    if shown.as_json or shown.quiet:  # else the report starts with them
        say("nest: does not fit: " + "\n  ".join(found.problems))
    for file in filter(None, (shown.output, shown.ranks, shown.map_file)):
        say(f"nest: {file} is not written, because the plan does not fit")
    return DOES_NOT_FIT


def _from_plan_file(path: str, more: list[str]) -> Plan:
    from nest.evaluation.plan_file import looks_like_file, reprice

    if not looks_like_file(path):
        raise InputError(f"arguments: got {path[:60]!r} alone, which is not a file; allowed: "
                         "MODEL CLUSTER, or PLAN.json as `nest plan -o` writes it")
    if more:
        raise InputError(f"arguments: got {path} alone and {options.spelled(more)}; allowed: a "
                         "plan file alone (it holds model, cluster and job), or MODEL CLUSTER")
    plan, notes = reprice(path)
    note(notes)
    return plan


def _captured(names: list[str]) -> tuple[str, str] | None:
    """A document of `nest capture` and a cluster; None: the names are others."""
    from nest.frameworks.capture.document import is_capture
    from nest.inputs.files import read_text

    if len(names) == 2 and names[0].endswith(".json") and os.path.isfile(names[0]) and is_capture(
            read_text(names[0])):
        return names[0], names[1]
    return None


def _from_capture(path: str, cluster: str, more: list[str]) -> Plan:
    from nest.evaluation.evaluate import evaluate as price
    from nest.frameworks.reader import read
    from nest.network.network import load_network

    if more:
        raise InputError(f"arguments: got {path} and {options.spelled(more)}; allowed: the "
                         "document alone (it has the job), or what `nest read` makes of it")
    try:
        found = read(path)
    except InputError as error:
        raise InputError(f"{error}; `nest read {path}` has these options, and writes files that "
                         "`nest evaluate` takes") from None
    note(found.notes)
    where = load_network(cluster)
    where = where if where.size == found.devices else load_network(cluster, devices=found.devices)
    return price(found.model, where, found.job, found.configuration)


def _from_options(
    names: list[str], problem: options.ProblemOptions, file: str | None, degrees: dict[str, Any]
) -> Plan:
    from nest.evaluation.evaluate import evaluate as price
    from nest.evaluation.even import even_configuration
    from nest.evaluation.problems import told
    from nest.inputs import load_configuration
    from nest.inputs.choices import CHOICES

    subject, cluster = problem.subject_and_cluster(names)
    job = problem.described_job(cluster)
    choices = {name: degrees.pop(name) for name in CHOICES if name in degrees}
    if choices:
        degrees["choices"] = choices
    if file is not None:
        if degrees:
            raise InputError(f"arguments: got --configuration and {options.spelled(degrees)}; "
                             "allowed: one of them")
        with told(file):
            return price(subject, cluster, job, load_configuration(file))
    with told(COMMAND_LINE):
        configuration = even_configuration(subject, cluster, job, **degrees)
        if cluster.types:  # each replica takes its share of each type
            from nest.network.network import other_orders

            orders = other_orders(cluster, [configuration.outer_dp])
            cluster = next((order for order, count in orders if count), cluster)
        return price(subject, cluster, job, configuration)
