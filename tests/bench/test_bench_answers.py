"""The questions of bench/published.py, and their answers kept on disk."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from command_line import Files
from made_up_answers import count_calls, tiny
from paper import answers as answers_module
from paper.answers import PlannerRun, StoredAnswers, ask, digest
from paper.published import PLANNERS, RECOUNTED, published
from paper.questions import MODELS, PARTS, questions
from paper.results import published_gain

from nest.errors import InputError
from nest.studies.store import FILE, Store

QUICK = ["manual", "zero"]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return count_calls(monkeypatch)


# ---------------------------------------------------------------- questions


def test_the_questions_are_those_of_the_evaluation():
    asked = questions()
    assert len(asked) == 5 * (5 + 4 + 2) and len(set(asked)) == len(asked)
    assert {one.global_batch for one in asked} == {4096}
    points = {part: sorted({one.point for one in asked if one.part == part}) for part in PARTS}
    assert points == {"scaling": [64, 128, 256, 512, 1024], "micro-batch": [1, 2, 4, 8],
                      "h100": [128, 1024]}
    assert {one.mbs for one in asked if one.part != "micro-batch"} == {1}
    assert {one.devices for one in asked if one.part == "micro-batch"} == {256}
    for one in asked:
        described = one.described()
        assert described.cluster.size == one.devices
        assert described.job.seq_len == MODELS[described.model.name] == one.seq_len
        assert [n for n in (1, 2, 4, 8, 16) if described.space.allows("mbs", n)] == [one.mbs]
    assert {one.part for one in questions(["h100"], ["bert-large"])} == {"h100"}
    assert len(questions(["h100"], ["bert-large"])) == 2


def test_published_figures_belong_to_questions():
    """By hand from the artifact: BERT at 1,024, 21.61 / 13.31; Llama-3-70B at 128, 2.97 / 1."""
    known = published()
    assert len(known) == 25 + 12 + 3
    places = {(one.part, one.model, one.devices, one.mbs) for one in questions()}
    assert {(one.part, one.model, one.devices, one.mbs) for one in known} <= places
    assert set().union(*(one.relative for one in known)) == {
        "nest", *PLANNERS}
    assert set(RECOUNTED) == set(MODELS)

    def over(planner: str, model: str, part: str = "scaling"):
        return published_gain([one for one in known if (one.part, one.model) == (part, model)],
                              planner)

    assert over("manual", "bert-large").most == pytest.approx(21.61 / 13.31)
    llama = over("manual", "llama3-70b")
    assert (llama.most, llama.infeasible) == (2.97, 1)  # at 64 devices the expert's does not fit
    assert over("manual", "mixtral-8x7b", "h100").least == 1.503
    assert over("alpa", "bert-large", "h100").mean is None


# ---------------------------------------------------------------- answers on disk


def test_answers_are_kept_and_used_again(files, calls):
    folder = files.path("out")
    asked = [tiny(files), tiny(files, devices=4)]
    told: list[tuple[int, str]] = []
    first = ask(asked, QUICK, StoredAnswers(folder),
                lambda one: told.append((one.question.devices, one.planner)))
    assert calls == QUICK * 2
    assert told == [(8, "manual"), (8, "zero"), (4, "manual"), (4, "zero")]
    with Store(str(Path(folder, FILE)), reads=True) as store:
        stored = [json.loads(answer) for _, answer in store.all_answers()]
    assert [one["planner"] for one in stored] == QUICK * 2
    again = ask(asked, QUICK, StoredAnswers(folder))
    assert calls == QUICK * 2 and again == first
    assert first[0].answer.feasible and first[0].answer.plan == "dp 8 mbs 1 zero 1"


def test_an_answer_is_on_disk_before_the_next_question(files, calls):
    folder = files.path("out")

    def stop(one: PlannerRun) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask([tiny(files)], QUICK, StoredAnswers(folder), stop)
    assert calls == QUICK[:1]
    ask([tiny(files)], QUICK, StoredAnswers(folder))
    assert calls == QUICK


def test_a_question_of_two_parts_is_asked_once(files, calls):
    found = ask([tiny(files), tiny(files, "micro-batch")], ["zero"],
                StoredAnswers(files.path("out")))
    assert calls == ["zero"]
    assert [one.question.part for one in found] == ["scaling", "micro-batch"]


def test_what_changed_is_asked_again(files, calls, monkeypatch):
    folder = files.path("out")

    def count() -> int:
        ask([tiny(files)], ["zero"], StoredAnswers(folder))
        return len(calls)

    assert (count(), count()) == (1, 1)
    monkeypatch.setattr(answers_module, "__version__", "9.9")
    assert (count(), count()) == (2, 2)
    path = Path(files.model)
    path.write_text(path.read_text(encoding="utf-8").replace("7", "6", 1), encoding="utf-8")
    assert (count(), count()) == (3, 3)
    ask([tiny(files, mbs=2)], ["zero"], StoredAnswers(folder))
    assert len(calls) == 4 and count() == 4  # what was asked before is still known
    described = tiny(files).described()
    assert digest(described, "mcmc", {"proposals": 1}) != digest(described, "mcmc", {})
    assert digest(described, "mcmc", {}) != digest(described, "zero", {})


@pytest.mark.parametrize(("change", "told"), [
    ({"schema": "nest.plan/1"}, "got no answer of a planner"),
    ({"mbs": "x"}, "mbs: got 'x'; allowed: a whole"), ({"devices": ...}, "devices: missing"),
    ({"feasible": False}, "reason: got null without feasible"),
    ({"step_time_s": -1}, "step_time_s: got -"),
])
def test_an_answer_of_something_else_is_told(files, change, told):
    folder = files.path("out")
    first = ask([tiny(files)], ["zero"], StoredAnswers(folder))[0].answer
    data = {**first.as_dict(), **change}
    text = json.dumps({name: value for name, value in data.items() if value is not ...})
    base = sqlite3.connect(Path(folder, FILE))
    base.execute("UPDATE answers SET answer = ?", (text,))
    base.commit()
    base.close()
    with pytest.raises(InputError, match=f"answer to {first.question[:8]}: ") as raised:
        ask([tiny(files)], ["zero"], StoredAnswers(folder))
    assert told in str(raised.value)
