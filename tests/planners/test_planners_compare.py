"""Planners side by side: entries, the command, its documents and its picture."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import jsonschema
import pytest
from command_line import JOB, Files, run
from descriptions import PROFILE, put

import nest
from nest.errors import InputError, NoPlanError
from nest.evaluation.evaluate import chain_of
from nest.evaluation.even import even_configuration
from nest.planners import planner, registered, usable
from nest.planners.compare import ComparedPlan, compare, peak_memory, shortage, to_json
from nest.planners.mcmc.mcmc import Mcmc
from nest.planners.prices import outside
from nest.report.comparison_text import (
    comparison_figure,
    comparison_text,
    fastest,
    in_a_line,
    ranked,
    short_number,
)

QUICK = "manual,zero,mcmc,exhaustive"
NUMBER = {"type": ["number", "null"]}
SCHEMA = {"type": "array", "items": {
    "type": "object", "additionalProperties": False,
    "required": ["planner", "feasible", "runnable", "reason", "step_time_s", "tokens_per_s",
                 "peak_memory_bytes", "search_seconds", "plan"],
    "properties": {
        "planner": {"enum": usable()}, "feasible": {"type": "boolean"},
        "runnable": {"type": ["boolean", "null"]},
        "reason": {"type": ["string", "null"]}, "step_time_s": NUMBER, "tokens_per_s": NUMBER,
        "peak_memory_bytes": NUMBER, "search_seconds": {"type": "number", "minimum": 0},
        "plan": {"type": ["object", "null"]}}}}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def question(files: Files) -> tuple[nest.Model, nest.Cluster, nest.Job]:
    return (nest.load_model(files.model), nest.load_cluster(files.cluster),
            nest.Job(global_batch=16, seq_len=128))


# ---------------------------------------------------------------- planners


def test_the_registry_makes_all_eight():
    assert usable() == ["nest", "manual", "zero", "mcmc", "alpa", "phaze", "piper", "exhaustive"]
    for name, one in registered().items():
        made = planner(name)
        assert made.name == name
        assert one.target == f"nest.planners.{name}:{type(made).__name__}" and callable(made.plan)
    assert planner("mcmc", seed=3, proposals=7) == Mcmc(seed=3, proposals=7)
    with pytest.raises(InputError, match="planner: got 'oracle'; allowed: nest, manual"):
        planner("oracle")


@pytest.mark.kernels
def test_every_plan_is_priced_by_evaluate_and_none_beats_nest(files):
    model, cluster, job = question(files)
    for space in (nest.SearchSpace(), nest.SearchSpace(tp="1,2", zero="0,1", pp="1..2")):
        entries = compare(model, cluster, job, space, ["nest", *QUICK.split(",")],
                          {"mcmc": {"proposals": 400}, "nest": {"beyond_stack": True}})
        best = entries[0].plan
        assert [e.planner for e in entries] == ["nest", *QUICK.split(",")]
        for entry in entries:
            plan = entry.plan
            assert plan is not None and entry.feasible and entry.reason is None
            again = nest.evaluate(model, cluster, job, plan.configuration)
            assert again.step_time_s == plan.step_time_s
            assert plan.step_time_s >= best.step_time_s * (1 - 1e-9)
            assert entry.search_seconds > 0


def test_what_finds_nothing_is_an_entry(files):
    model, cluster, job = question(files)
    found = compare(model, cluster, job, nest.SearchSpace(tp=2), ["zero", "manual"])
    assert found[0].plan is None and not found[0].feasible
    assert "no data-parallel configuration" in found[0].reason
    assert found[1].feasible
    with pytest.raises(InputError, match="tp: got 3"):
        compare(model, cluster, job, nest.SearchSpace(tp=3), ["zero"])
    with pytest.raises(InputError, match="planner: got 'x'"):
        compare(model, cluster, job, None, ["x"])


def test_a_planner_that_raises_says_why(files, monkeypatch):
    class Stubborn:
        name = "manual"

        def plan(self, *question: object) -> nest.Plan:
            raise NoPlanError("it would rather not")

    monkeypatch.setattr("nest.planners.manual.Manual", Stubborn)
    entry, = compare(*question(files), None, ["manual"])
    assert (entry.plan, entry.reason) == (None, "it would rather not")


def test_the_stage_that_lacks_most_is_the_reason(files):
    words = files.infeasible()
    model, cluster = nest.load_model(words[0]), nest.load_cluster(words[1])
    job = nest.Job(global_batch=16, seq_len=128, memory_margin=0)
    way = even_configuration(model, cluster, job, pp=2, tp=1)
    plan = nest.evaluate(model, cluster, job, way)
    short = [s.memory_bytes.total - s.memory_limit_bytes for s in plan.stages]
    assert len(plan.problems) == 2 and short[0] != short[1]
    worst = max(range(2), key=lambda n: short[n])
    assert shortage(plan) == f"runs out of memory: {plan.problems[worst]} (and 1 more stage)"
    assert peak_memory(plan) == max(s.memory_bytes.total for s in plan.stages)


@pytest.mark.parametrize(("bounds", "said"), [
    ({"pp": 1}, "pp 2"), ({"outer_dp": 1}, "outer_dp 2"), ({"dp_in": 2}, "dp_in 1"),
    ({"tp": 4}, "tp 2"), ({"sp": False}, "sp True"), ({"cp": 2}, "cp 1"), ({"ep": 2}, "ep 1"),
    ({"etp": 1}, "etp 2"), ({"micro_batch": 1}, "micro_batch 2"), ({"mbs": 1}, "mbs 2"),
    ({"vpp": 2}, "vpp 1"), ({"zero": 0}, "zero 1"), ({"shard": "dp_in"}, "shard dp"),
    ({"recompute": "none"}, "recompute full"), ({"schedule": "gpipe"}, "schedule 1f1b"),
    ({"recompute_layers": "1..3"}, "recompute_layers 4"), ({"recompute_layers": "1..4"}, None),
    ({"recompute_modules": "norm", "cp_comm": "a2a"}, None), ({}, None),
])
def test_what_lies_outside_of_a_space(files, bounds, said):
    """Dimensions that mean nothing here, as modules of full recompute, bound nothing."""
    model, cluster, job = question(files)
    way = even_configuration(model, cluster, job, tp=2, pp=2, zero=1, mbs=2,
                                       recompute="full")
    assert outside(nest.SearchSpace.parse(bounds), chain_of(model), way) == said


def test_what_depends_on_other_dimensions(files):
    model, cluster, job = question(files)
    chain = chain_of(model)
    plain = even_configuration(model, cluster, job)
    assert outside(nest.SearchSpace(sp=True, shard="dp_in", group=3), chain, plain) is None
    turns = even_configuration(model, cluster, job, pp=2, vpp=2)
    assert outside(nest.SearchSpace(group=3), chain, turns) == "group 2"
    assert outside(nest.SearchSpace(group="1,2"), chain, turns) is None
    ring = even_configuration(model, cluster, job, cp=2)
    assert outside(nest.SearchSpace(cp_comm="a2a"), chain, ring) == "cp_comm p2p"
    norms = even_configuration(model, cluster, job, recompute="selective",
                                         recompute_modules=("norm",))
    assert outside(nest.SearchSpace(recompute_modules="core_attn"), chain, norms) == (
        "recompute_modules norm")
    some = even_configuration(model, cluster, job, recompute="full", recompute_layers=2)
    assert outside(nest.SearchSpace(recompute_layers=3), chain, some) == "recompute_layers 2"


# ---------------------------------------------------------------- the command


def test_the_command_prints_what_compare_gives(files, capsys):
    out, _ = run(capsys, "compare", *files.words, "--planners", QUICK, "--proposals", "200",
                 "--seed", "3", "--tp", "1..2", "--json")
    document = json.loads(out)
    jsonschema.validate(document, SCHEMA)
    found = compare(*question(files), nest.SearchSpace(tp="1..2"), QUICK.split(","),
                    {"mcmc": {"seed": 3, "proposals": 200}})
    assert [d["planner"] for d in document] == QUICK.split(",")
    for entry, given in zip(found, document, strict=True):
        assert given["step_time_s"] == entry.plan.step_time_s
        assert given["tokens_per_s"] == entry.plan.tokens_per_s
        assert given["peak_memory_bytes"] == peak_memory(entry.plan)
        assert nest.Plan.parse(given["plan"]) == entry.plan
    assert json.loads(to_json(found))[0]["plan"] == document[0]["plan"]


@pytest.mark.kernels
def test_all_planners_are_asked_unless_told(files, capsys):
    out, _ = run(capsys, "compare", *files.words, "--json", "--proposals", "50", "--devices", "4")
    document = json.loads(out)
    jsonschema.validate(document, SCHEMA)
    assert [entry["planner"] for entry in document] == usable()
    assert document[0]["feasible"]
    best = document[0]["step_time_s"]
    for entry in document:
        assert not entry["feasible"] or entry["step_time_s"] >= best * (1 - 1e-9)


def test_what_does_not_fit_is_no_failure_of_the_command(files, capsys):
    words = ["compare", *files.infeasible(), "--planners", "manual,zero,exhaustive"]
    document = json.loads(run(capsys, *words, "--tp", "1", "--zero", "0", "--json")[0])
    zero = document[1]
    assert zero["plan"] is None and "no data-parallel" in zero["reason"]
    assert not document[0]["feasible"] and document[0]["plan"] is not None
    assert "runs out of memory: stage" in document[0]["reason"]
    out, _ = run(capsys, *words, "--tp", "1", "--zero", "0")
    assert "Without a plan that fits" in out
    assert "no plan" in out and "GiB short" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def test_the_report_reads_well(files, capsys):
    out, _ = run(capsys, "compare", *files.words, "--planners", QUICK, "--proposals", "100")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "tiny on c, 8 devices"
    for name in QUICK.split(","):
        assert sum(line.startswith(name) for line in lines) == 2  # figures, and the plan
    assert out.count("best") >= 1 and "Without a plan" not in out
    assert run(capsys, "compare", *files.words, "--planners", "zero", "-q")[0] == ""


def test_a_profile_counts_samples(files, capsys):
    profile = str(put(files.folder, PROFILE, "profile.yaml"))
    out, _ = run(capsys, "compare", "--profile", profile, files.cluster, *JOB, "--planners",
                 "manual,zero,exhaustive")
    assert "samples/s" in out and "tokens/s" not in out


def test_the_chart(files, capsys):
    words = ["compare", *files.words, "--planners", "manual,zero", "--tp", "2", "--chart"]
    run(capsys, *words, files.path("chart.svg"))
    text = Path(files.path("chart.svg")).read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    for word in ("manual", "zero", "no plan", "tokens/s", "tiny on c, 8 devices"):
        assert f"<!-- {word} -->" in text  # glyphs are outlines, under a comment that says them
    run(capsys, *words, files.path("chart.png"))
    assert Path(files.path("chart.png")).read_bytes().startswith(b"\x89PNG")


def test_bars_are_as_long_as_throughputs(files):
    model, cluster, job = question(files)
    fast, slow = (nest.evaluate(model, cluster, job, even_configuration(
        model, cluster, job, tp=tp)) for tp in (1, 4))
    short = fast.model_copy(update={"feasible": False})
    entries = (ComparedPlan("manual", fast, None, 1.0),
               ComparedPlan("zero", slow, "for <some> reason", 2.0),
               ComparedPlan("alpa", None, "none & nothing", 0.1),
               ComparedPlan("piper", short, "short", 0.1))
    axes, = comparison_figure(entries, "a < b").axes
    bars = list(axes.patches)
    assert [bar.get_width() for bar in bars] == [
        fast.tokens_per_s, slow.tokens_per_s, 0.0, fast.tokens_per_s]
    assert bars[0].get_facecolor() == bars[1].get_facecolor() != bars[3].get_facecolor()
    assert [text.get_text() for text in axes.texts] == [
        short_number(fast.tokens_per_s), short_number(slow.tokens_per_s), "no plan",
        f"{short_number(fast.tokens_per_s)}, does not fit"]
    assert [text.get_fontweight() for text in axes.texts[:2]] == ["bold", "normal"]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "manual", "zero", "alpa", "piper"]
    assert axes.yaxis_inverted()  # the first is on top
    assert fast.tokens_per_s < axes.get_xlim()[1] < 1.5 * fast.tokens_per_s
    assert axes.get_title(loc="left") == "a < b"
    assert not comparison_figure((), "nothing").axes[0].patches


def test_plans_that_can_run_come_first(files):
    model, cluster, job = question(files)
    plan = nest.evaluate(model, cluster, job, even_configuration(model, cluster, job, tp=2))
    fast = plan.unchecked(step_time_s=plan.step_time_s / 2, runnable=False)
    large = plan.unchecked(step_time_s=plan.step_time_s / 4, feasible=False)
    made = [ComparedPlan(name, one, None, 0.5) for name, one in (
        ("none", None), ("large", large), ("fast", fast), ("runs", plan), ("same", plan))]
    assert [one.planner for one in ranked(made)] == ["runs", "same", "fast", "large", "none"]
    assert fastest(made) is plan and fastest(made[:3]) is fast and fastest(made[:2]) is None
    text = comparison_text(made, "t")
    assert re.search(r"^fast .* -50.0 % .* yes +no$", text, re.MULTILINE)
    assert re.search(r"^runs .* best .* yes +(yes|[?])$", text, re.MULTILINE)


def test_text_of_made_up_entries(files):
    model, cluster, job = question(files)
    way = even_configuration(model, cluster, job, tp=2, pp=2, vpp=1, zero=1, mbs=2,
                                       recompute="full")
    plan = nest.evaluate(model, cluster, job, way)
    assert in_a_line(plan) == "tp 2 pp 2 dp 2 mbs 2 zero 1 full recompute"
    stages = (way.stages[0].model_copy(update={"zero": 3, "recompute": "none"}), way.stages[1])
    mixed = nest.evaluate(model, cluster, job, way.model_copy(update={"stages": stages}))
    assert in_a_line(mixed) == "tp 2 pp 2 dp 2 mbs 2 zero 1..3 some recompute"
    other = cluster.replace(name="elsewhere")
    moved = nest.evaluate(model, other, job, way)
    text = comparison_text((ComparedPlan("nest", plan, None, 0.5),
                            ComparedPlan("mcmc", moved, None, 0.25)), "t")
    assert "mcmc is priced on elsewhere." in text
    assert [short_number(x) for x in (7.9, 79.96, 952_000, 1.206e6, 999_600)] == [
        "7.90", "80.0", "952 k", "1.21 M", "1.00 M"]


@pytest.mark.parametrize(("words", "message"), [
    (["--planners", "manual,oracle"], "planners: got 'oracle'; allowed: all, or some of nest"),
    (["--chart", "x.gif"], "chart: got 'x.gif'; allowed: a name that ends in .png, .svg or .pdf"),
    (["--chart", ""], "--chart: got no name; allowed: a file to write"),
    (["--planners", "zero", "--seed", "1"], "got --seed without the planner mcmc"),
    (["--planners", "mcmc", "--links", "rack:4"], "links: got 'rack:4'; allowed: a level of c"),
    (["--planners", "mcmc", "--links", "leaf:0"], "links: degree: got 0; allowed: 1 or more"),
    (["--planners", "mcmc", "--links", "leaf"], "links: got 'leaf'"),
    (["--planners", "mcmc", "--proposals", "0"], "proposals: got 0; allowed: 1 to 1000000"),
    (["--tp", "3"], "tp: got 3"),
    (["--threads", "0"], "threads: got 0"),
])
def test_bad_input(files, capsys, words, message):
    _, err = run(capsys, "compare", *files.words, *words, code=2)
    assert message in err


def test_links_reach_mcmc(files, capsys):
    words = ["compare", *files.words, "--planners", "mcmc", "--proposals", "150", "--json"]
    named = json.loads(run(capsys, *words, "--links", "leaf:2")[0])[0]["plan"]
    numbered = json.loads(run(capsys, *words, "--links", "1:2")[0])[0]["plan"]
    assert named == numbered
    assert named["inputs"]["cluster"]["name"] == "c, leaf as 2 direct links a group"
