"""Points that are not asked: fronts and best points are those of the whole study."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from studies import ASKED_LOG, STUDY, monotone

import nest
from nest.api import OfUse
from nest.errors import InputError, NoFasterError
from nest.questions import Question
from nest.studies import proving
from nest.studies.standing import Standing
from nest.studies.store import FILE, Store
from nest.studies.sweep import Sweep, stored, sweep
from nest.studies.text import write


def drawn(seed: int) -> dict[str, Any]:
    """A study of 96 to 432 points, with prices, objectives and groups of its own."""
    rng = Random(seed)
    values = rng.choice((2, 3))
    axes: dict[str, Any] = {
        "cluster.devices": [8, 16, 24],
        "cluster.levels.leaf.bandwidth": ["10 GB/s", "20 GB/s", "40 GB/s", "80 GB/s"],
        "cluster.levels.node.bandwidth": ["100 GB/s", "200 GB/s", "300 GB/s"][:values],
        "cluster.device.memory": ["2 GiB", "4 GiB", "6 GiB", "8 GiB"],
        "job.memory_margin": [0.0, 0.2, 0.4][:values]}
    names = [*axes]
    rng.shuffle(names)
    study: dict[str, Any] = {
        **STUDY, "name": f"drawn-{seed}",
        "axes": {name: axes[name] for name in names},
        "prices": {"device_hour": f"1 + {rng.choice((0, 0.02, 0.1))} * "
                   "cluster.device.memory / 1073741824",
                   "adapter": f"{rng.choice((0, 3, 30))} * cluster.levels[1].bandwidth / 1e6",
                   "device_watts": 1000}}
    wanted = ["tokens_per_s", "tokens_per_money", "tokens_per_joule", "devices", "mfu",
              "step_time_s"]
    if rng.random() < 0.5:
        study["train"] = {"tokens": 1e12, "days": rng.choice((None, 0.05, 0.08))}
        wanted += ["days", "money"]
    study["objectives"] = rng.sample(wanted, rng.choice((1, 2, 3)))
    study["groups"] = rng.choice(([], ["cluster.devices"], ["job.memory_margin"]))
    return study


def shown(done: Sweep) -> dict[str, Any]:
    """What has to be the same: front and best of each group."""
    with done.results() as results:
        return {"front": sorted(results.front), "best": {
            name: {group: (one.number, one.values) for group, one in results.best(name).items()}
            for name in done.study.wanted}}


def run(study: dict[str, Any], folder: Path, **given: Any) -> Sweep:
    return sweep(study, folder, engine=given.pop("engine", "inline"), question=monotone, **given)


Whole = Callable[[int], Sweep]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A drawn study of which all points are asked, once for all tests."""
    return cache(lambda seed: run(drawn(seed), tmp_path_factory.mktemp("all") / str(seed)))


def wrong(seed: int, folder: Path, whole: Whole) -> bool:
    """Whether the front or the best of a study differ where it is proved."""
    return shown(run(drawn(seed), folder / "some", prove=True)) != shown(whole(seed))


@pytest.mark.parametrize("seed", range(7))
def test_fronts_and_best_points_are_those_of_the_whole_study(
    seed: int, tmp_path: Path, whole: Whole
) -> None:
    assert not wrong(seed, tmp_path, whole)
    with stored(tmp_path / "some").results() as some, whole(seed).results() as every:
        assert some.counts["proved"] > some.counts.total() / 4
        assert "open" not in some.counts and "proved" not in every.counts


def test_a_wrong_order_of_questions_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Whole
) -> None:
    """Figures upside down: bounds of worse questions count for better ones."""
    real = proving.standing
    monkeypatch.setattr(proving, "standing", lambda question: Standing(
        *real(question)[:2], tuple(-one for one in real(question).figures)))
    assert any(wrong(seed, tmp_path / str(seed), whole) for seed in range(5))


def test_totals_that_are_too_high_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Whole
) -> None:
    real = proving.least_seconds
    monkeypatch.setattr(proving, "least_seconds", lambda chain, cluster, job: real(
        chain, cluster, job) * (1.5 if cluster.device.memory > 5 * 2**30 else 1.0))
    assert any(wrong(seed, tmp_path / str(seed), whole) for seed in range(5))


def test_each_proof_names_points_that_prove_it(tmp_path: Path, whole: Whole) -> None:
    done = run(drawn(0), tmp_path / "some", prove=True)
    with whole(0).results() as every:
        rows = {row.number: row for row in every.rows()}
    with done.results() as results:
        kept = {row.number: row for row in results.rows()}
        wanted, checked = done.study.wanted, Counter[str]()
        for row in kept.values():
            proof = row.proof
            if proof is None:
                continue
            real = rows[row.number]
            if real.figures is None:
                checked["nothing fits"] += 1
                continue
            assert proof.low_s <= real.figures.step_time_s * (1 + 1e-9)
            if proof.beaten_by is None:
                assert not real.figures.in_time
                continue
            other = kept[proof.beaten_by].figures
            assert other is not None  # it was asked
            checked["beaten"] += 1
            for name in wanted:
                most = name not in ("step_time_s", "devices", "days", "money")
                one, two = getattr(other, name), getattr(real.figures, name)
                assert one >= two * (1 - 1e-9) if most else one <= two * (1 + 1e-9)
            if proof.known_by is not None:
                checked["known by another"] += proof.known_by != row.number
        assert checked["beaten"] and checked["known by another"]


