"""Files for other programs: the place of each rank, and a simulated step as a trace.

https://ui.perfetto.dev and chrome://tracing open the trace.
The Trace Event Format (Chromium, "Trace Event Format", JSON object form): "X" slices with start and
duration in microseconds, "C" counters, "M" names. A process is a stage, a thread one of its
streams.
"""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from nest.evaluation.plans import Plan
from nest.evaluation.ranks import Rank
from nest.simulation.result import AHEAD, BACK, COMPUTE, DATA
from nest.simulation.step import Traced

MICRO = 1e6
STREAMS = {COMPUTE: "compute", DATA: "data parallel", AHEAD: "to the next stage",
           BACK: "to the stage before"}


def trace_text(plan: Plan, traced: Traced) -> str:
    """Give the trace of a simulation as the text of one JSON document.

    Parameters
    ----------
    plan : what was simulated.
    traced : its simulation, with slices.

    Returns
    -------
    str
        A line for each event, which keeps a large file readable.
    """
    simulation = traced.simulation
    events = [*_names(plan, simulation.replica), *_slices(traced), *_memory(traced)]
    data = {
        "step_time_s": simulation.step_time_s, "replica": simulation.replica,
        "micro_batches_left_out": _span(traced.record.left_out),
    }
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    return (f'{{"displayTimeUnit":"ms","otherData":{json.dumps(data)},"traceEvents":[\n'
            f"{lines}\n]}}\n")


def _span(left_out: range) -> list[int] | None:
    """First and last micro-batch without slices; null: all have them."""
    return [left_out[0], left_out[-1]] if left_out else None


def _names(plan: Plan, replica: int) -> list[dict[str, Any]]:
    found = []
    first = plan.replicas[replica]
    for number, stage in enumerate(plan.stages):
        start, stop = (first + device for device in stage.devices)
        name = f"stage {number}, replica {replica}, devices {start}..{stop - 1}"
        found.append(_named("process_name", number, name=name))
        found.append(_named("process_sort_index", number, sort_index=number))
        found += [_named("thread_name", number, stream, name=text)
                  for stream, text in STREAMS.items()]
        found += [_named("thread_sort_index", number, stream, sort_index=stream)
                  for stream in STREAMS]
    return found


def _named(what: str, stage: int, stream: int = 0, **given: object) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": stage, "tid": stream, "args": given}


def _slices(traced: Traced) -> list[dict[str, Any]]:
    return [
        {"ph": "X", "name": s.name, "pid": s.stage, "tid": s.stream, "ts": MICRO * s.start,
         "dur": MICRO * (s.end - s.start)}
        for s in traced.record.slices
    ]


def _memory(traced: Traced) -> list[dict[str, Any]]:
    """Bytes on a device of each stage, whenever a task starts or ends."""
    found = []
    for s in traced.record.slices:
        if s.task < 0:
            continue
        during, after = traced.memory[s.stage][s.task]
        for second, level in ((s.start, during), (s.end, after)):
            found.append({"ph": "C", "name": "memory", "pid": s.stage, "tid": 0,
                          "ts": MICRO * second, "args": {"bytes": level}})
    return found


def ranks_text(plan: Plan) -> str:
    """Give the place of each device that a plan uses as CSV, for launchers.

    The columns are the fields of :class:`Rank`.
    """
    stream = io.StringIO()
    table = csv.writer(stream, lineterminator="\n")
    table.writerow(Rank._fields)
    table.writerows(plan.ranks())
    return stream.getvalue()
