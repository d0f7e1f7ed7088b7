"""Free cuts of which too many stay below the best to price each: labels find the best."""

from __future__ import annotations

import pytest
from test_stack_oracle import held_against, no_explanations, question

import nest
from nest.search import alike

assert no_explanations  # a fixture of this file too
pytestmark = pytest.mark.kernels


def narrow(batch: int) -> nest.Plan:
    """llama3-70b on 256 devices of little memory with slow links."""
    where = nest.load_cluster("dgx-h100", devices=256).as_dict()
    where["device"]["memory"] = "60 GiB"
    where["levels"][0]["bandwidth"], where["levels"][1]["bandwidth"] = "100 GB/s", "50 Gb/s"
    return nest.plan(nest.load_model("llama3-70b"), nest.load_cluster(where),
                     nest.Job(global_batch=batch, seq_len=4096))


@pytest.mark.parametrize(("batch", "seconds"), [
    (512, 8.499094601668556), (2048, 31.208684746966544)])
def test_a_search_without_limits_ends_proved(batch: int, seconds: float) -> None:
    """Their gaps were 0.8 % and 6.8 %, and the second plan was 0.8 % slower."""
    plan = narrow(batch)
    assert plan.optimal and plan.gap == 0.0
    assert plan.step_time_s == pytest.approx(seconds, rel=1e-9)


def test_labels_find_what_pricing_each_way_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One way is priced, and labels find the others; held against the oracle."""
    monkeypatch.setattr(alike, "MOST_CUTS", 1)
    done = sum(held_against(question(seed), seed) is not None for seed in range(3000, 3060))
    assert done > 10


def test_there_may_be_room_for_few_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    before = narrow(512)
    monkeypatch.setattr("nest._kernels.uniform.search.LABELS", 16)
    after = narrow(512)
    assert after.optimal and after.step_time_s == before.step_time_s
