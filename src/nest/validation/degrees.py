"""From a row's degrees of parallelism to a configuration."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from nest.describe.configuration import Configuration, StageConfiguration
from nest.errors import InputError
from nest.graph import Chain
from nest.graph.legality import interleaved_chunks
from nest.pricing.divisions import even_sizes
from nest.validation.words import Recomputed

if TYPE_CHECKING:
    from nest.validation.runs import Run

Range = tuple[int, int]


def configuration(run: Run, chain: Chain, again: Recomputed) -> Configuration:
    """Stages, blocks and batch of a run.

    Megatron numbers its ranks tp first, then cp, dp and pp (Megatron-Core parallel_state, order
    tp-cp-ep-dp-pp), so that the tp x cp x dp ranks of a stage are consecutive: a stage is one
    block with dp_in = dp, experts lie inside it, and outer_dp is 1. With hybrid sharding a block
    holds the ranks of one shard group, and its replicas are the other groups.

    Parameters
    ----------
    chain : layers of the run's model.
    again : recompute policy.

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
    stages = tuple(
        StageConfiguration.parse({
            **same, "layers": (parts[0][0], parts[-1][1]), "chunks": parts,
            "devices": (number * block, (number + 1) * block),
        }, where)
        for number, parts in enumerate(_cuts(run, chain, pp, vpp))
    )
    return Configuration.parse({
        "outer_dp": outer, "micro_batch": inner * run.degree("mbs"), "stages": stages,
        "stride": block * pp, "vpp": vpp,
    }, where)


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


def _cuts(run: Run, chain: Chain, pp: int, vpp: int) -> list[tuple[Range, ...]]:
    """Layers of every chunk of every stage.

    The embedding goes with the first stage and the head with the last. Lists of layers per stage in
    the source, which include embedding and head, are used; else cuts are even, and the remaining
    layers go to the stages nearest the middle (:mod:`nest.pricing.even`).
    """
    first, last = chain.body
    if pp > last - first:
        raise InputError(f"{pp} stages for {last - first} layers")
    if vpp > 1:
        if (last - first) % (pp * vpp):
            raise InputError(f"{last - first} layers in {pp} x {vpp} chunks that are not equal")
        return interleaved_chunks(chain, pp, vpp)
    listed = re.search(r"layers per stage \[([\d, ]+)\]", run.notes)
    if listed:
        sizes = [int(size) for size in listed[1].split(",")]
        if len(sizes) != pp or sum(sizes) != len(chain):
            raise InputError(f"layers per stage {sizes} for {pp} stages of {len(chain)} layers")
        cuts = [sum(sizes[:number]) for number in range(pp + 1)]
    else:
        even = even_sizes(last - first, pp)
        cuts = [0, *(first + sum(even[: number + 1]) for number in range(pp - 1)), len(chain)]
    return [((cuts[number], cuts[number + 1]),) for number in range(pp)]
