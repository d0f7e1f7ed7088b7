"""Plans whose reports are tested: sizes, networks, schedules and stages of all kinds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from nest.evaluation.evaluate import evaluate
from nest.evaluation.even import even_configuration
from nest.evaluation.plans import Plan
from nest.inputs import Job, load_model
from nest.network.network import load_network

PLANS: Mapping[str, tuple[str, str, int | None, int, dict[str, Any]]] = {
    "eight": ("llama3.1-8b", "dgx-h100", 8, 64, {"tp": 2, "pp": 2, "dp_in": 2, "mbs": 1}),
    "hundreds": ("llama3-70b", "h100-spine-leaf", 256, 512, {
        "tp": 4, "pp": 4, "dp_in": 16, "vpp": 5, "zero": 1, "mbs": 1}),
    "thousand": ("llama3-70b", "h100-spine-leaf", 1024, 2048, {
        "tp": 8, "pp": 8, "vpp": 5, "zero": 1}),
    "thousands": ("llama3.1-405b", "dgx-h100", 16384, 8192, {
        "tp": 8, "pp": 16, "outer_dp": 128, "zero": 1}),
    "torus": ("llama3-70b", "torus:dims=8x8", None, 64, {"tp": 4, "pp": 4}),
    "idle": ("llama3-8b", "h100-spine-leaf", 250, 496, {"tp": 2, "pp": 4, "outer_dp": 31}),
    "zero bubble": ("llama3-8b", "dgx-h100", 32, 64, {"tp": 2, "pp": 4, "schedule": "zb1p"}),
    "dualpipe": ("llama3-8b", "dgx-h100", 32, 64, {
        "tp": 2, "pp": 4, "vpp": 2, "schedule": "dualpipe"}),
    "experts": ("mixtral-8x7b", "dgx-h100", 32, 64, {"ep": 8, "pp": 2, "zero": 1}),
}
"""Model, cluster, devices, batch, degrees of an even configuration."""


@cache
def plan_of(name: str) -> Plan:
    """A plan of :data:`PLANS`."""
    model, cluster, devices, batch, degrees = PLANS[name]
    where, described = load_network(cluster, devices=devices), load_model(model)
    job = Job(global_batch=batch, seq_len=4096)
    return evaluate(described, where, job, even_configuration(described, where, job, **degrees))


STUDY: Mapping[str, Any] = {
    "name": "s", "model": "llama3-8b", "cluster": {"base": "dgx-h100", "devices": 8},
    "job": {"global_batch": 32, "seq_len": 4096},
    "space": {"tp": 8, "pp": 1, "cp": 1, "zero": 1, "micro_batch": "1..4", "recompute": "full"},
    "axes": {"cluster.devices": [8, 16, 32], "cluster.device.memory": ["10 GB", "80 GB"]},
    "train": {"tokens": 1e12, "days": 100}, "objectives": ["days", "devices"]}
"""Six points: on 8 devices late, with 10 GB nothing fits."""


def catalog_runs(count: int) -> str:
    """The first runs of the catalog, as a table."""
    text = (files("nest") / "catalog" / "runs.csv").read_text("utf-8")
    return "".join(text.splitlines(keepends=True)[:count + 1])
