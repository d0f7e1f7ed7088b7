"""The best cluster of a family: that of looking at all of them, and a certificate that holds."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest
from command_line import run
from descriptions import CLUSTER
from studies import STUDY, THREE_LEVELS, monotone

from nest.errors import InfeasibleError, InputError
from nest.inputs import load_cluster
from nest.studies import design as designing
from nest.studies.design import Design, design
from nest.studies.study import PriceList, Study, bill
from nest.studies.sweep import load_study, sweep

MODELS = {"small": {"model": STUDY["model"]},
          "long": {"model": STUDY["model"], "job.seq_len": 512}}


def family(seed: int) -> dict[str, Any]:
    """A study of 48 to 216 clusters for two trainings."""
    rng = Random(seed)
    long = rng.choice((1e11, 2e12))
    return {
        **STUDY, "name": f"family-{seed}",
        "cluster": THREE_LEVELS,
        "axes": {
            "training": MODELS, "cluster.devices": [8, 16, 24],
            "cluster.levels.leaf.bandwidth": ["10 GB/s", "20 GB/s", "40 GB/s", "80 GB/s"],
            "cluster.levels.spine.oversubscription": [1, 2, 4][:rng.choice((1, 3))],
            "cluster.device.memory": ["2 GiB", "4 GiB", "6 GiB"][:rng.choice((2, 3))]},
        "prices": {"device_hour": f"1 + {rng.choice((0.02, 0.1))} * cluster.device.memory / "
                   "1073741824", "adapter": f"{rng.choice((3, 30))} * "
                   "cluster.levels[1].bandwidth / 1e6", "switch": rng.choice((0, 20000)),
                   "optic": rng.choice((0, 500)), "power": 0.1, "device_watts": 1000},
        "train": {"tokens": 1e12, "days": rng.choice((None, 0.07 * (1 + long / 1e12)))},
        "together": {"axis": "training", "tokens": {"small": 1e12, "long": long}},
        "objectives": ["money", "days"]}


def whole(given: dict[str, Any], folder: Path) -> list[tuple[float, float, tuple[Any, ...]]]:
    """Money and days of each cluster on which both trainings have a plan in time."""
    with sweep(given, folder, engine="inline", question=monotone).results() as results:
        return [(one.money or 0.0, one.days, one.labels) for one in results.shared if one.in_time]


@pytest.mark.parametrize("seed", range(6))
def test_the_best_cluster_is_that_of_looking_at_all(seed: int, tmp_path: Path) -> None:
    given = family(seed)
    every, study = whole(given, tmp_path), load_study(given)
    for want, place in (("money", 0), ("days", 1)):
        budget = None if seed % 2 else 1.5 * min(one[0] for one in every)
        allowed = [one for one in every if budget is None or one[0] <= budget]
        found: Design = design(study, want, budget, answer=monotone)  # type: ignore[arg-type]
        values = sorted(one[place] for one in allowed)
        mine = found.best.money if want == "money" else found.best.days
        assert mine == pytest.approx(values[0], rel=1e-9)
        assert found.designs == study.size // 2
        assert found.solved + found.refuted + found.pruned == found.designs
        if found.next_bound is not None and len(values) > 1:
            assert values[0] * (1 - 1e-9) <= found.next_bound <= values[1] * (1 + 1e-9)
        assert found.questions < study.size / 2
        assert sum(one.days for one in found.trainings) == pytest.approx(found.best.days)


def test_bounds_that_are_too_high_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class High(designing.Bounds):
        def raise_low(self, place: int, low: float) -> None:
            super().raise_low(place, low)
            self.low += 0.03

    monkeypatch.setattr(designing, "Bounds", High)
    differ = 0
    for seed in range(6):
        given = family(seed)
        every = whole(given, tmp_path / str(seed))
        try:
            best = design(load_study(given), answer=monotone).best.money
        except InfeasibleError:
            best = math.inf
        differ += best != pytest.approx(min(one[0] for one in every), rel=1e-9)
    assert differ


def test_what_no_cluster_can_do() -> None:
    given = family(1)
    with pytest.raises(InfeasibleError, match=r"none of \d+ clusters.*at the least"):
        design(load_study({**given, "train": {"tokens": 1e12, "days": 1e-5}}), answer=monotone)
    with pytest.raises(InfeasibleError, match="10 USD"):
        design(load_study(given), budget=10.0, answer=monotone)


@pytest.mark.parametrize(("changes", "want", "budget", "said"), [
    ({"prices": None, "objectives": ["days"]}, "money", None, "without prices"),
    ({}, "speed", None, "allowed: money, days"), ({}, "money", -1.0, "above 0"),
    ({"train": None, "together": None, "objectives": ["devices"]}, "days", None, "tokens"),
])
def test_what_is_refused(changes: dict, want: Any, budget: float | None, said: str) -> None:
    study: Study = load_study({**family(0), **changes})
    with pytest.raises(InputError, match=said):
        design(study, want, budget, answer=monotone)


def test_optics_join_switches() -> None:
    """Leaf 50 GB/s, spine half of it, 24 devices: 2 x 24 x 25 GB/s / 50 GB/s = 24 modules."""
    cluster = load_cluster(CLUSTER)
    names = {"model": None, "cluster": cluster, "job": None, "devices": 24}
    prices = PriceList(optic=1000, years=1, optic_watts=10)
    found = bill(prices, names)
    assert found.hour == pytest.approx(24 * 1000 / 8766) and found.watts == 240.0


@pytest.mark.kernels
def test_the_command_shows_a_certificate(tmp_path: Path, capsys) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("""
model: llama2-7b
cluster: {base: dgx-h100, devices: 16}
job: {global_batch: 64, seq_len: 2048}
axes:
  cluster.levels.1.bandwidth: [100 Gb/s, 200 Gb/s, 400 Gb/s]
  cluster.device.memory: [40 GiB, 80 GiB]
prices: {device_hour: 2 + 0.01 * cluster.device.memory / 1073741824}
train: {tokens: 1e12}
""", encoding="utf-8")
    shown, _ = run(capsys, "design", str(path))
    assert "Proof" in shown and "no other one takes less than" in shown
    data = json.loads(run(capsys, "design", str(path), "--json")[0])
    assert data["schema"] == "nest.design/1" and data["designs"] == 6
