"""What a page shows is true to the plan, small, and harmless whatever names it holds."""

from __future__ import annotations

import json
import re
from functools import cache
from random import Random

import pytest
from command_line import Files, run
from instances import instance
from random_plans import random_plan
from report_plans import PLANS, STUDY, catalog_runs, plan_of

from nest.errors import InputError
from nest.evaluation.evaluate import evaluate
from nest.evaluation.plans import Plan
from nest.explanation.explanation import explain, priced
from nest.explanation.neighbours import neighbours
from nest.measured.validation import price, read, score
from nest.report.web import timeline as lines
from nest.report.web.compared import pair_document
from nest.report.web.document import facts, plan_document
from nest.report.web.pages import frame, page
from nest.report.web.validated import validation_document
from nest.simulation import simulate
from nest.studies.sweep import stored


@cache
def document(name: str) -> dict:
    plan = plan_of(name)
    return plan_document(plan, facts(plan), "PLAN.json").data()


@pytest.mark.parametrize("name", PLANS)
def test_a_page_is_small_and_asks_for_nothing(name: str) -> None:
    text = page(document(name))
    assert len(text) < 3 * 2**20
    assert not re.search(r"(src|href)=[\"']?(https?:)?//|@import|url\(|fetch\(|XMLHttp", text)
    assert "default-src 'none'" in text


@pytest.mark.parametrize("name", PLANS)
def test_the_timeline_is_the_simulated_step(name: str) -> None:
    """Passes of a stage do not overlap, what lies between them is told, and sums agree."""
    found, plan = document(name)["timeline"], plan_of(name)
    simulated = simulate(plan)
    assert found["step_s"] == simulated.step_time_s
    compute = {kind for kind, word in enumerate(lines.KINDS)
               if word not in ("collective", "hand-over")}
    for stage in range(len(plan.stages)):
        rows = sorted((start, length, kind) for s, kind, start, length in zip(
            found["stage"], found["kind"], found["start"], found["length"], strict=True)
            if s == stage and kind in compute)
        end = 0
        for start, length, _ in rows:
            assert abs(start - end) <= 3  # units of rounding
            end = start + length
        assert end == pytest.approx(lines.TICKS, abs=5)
        if found["left_out"] is None:
            waits = sum(length for _, length, kind in rows if kind == lines.WAIT)
            spent = simulated.stages[stage].time_s
            assert waits / lines.TICKS * simulated.step_time_s == pytest.approx(
                spent.bubble + spent.waiting, rel=0.02, abs=2e-3 * simulated.step_time_s)


@pytest.mark.parametrize("name", PLANS)
def test_the_waterfall_adds_up_to_the_step(name: str) -> None:
    plan = plan_of(name)
    assert sum(step["seconds"] for step in document(name)["steps"]) == pytest.approx(
        plan.step_time_s)
    assert all(step["advice"] and step["evidence"] for step in document(name)["steps"])


def test_levels_carry_what_the_collectives_send() -> None:
    """By hand: rings of tensor parallelism stay in a node, the pipeline crosses leaves."""
    plan = plan_of("hundreds")
    found = document("hundreds")["traffic"]
    loads = {one["name"]: dict(zip(found["purposes"], one["bytes"], strict=True))
             for one in found["loads"]}
    assert loads["node"]["tensor parallel"] > 0.0
    assert loads["leaf"]["tensor parallel"] == loads["spine"]["tensor parallel"] == 0.0
    # A stage of 64 devices, two leaves, hands on to the next two: both ways, bf16, each of its 64
    # ranks a part.
    job, p = plan.inputs.job, plan.parallelism
    hidden = plan.inputs.model.hidden
    assert loads["spine"]["pipeline"] == pytest.approx(
        2 * 2 * job.seq_len * hidden * p.micro_batch * p.micro_batches
        * len(plan.stages[1].chunks) / 64, rel=1e-6)


def test_devices_are_counted() -> None:
    places = document("idle")["places"]
    assert places["idle"] == places["size"] - plan_of("idle").parallelism.devices_used > 0


