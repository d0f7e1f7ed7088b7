"""What failures leave of the time, against a simulation of single failures, and published runs."""

from __future__ import annotations

import json
import math
from functools import cache
from random import Random
from typing import NamedTuple

import pytest
from command_line import run

import nest
from nest import InputError, Job, evaluate, load_cluster, load_model, replan
from nest.evaluation.even import even_configuration
from nest.inputs import Failures
from nest.model import build_chain
from nest.replanning import renewal
from nest.replanning.renewal import Missing

HOUR, DAY = 3600.0, 86400.0


class Run(NamedTuple):
    """A job with failures of parts that take so many nodes."""

    rates: dict[int, float]
    work: float = 600.0
    pause: float = 20.0
    restart: float = 300.0
    write: float = 0.0
    repair: float = 0.0
    spares: int = 0
    nodes: int = 100
    speed: tuple[float, ...] = ()
    """Without 1, 2, ... nodes; it waits without more."""

    def __call__(self, lost: int) -> float:
        return self.speed[lost - 1] if lost <= len(self.speed) else 0.0


def simulated(job: Run, seed: int, failures: int) -> float:
    """Tokens saved over those of the whole time, failure by failure; knows no formula."""
    rng, now, saved, away = Random(seed), 0.0, 0.0, list[float]()
    while failures:
        away = [end for end in away if end > now]
        lost = max(0, len(away) - job.spares)
        speed = 1.0 if lost == 0 else job(lost)
        if speed == 0.0:  # nothing runs, and nothing fails
            now = min(away)
            continue
        left = 1.0 - lost / job.nodes
        each = {size: rng.expovariate(rate * (left if size else 1.0))
                for size, rate in job.rates.items()}
        size = min(each, key=lambda one: each[one])
        until, back = now + each[size], min(away) if lost else math.inf
        start = now + job.restart
        if until < back or back < start:
            up = until - start
            if until >= back:  # the node returns in the restart, which begins anew
                now = back
                continue
            period = job.work + job.pause
            saved += speed * job.work * max(0, math.floor((up - job.write) / period))
            now, failures = until, failures - 1
            away += [until + rng.expovariate(1.0 / job.repair) for _ in range(size)] * (
                job.repair > 0.0)
        else:  # all is saved before the node joins
            whole, part = divmod(back - start, job.work + job.pause)
            saved += speed * (whole * job.work + min(part, job.work))
            now = back + job.pause
    return saved / now


def priced(job: Run) -> float:
    """The same by the formulas."""
    rhythm = renewal.rhythm(sum(job.rates.values()), job.work, job.pause, job.restart, job.write)
    rates = {size: rate for size, rate in job.rates.items() if size}
    found = renewal.staffed(Missing(rates, job.repair, job.nodes, job.spares), job,
                            job.pause + job.restart)
    return rhythm.trains * found.speed


@pytest.mark.parametrize(("job", "within"), [
    (Run({0: 1 / (3 * HOUR)}), 0.004),
    (Run({0: 1 / (0.4 * HOUR)}), 0.012),
    (Run({0: 1 / (1.0 * HOUR)}, pause=5.0, write=500.0), 0.008),
    (Run({0: 1 / (8 * HOUR), 1: 1 / (4 * HOUR)}, repair=DAY, spares=6), 0.006),
    (Run({0: 1 / (8 * HOUR), 1: 1 / (4 * HOUR)}, repair=DAY, spares=2), 0.01),
    (Run({1: 1 / (6 * HOUR), 4: 1 / (50 * HOUR)}, repair=DAY, spares=7), 0.012),
    (Run({1: 1 / (4 * HOUR)}, repair=8 * HOUR, spares=1, speed=(0.9, 0.85, 0.7, 0.6)), 0.01)])
def test_formulas_agree_with_failures_one_by_one(job: Run, within: float) -> None:
    assert priced(job) == pytest.approx(simulated(job, 1, 60_000), rel=within)


def test_the_best_interval_is_the_best() -> None:
    for rate, pause in ((1 / (3 * HOUR), 3.0), (1 / HOUR, 60.0), (1 / DAY, 1.0), (1 / HOUR, 0.0)):
        best = renewal.best_work(rate, pause)
        if not pause:
            assert best == pytest.approx(0.0, abs=1e-3)
            continue
        top = renewal.rhythm(rate, best, pause, 300.0)
        assert all(renewal.rhythm(rate, best * factor, pause, 300.0).trains < top.trains
                   for factor in (0.5, 0.97, 1.03, 2.0))
        assert best == pytest.approx(renewal.daly_interval(rate, pause), rel=2e-3)
        assert sum(top[3:]) == pytest.approx(1.0) and min(top[3:]) > 0.0


def test_waits_are_those_of_erlang() -> None:
    """The chance that no spare is there: Erlang's loss formula; without waits a Poisson's."""
    load, spares = 3.0, 4
    missing = Missing({1: load / DAY}, DAY, 1000, spares)
    terms = [load ** k / math.factorial(k) for k in range(spares + 2)]
    assert renewal.staffed(missing, renewal.never, 0.0).waits == pytest.approx(
        terms[-1] / sum(terms))
    shares = missing._replace(nodes=10**9).shares(lambda lost: 1.0)
    assert shares[5] == pytest.approx(load ** 5 / math.factorial(5) * math.exp(-load), rel=1e-6)


