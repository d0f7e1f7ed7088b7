"""What a device did in the steps of a trace, and how many seconds each kind of work takes.

At each moment the first kind of :data:`KINDS` counts that runs: what computing hides costs nothing.
Moments without work are the host's: those within a span of :data:`IDLE` are its, the others gaps.
Data-parallel traffic runs beside computing: while the host has not even launched the next kernel,
the host counts, not the traffic. So the seconds of a step add up to the step.

N: pieces of work, S: steps, K: kinds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nest.errors import InputError
from nest.inputs.files import read_description
from nest.units import shorten

Floats = npt.NDArray[np.float64]
COMPUTING = ("products", "attention", "kernels")
COLLECTIVES = ("tp", "cp", "ep", "pp", "collectives", "dp")
IDLE = ("data", "checkpoint", "evaluation", "collection")
KINDS = (*COMPUTING, "update", *COLLECTIVES[:-1], "copies", "dp", *IDLE, "gaps")
MOST_WORK = 5 * 10**6
"""Kernels of a trace (chosen: about a gigabyte)."""
MOST_STEPS = 100
"""Steps of a trace that are looked at (chosen)."""
_RANK = re.compile(r"rank[-_ .]?(\d{1,6})", re.IGNORECASE)


class RankGroup(NamedTuple):
    """What a trace says of a collective."""

    description: str = ""
    """Of its process group."""
    size: int | None = None
    """Ranks of the group."""


class DeviceWork(NamedTuple):
    """A kernel, a collective or a copy; of the host where no device was traced."""

    name: str
    start: float
    """Seconds of the trace's clock."""
    end: float
    stream: int = 0
    group: RankGroup = RankGroup()
    launched: float | None = None
    """When the host asked for it; None: not told."""
    copy: bool = False


class HostSpan(NamedTuple):
    """Something that the host did."""

    name: str
    start: float
    end: float


class TraceNames(NamedTuple):
    """causes.yaml, compiled."""

    kernels: Mapping[str, re.Pattern[str]]
    collectives: Mapping[str, re.Pattern[str]]
    experts: re.Pattern[str]
    tensors: re.Pattern[str]
    dimensions: Mapping[str, Sequence[str]]
    groups: Mapping[str, re.Pattern[str]]
    spans: Mapping[str, re.Pattern[str]]
    steps: re.Pattern[str]
    optimizers: re.Pattern[str]
    memory: Mapping[str, re.Pattern[str]]
    advice: Mapping[str, Mapping[str, Sequence[str]]]


@cache
def names() -> TraceNames:
    """What traces, snapshots and logs call things."""
    data: Mapping[str, Any] = read_description(Path(__file__).with_name("causes.yaml"))

    def compiled(value: Any) -> Any:
        if isinstance(value, str):
            return re.compile(value)
        return {name: re.compile(form) for name, form in value.items()}

    return TraceNames(**{name: value if name in ("dimensions", "advice") else compiled(value)
                    for name, value in data.items()})


def advice(name: str, stack: str) -> tuple[str, ...]:
    """What to try against a cause with a stack."""
    table = names().advice.get(name, {})
    return (*table.get("any", ()), *(one for start, some in table.items()
                                     if start != "any" and stack.startswith(start)
                                     for one in some))


def rank_in(path: str | os.PathLike[str]) -> int | None:
    """The rank that the name of a file says; None: it says none."""
    found = _RANK.findall(Path(os.fspath(path)).name)
    return int(found[-1]) if found else None


# ---------------------------------------------------------------- kinds


class PlanDegrees(NamedTuple):
    """Ranks in each dimension of a plan."""

    tp: int
    cp: int
    ep: int
    dp: int
    pp: int

    def sizes(self, dimension: str) -> tuple[int, ...]:
        """Sizes that a group of the dimension may have."""
        own = int(getattr(self, dimension))
        return (own, self.dp * self.cp) if dimension == "dp" else (own,)

    def runs(self, dimension: str, size: int | None) -> bool:
        """Whether the plan has such groups."""
        sizes = self.sizes(dimension)
        return max(sizes) > 1 and (size is None or size in sizes)


@cache
def _kind(name: str, group: RankGroup, copy: bool, degrees: PlanDegrees) -> tuple[str, ...]:
    """The kinds that a piece of work may be of; of computing and copies one."""
    known = names()
    if copy:
        return ("copies",)
    if known.experts.search(name):
        return ("ep",)
    if known.tensors.search(name):
        return ("tp",)
    call = next((one for one, form in known.collectives.items() if form.search(name)), None)
    if call is None:
        return (next((one for one, form in known.kernels.items() if form.search(name)),
                     "kernels"),)
    named = next((one for one, form in known.groups.items()
                  if form.search(group.description)), None)
    if named is not None:
        return (named,)
    every = known.dimensions[call]
    return (tuple(one for one in every if degrees.runs(one, group.size))
            or tuple(one for one in every if degrees.runs(one, None)))


