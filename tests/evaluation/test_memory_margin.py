"""The share of memory that plans leave free."""

from __future__ import annotations

import json

import pytest
from command_line import run

import nest
from nest.evaluation.even import even_configuration
from nest.evaluation.plan_file import reread

MODEL, CLUSTER = nest.load_model("llama2-7b"), nest.load_cluster("dgx-a100", devices=8)
WORDS = ("llama2-7b", "dgx-a100", "--devices", "8", "--global-batch", "48", "--seq-len", "4096")
FULL = (*WORDS, "--zero", "2", "--tp", "1", "--mbs", "3")  # 74.8 GiB of 76.1, or of 68.1


def job(margin: float) -> nest.Job:
    return nest.Job(global_batch=48, seq_len=4096, memory_margin=margin)


@pytest.mark.kernels
@pytest.mark.parametrize("margin", [0.0, 0.1, 0.3])
def test_no_plan_uses_the_margin(margin: float) -> None:
    """G3: the memory of the device less what is reserved, fragments and the stated margin."""
    plan = nest.plan(MODEL, CLUSTER, job(margin), nest.SearchSpace(tp="1,2", pp="1,2"))
    device, stack = CLUSTER.device, plan.inputs.job.stack
    most = ((1 - stack.fragmentation - margin) * device.memory - device.memory_reserved
            - stack.workspace)
    for stage in plan.stages:
        assert stage.memory_limit_bytes == pytest.approx(most)
        assert stage.memory_bytes.total <= most
    assert (f"with a margin of {100 * margin:g} %" in plan.report(details=True)) == (margin > 0)


@pytest.mark.kernels
def test_more_margin_is_never_faster() -> None:
    times = [nest.plan(MODEL, CLUSTER, job(margin)).step_time_s for margin in (0, 0.1, 0.2, 0.4)]
    assert times == sorted(times) and times[0] < times[-1]


def test_a_margin_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    plan = json.loads(run(capsys, "evaluate", *FULL, "--memory-margin", "0", "--json")[0])
    assert plan["feasible"] and plan["inputs"]["job"]["memory_margin"] == 0
    out, _ = run(capsys, "evaluate", *FULL, "--json", code=3)
    assert json.loads(out)["inputs"]["job"]["memory_margin"] == 0.1
    for text, told in (("1", "--memory-margin: got 1.0; allowed: at least 0 and below 1"),
                       ("-0.1", "--memory-margin"), ("nan", "--memory-margin"),
                       ("x", "got 'x'; allowed: a number")):
        _, err = run(capsys, "evaluate", *FULL, "--memory-margin", text, code=2)
        assert told.partition(";")[0] in err


def test_plans_from_before_there_was_a_margin_still_fit(capsys: pytest.CaptureFixture[str]) -> None:
    plan = json.loads(run(capsys, "evaluate", *FULL, "--memory-margin", "0", "--json")[0])
    del plan["inputs"]["job"]["memory_margin"]
    again, notes = reread(plan)
    assert again.feasible and not notes and again.inputs.job.memory_margin == 0
    plan["inputs"]["job"]["memory_margin"] = 0.1
    assert not reread(plan)[0].feasible


@pytest.mark.kernels
def test_where_nothing_fits_a_smaller_margin_that_would_do_is_named() -> None:
    space = nest.SearchSpace(zero=2, tp=1, mbs=3, pp=1, cp=1, recompute="none")
    with pytest.raises(nest.InfeasibleError) as caught:
        nest.plan(MODEL, CLUSTER, job(0.1), space, beyond_stack=True)
    (text,) = [text for text in caught.value.nearest["remedies"] if "margin" in text]
    margin = float(text.split()[1])
    assert text == f"memory_margin {margin:g} instead of 0.1 (--memory-margin {margin:g})"
    assert 0.01 < margin < 0.03
    assert nest.plan(MODEL, CLUSTER, job(margin), space, beyond_stack=True).feasible


def test_a_shortage_says_that_it_fits_without_the_margin() -> None:
    """Qwen3-30B-A3B on 16 H800 ran with 80 GB (alibaba/Pai-Megatron-Patch issue 643)."""
    cluster = nest.load_cluster({"name": "h800", "device": "h800", "levels": [
        {"name": "nvlink", "link": "nvlink4", "size": 8},
        {"name": "ib", "link": "infiniband", "size": 2}]})

    def priced(margin: float, **degrees: object) -> nest.Plan:
        job = nest.Job(global_batch=128, seq_len=8192, memory_margin=margin, expert_capacity=1.0)
        model = nest.load_model("qwen3-30b-a3b")
        way = even_configuration(model, cluster, job, **degrees)
        return nest.evaluate(model, cluster, job, way)

    ran = {"pp": 2, "ep": 8, "zero": 1}
    (text,) = priced(0.1, **ran).problems
    assert text.endswith("; it fits in the 75.8 GiB without the margin of 10 % (--memory-margin 0)")
    assert priced(0, **ran).feasible
    (text,) = priced(0.001, ep=8, zero=1).problems  # without the pipeline it does not
    assert "without the margin" not in text


@pytest.mark.kernels(uncompiled=True)
def test_a_shortage_names_the_logits_that_cause_it() -> None:
    """1,048,576 tokens of Qwen3-8B on 8 H100 (huggingface/trl PR 6845: with a loss in chunks)."""
    model, cluster = nest.load_model("qwen3-8b"), nest.load_cluster("dgx-h100", 8)
    job = nest.Job(global_batch=1, seq_len=2**20, stack="fsdp")
    plan = nest.evaluate(model, cluster, job, even_configuration(
        model, cluster, job, cp=8, zero=3, recompute="full"))
    # fsdp: 12 bytes a logit; and what the head keeps of its input
    logits = plan.stages[0].logits_bytes
    assert logits == pytest.approx(12 * 2**17 * model.vocab, rel=0.03)
    (text,) = plan.problems
    assert f"of these {logits / 2**30:.1f} GiB logits and loss: a loss in chunks" in text
    with pytest.raises(nest.InfeasibleError, match="logits and loss: a loss in chunks"):
        nest.plan(model, cluster, job, nest.SearchSpace(tp=1, pp=1))


@pytest.mark.parametrize(("margin", "said"), [(0.0, True), (0.05, True), (0.1, False)])
def test_a_plan_close_to_the_limit_says_so(margin: float, said: bool) -> None:
    """Such runs slow down before they fail; with the default margin none is so close."""
    configuration = even_configuration(MODEL, CLUSTER, job(margin), zero=2, mbs=3)
    plan = nest.evaluate(MODEL, CLUSTER, job(margin), configuration)
    assert plan.feasible != (margin >= 0.05)
    assert any("allocator" in doubt for doubt in plan.doubts) == (said and plan.feasible)
    light = even_configuration(MODEL, CLUSTER, job(0.0), zero=2, mbs=1)
    assert nest.evaluate(MODEL, CLUSTER, job(0.0), light).doubts == ()
