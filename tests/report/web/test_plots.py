"""Figures as pictures: each kind in each format, with what it is to show."""

from __future__ import annotations

import pytest
from command_line import Files, run
from report_plans import plan_of

from nest.report.web.plots import FIGURES


@pytest.mark.parametrize("kind", FIGURES)
@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_every_kind_in_every_format(tmp_path, capsys, kind: str, suffix: str) -> None:
    files = Files(tmp_path)
    plan, picture = files.path("plan.json"), files.path(f"x.{suffix}")
    run(capsys, "evaluate", *files.words, "--pp", "2", "-o", plan)
    run(capsys, "plot", plan, "--kind", kind, "-o", picture)
    first = (tmp_path / f"x.{suffix}").read_bytes()
    assert first.startswith({"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[suffix])
    run(capsys, "plot", plan, "--kind", kind, "-o", picture)
    assert (tmp_path / f"x.{suffix}").read_bytes() == first  # the same each time


def test_a_figure_shows_all_stages() -> None:
    plan = plan_of("zero bubble")
    for kind in ("timeline", "memory"):
        axes = FIGURES[kind](plan).axes[0]
        assert [label.get_text() for label in axes.get_yticklabels()] == [
            f"stage {number}" for number in range(4)]
    gids = {one.get_gid() for one in FIGURES["timeline"](plan).axes[0].collections}
    assert {"timeline-forward", "timeline-backward-for-weights", "timeline-wait"} <= gids
    bars = FIGURES["waterfall"](plan).axes[0].patches
    assert bars[-1].get_width() == pytest.approx(plan.step_time_s)


def test_names_of_kinds_and_files_are_checked(tmp_path, capsys) -> None:
    files = Files(tmp_path)
    run(capsys, "evaluate", *files.words, "-o", files.path("plan.json"))
    _, err = run(capsys, "plot", files.path("plan.json"), "--kind", "time", "-o",
                 files.path("x.svg"), code=2)
    assert "--kind: got 'time'; did you mean timeline? allowed: timeline, memory" in err
    _, err = run(capsys, "plot", files.path("plan.json"), "-o", files.path("x.gif"), code=2)
    assert ".png, .svg or .pdf" in err