def kinds_of(pieces: Sequence[DeviceWork], degrees: PlanDegrees) -> npt.NDArray[np.int64]:
    """Number in :data:`KINDS` of each piece, shape (N,).

    A communicator has a stream of its own (PyTorch's ProcessGroupNCCL): collectives whose group is
    not told are of what all on their stream may be of.
    """
    choices = [_kind(one.name, one.group, one.copy, degrees) for one in pieces]
    shared: dict[int, set[str]] = {}
    for one, some in zip(pieces, choices, strict=True):
        if len(some) > 1:
            shared[one.stream] = shared.get(one.stream, {*some}) & {*some}
    number = {name: n for n, name in enumerate(KINDS)}
    found = np.empty(len(pieces), dtype=np.int64)
    for n, (one, some) in enumerate(zip(pieces, choices, strict=True)):
        left = some if len(some) == 1 else tuple(shared.get(one.stream, ()))
        found[n] = number[left[0] if len(left) == 1 else "collectives"]
    return found


# ---------------------------------------------------------------- a trace


@dataclass(frozen=True, eq=False)
class Timeline:
    """The trace of one rank; two are equal only when they are the same object."""

    where: str
    rank: int | None
    """None: not told."""
    pieces: tuple[DeviceWork, ...]
    """By start."""
    kinds: npt.NDArray[np.int64]
    """Of the pieces, shape (N,)."""
    spans: tuple[HostSpan, ...]
    """Of the host, of the kinds :data:`IDLE`."""
    windows: Floats
    """Start and end of steps, each the next one's start, shape (S, 2)."""
    counted: bool
    """Steps are marked in the trace; false: the window is all of it."""
    on_device: bool
    """Work is a device's; false: the host's."""

    @cached_property
    def seconds(self) -> Floats:
        """By step and kind, shape (S, K); the sum of a row is the length of its window."""
        edges = np.array([(one.start, one.end) for one in self.pieces]).reshape(-1, 2)
        idle = [np.array([(one.start, one.end) for one in self.spans
                          if names().spans[kind].search(one.name)]).reshape(-1, 2)
                for kind in IDLE]
        late = _merged(self.late)
        found = np.zeros((len(self.windows), len(KINDS)))
        longest = (edges[:, 1] - edges[:, 0]).max()
        data, first, gaps = KINDS.index("dp"), KINDS.index(IDLE[0]), len(KINDS) - 1
        for row, (low, high) in enumerate(self.windows):
            here = slice(*np.searchsorted(edges[:, 0], (low - longest, high)))
            layers = [(n, edges[here][self.kinds[here] == n]) for n in range(data)]
            layers += [(first + n, _common(late, one)) for n, one in enumerate(idle)]
            layers += [(gaps, late), (data, edges[here][self.kinds[here] == data])]
            layers += [(first + n, one) for n, one in enumerate(idle)]
            covered, before = np.zeros((0, 2)), 0.0
            for n, own in layers:
                own = np.clip(own[(own[:, 1] > low) & (own[:, 0] < high)], low, high)
                covered = _merged(np.concatenate((covered, own)))
                now = float((covered[:, 1] - covered[:, 0]).sum())
                found[row, n] += max(0.0, now - before)
                before = now
            found[row, gaps] += max(0.0, high - low - before)
        return found

    @cached_property
    def late(self) -> Floats:
        """Times from the end of a kernel to the launch of the next one, shape (n, 2)."""
        work = [self.pieces[n] for n in np.flatnonzero(self.kinds <= KINDS.index("update"))]
        ends = np.maximum.accumulate(np.array([one.end for one in work]))
        asked = np.array([np.nan if one.launched is None else min(one.launched, one.start)
                          for one in work])
        found = np.stack((ends[:-1], asked[1:]), axis=1) if len(work) else np.zeros((0, 2))
        return found[found[:, 1] > found[:, 0]]

    @property
    def lengths(self) -> Floats:
        """Seconds of each window, shape (S,)."""
        return self.windows[:, 1] - self.windows[:, 0]

    def largest(self, kinds: Iterable[str], most: int = 3) -> list[tuple[str, int, float]]:
        """TraceNames of the longest work of some kinds: calls and seconds in all windows."""
        wanted = [KINDS.index(kind) for kind in kinds]
        found: dict[str, tuple[int, float]] = {}
        low, high = self.windows[0, 0], self.windows[-1, 1]
        for n in np.flatnonzero(np.isin(self.kinds, wanted)):
            one = self.pieces[n]
            if low <= one.start < high:
                calls, seconds = found.get(one.name, (0, 0.0))
                found[one.name] = calls + 1, seconds + one.end - one.start
        ranked = sorted(found.items(), key=lambda item: -item[1][1])[:most]
        return [(shorten(name, 48)[1:-1], *rest) for name, rest in ranked]

    @property
    def late_share(self) -> float:
        """Share of the gaps in which the host had not launched the next kernel."""
        low, high = self.windows[0, 0], self.windows[-1, 1]
        own = np.clip(self.late, low, high)
        gaps = float(self.seconds[:, -1].sum())
        return min(1.0, float((own[:, 1] - own[:, 0]).sum()) / gaps) if gaps else 0.0


