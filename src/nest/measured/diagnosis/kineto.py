"""Traces of the profiler of PyTorch (Kineto): kernels, collectives and what the host did.

Events are those of the Chrome trace format as torch 2.13 writes them; ``distributedInfo`` names the
rank. Arguments of NCCL's kernels are those of torch/csrc/profiler/util.h:188 (``Process Group
Description``, ``Group size``). Where no device was traced, operators stand for kernels, and
annotations such as ``gloo:all_reduce`` for collectives.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nest.measured.diagnosis.timeline import (
    DeviceWork,
    HostSpan,
    PlanDegrees,
    RankGroup,
    Timeline,
    names,
    rank_in,
)
from nest.measured.diagnosis.timeline import timeline as made
from nest.measured.profiles.torch_trace import DEVICE_WORK, LAUNCHES, timed, trace_document
from nest.units import shorten

LARGEST = 2**29
"""Bytes of a trace, unpacked, at the most (chosen; some gigabytes once read)."""
_HOST = frozenset({"cpu_op", "user_annotation", "python_function"})
_MICRO = 1e-6
Event = Mapping[str, Any]


def read(path: str | os.PathLike[str], degrees: PlanDegrees) -> Timeline:
    """The trace of a rank, .json or .json.gz.

    Raises
    ------
    InputError : it cannot be read, is no trace, or holds no work.
    """
    where = shorten(os.fspath(path), 300)[1:-1]
    document, events = trace_document(path, where, LARGEST)
    about = document.get("distributedInfo")
    rank = about.get("rank") if isinstance(about, Mapping) else None
    if type(rank) is not int or not 0 <= rank < 10**7:
        rank = rank_in(path)
    whole = [one for one in events if one.get("ph") == "X" and timed(one)]
    launched = {_number(one, "correlation"): _MICRO * one["ts"] for one in whole
                if one.get("cat") in LAUNCHES}
    launched.pop(None, None)
    device = [one for one in whole if one.get("cat") in DEVICE_WORK]
    host = [one for one in whole if one.get("cat") in _HOST]
    pieces = ([_piece(one, launched) for one in device] if device else [*_operators(host)])
    spans = (_span(one) for one in host if one.get("cat") != "cpu_op")
    return made(where, rank, pieces, spans, degrees, bool(device))


def _number(event: Event, name: str) -> int | None:
    found = event.get("args", {}).get(name)
    return found if type(found) is int and 0 <= found < 2**63 else None


def _span(event: Event) -> HostSpan:
    start = _MICRO * event["ts"]
    return HostSpan(str(event.get("name"))[:200], start, start + _MICRO * event["dur"])


def _piece(event: Event, launched: Mapping[int | None, float]) -> DeviceWork:
    about, start = event.get("args", {}), _MICRO * event["ts"]
    group = RankGroup(str(about.get("Process Group Description", ""))[:200],
                  _number(event, "Group size"))
    return DeviceWork(str(event.get("name"))[:300], start, start + _MICRO * event["dur"],
                 _number(event, "stream") or 0, group,
                 launched.get(_number(event, "correlation")),
                 event.get("cat") == "gpu_memcpy")


def _operators(host: Sequence[Event]) -> Iterator[DeviceWork]:
    """Operators of the host, also those inside others; collectives are annotations."""
    collectives = names().collectives.values()
    for one in host:
        span = _span(one)
        if any(form.search(span.name) for form in collectives):
            yield DeviceWork(span.name, span.start, span.end, 1)
        elif one.get("cat") == "cpu_op":
            yield DeviceWork(span.name, span.start, span.end)
