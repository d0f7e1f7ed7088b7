"""Command lines in files of Kubernetes, and settings in files of FlagScale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nest
from nest.errors import InputError
from nest.inputs.files import yaml_text

LINE = ("pretrain_gpt.py --num-layers $LAYERS --hidden-size 1024 --num-attention-heads 16 "
        "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 2 "
        "--global-batch-size 64 --bf16 --vocab-size 32000")
ENV = [{"name": "LAYERS", "value": "24"}, {"name": "TOKEN", "valueFrom": {"secretKeyRef": {}}}]


def container(command: list[str], args: list[str] | None = None, devices: object = 8,
              name: str = "nvidia.com/gpu") -> dict[str, Any]:
    return {"name": "main", "command": command, "args": args or [], "env": ENV,
            "resources": {"limits": {"cpu": "4", name: devices}}}


def pods(one: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**more, "template": {"spec": {
        "initContainers": [container(["sleep", "1"])], "containers": [
            one, {"name": "sidecar", "command": ["tail", "-f", "log"]}]}}}


SHELL = container(["/bin/bash", "-ec"], [
    f"set -e\ntorchrun --nproc_per_node=8 --nnodes=$WORLD_SIZE --node_rank=$RANK {LINE}\n"])
PLAIN = container(["torchrun"], ["--nproc-per-node", "8", *LINE.replace("$L", "$(L").replace(
    "RS ", "RS) ").split()])
TRAIN = {"command": ["torchrun"], "args": PLAIN["args"], "numNodes": 4, "env": ENV,
         "resourcesPerNode": {"limits": {"nvidia.com/gpu": "8"}}}
SCRIPT = {"apiVersion": "v1", "kind": "ConfigMap",
          "data": {"run.sh": f"#!/bin/bash\ntorchrun {LINE}\n", "other": "x"}}


def job(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "x/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}


def written(tmp_path: Path, *documents: dict[str, Any]) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text("---\n".join(yaml_text(one) for one in documents), encoding="utf-8")
    return path


@pytest.mark.parametrize("documents", [
    [job("PyTorchJob", {"pytorchReplicaSpecs": {
        "Master": pods(SHELL, replicas=1), "Worker": pods(SHELL, replicas=3)}})],
    [job("TrainJob", {"runtimeRef": {"name": "torch"}, "trainer": TRAIN})],
    [job("JobSet", {"replicatedJobs": [{"name": "a", "replicas": 2, "template": {
        "spec": pods(PLAIN, parallelism=2, completions=2)}}]})],
    [job("Service", {}), job("Job", pods(PLAIN, parallelism=4, completions=4))],
    [SCRIPT, job("Job", pods(container(["bash", "/scripts/run.sh"], name="amd.com/gpu"),
                             completions=4, parallelism=4))]])
def test_the_command_line_of_the_container(
    documents: list[dict[str, Any]], tmp_path: Path
) -> None:
    found = nest.read(written(tmp_path, *documents))
    assert (found.devices, found.model.layers, found.job.global_batch) == (32, 24, 64)
    own = nest.read(written(tmp_path, *documents), devices=16, variables={"LAYERS": "12"})
    if "$(" not in str(documents):  # which Kubernetes replaces itself
        assert (own.devices, own.model.layers) == (16, 12)


def test_what_no_container_says(tmp_path: Path) -> None:
    for documents, says in (
            ([job("Job", pods({"name": "a", "image": "x"}))], "no command found"),
            ([job("Service", {})], "without a container that has a command"),
            ([job("Job", pods(PLAIN)), job("Job", pods(SHELL))], "different commands"),
            ([job("Job", pods(container(["bash", "-c"], ["torchrun $TOKEN"])))],
             "no command found")):
        with pytest.raises(InputError, match=says) as told:
            nest.read(written(tmp_path, *documents))
        assert "\n" not in str(told.value) and "job.yaml" in str(told.value)
    with pytest.raises(InputError, match="write that to a file"):
        nest.improve(written(tmp_path, job("Job", pods(PLAIN))), nest.load_cluster("dgx-h100"))


FLAGSCALE: dict[str, Any] = {
    "system": {"tensor_model_parallel_size": 2, "disable_bias_linear": True, "precision": {
        "bf16": True}, "checkpoint": {"save_interval": 2000}},
    "model": {"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 2048,
              "max_position_embeddings": 2048, "swiglu": True, "ffn_hidden_size": 11008,
              "normalization": "RMSNorm", "micro_batch_size": 2, "global_batch_size": 64,
              "use_rotary_position_embeddings": True, "optimizer": {"lr_scheduler": {"lr": 2e-5}},
              "untie_embeddings_and_output_weights": True},
    "data": {"data_path": "${data_path:??}", "tokenizer": {"vocab_size": 100008}}}


def test_flagscale(tmp_path: Path) -> None:
    found = nest.read(written(tmp_path, FLAGSCALE), devices=16)
    way = found.configuration
    assert (found.model.vocab, found.model.gated, found.job.precision) == (100008, True, "bf16")
    assert (way.stages[0].tp, way.outer_dp * way.stages[0].dp_in, found.devices) == (2, 8, 16)
    runner = {"experiment": {"task": {"type": "train"}, "runner": {
        "nnodes": 4, "nproc_per_node": 8}}, "train": FLAGSCALE}
    assert nest.read(written(tmp_path, runner)).devices == 32
    other = nest.read(written(tmp_path, FLAGSCALE), devices=16, variables={"swiglu": "false"})
    assert not other.model.gated


def test_flagscale_refused(tmp_path: Path) -> None:
    def changed(**more: Any) -> dict[str, Any]:
        return {**FLAGSCALE, "model": {**FLAGSCALE["model"], **more}}

    for data, said, says in (
            (changed(multiple_of=256), {"devices": 16}, "multiple_of: no arguments"),
            (FLAGSCALE, {}, "--devices N"),
            (changed(optimizer="lion"), {"devices": 16}, "--optimizer: got 'lion'"),
            ({"experiment": {"task": {"type": "train"}}, "defaults": [{"train": "7b"}]},
             {"devices": 16}, "it names other files")):
        with pytest.raises(InputError, match=says):
            nest.read(written(tmp_path, data), **said)
    ignored = nest.read(written(tmp_path, changed(multiple_of=256)), devices=16,
                        ignore=["model.multiple_of"])
    assert [note for note in ignored.notes if note.startswith("ignored: model.multiple_of")]
