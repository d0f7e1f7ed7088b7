"""What answers show: front, groups, sensitivity, the whole training; tables, pictures, commands."""

from __future__ import annotations

import csv
import itertools
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import LARGE, run
from studies import STUDY, asked, grid, made_up, written

import nest
from nest.errors import InputError, OutputError
from nest.evaluation.evaluate import chain_of
from nest.inputs import Failures
from nest.replanning.goodput import goodput_of
from nest.replanning.renewal import expected
from nest.studies.charts import front_figure, heat_map, objective_of, pair_of, sensitivity_figure
from nest.studies.points import Points, combinations
from nest.studies.questions import Outcome
from nest.studies.results import OBJECTIVES, number_of, summary
from nest.studies.sweep import load_study, stored, sweep
from nest.studies.text import FORMATS, columns, reason_lines, report_text, shown, write

PRICED = {**STUDY, "prices": {"device_hour": "1 + cluster.device.memory / 1e10",
                              "device_watts": 500},
          "train": {"tokens": 1e15, "days": 18.0, "productive": 0.5},
          "objectives": ["tokens_per_s", "tokens_per_money", "money"]}


def test_figures_by_hand(tmp_path):
    """128 x 16 tokens; 8 devices of 4 GiB: 8 x (1 + 0.4295) an hour, 4,000 W."""
    row = next(row for row in asked(PRICED, tmp_path).rows() if row["job.global_batch"] == 16)
    speed = 16_000 * (4 * 2.0**30) ** 0.5
    hour = 8 * (1 + 4 * 2.0**30 / 1e10)
    days = 1e15 / speed / 0.5 / 86400
    assert row["tokens_per_s"] == pytest.approx(speed)
    assert row["money_per_hour"] == pytest.approx(hour) and row["watts"] == 4000
    assert row["tokens_per_money"] == pytest.approx(3600 * speed / hour)
    assert row["tokens_per_joule"] == pytest.approx(speed / 4000)
    assert row["days"] == pytest.approx(days) and row["money"] == pytest.approx(24 * days * hour)
    assert row["in_time"] is (days <= 18.0)


def test_the_front_is_what_nothing_beats(tmp_path):
    found = asked(PRICED, tmp_path)
    rows = [row for row in found.rows() if row["status"] == "ok" and row["in_time"]]
    assert 1 < len(rows) < 12
    signs = {name: 1 if OBJECTIVES[name].most else -1 for name in PRICED["objectives"]}

    def beats(one: dict, other: dict) -> bool:
        pairs = [(signs[name] * one[name], signs[name] * other[name]) for name in signs]
        same = all(a == b for a, b in pairs)
        return all(a >= b for a, b in pairs) and (not same or one["number"] < other["number"])

    expected = {one["number"] for one in rows
                if not any(beats(other, one) for other in rows if other is not one)}
    with found.results() as results:
        assert results.front == expected
        for name, sign in signs.items():
            best, = results.best(name).values()
            assert results.value(best, name) == sign * max(sign * row[name] for row in rows)
        assert len(results.late) == 12 - len(rows)


def test_the_smallest_cluster_that_is_in_time(tmp_path):
    study = {**STUDY, "axes": {"cluster.devices": [4, 8, 12, 16]},
             "objectives": ["devices", "days"], "train": {"tokens": 1e12}}
    asked(study, tmp_path / "all")
    days = {row["devices"]: row["days"] for row in asked(study, tmp_path / "all").rows()}
    assert len(set(days.values())) == 1  # made-up answers do not know the devices
    with asked({**study, "train": {"tokens": 1e12, "days": days[4] * 1.01}},
               tmp_path / "all").results() as results:
        assert {results.value(one, "devices") for one in results.best("devices").values()} == {4}
    with asked({**study, "train": {"tokens": 1e12, "days": days[4] * 0.99}},
               tmp_path / "all").results() as results:
        assert results.best("devices") == {} and len(results.late) == 4


def test_groups_have_fronts_of_their_own(tmp_path):
    study = {**STUDY, "groups": ["job.global_batch"]}
    with asked(study, tmp_path).results() as results:
        assert [*results.groups] == [(8,), (16,), (32,)]
        rows = results.chosen(results.front)
        assert [row.labels[0] for row in rows] == [8, 16, 32]
        assert {row.labels[2] for row in rows} == {"8 GiB"}


