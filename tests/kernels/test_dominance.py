"""Dropped candidates and labels: a kept one is never worse, whatever the stage holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from plain import stack

import nest
from nest._kernels import labels
from nest._kernels.dominance import undominated
from nest.costs.stage import chunk_costs
from nest.evaluation.evaluate import chain_of
from nest.records import AHEAD, BACK, STATE, rows_of
from nest.records.tables import Blocks
from nest.schedules import gpipe, one_f_one_b
from nest.schedules.chunk import LayerSeconds
from nest.search.formulating import formulate, useful_under
from nest.search.query import Query

pytestmark = pytest.mark.kernels(uncompiled=True)
KINDS, BODIES, STATES, POLICIES, ZEROS, CLASSES = 2, 12, 3, 3, 2, 2


def random_block(rng: np.random.Generator) -> dict[str, Any]:
    """Candidates of one block that differ in few figures, so that many beat others."""
    def some(*shape: int, share: float = 0.04) -> Any:
        return 1.0 + (rng.random(shape) < share) * rng.integers(1, 3, size=shape)

    ahead, back = some(BODIES, KINDS, 2, share=0.2), some(BODIES, POLICIES, KINDS, 4)
    # What is not computing is less where more computing hides it.
    ahead[..., 1] += np.where(rng.random(ahead.shape[:-1]) < 0.9, ahead[..., 0], 1.0)
    back[..., 1] += np.where(rng.random(back.shape[:-1]) < 0.9, back[..., 0], 1.0)
    state = some(STATES, ZEROS, KINDS, 12)
    # ZeRO gathers parameters before each layer or once a step, never both; else computing hides
    # no scatters, but reductions.
    state[:, 0, :, [0, 2]], state[:, 1, :, 4] = 0.0, 0.0
    state[..., 1] = state[..., 0]
    degrees = rng.integers(0, BODIES, size=20)
    return {
        "ahead": ahead, "back": back, "state": state, "body": np.tile(degrees, CLASSES),
        "held": np.concatenate([rng.integers(0, STATES, size=20) for _ in range(CLASSES)]),
        "shards": np.tile(some(20).astype(np.int64), CLASSES),
        "relayed": np.tile(some(20), CLASSES),
        "hybrid": np.tile(rng.random(20) < 0.9, CLASSES),
        "begin": np.array([0, 20 * CLASSES]), "choices": np.array([20]),
        "overlaps": rng.random(3) * (rng.random(3) < 0.7),
    }


def blocks(x: dict[str, Any]) -> Blocks:
    """A block as the kernel gets it."""
    records = {name: rows_of(record, x[name])
               for name, record in (("ahead", AHEAD), ("back", BACK), ("state", STATE))}
    return Blocks(**{**x, **records})


def stage(
    x: dict[str, Any], software: nest.Stack, c: int, z: int, layers: list[tuple[int, int]]
) -> list[float]:
    """What a step is made of, for a stage of (kind, policy) layers: docs/proofs.md, Lemma 22
    (dominated options)."""
    body, state = x["body"][c], x["state"][x["held"][c]][z]
    ahead, back = x["ahead"][body], x["back"][body]
    own = [LayerSeconds(*ahead[kind], *back[r][kind][:2], *state[kind][:5], state[kind][11])
           for kind, r in layers]
    update, tied, resident = (sum(state[kind][field] for kind, _ in layers)
                              for field in (6, 7, 8))
    held = sum(back[r][kind][2] for kind, r in layers)
    resident += max(back[r][kind][3] for kind, r in layers)
    resident += max(state[kind][5] for kind, _ in layers)
    s = chunk_costs(own, update, tied, software)
    end, f = s.backward - s.late, s.forward
    turned = f + end + s.turn
    return [
        f, end, s.backward, f + s.backward + s.pace, f + s.backward + s.pace - s.turn,
        f + s.queue_forward, s.backward + s.queue, end + s.late_back,
        end + s.late_back + s.queue_backward + max(0.0, s.trailing - s.trails_backward),
        turned, turned + s.left, turned + s.wait, turned + s.wait + s.left, f + s.wait,
        end + s.left, tied + update, update,
        0.0 if z else s.forward - s.hides_gather, s.backward - s.hides_sync,
        held, resident, -x["shards"][c], x["relayed"][c], -float(x["hybrid"][c])]


@pytest.mark.parametrize("seed", [pytest.param(
    seed, marks=() if seed < 20 else pytest.mark.kernels) for seed in range(200)])
def test_a_kept_candidate_is_no_worse(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = random_block(rng)
    kept = undominated(blocks(x))
    assert (kept[:20] == kept[20:]).all()
    stages = [
        (int(rng.integers(CLASSES)), int(rng.integers(ZEROS)),
         [(int(rng.integers(KINDS)), int(rng.integers(POLICIES))) for _ in range(4)])
        for _ in range(60)
    ]
    software = stack(**dict(zip(
        ("overlap_zero3", "overlap_grad_reduce", "overlap_param_gather"),
        x["overlaps"].tolist(), strict=True)))
    lists = {name: array.tolist() for name, array in x.items()}
    costs = np.array([[stage(lists, software, 20 * place + c, z, layers)
                       for place, z, layers in stages] for c in range(20)])
    for c in np.flatnonzero(~kept[:20]):
        better = (costs[kept[:20]] <= costs[c] + 1e-12).all(axis=(1, 2))
        assert better.any(), f"nothing kept is as good as candidate {c}"


def test_many_are_dropped_and_the_first_of_equals_stays() -> None:
    x = random_block(np.random.default_rng(7))
    x["body"][:] = x["held"][:] = 0
    x["shards"][:] = 1
    x["relayed"][:] = 0.0
    x["hybrid"][:] = True
    kept = undominated(blocks(x))
    assert kept.tolist() == [c in (0, 20) for c in range(40)]


def test_a_slow_host_hides_no_better_pair() -> None:
    """What the host takes is a whole layer's, so that experts alone are compared without it."""
    model, cluster = nest.load_model("mixtral-8x7b"), nest.load_cluster("dgx-h100", devices=16)
    space = nest.SearchSpace(outer_dp=1, tp=1, cp=1, zero=1, micro_batch=16)
    useful = []
    for seconds in (0.0, 1.0):
        stack = {"base": "megatron-core", "layer_overhead": seconds}
        job = nest.Job(global_batch=16, seq_len=512, stack=stack)
        f = formulate(Query(chain_of(model), cluster, job, space))
        useful.append(useful_under(f.choices, f.part, f.layouts.runnable, 16))
    assert all((useful[0][block] == useful[1][block]).all() for block in useful[0])
    assert not all(pairs.all() for pairs in useful[0].values())


