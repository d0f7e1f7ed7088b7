"""A plan as a Python object: shown, compared, and read rank by rank."""

from __future__ import annotations

import csv
import io
import pickle
from collections import defaultdict

import pytest
from command_line import Files, run

import nest
from nest.evaluation.even import even_configuration
from nest.report.files import ranks_text


def priced(model: str = "mixtral-8x7b", **degrees: object) -> nest.Plan:
    described, cluster = nest.load_model(model), nest.load_cluster("dgx-a100", devices=64)
    job = nest.Job(global_batch=64, seq_len=512)
    way = even_configuration(described, cluster, job, **degrees)  # type: ignore[arg-type]
    return nest.evaluate(described, cluster, job, way)


PLAN = priced(tp=2, pp=2, dp_in=8, ep=4, etp=2, outer_dp=2)


def test_a_plan_is_hashable_and_equal_to_its_copy():
    assert len({PLAN, priced(tp=2, pp=2, dp_in=8, ep=4, etp=2, outer_dp=2), priced(tp=8)}) == 2
    assert pickle.loads(pickle.dumps(PLAN)) == PLAN
    with pytest.raises(TypeError, match="frozen"):
        PLAN.stages[0].collectives["dp"] = "ring"


@pytest.mark.kernels(uncompiled=True)
def test_a_planned_plan_is_hashable(tmp_path):
    files = Files(tmp_path)
    plan = nest.plan(nest.load_model(files.model), nest.load_cluster(files.cluster), nest.Job(
        global_batch=16, seq_len=128), nest.SearchSpace(tp="4", cp=1), top=2)
    assert plan.alternatives
    assert hash(plan) == hash(nest.Plan.parse(plan.as_dict()))
    assert "Best plans" in str(plan)


def test_it_is_shown_as_the_command_shows_it(tmp_path, capsys):
    files = Files(tmp_path)
    target = files.path("plan.json")
    out, _ = run(capsys, "evaluate", *files.words, "-o", target)
    plan = nest.load_plan(target)
    assert plan.report() == str(plan) == out
    assert max(map(len, out.splitlines())) <= 80
    assert "simulated 24" in out
    assert len(repr(plan)) < 200
    assert plan._repr_html_().startswith("<iframe") and "<!DOCTYPE html>" in plan.to_html()
    assert plan.report(unicode=False).isascii()


def test_every_rank_has_its_place():
    """Positions tell ranks apart, and the ranks of a group share all others."""
    ranks = PLAN.ranks()
    assert [r.rank for r in ranks] == list(range(PLAN.parallelism.devices_used))
    assert len({(r.stage, r.dp, r.cp, r.tp) for r in ranks}) == len(ranks)
    assert len({(r.stage, r.expert_dp, r.ep, r.etp) for r in ranks}) == len(ranks)
    size = {"tp": 2, "cp": 1, "dp": 16, "ep": 4, "etp": 2, "expert_dp": 4}
    for name, rest in (("tp", ("dp", "cp")), ("dp", ("cp", "tp")), ("ep", ("expert_dp", "etp")),
                       ("etp", ("expert_dp", "ep")), ("expert_dp", ("ep", "etp"))):
        groups = defaultdict(list)
        for r in ranks:
            groups[r.stage, *(getattr(r, other) for other in rest)].append(getattr(r, name))
        assert {tuple(group) for group in groups.values()} == {tuple(range(size[name]))}
    for r in ranks:
        stage = PLAN.stages[r.stage]
        assert stage.devices[0] <= r.device - PLAN.replicas[r.replica] < stage.devices[1]
    rows = list(csv.reader(io.StringIO(ranks_text(PLAN))))
    assert rows[0] == list(ranks[0]._fields)
    assert rows[1:] == [[str(x) for x in r] for r in ranks]


def test_the_catalog_is_listed():
    for names, load in ((nest.list_models(), nest.load_model),
                        (nest.list_clusters(), nest.load_cluster)):
        assert list(names) == sorted(names)
        assert load(names[0])
    assert "h100-sxm" in nest.list_devices()
    assert "megatron-core" in nest.list_stacks()
