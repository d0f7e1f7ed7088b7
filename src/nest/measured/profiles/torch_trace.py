"""Traces of the profiler of PyTorch, summed over each layer of a model.

A trace has seconds; bytes of parameters and activations are those that NEST prices for the model.

Which layer the work in a trace of the profiler of PyTorch belongs to.

Events are those of the Chrome trace format as torch 2.13 writes them (Kineto): ``X`` events with
``ts`` and ``dur`` in microseconds. A kernel belongs to the call that launched it (equal
``correlation``), a call to the events around it on its thread. Modules are events
``nn.Module: NAME_N`` (``with_stack=True`` or ``with_modules=True``). A backward runs in
``autograd::engine::evaluate_function``, whose ``Sequence number`` is that of its forward.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nest.errors import InputError
from nest.evaluation.stages import Pricing
from nest.inputs.cluster import Cluster, Level
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.inputs.files import read_bytes
from nest.inputs.job import Job
from nest.inputs.loading import load_device
from nest.inputs.model import Model
from nest.inputs.profile import Profile
from nest.measured.profiles.planners import joined
from nest.model import Chain, build_chain
from nest.units import shorten

LARGEST = 2**31
"""Bytes of a trace, unpacked, at the most (chosen)."""
FIRST, LAST = "first", "last"


class Seconds(NamedTuple):
    """Of all micro-batches of a trace."""

    forward: float = 0.0
    backward: float = 0.0


def from_trace(
    trace: str | os.PathLike[str], model: Model, layers: Sequence[str], seq_len: int,
    samples: int = 1, tp: int = 1, precision: str = "bf16",
) -> Profile:
    """The profile of a model whose training was traced on one device.

    The kernels of a layer are added up, or the operators of the host where no device was traced;
    waits between them are not. Layers that are alike in the model get the mean of their times.
    What runs before the first layer and behind the last one of a micro-batch are layers too.
    Collectives count with tp above 1 alone; below they are those of data parallelism. The optimizer
    does not count.

    Parameters
    ----------
    trace : a file .json or .json.gz (of the profiler, ``with_stack=True`` or
        ``with_modules=True``).
    model : what was traced.
    layers : names of the classes of modules that are a layer (of Llama: LlamaDecoderLayer).
    seq_len, samples : tokens of a sequence; sequences of a micro-batch.
    tp : tensor-parallel ranks that the traced device was one of.

    Raises
    ------
    InputError : a file that is no trace, no module or no backward of these classes in it, or
        another number of layers than the model has.
    """
    where = shorten(os.fspath(trace), 300)[1:-1]
    found = Trace(trace_document(trace, where)[1], layers)
    times, order, calls = _summed(found, layers, tp, where)
    chain = build_chain(model)
    numbers = [n for n, kind in enumerate(chain.order) if chain.kinds[kind].repeated]
    if len(order) != len(numbers) or len(chain) != len(numbers) + 2 or not chain.is_chain:
        raise InputError(f"{where}: got {len(order)} layers {', '.join(layers)}; allowed: the "
                         f"{len(numbers)} of {model.name}, which must be a chain with one layer in "
                         "front and one behind")
    names = [FIRST, *order, LAST]
    kinds = chain.order
    alike: dict[int, list[Seconds]] = defaultdict(list)
    for kind, name in zip(kinds, names, strict=True):
        alike[kind].append(times[name])
    sizes = _sizes(chain, seq_len, samples, tp, precision)
    rows = []
    for n, kind in enumerate(kinds):
        same = alike[kind]
        name = FIRST if n == 0 else LAST if n == len(kinds) - 1 else "layer"
        handed, measured = sizes[n]
        share = 1.0 / (len(same) * calls * samples)
        rows.append((name, {"output_bytes": handed, "tp": {tp: {
            "forward": share * sum(one.forward for one in same),
            "backward": share * sum(one.backward for one in same), **measured}}}))
    return Profile.parse({
        "name": model.name, "note": f"traced with PyTorch: {calls} micro-batches of {samples} "
        f"sequences of {seq_len} tokens", "layers": joined(rows)}, where)


def trace_document(
    trace: str | os.PathLike[str], where: str, largest: int = LARGEST
) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    """What a file of a trace holds beside its events, and these, checked.

    Parameters
    ----------
    where : what messages call it.
    largest : bytes of it, unpacked, at the most.

    Raises
    ------
    InputError : it cannot be read, or is no trace.
    """
    packed = os.fspath(trace).endswith(".gz")
    if not os.fspath(trace).endswith((".json", ".json.gz")):
        raise InputError(f"{where}: got another suffix; allowed: .json or .json.gz")
    text = read_bytes(trace, largest)
    try:
        if packed:
            with gzip.open(io.BytesIO(text)) as stream:
                text = stream.read(largest + 1)
        if len(text) > largest:
            raise InputError(f"{where}: got more than {largest // 2**20} MiB; allowed: a trace of "
                             "fewer steps")
        data = json.loads(text)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{where}: cannot be read "
                         f"({getattr(error, 'strerror', None) or error})") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where}: malformed JSON ({error}); allowed: a trace of "
                         "torch.profiler") from None
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise InputError(f"{where}: traceEvents: got {shorten(events)}; allowed: a list of events")
    found = [event for event in events if isinstance(event, Mapping)]
    for event in found:
        _check(event, where)
    return data if isinstance(data, dict) else {}, found


def _check(event: Mapping[str, Any], where: str) -> None:
    """Refuse an event whose fields are no plain values, by which it could not be found again."""
    about = event.get("args", {})
    if not isinstance(about, Mapping):
        raise InputError(f"{where}: traceEvents: args: got {shorten(about)}; allowed: a mapping")
    for name, value in (*((name, event.get(name)) for name in ("ph", "cat", "pid", "tid")),
                        ("args.correlation", about.get("correlation"))):
        if isinstance(value, (list, dict)):
            raise InputError(f"{where}: traceEvents: {name}: got {shorten(value)}; allowed: text "
                             "or a number")


def _summed(
    trace: Trace, layers: Sequence[str], tp: int, where: str
) -> tuple[dict[str, Seconds], list[str], int]:
    """Seconds by layer, the layers in their order, and how many micro-batches there were."""
    calls = trace.calls()
    if not calls:
        seen = ", ".join(sorted(trace.modules)[:20])
        raise InputError(f"{where}: got no module {' or '.join(layers)}; allowed: "
                         f"{seen or 'a trace with_stack=True or with_modules=True'}")
    order = list(dict.fromkeys(name for _, name in calls))
    times = dict.fromkeys([FIRST, *order, LAST], Seconds())
    known: dict[int, str] = {}  # layer of the forward of a sequence number
    starts, outside = iter([*calls, (float("inf"), "")]), FIRST
    begun, owners = next(starts), [(work, trace.owner(work)) for work in trace.work]
    for work, owner in owners:
        while begun[0] <= work.at:
            outside, begun = LAST if begun[1] == order[-1] else FIRST, next(starts)
        if owner.backward:
            outside = FIRST  # of the next micro-batch
        if owner.optimizer or owner.backward:
            continue
        place = owner.layer or outside
        if owner.number is not None:
            known[owner.number] = place
        elif owner.layer is None:
            continue
        if tp > 1 or not COLLECTIVE.search(work.name):
            times[place] = times[place]._replace(forward=times[place].forward + work.seconds)
    behind, backward = LAST, False
    for work, owner in owners:
        if not owner.backward or owner.optimizer:
            continue
        # Gradients are accumulated behind the backward that made them.
        behind = owner.layer or known.get(-1 if owner.number is None else owner.number, behind)
        backward = True
        if tp > 1 or not COLLECTIVE.search(work.name):
            times[behind] = times[behind]._replace(backward=times[behind].backward + work.seconds)
    if not backward:
        raise InputError(f"{where}: got no {BACKWARD}; needed: a trace of training")
    count = Counter(name for _, name in calls)
    if len(set(count.values())) > 1:
        raise InputError(f"{where}: got {min(count.values())} to {max(count.values())} calls of a "
                         "layer; allowed: whole micro-batches")
    return times, order, count[order[0]]


def _sizes(
    chain: Chain, seq_len: int, samples: int, tp: int, precision: str
) -> list[tuple[float, dict[str, float]]]:
    """Bytes that each layer hands on, and its measured bytes, per sample."""
    cluster = Cluster(name="traced", device=load_device("h100-sxm"), levels=(
        Level(name="node", size=tp, bandwidth=1e12, latency=1e-6),))
    job = Job(global_batch=samples, seq_len=seq_len, precision=precision)
    way = Configuration(micro_batch=samples, outer_dp=1, stages=[StageConfiguration(
        layers=(0, len(chain)), devices=(0, tp), tp=tp)])
    pricing = Pricing(chain, cluster, job)
    (layers,) = pricing.stage(way, way.stages[0]).layers
    found = []
    for n, layer in enumerate(layers):
        handed = pricing.handed(way, n + 1) if n + 1 < len(layers) else 0.0
        found.append((handed, {
            "parameter_bytes": layer.costs["parameters"],
            "activation_bytes": layer.costs["activations"] / samples,
            "work_bytes": layer.costs["work"] / samples}))
    return found


# ---------------------------------------------------------------- spans


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
            if event.get("ph") != "X" or not timed(event):
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


def timed(event: Mapping[str, Any]) -> bool:
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
