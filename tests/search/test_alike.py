"""The search within a stack's space finds the best of all pipelines that the stack can run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, product
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from oracle_stack import priced, some_groups

import nest
from nest.errors import InputError
from nest.evaluation.feasibility import check
from nest.evaluation.stages import Layers, Pricing
from nest.inputs import Cluster, Configuration, Job, load_cluster, load_model, load_stack
from nest.inputs.catalog import names
from nest.inputs.space import LARGEST, SearchSpace
from nest.model import Chain, build_chain
from nest.model.layouts import family
from nest.model.legality import divisors
from nest.search import compiled
from nest.search.alike import Alike, pipelines
from nest.search.branch_and_bound import search_one
from nest.search.formulating import formulate
from nest.search.query import Control, Query
from nest.search.runnable import SpacePart
from nest.stacks import not_runnable

MODEL = {
    "name": "small", "layers": 4, "hidden": 256, "heads": 4, "ffn": 1024, "gated": True,
    "vocab": 3000, "tied_embeddings": False, "norm": "rmsnorm", "bias": False,
}
TIED = {**MODEL, "name": "tied", "tied_embeddings": True, "layers": 3}
EXPERTS = {
    **MODEL, "name": "experts", "layers": 3, "mtp_layers": 1,
    "moe": {"experts": 4, "top_k": 2, "ffn": 256},
}
DEVICE = {
    "name": "d", "memory_bandwidth": "200 GB/s", "peak_flops": {"bf16": "20 TFLOP/s"},
}
LEVELS = [
    {"name": "node", "size": 2, "bandwidth": "40 GB/s", "latency": "3 us"},
    {"name": "leaf", "size": 2, "bandwidth": "10 GB/s", "latency": "8 us"},
]
FIXED: dict[str, Any] = {"cp": 1, "recompute_modules": "core_attn"}
"""Bounds that keep the naive enumeration short."""


def cluster(memory: str) -> Cluster:
    return load_cluster({
        "name": "c", "device": {**DEVICE, "memory": memory}, "levels": LEVELS})


def cuts_of(chain: Chain, pp: int, vpp: int) -> Iterator[tuple[int, ...]]:
    """All cuts of one chunk a stage; of more the declared family."""
    if vpp > 1:
        yield from map(tuple, family(chain, pp, vpp).tolist())
        return
    for inner in combinations(range(1, len(chain)), pp - 1):
        yield (0, *inner, len(chain))


def every(chain: Chain, where: Cluster, job: Job) -> Iterator[Configuration]:
    """All alike pipelines, legal or not."""
    size, batch = where.size, job.global_batch
    experts = chain.experts is not None
    for outer_dp in divisors(batch):
        if size % outer_dp:
            continue
        for micro_batch, tp, pp in product(divisors(batch // outer_dp), (1, 2, 4), range(1, 4)):
            for dp_in, ep, etp, zero, shard in product(
                    divisors(micro_batch), (1, 2) if experts else (1,),
                    (1,) if experts else (tp,), ZEROS, ("dp", "dp_in")):
                block = tp * dp_in
                if pp * block * outer_dp > size or block % (ep * etp) or (
                        shard == "dp_in" and not zero):
                    continue
                recomputes = [("none", None), ("selective", None), ("full", None)]
                recomputes.append(("full", 1))
                for (recompute, first), vpp, sp in product(
                        recomputes, range(1, 3), (True, False) if tp > 1 else (False,)):
                    if vpp > 1 and pp == 1:
                        continue
                    micro_batches = batch // (outer_dp * micro_batch)
                    groups = some_groups(micro_batches, pp) if vpp > 1 else (None,)
                    for cuts, group in product(cuts_of(chain, pp, vpp), groups):
                        yield configuration(cuts, pp, vpp, block, first, {
                            "outer_dp": outer_dp, "micro_batch": micro_batch, "group": group,
                            "stride": size // outer_dp}, {
                            "dp_in": dp_in, "tp": tp, "sp": sp, "ep": ep, "etp": etp,
                            "zero": zero, "shard": shard, "recompute": recompute})


def configuration(
    cuts: tuple[int, ...], pp: int, vpp: int, block: int, first: int | None,
    outer: dict[str, Any], degrees: dict[str, Any],
) -> Configuration:
    stages = []
    for s in range(pp):
        chunks = tuple((cuts[n], cuts[n + 1]) for n in range(s, pp * vpp, pp))
        stages.append({
            "layers": (chunks[0][0], chunks[-1][1]), "chunks": chunks,
            "devices": (s * block, (s + 1) * block), "recompute_layers": first, **degrees})
    return Configuration.parse({**outer, "vpp": vpp, "stages": stages}, "configuration")


def seconds_of(
    chain: Chain, where: Cluster, job: Job, ways: Iterable[Configuration]
) -> list[tuple[float, Configuration]]:
    """Those that are legal, run and fit, priced as `evaluate` does: each layer once."""
    pricing, known, found = Pricing(chain, where, job), dict[object, Layers](), []
    for way in ways:
        try:
            check(pricing, way)
        except InputError:
            continue
        if not_runnable(chain, job, way):
            continue
        seconds = priced(pricing, way, known)
        if seconds is not None:
            found.append((seconds, way))
    return found


ZEROS = (0, 1)
CASES = [
    ("megatron-core", MODEL, "400 MiB", 4), ("megatron-core", TIED, "80 MiB", 8),
    ("megatron-core", EXPERTS, "150 MiB", 4), ("megatron-core", MODEL, "150 MiB", 6),
    ("deepspeed", MODEL, "150 MiB", 4),
    ("internevo", TIED, "200 MiB", 4), ("megatron-2021", MODEL, "200 MiB", 4),
]


@pytest.mark.kernels
@pytest.mark.parametrize(("stack", "model", "memory", "batch"), CASES)
def test_no_runnable_pipeline_is_faster(stack, model, memory, batch):
    """The naive enumeration lists every alike pipeline and prices each."""
    model, where = load_model(model), cluster(memory)
    job = Job(global_batch=batch, seq_len=256, stack=load_stack(stack).replace(workspace=0))
    chain = build_chain(model)
    space = SearchSpace(**FIXED, tp=(1, 2, 4), pp="1..3", vpp="1..2",
                        zero=ZEROS, recompute_layers=f"1,{LARGEST}",
                        **({"etp": 1, "ep": (1, 2)} if chain.experts else {}))
    found = search_one(Query(chain, where, job, space))
    fitting = seconds_of(chain, where, job, every(chain, where, job))
    assert len(fitting) > 20
    best, way = min(fitting, key=itemgetter(0))
    assert found.step_time == pytest.approx(best, rel=1e-9)
    plan = nest.evaluate(model, where, job, way)
    assert plan.runnable and plan.feasible and plan.step_time_s == best
    assert found.lower_bound == found.step_time


@pytest.mark.kernels(uncompiled=True)
@pytest.mark.parametrize(("stack", "model", "memory"), [
    ("megatron-core", TIED, "70 MiB"), ("megatron-core", EXPERTS, "90 MiB"),
    ("deepspeed", MODEL, "120 MiB"), ("torchtitan", TIED, "400 MiB"),
    ("maxtext", MODEL, "200 MiB"),
])
def test_what_is_found_runs_and_is_proved(stack, model, memory):
    model, where = load_model(model), cluster(memory)
    job = Job(global_batch=4, seq_len=256, stack=load_stack(stack).replace(workspace=0))
    space = SearchSpace(cp=1, tp=(1, 2), mbs=(1, 2), pp="1..3", vpp="1..2")
    plan = nest.plan(model, where, job, space, threads=1, top=3, beyond_stack=False)
    assert plan.runnable and plan.optimal and plan.search.within_stack
    assert plan.step_time_s == nest.evaluate(model, where, job, plan.configuration).step_time_s
    assert len({*plan.alternatives}) == len(plan.alternatives)
    for other in plan.alternatives:
        assert nest.evaluate(model, where, job, other.configuration).runnable


@pytest.mark.kernels(uncompiled=True)
@pytest.mark.parametrize("stack", names("stacks"))
def test_arrays_are_as_the_kernel_was_compiled_for(stack):
    """Else it would be compiled once more, which takes seconds."""
    chain, job = build_chain(load_model(MODEL)), Job(global_batch=4, seq_len=256, stack=stack)
    where, space = cluster("4 GiB"), SearchSpace(mbs=1)
    listed = pipelines(chain, space, where.size, True)
    f = formulate(Query(chain, where, job, space),
                  SpacePart(job.stack.capabilities, tuple(listed)))
    for number in range(len(f.outers)):
        for array in Alike(f).arrays(number, float("inf"))[1]:
            if isinstance(array, np.ndarray):
                assert array.flags.c_contiguous and array.flags.writeable


@pytest.mark.kernels(uncompiled=True)
def test_what_the_stack_can_run_may_not_fit():
    model, where = load_model(MODEL), cluster("30 MiB")
    job = Job(global_batch=4, seq_len=256, stack=load_stack("megatron-core").replace(workspace=0))
    with pytest.raises(nest.InfeasibleError):
        nest.plan(model, where, job, SearchSpace(cp=1, tp=1, mbs=1, vpp=1), beyond_stack=False)


@pytest.mark.kernels(uncompiled=True)
def test_a_plan_within_a_stack_is_explained_within_it():
    model, where = load_model(MODEL), cluster("200 MiB")
    job = Job(global_batch=4, seq_len=256, stack=load_stack("megatron-2021").replace(workspace=0))
    space = SearchSpace(mbs=1, pp="1..2", vpp=1)
    plan = nest.plan(model, where, job, space, threads=1, beyond_stack=False)
    everything = nest.plan(model, where, job, space, threads=1, beyond_stack=True)
    assert everything.step_time_s < 0.9 * plan.step_time_s
    found = [price for price in nest.explain(plan, threads=1).prices
             if price.resource != "devices" and price.step_time_s is not None]
    assert found and all(0.0 >= price.share > -0.02 for price in found)


def test_schedules_are_listed_in_any_order():
    chain = build_chain(load_model(MODEL))
    for own in (("interleaved", "1f1b"), ("interleaved", "gpipe")):
        listed = pipelines(chain, SearchSpace(schedule=own), 4, True)
        assert [one.schedule for one in listed if one.pp == 1] == [own[1]]


@pytest.mark.kernels
@pytest.mark.parametrize(("model", "devices", "batch", "seq_len", "stack"), [
    ("llama3-70b", 64, 128, 4096, "megatron-core"), ("llama3-8b", 16, 64, 8192, "torchtitan"),
    ("mixtral-8x7b", 64, 64, 4096, "megatron-core"),
    ("deepseek-v3", 256, 256, 4096, "megatron-core"),
])
def test_what_rules_out_layouts_rules_out_no_better_one(model, devices, batch, seq_len, stack):
    """Without the bounds of listed cuts the same plans are found: the best of each pipeline."""
    where = load_cluster("dgx-h100", devices=devices)
    job = Job(global_batch=batch, seq_len=seq_len, stack=load_stack(stack))
    chain = build_chain(load_model(model))
    space = SearchSpace(cp=1, tp=(2, 8), recompute_modules="core_attn")
    listed = pipelines(chain, space, where.size, True)
    f = formulate(Query(chain, where, job, space), SpacePart(job.stack.capabilities, tuple(listed)))
    found, kernel = Alike(f), compiled.load(compiled.ALIKE)[0].alike
    limit = 1.1 * search_one(Query(chain, where, job, space), Control(1)).step_time
    compared = [0, 0]  # outer choices without and with a plan below the limit
    for number in np.flatnonzero(found.bounds() < limit).tolist():
        degrees = found.degrees(number)
        _, given, legal = found.arrays(number, limit)
        without = given._replace(seen=0 * given.seen, least_seen=0 * given.least_seen,
                                 load=0 * given.load)
        best = kernel(degrees, found.rings(number), given, legal, limit, True)[0]
        some = int((best < np.inf).any())
        if compared[some] < 2:
            rest = kernel(degrees, found.rings(number), without, legal, limit, True)[0]
            assert (best == rest).all()
        compared[some] += 1
    assert compared[1]


@pytest.mark.kernels
@pytest.mark.parametrize("first", [1, 2, 3])
def test_bounds_hold_where_layers_in_front_of_the_body_run_again_first(first):
    """A tower for images takes the first layers of full recompute: docs/proofs.md, Lemma 35 (three
    stages, runs). The best plan of each pipeline is found below a limit that nothing else stays
    below."""
    tower = {"layers": 2, "hidden": 256, "heads": 2, "ffn": 64, "tokens": 256, "patch_width": 12,
             "merge": 2, "projector_layers": 2}
    where, kernel = cluster("400 MiB"), compiled.load(compiled.ALIKE)[0].alike
    job = Job(global_batch=8, seq_len=256, stack=load_stack("megatron-core").replace(workspace=0))
    chain = build_chain(load_model({**MODEL, "layers": 5, "vision": tower}))
    space = SearchSpace(cp=1, tp=1, dp_in=1, outer_dp=1, pp=(2, 3), vpp=(1, 2), zero=0,
                        recompute="full", recompute_layers=first)
    found = Alike(formulate(Query(chain, where, job, space), SpacePart(
        job.stack.capabilities, tuple(pipelines(chain, space, where.size, True)))))
    compared = 0
    for number in np.flatnonzero(found.bounds() < np.inf).tolist():
        degrees, rings = found.degrees(number), found.rings(number)
        _, given, legal = found.arrays(number, np.inf)
        without = given._replace(seen=0 * given.seen, least_seen=0 * given.least_seen,
                                 load=0 * given.load)
        best = kernel(degrees, rings, without, legal, np.inf, True)[0]
        for k in np.flatnonzero(best < np.inf).tolist():
            below = kernel(degrees, rings, given, legal, best[k] * (1.0 + 1e-9), True)[0]
            assert below[k] == best[k]
            compared += 1
    assert compared > 4


@pytest.mark.kernels
@pytest.mark.parametrize(("stack", "beyond", "group", "found"), [
    ("megatron-core", False, "3", 3), ("megatron-core", True, "3", 3),
    ("megatron-core", False, "2..5", None), ("torchtitan", False, "2", None),
    ("torchtitan", True, "5", 5),
])
def test_groups_that_the_space_names_are_searched(stack, beyond, group, found):
    model, where = load_model(MODEL), cluster("400 MiB")
    job = Job(global_batch=8, seq_len=256, stack=load_stack(stack).replace(workspace=0))
    space = SearchSpace(outer_dp=1, micro_batch=1, pp=2, vpp=2, schedule="interleaved", group=group)
    plan = nest.plan(model, where, job, space, threads=1, beyond_stack=beyond)
    assert plan.parallelism.group == found
    legal = [n for n in space.group if not 0 < 8 % n < 2]
    steps = {n: nest.evaluate(model, where, job, plan.configuration.replace(group=n)).step_time_s
             for n in legal}
    assert min(steps.values()) == steps[found or 2]


@pytest.mark.kernels
def test_a_group_that_nothing_can_have_is_named_as_in_the_way():
    model, where = load_model(MODEL), cluster("400 MiB")
    job = Job(global_batch=4, seq_len=256, stack=load_stack("torchtitan").replace(workspace=0))
    space = SearchSpace(pp=2, vpp=2, schedule="interleaved", group=3)
    with pytest.raises(nest.InfeasibleError, match=r"group 2 instead of 3"):
        nest.plan(model, where, job, space, threads=1)
