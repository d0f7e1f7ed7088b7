"""How sure a price is: ranges from measured runs, and what none of them had."""

from __future__ import annotations

import json
from collections import defaultdict

import measured
import numpy as np
import pytest

import nest
from nest.evaluation.confidence import WIDER, _foreign_links
from nest.evaluation.even import even_configuration
from nest.evaluation.plans import Plan
from nest.inputs import catalog, load_stack
from nest.measured.validation.score import covered, ratios, span
from nest.questions import read_question
from nest.studies.questions import Resolver


def priced(device: str = "dgx-h100", devices: int = 16, **job: object) -> Plan:
    cluster = nest.load_cluster(device, devices=devices)
    stage = {"layers": (0, 34), "devices": (0, devices), "dp_in": devices, "zero": 3}
    way = nest.Configuration(micro_batch=devices, stages=[stage])
    model = nest.load_model("llama3-8b")
    return nest.evaluate(model, cluster, nest.Job(global_batch=32 * devices, seq_len=4096, **job),
                         way)


def test_the_range_follows_the_percentiles() -> None:
    plan, known = priced(), load_stack("megatron-core").calibration
    assert plan.confidence is not None and known is not None
    assert plan.confidence.low_s == plan.step_time_s * known.low
    assert plan.confidence.high_s == plan.step_time_s * known.high
    assert plan.confidence.configurations == known.configurations
    assert plan.confidence.beyond == ()
    assert plan.error == pytest.approx((known.high - known.low) / 3.29)


def test_what_was_never_measured_is_named() -> None:
    found = priced("dgx-a100", 4096, precision="fp16").confidence
    assert found is not None
    assert [phrase.split(" (")[0] for phrase in found.beyond] == [
        "device a100-sxm-80gb", "4,096 devices", "precision fp16"]
    assert priced(stack="fsdp").confidence is None
    assert priced().doubts == ()


@pytest.mark.parametrize(("stack", "experts", "says"), [
    ("fsdp", False, ["no measured run of stack fsdp", "reported steps of FSDP and DeepSpeed"]),
    ("deepspeed", True, ["no measured run of stack deepspeed", "reported steps of FSDP and",
                         "no price is known for experts outside grouped kernels"]),
    ("megatron-fsdp", True, ["no measured run of stack megatron-fsdp"]),
    ({"base": "megatron-core", "name": "ours", "calibration": None}, False,
     ["no measured run of stack ours"]),
    ("megatron-core", True, []), ("torchtitan", False, [])])
def test_a_stack_without_runs_says_so(stack: object, experts: bool, says: list[str]) -> None:
    cluster = nest.load_cluster("dgx-h100", devices=8)
    model = nest.load_model("qwen3-30b-a3b" if experts else "llama3-8b")
    job = nest.Job(global_batch=8, seq_len=4096, stack=stack)
    plan = nest.evaluate(model, cluster, job, even_configuration(model, cluster, job, zero=3))
    assert len(plan.doubts) == len(says)
    assert all(text.startswith(start) for text, start in zip(plan.doubts, says, strict=True))
    assert ("\nEvidence     no measured run" in str(plan)) == bool(says)
    assert json.loads(plan.to_json())["doubts"] == list(plan.doubts)


@pytest.mark.parametrize(("cluster", "says"), [
    ({"base": "dgx-h100", "device": "mi300x"},
     "level nvlink has nvlink4 of 450 GB/s, which mi300x does not: it has xgmi of 448 GB/s"),
    ({"base": "dgx-b200", "device": "h100-sxm"},
     "level nvlink has nvlink5 of 900 GB/s, which h100-sxm does not: it has nvlink4 of 450 GB/s"),
])
def test_a_device_on_the_links_of_another_is_a_doubt_in_questions_and_studies(
    cluster: dict, says: str
) -> None:
    asked = {"model": {"base": "llama3-8b"}, "cluster": {**cluster, "devices": 8},
             "job": {"global_batch": 8, "seq_len": 4096}}
    question, _ = read_question(json.dumps(asked))
    study = nest.load_study({"name": "one", "axes": {"job.seq_len": [4096]}, **asked})
    of_study, _ = Resolver(study).question(())
    assert question.cluster == of_study.cluster
    found = even_configuration(question.subject, question.cluster, question.job)
    plan = nest.evaluate(question.subject, question.cluster, question.job, found)
    assert plan.doubts == (says,) and f"Evidence     {says[:40]}" in str(plan)