# ---------------------------------------------------------------- published runs


def llama(devices: int) -> renewal.Expected:
    job = Job(global_batch=2048, seq_len=8192)
    return renewal.expected(Failures(), load_cluster("dgx-h100", devices=devices), job,
                            build_chain(load_model("llama3.1-405b")))


def test_llama_3_was_interrupted_as_often() -> None:
    """419 times in 54 days on 16,384 H100, of which more than 90 % trained (arXiv:2407.21783)."""
    rate, rates = renewal.losing(Failures(), load_cluster("dgx-h100", devices=16384))
    assert rate * 54 * DAY == pytest.approx(419) and rates[1] * 54 * DAY == pytest.approx(356)
    assert 0.92 < llama(16384).productive < 0.93 < 0.96 < llama(4096).productive < 0.97


def test_checkpoints_have_the_published_size() -> None:
    """13.8 TB of the 1008 B parameters of GPT 1T (arXiv:2104.04473, section 5.10)."""
    model = nest.load_model({"base": "gpt3-175b", "layers": 128, "hidden": 25600, "heads": 160,
                             "ffn": 102400, "kv_heads": 160, "head_dim": 160})
    job = Job(global_batch=3072, seq_len=2048)
    assert renewal.saved_bytes(build_chain(model), job) == pytest.approx(13.8e12, rel=0.025)


def test_adapters_alone_are_saved() -> None:
    job, base = Job(global_batch=8, seq_len=512), load_model("llama3-8b")
    tuned = nest.load_model({"base": "llama3-8b", "trainable": {"lora": {"rank": 16}}})
    whole, some = (renewal.saved_bytes(build_chain(model), job) for model in (base, tuned))
    assert whole == pytest.approx(14 * 8.03e9, rel=1e-3) and some < whole / 100


# ---------------------------------------------------------------- plans


@cache
def plan(name: str = "h100-spine-leaf") -> nest.Plan:
    cluster = load_cluster(name, devices=64)
    model, job = load_model("bert-large"), Job(global_batch=192, seq_len=512)
    return evaluate(model, cluster, job, even_configuration(model, cluster, job, zero=1))


def test_a_plan_by_its_parts(capsys, tmp_path) -> None:
    file, failures = tmp_path / "plan.json", tmp_path / "failures.yaml"
    file.write_text(plan().to_json())
    failures.write_text("device: 1000 h\nlevels: {leaf: 1 d}\nstorage: 1 GB/s\nlink: null\n"
                        "node: null\nsoftware: null\nrepair: 2 h\n")
    found = nest.goodput(plan(), failures, replan=False)
    assert [(one.name, one.nodes) for one in found.domains] == [("device", 1), ("leaf", 4)]
    assert found.checkpoint.total_bytes == pytest.approx(14 * 335e6, rel=0.01)
    assert found.checkpoint.device_bytes == pytest.approx(found.checkpoint.total_bytes / 64)
    assert found.checkpoint.write_s == found.checkpoint.total_bytes / 1e9
    steps = found.checkpoint.interval_s / plan().step_time_s
    assert steps == pytest.approx(found.checkpoint.interval_steps)
    assert sum(dict(found.shares).values()) == pytest.approx(1.0)
    assert found.choices[0].waits > found.choices[-1].waits
    out, _ = run(capsys, "goodput", str(file), "--failures", str(failures), "--wait")
    assert f"{found.goodput:.1%}" in out and max(map(len, out.splitlines())) <= 80
    out, _ = run(capsys, "goodput", str(file), "--failures", str(failures), "--wait", "--spares",
                 "1", "--json")
    assert nest.Goodput.parse(json.loads(out)).spares == 1


def test_what_is_refused() -> None:
    for given, text in (
            ({"levels": {"rack": "1 d"}}, "levels.rack: h100-spine-leaf has no such level; "
             "allowed: node, leaf, spine"),
            ({"device": None, "link": None, "node": None, "software": None},
             "device: got no part that fails"),
            ({"device": "1 week"}, "allowed: a number of seconds, or a number with s, min, h or d"),
            ({"background": True}, "background: h100-90gb has no host_link; allowed: a device"),
            ({"disk": 5}, "disk: unknown field")):
        with pytest.raises(InputError) as caught:
            nest.goodput(plan(), given, replan=False)
        assert text in str(caught.value)


def test_background_waits_for_copies_alone() -> None:
    given = {"storage": "100 MB/s"}
    slow = nest.goodput(plan("dgx-h100"), given, replan=False)
    beside = nest.goodput(plan("dgx-h100"), {**given, "background": True}, replan=False)
    assert beside.checkpoint.pause_s < 0.01 < slow.checkpoint.pause_s == beside.checkpoint.write_s
    assert beside.checkpoint.interval_s >= beside.checkpoint.write_s
    assert beside.goodput > slow.goodput


@pytest.mark.kernels
def test_the_speed_without_a_node_is_that_of_the_next_plan() -> None:
    failures = Failures(device=1000 * HOUR, repair=HOUR, spares=0)
    found = nest.goodput(plan(), failures, threads=1)
    after = replan(plan(), "node7", threads=1)
    assert found.smaller_plans[0].lost == 1
    assert found.smaller_plans[0].speed == pytest.approx(
        plan().step_time_s / after.plan.step_time_s)
    assert found.goodput > nest.goodput(plan(), failures, replan=False).goodput