def _common(one: Floats, other: Floats) -> Floats:
    """What the intervals of both share; ``other`` has few."""
    parts = [np.clip(one[(one[:, 1] > low) & (one[:, 0] < high)], low, high)
             for low, high in other]
    return np.concatenate((np.zeros((0, 2)), *parts))


def _merged(edges: Floats) -> Floats:
    """The union of intervals, shape (n, 2), by start."""
    if len(edges) < 2:
        return edges
    edges = edges[np.argsort(edges[:, 0], kind="stable")]
    ends = np.maximum.accumulate(edges[:, 1])
    first = np.concatenate(([True], edges[1:, 0] > ends[:-1]))
    return np.stack((edges[first, 0], ends[np.append(first[1:], True)]), axis=1)


def timeline(
    where: str, rank: int | None, pieces: Iterable[DeviceWork], spans: Iterable[HostSpan],
    degrees: PlanDegrees, on_device: bool = True,
) -> Timeline:
    """A trace in order, with its steps.

    Steps are the spans that mark them, else those between the ends of two optimizers; a step of the
    device lasts from the first work that the host asked for within its span to that of the next.
    Without either the whole trace is one window.

    Raises
    ------
    InputError : it holds no work, or too much.
    """
    work = sorted(pieces, key=lambda one: one.start)
    if not work or max(one.end for one in work) <= work[0].start:
        raise InputError(f"{where}: got no kernel and no operator with a time; needed: a trace of "
                         "training steps")
    if len(work) > MOST_WORK:
        raise InputError(f"{where}: got {len(work):,} kernels; allowed: {MOST_WORK:,}, a trace of "
                         "fewer steps")
    own = sorted(spans, key=lambda one: one.start)
    known = names()
    marks = [one.start for one in own if known.steps.search(one.name)]
    stop = max((one.end for one in own if known.steps.search(one.name)), default=None)
    if not marks:
        ends = [one.end for one in own if known.optimizers.search(one.name)]
        marks, stop = ends[:-1], ends[-1] if len(ends) > 1 else None
    kept = tuple(one for one in own if any(known.spans[kind].search(one.name) for kind in IDLE))
    kinds = kinds_of(work, degrees)
    asked = np.array([one.start if one.launched is None else one.launched for one in work])
    for one in own:
        if known.optimizers.search(one.name):
            kinds[(asked >= one.start) & (asked < one.end) & (kinds < len(COMPUTING))] = (
                KINDS.index("update"))
    return Timeline(where, rank, tuple(work), kinds, kept, _windows(work, asked, marks, stop),
                    bool(marks), on_device)


def _windows(
    work: Sequence[DeviceWork], asked: Floats, marks: Sequence[float], stop: float | None
) -> Floats:
    """Windows of the steps that begin at some moments of the host; the last one ends at ``stop``.

    A device follows its host later: a step ends where the first work of the next one begins.
    """
    last = max(one.end for one in work)
    if not marks or stop is None:
        return np.array([[work[0].start, last]])
    order = np.argsort(asked, kind="stable")
    starts = np.array([one.start for one in work])[order]
    firsts = np.searchsorted(asked[order], [*marks, stop])
    before = max((work[n].end for n in order[:firsts[0]]), default=marks[0])
    begun = [float(starts[n:after].min()) for n, after in pairwise((*firsts, len(starts)))
             if n < len(starts) and n < after]
    if begun and before <= marks[0]:
        begun[0] = marks[0]  # the device was idle
    if firsts[-1] >= len(starts):  # the trace ends with the step
        begun.append(max(last, stop))
    edges = np.maximum.accumulate(np.array(begun[:MOST_STEPS + 1]))
    found = np.stack((edges[:-1], edges[1:]), axis=1)
    found = found[found[:, 1] > found[:, 0]]
    return found if len(found) else np.array([[work[0].start, last]])
