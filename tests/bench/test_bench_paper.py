"""bench/published.py: figures worked out by hand, tables, pictures, the command."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import published
import pytest
from command_line import Files, run
from made_up_answers import MADE_UP, count_calls, made_up, tiny
from paper.charts import part_figure
from paper.questions import MODELS, OPTIONS
from paper.results import best_point_gain, gain, results, select
from paper.tables import COLUMNS, paper_text, to_csv, to_json, to_markdown

from nest.planners import usable


def repeated(capsys, *words: str, code: int = 0) -> tuple[str, str]:
    """Standard output and error of bench/published.py."""
    return run(capsys, *words, code=code, program=published.main)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return count_calls(monkeypatch)


# ---------------------------------------------------------------- figures by hand


def test_throughput_is_relative_to_where_the_expert_first_fits():
    """150 / 200, 120 / 200; 300 / 200, 1, 240 / 200; 600 / 200, 450 / 200."""
    found = results(MADE_UP)
    assert [one.relative for one in found] == pytest.approx(
        [0.75, None, 0.6, 1.5, 1.0, 1.2, 3.0, 2.25, None])
    assert {one.base.devices for one in found} == {128}
    # A device: twice as much at 64 as at 128, half as much at 256.
    assert [one.a_device for one in found] == pytest.approx(
        [1.5, None, 1.2, 1.5, 1.0, 1.2, 1.5, 1.125, None])


def test_gains_are_geometric_means_of_what_fits():
    """Over manual 300/200 and 600/450: sqrt(1.5 x 4/3) = sqrt 2; over zero twice 1.25."""
    found = results(MADE_UP)
    over = gain(select(found, planner="manual"))
    assert over.mean == pytest.approx(2.0**0.5)
    assert (over.least, over.most, over.infeasible) == (pytest.approx(4 / 3), 1.5, 1)
    over = gain(select(found, planner="zero"))
    assert (over.mean, over.infeasible) == (pytest.approx(1.25), 1)
    assert gain(select(found, planner="alpa")).mean is None


def test_the_smallest_micro_batch_is_the_base_of_its_part():
    """Micro-batch 1 of manual does not fit; each has its own best one: 90 over 80."""
    found = results([
        made_up("nest", 60.0, mbs=1, part="micro-batch"),
        made_up("manual", None, mbs=1, part="micro-batch"),
        made_up("nest", 90.0, mbs=4, part="micro-batch"),
        made_up("manual", 80.0, mbs=4, part="micro-batch"),
        made_up("nest", None, mbs=8, part="micro-batch"),
        made_up("manual", 75.0, mbs=8, part="micro-batch"), *MADE_UP])
    chosen = select(found, "micro-batch")
    assert [one.relative for one in chosen] == pytest.approx([0.75, None, 1.125, 1, None, 75 / 80])
    assert best_point_gain(chosen, "manual") == pytest.approx(90 / 80)
    assert best_point_gain(chosen, "zero") is None


def test_without_the_expert_or_nest_there_is_nothing_to_compare():
    alone = results([made_up("zero", 10.0)])
    assert (alone[0].relative, alone[0].gain, alone[0].a_device) == (None, None, None)
    for text in (to_markdown(alone), to_csv(alone), paper_text(alone, ["f"])):
        assert "zero" in text or "Written" in text
    part_figure(alone, "scaling")


# ---------------------------------------------------------------- tables and pictures


def markdown_tables(text: str) -> list[list[list[str]]]:
    """Cells of every table, each of which has as many in each row."""
    found: list[list[list[str]]] = []
    before = ""
    for line in text.splitlines():
        if line.startswith("|"):
            if not before.startswith("|"):
                found.append([])
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        before = line
    for table in found:
        assert len({len(row) for row in table}) == 1 and set(table[1]) <= {"---", "---:"}
    return found


def test_the_tables_show_what_does_not_fit_and_why():
    found = results(MADE_UP)
    text = to_markdown(found)
    throughputs, gains, beside, search = markdown_tables(text)
    assert throughputs[0] == ["model", "devices", "micro-batch", "nest, tokens/s", "nest",
                              "manual", "zero"]
    assert throughputs[2] == ["gpt3-175b", "64", "1", "150", "0.75", "no (1)", "0.60"]
    assert throughputs[4][4:] == ["3.00", "2.25", "no (2)"]
    assert ("1. gpt3-175b, 64 devices, micro-batch 1, manual: runs out of memory: stage 1 is 3 GiB "
            "short\n2. gpt3-175b, 256 devices, micro-batch 1, zero: ") in text
    assert gains[2] == ["scaling", "gpt3-175b", "1.41 (1.33..1.50)", "1.25 (1.25..1.25)"]
    assert gains[-1] == ["all", "infeasible", "1", "1"]
    assert beside[2][:5] == ["scaling", "gpt3-175b", "1.33 (1.33..1.34)", "1.00..1.05",
                             "1.41 (1.33..1.50)"]
    assert "Most over any of manual, mcmc, alpa, phaze: 2.43 claimed, 1.50 here." in text
    assert search[2] == ["nest", "0.8", "0.2"]


def test_bounded_planners_are_marked():
    found = results([made_up("nest", 2.0), made_up("mcmc", 1.0)])
    assert "| mcmc* |" in to_markdown(found)
    for text in (to_markdown(found), paper_text(found, [])):
        assert "*: mcmc ends after 3,000 proposals; all others ran to their end." in text
    assert OPTIONS["mcmc"]["proposals"] == 3000
    row = list(csv.DictReader(to_csv(found).splitlines()))[1]
    assert row["bound"] == "3,000 proposals"
    figure = part_figure(found, "scaling")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["nest", "mcmc*"]
    assert figure.get_supxlabel().startswith("*: mcmc ends after")


def test_the_csv_holds_every_figure():
    rows = list(csv.DictReader(to_csv(results(MADE_UP)).splitlines()))
    assert tuple(rows[0]) == COLUMNS and len(rows) == len(MADE_UP)
    assert [row["relative"] for row in rows[:4]] == ["0.75", "", "0.6", "1.5"]
    assert [row["feasible"] for row in rows[:3]] == ["1", "0", "1"]
    assert rows[1]["reason"] == "runs out of memory: stage 1 is 3 GiB short"
    assert float(rows[4]["nest_gain"]) == 1.5 and rows[1]["nest_gain"] == ""


def test_the_document_holds_the_same():
    document = json.loads(to_json(results(MADE_UP)))
    assert document["schema"] == "nest.paper/1"
    assert document["results"][0]["relative"] == 0.75
    assert document["gains"]["scaling"]["manual"]["mean"] == pytest.approx(2.0**0.5)


def test_the_report_fits_a_terminal():
    text = paper_text(results(MADE_UP), ["out/results.csv"])
    assert max(map(len, text.splitlines())) <= 80
    lines = [line.split() for line in text.splitlines()]
    assert ["all", "1.41", "1.25"] in lines and ["infeasible", "1", "1"] in lines
    assert ["gpt3-175b", "1.33..1.34", "1.00..1.05", "1.33..1.50"] in lines
    assert "gpt3-175b, 64 devices, micro-batch 1: runs out of memory" in " ".join(text.split())
    assert "out/results.csv" in text
    assert paper_text(results(MADE_UP), [], unicode=False).isascii()


def test_a_report_of_all_planners_fits_a_terminal():
    asked = [made_up(name, 10.0 if name == "nest" else None, model=model)
             for model in MODELS for name in usable()]
    asked += [made_up(name, 10.0, 128, model=model) for model in MODELS for name in usable()]
    text = paper_text(results(asked), [])
    assert max(map(len, text.splitlines())) <= 80


def test_bars_are_as_high_as_a_device_is_fast():
    found = results(MADE_UP)
    figure = part_figure(found, "scaling")
    axes, = figure.axes
    heights = sorted(bar.get_height() for bar in axes.patches)
    assert heights == pytest.approx(sorted(
        one.a_device for one in found if one.a_device is not None))
    crosses = [line for line in axes.lines if line.get_marker() == "x"]
    assert len(crosses) == 2
    places = {round(bar.get_x() + bar.get_width() / 2.0, 6) for bar in axes.patches}
    assert not places & {round(float(line.get_xdata()[0]), 6) for line in crosses}
    below = figure.get_supxlabel()
    assert "gpt3-175b, devices 64, manual: runs out of memory: stage 1 is 3 GiB short" in below
    assert [label.get_text() for label in axes.get_xticklabels()] == ["64", "128", "256"]
    assert len({bar.get_facecolor() for bar in axes.patches}) == 3


# ---------------------------------------------------------------- the command


def test_the_command_writes_tables_and_figures(files, capsys, calls, monkeypatch):
    asked = [tiny(files), tiny(files, devices=4), tiny(files, "h100")]
    monkeypatch.setattr(published, "questions", lambda parts, models: [
        one for one in asked if one.part in parts])
    words = ["-o", files.path("out"), "--planners", "manual,zero"]
    out, err = repeated(capsys, *words)
    assert max(map(len, out.splitlines())) <= 80
    names = {path.name for path in Path(files.path("out")).iterdir()}
    assert names == {"answers.db", "results.csv", "results.md", "scaling.svg", "scaling.png",
                     "h100.svg", "h100.png"}
    for name in names:
        assert name in "".join(out.split())
    assert "6/6" in err
    rows = list(csv.DictReader(
        Path(files.path("out"), "results.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["devices"], row["planner"]) for row in rows[:3]] == [
        ("8", "manual"), ("8", "zero"), ("4", "manual")]
    assert rows[2]["relative"] == "1"  # four devices are the fewest
    count = len(calls)
    document = json.loads(repeated(capsys, *words, "--json", "--part", "scaling")[0])
    assert len(calls) == count == 4
    assert len(document["results"]) == 4
    assert repeated(capsys, *words, "-q") == ("", "")


def test_the_command_on_the_questions_themselves(tmp_path, capsys):
    out, _ = repeated(capsys, "-o", str(tmp_path / "new" / "out"), "--part", "h100",
                 "--models", "bert-large", "--planners", "manual", "--json", "-q")
    found = json.loads(out)["results"]
    assert [(one["devices"], one["mbs"], one["global_batch"], one["seq_len"]) for one in found] == [
        (128, 1, 4096, 512), (1024, 1, 4096, 512)]
    assert found[0]["relative"] == 1.0 and found[1]["relative"] > 2.0


@pytest.mark.parametrize(("words", "told"), [
    (["--planners", "oracle"], "planners: got 'oracle'; allowed: all, or some of nest, manual"),
    (["--models", "bert"], "models: got 'bert'; allowed: all, or some of bert-large, llama2-7b"),
    (["--part", "h100,figure-7"], "part: got 'figure-7'; allowed: all, or some of scaling, micro"),
    (["-o", "FILE"], "cannot be created (File exists)"),
    (["-o", ""], "output: "),
])
def test_bad_words_are_told(tmp_path, capsys, words, told):
    (tmp_path / "file").write_text("", encoding="utf-8")
    given = [str(tmp_path / "file") if word == "FILE" else word for word in words]
    assert told in repeated(capsys, *given, code=2)[1]


def test_without_matplotlib_it_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    _, err = repeated(capsys, "-o", str(tmp_path / "out"), code=2)
    assert "bench/published.py: pictures need Matplotlib" in err and not list(tmp_path.iterdir())


def test_a_bad_file_of_answers_is_told(tmp_path, capsys):
    (tmp_path / "answers.db").write_text("a,b\n" * 200, encoding="utf-8")
    _, err = repeated(capsys, "-o", str(tmp_path), code=2)
    assert f"{tmp_path}/answers.db: cannot be read" in err


def test_the_program_shows_its_options():
    out = subprocess.run([sys.executable, published.__file__, "--help"], capture_output=True,
                         text=True, check=True, env={**os.environ, "COLUMNS": "80"}).stdout
    assert "--part" in out and max(map(len, out.splitlines())) <= 80
