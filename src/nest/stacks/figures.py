"""The figures of a configuration that rules name; meanings in ``FIGURES``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from nest.inputs.configuration import Configuration, StageConfiguration
from nest.inputs.job import Job
from nest.inputs.offload import CHECKPOINTS, Offload
from nest.inputs.trainable import PACKED, Trainable
from nest.model import Chain
from nest.model.schedules import group_of, missing
from nest.schedules.registry import position

Value = int | str | frozenset[str] | tuple[str, ...]
Figures = Mapping[str, Value]


def stage_figures(stage: StageConfiguration, micro_batch: int) -> Figures:
    """Figures that each stage has of its own."""
    return {
        "mbs": micro_batch // stage.dp_in,
        "block": stage.devices[1] - stage.devices[0], "dp_in": stage.dp_in, "tp": stage.tp,
        "sp": _yes(stage.sp), "cp": stage.cp, "cp_comm": stage.cp_comm, "ep": stage.ep,
        "etp": stage.etp, "expert_ranks": stage.ep * stage.etp,
        "model_ranks": stage.tp * stage.cp, "zero": stage.zero,
        "shard": stage.shard, "recompute": stage.recompute,
        "recompute_modules": stage.recompute_modules,
        "module_set": "+".join(stage.recompute_modules),
        "recompute_layers": stage.recompute_layers or 0,
    }


def plan_figures(chain: Chain, job: Job, plan: Configuration) -> Figures:
    """Figures of the whole configuration, of its model and of its job."""
    m = job.global_batch // (plan.outer_dp * plan.micro_batch)
    chunks = chunks_of(chain, plan)
    return {
        "pp": plan.pp, "vpp": plan.vpp, "schedule": plan.schedule, "micro_batches": m,
        "rounds": max(1, m // plan.pp), "round": m // max(1, m // plan.pp),
        "group": group_of(plan), "missing": missing(plan, m), "outer_dp": plan.outer_dp,
        "gap": plan.stride - plan.stages[-1].devices[1] if plan.outer_dp > 1 else 0,
        "cuts": cut_forms(layer_counts(chain, chunks), [len(chunk) for chunk in chunks]),
        "mtp_chunks": _holding(chain, chunks, "mtp"),
        "misplaced": _misplaced(chunks, plan.pp),
        "vision_chunks": _holding(chain, chunks, "vision"),
        "empty_chunks": sum(not chunk for chunk in chunks),
        **model_figures(chain, job), **offload_figures(plan.offload),
    }


def offload_figures(text: str) -> Figures:
    """Figures of what is kept in the memory of the hosts."""
    found = Offload.of(text)
    return {"offload_optimizer": math.ceil(100 * found.optimizer), "offload_layers": found.layers,
            "offload_modules": (*found.modules, *[CHECKPOINTS] * found.checkpoints) or ("none",)}


def model_figures(chain: Chain, job: Job) -> Figures:
    """Figures of the model and of the job, which all configurations have."""
    model, experts = chain.model, chain.experts is not None
    return {
        "precision": job.precision, "optimizer": job.optimizer,
        "cuda_graphs": job.stack.cuda_graphs, "loss": job.stack.loss,
        **{name: _yes(getattr(job.stack, name)) for name in (
            "fp8_attention", "fp8_head", "fp8_gather")},
        "fused_experts": _yes(experts and job.stack.fused_experts),
        "kind": "profile" if model is None else model.kind,
        "dispatcher": job.stack.dispatcher if experts else "none",
        "capacity": job.capacity if experts else "none",
        "experts": _yes(experts),
        "mla": _yes(model is not None and model.mla is not None),
        "recurrence": "none" if model is None or model.recurrence is None
        else model.recurrence.form,
        "window": _yes(any(op.window is not None and not op.chunked
                           for kind in chain.kinds for op in kind.operators)),
        "sinks": _yes(model is not None and model.sinks),
        "vision": _yes(model is not None and model.vision is not None),
        "tied": _yes(model is not None and model.tied_embeddings),
        "kv_heads": 0 if model is None else model.kv_heads,
        "samples": "none" if job.lengths is None else job.packing,
        **_trained(None if model is None else model.trainable),
    }


def _trained(trainable: Trainable | None) -> Figures:
    """Figures of what is trained."""
    if trainable is None or trainable.lora is None:
        return {"trains": "all" if trainable is None else "parts", "lora_rank": 0}
    packed = trainable.frozen_precision in PACKED
    return {"trains": "qlora" if packed else "lora", "lora_rank": trainable.lora.rank}


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def chunks_of(chain: Chain, plan: Configuration) -> list[list[str]]:
    """Names of the layers of each chunk, in the order in which a micro-batch passes them."""
    order = range(len(chain)) if plan.order is None else plan.order
    spans = {position(plan.schedule, plan.pp, s, n, plan.vpp): chunk
             for s, stage in enumerate(plan.stages) for n, chunk in enumerate(stage.chunks)}
    return [[chain.kinds[chain.order[layer]].name for layer in order[first:end]]
            for _, (first, end) in sorted(spans.items())]


def layer_counts(chain: Chain, chunks: Iterable[Sequence[str]]) -> list[int]:
    """Transformer layers of each chunk; of a profile, layers that repeat."""
    first, end = chain.body
    body = {chain.kinds[chain.order[layer]].name for layer in range(first, end)}
    return [sum(name in body for name in chunk) for chunk in chunks]


def cut_forms(layers: Sequence[int], whole: Sequence[int]) -> frozenset[str]:
    """Forms of ``CUTS`` that a division has.

    Parameters
    ----------
    layers : transformer layers of each chunk.
    whole : all layers of each chunk.
    """
    inner = layers[1:-1] if len(layers) > 2 else layers[:1]
    found = {"free": True, "even": len(set(layers)) == 1, "front": _remainder(layers),
             "whole": _remainder(whole), "back": _remainder(layers[::-1]),
             "ends": len(set(inner)) == 1}
    return frozenset(name for name, holds in found.items() if holds)


def _remainder(sizes: Sequence[int]) -> bool:
    """Whether the first sizes are one larger than the others, or all are equal; none is 0."""
    return 0 < sizes[-1] >= sizes[0] - 1 and all(a >= b for a, b in pairwise(sizes))


def _misplaced(chunks: Sequence[Sequence[str]], pp: int) -> int:
    early = [name for chunk in chunks[: len(chunks) - pp] for name in chunk]
    return (not chunks[0]) + (not chunks[-1]) + sum(name.startswith("mtp") for name in early)


def _holding(chain: Chain, chunks: Iterable[Sequence[str]], start: str) -> int:
    return sum(any(name.startswith(start) for name in chunk) for chunk in chunks)
