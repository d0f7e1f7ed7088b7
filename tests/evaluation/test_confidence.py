"""How sure a price is: ranges from measured runs, and what none of them had."""

from __future__ import annotations

import json
from collections import defaultdict

import measured
import numpy as np
import pytest

import nest
from nest.evaluation.confidence import UNMEASURED, WIDER, _foreign_links
from nest.evaluation.even import even_configuration
from nest.evaluation.evidence import (
    COMMON,
    DIFFERS,
    DOUBLED,
    NOISE,
    SHARED,
    Features,
    MeasuredConfiguration,
    Properties,
    Runs,
    distances,
    runs_of,
)
from nest.evaluation.plans import Plan
from nest.inputs import catalog, load_stack
from nest.inputs.job import MEMORY_MARGIN, UNMEASURED_MARGIN
from nest.measured.validation.ranges import Tried, kind_of, left_out, to_csv
from nest.questions import read_question
from nest.studies.questions import Resolver


def priced(device: str = "dgx-h100", devices: int = 16, **job: object) -> Plan:
    cluster = nest.load_cluster(device, devices=devices)
    stage = {"layers": (0, 34), "devices": (0, devices), "dp_in": devices, "zero": 3}
    way = nest.Configuration(micro_batch=devices, stages=[stage])
    model = nest.load_model("llama3-8b")
    return nest.evaluate(model, cluster, nest.Job(global_batch=32 * devices, seq_len=4096, **job),
                         way)


def test_a_plan_like_measured_runs_is_measured() -> None:
    plan = priced()
    known, range_ = plan.evidence, plan.confidence
    assert known is not None and range_ is not None and known.word == "measured"
    assert known.like > 10 and known.configurations == range_.configurations > 100
    nearest = known.nearest[0]
    assert nearest.device == "h100-sxm" and nearest.distance < 1.0
    assert [one.distance for one in known.nearest] == sorted(one.distance for one in known.nearest)
    assert known.missed is not None and 0.0 < known.missed < 0.1
    assert range_.low_s <= plan.step_time_s < range_.high_s and range_.beyond == ()
    assert plan.error == pytest.approx((range_.high_s - range_.low_s) / plan.step_time_s / 3.29)
    first = str(plan).split("\n\n")[1]
    assert first.startswith("Evidence     measured: ") and "\nExpected     " in first


def test_properties_of_runs_that_no_run_has_together_lie_between_them() -> None:
    """megatron-core ran on A100 (in bf16), and mixtures on H100 and GB200: never both."""
    cluster, model = nest.load_cluster("dgx-a100", devices=64), nest.load_model("mixtral-8x7b")
    job = nest.Job(global_batch=256, seq_len=4096)
    plan = nest.evaluate(model, cluster, job, even_configuration(model, cluster, job, ep=8, zero=1))
    assert plan.evidence is not None and plan.evidence.word == "between" and not plan.evidence.like
    assert "between: 0 of " in str(plan)


def test_what_was_never_measured_is_named() -> None:
    plan = priced("dgx-a100", 16384, precision="fp16")
    found = plan.confidence
    assert found is not None and plan.evidence is not None
    assert plan.evidence.word == "extrapolated"
    assert [phrase.split(" (")[0] for phrase in found.beyond] == [
        "16,384 devices", "precision fp16"]
    assert priced().doubts == ()


@pytest.mark.parametrize("stack", ["fsdp", "maxtext", "unknown", {
    "base": "megatron-core", "name": "ours", "runs": None}])
def test_software_without_runs_has_a_wide_range_and_a_larger_margin(stack: object) -> None:
    plan, measured_one = priced(stack=stack), priced()
    assert plan.evidence is not None and plan.confidence is not None
    assert measured_one.confidence is not None
    assert plan.evidence.word == "never measured" and plan.evidence.nearest == ()
    low, high = (each / plan.step_time_s for each in (plan.confidence.low_s,
                                                      plan.confidence.high_s))
    assert low == pytest.approx(UNMEASURED[0]) and high > UNMEASURED[1]
    assert "Evidence     never measured" in str(plan)
    margins = [one.inputs.job.memory_margin for one in (plan, measured_one)]
    assert margins == [UNMEASURED_MARGIN, MEMORY_MARGIN]
    assert priced(stack=stack, memory_margin=0.05).inputs.job.memory_margin == 0.05


def test_a_changed_stack_is_measured_as_its_base_unless_it_says_otherwise() -> None:
    changed = priced(stack={"base": "megatron-core", "workspace": "2 GiB"})
    assert changed.evidence == priced().evidence
    own = {"configurations": 3, "low": 0.9, "high": 1.2, "devices": ["h100"], "most_devices": 64,
           "precisions": ["bf16"], "experts": False}
    plan = priced(stack={"base": "megatron-core", "name": "ours", "calibration": own})
    assert plan.confidence is not None and plan.evidence is not None
    assert plan.confidence.low_s == 0.9 * plan.step_time_s
    assert (plan.evidence.word, plan.evidence.configurations) == ("measured", 3)
    far = priced("dgx-a100", stack={"base": "megatron-core", "calibration": own})
    assert far.evidence is not None and far.evidence.word == "extrapolated"


