"""A set of planning problems: what is in it, its files, and what answers to it are worth."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from random import Random

import jsonschema
import pytest

import nest
from nest.bench import planned
from nest.bench.instance import (
    Instance,
    Optimum,
    Solving,
    digest_of,
    digest_of_set,
    layers_of,
    load_instance,
    load_instances,
    read_problems,
)
from nest.bench.instances_text import score_text
from nest.bench.score import SAME, check_prices, score, summary, untried
from nest.bench.score import document as scores_of
from nest.bench.solving import solve, text_of
from nest.bench.submission import PlannerSubmission, load_submission
from nest.cli.listing import document
from nest.cli.main import main
from nest.errors import InputError
from nest.evaluation.evaluate import chain_of
from nest.inputs import catalog, load_configuration
from nest.questions import read_question
from nest.studies.engines import Engine, engine

PROBLEMS = read_problems()
STAGE = {"layers": [0, 34], "devices": [0, 8], "tp": 8}
BEST = {"outer_dp": 1, "micro_batch": 1, "stages": [STAGE]}
"""Llama-2-7B on eight devices, all of them one tensor parallel group."""
FULL = {**BEST, "micro_batch": 8, "stages": [{**STAGE, "tp": 1, "dp_in": 8}]}
"""The same without any sharding."""
SHARDED = {**BEST, "micro_batch": 2, "stages": [{**STAGE, "tp": 4, "dp_in": 2, "zero": 2}]}

GPIPE = {**BEST, "schedule": "gpipe", "stages": [
    {"layers": [0, 17], "devices": [0, 4], "tp": 4, "recompute": "full"},
    {"layers": [17, 34], "devices": [4, 8], "tp": 4, "recompute": "full"}]}


def instance(space: dict | None = None, beyond: bool = False, faster: float = 1.0) -> Instance:
    """A small problem whose best is ``BEST``, said to take 1 / ``faster`` of its time."""
    question, _ = read_question({
        "model": "llama2-7b", "cluster": {"base": "dgx-h100", "devices": 8},
        "job": {"global_batch": 64, "seq_len": 4096}, "space": space or {},
        "search": {"beyond_stack": beyond}})
    way = load_configuration(BEST)
    seconds = nest.evaluate(
        question.subject, question.cluster, question.job, way).step_time_s / faster
    return Instance(
        name="small", question=question, layers=layers_of(chain_of(question.subject)), made=Solving(
            version="1", command="none", seconds=1.0, time_limit=None),
        optimum=Optimum(step_time_s=seconds, proved=True, lower_bound_s=seconds, gap=0.0,
                        configuration=way))


def scored(asked: Instance, configuration: object, **more: object):
    given = PlannerSubmission.parse({"planner": "mine", "answers": [
        {"instance": "small", "configuration": configuration, **more}]})
    found, = score(given, {"small": asked})
    return found


# ---------------------------------------------------------------- the problems


def test_there_are_sixty_problems_of_every_kind() -> None:
    assert len(PROBLEMS) == 60
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name) for name in PROBLEMS)
    sizes = [one.cluster.size for one in PROBLEMS.values()]
    assert (min(sizes), max(sizes)) == (8, 16384) and len(set(sizes)) > 15
    assert 25 <= sum(one.search.beyond_stack for one in PROBLEMS.values()) <= 35
    assert sum(one.cluster.links is not None for one in PROBLEMS.values()) >= 10
    assert sum(bool(one.cluster.types) for one in PROBLEMS.values()) >= 5
    assert sum(one.profile is not None for one in PROBLEMS.values()) == 3
    assert sum(one.cluster.device.memory < 48 * 2**30 for one in PROBLEMS.values()) >= 4
    assert not any(one.search.reorder or one.search.time_limit for one in PROBLEMS.values())


def test_files_need_no_catalog(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All figures are in the file: it reads, and prices, the same without the catalog."""
    made = Solving(version="1", command="none", seconds=1.0, time_limit=None)
    files = {}
    for name in ("bert-8", "torus-32-experts", "mixed-16", "skips-16-torus", "llama3-70b-64-fsdp"):
        optimum = instance().optimum
        chain = chain_of(PROBLEMS[name].subject)
        text = text_of(Instance(name=name, question=PROBLEMS[name], optimum=optimum, made=made,
                                layers=layers_of(chain)))
        assert sum(run["count"] for run in json.loads(text)["layers"]) == len(chain)
        jsonschema.validate(json.loads(text), document("instance"))
        files[name] = tmp_path / f"{name}.json"
        files[name].write_text(text)

    def refuse(*_: object) -> None:
        raise AssertionError("the catalog was asked")

    for name in ("load", "load_table", "table_name"):
        monkeypatch.setattr(catalog, name, refuse)
    for name, path in files.items():
        assert load_instance(str(path)).question == PROBLEMS[name]


