"""What a single pipeline forbids of candidates, others may allow."""

from __future__ import annotations

import pytest
from test_alike import EXPERTS, cluster

from nest.inputs import Job, SearchSpace, load_model, load_stack
from nest.model import build_chain
from nest.search.runnable import PIPELINE, ROW, Pipeline
from nest.search.signatures import signatures
from nest.search.tensors import Builder

pytestmark = pytest.mark.kernels


def test_rules_about_one_pipeline_leave_all_candidates() -> None:
    """combined needs ep above 1: alone it leaves all candidates, though it may have few."""
    stack = load_stack("megatron-core").replace(workspace=0)
    batch, chain = Job(global_batch=8, seq_len=256, stack=stack), build_chain(load_model(EXPERTS))
    builder = Builder(chain, cluster("4 GiB"), batch, SearchSpace(cp=1, tp=1, ep=(1, 2)),
                      signatures(chain, batch), rules=stack.capabilities,
                      pipelines=[Pipeline("combined", 2, 2)])
    runnable = builder.frame.runnable
    rows = builder.frame.rows
    alone = builder.candidates.pairs.ep[rows.pair] == 1
    assert alone.any() and not alone.all()
    assert not runnable.allow(ROW, PIPELINE)[alone].any()
    assert runnable.allow(ROW, PIPELINE)[~alone].any()
