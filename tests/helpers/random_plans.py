"""Random configurations of an instance: consecutive stages, of which many are legal."""

from __future__ import annotations

from itertools import accumulate, pairwise
from random import Random
from typing import Any

from instances import Instance

from nest.inputs import Configuration, StageConfiguration
from nest.model.legality import divisors, interleaved_chunks, tensor_degrees


def random_plan(rng: Random, x: Instance) -> Configuration:
    """A configuration whose stages follow each other; its degrees are seldom out of place."""
    chain, cluster, job = x.chain, x.cluster, x.job
    outer_dp = rng.choice([n for n in divisors(job.global_batch) if n <= cluster.size])
    stride = cluster.size // outer_dp
    if rng.random() < 0.2:
        stride = rng.randint(1, cluster.size)
    micro_batch = rng.choice(divisors(job.global_batch // outer_dp))
    schedule = rng.choice(("1f1b", "1f1b", "gpipe", "interleaved"))
    repeated = chain.body[1] - chain.body[0]
    if schedule == "interleaved":
        in_turn = job.global_batch // outer_dp // micro_batch
        pp = rng.choice([n for n in divisors(repeated) if n > 1 and in_turn % n == 0] or [2])
        vpp = rng.choice([n for n in divisors(max(1, repeated // pp)) if n > 1] or [2])
        whole = repeated % (pp * vpp) == 0
        chunks = interleaved_chunks(chain, pp, vpp) if whole else [((0, 1), (1, 2))] * pp
        ways = [_degrees(rng, x, micro_batch, stride // pp, pp)] * pp
    else:
        pp, vpp = rng.randint(1, min(len(chain), stride, 4)), 1
        cuts = [0, *sorted(rng.sample(range(1, len(chain)), pp - 1)), len(chain)]
        chunks = [(span,) for span in pairwise(cuts)]
        ways = [_degrees(rng, x, micro_batch, stride // pp, pp) for _ in range(pp)]
        if rng.random() < 0.5:
            ways = ways[:1] * pp
    starts = [0, *accumulate(way["dp_in"] * way["tp"] * way["cp"] for way in ways)]
    return Configuration(
        outer_dp=outer_dp, stride=stride, micro_batch=micro_batch, vpp=vpp, schedule=schedule,
        stages=tuple(
            StageConfiguration(layers=(parts[0][0], parts[-1][1]), chunks=parts, devices=devices,
                               **way)
            for parts, devices, way in zip(chunks, pairwise(starts), ways, strict=True)))


def _degrees(rng: Random, x: Instance, micro_batch: int, most: int, pp: int) -> dict[str, Any]:
    """Degrees and policies of one of ``pp`` stages on at most about ``most`` devices."""
    chain = x.chain
    tp = rng.choice(tensor_degrees(chain, most) or (1,))
    cp = 1 if chain.model is None or rng.random() < 0.6 else rng.choice((1, 2))
    fitting = [n for n in divisors(micro_batch) if n * tp * cp <= most]
    way = {"tp": tp, "cp": cp, "dp_in": rng.choice(fitting or [1]),
           "sp": tp > 1 and (chain.experts is not None or rng.random() < 0.6),
           "cp_comm": rng.choice(("p2p", "all_gather", "a2a")) if cp > 1 else "p2p",
           "zero": rng.choice((0, 1, 2, 3) if pp == 1 else x.job.stack.zero_with_pipeline),
           "recompute": rng.choice(("none", "full"))}
    if way["zero"] and rng.random() < 0.2:
        way["shard"] = "dp_in"
    if chain.experts is not None:
        block = way["dp_in"] * tp * cp
        way["etp"] = rng.choice(divisors(block))
        way["ep"] = rng.choice(divisors(block // way["etp"]))
    return way
