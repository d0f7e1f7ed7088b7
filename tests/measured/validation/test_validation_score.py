"""Statistics against figures worked out by hand; the command, its documents and its picture."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from command_line import run
from test_validation_tables import table

from nest.measured import validation
from nest.measured.validation import PricedRun, Report
from nest.measured.validation.score import mean, median, ordered, ranks, score, spearman
from nest.report.validation_text import parity_figure, validation_text

RUN = validation.read()[0]
NUMBER = {"type": ["number", "null"]}
SCORE = {
    "type": "object",
    "required": ["rows", "priced", "median_abs_error", "mean_abs_error", "bias", "spearman",
                 "memory_median_abs_error"],
    "properties": {"rows": {"type": "integer"}, "priced": {"type": "integer"},
                   **dict.fromkeys(("median_abs_error", "mean_abs_error", "bias", "spearman",
                                    "memory_median_abs_error"), NUMBER)},
}
ROW = {
    "type": "object",
    "required": ["run_id", "measured_s", "predicted_s", "low_s", "high_s", "error",
                 "memory_measured_gb", "memory_predicted_gb", "reason"],
    "properties": {"run_id": {"type": "string"}, "reason": {"type": ["string", "null"]},
                   **dict.fromkeys(("measured_s", "predicted_s", "low_s", "high_s", "error",
                                    "memory_measured_gb", "memory_predicted_gb"), NUMBER)},
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object", "required": ["schema", "groups", "overall", "rows"],
    "properties": {"schema": {"const": "nest.validation/1"},
                   "groups": {"type": "object", "additionalProperties": SCORE},
                   "overall": SCORE, "rows": {"type": "array", "items": ROW}},
}


def priced(measured: float, predicted: float | None, key: object = None, group: str = "g",
           model: str = "m", memory: tuple[float, float] | None = None,
           anomalous: bool = False) -> PricedRun:
    """A run that measured and a price, in seconds; memory in bytes."""
    one = replace(RUN, group=group, model=model, framework="f", measured_s=measured,
                  measured_memory=memory[0] if memory else None, anomalous=anomalous)
    refused = None if predicted is not None else "for some reason"
    return PricedRun(one, predicted, None, None, memory[1] if memory else None, True,
                  {"forward": 1.0}, "s", object() if key is None else key, (), refused)


# ---------------------------------------------------------------- statistics


def test_middle_and_mean() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.5
    assert median([]) is None and mean([]) is None
    assert mean([1.0, 2.0, 6.0]) == 3.0


def test_ranks_share_places() -> None:
    assert ranks([30.0, 10.0, 20.0, 20.0]) == [4.0, 1.0, 2.5, 2.5]


def test_rank_correlation() -> None:
    """1 - 6 x sum of squared differences / (n (n^2 - 1)): differences 0, 1, 1, 0 give 0.8."""
    assert spearman([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]) == pytest.approx(0.8)
    assert spearman([1.0, 2.0, 3.0], [9.0, 8.0, 7.0]) == -1.0
    assert spearman([1.0, 2.0], [1.0, 2.0]) is None
    assert spearman([1.0, 1.01, 1.04], [1.0, 2.0, 3.0]) is None
    assert spearman([1.0, 2.0, 3.0], [5.0, 5.0, 5.0]) is None


def test_order_counts_pairs_that_differ() -> None:
    """1.00 and 1.04 are alike; of the two other pairs one is in the right order."""
    assert ordered([1.0, 1.04, 2.0], [3.0, 1.0, 2.0]) == (1, 2)
    assert ordered([1.0, 2.0], [1.0, 1.0]) == (0, 1)


# ---------------------------------------------------------------- scores


def test_errors_of_a_group() -> None:
    """Errors +10, -20, +60 %: median 20, mean 30, bias 16.7 %."""
    found = score([priced(1.0, 1.1), priced(1.0, 0.8), priced(1.0, 1.6), priced(1.0, None)])
    assert (found.overall.rows, found.overall.priced, found.overall.configurations) == (4, 3, 3)
    assert found.overall.median_abs_error == pytest.approx(0.2)
    assert found.overall.mean_abs_error == pytest.approx(0.3)
    assert found.overall.bias == pytest.approx(0.5 / 3)
    assert found.reasons == {"for some reason": 1}


def test_a_configuration_counts_once() -> None:
    """Measured 1, 2 and 9 s of one configuration: 2 s, priced at 3, is 50 % off."""
    rows = [priced(seconds, 3.0, key="same") for seconds in (1.0, 9.0, 2.0)]
    found = score([*rows, priced(4.0, 4.0)])
    assert (found.overall.priced, found.overall.configurations) == (4, 2)
    assert found.overall.mean_abs_error == pytest.approx(0.25)
    one, _ = found.compared
    assert one.measured_s == 2.0 and one.error == 0.5


def test_memory_is_scored_where_it_is_measured() -> None:
    found = score([priced(1.0, 1.0, memory=(10e9, 12e9)), priced(1.0, 1.0, memory=(10e9, 9e9)),
                   priced(1.0, 1.0)])
    assert found.overall.memory_median_abs_error == pytest.approx(0.15)
    assert found.overall.memory_configurations == 2


def test_order_is_within_a_model() -> None:
    """Model a is in order, model b reversed; between models nothing is compared."""
    rows = [priced(t, 10 * t, model="a") for t in (1.0, 2.0, 3.0)]
    rows += [priced(t, 1 / t, model="b") for t in (10.0, 20.0, 30.0)]
    found = score(rows).overall
    assert (found.spearman, found.ordered) == (0.0, 0.5)


def test_groups_and_what_is_anomalous() -> None:
    rows = [priced(1.0, 1.0), priced(1.0, 5.0, anomalous=True), priced(1.0, 1.2, group="h")]
    found = score(rows)
    assert list(found.groups) == ["g", "h"] and list(found.without_anomalous) == ["g"]
    assert found.groups["g"].mean_abs_error == 2.0
    assert found.without_anomalous["g"].mean_abs_error == 0.0
    assert [one.error for one in found.worst(2)] == [4.0, pytest.approx(0.2)]
    assert [one.error for one in found.worst(9)][2] == 0.0
    assert [one.group for one in found.worst(9, each=1)] == ["g", "h"]


def test_nothing_priced_scores_nothing() -> None:
    found = score([priced(1.0, None)])
    assert (found.overall.median_abs_error, found.overall.bias, found.compared) == (None, None, ())
    assert "0 of 1 runs priced" in validation_text(found, "table")
    assert not parity_figure(found, "nothing").axes[0].collections


# ---------------------------------------------------------------- reports


@pytest.fixture(scope="module")
def report() -> Report:
    runs = [one for one in validation.read()
            if one.group in ("vtrain_multi", "simumax_b200", "nemo_automodel_h100")]
    return validation.score(validation.price(runs))


def test_text_fits_a_terminal(report: Report) -> None:
    text = validation_text(report, "runs.csv")
    assert max(len(line) for line in text.splitlines()) <= 80
    for word in ("vtrain_multi", "without anomalous", "Largest errors", "not stated: recompute"):
        assert word in text
    assert validation_text(report, "runs.csv", unicode=False).isascii()


def test_the_picture_has_a_point_for_each_configuration(report: Report) -> None:
    axes, = parity_figure(report, "a < b & c").axes
    points = [tuple(point) for group in axes.collections for point in group.get_offsets()]
    assert sorted(points) == sorted((one.measured_s, one.predicted_s) for one in report.compared)
    assert len(points) == 65
    assert axes.get_title(loc="left") == "a < b & c"
    assert axes.get_xlim() == axes.get_ylim()
    (low, high) = axes.get_xlim()
    assert all(low < value < high for point in points for value in point)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [label.partition(",")[0] for label in labels] == list(
        dict.fromkeys(one.group for one in report.compared))
    error = report.groups["simumax_b200"].median_abs_error
    assert f"simumax_b200, {100 * error:.1f} %" in labels


def test_ten_groups_and_more_are_told_apart() -> None:
    found = score([priced(1.0, 1.0, group=f"g{n}") for n in range(20)])
    axes, = parity_figure(found, "t").axes
    looks = {(tuple(group.get_facecolor()[0]), len(group.get_paths()[0].vertices))
             for group in axes.collections}
    assert len(looks) == 20


def test_lines_are_where_prices_are_true_and_a_tenth_off() -> None:
    axes, = parity_figure(score([priced(1.0, 2.0), priced(10.0, 10.0)]), "t").axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    ratios = [set((line.get_ydata() / line.get_xdata()).round(9)) for line in axes.lines]
    assert ratios == [{1.0}, {1.1}, {0.9}]


# ---------------------------------------------------------------- the command


def test_the_command_prints_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "validate", "--group", "simumax_b200", "--json")
    found = json.loads(out)
    jsonschema.validate(found, SCHEMA)
    assert list(found["groups"]) == ["simumax_b200"] and err == ""
    assert found["overall"] == found["groups"]["simumax_b200"]
    assert found["overall"]["rows"] == len(found["rows"]) == 16
    row = found["rows"][0]
    assert row["error"] == pytest.approx(row["predicted_s"] / row["measured_s"] - 1)
    assert row["memory_measured_gb"] == 66.55
    assert row["low_s"] < row["measured_s"] < row["high_s"] < 1.3 * row["low_s"]


def test_the_command_writes_a_table_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # a short name: a long path would be broken into lines
    target = tmp_path / "out.csv"
    text = table({}, {"run_id": "=two", "recompute": ""})
    (tmp_path / "runs.csv").write_text(text, encoding="utf-8")
    out, _ = run(capsys, "validate", "runs.csv", "-o", str(target), "--plot", "plot.svg")
    assert "runs.csv: 1 of 2 runs" in out
    with open(target, encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["run_id"] for row in rows] == ["one", "'=two"]  # no formula
    assert float(rows[0]["predicted_s"]) > 0 and rows[1]["predicted_s"] == ""
    assert rows[1]["reason"] == "not stated: recompute"
    ElementTree.parse(tmp_path / "plot.svg")
    run(capsys, "validate", "runs.csv", "--plot", "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_groups_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "validate", "--group", "simumax_b200", "--group", "nemo_automodel_h100",
                 "--json")
    found = json.loads(out)
    assert list(found["groups"]) == ["nemo_automodel_h100", "simumax_b200"]
    assert found["overall"]["rows"] == 20


@pytest.mark.parametrize(("words", "told"), [
    (("--group", "mine"), "group: got 'mine'; allowed: korthikanti2022_tab5"),
    (("nowhere.csv",), "nowhere.csv: no such file"),
    (("-o", "."), "--output .: is a folder"),
    (("--plot", "/no/such/plot.svg"), "cannot be written"),
    (("--plot", "plot.gif"),
     "plot: got 'plot.gif'; allowed: a name that ends in .png, .svg or .pdf"),
])
def test_bad_words_are_told(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in run(capsys, "validate", *words, code=2)[1]


def test_a_bad_table_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "runs.csv"
    source.write_text(table({"tp": "two"}), encoding="utf-8")
    _, err = run(capsys, "validate", str(source), "-o", str(tmp_path / "out.csv"), code=2)
    assert err == (f"nest: error: {source}: line 2: tp: got 'two'; allowed: a whole number from 1 "
                   "to 1000000000\n")
    assert not (tmp_path / "out.csv").exists()
