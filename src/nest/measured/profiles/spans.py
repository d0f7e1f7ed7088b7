"""Which layer the work in a trace of the profiler of PyTorch belongs to.

Events are those of the Chrome trace format as torch 2.13 writes them (Kineto): ``X`` events with
``ts`` and ``dur`` in microseconds. A kernel belongs to the call that launched it (equal
``correlation``), a call to the events around it on its thread. Modules are events
``nn.Module: NAME_N`` (``with_stack=True`` or ``with_modules=True``). A backward runs in
``autograd::engine::evaluate_function``, whose ``Sequence number`` is that of its forward.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MODULE = re.compile(r"nn\.Module: (?P<name>.{1,200})_(?P<number>\d{1,9})")
BACKWARD = "autograd::engine::evaluate_function"
OPTIMIZER = "Optimizer."
DEVICE_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime"})
COLLECTIVE = re.compile(r"nccl|rccl", re.IGNORECASE)

Thread = tuple[Any, Any]


class Event(NamedTuple):
    """Something on a thread."""

    name: str
    start: float
    stop: float
    number: int | None
    """Its sequence number."""


class WorkSeconds(NamedTuple):
    """Seconds that a device, or the host where no device was traced, worked on a call."""

    name: str
    thread: Thread
    at: float
    """When the call was made, in the trace's microseconds."""
    seconds: float


class SpanOwner(NamedTuple):
    """What a piece of work belongs to."""

    layer: str | None
    """Module of the layer; None: outside of all layers."""
    backward: bool
    number: int | None
    """Sequence number of the operator; None: it takes no part in a backward."""
    optimizer: bool


class Trace:
    """Events of a trace by thread, each with those around it.

    Parameters
    ----------
    events : ``traceEvents`` of a trace.
    layers : names of the classes that are layers.
    """

    def __init__(self, events: Sequence[Mapping[str, Any]], layers: Sequence[str]) -> None:
        threads: dict[Thread, list[Event]] = defaultdict(list)
        launched: dict[Any, tuple[Thread, float]] = {}
        ran: list[Mapping[str, Any]] = []
        self.modules: set[str] = set()
        """Classes of all modules seen."""
        for event in events:
            if event.get("ph") != "X" or not _timed(event):
                continue
            category, given = event.get("cat"), event.get("args")
            about = given if isinstance(given, Mapping) else {}
            thread = (event.get("pid"), event.get("tid"))
            if category in DEVICE_WORK:
                ran.append(event)
            elif category in LAUNCHES and "correlation" in about:
                launched[about["correlation"]] = (thread, event["ts"])
            elif category in ("cpu_op", "python_function", "user_annotation"):
                name = str(event.get("name"))
                if category == "python_function":
                    if not (found := MODULE.fullmatch(name)):
                        continue
                    self.modules.add(found["name"])
                number = about.get("Sequence number")
                threads[thread].append(Event(
                    name, event["ts"], event["ts"] + event["dur"],
                    number if isinstance(number, int) else None))
        self._layers = frozenset(layers)
        self._threads = {thread: _nested(found) for thread, found in threads.items()}
        self._starts = {thread: [event.start for event, _ in found]
                        for thread, found in self._threads.items()}
        self.work = [
            WorkSeconds(str(event.get("name")), *launched[key],
                        1e-6 * event["dur"]) for event in ran
            if (key := event.get("args", {}).get("correlation")) in launched]
        if not ran:
            self.work = self._host_work()
        self.work.sort(key=lambda one: one.at)

    def _host_work(self) -> list[WorkSeconds]:
        """Operators of the host, each without those inside it."""
        found = []
        for thread, events in self._threads.items():
            inside: dict[int, float] = defaultdict(float)
            for event, around in events:
                if around is not None:
                    inside[around] += event.stop - event.start
            for place, (event, _) in enumerate(events):
                if not MODULE.fullmatch(event.name):
                    own = max(0.0, event.stop - event.start - inside[place])
                    found.append(WorkSeconds(event.name, thread, event.start, 1e-6 * own))
        return found

    def owner(self, work: WorkSeconds) -> SpanOwner:
        """What the events around a piece of work say of it."""
        layer, backward, number, optimizer = None, False, None, False
        for event in self._around(work.thread, work.at):
            if event.name.startswith(OPTIMIZER):
                optimizer = True
            if event.name.startswith(BACKWARD):
                backward = True
            if event.number is not None:
                number = event.number
            if layer is None and (found := self.layer(event.name)):
                layer = found
        return SpanOwner(layer, backward, number, optimizer)

    def layer(self, name: str) -> str | None:
        """The layer that an event stands for."""
        found = MODULE.fullmatch(name)
        return name if found and found["name"] in self._layers else None

    def calls(self) -> list[tuple[float, str]]:
        """Layers in the order of their calls in forwards; when each began."""
        return sorted((event.start, event.name)
                      for thread, events in self._threads.items() for event, around in events
                      if self.layer(event.name) and not any(
                          outer.name.startswith(BACKWARD) or self.layer(outer.name)
                          for outer in self._chain(thread, around)))

    def _around(self, thread: Thread, at: float) -> list[Event]:
        """Events of a thread that contain a moment, the innermost first."""
        if thread not in self._threads:
            return []
        place: int | None = bisect_right(self._starts[thread], at) - 1
        return [event for event in self._chain(thread, place if place != -1 else None)
                if event.start <= at <= event.stop]

    def _chain(self, thread: Thread, place: int | None) -> list[Event]:
        found = []
        while place is not None:
            event, place = self._threads[thread][place]
            found.append(event)
        return found


def _timed(event: Mapping[str, Any]) -> bool:
    """Whether an event has a start and a duration that are numbers."""
    return all(isinstance(event.get(key), int | float) and 0 <= event[key] < 1e18
               for key in ("ts", "dur"))


def _nested(events: list[Event]) -> list[tuple[Event, int | None]]:
    """Events by start, each with the place of the one directly around it."""
    events.sort(key=lambda event: (event.start, -event.stop))
    found: list[tuple[Event, int | None]] = []
    open_: list[int] = []
    for place, event in enumerate(events):
        while open_ and events[open_[-1]].stop < event.stop:
            open_.pop()
        found.append((event, open_[-1] if open_ else None))
        open_.append(place)
    return found
