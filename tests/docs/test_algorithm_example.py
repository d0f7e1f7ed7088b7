"""The worked example of docs/algorithm.md: every figure again, and the pictures as committed."""

from __future__ import annotations

import importlib.util
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from plain import chunk

import nest
from nest.inputs import Configuration, StageConfiguration
from nest.schedules.chunk import ChunkCosts
from nest.schedules.registry import SCHEDULES
from nest.schedules.traits import Hop

ROOT = Path(__file__).parents[2]
FILES = ROOT / "docs" / "examples" / "worked"
PAGE = (ROOT / "docs" / "algorithm.md").read_text(encoding="utf-8")
M, H = 4, 1.0
DP, TP = "`dp_in` 2", "`tp` 2"
BEST = 36.5


@pytest.fixture(scope="module")
def asked() -> tuple[Any, Any, Any]:
    return (nest.load_profile(FILES / "profile.yaml"), nest.load_cluster(FILES / "cluster.yaml"),
            nest.load_job(FILES / "job.yaml"))


def table(first: str) -> list[list[str]]:
    """Rows of the page's table whose heading begins so."""
    lines = PAGE.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith(first)) + 2
    rows = []
    while lines[at].startswith("|"):
        rows.append([cell.strip() for cell in lines[at].strip("|").split("|")])
        at += 1
    return rows


def options() -> dict[tuple[str, str], tuple[float, ...]]:
    """f, b, t, g, fixed GB and GB of a micro-batch, by stage and option."""
    return {(row[0], row[1]): tuple(map(float, row[2:])) for row in table("| stage | option |")}


def costs(stage: str, option: str) -> ChunkCosts:
    forward, backward, _, finish, *_ = options()[stage, option]
    return chunk(forward, backward, left=finish)


def configuration(*stages: tuple[int, int, int, int, int]) -> Configuration:
    """First and last cut, first and last device, tp of each stage."""
    return Configuration(outer_dp=1, stride=4, micro_batch=2, stages=tuple(
        StageConfiguration(layers=(i, j), devices=(k, stop), tp=tp, dp_in=(stop - k) // tp,
                           chunks=((i, j),)) for i, j, k, stop, tp in stages))


def ways(i: int = 0, k: int = 0) -> Any:
    """Every way to put the layers behind cut i on devices from k on, tp 1 or 2."""
    if i == 3:
        yield ()
        return
    for j, stop, tp in product(range(i + 1, 4), range(k + 1, 5), (1, 2)):
        if (stop - k) % tp == 0:
            for rest in ways(j, stop):
                yield ((i, j, k, stop, tp), *rest)


# ---------------------------------------------------------------- plans


@pytest.mark.kernels(uncompiled=True)
def test_the_command_prints_the_plan(
        asked: tuple[Any, Any, Any], capsys: pytest.CaptureFixture[str]) -> None:
    from nest.cli.main import main

    assert main(["plan", "--profile", str(FILES / "profile.yaml"), str(FILES / "cluster.yaml"),
                 "--job", str(FILES / "job.yaml"), "--space", str(FILES / "space.yaml"),
                 "--details"]) == 0
    printed = capsys.readouterr().out
    block = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    for part in block[1].split("...\n"):
        assert part in printed


@pytest.mark.kernels(uncompiled=True)
def test_the_plan_is_the_best_of_all(asked: tuple[Any, Any, Any]) -> None:
    plan = nest.plan(*asked, nest.load_space(FILES / "space.yaml"), beyond_stack=True)
    assert plan.optimal
    assert plan.step_time_s == pytest.approx(BEST)
    assert plan.configuration.stages == configuration((0, 2, 0, 2, 2), (2, 3, 2, 4, 1)).stages
    legal = fitting = 0
    for way in ways():
        try:
            priced = nest.evaluate(*asked, configuration(*way))
        except nest.InputError:
            continue
        fits = all(s.memory_bytes.total <= s.memory_limit_bytes for s in priced.stages)
        legal, fitting = legal + 1, fitting + fits
        assert not fits or priced.step_time_s >= plan.step_time_s * (1 - 1e-9)
    assert f"Of {legal} legal plans {fitting} fit." in PAGE


