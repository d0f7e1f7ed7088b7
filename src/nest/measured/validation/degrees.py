"""From a row's degrees of parallelism to a configuration."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from nest.errors import InputError
from nest.evaluation.divisions import chunks_of_stages, even_sizes
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.inputs.job import Job
from nest.measured.validation.cells import Recomputed, offload
from nest.model import Chain
from nest.schedules.registry import SCHEDULES, chunks_at, copies, usual_chunks

if TYPE_CHECKING:
    from nest.measured.validation.runs import Run

Range = tuple[int, int]

_OTHERS = re.compile(r"zb-?h2|chimera")
"""Schedules that are not priced as they are."""


def configuration(
    run: Run, chain: Chain, job: Job, again: Recomputed
) -> tuple[Configuration, list[str]]:
    """Stages, blocks, batch and schedule of a run.

    Megatron numbers its ranks tp first, then cp, dp and pp (Megatron-Core parallel_state, order
    tp-cp-ep-dp-pp), so that the tp x cp x dp ranks of a stage are consecutive: a stage is one
    block with dp_in = dp, experts lie inside it, and outer_dp is 1. With hybrid sharding a block
    holds the ranks of one shard group, and its replicas are the other groups.

    Parameters
    ----------
    chain : layers of the run's model.
    job : its stack says how layers are divided.
    again : recompute policy.

    Returns
    -------
    Configuration, and remarks on what the row does not state.

    Raises
    ------
    InputError : the layers cannot be divided, or a degree is not allowed.
    """
    tp, cp, dp, pp, vpp = (run.degree(name) for name in ("tp", "cp", "dp", "pp", "vpp"))
    inner, outer = _shards(run, dp, cp)
    block = tp * cp * inner
    same: dict[str, Any] = {
        "dp_in": inner, "tp": tp, "sp": tp > 1 and run.whole("sp") == 1, "cp": cp,
        "cp_comm": "a2a" if cp > 1 and _all_to_all(run) else "p2p", "ep": run.degree("ep"),
        "etp": run.whole("etp") or tp, "zero": run.whole("zero_stage") or 0,
        "shard": "dp_in" if outer > 1 else "dp", "recompute": again.policy,
    }
    if again.modules:
        same["recompute_modules"] = again.modules
    if again.layers is not None:
        same["recompute_layers"] = again.layers
    where = f"run {run.run_id}"
    remarks: list[str] = []
    if pp > 1 and same["zero"] not in job.stack.zero_with_pipeline:
        # Stages reduce after all micro-batches: torch==2.13.0, module pipelining.stage, line 1167.
        same["zero"] = 1
        remarks.append("FSDP with a pipeline reduces gradients once a step: priced as ZeRO-1")
    name = _schedule(run, pp, vpp, remarks)
    usual = usual_chunks(name or "interleaved")
    if vpp < usual and pp > 1:
        vpp = usual
        remarks.append(f"vpp not stated: {vpp}, the chunks of {name}")
    cuts = _cuts(run, chain, job, pp, vpp, name or "interleaved", remarks)
    stages = tuple(
        StageConfiguration.parse({
            **same, "layers": (parts[0][0], parts[-1][1]), "chunks": parts,
            "devices": (number * block, (number + 1) * block),
        }, where)
        for number, parts in enumerate(cuts)
    )
    return Configuration.parse({
        "outer_dp": outer, "micro_batch": inner * run.degree("mbs"), "stages": stages,
        "stride": block * pp, "vpp": len(cuts[0]),
        "offload": offload(run.text("offload"), run.notes), **({"schedule": name} if name else {}),
    }, where), remarks


def _schedule(run: Run, pp: int, vpp: int, remarks: list[str]) -> str | None:
    """The schedule that a row names; None: the usual one of its virtual stages."""
    words = run.text("schedule").lower()
    if pp > 1 and (other := _OTHERS.search(words)):
        raise InputError(f"schedule {other[0]}")
    found = next((name for name, one in reversed(SCHEDULES.items())
                  if one.written and re.search(one.written, words)), None)
    if pp == 1 and found:
        return None
    if run.whole("ep_overlap") and run.degree("ep") > 1 and found is None:
        # Megatron-Core's combined schedule; with pp 1 two micro-batches run beside each other.
        if pp == 1 and vpp == 1 or pp > 1 and vpp > 1:
            return "combined"
        remarks.append("overlap of experts' traffic is left out: it needs virtual stages")
    return found


def _shards(run: Run, dp: int, cp: int) -> tuple[int, int]:
    """Data-parallel ranks of a block, and replicas of the pipeline.

    InternEvo states its shard group in the notes alone (zero1=8; -1 is all).
    """
    listed = re.search(r"\bzero1=(\d+)", run.notes)
    shards = run.whole("fsdp_shard") or (int(listed[1]) if listed else None)
    if shards is None or shards >= dp * cp or not run.whole("zero_stage"):
        return dp, 1
    if shards % cp or run.degree("pp") > 1 or run.degree("ep") > 1:
        raise InputError(f"fsdp_shard {shards} of dp x cp {dp * cp} with pp, ep or a part of cp")
    return shards // cp, dp * cp // shards


def _all_to_all(run: Run) -> bool:
    return bool(re.search(r"\bcp uses a2a\b", run.notes.lower()))


def _cuts(
    run: Run, chain: Chain, job: Job, pp: int, vpp: int, schedule: str, remarks: list[str]
) -> list[tuple[Range, ...]]:
    """Layers of every chunk of every stage.

    A layout in the row counts, then a list of layers per stage in the notes, which includes
    embedding and head; else cuts are even as the stack divides layers
    (:mod:`nest.evaluation.divisions`). Where that cannot be, chunks differ by one layer, the larger
    ones nearest the middle.
    """
    layout = run.text("layout")
    if "|" in layout:
        return chunks_of_stages(chain, job, pp, None, schedule=schedule, layout=layout)
    first, last = chain.body
    layers, parts = last - first, pp * vpp // copies(schedule)
    listed = re.search(r"layers per stage \[([\d, ]+)\]", run.notes)
    if listed:
        sizes = [int(size) for size in listed[1].split(",")]
        if len(sizes) != pp or sum(sizes) != len(chain):
            raise InputError(f"layers per stage {sizes} for {pp} stages of {len(chain)} layers")
        return chunks_at((0, *accumulate(sizes)), pp, schedule)
    try:
        found = chunks_of_stages(chain, job, pp, vpp, schedule=schedule)
        uneven = "embedding or head count as layers of their chunks"
    except InputError:
        if parts > layers:
            raise InputError(f"{layers} layers in {pp} x {vpp} chunks") from None
        cuts = (0, *(first + size for size in accumulate(even_sizes(layers, parts)[:-1])),
                len(chain))
        found = chunks_at(cuts, pp, schedule)
        uneven = f"{layers % parts} of {parts} chunks have a layer more"
    if vpp > 1 and layers % parts:
        remarks.append(f"layout not stated: {uneven}")
    return found
