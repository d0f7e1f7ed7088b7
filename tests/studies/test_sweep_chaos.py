"""A sweep that is killed, repeated, run twice at once, or out of room gives the same rows."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import time
import zlib
from collections import Counter
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest
from studies import STUDY, asked, child, grid, made_up, table, written

from nest.errors import InputError, LimitError, OutputError
from nest.studies import store as stores
from nest.studies.engines import Engine, Inline, engine, prepare
from nest.studies.questions import ask
from nest.studies.store import Store
from nest.studies.sweep import FILE, stored, sweep

KILLS = 5
POINTS = 40


def kill_at(moment: float, process) -> bool:
    """Kill a process and its children after some seconds; False: it had ended."""
    try:
        process.wait(moment)
        return False
    except Exception:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True


def test_killed_at_random_moments_and_resumed_it_equals_the_uninterrupted_one(tmp_path):
    study = grid(POINTS)
    asked(study, tmp_path / "whole")
    path, folder, log = written(tmp_path, study), tmp_path / "killed", tmp_path / "log"
    moments, kills, begun = random.Random(1), 0, 0
    while kills < KILLS:
        process = child(path, folder, pause=0.05, log=log)
        waits = time.monotonic()  # the kill comes while answers do, not while Python starts
        before = log.stat().st_size if log.exists() else 0
        while process.poll() is None and time.monotonic() - waits < 30 and (
                not log.exists() or log.stat().st_size == before):
            time.sleep(0.005)
        begun += 1
        if not kill_at(moments.uniform(0.0, 0.15), process):
            break
        kills += 1
        whole = sqlite3.connect(folder / FILE)
        assert whole.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        whole.close()
    process = child(path, folder)
    assert process.wait(60) == 0, process.stderr.read()
    assert kills >= KILLS or begun > kills
    assert table(folder, study) == table(tmp_path / "whole", study)
    asks = Counter(log.read_text().split())
    assert sum(asks.values()) <= POINTS + kills  # at most the one in flight is asked again
    assert stored(folder).complete


def test_two_processes_at_once_repeat_nothing(tmp_path):
    study = grid(POINTS)
    asked(study, tmp_path / "one")
    path, folder, log = written(tmp_path, study), tmp_path / "two", tmp_path / "log"
    both = [child(path, folder, pause=0.03, log=log) for _ in range(2)]
    for process in both:
        assert process.wait(60) == 0, process.stderr.read()
    assert table(folder, study) == table(tmp_path / "one", study)
    assert set(Counter(log.read_text().split()).values()) == {1}
    assert not [*folder.glob("*-owner-*")]


def test_what_a_killed_process_had_claimed_is_asked_by_one_that_runs(tmp_path):
    study = grid(POINTS)
    path, folder, log = written(tmp_path, study), tmp_path / "two", tmp_path / "log"
    first = child(path, folder, pause=0.05, log=log)
    second = child(path, folder, pause=0.05, log=log)
    while not log.exists() or len(log.read_text().split()) < 10:
        time.sleep(0.01)
    assert kill_at(0.0, first)
    assert second.wait(60) == 0, second.stderr.read()
    assert [row["status"] for row in table(folder, study)].count("open") == 0
    assert sum(Counter(log.read_text().split()).values()) <= POINTS + 1


@pytest.mark.kernels
def test_real_questions_of_killed_workers(tmp_path):
    """With processes of its own, which end with it."""
    study = {**STUDY, "axes": {"job.global_batch": [*range(8, 200, 8)]}}
    sweep(study, tmp_path / "whole", engine="inline")
    path, folder = written(tmp_path, study), tmp_path / "killed"
    moments = random.Random(2)
    for _ in range(2):
        kill_at(moments.uniform(1.5, 3.0), child(path, folder, real=True, engine="local"))
    process = child(path, folder, real=True, engine="local")
    assert process.wait(120) == 0, process.stderr.read()
    assert table(folder, study) == table(tmp_path / "whole", study)


def fatal(question):
    """Ends the worker over one question, which others must not suffer for."""
    if question.job.global_batch == 3:
        os._exit(9)
    return made_up(question)


def test_a_question_that_ends_its_worker_has_failed_and_no_other(tmp_path):
    study = grid(8)
    found = sweep(study, tmp_path, engine=engine("local", 2), question=fatal)
    status = {row["job.global_batch"]: row["status"] for row in found.rows()}
    assert status == {n: "failed" if n == 3 else "infeasible" if n == 5 else "ok"
                      for n in range(1, 9)}
    asked(study, tmp_path)  # failed ones are asked again
    assert next(row for row in found.rows() if row["job.global_batch"] == 3)["status"] == "ok"


def test_a_full_disk_ends_in_a_message_with_the_store_whole(tmp_path):
    study = grid(40)
    asked(grid(4), tmp_path)
    calls = []

    def filling(question):
        calls.append(question)
        answer = made_up(question)
        return answer._replace(plan=os.urandom(20_000))

    def full(self, reads):
        base = opened(self, reads)
        if not reads:
            base.execute("PRAGMA max_page_count = 60")
        return base

    opened = Store._opened
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "_opened", full)
        with pytest.raises(OutputError, match=r"cannot be written \(database or disk is full\); "
                           "the answers in it are whole"):
            sweep(study, tmp_path, engine="inline", question=filling)
    base = sqlite3.connect(tmp_path / FILE)
    assert base.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    kept = base.execute("SELECT count(*) FROM answers").fetchone()[0]
    base.close()
    assert 4 < kept < 40 and len(calls) == kept - 4 + 1
    asked(study, tmp_path)
    assert all(row["status"] != "open" for row in table(tmp_path, study))


@pytest.mark.parametrize("again", [False, True])
def test_a_store_that_is_removed_ends_the_sweep_at_once(tmp_path, again):
    """Also where another one has its name by then: all answers would go to a file without one."""
    study, folder, asked_then = grid(POINTS), tmp_path / "answers", []

    def follow(now):
        asked_then.append(now.asked)
        if now.asked == 5:
            for file in folder.glob(f"{FILE}*"):
                file.unlink()
            if again:
                Store(str(folder / FILE)).close()

    with pytest.raises(OutputError, match="was removed or replaced"):
        sweep(study, folder, engine="inline", question=made_up, progress=follow)
    assert len(asked_then) < 8
    assert sweep(study, folder, engine="inline", question=made_up).complete
    assert len(table(folder, study)) == POINTS


def test_each_stored_answer_has_its_point_whenever_its_process_is_killed(tmp_path):
    """A server that ends kills its sweeps; the next one counts the points that have answers."""
    seen = []

    def follow(now):
        with Store(str(tmp_path / FILE), reads=True) as store:
            answers = {question for question, _ in store.all_answers()}
            points = {row.question for row in store.rows(store.latest()[0]) if row.status}
        seen.append(len(answers))
        assert answers == points

    study = grid(12)
    sweep(study, tmp_path, engine="inline", question=made_up, progress=follow)
    assert {1, 2, 11} <= {*seen}


def test_the_latest_study_is_the_latest_after_the_clock_was_put_back(tmp_path):
    with Store(str(tmp_path / FILE)) as store:
        for study, at in (("one", 2e9), ("two", 1e9), ("three", 1.5e9), ("one", 1e9)):
            store.begin(study, study, at)
            assert store.latest() == (study, study)


def test_a_folder_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    place = tmp_path / "file"
    place.write_text("x")
    with pytest.raises(InputError, match="output: .* cannot be created"):
        asked(grid(2), place / "folder")
    asked(grid(2), tmp_path / "old")
    monkeypatch.setattr(stores, "Owner", lambda path: (_ for _ in ()).throw(
        PermissionError(30, "Read-only file system")))
    with pytest.raises(OutputError, match=r"cannot be written \(Read-only file system\)"):
        asked(grid(3), tmp_path / "old")
    assert len(table(tmp_path / "old", grid(2))) == 2  # reading needs no owner


@pytest.mark.parametrize("content", [
    b"not a database, but as long as the head of one" * 9, b"SQLite"])
def test_another_file_in_its_place_is_told_and_kept(tmp_path, content):
    path = tmp_path / FILE
    path.write_bytes(content)
    with pytest.raises((OSError, ValueError, OutputError), match="answers.db: cannot be"):
        asked(grid(2), tmp_path)
    assert path.read_bytes() == content


def test_another_database_is_refused(tmp_path):
    base = sqlite3.connect(tmp_path / FILE)
    base.execute("CREATE TABLE mine (x)")
    base.commit()
    base.close()
    with pytest.raises(ValueError, match="another program's database"):
        asked(grid(2), tmp_path)


def test_a_sweep_that_is_ended_goes_on(tmp_path):
    study, told = grid(10), []
    found = asked(study, tmp_path, progress=lambda now: told.append(now) or now.asked < 4)
    assert not found.complete and not stored(tmp_path).complete
    assert told[-1].asked == 4
    found = asked(study, tmp_path, progress=told.append)
    assert found.complete and told[-1].asked == 6 and told[-1].done == told[-1].total == 10
    asked(study, tmp_path, progress=told.append)
    assert told[-1].asked == 0


def test_answers_are_used_by_other_studies_and_not_by_other_versions(tmp_path, monkeypatch):
    told = []
    asked(grid(4), tmp_path)
    asked(grid(6), tmp_path, progress=told.append)
    assert told[-1].asked == 2
    for module in ("questions", "study"):
        monkeypatch.setattr(f"nest.studies.{module}.VERSION", "9.9")
    asked(grid(6), tmp_path, progress=told.append)
    assert told[-1].asked == 6


def test_owners_end_with_their_process(tmp_path):
    path = str(tmp_path / "store")
    mine = stores.Owner(path)
    assert stores.alive(path, mine.name)
    os.close(mine._file)  # as at the end of a process
    assert not stores.alive(path, mine.name) and not [*Path(tmp_path).iterdir()]
    assert not stores.alive(path, "never")


def test_names_of_a_store_are_no_paths(tmp_path):
    """A claim is whatever a file says: it must neither open nor remove anything."""
    study, victim = grid(3), tmp_path / "victim"
    victim.write_text("precious")
    asked(study, tmp_path / "out")
    path = tmp_path / "out" / FILE
    (tmp_path / "out" / f"{FILE}-owner-x").mkdir()
    base = sqlite3.connect(path)
    questions = [one for one, in base.execute("SELECT question FROM answers")]
    base.execute("DELETE FROM answers")
    for question, name in zip(questions, ("x/../../victim", str(victim), b"\xff"), strict=True):
        base.execute("INSERT INTO claims VALUES (?, ?)", (question, name))
    base.commit()
    base.close()
    link = tmp_path / "out" / f"{FILE}-owner-{'0' * 16}"
    link.symlink_to(victim)
    assert asked(study, tmp_path / "out").complete
    assert victim.read_text() == "precious" and link.is_symlink()  # nothing was opened over it


@pytest.mark.parametrize("statement", [
    "CREATE TRIGGER t AFTER INSERT ON answers BEGIN DELETE FROM studies; END",
    "CREATE VIEW v AS SELECT 1", "DROP TABLE claims", "ALTER TABLE claims ADD COLUMN more TEXT"])
def test_other_tables_than_those_of_answers_are_refused(tmp_path, statement):
    asked(grid(3), tmp_path)
    base = sqlite3.connect(tmp_path / FILE)
    base.execute(statement)
    base.commit()
    base.close()
    for use in (lambda: asked(grid(4), tmp_path), lambda: stored(tmp_path)):
        with pytest.raises(InputError, match="other tables than those of answers"):
            use()


def test_a_store_is_no_link(tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "out"
    victim.write_text("1")
    folder.mkdir()
    for target in (victim, tmp_path / "absent"):
        (folder / FILE).symlink_to(target)
        with pytest.raises(InputError, match="is a link to another file"):
            asked(grid(1), folder)
        (folder / FILE).unlink()
    assert victim.read_text() == "1" and not (tmp_path / "absent").exists()


@pytest.mark.parametrize("change", [
    lambda path: {"model": path}, lambda path: {"cluster": path},
    lambda path: {"cluster": {"base": path}},
    lambda path: {"axes": {"cluster": [{"base": {"base": path}}]}},
    lambda path: {"job": {"global_batch": 8, "seq_len": 64, "stack": path}}])
def test_the_study_of_a_store_opens_no_file(tmp_path, monkeypatch, change):
    secret = tmp_path / "secret.json"
    secret.write_text('{"layers": "hunter2", "name": "hunter2"}')
    asked(grid(3), tmp_path)
    base = sqlite3.connect(tmp_path / FILE)
    base.execute("UPDATE studies SET text = ?", (json.dumps(
        {**grid(3), **change(str(secret))}),))
    base.commit()
    base.close()
    opened = []
    monkeypatch.setattr("nest.inputs.sources.read_description", lambda *given: opened.append(given))
    with pytest.raises(InputError, match=r"answers.db: cannot be read \(the study is not that "):
        stored(tmp_path)
    assert not opened


@pytest.mark.parametrize("change", [
    "UPDATE answers SET answer = '{'", "UPDATE answers SET answer = '[]'",
    "UPDATE answers SET answer = '{\"status\": \"ok\", \"mfu\": \"x\"}'",
    "UPDATE answers SET answer = '{\"status\": \"ok\"}'", "UPDATE answers SET answer = x'ff'",
    "UPDATE answers SET status = 'gone'", "UPDATE points SET about = 'null'",
    "UPDATE points SET about = '{}' || about", "UPDATE points SET labels = '3'",
    "UPDATE points SET labels = '[1, 2]'", "UPDATE points SET labels = x'fe'"])
def test_what_a_damaged_row_holds_is_one_message(tmp_path, change):
    found = asked(grid(3), tmp_path)
    base = sqlite3.connect(tmp_path / FILE)
    base.execute(change)
    base.commit()
    base.close()
    with pytest.raises(InputError, match=r"answers.db: cannot be read .*it is damaged; nothing"):
        list(found.rows())


@pytest.mark.parametrize("plan", [b"", b"x", zlib.compress(b"{}"), zlib.compress(b"[")[:-2]])
def test_a_damaged_plan_is_one_message(tmp_path, plan):
    found = asked(grid(3), tmp_path)
    base = sqlite3.connect(tmp_path / FILE)
    base.execute("UPDATE answers SET plan = ?", (plan,))
    base.commit()
    base.close()
    with pytest.raises(InputError, match="cannot be read .the plan of point 1: "):
        found.plan(1)


def test_any_damage_ends_in_a_message_and_removes_nothing(tmp_path):
    """Bytes of a store changed at random: rows, a message, and never anything else."""
    asked(grid(40), tmp_path / "whole")
    whole = (tmp_path / "whole" / FILE).read_bytes()
    numbers, told = random.Random(3), Counter()
    for n in range(150):
        data = bytearray(whole)
        if n % 5 == 0:
            del data[numbers.randrange(len(data)):]
        for _ in range(numbers.choice((1, 10, 300))):
            if data:
                data[numbers.randrange(len(data))] = numbers.randrange(256)
        folder = tmp_path / str(n)
        folder.mkdir()
        (folder / FILE).write_bytes(data)
        for use in (lambda place: [*stored(place).rows()],
                    lambda place: asked(grid(41), place)):
            try:
                use(folder)
                told["read"] += 1
            except (InputError, OutputError) as error:
                assert f"{FILE}: " in str(error) and "\n" not in str(error), error
                told["refused"] += 1
                assert (folder / FILE).stat().st_size >= len(data)
    assert told["read"] > 20 and told["refused"] > 100, told


class Starting(Inline):
    """Workers of which the first so many end while they start."""

    def __init__(self, deaths: list[int]) -> None:
        self._deaths = deaths

    def submit(self, fn, /, *args, **kwargs):
        if fn is prepare:
            if self._deaths[0]:
                self._deaths[0] -= 1
                raise BrokenExecutor
            fn = bool
        return super().submit(made_up if fn is ask else fn, *args, **kwargs)


@pytest.mark.parametrize("deaths", [0, 2, 3])
def test_a_worker_that_ends_while_it_starts_is_started_again(tmp_path, deaths):
    left = [deaths]
    where = Engine("made up", lambda: Starting(left), lambda executor: 1)
    if deaths < 3:
        assert sweep(grid(3), tmp_path, engine=where).complete
    else:
        with pytest.raises(LimitError, match="a worker of made up ended while it started, 3 times"):
            sweep(grid(3), tmp_path, engine=where)
        assert sweep(grid(3), tmp_path, engine=where).complete  # the same command goes on