@pytest.mark.kernels
def test_solving_proves_resumes_and_writes(tmp_path: Path) -> None:
    chosen = {name: PROBLEMS[name] for name in ("bert-8", "skips-16-torus")}
    folder, told = str(tmp_path / "set"), []
    found, unsolved = solve(chosen, folder, engine("inline"), tell=told.append)
    assert not unsolved and sorted(told) == list(chosen)
    for name, one in found.items():
        asked = PROBLEMS[name]
        best = nest.plan(asked.subject, asked.cluster, asked.job, asked.space, reorder=False,
                         beyond_stack=True)
        assert best.configuration == one.optimum.configuration
        assert one.optimum.proved and one.optimum.step_time_s == best.step_time_s
        assert one.optimum.lower_bound_s == best.step_time_s and one.optimum.gap == 0.0
        assert one.made.version == nest.__version__ and name in one.made.command
    assert load_instances(folder) == dict(sorted(found.items()))
    check_prices(found.values())

    def make() -> Executor:
        raise AssertionError("asked again")

    again, _ = solve(chosen, folder, Engine("none", make, lambda executor: 1))
    assert again == found


@pytest.mark.kernels
def test_what_has_no_plan_in_time_has_no_file(tmp_path: Path) -> None:
    found, unsolved = solve({"llama2-1024": PROBLEMS["llama2-1024"]}, str(tmp_path),
                            engine("inline"), 1e-6)
    assert not found and "no plan was found" in unsolved["llama2-1024"]
    assert not list(tmp_path.glob("*.json"))


# ---------------------------------------------------------------- scores


@pytest.mark.parametrize("space, beyond, configuration, status, why", [
    ({}, False, BEST, "ok", None),
    ({}, False, FULL, "memory", "runs out of memory"),
    ({}, False, SHARDED, "stack", "zero 2"),
    ({}, True, SHARDED, "ok", None),
    ({"tp": "1..4"}, True, BEST, "space", "tp 8, which the space does not have"),
    ({}, True, GPIPE, "space", "schedule gpipe"),
    ({"schedule": "gpipe"}, True, GPIPE, "ok", None),
    ({}, True, {**BEST, "offload": "optimizer"}, "space", "offload optimizer"),
    ({"offload": "none,optimizer"}, True, {**BEST, "offload": "optimizer"}, "ok", None),
    ({}, False, {**BEST, "outer_dp": 3}, "illegal", "outer_dp"),
    ({}, False, {"stages": []}, "illegal", "micro_batch: missing"),
    ({}, False, [1], "illegal", "allowed: a mapping"),
    ({}, False, None, "none", None),
])
def test_each_answer_is_told_what_it_is_worth(
    space: dict, beyond: bool, configuration: object, status: str, why: str | None
) -> None:
    found = scored(instance(space, beyond), configuration)
    assert (found.status, why is None) == (status, found.why is None)
    assert (why or "") in (found.why or "")
    assert (found.ratio > 0.0) == (status == "ok")
    assert (found.step_time_s is None) == (status in ("illegal", "none"))


def test_the_distance_is_that_of_step_times() -> None:
    best, slower = instance(), instance(faster=1.25)
    assert scored(best, BEST).distance == 0.0 and not scored(best, BEST).beats
    assert scored(slower, BEST).distance == pytest.approx(0.25, rel=1e-12)
    faster = scored(instance(faster=0.8), BEST)
    assert faster.beats and faster.distance == pytest.approx(-0.2, rel=1e-12)
    whole = summary([scored(best, BEST), scored(slower, BEST), scored(best, None)])
    assert (whole.instances, whole.counted, whole.best) == (3, 2, 1)
    assert whole.score == whole.stack == pytest.approx((1.0 + 0.8) / 3)
    other = summary([scored(best, BEST), scored(instance(beyond=True, faster=2.0), BEST)])
    assert (other.score, other.stack, other.everything) == (0.75, 1.0, 0.5)
    assert whole.mean_distance == pytest.approx(1.25**0.5 - 1.0)


