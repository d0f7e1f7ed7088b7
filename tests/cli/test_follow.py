"""Progress of a search, and what ends it early."""

from __future__ import annotations

import io
import os
import signal
import threading

import pytest
from command_line import Files, run

import nest
from nest.cli.progress import Follow, line
from nest.search.progress import Progress

JOB = nest.Job(global_batch=1024, seq_len=4096)
NOW = Progress(1.0, 41, 88, 12.9, 12.0, 0.075)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def large() -> tuple[nest.Model, nest.Cluster, nest.Job]:
    return (nest.load_model("llama3-70b"), nest.load_cluster("h100-spine-leaf", devices=256), JOB)


@pytest.mark.kernels
def test_progress_says_how_far_a_search_is():
    seen: list[Progress] = []
    plan = nest.plan(*large(), progress=seen.append, beyond_stack=True)
    assert plan.optimal
    assert seen
    assert seen[0].total == 0 and seen[0].lower_bound_s is None  # the draft knows no bound
    steps = [x.step_time_s for x in seen if x.step_time_s is not None]
    assert steps == sorted(steps, reverse=True)
    assert all(x.lower_bound_s <= plan.step_time_s for x in seen if x.lower_bound_s is not None)
    assert all(0 <= x.proved <= x.total for x in seen)


@pytest.mark.kernels
def test_a_follower_ends_a_search_with_the_best_plan_so_far(monkeypatch):
    monkeypatch.setattr("nest.search.progress.EVERY", 0.0)
    plan = nest.plan(*large(), progress=lambda now: now.step_time_s is None)
    assert not plan.optimal
    assert plan.feasible
    assert plan.gap is not None and plan.gap > 0.0
    with pytest.raises(nest.LimitError, match="before the search was stopped"):
        nest.plan(*large(), progress=lambda now: False)


@pytest.mark.kernels
def test_what_a_follower_raises_is_passed_on():
    def fail(now: Progress) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        nest.plan(*large(), progress=fail)


def test_the_line_fits_a_terminal(monkeypatch):
    assert line("llama3-70b on 1,024 devices", NOW) == (
        "llama3-70b on 1,024 devices: 41/88 proved, best 12.9 s, bound 12 s, gap 7.5 %")
    assert line("x", Progress(1.0, 0, 0, None, None, None)) == "x, no plan yet"
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("COLUMNS", "40")
    with Follow("llama3-70b on 1,024 devices", quiet=False) as follow:
        assert follow(NOW._replace(seconds=0.4))
        assert stream.getvalue() == ""
        assert follow(NOW)
    shown = stream.getvalue().split("\r")[1].removesuffix("\x1b[K")
    assert shown == line("llama3-70b on 1,024 devices", NOW)[:39]
    assert stream.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize("quiet", [False, True])
def test_no_line_where_nobody_looks(monkeypatch, quiet):
    stream = Terminal() if quiet else io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with Follow("x", quiet) as follow:
        follow(NOW)
    assert stream.getvalue() == ""


def test_ctrl_c_ends_the_search_once_there_is_a_plan():
    before = signal.getsignal(signal.SIGINT)  # ignored where the tests run in the background
    with Follow("x", quiet=True) as follow:
        assert follow(NOW)
        os.kill(os.getpid(), signal.SIGINT)
        assert follow(NOW) is False
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert follow.interrupted
    with pytest.raises(KeyboardInterrupt), Follow("x", quiet=True):
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert threading.current_thread() is threading.main_thread()


@pytest.mark.kernels
def test_an_interrupted_command_prints_its_plan(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("nest.search.progress.EVERY", 0.0)
    call = Follow.__call__

    def interrupt(follow: Follow, now: Progress) -> bool:
        call(follow, now)
        if now.step_time_s is not None and not follow.interrupted:
            os.kill(os.getpid(), signal.SIGINT)
        return not follow.interrupted

    monkeypatch.setattr(Follow, "__call__", interrupt)
    out, err = run(capsys, "plan", *Files(tmp_path).words, code=130)
    assert "of the best possible" in out
    assert "interrupted" in err
