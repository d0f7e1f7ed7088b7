"""What a plan's resources are worth and why simpler plans are slower: against planning afresh."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from command_line import CLUSTER, Files, run
from descriptions import MODEL, changed, put

import nest
from nest.cli.main import main
from nest.evaluation.plans import Plan
from nest.explanation.explanation import Explanation, explain
from nest.report.explanation_text import explanation_text

pytestmark = pytest.mark.kernels
JOB = nest.Job(global_batch=16, seq_len=128)
SPACE = nest.SearchSpace(cp=1, recompute="none,full", recompute_layers="1000", shard="dp", sp=True)
WIDE = {**MODEL, "layers": 7, "hidden": 1024, "ffn": 4096, "heads": 8, "vocab": 32000}
ROOMY, TIGHT = 8 * 2**30, 2.6 * 2**30
"""Bytes of memory in which every kind of plan fits, and only some do."""


def cluster(memory: float, groups: int = 2) -> nest.Cluster:
    data = changed(changed(CLUSTER, "device.memory", memory), "levels.1.size", groups)
    return nest.Cluster.parse(changed(data, "default_devices", ...))


def planned(memory: float = ROOMY, **bounds: object) -> Plan:
    return nest.plan(nest.Model.parse(WIDE), cluster(memory), JOB, SPACE.replace(**bounds),
                     beyond_stack=True)


def best(where: nest.Cluster, **bounds: object) -> float:
    return nest.plan(nest.Model.parse(WIDE), where, JOB, SPACE.replace(**bounds),
                     beyond_stack=True).step_time_s


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned(TIGHT)


@pytest.fixture(scope="module")
def found(plan: Plan) -> Explanation:
    return explain(plan, time_limit=1000.0)


# ---------------------------------------------------------------- resources


def under(name: str, level: str | None = None) -> nest.Cluster:
    """The tight cluster with one per cent more of a resource."""
    where = cluster(TIGHT)
    device = where.device
    if name == "bandwidth":
        levels = [x.replace(bandwidth=1.01 * x.bandwidth) if x.name == level else x
                  for x in where.levels]
        return where.replace(levels=levels)
    more = {
        "flops": {"peak_flops": {k: 1.01 * v for k, v in device.peak_flops.items()}},
        "memory": {"memory": 1.01 * device.memory},
        "memory_bandwidth": {"memory_bandwidth": 1.01 * device.memory_bandwidth},
    }
    return where.replace(device=device.replace(**more[name]))


def test_prices_are_those_of_planning_again(plan, found):
    assert found.method == "solved"
    names = [(p.resource, p.level) for p in found.prices]
    assert names == [("flops", None), ("memory", None), ("memory_bandwidth", None),
                     ("bandwidth", "node"), ("bandwidth", "leaf"), ("devices", None),
                     ("devices", None)]
    for price in found.prices:
        assert price.proven
        where = (cluster(TIGHT, price.devices // 4) if price.resource == "devices"
                 else under(price.resource, price.level))
        assert price.devices == where.size
        assert price.step_time_s == pytest.approx(best(where), rel=1e-9)
        assert price.change_s == price.step_time_s - plan.step_time_s
        assert price.share == pytest.approx(price.change_s / plan.step_time_s)


def test_more_is_never_slower_and_less_devices_never_faster(found):
    *more, fewer = found.prices
    assert fewer.devices == 4
    assert fewer.factor == 0.5
    assert fewer.change_s > 0
    assert "blocks" in fewer.changes or "->" in fewer.changes
    assert [p.factor for p in more] == [1.01] * 5 + [1.5]
    assert all(p.change_s <= 0 for p in more)
    assert "device FLOP/s" in found.bottleneck or "bandwidth" in found.bottleneck


def test_fewer_devices_may_not_do():
    fewer = explain(planned(2.15 * 2**30)).prices[-1]
    assert fewer.step_time_s is None
    assert fewer.note == "nothing fits"


def test_an_oversubscribed_level_changes_alone():
    data = changed(changed(CLUSTER, "device.memory", ROOMY), "levels.1.size", 2)
    data = changed(changed(data, "default_devices", ...), "levels.1.bandwidth", ...)
    where = nest.Cluster.parse(changed(data, "levels.1.oversubscription", 4))
    from nest.explanation.explanation import MORE, _changed

    resolved = {c.level: c.cluster.resolved_bandwidth for c in _changed(where, MORE) if c.level}
    assert resolved == {"node": (101e9, 25e9), "leaf": (100e9, pytest.approx(25.25e9))}


def test_groups_of_one_level_are_devices():
    from nest.explanation.explanation import MORE, _changed

    where = cluster(ROOMY).with_devices(1)
    assert [c.cluster.size for c in _changed(where, MORE) if c.resource == "devices"] == [2]


def test_what_was_only_evaluated_is_priced_again(plan):
    given = nest.evaluate(nest.Model.parse(WIDE), cluster(TIGHT), JOB, plan.configuration)
    again = explain(given)
    assert again.method == "priced"
    for price in again.prices[:5]:
        where = under(price.resource, price.level)
        priced = nest.evaluate(nest.Model.parse(WIDE), where, JOB, plan.configuration)
        assert price.step_time_s == priced.step_time_s
        assert price.changes == ""
        assert not price.proven
    more, fewer = again.prices[5:]
    assert more.change_s == 0.0
    assert fewer.step_time_s is None
    assert fewer.note == "the plan needs more devices"
    assert again.simpler[0].name == "best plan"
    assert again.simpler[0].step_time_s <= given.step_time_s
    assert "priced again with this change" in " ".join(explanation_text(given, again).split())


def test_simpler_than_what_the_stack_can_run_can_be_run_too():
    model, where = nest.Model.parse(WIDE), cluster(ROOMY)
    own = nest.plan(model, where, JOB, nest.SearchSpace(pp=2)).configuration
    for other in explain(nest.evaluate(model, where, JOB, own)).simpler:
        assert other.configuration is None or nest.evaluate(
            model, where, JOB, other.configuration).runnable, other.name


def test_the_text_says_how_many_layers_run_again(plan):
    few = tuple(stage.replace(recompute="full", recompute_modules=(), recompute_layers=2)
                for stage in plan.configuration.stages)
    again = nest.evaluate(nest.Model.parse(WIDE), cluster(TIGHT), JOB,
                          plan.configuration.replace(stages=few))
    text = " ".join(explanation_text(again, explain(again, time_limit=5.0)).split())
    assert "recompute full, recompute_layers 2" in text


# ---------------------------------------------------------------- simpler plans


BOUNDS = {
    "tp 4 everywhere": {"tp": 4},
    "no pipeline": {"pp": 1},
    "ZeRO-3 only": {"pp": 1, "tp": 1, "zero": 3},
    "data parallel, full recompute": {"pp": 1, "tp": 1, "zero": "0,1", "recompute": "full"},
}


def test_simpler_plans_are_the_best_within_their_bounds(plan, found):
    named = {s.name: s for s in found.simpler}
    assert set(named) - {"even cuts"} == set(BOUNDS)
    for name, bounds in BOUNDS.items():
        one = named[name]
        assert one.proven
        try:
            seconds = best(cluster(TIGHT), **bounds)
        except nest.InfeasibleError:
            assert one.step_time_s is None
            assert one.note.startswith(f"does not fit: stage {one.stage} needs ")
            assert one.bytes_short > 0
        else:
            assert one.step_time_s == pytest.approx(seconds, rel=1e-9)
            assert one.slower >= 0
            total = sum(one.differences_s.values())
            assert total == pytest.approx(one.step_time_s - plan.step_time_s, abs=1e-9)
    assert any(s.step_time_s is None for s in found.simpler)
    assert any(s.step_time_s is not None for s in found.simpler)


def test_the_miss_is_near(found):
    for one in found.simpler:
        if one.step_time_s is None and one.configuration is not None:
            priced = nest.evaluate(nest.Model.parse(WIDE), cluster(TIGHT), JOB, one.configuration)
            assert not priced.feasible
            room = TIGHT + 1.2 * one.bytes_short + 2**28
            fits = nest.SearchSpace(**{**SPACE.as_dict(), **BOUNDS[one.name]})
            assert nest.plan(nest.Model.parse(WIDE), cluster(room), JOB, fits,
                             beyond_stack=True).feasible


def test_a_plan_of_the_kind_is_the_plan_itself():
    one = planned(pp=1, tp=1)
    named = {s.name: s for s in explain(one).simpler}
    assert named["no pipeline"].note == "this plan"
    assert named["no pipeline"].slower == 0.0
    assert "- no pipeline: this plan" in explanation_text(one, explain(one))


def test_even_cuts_of_equal_blocks():
    model = nest.Model.parse(WIDE)
    stages = [{"layers": [0, 3], "devices": [0, 4], "tp": 4},
              {"layers": [3, 9], "devices": [4, 8], "tp": 4}]
    way = nest.Configuration.parse({"micro_batch": 1, "stages": stages})
    odd = nest.evaluate(model, cluster(ROOMY), JOB, way)
    even = explain(odd).simpler[-1]
    assert even.name == "even cuts"
    assert [s.layers for s in even.configuration.stages] == [(0, 4), (4, 9)]
    assert even.slower < 0
    flat = nest.evaluate(model, cluster(ROOMY), JOB, even.configuration)
    assert flat.step_time_s == even.step_time_s
    assert explain(flat).simpler[-1].name != "even cuts"


def test_bounds_that_exclude_a_kind():
    named = {s.name: s for s in explain(planned(pp=2, dp_in=1, tp=4)).simpler}
    assert named["ZeRO-3 only"].step_time_s is None or named["ZeRO-3 only"].slower is not None
    assert named["no pipeline"].bounds["pp"] == "1"


# ---------------------------------------------------------------- limits and bad input


def test_stopped_searches_are_never_worse_than_the_plan(plan):
    hasty = explain(plan, time_limit=1e-6)
    for price in hasty.prices[:6]:
        assert price.change_s <= 0
    assert not all(p.proven for p in hasty.prices)
    text = explanation_text(plan, hasty)
    assert "no plan found in time" in text or "<=" in text


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_time_limit_has_to_be_positive(plan, seconds):
    with pytest.raises(nest.InputError, match="time_limit: got .*above 0"):
        explain(plan, time_limit=seconds)


def test_the_document_has_its_schema(plan, found):
    document = json.loads(found.to_json())
    assert document["schema"] == "nest.explanation/1"
    jsonschema.validate(document, Explanation.model_json_schema(mode="serialization"))


def test_the_text_fits_80_columns(plan, found):
    text = explanation_text(plan, found)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert explanation_text(plan, found, unicode=False).isascii()
    for price in found.prices:
        assert price.name in text
    for one in found.simpler:
        assert f"- {one.name}: " in text


# ---------------------------------------------------------------- command line


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def written(files: Files, *words: str) -> str:
    target = files.path("plan.json")
    assert main(["plan", *files.words, "--cp", "1", "--recompute", "none", "-o", target, "-q",
                 *words]) == 0
    return target


def test_the_command_explains_a_plan_file(files, capsys):
    path = written(files)
    out, err = run(capsys, "explain", path, "--json", "--threads", "1", "--time-limit", "60")
    assert json.loads(out)["method"] == "solved"
    assert err == ""
    schema = json.loads(run(capsys, "schema", "explanation")[0])
    jsonschema.validate(json.loads(out), schema)
    text, _ = run(capsys, "explain", path)
    assert "Effect of each resource" in text
    assert "Simpler plans" in text


def test_an_edited_plan_is_priced_as_it_stands(files, capsys):
    data = json.loads(Path(written(files, "--pp", "2", "--tp", "2")).read_text(encoding="utf-8"))
    stages = data["stages"]
    moved = changed(data, "stages.0.layers", [0, stages[0]["layers"][1] + 1])
    moved = changed(moved, "stages.1.layers", [stages[1]["layers"][0] + 1, 9])
    path = str(put(files.folder, moved, "edited.json"))
    out, err = run(capsys, "explain", path, "--json")
    assert json.loads(out)["method"] == "priced"
    assert "edited, so its search says nothing of it" in err


@pytest.mark.parametrize(("change", "parts"), [
    ({"search.space.tp": "lots"}, ["search.space", "tp", "'lots'"]),
    ({"search.space.width": "8"}, ["search.space", "width", "unknown field"]),
    ({"search.space": 8}, ["plan.json", "search.space"]),
    ({"search": 8}, ["plan.json", "search"]),
    ({"search.seconds": "long"}, ["search.seconds", "'long'"]),
    ({"step_time_s": "fast"}, ["step_time_s", "'fast'"]),
    ({"step_time_s": ...}, ["step_time_s", "missing"]),
    ({"optimal": "yes"}, ["optimal", "'yes'"]),
    ({"inputs": ...}, ["inputs", "missing"]),
])
def test_bad_plan_files(files, capsys, change, parts):
    data = json.loads(Path(written(files)).read_text(encoding="utf-8"))
    for field, value in change.items():
        data = changed(data, field, value)
    path = str(put(files.folder, data, "plan.json"))
    out, err = run(capsys, "explain", path, code=2)
    assert out == ""
    for part in parts:
        assert part in err


def test_bad_words(files, capsys):
    for words, parts in (
        ([], ["PLAN.json"]),
        (["llama2-7b"], ["'llama2-7b'", "which is not a file", "PLAN.json"]),
        (["absent.json"], ["absent.json", "no such file"]),
        ([files.model], ["model.yaml", "schema: missing"]),
        ([files.model, "--threads", "0"], ["threads", "got 0"]),
        ([files.model, "--time-limit", "0"], ["--time-limit", "'0'", "above 0"]),
        ([files.model, "--time-limit", "soon"], ["--time-limit", "'soon'", "seconds"]),
        ([files.model, "--time-limit", "nan"], ["--time-limit", "'nan'"]),
    ):
        out, err = run(capsys, "explain", *words, code=2)
        assert out == ""
        for part in parts:
            assert part in err, words