def test_sensitivity_by_hand(tmp_path):
    """Made-up answers: speed = batch x root of memory; the bandwidth does nothing."""
    with asked(STUDY, tmp_path).results() as results:
        batch, bandwidth, memory = results.sensitivity()
    assert (batch.axis, batch.objective) == ("job.global_batch", "tokens_per_s")
    assert batch.ratio == pytest.approx(4.0) and batch.elasticity == pytest.approx(1.0)
    assert batch.better == 32 and batch.rank == pytest.approx(0.9466, abs=0.05)
    assert bandwidth.ratio == pytest.approx(1.0) and bandwidth.elasticity == pytest.approx(0.0)
    assert memory.ratio == pytest.approx(2**0.5) and memory.elasticity == pytest.approx(0.5)
    assert memory.better == "8 GiB"


def test_a_sample_has_rank_correlations(tmp_path):
    study = {**STUDY, "axes": {"job.global_batch": {"from": 1, "to": 997, "step": 4},
                               "cluster.device.memory": {"from": "1 GiB", "to": "9 GiB"}},
             "sample": {"count": 30}}
    with asked(study, tmp_path).results() as results:
        batch, memory = results.sensitivity()
    assert batch.ratio is None and batch.rank > 0.8 and abs(memory.rank) < 0.6


@pytest.mark.parametrize(("label", "number"), [
    ("25 GB/s", 25e9), ("8 GiB", 2**33), (4, 4.0), (True, None), ("h100", None), ("5 us", 5e-6)])
def test_numbers_of_labels(label, number):
    assert number_of(label) == (number if number is None else pytest.approx(number))


# ---------------------------------------------------------------- files


