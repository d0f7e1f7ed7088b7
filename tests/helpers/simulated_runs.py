"""Runs with a known truth: a simulated step, disturbed by known causes, as a log and as traces.

Kernels of a stage follow its slices: computing as products and others, exposed traffic as NCCL's
kernels, waiting for other stages as a send or receive that waits, gradients on a stream of their
own, all with the names and arguments that Kineto and Megatron-Core give them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import job_logs

from nest.evaluation.evaluate import chain_of
from nest.evaluation.plans import Plan
from nest.measured.diagnosis.seconds import without_host
from nest.model.schedules import group_of
from nest.schedules.registry import placement
from nest.simulation.events import run
from nest.simulation.figures import LayerWork, StageWork
from nest.simulation.result import COMPUTE, DATA, Record, Slice
from nest.simulation.tasks import Task, orders
from nest.simulation.times import Times

PRODUCTS = 0.7
"""Share of computing that is in products."""
GROUPS = {"tp": "TENSOR_MODEL_PARALLEL_GROUP", "dp": "DATA_PARALLEL_GROUP_WITH_CP",
          "pp": "PIPELINE_MODEL_PARALLEL_GROUP"}
CALLS = {"tp": "ncclDevKernel_AllGather_RING_LL(ncclDevComm*)",
         "dp": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*)",
         "pp": "ncclDevKernel_SendRecv(ncclDevComm*)"}


@dataclass
class Disturbed:
    """A step of a plan with known causes."""

    plan: Plan
    computing: float = 1.0
    """Times the price."""
    tp: float = 1.0
    reduction: float = 1.0
    straggler: float = 1.0
    """Computing of the slow rank alone."""
    gap: float = 0.0
    """Seconds without a kernel in front of each pass."""
    data: float = 0.0
    """Seconds of the DataLoader, in one step of ``every``."""
    every: int = 1
    slices: dict[float, list[Slice]] = field(default_factory=dict)
    asked: float = 0.0
    """When the last pass ended."""
    shares: list[tuple[float, float]] = field(default_factory=list)

    def works(self, times: float) -> list[StageWork]:
        own = self.plan.configuration
        table = Times(chain_of(self.plan.inputs.subject), self.plan.inputs.cluster,
                      self.plan.inputs.job, own)
        return [self._work(table.stage(n).work, n, times) for n in range(own.pp)]

    def kernels(self, stage: int, forward: bool) -> float:
        """Share of the price of computing that is in kernels; the rest is the host's."""
        if not self.shares:
            bare = without_host(self.plan)
            self.shares = [(each.time_s.forward / one.time_s.forward,
                            (each.time_s.backward + each.time_s.recompute)
                            / (one.time_s.backward + one.time_s.recompute))
                           for each, one in zip(bare.stages, self.plan.stages, strict=True)]
        return self.shares[stage][not forward]

    def longer(self, stage: int, times: float, forward: bool) -> float:
        """Times that passes take longer than priced."""
        share = self.kernels(stage, forward)
        return times * self.computing * share + 1.0 - share

    def _work(self, work: StageWork, stage: int, times: float) -> StageWork:
        ahead, back = (self.longer(stage, times, forward) for forward in (True, False))

        def layer(one: LayerWork, gap: float) -> LayerWork:
            return one._replace(
                forward=ahead * one.forward + gap, backward=back * one.backward + gap,
                ahead=self.tp * one.ahead, back=self.tp * one.back,
                reduced=self.reduction * one.reduced)

        return work._replace(chunks=tuple(
            tuple(layer(one, self.gap if n == 0 else 0.0) for n, one in enumerate(chunk))
            for chunk in work.chunks))

    def order(self) -> Sequence[Sequence[Task]]:
        way, p = self.plan.configuration, self.plan.parallelism
        return orders(way.schedule, way.pp, p.micro_batches, way.vpp, group_of(way))

    def step(self, times: float = 1.0, slow_data: bool = False) -> float:
        """Seconds of a step, simulated."""
        way, p = self.plan.configuration, self.plan.parallelism
        table = Times(chain_of(self.plan.inputs.subject), self.plan.inputs.cluster,
                      self.plan.inputs.job, way)
        record = Record(10**6, p.micro_batches)
        ran = run(self.order(), self.works(times), table.links(0), table.rates, record=record,
                  placement=placement(way.schedule))
        self.slices[times] = record.slices
        return ran.step_time + (self.data if slow_data else 0.0)

    # ------------------------------------------------------------ files

    def log(self, path: Path, steps: int = 40) -> float:
        """Write the log; the mean of the steps behind the first."""
        times = max(1.0, self.straggler)
        seconds = [self.step(times, self.data > 0.0 and n % self.every == 0)
                   for n in range(1, steps + 1)]
        path.write_text("\n".join(job_logs.iteration(n, 1000.0 * one) for n, one in
                                  enumerate((3.0 * seconds[0], *seconds), 1)), encoding="utf-8")
        return sum(round(1000.0 * one, 1) / 1000.0 for one in seconds) / steps

    def trace(self, path: Path, rank: int, stage: int, steps: int = 3, slow: bool = False) -> Path:
        """Write the trace of a rank; ``slow``: it is the straggler."""
        whole = self.step(max(1.0, self.straggler))
        own = self.straggler if slow else 1.0
        events: list[dict[str, Any]] = []
        at = 1.0
        for n in range(steps):
            stalled = self.data if self.data > 0.0 and n % self.every == 0 else 0.0
            if stalled:
                events.append(_event("user_annotation", "enumerate(DataLoader)#_MultiProcessing"
                                     "DataLoaderIter.__next__", at, stalled))
            events.append(_event("user_annotation", f"ProfilerStep#{n + 5}", at, whole + stalled))
            events += self._kernels(stage, at + stalled, own, whole)
            at += whole + stalled
        launches = []
        for number, one in enumerate(events):
            if one["cat"] == "kernel":
                one["args"]["correlation"] = number
                asked = one["args"].pop("asked", 1e-6 * one["ts"])
                launches.append(_event("cuda_runtime", "cudaLaunchKernel", asked, 1e-6)
                                | {"args": {"correlation": number}})
        document = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank,
                                                            "world_size": 16},
                    "traceEvents": [*events, *launches]}
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    def _kernels(self, stage: int, begin: float, own: float, whole: float) -> list[dict[str, Any]]:
        """Kernels of a step; a rank that is faster waits for the straggler in the reduction."""
        times = max(1.0, self.straggler)
        works, order = self.works(times)[stage], self.order()[stage]
        slices = sorted((one for one in self.slices[times] if one.stage == stage),
                        key=lambda one: (one.start, one.end))
        found: list[dict[str, Any]] = []
        at = 0.0
        for one in slices:
            if one.stream == DATA:
                found.append(_kernel("dp", begin + one.start, one.end - one.start))
            if one.stream != COMPUTE:
                continue
            if one.start > at + 1e-9:
                found.append(_kernel("pp", begin + at, one.start - at))
            found += self._pass(one, order, works, begin, stage, (own, times))
            at = max(at, one.end)
            if one.task >= 0:
                self.asked = one.end
        if whole > at + 1e-9:
            found.append(_kernel("pp" if self.plan.parallelism.pp > 1 else "dp", begin + at,
                                 whole - at))
        return found

    def _pass(self, one: Slice, order: Sequence[Task], work: StageWork, begin: float, stage: int,
              speeds: tuple[float, float]) -> list[dict[str, Any]]:
        """Kernels of a slice; ``speeds``: times that own computing takes, and the slowest's."""
        length = one.end - one.start
        if one.task < 0 and one.name != "optimizer":
            return [_kernel("dp", begin + one.start, length)]
        if one.task < 0:  # the host is ahead of the device, which waits for gradients
            return [_named("multi_tensor_apply_kernel", begin + one.start, length,
                           {"asked": begin + self.asked})]
        task = order[one.task]
        traffic = min(length, sum(each.ahead if task.forward else each.back
                                  for each in work.chunks[task.chunk]))
        at = begin + one.start + self.gap
        own, times = speeds
        share = self.kernels(stage, task.forward)
        priced = (length - traffic - self.gap) / self.longer(stage, times, task.forward)
        busy, idle = priced * own * self.computing * share, priced * (1.0 - share)
        rest = begin + one.end - at - busy - idle
        return [
            _named("nvjet_tst_128x256_64x4", at + idle, PRODUCTS * busy),
            _named("vectorized_elementwise_kernel", at + idle + PRODUCTS * busy,
                   (1 - PRODUCTS) * busy),
            *([_kernel("tp" if self.plan.stages[0].tp > 1 else "dp", at + busy + idle, rest)]
              if rest > 1e-9 else [])]


