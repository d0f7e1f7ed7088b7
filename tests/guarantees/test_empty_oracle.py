"""Chunks without layers beside ZeRO, hybrid sharding, tied embeddings and multi-token prediction.

The exhaustive oracle lists all that docs/layouts.md has; a rule of the stack forbids divisions that
leave none empty. ``NEST_INSTANCES`` sets how many seeds are looked at.
"""

from __future__ import annotations

from random import Random

import pytest
from instances import Instance
from instances_hardware import need, random_cluster, random_job
from instances_models import random_family, random_model
from test_stack_oracle import INSTANCES, WITHOUT_JIT, held_against, no_explanations

import nest
from nest.inputs import load_stack
from nest.inputs.capabilities import Rule
from nest.model import build_chain

assert no_explanations  # a fixture of this file too
KINDS = "prediction", "dense", "moe", "mla", "shared"


def sparse(seed: int) -> Instance:
    """An instance of few layers whose stack has nothing but divisions with empty chunks."""
    rng = Random(f"sparse {seed}")
    kind = KINDS[seed % len(KINDS)]
    drawn = (random_family if kind == "prediction" else random_model)(rng, kind, "families")
    given = drawn.model_dump(exclude_unset=True)
    given |= {"layers": rng.choice((2, 3, 4, 5)), "tied_embeddings": rng.random() < 0.6}
    for name in ("window", "full_layers", "trainable"):
        given.pop(name, None)
    if "moe" in given:
        given["moe"] |= {"every": 1}
    model = nest.Model(**given)
    chain, job = build_chain(model), random_job(rng, "chunks")
    cluster = random_cluster(rng, rng.choice(((2, 2), (4,), (2, 4), (2, 3), (2,))),
                             need(chain, job), "chunks")
    device = cluster.device
    cluster = cluster.replace(device=device.replace(
        memory=int(device.memory * rng.choice((1.0, 3.0, 8.0)))))
    known = load_stack("megatron-core").capabilities
    assert known is not None
    rule = Rule.parse({"fields": "empty_chunks", "allowed": rng.choice(("1..", "2..", "1")),
                       "sentence": "own", "source": "own"}, "rule")
    kept = {name: one for name, one in known.rules.items() if "zero" not in one.fields}
    job = job.replace(
        global_batch=rng.choice((4, 6, 8)), optimizer="adam", stack=job.stack.replace(
            zero_with_pipeline=(0, 1, 2, 3), cuda_graphs="none",
            capabilities=known.replace(name="", rules={**kept, "own": rule})))
    space = nest.SearchSpace(
        pp=rng.choice((2, (2, 3), (2, 3, 4))), vpp=rng.choice((2, 3, (1, 2, 3))), tp=1, cp=1,
        zero=rng.choice((2, 3, (2, 3), (1, 2, 3))), recompute="none", etp=1,
        ep=rng.choice((1, (1, 2))), shard=rng.choice((("dp",), ("dp", "dp_in"), ("dp_in",))))
    return Instance(seed, "sparse", model, chain, cluster, job, space)


@pytest.mark.kernels
def test_no_division_with_empty_chunks_is_faster() -> None:
    done, zeros, empty = 0, set[int](), 0
    for seed in range(INSTANCES // 4):
        best = held_against(sparse(seed), seed)
        done += best is not None
        if best is not None and best.configuration is not None:
            zeros.add(best.configuration.stages[0].zero)
            empty += any(a == b for stage in best.configuration.stages for a, b in stage.chunks)
    assert WITHOUT_JIT or INSTANCES < 160 or (done > 20 and empty > 10 and {2, 3} <= zeros)
