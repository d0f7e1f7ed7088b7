"""Stacks and the devices that they run on."""

from __future__ import annotations

import json

import pytest
from command_line import run

import nest
from nest.evaluation.even import even_configuration
from nest.evaluation.plans import Plan
from nest.inputs import catalog, load_stack
from nest.inputs.loading import load_device
from nest.stacks import default_stack

WORDS = ("bert-large", "tpuv4-fat-tree", "--devices", "8", "--global-batch", "64",
         "--seq-len", "512")


def node(device: str) -> nest.Cluster:
    return nest.load_cluster("dgx-h100", devices=8).replace(device=load_device(device))


def priced(given: nest.Cluster, stack: str) -> Plan:
    model = nest.load_model("bert-large")
    job = nest.Job(global_batch=64, seq_len=512, stack=stack)
    return nest.evaluate(model, given, job, even_configuration(model, given, job))


@pytest.mark.parametrize(("device", "stack", "runs"), [
    ("tpu-v4", "megatron-core", False), ("tpu-v4", "maxtext", True), ("tpu-v5p", "fsdp", False),
    ("trainium2", "maxtext", False), ("trainium2", "deepspeed", False),
    ("mi300x", "torchtitan", True), ("h100-sxm", "maxtext", True), ("tpu-v4", "unknown", None)])
def test_a_plan_is_runnable_on_devices_that_the_stack_runs_on(
    device: str, stack: str, runs: bool | None
) -> None:
    plan = priced(node(device), stack)
    wrong = [one for one in plan.not_runnable if one.rule == "hardware"]
    assert bool(wrong) == (runs is False)
    if runs is False:
        assert plan.runnable is False
        assert wrong[0].sentence.startswith(f"device {device}: ") and "unknown" in wrong[0].sentence
        assert "cannot run this:" in " ".join(str(plan).split())


def test_the_stack_of_a_question_without_one_follows_the_device(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stack(*words: str) -> str:
        document = json.loads(run(capsys, "evaluate", *WORDS, *words, "--json")[0])
        name: str = document["inputs"]["job"]["stack"]["name"]
        return name

    assert stack() == "maxtext" and stack("--stack", "megatron-core") == "megatron-core"
    for device, name in (("h100-sxm", "megatron-core"), ("mi300x", "megatron-core"),
                         ("tpu-v5e", "maxtext"), ("trainium2", "neuronx-distributed"),
                         ("ascend-910c", "mindspeed")):
        assert default_stack(node(device)) == name


def test_each_device_of_the_catalog_has_a_stack_that_runs_on_it() -> None:
    for device in catalog.list_devices():
        known = load_stack(default_stack(node(device))).capabilities
        assert known is None or known.hardware is None or not known.hardware.excludes(device)
