"""What a single pipeline forbids of candidates, others may allow."""

from __future__ import annotations

import pytest
from test_alike import EXPERTS, cluster

from nest.inputs import Job, SearchSpace, load_model, load_stack
from nest.model import build_chain
from nest.search.formulating import formulate
from nest.search.query import Query
from nest.search.runnable import PIPELINE, ROW, Pipeline, SpacePart

pytestmark = pytest.mark.kernels


def test_rules_about_one_pipeline_leave_all_candidates() -> None:
    """combined needs ep above 1: alone it leaves all candidates, though it may have few."""
    stack = load_stack("megatron-core").replace(workspace=0)
    batch, chain = Job(global_batch=8, seq_len=256, stack=stack), build_chain(load_model(EXPERTS))
    f = formulate(Query(chain, cluster("4 GiB"), batch, SearchSpace(cp=1, tp=1, ep=(1, 2))),
                  SpacePart(stack.capabilities, (Pipeline("combined", 2, 2),)))
    rows = f.every.listing.rows
    candidates = f.choices.candidates
    runnable = f.layouts.runnable.compared(rows, candidates.splits, candidates.pairs)
    alone = f.choices.candidates.pairs.ep[rows.pair] == 1
    assert alone.any() and not alone.all()
    assert not runnable.allow(ROW, PIPELINE)[alone].any()
    assert runnable.allow(ROW, PIPELINE)[~alone].any()