@pytest.mark.parametrize("within", [0.01, 0.1])
def test_within_a_share_of_all_that_is_best(
    within: float, tmp_path: Path, whole: Whole
) -> None:
    left = Counter[str]()
    for seed in (0, 2, 5):
        done = run(drawn(seed), tmp_path / str(seed), within=within)
        with done.results() as some, whole(seed).results() as every:
            left += some.counts
            for group, found in every.groups.items():
                known = [one.values for one in some.groups[group]]
                for one in found:
                    assert any(all(
                        mine <= other + (1 + 1e-9) * within * abs(mine) + 1e-12
                        for mine, other in zip(each, one.values, strict=True))
                        for each in known), (seed, one)
    assert left["proved"] > left["ok"] and (left["near"] or within < 0.1)


def test_an_ended_study_goes_on_and_keeps_its_proofs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, log = drawn(1), tmp_path / "asked"
    whole = shown(run(study, tmp_path / "whole", prove=True))
    monkeypatch.setenv(ASKED_LOG, str(log))
    done = run(study, tmp_path / "parts", prove=True, progress=lambda now: now.asked < 3)
    assert not done.complete
    with Store(str(tmp_path / "parts" / FILE), reads=True) as store:
        proofs = store.proved_points(done.study.digest)
    assert proofs
    for _ in range(40):
        done = run(study, tmp_path / "parts", prove=True, progress=lambda now: now.asked < 3)
        if done.complete:
            break
    assert done.complete and shown(done) == whole
    with Store(str(tmp_path / "parts" / FILE), reads=True) as store:
        assert {*proofs} <= {*store.proved_points(done.study.digest)}
    count = len(log.read_text(encoding="utf-8").splitlines())
    again = run(study, tmp_path / "parts", prove=True)
    assert len(log.read_text(encoding="utf-8").splitlines()) == count and shown(again) == whole
    assert stored(tmp_path / "parts").complete


def test_what_is_asked_for_more_exactly_is_asked_again(tmp_path: Path) -> None:
    study = drawn(2)
    every = shown(run(study, tmp_path / "all"))
    run(study, tmp_path / "some", within=0.1)
    exact = run(study, tmp_path / "some", prove=True)
    assert shown(exact) == every
    with exact.results() as results:
        assert not results.counts["near"] and results.counts["proved"] and not results.within
    whole = run(study, tmp_path / "some")
    with whole.results() as results:
        assert not results.counts["near"] + results.counts["proved"]
    assert shown(whole) == every


def test_processes_prove_too(tmp_path: Path) -> None:
    study = drawn(3)
    done = run(study, tmp_path / "local", prove=True, engine="local", workers=2)
    assert shown(done) == shown(run(study, tmp_path / "all"))
    with done.results() as results:
        assert results.counts["proved"]


def test_tables_say_what_was_proved(tmp_path: Path) -> None:
    done = run(drawn(0), tmp_path, prove=True)
    with done.results() as results:
        write(results, "csv", str(tmp_path / "points.csv"))
        write(results, "json", str(tmp_path / "points.json"))
        count = results.counts["proved"]
        assert results.sensitivity() == []  # of the points that were asked it would say nothing
    with open(tmp_path / "points.csv", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["status"] == "proved"]
    assert len(rows) == count
    assert all(float(row["low_s"]) > 0 and not row["tokens_per_s"] for row in rows)
    assert any(row["beaten_by"].isdigit() and row["known_by"].isdigit() for row in rows)
    document = json.loads((tmp_path / "points.json").read_text(encoding="utf-8"))
    assert document["status"]["proved"] == count and document["proved_within"] == 0.0
    assert f"{count:,} proved" in done.report() and "need not be asked" in done.report()
    assert "proved, not asked" in done.to_html()


def test_parquet_says_what_was_proved(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    done = run(drawn(0), tmp_path, prove=True)
    with done.results() as results:
        write(results, "parquet", str(tmp_path / "points.parquet"))
    table = parquet.read_table(tmp_path / "points.parquet").to_pylist()
    assert any(row["status"] == "proved" and isinstance(row["beaten_by"], int) for row in table)


def test_limits_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = {**drawn(0), "axes": {"model": {"a": {"model": STUDY["model"]}}},
                "together": {"axis": "model", "tokens": {"a": 1e9}}, "groups": [],
                "objectives": ["tokens_per_s"]}
    with pytest.raises(InputError, match="nest design"):
        run(together, tmp_path / "one", prove=True)
    monkeypatch.setattr(proving, "MOST_PROVED", 3)
    with pytest.raises(InputError, match="at most 3"):
        run(drawn(0), tmp_path / "two", prove=True)
    for value in (-0.1, 2, math.nan, "x"):
        with pytest.raises(InputError, match="within"):
            sweep(drawn(0), tmp_path / "three", within=value)


@pytest.mark.kernels
def test_plans_below_a_limit_are_those_of_the_whole_search() -> None:
    model, cluster = nest.load_model("llama2-7b"), nest.load_cluster("dgx-h100", devices=16)
    job = nest.Job(global_batch=64, seq_len=2048)
    question = Question(model=model, cluster=cluster, job=job)
    best = nest.Planner().answer(question)
    above = nest.Planner().answer(question, of_use=OfUse(below=1.0001 * best.step_time_s))
    assert above.configuration == best.configuration and above.optimal
    planner = nest.Planner()
    for share in (0.5, 0.9, 0.9999):
        limit = share * best.step_time_s
        with pytest.raises(NoFasterError) as refused:
            planner.answer(question, of_use=OfUse(below=limit))
        assert refused.value.lower_bound_s == pytest.approx(limit, rel=1e-8)
    slower = question.unchecked(cluster=cluster.replace(levels=tuple(
        level.replace(bandwidth=0.98 * level.bandwidth) for level in cluster.levels)))
    planner.answer(question)
    near = planner.answer(slower, of_use=OfUse(floor=best.step_time_s, within=0.05))
    assert not near.optimal and 0.0 <= near.gap <= 0.05
    assert near.lower_bound_s == best.step_time_s
