"""Context parallelism where ranks could take whole samples instead: it is no better in anything."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from test_alike import EXPERTS, MODEL, cluster

from nest.costs.activations import backward_parts
from nest.costs.choices import MODULE_BIT, Site, bodies, exchange_of, setting
from nest.costs.layer import body_costs
from nest.costs.network.fabric import fabric_of
from nest.inputs import Job, SearchSpace, load_cluster, load_model, load_stack
from nest.model import build_chain
from nest.search import formulating
from nest.search.exchanges import Exchanges
from nest.search.formulating import formulate
from nest.search.query import Query
from nest.search.runnable import SpacePart, needs_context

STACKS = ("megatron-core", "torchtitan", "torchtitan-eager", "deepspeed", "maxtext")
MODELS = ("llama3-8b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3", "gemma2-9b")
WAYS = (("p2p", 1), ("a2a", 1), ("all_gather", 1), ("a2a+p2p", 2))


def figures(model: str, stack: str, samples: Any, degrees: dict[str, int], way: Any) -> Any:
    """All that candidates are compared by, for each number of samples."""
    chain, where = build_chain(load_model(model)), load_cluster("dgx-h100", devices=64)
    s = setting(where, Job(global_batch=64, seq_len=8192, stack=load_stack(stack)))
    fabric = fabric_of(where)
    inner, gather = exchange_of(way[0], degrees["cp"], way[1])
    many = np.ones(len(samples), dtype=np.int64)
    body = bodies(
        fabric, Site.alone(32 * many), samples, degrees["tp"] * many,
        np.full(len(samples), degrees["tp"] > 1), degrees["cp"] * many, inner * many,
        np.full(len(samples), bool(gather)), degrees["ep"] * many, many,
        recompute=np.array([[0, *MODULE_BIT.values()]]))
    found = []
    for layer in chain.kinds:
        c = body_costs(layer, body, s)
        ahead = c.forward + c.tp_forward + c.cp_forward + c.ep_forward
        back = c.backward + c.recompute + c.tp_backward + c.cp_backward + c.ep_backward
        weights, kept = backward_parts(layer, body, s, c.backward, c.activations)
        found += [ahead, ahead - c.free_forward, back, back - c.free_backward, back - weights,
                  weights, c.activations, c.work, kept]
    return np.concatenate([np.broadcast_to(x, ahead.shape) for x in found], axis=1)


@pytest.mark.parametrize(("model", "stack"), [*itertools.product(MODELS, STACKS)])
def test_whole_samples_are_no_worse_in_any_figure(model: str, stack: str) -> None:
    """Of a body with as many tokens: seconds, those that nothing hides, parts and bytes."""
    ep = 4 if build_chain(load_model(model)).experts is not None else 1
    for tp, cp, way in itertools.product((1, 4), (2, 4), WAYS):
        samples = cp * np.array([1, 2, 6])
        divided = figures(model, stack, samples, {"tp": tp, "cp": cp, "ep": ep}, way)
        whole = figures(model, stack, samples // cp, {"tp": tp, "cp": 1, "ep": ep}, ("p2p", 1))
        assert (whole <= divided + 1e-12 * np.abs(divided)).all()


def test_rules_that_need_context_parallelism() -> None:
    """A mesh of experts without ZeRO has ranks of tp and cp alone: cp may be the only way."""
    dense, experts = (build_chain(load_model(name)) for name in ("llama3-8b", "mixtral-8x7b"))
    for name in STACKS:
        rules = load_stack(name).capabilities
        assert needs_context(rules, experts) == name.startswith("torchtitan")
        assert not needs_context(rules, dense)
    assert not needs_context(None, experts)


@pytest.mark.kernels
def test_dominance_leaves_the_same_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not listed is what another candidate beats, and some of the rest has cp."""
    chain, where = build_chain(load_model(EXPERTS)), cluster("4 GiB")
    job = Job(global_batch=8, seq_len=256, stack=load_stack("megatron-core"))

    def listed() -> tuple[int, set[tuple[int, ...]]]:
        """How many candidates are priced, and which are left."""
        f = formulate(Query(chain, where, job), SpacePart(job.stack.capabilities))
        rows = f.listing.rows
        assert (f.choices.candidates.splits.cp[rows.split] > 1).any()
        return len(f.every.listing.body), {
            tuple(map(int, row)) for row in np.stack([f.listing.outer, *rows]).T}

    few, kept = listed()
    monkeypatch.setattr(formulating, "needs_context", lambda rules, chain: True)
    many, same = listed()
    assert few < many and kept == same


@pytest.mark.kernels
@pytest.mark.parametrize("stack", ["megatron-core", "torchtitan"])
def test_exchanges_that_are_left_out_are_dominated(
        stack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the comparison of exchanges, dominance drops what it leaves out."""
    chain, where = build_chain(load_model(MODEL)), cluster("4 GiB")
    job = Job(global_batch=8, seq_len=4096, stack=load_stack(stack))

    def listed() -> tuple[int, set[tuple[int, ...]]]:
        """How many candidates are priced, and which are left."""
        f = formulate(Query(chain, where, job, SearchSpace(tp=(1, 2))), SpacePart(None))
        rows = f.listing.rows
        assert (f.choices.candidates.splits.cp[rows.split] > 1).any()
        return len(f.every.listing.body), {
            tuple(map(int, row)) for row in np.stack([f.listing.outer, *rows]).T}

    few, kept = listed()
    monkeypatch.setattr(Exchanges, "worse", lambda *given, group=None: np.zeros(
        len(given[3]), dtype=np.bool_))
    many, same = listed()
    assert few < many and kept == same