def test_neighbours_are_priced_as_evaluate_prices_them() -> None:
    plan = plan_of("eight")
    found = {one.change: one for one in neighbours(plan)}
    full = plan.configuration.replace(stages=tuple(
        stage.replace(recompute="full") for stage in plan.configuration.stages))
    again = evaluate(plan.inputs.subject, plan.inputs.cluster, plan.inputs.job, full)
    assert found["recompute full"].step_time_s == again.step_time_s
    assert found["recompute full"].memory_share == again.memory_share
    assert all(bool(one.why_not) == (not one.feasible or one.runnable is False)
               for one in found.values())


def test_more_of_a_resource_is_never_slower() -> None:
    plan = plan_of("eight")
    effects = priced(plan, 1.1)
    assert all(one.share <= 0.0 for one in effects if one.share is not None and one.factor > 1.0)
    slight = {one.name: one for one in priced(plan)}
    ten = {one.name: one for one in effects}
    assert ten["device FLOP/s"].change_s < slight["device FLOP/s"].change_s < 0.0
    assert {one.devices for one in effects if one.resource == "devices"} == {7, 9}


@pytest.mark.parametrize("more", [1.0, 0.5, 11.0, float("nan")])
def test_resources_grow(more: float) -> None:
    with pytest.raises(ValueError, match="more: got .*; allowed: above 1, at most 10"):
        explain(plan_of("eight"), more=more)


@pytest.mark.parametrize("seed", range(12))
def test_every_legal_plan_has_a_page(seed: int) -> None:
    """Also of profiles, with stages that differ, and of plans that do not fit."""
    x, rng = instance(seed), Random(seed)
    for _ in range(100):
        try:
            plan = evaluate(x.chain.model or x.chain.profile, x.cluster, x.job,
                            random_plan(rng, x))
        except InputError:
            continue
        made = plan_document(plan, facts(plan))
        assert made.answer.feasible == plan.feasible
        assert sum(one.seconds for one in made.steps) == pytest.approx(plan.step_time_s)
        assert len(made.places.stages) == len(plan.stages) == len(made.memory)
        assert page(made.data())
        return


def test_long_steps_stay_small() -> None:
    """Of 2,048 micro-batches those in the middle are left out, and hand-overs."""
    short = plan_of("hundreds")
    job = short.inputs.job.replace(global_batch=2048 * 16)
    plan = evaluate(short.inputs.subject, short.inputs.cluster, job, short.configuration)
    made = plan_document(plan, facts(plan))
    assert made.timeline.left_out is not None
    kinds = {lines.KINDS[kind] for kind in made.timeline.kind}
    assert "left out" in kinds and "hand-over" not in kinds
    assert len(page(made.data())) < 3 * 2**20


HOSTILE = "</script><img src=x onerror=alert(1)>{0}"


def test_names_are_no_markup() -> None:
    """A plan of another's file may hold any name; the page holds it as data alone."""
    data = plan_of("eight").as_dict()
    data["inputs"]["model"]["name"] = data["inputs"]["cluster"]["name"] = HOSTILE
    plan = Plan.parse(data)
    made = plan_document(plan, facts(plan), f"{HOSTILE}.json", ("megatron", {HOSTILE: HOSTILE}))
    text = page(made.data())
    assert "<img" not in text and text.count("</script>") == 2
    body = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert HOSTILE in json.loads(body[1])["title"]
    assert "<img" not in frame(made.data()) and "</script><img" not in plan._repr_html_()


def test_report_writes_one_file(tmp_path, capsys) -> None:
    given = Files(tmp_path)
    run(capsys, "evaluate", *given.words, "-o", given.path("plan.json"))
    out, _ = run(capsys, "report", given.path("plan.json"))
    assert out.strip() == given.path("plan.html")
    assert "<!DOCTYPE html>" in (tmp_path / "plan.html").read_text("utf-8")
    run(capsys, "report", given.path("plan.json"), "-o", given.path("no/x.html"), code=2)
    _, err = run(capsys, "report", "nothing.json", code=2)
    assert "nothing.json" in err