def test_files_have_all_rows_and_repeat(tmp_path):
    study = {**grid(12), "axes": {"status": {"a": {"job.global_batch": 5}, "b": {
        "job.global_batch": 6}}, "job.seq_len": [64, 128, 0]}}
    found = asked(study, tmp_path)
    kinds = [kind for kind in FORMATS if kind != "parquet"]
    for kind in kinds:
        with found.results() as results:
            assert columns(results)[1:3] == ["axis status", "job.seq_len"]
            write(results, kind, str(tmp_path / f"one.{kind}"))
    asked(study, tmp_path / "again")
    for kind in kinds:
        with stored(tmp_path / "again").results() as results:
            write(results, kind, str(tmp_path / f"two.{kind}"))
        one, two = (tmp_path / f"{name}.{kind}" for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()
    with open(tmp_path / "one.csv", newline="") as stream:
        rows = [*csv.DictReader(stream)]
    assert [row["status"] for row in rows] == ["infeasible", "infeasible", "invalid", "ok", "ok",
                                               "invalid"]
    assert rows[0]["message"] == "made up" and "seq_len: got 0" in rows[2]["message"]
    document = json.loads((tmp_path / "one.json").read_text())
    assert document["schema"] == "nest.sweep/1" and document["rows"] == [*found.rows()]
    assert document["status"] == {"infeasible": 2, "invalid": 2, "ok": 2}


def test_names_are_no_formulas_in_csv(tmp_path):
    """Spreadsheets run what begins with such a character; JSON keeps the names as they are."""
    names = ["=1+1", "+x", "-1+cmd|' /C calc'!A0", "@SUM(A1)", "\uff1d1+1"]
    study = {**STUDY, "axes": {"=side": {name: {"job.global_batch": n} for n, name in
                                         enumerate([*names, "plain -1"], 1)},
                               "job.seq_len": [64]}}
    with asked(study, tmp_path).results() as results:
        write(results, "csv", str(tmp_path / "points.csv"))
        write(results, "json", str(tmp_path / "points.json"))
    with open(tmp_path / "points.csv", newline="") as stream:
        head, *rows = csv.reader(stream)
    assert head[1] == "'=side" and not any(cell[:1] in "=+-@" for cell in filter(None, head))
    assert [row[1] for row in rows] == [*(f"'{name}" for name in names), "plain -1"]
    document = json.loads((tmp_path / "points.json").read_text())
    assert [row["=side"] for row in document["rows"]] == [*names, "plain -1"]


def test_files_beside_the_tables_are_left_alone(tmp_path):
    """A link at a name that a table might have while it is written leads to another file."""
    other = tmp_path / "other"
    other.write_text("kept")
    (tmp_path / "points.csv.part").symlink_to(other)
    with asked(grid(2), tmp_path).results() as results:
        before = sorted(os.listdir(tmp_path))
        for kind in ("csv", "json"):
            write(results, kind, str(tmp_path / f"points.{kind}"))
        with pytest.raises(OutputError, match="missing/points.csv: cannot be written"):
            write(results, "csv", str(tmp_path / "missing" / "points.csv"))
    assert other.read_text() == "kept"
    assert sorted({*os.listdir(tmp_path)} - {*before}) == [
        name for name in ("points.csv", "points.json") if name not in before]


def test_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    found = asked({**PRICED, "axes": {**STUDY["axes"], "job.seq_len": [128, 0, 64.0]}}, tmp_path)
    with found.results() as results:
        write(results, "parquet", str(tmp_path / "points.parquet"))
    rows = parquet.read_table(tmp_path / "points.parquet").to_pylist()
    expected = [*found.rows()]
    assert len(rows) == len(expected) == 36
    for row, one in zip(rows, expected, strict=True):
        assert row == one


def test_parquet_without_its_package_is_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    study = str(written(tmp_path, STUDY))
    assert "nest-planner[parquet]" in run(capsys, "sweep", study, "--parquet", code=2)[1]


def test_one_cluster_for_several_trainings(tmp_path):
    """Days and money of both batches, summed by hand, for each memory of the devices."""
    tokens = {"16": 1e14, "32": 3e14}
    study = {**PRICED, "axes": {"job.global_batch": [8, 16, 32],
                                "cluster.device.memory": ["4 GiB", "8 GiB"]},
             "train": {"tokens": 1e14, "days": 7.0, "productive": 0.5},
             "together": {"axis": "job.global_batch", "tokens": tokens}}
    done = asked(study, tmp_path)
    with done.results() as results:
        found = {one.labels: one for one in results.shared}
    rows = [*done.rows()]
    assert {*found} == {("4 GiB",), ("8 GiB",)}
    for (memory,), one in found.items():
        parts = [row for row in rows if row["cluster.device.memory"] == memory
                 and str(row["job.global_batch"]) in tokens]
        days = [tokens[str(row["job.global_batch"])] / row["tokens_per_s"] / 0.5 / 86400
                for row in parts]
        assert one.days == pytest.approx(sum(days)) and one.in_time is (one.days <= 7.0)
        assert one.money == pytest.approx(sum(
            24 * day * row["money_per_hour"] for day, row in zip(days, parts, strict=True)))
        assert one.numbers == tuple(row["number"] for row in parts)
    assert "100 T tokens of 16, 300 T tokens of 32" in done.report()


@pytest.mark.parametrize(("given", "told"), [
    ({"axis": "job.batch", "tokens": {"8": 1e12}}, "together.axis: got 'job.batch'; did you mean"),
    ({"axis": "cluster.device.memory", "tokens": {"4 GiB": 1}}, "changes no field of the cluster"),
    ({"axis": "job.global_batch", "tokens": {"9": 1e12}}, "allowed: values of the axis job"),
])
def test_trainings_that_cannot_share_a_cluster_are_told(given, told):
    with pytest.raises(InputError, match=told):
        load_study({**STUDY, "together": given})


# ---------------------------------------------------------------- pictures


@pytest.mark.parametrize("study", [STUDY, PRICED, {**PRICED, "groups": ["job.global_batch"]},
                                   {**STUDY, "axes": {"job.global_batch": [5]}}])
def test_pictures_of_any_study(tmp_path, study):
    with asked(study, tmp_path).results() as results:
        front_figure(results), sensitivity_figure(results)
        for x, y in itertools.permutations(study["axes"], 2):
            figure = heat_map(results, objective_of(results.study, None), x, y)
            assert figure.axes
    found = nest.load_study(STUDY)
    assert pair_of(found, None, None) == ("job.global_batch", "cluster.levels.leaf.bandwidth")
    assert pair_of(found, None, "job.global_batch")[1] == "job.global_batch"
    for x, y in (("nope", None), ("job.global_batch", "job.global_batch")):
        with pytest.raises(InputError):
            pair_of(found, x, y)
    with pytest.raises(InputError, match="objective: got 'speed'"):
        objective_of(found, "speed")


def test_pictures_say_which_points_and_why_others_are_missing(tmp_path):
    study = {**PRICED, "train": {"tokens": 3e14, "days": 9.0, "productive": 0.5}, "axes": {
        "job.global_batch": [-1, 8, 10, 32], "cluster.device.memory": ["4 GiB", "32 GiB"]}}
    with asked(study, tmp_path).results() as results:
        late = [row.labels for row in results.chosen({*results.late})]
        assert late == [(8, "4 GiB")]
        front, heat = front_figure(results), heat_map(
            results, "tokens_per_s", "job.global_batch", "cluster.device.memory")
        text = report_text(results)
        assert summary(results)["late_points"] == results.late
    assert {one.get_text() for one in front.axes[0].texts} == {"32, 4 GiB", "32, 32 GiB"}
    panel, bar = heat.axes
    legend = panel.get_legend()
    assert [one.get_text() for one in legend.get_texts()] == ["late", "does not fit", "refused"]
    assert bar.get_ylabel() == "tokens/s"
    assert bar.yaxis.get_major_formatter()(4.2e6, 0) == "4.2 M"
    assert "Late: more than 9 days" in text


def test_days_and_money_have_the_range_of_the_step_time(tmp_path):
    """A step of 0.8 to 1.5 times the price: so are days and money."""
    def ranged(question):
        found = made_up(question)
        answer = Outcome.model_validate_json(found.answer)
        step = answer.step_time_s
        return found._replace(answer=answer.replace(
            low_s=None if step is None else 0.8 * step,
            high_s=None if step is None else 1.5 * step).model_dump_json(exclude_none=True))

    found = sweep(PRICED, tmp_path, engine="inline", question=ranged)
    for row in found.rows():
        for name in ("days", "money"):
            assert row[f"{name}_low"] == pytest.approx(0.8 * row[name])
            assert row[f"{name}_high"] == pytest.approx(1.5 * row[name])
    best = min(row["money"] for row in found.rows())
    assert f"({shown(0.8 * best)} to {shown(1.5 * best)})" in found.report()


# ---------------------------------------------------------------- commands


@pytest.fixture
def quick(monkeypatch):
    """Commands with made-up answers."""
    from studies import made_up

    monkeypatch.setattr("nest.studies.questions.ask", made_up)
    monkeypatch.setattr("nest.studies.sweep.ask", made_up)
    import nest.studies.sweep as module

    whole = module.sweep
    monkeypatch.setattr(module, "sweep", lambda *a, **k: whole(*a, **k, question=made_up))


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "..", ".hidden", "a/b", "a\\b", "c:"])
def test_a_study_names_no_folder_elsewhere(name, tmp_path, capsys, quick, monkeypatch):
    """Its own folder lies where it is run; with -o its name is any."""
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    study = str(written(inside, {**STUDY, "name": name}))
    for words in (("run", study, "--engine", "inline"), ("show", study)):
        assert "which names no folder here" in run(capsys, "sweep", *words, code=2)[1]
    assert [*tmp_path.iterdir()] == [tmp_path / "a"] and len([*inside.iterdir()]) == 1
    run(capsys, "sweep", "run", study, "--engine", "inline", "-o", "here")


