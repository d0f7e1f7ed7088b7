"""The configuration that plain degrees stand for: equal blocks, the same degrees on every stage.

:mod:`nest.evaluation.divisions` divides the layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nest.errors import InputError
from nest.evaluation.divisions import chunks_of_stages
from nest.inputs.arguments import need_word
from nest.inputs.choices import ChoiceName
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.inputs.job import Job
from nest.inputs.model import Model
from nest.inputs.profile import Profile
from nest.inputs.space import LARGEST, CpComm, Module, Recompute, Shard
from nest.model.legality import tp_problem
from nest.schedules.registry import SCHEDULES, Schedule
from nest.stacks import selective_modules

if TYPE_CHECKING:
    from nest.model import Chain


def even_configuration(
    model: Model | Profile | Chain,
    cluster: Cluster,
    job: Job,
    *,
    pp: int = 1,
    tp: int = 1,
    dp_in: int | None = None,
    outer_dp: int | None = None,
    micro_batch: int | None = None,
    mbs: int | None = None,
    sp: bool | None = None,
    cp: int = 1,
    cp_comm: CpComm = "p2p",
    cp_a2a: int = 1,
    ep: int = 1,
    etp: int | None = None,
    zero: int = 0,
    shard: Shard = "dp",
    recompute: Recompute = "none",
    recompute_modules: tuple[Module, ...] | None = None,
    recompute_layers: int | None = None,
    vpp: int | None = None,
    layout: str | None = None,
    first_stage_layers: int | None = None,
    last_stage_layers: int | None = None,
    schedule: Schedule | None = None,
    group: int | None = None,
    offload: str = "none",
    choices: Mapping[ChoiceName, str] | None = None,
) -> Configuration:
    """Build the configuration with the same degrees on every stage, by default with even cuts.

    Parameters
    ----------
    model, cluster, job : what is trained, where, how.
    pp, tp, cp, ep : degrees.
    dp_in : default: the smallest that gives a block room for ep x etp, which is 1 without experts.
    outer_dp : replicas; default: devices / (pp x tp x cp x dp_in), which must be a whole number.
    micro_batch : samples that a super-pipeline takes at once; default: mbs x dp_in.
    mbs : samples that a device takes at once, instead of micro_batch; default: 1.
    sp : sequence parallelism; default: where tp > 1.
    cp_comm : how cp exchanges keys and values.
    cp_a2a : ranks of cp that exchange by all-to-all in a2a+p2p.
    etp : default: tp.
    zero : ZeRO stage, 0 to 3.
    shard : ZeRO shards over all of dp, or dp_in only (HSDP).
    recompute : recompute policy.
    recompute_modules : of selective recompute; default: those of the stack where it has them only
        together, else core_attn.
    recompute_layers : full recompute of only this many first layers of a stage or chunk; default:
    all.
    vpp : virtual stages per device; default: as the layout or the schedule has them, else 1. Above
        1 the repeated layers divide evenly, at times with the head or both ends counted as layers.
    layout : Megatron-Core's text of all chunks, such as `Et*3|(t*4|)*30t*3L`.
    first_stage_layers, last_stage_layers : repeated layers of the first and of the last stage, over
        all their chunks; the other stages divide the rest evenly.
    schedule : default: 1f1b, interleaved where vpp is above 1.
    group : consecutive micro-batches of a virtual stage; default: pp.
    offload : what is kept in the memory of the hosts, such as `optimizer`.
    choices : values of the stack's choices, such as `cuda_graphs: layers`.

    Returns
    -------
    Configuration
        Replicas start devices // outer_dp apart. :func:`nest.evaluate` checks whether the
        configuration is legal and fits.

    Raises
    ------
    InputError
        A degree is not allowed, there are more stages than repeated layers, the layers cannot be
        divided as asked for, or the degrees do not divide the devices.
    """
    chain = _chain(model)
    if schedule is not None:
        need_word("schedule", schedule, SCHEDULES)
    degrees = {"pp": pp, "tp": tp, "cp": cp, "cp_a2a": cp_a2a, "ep": ep, "vpp": vpp, "dp_in": dp_in,
               "outer_dp": outer_dp, "etp": etp, "micro_batch": micro_batch, "mbs": mbs}
    _check_degrees(degrees)
    chunks = chunks_of_stages(
        chain, job, pp, vpp, schedule=schedule or "interleaved", layout=layout,
        first_stage_layers=first_stage_layers, last_stage_layers=last_stage_layers)
    given = ""
    if dp_in is None:
        experts = ep * (tp if etp is None else etp)
        dp_in = experts // math.gcd(experts, tp * cp)
        if ep > 1:
            usual = f"etp {tp}, by default tp" if etp is None else f"etp {etp}"
            given = f" (dp_in {dp_in}: room for ep {ep} x {usual})"
    if tp <= cluster.size and cluster.size % tp and (
            problem := tp_problem(chain, job, tp, tp > 1 if sp is None else sp, cp)):
        raise InputError(problem)  # no outer_dp mends it
    outer_dp = _replicas(cluster.size, pp, tp, cp, dp_in, outer_dp, given)
    if recompute == "selective" and recompute_modules is None:
        recompute_modules = selective_modules(job)
    if micro_batch is None:
        micro_batch = (1 if mbs is None else mbs) * dp_in
    optional = {name: value for name, value in (
        ("sp", sp), ("etp", etp), ("recompute_modules", recompute_modules),
        ("recompute_layers", recompute_layers)) if value is not None}
    block = tp * cp * dp_in
    stages = tuple(
        StageConfiguration.parse({
            "layers": (parts[0][0], parts[-1][1]), "chunks": parts,
            "devices": (s * block, (s + 1) * block), "dp_in": dp_in, "tp": tp, "cp": cp,
            "cp_comm": cp_comm, "cp_a2a": cp_a2a, "ep": ep, "zero": zero, "shard": shard,
            "recompute": recompute,
            **optional,
        }, "configuration")
        for s, parts in enumerate(chunks)
    )
    return Configuration.parse({
        "outer_dp": outer_dp, "micro_batch": micro_batch, "stages": stages,
        "stride": cluster.size // outer_dp, "vpp": len(chunks[0]),
        **({"schedule": schedule} if schedule else {}), "group": group,
        "offload": offload, "choices": choices or {},
    }, "configuration")


def _chain(model: Model | Profile | Chain) -> Chain:
    from nest.model import build_chain, profile_chain

    if isinstance(model, Model):
        return build_chain(model)
    return profile_chain(model) if isinstance(model, Profile) else model


def _check_degrees(degrees: dict[str, int | None]) -> None:
    found = [f"{name}: got {value}; allowed: 1 to {LARGEST}"
             for name, value in degrees.items() if value is not None and not 1 <= value <= LARGEST]
    if degrees["micro_batch"] is not None and degrees["mbs"] is not None:
        found.append(f"mbs: got {degrees['mbs']} and micro_batch {degrees['micro_batch']}; "
                     "allowed: one of them")
    if found:
        raise InputError("\n".join(found), tuple(found))


def _replicas(
    devices: int, pp: int, tp: int, cp: int, dp_in: int, outer_dp: int | None, given: str
) -> int:
    """Number of super-pipelines, checked against the devices; ``given``: why dp_in, if not given.
    """
    one = pp * tp * cp * dp_in
    context = f"cp {cp} x " if cp > 1 else ""
    product = f"pp {pp} x tp {tp} x {context}dp_in {dp_in} = {one}"
    if outer_dp is None:
        if one > devices:
            raise InputError(f"{product} devices are more than the cluster's {devices}"
                             f"{given}")
        if devices % one:
            raise InputError(f"{product}{given} does not divide the {devices} devices; give "
                             f"outer_dp to leave some unused, at most {devices // one}")
        return devices // one
    if one * outer_dp > devices:
        raise InputError(f"{product}, times outer_dp {outer_dp} = {one * outer_dp} devices, are "
                         f"more than the cluster's {devices}{given}")
    return outer_dp