CHUNKS = {"outer_dp": 1, "micro_batch": 1, "vpp": 2, "stages": [
    {"layers": [0, 25], "devices": [0, 4], "tp": 4, "chunks": [[0, 8], [17, 25]]},
    {"layers": [8, 34], "devices": [4, 8], "tp": 4, "chunks": [[8, 17], [25, 34]]}]}
"""Sizes 7, 9, 8, 8 of the 32 layers between the embedding and the head."""


def moved(border: int) -> dict:
    """``CHUNKS`` with another border between the first two."""
    first, second = CHUNKS["stages"]
    return {**CHUNKS, "stages": [{**first, "chunks": [[0, border], [17, 25]]},
                                 {**second, "layers": [border, 34],
                                  "chunks": [[border, 17], [25, 34]]}]}


@pytest.mark.parametrize("beyond, change, expected", [
    (True, BEST, None), (True, {**BEST, "stride": 8}, None),
    (True, {**BEST, "outer_dp": 2, "stride": 3, "stages": [
        {"layers": [0, 34], "devices": [0, 2], "tp": 2}]}, "stride 3"),
    (True, {**moved(9), "group": 4}, "group 4"), (True, moved(9), None),
    (True, moved(7), "its division into chunks"), (False, moved(7), "its division into chunks"),
    (False, CHUNKS, None), (True, {**BEST, "stages": [
        {**STAGE, "recompute": "selective", "recompute_modules": ["mlp"]}]}, None),
])
def test_what_no_search_tries_is_named(beyond: bool, change: dict, expected: str | None) -> None:
    asked = instance(beyond=beyond)
    assert untried(asked, chain_of(asked.question.subject), load_configuration(change),
                   True) == expected


def test_in_everything_chunks_that_no_stack_runs_are_equal() -> None:
    asked = instance(beyond=True)
    chain = chain_of(asked.question.subject)
    for chunks, expected in ((CHUNKS, "its division into chunks"), (moved(9), None)):
        assert untried(asked, chain, load_configuration(chunks), False) == expected
        assert untried(asked, chain, load_configuration(chunks), True) is None


@pytest.mark.kernels
@pytest.mark.parametrize("name", ["mixed-12-three", "llama2-8-24gb", "skips-16-torus"])
def test_nothing_that_searches_try_beats_a_proved_optimum(name: str, tmp_path: Path) -> None:
    """Random changes of the optimum, of which many are legal."""
    found, _ = solve({name: PROBLEMS[name]}, str(tmp_path), engine("inline"))
    one, rng, counted = found[name], Random(name), 0
    for _ in range(400):
        way = one.optimum.configuration.as_dict()
        for _ in range(rng.choice((1, 2, 3))):
            change(way, rng)
        given = PlannerSubmission.parse({"planner": "mine", "answers": [
            {"instance": name, "configuration": way}]})
        answer, = score(given, found)
        counted += answer.status == "ok"
        assert not answer.beats or answer.untried is not None, way
    assert counted > 40


