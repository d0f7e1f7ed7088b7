"""Pages of diagnoses and of comparisons: what they say is what the documents say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_plans import plan_of
from simulated_runs import Disturbed

from nest import diagnose, evaluate
from nest.cli.main import main
from nest.measured.diagnosis.result import TITLES, Diagnosis
from nest.planners.compare import ComparedPlan, entries_of, to_json
from nest.report.web.diagnosed import diagnosis_document
from nest.report.web.pages import page
from nest.report.web.planners import comparison_document

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    folder, run = tmp_path_factory.mktemp("run"), Disturbed(plan_of("eight"), computing=1.5)
    run.log(folder / "train.log")
    run.trace(folder / "rank0.json", 0, 0)
    return diagnose(run.plan, str(folder / "train.log"), [str(folder / "rank0.json")])


def test_the_bars_of_a_diagnosis_lead_from_price_to_run(found: Diagnosis) -> None:
    made = diagnosis_document(found, "train.log")
    first, *steps, last = made["stairs"]
    assert (first["name"], last["name"]) == ("priced", "measured")
    assert found.measured_s is not None
    most = max(found.measured_s, *(found.priced_s + sum(
        one.seconds for one in found.causes[:n]) for n in range(len(found.causes) + 1)))
    assert first["to"] == pytest.approx(found.priced_s / most, rel=1e-6)
    for before, after in zip([first, *steps], steps, strict=False):
        assert after["from"] == pytest.approx(before["to"])  # each begins where the last one ended
    assert steps[-1]["to"] == pytest.approx(last["to"]) == pytest.approx(found.measured_s / most)
    assert all((one["kind"] == "more") == (one["to"] >= one["from"]) for one in steps)
    assert [one["name"] for one in made["causes"]] == [TITLES[one.name] for one in found.causes]
    assert made["first"] == list(found.causes[0].advice[:3]) and made["headline"] == found.headline
    assert made["parts"] and made["sources"] and "onerror" not in page(made)
    assert found._repr_html_().startswith("<iframe")


def test_a_diagnosis_without_times_has_a_page(found: Diagnosis) -> None:
    bare = Diagnosis.parse({**json.loads(found.to_json()), "measured_s": None, "causes": [],
                            "parts": [], "headline": HOSTILE})
    made = diagnosis_document(bare, HOSTILE)
    assert made["stairs"] == [] and len(made["figures"]) == 1
    assert HOSTILE not in page(made)


@pytest.fixture(scope="module")
def entries() -> tuple[ComparedPlan, ...]:
    fast = plan_of("eight")
    inputs, way = fast.inputs, fast.configuration
    slow = evaluate(inputs.subject, inputs.cluster, inputs.job, way.replace(
        stages=tuple(stage.replace(recompute="full") for stage in way.stages)))
    return (ComparedPlan("manual", slow, None, 1.0), ComparedPlan("nest", fast, None, 0.5),
            ComparedPlan("piper", None, "has no plan", 0.1))


def test_the_page_of_a_comparison_ranks(entries: tuple[ComparedPlan, ...]) -> None:
    made = comparison_document(entries)
    assert [one["planner"] for one in made["rows"]] == ["nest", "manual", "piper"]
    assert entries[0].plan and entries[1].plan
    share = entries[0].plan.step_time_s / entries[1].plan.step_time_s - 1.0
    assert f"The next one, manual, takes {100 * share:.1f} % longer." in made["verdict"]
    assert made["rows"][2]["state"] == "short" and made["rows"][2]["reason"] == "has no plan"
    assert made["rows"][0]["rate"] == entries[1].plan.tokens_per_s
    nothing = comparison_document(entries[2:])
    assert nothing["verdict"] == "No planner has a plan that fits." and page(nothing)


def test_a_comparison_is_read_again(entries: tuple[ComparedPlan, ...]) -> None:
    again = entries_of(json.loads(to_json(entries)), "x.json")
    assert comparison_document(again) == comparison_document(entries)


@pytest.mark.parametrize(("data", "said"), [
    ([], "got no entry"), ([5], "[0]: got 5"), ([{"planner": "nest"}], "search_seconds: got None"),
    ([{"planner": "nest", "search_seconds": 1, "reason": 3}], "reason: got 3"),
    ([{"planner": "nest", "search_seconds": 1, "plan": "x.json"}], "plan: got 'x.json'"),
    ([{"planner": "nest", "search_seconds": 1, "plan": {"schema": "nest.plan/1"}}], "[0]: plan"),
    ({"schema": "nest.diagnosis/1", "priced_s": "long"}, "priced_s"),
    ({"schema": "nest.plan/1"}, "parallelism")])
def test_bad_documents_are_told(
    data: object, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "given.json"
    file.write_text(json.dumps(data), "utf-8")
    assert main(["report", str(file)]) == 2
    out, err = capsys.readouterr()
    assert said in err and "given.json" in err and "Traceback" not in err and not out


def test_the_commands_write_pages(
    found: Diagnosis, entries: tuple[ComparedPlan, ...], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("diagnosis.json").write_text(found.to_json(), "utf-8")
    Path("compared.json").write_text(to_json(entries), "utf-8")
    for name, words in (("diagnosis", "From the priced step"), ("compared", "Where the steps go")):
        assert main(["report", f"{name}.json"]) == 0
        assert words in Path(f"{name}.html").read_text("utf-8")
    run = Disturbed(plan_of("eight"), computing=1.5)
    Path("plan.json").write_text(run.plan.to_json(), "utf-8")
    run.log(Path("train.log"))
    assert main(["diagnose", "plan.json", "train.log", "--report", "no/x.html"]) == 2
    capsys.readouterr()
    assert main(["diagnose", "plan.json", "train.log", "--report", "x.html", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "nest.diagnosis/1"
    assert '"kind":"diagnosis"' in Path("x.html").read_text("utf-8")
    assert main(["report", "diagnosis.json", "plan.json"]) == 2