def _event(kind: str, name: str, start: float, seconds: float) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "pid": 7, "tid": 7, "ts": 1e6 * start,
            "dur": 1e6 * seconds, "args": {}}


def _named(name: str, start: float, seconds: float, args: Mapping[str, Any] | None = None
           ) -> dict[str, Any]:
    return _event("kernel", name, start, seconds) | {"args": {"stream": 7, **(args or {})}}


def _kernel(kind: str, start: float, seconds: float) -> dict[str, Any]:
    return _named(CALLS[kind], start, seconds, {
        "stream": 20 + [*CALLS].index(kind), "Process Group Description": GROUPS[kind],
        "Group size": 2})


# ---------------------------------------------------------------- other files


def as_sqlite(trace: Path, path: Path) -> Path:
    """A trace of Kineto as Nsight Systems exports it: nanoseconds, names in a table of their own.

    Its kernels name no group of ranks.
    """
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    texts: dict[str, int] = {}
    with closing(sqlite3.connect(path)) as base:
        base.executescript(
            "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, contextId "
            "INT, streamId INT, correlationId INT, demangledName INT, shortName INT);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, "
            "correlationId INT, nameId INT);"
            "CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, textId INT);")
        for one in events:
            start, end = (round(1e3 * at) for at in (one["ts"], one["ts"] + one["dur"]))
            about = one["args"]
            if one["cat"] == "kernel":
                name = texts.setdefault(one["name"], len(texts) + 1)
                base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,0,1,?,?,?,?)",
                             (start, end, about["stream"], about["correlation"], name, name))
            elif one["cat"] == "cuda_runtime":
                base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,?,0)",
                             (start, end, about["correlation"]))
            else:
                base.execute("INSERT INTO NVTX_EVENTS VALUES (?,?,59,?,NULL)",
                             (start, end, one["name"]))
        base.executemany("INSERT INTO StringIds VALUES (?,?)",
                         [(number, name) for name, number in texts.items()])
        base.commit()
    return path


