"""The fixed list of planning questions whose plans are in `golden/plans.json`.

Every catalog model and cluster, networks as graphs, failures, devices of several types and measured
layers are in it, from 8 to 1,024 devices; spaces are bounded where the whole one takes long. The
list takes about a minute of processor time. What a question asks for is its name and its row;
the bounds say which part of the code it is there for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@dataclass(frozen=True)
class Question:
    """One question: a model, a cluster, a step and a space.

    Parameters
    ----------
    name : what tests and the golden file call it.
    model : catalog name, file of measured layers, or measured layers as plain data.
    cluster : catalog name, text of a generator, or a graph as plain data.
    devices : number of devices of a catalog cluster; None: as the cluster says.
    batch, length : sequences in a step, tokens in a sequence.
    job : further fields of the job.
    space : bounds; left out: everything legal.
    network : further arguments of `nest.load_network`: device, without, degrade.
    beyond_stack : search what the stack cannot run too.
    """

    name: str
    model: str | Path | Mapping[str, Any]
    cluster: str | Mapping[str, Any]
    devices: int | None
    batch: int
    length: int
    job: Mapping[str, Any] = field(default_factory=dict)
    space: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, str] = field(default_factory=dict)
    beyond_stack: bool = True

    def read(self) -> tuple[nest.Model | nest.Profile, nest.Cluster, nest.Job, nest.SearchSpace]:
        """The question as `nest.plan` takes it."""
        measured = isinstance(self.model, Path | Mapping)
        model = (nest.load_profile if measured else nest.load_model)(self.model)
        job = nest.Job(global_batch=self.batch, seq_len=self.length, **self.job)
        return model, self._network(), job, nest.SearchSpace(**self.space)

    def _network(self) -> nest.Cluster:
        if isinstance(self.cluster, str):
            return nest.load_network(self.cluster, devices=self.devices, **self.network)
        with TemporaryDirectory() as folder:  # graphs as plain data are read from files only
            path = Path(folder) / "network.json"
            path.write_text(json.dumps(self.cluster), encoding="utf-8")
            return nest.load_network(path, **self.network)


def nodes(*kinds: str, each: int = 4) -> dict[str, Any]:
    """A graph of nodes of ``each`` devices behind one leaf, each node of a type of its own."""
    parts: list[dict[str, Any]] = [{"name": "leaf", "kind": "switch"}]
    links: list[dict[str, Any]] = []
    for n, kind in enumerate(kinds):
        parts.append({"name": f"node{n}", "kind": "switch"})
        links.append({"source": f"node{n}", "target": "leaf", "bandwidth": f"{50 * each} GB/s",
                      "latency": "3 us"})
        for g in range(each):
            parts.append({"name": f"node{n}/gpu{g}", "kind": "device", "device": kind})
            links.append({"source": f"node{n}/gpu{g}", "target": f"node{n}",
                          "bandwidth": "300 GB/s", "latency": "1 us"})
    return {"name": "nodes", "nodes": parts, "links": links}


def measured(name: str, forward: float, sizes: tuple[float, float, float], **more: Any
             ) -> dict[str, Any]:
    """A layer: ms forward on one device; MiB of parameters, activations and output."""
    parameters, activations, output = sizes
    return {"name": name, "output_bytes": output * 2**20, "tp": {tp: {
        "forward": forward * 1e-3 / tp**0.9, "backward": forward * 2e-3 / tp**0.85,
        "parameter_bytes": parameters * 2**20 / tp, "activation_bytes": activations * 2**20 / tp,
        "work_bytes": activations * 2**18 / tp} for tp in (1, 2, 4)}, **more}


TWO_TOWERS = {"name": "two towers", "layers": [
    measured("text", 0.3, (400, 8, 8), inputs=[]),
    measured("words", 1.1, (120, 60, 8), repeat=8),
    measured("image", 0.5, (10, 30, 20), inputs=[]),
    measured("patches", 1.6, (90, 90, 20), repeat=6),
    measured("join", 0.2, (50, 10, 28), inputs=["words", "patches"]),
    measured("body", 1.9, (200, 80, 28), repeat=10),
    measured("head", 0.9, (400, 200, 0)),
]}
SKIPS = {"name": "skips", "layers": [
    measured("in", 0.4, (20, 40, 64)),
    measured("down1", 2.5, (60, 160, 32), repeat=2),
    measured("down2", 1.8, (200, 80, 16), repeat=3),
    measured("middle", 1.5, (600, 40, 16), repeat=2),
    measured("up2", 2.0, (300, 90, 32), inputs=["middle", "down2"], repeat=3),
    measured("up1", 2.8, (90, 180, 64), inputs=["up2", "down1"], repeat=2),
    measured("out", 0.6, (10, 60, 0), inputs=["up1", "in"]),
]}

Q = Question
A, H, V = "a100-sxm-80gb", "h100-sxm", "v100-sxm2-32gb"
LEAVES = "spine-leaf:leaves=16,per_leaf=64,node=8"
RAILS = "rail-optimized:nodes=4,node=8,oversubscription=8"
CENTRES = ("data-centres:centres=2,bandwidth=100 Gb/s,latency=1 ms,"
           "fabric=[spine-leaf:leaves=1,per_leaf=16,node=8]")

EVERYTHING = (
    # dense models with tied embeddings
    Q("bert-8", "bert-large", "dgx-a100", 8, 64, 512),
    Q("bert-128-fp16-sgd", "bert-large", "h100-spine-leaf", 128, 512, 512,
      job={"precision": "fp16", "optimizer": "sgd"}, space={"pp": "2..8"}),
    Q("bert-1024-tpu", "bert-large", "tpuv4-fat-tree", 1024, 4096, 512),
    Q("gpt2-16-fp32", "gpt2-xl", "dgx-a100", 16, 128, 1024, job={"precision": "fp32"}),
    Q("gpt2-64-momentum", "gpt2-xl", "tpuv4-fat-tree", 64, 256, 1024,
      job={"optimizer": "sgd-momentum"}, space={"pp": "2..8"}),
    Q("gpt2-16-gpipe", "gpt2-xl", "dgx-h100", 16, 128, 1024,
      space={"schedule": "gpipe", "pp": "2..8"}),
    Q("opt-32-kept", "opt-30b", "dgx-a100", 32, 128, 2048, space={"recompute": "none"}),
    Q("opt-64-2021", "opt-30b", "dgx-a100", 64, 256, 2048, job={"stack": "megatron-2021"}),
    Q("opt-128-v100", "opt-30b", "dgx-a100", 128, 512, 2048,
      job={"precision": "fp16", "stack": "megatron-deepspeed"}, network={"device": V}),
    Q("gpt3-256", "gpt3-175b", "dgx-a100", 256, 1536, 2048),
    Q("gpt3-512-interleaved", "gpt3-175b", "dgx-a100", 512, 1536, 2048,
      space={"schedule": "interleaved", "recompute": "full", "vpp": "2..6"}),
    Q("gpt3-1024", "gpt3-175b", "h100-spine-leaf", 1024, 4096, 2048, space={"cp": 1}),
    # other dense models
    Q("llama2-8", "llama2-7b", "dgx-a100", 8, 64, 4096),
    Q("llama2-64-fp8", "llama2-7b", "dgx-h100", 64, 256, 4096, job={"precision": "fp8"},
      space={"pp": "2..8", "schedule": "1f1b"}),
    Q("llama2-32-interleaved", "llama2-7b", "dgx-h100", 32, 128, 4096,
      space={"schedule": "interleaved"}),
    Q("llama2-64-pipeline", "llama2-7b", "h100-spine-leaf", 64, 240, 4096, space={"pp": "3..12"}),
    Q("llama2-1024", "llama2-7b", "h100-spine-leaf", 1024, 4096, 4096),
    Q("llama3-16-torchtitan", "llama3-8b", "dgx-h200", 16, 64, 8192,
      job={"stack": "torchtitan"}),
    Q("llama3-32-fp8", "llama3-8b", "dgx-b200", 32, 128, 8192,
      job={"precision": "fp8", "stack": "megatron-bridge"},
      space={"pp": "2..8"}),
    Q("llama3-24-uneven", "llama3-8b", f"fully-connected:devices=24,device={H}", None, 72, 8192,
      space={"pp": "3..6"}),
    Q("llama3.1-8-long", "llama3.1-8b", "dgx-h100", 8, 8, 32768),
    Q("llama3.1-64-a2a", "llama3.1-8b", "dgx-h100", 64, 16, 131072,
      space={"cp": "2..32", "cp_comm": "a2a", "zero": "0,1"}),
    Q("llama3.1-64-ring", "llama3.1-8b", "dgx-h100", 64, 16, 131072,
      space={"cp": "2..32", "cp_comm": "p2p", "shard": "dp_in"}),
    Q("70b-64-fixed", "llama3-70b", "dgx-h100", 64, 256, 4096,
      space={"tp": 8, "pp": 4, "zero": "0,1", "schedule": "1f1b"}),
    Q("70b-64-fsdp", "llama3-70b", "dgx-h200", 64, 128, 8192,
      job={"stack": "fsdp", "memory_margin": 0.1}, space={"pp": 1, "zero": 3}),
    Q("70b-128-gpipe", "llama3-70b", "dgx-a100", 128, 256, 4096,
      space={"schedule": "gpipe", "pp": "8..16"}),
    Q("70b-256-fp8", "llama3-70b", "dgx-h100", 256, 1024, 4096, job={"precision": "fp8"},
      space={"cp": 1, "zero": "0,1"}),
    Q("70b-1024", "llama3-70b", "h100-spine-leaf", 1024, 4096, 4096),
    Q("405b-576-fp8", "llama3.1-405b", "gb200-nvl72", 576, 1152, 8192,
      job={"precision": "fp8"}, space={"tp": "4,8", "cp": 1, "zero": "0..2"}),
    Q("405b-1024", "llama3.1-405b", "dgx-h100", 1024, 2048, 8192,
      space={"tp": 8, "cp": "1,2", "zero": "0,1", "recompute": "none,selective"}),
    # mixtures of experts
    Q("mixtral-64", "mixtral-8x7b", "dgx-h100", 64, 256, 4096, space={"zero": "0,1"}),
    Q("mixtral-32-fp8", "mixtral-8x7b", "dgx-b200", 32, 128, 4096, job={"precision": "fp8"},
      space={"ep": 8}),
    Q("mixtral-256", "mixtral-8x7b", "h100-spine-leaf", 256, 1024, 4096, space={"cp": 1}),
    Q("qwen3-30b-32", "qwen3-30b-a3b", "dgx-h100", 32, 128, 4096,
      space={"zero": "0,1", "recompute": "none,selective"}),
    Q("qwen3-30b-64", "qwen3-30b-a3b", "gb200-nvl64", 64, 256, 4096,
      space={"etp": 1, "pp": "2..8"}),
    Q("qwen3-235b-256", "qwen3-235b-a22b", "dgx-h100", 256, 1024, 4096,
      space={"tp": "1..4", "cp": 1, "ep": "8..32", "etp": 1, "zero": "0..2"}),
    Q("qwen3-235b-144", "qwen3-235b-a22b", "gb200-nvl72", 144, 576, 4096,
      space={"cp": 1, "ep": "8..64", "etp": 1, "recompute_modules": "core_attn,norm+moe"}),
    Q("deepseek-512", "deepseek-v3", "dgx-h100", 512, 2048, 4096,
      space={"tp": "1,2", "cp": 1, "ep": "16,32,64", "etp": 1, "pp": "8..16"}),
    Q("deepseek-256-fp8", "deepseek-v3", "gb200-nvl64", 256, 1024, 4096,
      job={"precision": "fp8"},
      space={"tp": "1,2", "cp": 1, "ep": "32,64", "etp": 1, "schedule": "1f1b"}),
    # encoder-decoder, vision
    Q("t5-16", "t5-11b", "dgx-a100", 16, 64, 512, space={"pp": "2..8"}),
    Q("t5-128", "t5-11b", "h100-spine-leaf", 128, 512, 512),
    Q("t5-32-full", "t5-11b", "dgx-h100", 32, 128, 512, space={"pp": 4, "recompute": "full"}),
    Q("llava-16", "llava1.5-7b", "dgx-a100", 16, 64, 2048),
    Q("llava-64", "llava1.5-7b", "dgx-h100", 64, 256, 2048, space={"pp": "2..8"}),
    Q("llava-1024", "llava1.5-7b", "h100-spine-leaf", 1024, 4096, 2048,
      space={"cp": 1, "pp": "2..4"}),
    # networks as graphs, failures
    Q("torus-4x4x4", "llama2-7b", "torus:dims=4x4x4", None, 256, 4096,
      space={"cp": 1, "pp": "2..8"}),
    Q("torus-4x8-experts", "qwen3-30b-a3b", "torus:dims=4x8", None, 64, 4096,
      space={"cp": 1, "tp": "1..4"}),
    Q("fat-tree-112-failed", "llama2-7b", f"fat-tree:k=8,device={A}", None, 448, 4096,
      space={"pp": "2..8"}, network={"without": "gpu0..15"}),
    Q("dragonfly-40", "mixtral-8x7b", "dragonfly:a=4,p=2,h=1", None, 80, 4096, space={"cp": 1}),
    Q("rails-32", "qwen3-30b-a3b", RAILS, None, 64, 4096, space={"cp": 1}),
    Q("centres-32", "llama2-7b", CENTRES, None, 256, 4096),
    Q("spine-leaf-960-failed", "llama3-70b", LEAVES, None, 3840, 4096,
      space={"tp": "2..8", "cp": 1, "pp": "2..8"}, network={"without": "node24..31"}),
    Q("dgx-32-slow-node", "llama2-7b", "dgx-h100", 32, 256, 4096,
      space={"cp": 1}, network={"degrade": "nvlink2=0.5"}),
    # devices of several types
    Q("mixed-16", "llama3-8b", nodes(A, A, H, H), None, 64, 4096, space={"cp": 1}),
    Q("mixed-12-three", "gpt2-xl", nodes(A, H, "h200-sxm"), None, 72, 1024),
    Q("fat-tree-16-slow", "gpt2-xl", "fat-tree:k=4", None, 128, 1024,
      network={"degrade": "gpu5=0.6"}),
    Q("mixed-24-nodes", "llama3-8b", "mixed:8xa100-sxm-80gb,2x8xh100-sxm", None, 96, 4096,
      space={"cp": 1}),
    # windows
    Q("mistral-16-long", "mistral-7b", "dgx-h100", 16, 32, 32768, space={"cp": "1..4"}),
    Q("gemma2-32", "gemma2-9b", "dgx-a100", 32, 128, 8192, space={"cp": 1}),
    Q("gpt-oss-64", "gpt-oss-120b", "dgx-h100", 64, 256, 4096, space={"cp": 1, "etp": 1}),
    # measured layers
    Q("profile-16", EXAMPLES / "profile.yaml", "dgx-h100", 16, 256, 2048, space={"pp": "2..8"}),
    Q("profile-csv-fat-tree", EXAMPLES / "profile.csv", "fat-tree:k=4", None, 128, 2048),
    Q("profile-towers-64", TWO_TOWERS, "dgx-a100", 64, 512, 1024, space={"pp": "2..8"}),
    Q("profile-skips-torus", SKIPS, "torus:dims=4x4,device=h100-sxm", None, 64, 1024,
      space={"pp": "2..8"}),
)
LEFT_OUT = {
    # the stack has no such schedule, or no pipelines for such a model
    "gpt2-16-gpipe", "70b-128-gpipe", "t5-16", "t5-32-full",
    # seconds each
    "gpt3-256", "gpt3-512-interleaved", "gpt3-1024", "llama3-24-uneven", "70b-256-fp8",
    "405b-576-fp8", "405b-1024", "mixtral-256", "qwen3-235b-256", "qwen3-235b-144",
    "spine-leaf-960-failed", "mixed-12-three",
}
OF_TODAY = (
    Q("qwen3-8b-64-b300", "qwen3-8b", "dgx-b300", 64, 256, 8192),
    Q("qwen3-32b-32-titan", "qwen3-32b", "dgx-h200", 32, 128, 4096,
      job={"stack": "torchtitan"}),
    Q("mixtral-8x22b-128", "mixtral-8x22b", "dgx-h100", 128, 512, 4096),
    Q("gpt-oss-20b-16", "gpt-oss-20b", "dgx-h200", 16, 128, 8192),
    Q("qwen3-next-64", "qwen3-next-80b-a3b", "dgx-b200", 64, 512, 4096),
    Q("nemotron3-nano-16", "nemotron3-nano-30b", "dgx-h100", 16, 128, 8192),
    Q("maverick-144", "llama4-maverick", "gb300-nvl72", 144, 576, 8192, job={"precision": "fp8"}),
    Q("kimi-k2-256", "kimi-k2", "gb300-nvl72", 256, 2048, 4096, job={"precision": "mxfp8"}),
)
QUESTIONS = (*EVERYTHING, *(
    replace(question, name=f"{question.name}, in its stack", beyond_stack=False)
    for question in EVERYTHING if question.name not in LEFT_OUT), *(
    replace(question, beyond_stack=False) for question in OF_TODAY))
"""Each over everything; over what its stack can run, but for some. Models of today over that."""
