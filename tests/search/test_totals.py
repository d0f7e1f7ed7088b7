"""What rules out questions before they are priced rules out no plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_alike import EXPERTS, MODEL, TIED, cluster

from nest.inputs import Job, load_model, load_stack
from nest.inputs.space import LARGEST, SearchSpace
from nest.model import build_chain
from nest.search import compiled
from nest.search.alike import MOST_CUTS, Alike, pipelines
from nest.search.formulating import formulate
from nest.search.query import Query
from nest.search.runnable import SpacePart
from nest.search.totals import OpenChoices

SURE = 1.0 - 1e-9


def alike(stack: str, model: dict[str, Any], memory: str, **bounds: Any) -> Alike:
    chain, where = build_chain(load_model(model)), cluster(memory)
    job = Job(global_batch=8, seq_len=256, stack=load_stack(stack).replace(workspace=0))
    space = SearchSpace(**bounds, recompute_layers=f"1,{LARGEST}")
    rules = job.stack.capabilities
    listed = pipelines(chain, space, where.size, True, rules)
    return Alike(formulate(Query(chain, where, job, space), SpacePart(rules, tuple(listed))))


@pytest.mark.kernels
@pytest.mark.parametrize(("stack", "model", "memory", "schedule"), [
    ("megatron-core", TIED, "70 MiB", None), ("megatron-core", EXPERTS, "110 MiB", None),
    ("megatron-core", EXPERTS, "150 MiB", "combined"), ("torchtitan", MODEL, "60 MiB", None),
])
def test_no_plan_takes_less_than_the_floor_of_its_question(stack, model, memory, schedule):
    found = alike(stack, model, memory, cp=1, recompute_modules="core_attn",
                  **({"schedule": schedule} if schedule else {}))
    kernel, rng = compiled.load(compiled.ALIKE)[0].alike, np.random.default_rng(0)
    plans = without = 0
    for number, bound in enumerate(found.bounds().tolist()):
        shapes, totals = found._shapes(number), found._totals
        span = found.formulation.span(number)
        row_way, row_policy, way_policy = totals._legal
        row_way, row_policy = row_way[span], row_policy[span]
        every = np.flatnonzero(row_way[:, :, None] & row_policy[:, None] & way_policy)
        asked = totals.questions(number, shapes)
        assert bound == np.inf or asked.floor.min(initial=np.inf) == bound
        floor = dict(zip(asked.code.tolist(), asked.floor.tolist(), strict=True))
        by_pipeline = asked.of_pipelines(shapes)
        # Of all pipelines that some blocks have room for, also without a question.
        rows = found.formulation.listing.rows.block[found.formulation.span(number)]
        placed = shapes.legal & (shapes.pp <= found.formulation.outers[number].stride // rows.min())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                OpenChoices, "of_pipelines", lambda *_, p=placed: np.where(p, 0.0, np.inf))
            chosen, given, legal = found.arrays(number, np.inf)
        degrees = found.degrees(number)
        for code in rng.permutation(every)[:60].tolist():
            one = given._replace(asked=np.array([code]), floor=np.zeros(1), most=MOST_CUTS)
            best = kernel(degrees, found.rings(number), one, legal, np.inf, True)[0]
            assert (best >= SURE * floor.get(code, np.inf)).all()
            assert (best >= SURE * by_pipeline[chosen]).all()
            plans += int((best < np.inf).any())
            without += code not in floor
    assert plans > 20
    assert without > 0