def test_the_command_asks_and_shows(tmp_path, capsys, quick, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = str(written(tmp_path, {**PRICED, "groups": ["job.global_batch"]}))
    out, err = run(capsys, "sweep", study, "--engine", "inline")
    assert err == "" and "small: 12 points" in out and "Effect of each axis" in out
    assert max(map(len, out.splitlines())) <= 80
    folder = Path("small-sweep")
    assert {path.name for path in folder.iterdir()} == {"answers.db", "points.csv", "points.json"}
    document = json.loads(run(capsys, "sweep", "run", study, "--engine", "inline", "--json")[0])
    assert document["points"] == 12 and document["status"] == {"ok": 12}
    out, _ = run(capsys, "sweep", "show", study, "--format", "png")
    assert {path.name for path in folder.glob("*.png")} == {
        "front.png", "heat-map.png", "sensitivity.png"}
    new = tmp_path / "new" / "pictures"
    assert run(capsys, "sweep", "show", str(folder), "-q", "-o", str(new)) == ("", "")
    assert (new / "heat-map.svg").exists()
    for words, told in (
            ((study, "--x", "nope"), "x: got 'nope'"),
            ((study, "--objective", "s"), "objective: got"),
            ((study, "--format", "gif"), "format: got 'gif'"), (("nope.yaml",), "nope.yaml"),
            ((str(tmp_path),), "no such file"), ((study, "--plan", "99"), "point: got 99"),
            ((study, "-o", study), "which the command reads; allowed: another file")):
        assert told in run(capsys, "sweep", "show", *words, code=2)[1]
    written(tmp_path, STUDY)
    assert "differs from the study that was started last" in run(
        capsys, "sweep", "show", study, code=2)[1]


def test_reasons_of_points_without_a_plan_are_shown(tmp_path, capsys, quick):
    """The most frequent first, five of them; that nothing fits only where nothing else is."""
    batches = {f"b{number}": {"job.global_batch": 16, "job.seq_len": -number}
               for number in range(1, 8)}
    study = {**STUDY, "axes": {"kind": {
        "no": {"job.global_batch": 5}, **batches, "twice": {"job.seq_len": -7},
        "ok": {"job.global_batch": 8}}}}
    folder = str(tmp_path / "o")
    out, err = run(capsys, "sweep", str(written(tmp_path, study)), "-o", folder,
                   "--engine", "inline")
    lines = [line.strip() for line in out.splitlines()]
    assert err == "" and "Status       8 invalid, 1 infeasible, 1 ok" in lines
    assert lines[2:8] == [
        "Reasons      2 invalid: job: seq_len: got -7; allowed: at least 1",
        *(f"1 invalid: job: seq_len: got -{number}; allowed: at least 1" for number in range(1, 5)),
        "and 2 more kinds, see the column message of points.csv"]
    assert "made up" not in out
    assert "Reasons      2 invalid" in run(capsys, "sweep", "show", folder)[0]
    document = json.loads((tmp_path / "o" / "points.json").read_text())
    assert len(document["reasons"]) == 5 and document["reasons"][0] == {
        "status": "invalid", "message": "job: seq_len: got -7; allowed: at least 1", "points": 2}
    del study["axes"]["kind"]["ok"]
    with asked(study, tmp_path / "p").results() as results:
        assert [(one.status, one.points) for one in results.reasons[-2:]] == [
            ("invalid", 1), ("infeasible", 1)]


def test_no_more_reasons_are_kept_than_a_report_needs(tmp_path, monkeypatch):
    monkeypatch.setattr("nest.studies.results.MOST_TOLD", 7)
    with asked({**STUDY, "axes": {"job.seq_len": [*range(-19, 1)]}}, tmp_path).results() as found:
        assert len(found.reasons) == 7 and not found.all_reasons
        assert reason_lines(found)[-1].startswith("and at least 2 more kinds")


@pytest.mark.parametrize("change", [
    {"axes": {"cluster.levels.leaf.bandwidth": ["3 apples", "4 pears"]}},
    {"constraints": ["1/0 > 3"], "axes": {"job.global_batch": [16, 17]}},
    {"axes": {"job.stack": ["torchtitn", "megatrn"]}}])
def test_a_study_without_a_question_ends_as_invalid_input(tmp_path, capsys, quick, change):
    study, folder = str(written(tmp_path, {**STUDY, **change})), str(tmp_path / "o")
    words = ("sweep", study, "-o", folder, "--engine", "inline")
    out, err = run(capsys, *words, code=2)
    message = next(stored(folder).rows())["message"]
    assert "2 invalid" in out and "Reasons" in out
    assert err.startswith(f"nest: error: {study[:200]}: no question could be asked, all points are "
                          "invalid; ") and err.endswith(f" of 2: {message}\n")
    assert (tmp_path / "o" / "points.json").exists()
    out, again = run(capsys, *words, "--json", code=2)
    assert json.loads(out)["reasons"][0]["message"] == message and again == err
    assert run(capsys, *words, "-q", code=2) == ("", err)
    for source, more in ((folder, ()), (study, ("--answers", folder))):
        _, err = run(capsys, "sweep", "show", source, *more, code=2)
        first, *reasons = err.splitlines()
        assert first == (f"nest: error: {source[:200]}: got no plan to draw (2 invalid); allowed: "
                         "a study with plans")
        assert message in reasons[0] and "invalid: " in reasons[0]


def test_constraints_that_exclude_all_points_end_as_invalid_input(tmp_path, capsys, quick):
    study = str(written(tmp_path, {**STUDY, "constraints": ["job.global_batch > 9999"]}))
    out, err = run(capsys, "sweep", study, "-o", str(tmp_path / "o"), "--engine", "inline", code=2)
    points = load_study(study).size
    assert "0 points" in out and points > 1
    assert err == (f"nest: error: {study[:200]}: constraints: exclude all {points} points; "
                   "allowed: constraints that leave one\n")


def test_what_is_wrong_at_all_points_is_told_before_anything_is_stored(tmp_path, capsys, quick):
    folder = tmp_path / "o"
    study = written(tmp_path, {**STUDY, "space": {"tpp": 3}})
    _, err = run(capsys, "sweep", str(study), "-o", str(folder), "--engine", "inline", code=2)
    assert "space: tpp: unknown field" in err and not folder.exists()


def test_plans_that_are_all_late_are_no_plans_to_draw(tmp_path, capsys, quick):
    study = {**PRICED, "train": {"tokens": 1e15, "days": 0.5}}
    asked(study, tmp_path / "o")
    _, err = run(capsys, "sweep", "show", str(tmp_path / "o"), code=2)
    assert "got no plan to draw (12 ok; 12 take more than 0.5 days)" in err and "asks" not in err


@pytest.mark.parametrize(("words", "told"), [
    (["--engine", "dsk://x"], "engine: got 'dsk://x'; did you mean"),
    (["--engine", "dask"], "engine: got 'dask'"), (["--engine", "mpi://x"], "engine: got 'mpi://x'"),
    (["--workers", "0"], "workers: got 0; allowed: 1 to 1024"),
])
def test_bad_options_are_told(tmp_path, capsys, words, told):
    study = str(written(tmp_path, STUDY))
    assert told in run(capsys, "sweep", study, "-o", str(tmp_path / "o"), *words, code=2)[1]
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("name", ["dask://h:1", "mpi", "ray"])
def test_an_engine_without_its_package_is_told(tmp_path, capsys, monkeypatch, name):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    study = str(written(tmp_path, STUDY))
    extra = name.partition(":")[0]
    assert f"pip install 'nest-planner[{extra}]'" in run(
        capsys, "sweep", study, "-o", str(tmp_path / "o"), "--engine", name, code=2)[1]


def test_ctrl_c_ends_cleanly_and_says_how_to_go_on(tmp_path, capsys, quick, monkeypatch):
    study, folder = str(written(tmp_path, grid(40))), str(tmp_path / "o")
    number = itertools.count(1)
    monkeypatch.setattr("studies.time", SimpleNamespace(  # with the tenth question
        sleep=lambda _: signal.raise_signal(signal.SIGINT) if next(number) == 10 else None))
    before = signal.getsignal(signal.SIGINT)
    _, err = run(capsys, "sweep", study, "-o", folder, "--engine", "inline", code=130)
    assert "of 40 points have answers; the same command goes on" in err
    assert signal.getsignal(signal.SIGINT) is before
    kept = sum(row["status"] != "open" for row in stored(folder).rows())
    assert 0 < kept < 40
    assert "40 points" in run(capsys, "sweep", study, "-o", folder, "--engine", "inline")[0]


@pytest.mark.kernels
def test_plans_are_those_of_nest_plan(tmp_path, capsys):
    """From processes of their own, and as plan files that can be priced again."""
    study = {**STUDY, "model": LARGE, "job": {**STUDY["job"], "memory_margin": 0}, "axes": {
        "job.global_batch": [8, 16], "cluster.device.memory": ["1.6 GiB", "8 GiB"],
        "cluster.devices": [4, 8], "search.beyond_stack": [False, True]}}
    found = nest.sweep(study, tmp_path / "o", workers=2)
    by_status = {row["number"]: row["status"] for row in found.rows()}
    assert [*by_status.values()].count("infeasible") == [*by_status.values()].count("ok") == 8
    for row in found.rows():
        cluster = nest.load_cluster(found.study.cluster, devices=row["cluster.devices"])
        device = cluster.device.replace(memory=row["cluster.device.memory"])
        cluster = cluster.replace(device=device)
        question = (nest.load_model(found.study.model), cluster,
                    nest.Job(global_batch=row["job.global_batch"], seq_len=128, memory_margin=0))
        if row["status"] == "infeasible":
            with pytest.raises(nest.InfeasibleError):
                nest.plan(*question, beyond_stack=row["search.beyond_stack"])
            continue
        plan = nest.plan(*question, beyond_stack=row["search.beyond_stack"])
        assert plan.step_time_s == row["step_time_s"]
        assert found.plan(row["number"]).configuration == plan.configuration
    number = next(number for number, status in by_status.items() if status == "ok")
    text, _ = run(capsys, "sweep", "show", str(tmp_path / "o"), "--plan", str(number), "--json")
    path = tmp_path / "plan.json"
    path.write_text(text)
    assert run(capsys, "evaluate", str(path), "--json")[0]


def test_failures_decide_days_and_money(tmp_path):
    """As the formulas say of 8 devices, with the spares that pay; tokens a day follow."""
    failures = {"device": "200 h", "repair": "20 h", "storage": "10 MB/s", "node_devices": 1}
    train = {"tokens": 1e15, "failures": failures}
    study = {**PRICED, "train": train, "objectives": ["tokens_per_day", "money"]}
    row = next(asked(study, tmp_path).rows())
    question = next(iter_points(study))
    found = expected(Failures(**failures), question.cluster, question.job,
                     chain_of(question.subject))
    assert 0.1 < found.productive < 0.97 and found.spares > 0
    assert row["productive"] == found.productive and row["spares"] == 8 * found.spares
    assert row["tokens_per_day"] == pytest.approx(86400 * row["tokens_per_s"] * found.productive)
    assert row["days"] == pytest.approx(1e15 / row["tokens_per_day"])
    hour = 8 * (1 + 4 * 2.0**30 / 1e10) * (1 + found.spares)
    assert row["money"] == pytest.approx(24 * row["days"] * hour)
    with pytest.raises(InputError, match="productive: got 0.5 beside failures; allowed: one"):
        load_study({**study, "train": {**train, "productive": 0.5}})


@pytest.mark.kernels
def test_points_go_on_with_smaller_plans(tmp_path):
    """Each point as the goodput of its plan says, with smaller plans of the study's own space."""
    failures = {"device": "200 h", "repair": "20 h", "spares": 0, "node_devices": 1}
    train = {"tokens": 1e15, "failures": failures, "smaller": True}
    study = {**STUDY, "axes": {"job.global_batch": [840]}, "space": {"tp": 1, "pp": 1},
             "train": train, "objectives": ["tokens_per_day"]}
    with sweep(study, tmp_path / "o", engine="inline").results() as results:
        row, = results.rows()
    plan = nest.plan(nest.load_model(study["model"]), nest.load_cluster(study["cluster"]),
                     nest.Job(global_batch=840, seq_len=128), nest.SearchSpace(tp=1, pp=1))
    alone = goodput_of(plan, Failures(**failures), lambda left: nest.plan(
        plan.inputs.model, left, plan.inputs.job, nest.SearchSpace(tp=1, pp=1)))
    waiting = expected(Failures(**failures), plan.inputs.cluster, plan.inputs.job,
                       chain_of(plan.inputs.model))
    assert row.figures.productive == pytest.approx(alone.goodput)
    assert row.figures.productive > 1.05 * waiting.productive
    with pytest.raises(InputError, match="prove: got a study with train.smaller"):
        sweep(study, tmp_path / "o", engine="inline", prove=True)
    with pytest.raises(InputError, match="smaller: got true; allowed: false without failures"):
        load_study({**study, "train": {"tokens": 1e15, "smaller": True}})


def iter_points(study):
    """Questions of a study, in order."""
    known = load_study(study)
    points = Points(known)
    for number, choices in combinations(known):
        yield points.point(number, choices).question