@pytest.mark.parametrize(("front", "behind"), list(product((DP, TP), (DP, TP))))
def test_options_and_steps(asked: tuple[Any, Any, Any], front: str, behind: str) -> None:
    degrees = {DP: 1, TP: 2}
    plan = nest.evaluate(*asked, configuration(
        (0, 2, 0, 2, degrees[front]), (2, 3, 2, 4, degrees[behind])))
    for stage, name, option, held in zip(
            plan.stages, ("a, b", "c"), (front, behind), (2, 1), strict=True):
        f, b, t, g, fixed, each = options()[name, option]
        assert (stage.time_s.forward, stage.time_s.backward) == pytest.approx((f, b))
        assert t == f + b
        assert stage.finish_s == pytest.approx(g, abs=1e-6)
        assert stage.in_flight == held
        assert stage.memory_bytes.total == pytest.approx((fixed + held * each) * 1e9)
    assert plan.stages[0].time_s.handover == pytest.approx(H)
    rest, done = next((float(r), float(d)) for a, c, r, d in table("| a, b | c |")
                      if (a, c) == (front, behind))
    assert plan.step_time_s == pytest.approx(done)
    found = SCHEDULES["1f1b"].step_time(
        [[costs("a, b", front)], [costs("c", behind)]], [[Hop(H, H / 2)]], M)
    assert (found.pipeline, found.total) == pytest.approx((rest, done))


# ---------------------------------------------------------------- labels


@pytest.mark.parametrize("row", table("| option of c |"), ids=lambda row: row[0])
def test_labels_of_the_last_stage(row: list[str]) -> None:
    """Of one stage, rest is its pipeline; after that of a single micro-batch."""
    stage = chunk(4.0, 8.0) if row[0] == "device 2 alone" else costs("c", row[0])
    steps = [SCHEDULES["1f1b"].step_time([[stage]], [], m) for m in (M, 1)]
    found = steps[0].pipeline, steps[1].pipeline, steps[0].total, steps[1].total
    assert found == tuple(map(float, row[1:]))


def test_the_extension() -> None:
    """The table of one transition, line by line."""
    shown = [float(row[2].split("= ")[1]) for row in table("| step of the form |")]
    (f, b, t, g, *_), (rest, after, done, idle) = options()["a, b", TP], label(DP)
    n, trip = 1, after + H
    first = f + max(n * f, trip)
    sent = first + b + (M - n - 2) * t + f
    last = max(sent + n * b, sent + trip, f + H + rest)
    finish = max(last + b + g, f + H / 2 + done, sent + H / 2 + idle)
    assert shown == [trip, first, sent, last, last + b, t + trip, finish]
    assert finish == BEST


def label(option: str) -> tuple[float, ...]:
    return next(tuple(map(float, row[1:])) for row in table("| option of c |")
                if row[0] == option)


def test_dominance() -> None:
    small, large, alone = label(DP), label(TP), label("device 2 alone")
    assert all(x >= y for x, y in zip(alone, large, strict=True))
    assert small[0] < large[0] and small[3] > large[3]
    # Raised by the least that a and b need after the last backward of c.
    hidden = min(b + g for (stage, _), (_, b, _, g, *_) in options().items() if stage == "a, b")
    raised = [(max(done, rest + hidden), max(idle, after + hidden))
              for rest, after, done, idle in (small, large)]
    assert hidden == 5
    assert raised == [(29, 11), (35, 12.5)]
    assert "has done 29 and idle 11, `tp` 2 has 35 and 12.5" in " ".join(PAGE.split())


def test_bounds() -> None:
    front = [figures for (stage, _), figures in options().items() if stage == "a, b"]
    added = max(min(t for _, _, t, *_ in front), min(t + g for _, _, t, g, *_ in front)) + H
    trips = min(max((M - 1) * t, (M - 1) * t + g) for _, _, t, g, *_ in front) + 2 * H
    assert (added, trips) == (8.5, 24.5)
    for behind, low, lower in ((DP, 32.5, 36.5), (TP, 38.5, 39.5)):
        rest, after, *_ = label(behind)
        assert (rest + added, 2 * after + trips) == (low, lower)
        steps = [float(row[3]) for row in table("| a, b | c |") if row[1] == behind]
        assert min(steps) >= max(low, lower)
    # Two stages in front add more: their hand-over takes 1 s, that to c on one lane 2 s.
    assert added < 2 * 6 + H + 2 * H


# ---------------------------------------------------------------- pictures


def drawing() -> Any:
    spec = importlib.util.spec_from_file_location("draw", ROOT / "docs/algorithm/draw.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_are_those_that_the_script_draws() -> None:
    draw = drawing()
    for name, picture in draw.PICTURES.items():
        assert (ROOT / "docs" / "algorithm" / f"{name}.svg").read_text("utf-8") == picture(), name


def test_the_timeline_is_the_plan() -> None:
    draw = drawing()
    front, behind = draw.EXAMPLE
    assert tuple(front) == (*options()["a, b", TP][:2], options()["a, b", TP][3])
    assert tuple(behind) == (*options()["c", DP][:2], options()["c", DP][3])
    times, _ = draw.simulate(draw.EXAMPLE, H / 2, M)
    assert times[draw.Pass(0, 1, M - 1)][1] == BEST
    assert times[draw.Pass(1, 1, M - 1)][1] + behind.finish < BEST


def test_the_page_is_short() -> None:
    assert len(PAGE.split()) <= 2000
