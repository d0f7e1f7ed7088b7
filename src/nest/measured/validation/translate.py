"""From a measured run to the arguments of :func:`nest.evaluate`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, get_args

from nest.errors import InputError
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.device import Device
from nest.inputs.job import Job, Stack
from nest.inputs.model import Model
from nest.inputs.space import Dispatcher
from nest.measured.validation.architecture import model
from nest.measured.validation.cells import precision, recompute
from nest.measured.validation.degrees import configuration
from nest.measured.validation.hardware import Shape, cluster, device, shape
from nest.measured.validation.runs import Run
from nest.measured.validation.software import stack, stack_name
from nest.model import build_chain


class RunQuestion(NamedTuple):
    """Arguments of :func:`nest.evaluate`; ``nest.evaluate(*question)`` prices it."""

    model: Model
    cluster: Cluster
    job: Job
    configuration: Configuration


class Facts(NamedTuple):
    """A run without the figures of its stack and device."""

    model: Model
    shape: Shape
    configuration: Configuration
    stack: str
    """Name in the catalog, or provisional."""
    remarks: tuple[str, ...]
    """Facts that the source lacks, or that NEST prices differently."""


def question(
    run: Run,
    stacks: Mapping[str, Stack] | None = None,
    devices: Mapping[str, Device] | None = None,
) -> RunQuestion:
    """All inputs of the price of a run.

    Parameters
    ----------
    run : a run that can be priced.
    stacks : stacks to use instead of those of the catalog, by name.
    devices : devices to use instead, by name.

    Raises
    ------
    InputError : the run cannot be priced; the message is the reason.
    """
    found = facts(run)
    name = found.shape.device
    job = _job(run, stack(found.stack, stacks))
    on = devices[name] if devices and name in devices else device(name)
    return RunQuestion(found.model, cluster(found.shape, on), job, found.configuration)


ASYNC_TP = re.compile(r"\basync tp\b")
HIDDEN_TP = 0.3
"""Share of tensor-parallel traffic that torchtitan hides with asynchronous tensor parallelism: of
two pairs of runs of Llama-3.1-8B. Three pairs of Llama-3.1-70B, not fitted, say 0.2 to 0.6."""


def _job(run: Run, software: Stack) -> Job:
    if ASYNC_TP.search(run.notes.lower()):
        software = software.replace(overlap_tp=HIDDEN_TP)
    if run.whole("flash_attention") is not None:
        software = software.replace(flash_attention=run.whole("flash_attention") == 1)
    number = precision(run.text("precision"))
    assert number is not None  # refused by nest.measured.validation.reasons
    software = software.replace(**_experts_of(run))
    dropping = CAPACITY.search(_words(run)) is not None
    return Job(global_batch=run.degree("gbs_seqs"), seq_len=run.degree("seq_len"),
               precision=number, stack=software,
               expert_capacity=1.0 if dropping else None, expert_padding=dropping,
               memory_margin=0.0)  # a run that was measured did fit


GRAPHS = ((r"^(?:none\b.*|unclear.*|unknown.*|)$", "none"), (r"full[_ ]iteration", "step"),
          (r"\battn\b", "layers"), (r".", "none"))
"""Pattern of the cell of CUDA graphs, what they capture; the first that matches counts.

Graphs of the router alone, or of the dense MLP, count as none.
"""


CAPACITY = re.compile(r"token ?drop")
"""Experts of a fixed capacity: tokens beyond it are dropped, missing ones padded.

Megatron-Bridge's runs of this name have a factor of 1, padding, and the all-to-all dispatcher,
without which it refuses them (apply_moe_token_drop in NVIDIA-NeMo/Megatron-Bridge@v0.2.0
src/megatron/bridge/training/utils/moe_token_drop.py:25; its runner then leaves out DeepEP,
@v0.1.0rc4 scripts/performance/run_script.py:59).
"""


def _words(run: Run) -> str:
    return f"{run.model} {run.notes}".lower()


def _experts_of(run: Run) -> dict[str, str | bool]:
    """Figures of the stack that a row states of its own: dispatcher and CUDA graphs."""
    found: dict[str, str | bool] = {}
    words = run.text("dispatcher").lower()
    if run.text("n_experts") and words:
        if words not in get_args(Dispatcher):
            raise InputError(f"dispatcher {words}")
        found["dispatcher"] = words
    if CAPACITY.search(_words(run)):
        found["dispatcher"] = "alltoall"
    if "fused grouped mlp" in run.notes.lower():
        found["fused_experts"] = True
    found |= {name: True for name in ("fp8_attention", "fp8_head")
              if name.replace("_", " ") in run.notes.lower()}
    graphs = run.text("cuda_graphs").lower()
    if graphs:
        found["cuda_graphs"] = next(name for mark, name in GRAPHS if re.search(mark, graphs))
    return found


@lru_cache(maxsize=10_000)
def facts(run: Run) -> Facts:
    """Model, network, configuration and the names of stack and device of a run.

    Raises
    ------
    InputError : the run cannot be priced; the message is why.
    """
    if run.reason is not None:
        raise InputError(run.reason)
    known, remarks = model(run)
    remarks += [f"{column} {found.value}: {found.why}" for column, found in run.inferred.items()
                if column != "dp" and (column, found.value) != ("vpp", "1")]
    again = recompute(run.text("recompute"))
    assert again is not None  # refused by nest.measured.validation.reasons
    net = shape(run.text("gpu"), run.text("gpu_mem_gb"), run.degree("n_gpus"),
                run.degree("gpus_per_node"), run.text("intra_node"),
                run.real("inter_node_gbps_per_gpu"))
    name = stack_name(run.framework, run.group, run.text("precision"), run.notes,
                      run.text("source"))
    if run.degree("ep") > 1 and not run.text("dispatcher"):
        remarks.append(f"dispatcher not stated: {stack(name).dispatcher}, the stack's")
    if CAPACITY.search(_words(run)):
        remarks.append("experts of a capacity of 1, padded, by all-to-all: no wait for the host")
    if ASYNC_TP.search(run.notes.lower()):
        remarks.append(f"asynchronous tensor parallelism hides {HIDDEN_TP:.0%} of its "
                       "traffic, fitted")
    way, more = configuration(run, build_chain(known), _job(run, stack(name)), again)
    remarks += [text for text in (again.remark, net.remark, *more) if text]
    return Facts(known, net, way, name, tuple(remarks))
