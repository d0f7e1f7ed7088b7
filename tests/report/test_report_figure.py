"""Pictures: their names, and that the same figure is the same file."""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib
import pytest
from command_line import JOB, Files, run
from matplotlib.figure import Figure

from nest.errors import InputError, OutputError
from nest.report.figure import check_picture, look, save_figure


def drawn(title: str = "t") -> Figure:
    with look():
        figure = Figure((2.0, 1.0))
        figure.subplots().bar(["a", "b"], [1.0, 2.0])
        figure.axes[0].set_title(title)
    return figure


@pytest.mark.parametrize("name", ["x.gif", "svg", "x.svg.txt", "x.PNG"])
def test_other_suffixes_are_refused(name: str) -> None:
    with pytest.raises(InputError) as raised:
        check_picture("chart", name)
    assert str(raised.value) == (
        f"chart: got '{name}'; allowed: a name that ends in .png, .svg or .pdf")


def test_no_picture_or_one_of_the_two_is_fine() -> None:
    for name in (None, "a.svg", "b/c.png"):
        check_picture("chart", name)


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_same_figure_is_the_same_file(tmp_path: Path, kind: str) -> None:
    """Also where a person has settings of their own."""
    one, two = (str(tmp_path / f"{n}.{kind}") for n in (1, 2))
    save_figure(one, drawn())
    with matplotlib.rc_context({"font.size": 30.0, "svg.hashsalt": "other",
                                "svg.fonttype": "none"}):
        save_figure(two, drawn())
    assert Path(one).read_bytes() == Path(two).read_bytes()
    assert sorted(os.listdir(tmp_path)) == [f"1.{kind}", f"2.{kind}"]
    start = b"\x89PNG" if kind == "png" else b"<?xml"
    assert Path(one).read_bytes().startswith(start)


def test_an_svg_says_neither_when_nor_what_it_was_made_with(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    save_figure(str(path), drawn("what $\\costs$ < 5 & more"))
    text = path.read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert "dc:date" not in text and "matplotlib.org" not in text
    assert "what $\\costs$ &lt; 5 &amp; more" in text  # as it stands: no formula


def test_a_file_is_replaced_whole_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    path.write_text("old", encoding="utf-8")
    save_figure(str(path), drawn())
    assert path.read_text(encoding="utf-8").startswith("<?xml")
    folder = tmp_path / "folder.svg"
    folder.mkdir()
    with pytest.raises(InputError, match="is a folder"):
        save_figure(str(folder), drawn())
    with pytest.raises(OutputError, match="cannot be written"):
        save_figure(str(tmp_path / "no" / "x.png"), drawn())
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".nest-")]


@pytest.mark.parametrize("words", [
    ["plan", "{model}", "{cluster}", "--map", "x.svg"],
    ["evaluate", "{model}", "{cluster}", "--map", "x.png"],
    ["compare", "{model}", "{cluster}", "--chart", "x.svg"],
    ["validate", "--plot", "x.svg"],
], ids=["plan", "evaluate", "compare", "validate"])
def test_without_matplotlib_each_command_says_what_to_install(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as where it is not installed
    monkeypatch.chdir(tmp_path)
    files = Files(tmp_path)
    given = {"{model}": [files.model], "{cluster}": [files.cluster, *JOB]}
    words = [word for each in words for word in given.get(each, [each])]
    before = sorted(os.listdir(tmp_path))
    _, err = run(capsys, *words, code=2)
    option = next(word for word in words if word in ("--map", "--chart", "--plot"))
    assert err == (f"nest: error: {option}: pictures need Matplotlib, which is not installed; "
                   "pip install 'nest-planner[plot]' adds it\n")
    assert sorted(os.listdir(tmp_path)) == before


def test_without_matplotlib_commands_that_draw_nothing_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out, _ = run(capsys, "evaluate", *Files(tmp_path).words)
    assert "per step" in out