# ---------------------------------------------------------------- two plans


def test_two_plans_tell_why_one_is_faster(tmp_path, capsys) -> None:
    slow, fast = plan_of("eight"), plan_of("eight")
    way = slow.configuration
    slow = evaluate(slow.inputs.subject, slow.inputs.cluster, slow.inputs.job, way.replace(
        stages=tuple(stage.replace(recompute="full") for stage in way.stages)))
    made = pair_document((slow, fast), tuple(
        plan_document(plan, facts(plan)) for plan in (slow, fast)), ("slow", "fast"))
    share = slow.step_time_s / fast.step_time_s - 1.0
    assert f"fast is faster: slow takes {100 * share:.1f} % longer." in made.verdict
    assert made.causes[0].name == "recompute" and made.causes[0].seconds < 0.0
    assert sum(one.seconds for one in made.causes) == pytest.approx(
        fast.step_time_s - slow.step_time_s)
    assert {row.name for row in made.rows if not row.same} >= {"Step", "Recompute"}
    assert {row.name for row in made.rows if row.same} >= {"Tensor parallel", "Data parallel"}
    for name, plan in (("a", slow), ("b", fast)):
        (tmp_path / f"{name}.json").write_text(plan.to_json(), "utf-8")
    run(capsys, "report", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "-o",
        str(tmp_path / "pair.html"))
    assert "recompute" in (tmp_path / "pair.html").read_text("utf-8")
    assert slow.against(fast)._repr_html_().startswith("<iframe")
    with pytest.raises(InputError, match="other: got 3; allowed: a plan"):
        slow.against(3)  # type: ignore[arg-type]


def test_other_questions_are_told() -> None:
    plans = plan_of("eight"), plan_of("zero bubble")
    made = pair_document(plans, tuple(plan_document(one, facts(one)) for one in plans), ("a", "b"))
    assert any("the model and the cluster differ" in text for text in made.verdict)


# ---------------------------------------------------------------- studies and validations


@pytest.mark.kernels
def test_a_study_shows_what_is_late_and_what_does_not_fit(tmp_path, capsys) -> None:
    (tmp_path / "study.json").write_text(json.dumps(STUDY), "utf-8")
    folder = tmp_path / "answers"
    run(capsys, "sweep", str(tmp_path / "study.json"), "-o", str(folder), "-q")
    run(capsys, "report", str(folder))
    done = stored(folder)
    found = done.document()
    why = {cell[2] for panel in found["heat"]["panels"] for cell in panel["empty"]}
    assert why == {"infeasible", "late"} <= set(found["heat"]["reasons"])
    cells = sum(len(panel["cells"]) + len(panel["empty"]) for panel in found["heat"]["panels"])
    assert cells == 6
    with done.results() as results:
        front = {point[2] for group in found["front"]["groups"] for point in group["points"]
                 if point[3]}
        assert front == set(results.front)
    assert page(found) == done.to_html() == (tmp_path / "answers.html").read_text("utf-8")
    assert done._repr_html_().startswith("<iframe")
    _, err = run(capsys, "report", str(folder), "--search", "1", code=2)
    assert "allowed: with plans" in err


def test_a_validation_shows_every_configuration(tmp_path, capsys) -> None:
    table = catalog_runs(12)
    (tmp_path / "runs.csv").write_text(table, "utf-8")
    run(capsys, "report", str(tmp_path / "runs.csv"))
    scored = score(price(read(str(tmp_path / "runs.csv"))))
    found = validation_document(scored, "runs.csv")
    assert len(found["points"]) == len(scored.compared) > 0
    for (measured, priced_s, *_), one in zip(found["points"], scored.compared, strict=True):
        assert (measured, priced_s) == (one.measured_s, one.predicted_s)
    assert found["figures"][0]["value"] == f"{100 * scored.overall.median_abs_error:.1f} %"