def change(way: dict, rng: Random) -> None:
    """Change plain data of a configuration somewhere."""
    stages = way["stages"]
    number = rng.randrange(len(stages) * way["vpp"] - 1) if len(stages) > 1 else 0
    what = rng.choice(("micro_batch", "stride", "group", "zero", "recompute", "chunks", "tp"))
    if what in ("micro_batch", "stride"):
        way[what] = max(1, rng.choice((way[what] * 2, way[what] // 2, way[what] + 1)))
    elif what == "group":
        way[what] = rng.choice((None, 2, 4, 8))
    elif what == "chunks" and len(stages) > 1:
        (v, s), (w, t) = divmod(number, len(stages)), divmod(number + 1, len(stages))
        step = rng.choice((-1, 1))
        stages[s]["chunks"][v][1] += step
        stages[t]["chunks"][w][0] += step
        for stage in stages:
            stage["layers"] = [stage["chunks"][0][0], stage["chunks"][-1][1]]
    else:
        policy, zero, width = rng.choice(("none", "full")), rng.randrange(4), rng.choice((1, 2, 4))
        for stage in stages:
            if what == "recompute":
                stage |= {"recompute": policy, "recompute_modules": [], "recompute_layers": None}
            elif what == "zero":
                stage["zero"] = zero
            elif what == "tp":
                all_ = stage["tp"] * stage["dp_in"]
                stage |= {"tp": width, "dp_in": max(1, all_ // width), "sp": width > 1,
                          "etp": min(stage["etp"], width)}


def test_what_is_not_answered_counts_nothing() -> None:
    found, = score(PlannerSubmission(planner="mine", answers=()), {"small": instance()})
    assert (found.status, found.ratio, found.distance) == ("missing", 0.0, None)
    assert summary([found]).mean_distance is None


def test_instances_of_other_prices_are_refused() -> None:
    check_prices([instance(), instance(faster=1.0 + SAME / 10)])
    with pytest.raises(nest.InputError, match="small: its best takes .* made again"):
        check_prices([instance(faster=1.001)])


def test_the_report_says_why_an_answer_beats_what_is_proved() -> None:
    faster = instance(beyond=True, faster=0.1)
    for way, expected in ((moved(7), "do not try its division into chunks"),
                          (moved(9), "a defect of NEST: please report it")):
        text = score_text({"mine": [scored(faster, way)]}, 300)
        assert "faster than the proved bound" in text and expected in text


def test_scores_as_a_document() -> None:
    found = scores_of({"mine": [scored(instance(), BEST, seconds=2.0)],
                       "other": [scored(instance(), FULL)]})
    data = json.loads(found.model_dump_json(by_alias=True))
    jsonschema.validate(data, document("score"))
    assert data["schema"] == "nest.score/1.1" and data["version"] == nest.__version__
    mine, other = data["planners"]
    assert (mine["score"], mine["counted"], mine["answers"][0]["seconds"]) == (1.0, 1, 2.0)
    assert (other["score"], other["answers"][0]["status"]) == (0.0, "memory")


# ---------------------------------------------------------------- files of answers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "small.json").write_text(text_of(instance()))
    return tmp_path / "set"


def told(capsys: pytest.CaptureFixture[str], folder: Path, data: object, *options: str
         ) -> tuple[int, str, str]:
    path = folder.parent / "answers.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    code = main(["bench", "score", str(path), "--instances", str(folder), *options])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_prints_a_line_for_each_answer(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {"schema": "nest.submission/1.7", "planner": "mine",
            "answers": [{"instance": "small", "configuration": FULL}]}
    jsonschema.validate(data, document("submission"))
    code, out, err = told(capsys, folder, {**data, "colour": 1})
    assert code == 0 and "does not fit into memory: runs out of memory" in out
    assert "0 of 1" in out and "colour: unknown field, ignored" in err
    code, out, _ = told(capsys, folder, {**data, "answers": []}, "--json")
    assert code == 0 and json.loads(out)["planners"][0]["answers"][0]["status"] == "missing"


@pytest.mark.parametrize("data, expected", [
    ("[1]", "allowed: a mapping of fields"), ("{", "malformed JSON"),
    ({"schema": "nest.plan/1.0"}, "schema: got 'nest.plan/1.0'; allowed: \"nest.submission/1.1\""),
    ({"planner": "mine"}, "answers: missing"),
    ({"planner": "mine", "answers": [{"instance": "smal"}]},
     "answers.0.instance: got 'smal'; did you mean small? allowed: names of the 1 instances"),
    ({"planner": "mine", "answers": [{"instance": "small"}] * 2},
     "answers: got 2 for 'small'; allowed: one"),
    ({"planner": "mine", "answers": [{"instance": "small", "seconds": -1}]},
     "answers.0.seconds: got -1; allowed: at least 0"),
])
def test_bad_files_are_told(
    folder: Path, capsys: pytest.CaptureFixture[str], data: object, expected: str
) -> None:
    code, _, err = told(capsys, folder, data)
    assert code == 2 and expected in err and "Traceback" not in err


def test_bad_folders_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = {"planner": "mine", "answers": []}
    for change, expected in (
        (lambda: (folder / "small.json").rename(folder / "large.json"),
         "name: got small; allowed: that of the file"),
        (lambda: (folder / "large.json").write_text("{}"), 'schema: got None; allowed: '),
        (lambda: (folder / "large.json").unlink(), "without any .json file"),
        (folder.rmdir, "cannot be read (No such file or directory)"),
    ):
        change()
        code, _, err = told(capsys, folder, data)
        assert code == 2 and expected in err and "Traceback" not in err


# ---------------------------------------------------------------- other planners


def test_other_planners_hand_in_answers(tmp_path: Path) -> None:
    asked = instance(beyond=True)
    files = planned.answers_of(["zero", "manual"], {"small": asked}, str(tmp_path),
                               engine("inline"))
    for name, path in files.items():
        given, notes = load_submission(path, {"small": None})
        assert (given.planner, notes) == (name, ())
        one, = score(given, {"small": asked})
        assert one.status == "ok" and one.seconds is not None and one.seconds > 0.0


def test_a_process_that_ends_is_told(tmp_path: Path) -> None:
    class Broken(Executor):
        def submit(self, *_: object) -> Future:
            future: Future = Future()
            future.set_exception(BrokenExecutor())
            return future

    with pytest.raises(nest.InputError, match="has ended; what is answered is stored"):
        planned.answers_of(["zero"], {"small": instance()}, str(tmp_path),
                           Engine("none", Broken, lambda executor: 1))


def test_a_planner_has_so_much_time_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def long(*_: object) -> None:
        while True:
            pass

    monkeypatch.setattr("nest.planners.compare.compare", long)
    started = time.process_time()
    found = planned.answer("zero", instance(), 0.2)
    assert found.configuration is None and found.reason == "no answer in 0.2 s of a processor"
    assert 0.1 < time.process_time() - started < 5.0


@pytest.mark.kernels(uncompiled=True)
def test_the_commands_from_problems_to_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nest.studies.engines.engine", lambda *_: engine("inline"))
    folder, given = str(tmp_path / "set"), str(tmp_path / "answers")
    assert main(["bench", "instances", "--only", "bert-8", "-o", folder]) == 0
    said = capsys.readouterr().out
    assert "bert-8" in said and "1 instances, 1 proved" in said
    assert main(["bench", "answers", "--instances", folder, "--planners", "zero,manual",
                 "-o", given]) == 0
    files = capsys.readouterr().out.split()
    assert [Path(file).name for file in files] == ["zero.json", "manual.json"]
    assert main(["bench", "score", *files, "--instances", folder]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^zero +\d\.\d{3} ", said, re.MULTILINE) and "1 of 1" in said
    for words, expected in ((["instances", "--only", "bert-9"], "did you mean bert-8?"),
                            (["answers", "--planners", "nest"], "allowed: all, or some of manual"),
                            (["score", files[0], files[0]], "got 'zero' again")):
        place = ["-o" if words[0] == "instances" else "--instances", folder]
        assert main(["bench", *words, *place]) == 2
        assert expected in capsys.readouterr().err


def test_a_file_that_was_changed_is_refused(folder, capsys):
    """By its digest, which answers may repeat and scores name."""
    path = folder / "small.json"
    whole = load_instances(str(folder))
    data = json.loads(path.read_text())
    assert data["digest"] == whole["small"].digest == digest_of(data)
    path.write_text(json.dumps({**data, "made": {**data["made"], "seconds": 2.0}}, indent=3))
    assert load_instances(str(folder))["small"].digest == data["digest"]
    answers = folder.parent / "mine.json"
    other = "0" * 64
    for digest, told in ((data["digest"], None), (None, None), (other, "answers.0.digest: got ")):
        answers.write_text(json.dumps({"planner": "mine", "answers": [
            {"instance": "small", "digest": digest, "configuration": BEST}]}))
        known = {name: one.digest for name, one in whole.items()}
        if told is None:
            given, _ = load_submission(str(answers), known)
            assert scores_of({"mine": score(given, whole)}).instances == digest_of_set(whole)
        else:
            with pytest.raises(InputError, match=told):
                load_submission(str(answers), known)
    data["optimum"]["step_time_s"] *= 2
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match="small.json: digest: got .* allowed: a file as `nest"):
        load_instances(str(folder))
