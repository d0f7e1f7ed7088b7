"""The figures of a plan that targets have settings for, by name.

Stages are alike in plans that a target runs (the rules of its stack see to that), so that figures
of a stage are those of the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

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