@pytest.mark.parametrize(("stack", "experts", "says"), [
    ("fsdp", False, ["no measured run of stack fsdp", "reported steps of FSDP and DeepSpeed"]),
    ("deepspeed", True, ["no measured run of stack deepspeed", "reported steps of FSDP and",
                         "no price is known for experts outside grouped kernels"]),
    ("megatron-fsdp", True, ["no measured run of stack megatron-fsdp"]),
    ({"base": "megatron-core", "name": "ours", "runs": None}, False,
     ["no measured run of stack ours"]),
    ("megatron-core", True, []), ("torchtitan", False, [])])
def test_a_stack_without_runs_says_so(stack: object, experts: bool, says: list[str]) -> None:
    cluster = nest.load_cluster("dgx-h100", devices=8)
    model = nest.load_model("qwen3-30b-a3b" if experts else "llama3-8b")
    job = nest.Job(global_batch=8, seq_len=4096, stack=stack)
    plan = nest.evaluate(model, cluster, job, even_configuration(model, cluster, job, zero=3))
    assert len(plan.doubts) == len(says)
    assert all(text.startswith(start) for text, start in zip(plan.doubts, says, strict=True))
    assert ("\nEvidence     never measured; no measured run" in str(plan)) == bool(says)
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
    assert plan.doubts == (says,) and says[:30] in " ".join(str(plan).split())


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


def test_the_catalog_has_the_evidence_that_validation_finds() -> None:
    """Where it fails after a change of prices: tests/measured/validation/refresh_accuracy.py."""
    assert measured.EVIDENCE.read_text(encoding="utf-8") == to_csv(measured.evidence())


def test_stacks_name_runs_that_there_are() -> None:
    for name in catalog.names("stacks"):
        runs = load_stack(name).runs
        assert runs is None or runs in catalog.measured_stacks(), name


def _groups() -> dict[tuple[object, ...], list[Tried]]:
    found = defaultdict(list)
    for stack in catalog.measured_stacks():
        for one in left_out(runs_of(stack).measured):
            found[stack, *kind_of(one.measured)].append(one)
    return found


def test_ranges_hold_for_groups_left_out() -> None:
    """G10: nine of ten runs lie in the range of the runs of other sources, devices and kinds."""
    groups = _groups()
    inside = {key: [abs(one.misfit) <= 1.0 for one in tried] for key, tried in groups.items()}
    assert 0.88 <= np.mean([one for each in inside.values() for one in each]) <= 0.97
    large = {key: np.mean(each) for key, each in inside.items() if len(each) >= 8}
    low = {key for key, share in large.items() if share < 0.8}
    assert len(large) > 25 and len(low) <= 6, low
    # Nine of ten misfits lie within so much narrower ranges.
    assert 1.0 / np.quantile([abs(one.misfit) for each in groups.values() for one in each],
                             0.9) < 1.5


def test_a_range_by_hand() -> None:
    usual = Properties("h100-sxm", False, "bf16", 8e9, 8, 1, 1, 1, 1, 4096)
    empty = Runs.of([]).spread(usual, np.zeros(0))
    half = 1.645 * np.sqrt(COMMON**2 + SHARED**2 + NOISE[False]**2)
    assert (empty.center, empty.half) == (0.0, pytest.approx(half))
    # One run of the same, 10 % slower than priced, from another source.
    one = Runs.of([MeasuredConfiguration("here", "model", 1.1, False, usual)])
    found = one.spread(usual, distances(Features.of([usual]), Features.of([usual]))[0])
    shared = COMMON**2 + SHARED**2 * np.exp(-DIFFERS["source"])
    whole = COMMON**2 + SHARED**2 + one.noise[0]**2
    assert found.center == pytest.approx(np.log(1.1) * shared / whole)
    assert found.half == pytest.approx(1.645 * np.sqrt(whole - shared**2 / whole))


def test_one_run_that_errs_by_far_does_not_move_the_range() -> None:
    usual = Properties("h100-sxm", False, "bf16", 8e9, 8, 1, 1, 1, 1, 4096)
    near = [MeasuredConfiguration("here", "model", 1.0 + 0.01 * (n % 3), False, usual)
            for n in range(12)]
    wild = [*near, MeasuredConfiguration("there", "model", 1.6, False, usual)]
    plain, moved = (Runs.of(each).spread(usual, np.zeros(len(each))) for each in (near, wild))
    assert abs(moved.center - plain.center) < 0.02 and moved.half < 1.5 * plain.half


def test_distances_count_what_differs() -> None:
    usual = Properties("h100-sxm", False, "bf16", 8e9, 8, 1, 1, 1, 1, 4096)
    for changed, far in ((usual._replace(tp=4), 2 * DOUBLED["tp"]),
                         (usual._replace(device="h200-sxm"), DIFFERS["device"]),
                         (usual._replace(device="b200-sxm"), DIFFERS["device"] + DIFFERS["family"]),
                         (usual._replace(pp=4), DIFFERS["pipeline"]),
                         (usual._replace(parameters=16e9),
                          DOUBLED["parameters"] + DIFFERS["model"])):
        assert distances(Features.of([changed]), Features.of([usual]))[0] == pytest.approx(far)


def test_what_was_never_measured_widens_the_range() -> None:
    plain, wide = priced("dgx-a100", 1024), priced("dgx-a100", 1024, precision="fp16")
    assert wide.confidence is not None and plain.confidence is not None
    assert len(wide.confidence.beyond) == 1 + len(plain.confidence.beyond)
    widths = [np.log(plan.confidence.high_s / plan.confidence.low_s) for plan in (plain, wide)]
    assert widths[1] / widths[0] == pytest.approx(WIDER, rel=0.05)