FRAMES = {
    "parameters": ("torch/nn/modules/linear.py", "__init__"),
    "gradients": ("megatron/core/distributed/param_and_grad_buffer.py", "allocate_grad_data"),
    "optimizer": ("torch/optim/adam.py", "_init_group"),
    "activations": ("torch/nn/modules/linear.py", "forward"),
    "buffers": ("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_all_gather"),
    "untold": ("", "")}
"""Frames in which allocations of a kind are made."""


def snapshot_of(kinds: Mapping[str, int], peak: int = 0, reserved: int = 0, oom: int = 0
                ) -> dict[str, Any]:
    """A snapshot as torch.cuda.memory._snapshot returns it.

    Parameters
    ----------
    kinds : bytes that are held by kind.
    peak : bytes of activations that were held besides, and freed again.
    reserved : bytes of the segment; default: all that was held.
    oom : a request that ran out.
    """
    def frames(kind: str) -> list[dict[str, Any]]:
        file, name = FRAMES[kind]
        return [{"filename": "/lib/torch/_ops.py", "line": 1, "name": "__call__"},
                {"filename": f"/lib/{file}", "line": 7, "name": name}] if file else []

    at, blocks, trace = 4096, [], []
    for kind, size in kinds.items():
        blocks.append({"address": at, "size": size, "requested_size": size - 3, "frames":
                       frames(kind), "state": "active_allocated"})
        trace.append({"action": "alloc", "addr": at, "size": size, "stream": 0, "frames":
                      frames(kind), "time_us": at})
        at += size
    if peak:
        trace += [{"action": action, "addr": at, "size": peak, "stream": 0, "frames": some,
                   "time_us": at} for action, some in (
            ("alloc", frames("activations")), ("free_requested", []), ("free_completed", []))]
    if oom:
        trace.append({"action": "oom", "device_free": 1234, "size": oom, "stream": 0, "frames": []})
    total = reserved or sum(kinds.values()) + peak
    blocks.append({"address": at, "size": total - sum(kinds.values()), "requested_size": 0,
                   "state": "inactive", "frames": []})
    return {"segments": [{
        "device": 0, "address": 4096, "total_size": total, "allocated_size": at - 4096,
        "active_size": at - 4096, "requested_size": at, "stream": 0, "segment_type": "large",
        "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks}],
        "device_traces": [trace], "allocator_settings": {"expandable_segments": False},
        "external_annotations": []}
