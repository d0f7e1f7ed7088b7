"""The figures of a plan that targets have settings for, by name, and a configuration of these.

Stages are alike in plans that a target runs (the rules of its stack see to that), so that figures
of a stage are those of the first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from nest.errors import InputError
from nest.frameworks.hosts import MOST, Placed, placed
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
from nest.inputs.model import Model
from nest.inputs.offload import Offload

Figure = int | float | str | bool | None | tuple[str, ...]
Figures = Mapping[str, Figure]

_MODEL = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "gated", "bias",
          "qkv_bias", "qk_norm", "tied_embeddings", "norm", "positions", "rotary", "mtp_layers")
_MOE = ("experts", "top_k", "ffn", "shared_ffn", "first_dense", "every", "groups", "group_limit")
_MLA = ("q_rank", "kv_rank", "nope_dim", "rope_dim", "value_dim")


def figures(job: Job, way: Configuration) -> Figures:
    """Figures of a job and a configuration, without those of the model.

    Returns
    -------
    Degrees, batches in samples, and words of `nest.inputs`:

    - ``dp``: data parallel degree, over all replicas; ``replicas`` x ``shards``: copies of what
      ZeRO shards, and the ranks that a copy is sharded over.
    - ``micro_batch``: samples that a data-parallel rank takes at once; ``micro_batches``: of a
      step; ``local_batch``: samples between two passes of the optimizer's loop, all of a step with
      a pipeline.
    - ``offload_optimizer``: share of the optimizer's states on the hosts.
    - the other names are those of fields of `StageConfiguration`, `Configuration` and `Job`.
    """
    stage = way.stages[0]
    dp = way.outer_dp * stage.dp_in
    replicas = dp if stage.zero == 0 else way.outer_dp if stage.shard == "dp_in" else 1
    micro_batch = way.micro_batch // stage.dp_in
    micro_batches = job.global_batch // (way.outer_dp * way.micro_batch)
    return MappingProxyType({
        "dp": dp, "outer_dp": way.outer_dp, "dp_in": stage.dp_in, "tp": stage.tp, "sp": stage.sp,
        "cp": stage.cp, "cp_comm": stage.cp_comm, "cp_a2a": stage.cp_a2a, "ep": stage.ep,
        "etp": stage.etp, "pp": way.pp, "vpp": way.vpp, "schedule": way.schedule,
        "group": way.group, "zero": stage.zero,
        "shard": stage.shard, "replicas": replicas, "shards": dp // replicas,
        "micro_batch": micro_batch, "micro_batches": micro_batches,
        "local_batch": micro_batch * (micro_batches if way.pp > 1 else 1),
        "global_batch": job.global_batch, "seq_len": job.seq_len, "precision": job.precision,
        "gradient_dtype": job.gradient_dtype, "optimizer": job.optimizer,
        "recompute": stage.recompute, "recompute_modules": stage.recompute_modules,
        "recompute_layers": stage.recompute_layers,
        "offload_optimizer": Offload.of(way.offload).optimizer})


def model_figures(model: Model) -> Figures:
    """Figures of a model: its fields behind ``model.``, those of its parts ``moe.`` and ``mla.``.

    What a model does not have is None.
    """
    parts = (("model", model, _MODEL), ("moe", model.moe, _MOE), ("mla", model.mla, _MLA))
    return MappingProxyType({
        f"{part}.{name}": None if fields is None else getattr(fields, name)
        for part, fields, names in parts for name in names})


Span = tuple[int, int]


class Division(NamedTuple):
    """How a job divides its model, the same on every stage."""

    chunks: list[tuple[Span, ...]]
    """Layers [i, j) of each chunk of each stage."""
    dp: int
    micro_batch: int
    """Samples that a data-parallel rank takes at once."""
    tp: int = 1
    sp: bool = False
    cp: int = 1
    cp_comm: str = "p2p"
    cp_a2a: int = 1
    ep: int = 1
    etp: int = 1
    zero: int = 0
    replicas: int | None = None
    """Copies of what ZeRO shards; None: it is sharded over all data-parallel ranks."""
    recompute: str = "none"
    modules: tuple[str, ...] = ()
    """Of selective recompute."""
    recompute_layers: int | None = None
    schedule: str | None = None
    group: int | None = None
    offload: str = "none"


def configuration(
    given: Division, places: Placed | None, where: str, notes: list[str]
) -> dict[str, Any]:
    """Fields of the configuration.

    Parameters
    ----------
    places : device of each rank; None: ranks are numbered as the devices are.
    notes : gets what was assumed.

    Raises
    ------
    InputError : degrees that do not fit together, or to the places.
    """
    pp, dp, inner = len(given.chunks), given.dp, given.tp * given.cp
    world = pp * dp * inner
    if world > MOST:
        raise InputError(f"{where}: got degrees of {world:.3g} devices; allowed: {MOST}")
    if places is not None and len(places) != world:
        raise InputError(f"{where}: the degrees take {world} devices, and the launch starts "
                         f"{len(places)}")
    if given.replicas is not None and dp % given.replicas:
        raise InputError(f"{where}: got {given.replicas} replicas; allowed: a divisor of the data "
                         f"parallel degree {dp}")
    try:
        outer, stride = placed(
            range(world) if places is None else places, dp, given.tp, pp, given.cp,
            experts=given.ep * given.etp, replicas=given.replicas)
    except InputError:
        if places is not None or given.replicas is None:
            raise
        notes.append("ranks of a pipeline are priced replica by replica")
        outer, stride = given.replicas, pp * dp // given.replicas * inner
    return fields(given, outer, stride, where)


def fields(given: Division, outer: int, stride: int | None, where: str) -> dict[str, Any]:
    """Fields of a configuration of so many replicas, ``stride`` devices from one to the next; None:
    one behind the other.

    Raises
    ------
    InputError : they are none of a configuration.
    """
    dp_in = given.dp // outer
    block = dp_in * given.tp * given.cp
    stage: dict[str, Any] = {
        "dp_in": dp_in, "tp": given.tp, "sp": given.sp and given.tp > 1, "cp": given.cp,
        "cp_comm": given.cp_comm, **({"cp_a2a": given.cp_a2a} if given.cp_a2a > 1 else {}),
        "ep": given.ep, "etp": given.etp, "zero": given.zero,
        "shard": "dp" if given.replicas is None else "dp_in", "recompute": given.recompute,
        **({"recompute_modules": [*given.modules]} if given.recompute == "selective" else {}),
        **({"recompute_layers": given.recompute_layers} if given.recompute_layers else {})}
    found = {
        "outer_dp": outer, "micro_batch": given.micro_batch * dp_in, "stages": [{
            "layers": [parts[0][0], parts[-1][1]], "devices": [n * block, (n + 1) * block],
            "chunks": [list(each) for each in parts], **stage}
            for n, parts in enumerate(given.chunks)],
        "stride": stride or len(given.chunks) * block, "vpp": len(given.chunks[0]),
        "schedule": given.schedule, "group": given.group, "offload": given.offload}
    found = {name: value for name, value in found.items() if value is not None}
    Configuration.parse(found, where)
    return found


def exchange(f: Mapping[str, Any], cp: int, sizes: str) -> dict[str, Any]:
    """How cp exchanges by the figures of a setting of Megatron-Core and of its ``sizes``.

    Raises
    ------
    InputError : sizes that are missing, or do not fit the degree.
    """
    if cp == 1:
        return {"cp_comm": "p2p"}
    comm = f.get("cp_comm") or "p2p"
    if comm != "a2a+p2p":
        return {"cp_comm": comm}
    levels = [int(one) for one in f.get("cp_levels") or () if str(one).isdecimal()]
    if len(levels) != 2 or math.prod(levels) != cp:
        raise InputError(f"{sizes}: got {f.get('cp_levels')}; allowed: two sizes, of the "
                         f"all-to-all and of the ring, whose product is cp {cp}")
    if 1 in levels:  # Transformer Engine takes the other form then
        return {"cp_comm": "p2p" if levels[0] == 1 else "a2a"}
    return {"cp_comm": comm, "cp_a2a": levels[0]}


def job(
    global_batch: int, seq_len: int, precision: str, optimizer: str, stack: str,
    changes: Mapping[str, Any],
) -> dict[str, Any]:
    """Fields of a job; ``changes``: what its files say otherwise than the stack."""
    return {"global_batch": global_batch, "seq_len": seq_len, "precision": precision,
            "optimizer": optimizer, "stack": {"base": stack, **changes} if changes else stack}