def test_figures_that_all_schedules_have() -> None:
    assert (gpipe.END, gpipe.SHARE) == (one_f_one_b.END, one_f_one_b.SHARE)
    for form in (one_f_one_b, gpipe):
        assert len(form.NOTHING) == form.FIGURES <= one_f_one_b.FIGURES


@pytest.mark.parametrize("figure", [
    "REST", "AFTER", "DONE", "IDLE", "BACK", "END", "BEHIND", "SHARE", "BEFORE_LAST", "PAIR",
    "LAST_TRIP", "BEFORE_HALF"])
def test_a_label_stays_that_is_better_in_one_figure(figure: str) -> None:
    """What add_stage reads of the stages behind decides, each figure by itself."""
    insert = getattr(labels.insert, "py_func", labels.insert)
    w = cast(labels.LabelWork, SimpleNamespace(
        state=np.zeros(labels.STATE, np.int64), cell=np.zeros((4, one_f_one_b.FIGURES + 1)),
        cell_links=np.zeros((4, 3), np.int64), new=np.ones(one_f_one_b.FIGURES + 1)))
    w.state[labels.DECIDE] = one_f_one_b.UNTIED

    def add(more: float, likely: int = 0) -> tuple[int, int]:
        """Labels of the cell, and the one that is asked first, once a label was offered."""
        w.new[:] = label + more
        w.state[labels.LIKELY] = likely
        insert(w, 0, 0, 0)
        return int(w.state[labels.COUNT]), int(w.state[labels.LIKELY])

    label = np.ones(one_f_one_b.FIGURES + 1)
    assert add(0.0) == (1, 0)
    label[getattr(one_f_one_b, figure)] = -0.5
    assert add(1.0) == (2, 0)
    assert [add(2.0, likely)[1] for likely in range(4)] == [0, 1, 0, 0]
    label[:] = 1.0
    assert add(-1.0, likely=1) == (1, 1)
    # What is behind the labels of the cell is of another.
    w.cell[1] = -5.0
    assert add(-1.5, likely=1) == (1, 1)