def test_clusters_of_the_catalog_have_the_links_of_their_devices() -> None:
    for name in catalog.list_clusters():
        cluster = nest.load_cluster(name)
        assert not [*_foreign_links(cluster)], name
        levels = [level.replace(bandwidth="123 GB/s") for level in cluster.levels[:1]]
        assert not [*_foreign_links(cluster.replace(levels=[*levels, *cluster.levels[1:]]))]


def test_the_optimizer_on_the_host_adds_to_the_doubt() -> None:
    cluster, model = nest.load_cluster("dgx-h100", devices=8), nest.load_model("llama3-8b")
    job = nest.Job(global_batch=8, seq_len=4096, stack="deepspeed")
    way = even_configuration(model, cluster, job, zero=2, offload="optimizer")
    assert "4.1 times its price" in nest.evaluate(model, cluster, job, way).doubts[2]


def test_the_catalog_says_what_validation_finds() -> None:
    """Where it fails after a change of prices: write the figures found into catalog/stacks.yaml."""
    rows = measured.rows()
    found, largest = ratios(rows), defaultdict(int)
    for row in rows:
        if row.error is not None:
            largest[row.stack] = max(largest[row.stack], row.key[2].cluster.size)
    checked = 0
    for name in catalog.names("stacks"):
        known = load_stack(name).calibration
        if known is None:
            continue
        dense, mixtures = (found.get((name, experts), {}) for experts in (False, True))
        count = sum(len(each) for models in (dense, mixtures) for each in models.values())
        assert (known.configurations, known.most_devices) == (count, largest[name]), name
        assert (known.low, known.high) == pytest.approx(span(dense, False), abs=1e-3), name
        assert known.experts == bool(mixtures), name
        if mixtures:
            given = known.expert_low, known.expert_high
            assert given == pytest.approx(span(mixtures, True), abs=1e-3), name
        checked += 1
    assert checked > 8


def test_ranges_hold_on_models_left_out() -> None:
    """G10: nine of ten runs of models that took no part in the range lie in it."""
    found = ratios(measured.rows())
    inside = [one for (_, experts), models in found.items() for one in covered(models, experts)]
    assert 0.85 <= np.mean(inside) <= 0.95
    mixtures = covered(found["megatron-bridge", True], True)
    # Of so few a single run is nearly two per cent.
    assert 0.85 <= np.mean(mixtures) <= 0.95 + 1 / len(mixtures)


def test_a_range_by_hand() -> None:
    # Nothing measured: the usual spread alone, 1.645 x 0.06.
    assert span({}, False) == pytest.approx((np.exp(-0.0987), np.exp(0.0987)))
    # One model, four times 10 % slower: weight 2 beside 4, so a center of log(1.1) / 3.
    center = np.log(1.1) / 3
    half = 1.645 * np.sqrt((2 * (2 * center) ** 2 + 4 * 0.06**2) / 6)
    assert span({"one": [1.1] * 4}, False) == pytest.approx(
        (np.exp(center - half), np.exp(center + half)))


def test_what_was_never_measured_widens_the_range() -> None:
    known = load_stack("megatron-core").calibration
    assert known is not None
    plain, wide = priced(), priced("dgx-a100", 4096, precision="fp16")
    assert wide.confidence is not None and plain.confidence is not None
    widths = [np.log(plan.confidence.high_s / plan.confidence.low_s) for plan in (plain, wide)]
    assert widths[1] == pytest.approx(widths[0] * WIDER ** len(wide.confidence.beyond))
