"""Memory snapshots of PyTorch: bytes of a device by kind, at the most.

Format: torch@v2.13 torch/cuda/memory.py:1027 (``_snapshot``: segments with blocks, device_traces)
and :1129 (``_dump_snapshot``, a pickle); torch/csrc/cuda/memory_snapshot.cpp writes the same;
torch/cuda/_memory_viz.py:577 adds a ``category`` to entries. Whose an allocation is, its frames
tell (``causes.yaml``), where it has any: threads of autograd have none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nest.errors import InputError
from nest.inputs.files import read_bytes
from nest.measured.diagnosis.pickled import loads
from nest.measured.diagnosis.timeline import names, rank_in
from nest.units import shorten

LARGEST = 2**28
"""Bytes of a snapshot (chosen)."""
KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers")
UNTOLD = "untold"
_LIVE = ("active_allocated", "active_awaiting_free", "active_pending_free")
_FRAMES = 40
"""Innermost frames that are looked at."""


class Refused(NamedTuple):
    """A request that ran out of memory."""

    asked: float
    free: float
    """Bytes of the device that were free."""


@dataclass(frozen=True)
class Snapshot:
    """What an allocator held of one device."""

    where: str
    rank: int | None
    reserved: float
    """Bytes, now."""
    allocated: float
    """Bytes at the most, while it was recorded and now."""
    kinds: Mapping[str, float]
    """These by kind; UNTOLD: no frame tells."""
    entries: int
    """Recorded actions; 0: the peak is that of now."""
    refused: tuple[Refused, ...]


class _Block(NamedTuple):
    size: float
    kind: str


def read(path: str | os.PathLike[str]) -> Snapshot:
    """The snapshot of a rank; of several devices, the one that holds most.

    Raises
    ------
    InputError : it cannot be read, holds other than plain values, or is no snapshot.
    """
    where = shorten(os.fspath(path), 300)[1:-1]
    data = read_bytes(path, LARGEST)
    if data.startswith(b"PK\x03\x04"):
        raise InputError(f"{where}: is a zip file, as torch.save writes; allowed: what "
                         "torch.cuda.memory._dump_snapshot writes")
    found = loads(data, where)
    segments = found.get("segments") if isinstance(found, dict) else None
    if not isinstance(segments, list):
        raise InputError(f"{where}: segments: got {shorten(segments)}; allowed: a list, as "
                         "torch.cuda.memory._dump_snapshot writes it")
    reserved: dict[int, float] = {}
    blocks: dict[int, dict[int, _Block]] = {}
    for n, one in enumerate(segments):
        place = f"{where}: segments[{n}]"
        device, size = _whole(one, "device", place, 0), _whole(one, "total_size", place)
        reserved[device] = reserved.get(device, 0.0) + size
        _live(one, place, blocks.setdefault(device, {}))
    if not reserved:
        raise InputError(f"{where}: got no segment; needed: a snapshot of a device in use "
                         "(torch.cuda.memory._record_memory_history() before)")
    device = max(reserved, key=lambda n: reserved[n])
    traces = found.get("device_traces")
    trace = traces[device] if isinstance(traces, list) and device < len(traces) else []
    if not isinstance(trace, list):
        raise InputError(f"{where}: device_traces[{device}]: got {shorten(trace)}; allowed: a list")
    kinds, refused = _peak(blocks[device], trace, f"{where}: device_traces[{device}]")
    return Snapshot(where, rank_in(path), reserved[device], sum(kinds.values()), kinds, len(trace),
                    tuple(refused))


def _whole(one: Any, name: str, place: str, default: int | None = None) -> int:
    value = one.get(name, default) if isinstance(one, dict) else None
    if type(value) is not int or not 0 <= value < 2**62:
        raise InputError(f"{place}: {name}: got {shorten(value)}; allowed: a whole number from 0 "
                         "on")
    return value


def _live(segment: Mapping[str, Any], place: str, into: dict[int, _Block]) -> None:
    """Blocks in use by address."""
    blocks = segment.get("blocks")
    if not isinstance(blocks, list):
        raise InputError(f"{place}: blocks: got {shorten(blocks)}; allowed: a list")
    at = _whole(segment, "address", place, 0)
    for n, one in enumerate(blocks):
        size = _whole(one, "size", f"{place}.blocks[{n}]")
        if one.get("state") in _LIVE:
            into[_whole(one, "address", f"{place}.blocks[{n}]", at)] = _Block(size, _kind(one, {}))
        at += size


def _peak(live: Mapping[int, _Block], trace: Sequence[Any], place: str
          ) -> tuple[dict[str, float], list[Refused]]:
    """Bytes by kind when most were allocated, and requests that ran out."""
    known: dict[int, str] = {}
    begun = dict(live)
    for n in range(len(trace) - 1, -1, -1):  # back to what was there at first
        action, address, size = _entry(trace[n], f"{place}[{n}]")
        if action == "alloc":
            begun.pop(address, None)
        elif action == "free_completed":
            begun[address] = _Block(size, UNTOLD)
    held = dict.fromkeys((*KINDS, UNTOLD), 0.0)
    for block in begun.values():
        held[block.kind] += block.size
    total = sum(held.values())
    most, best, refused = total, dict(held), []
    for n, one in enumerate(trace):
        action, address, size = _entry(one, f"{place}[{n}]")
        if action == "alloc":
            block = begun[address] = _Block(size, _kind(one, known))
            held[block.kind] += size
            total += size
        elif action == "free_completed" and (gone := begun.pop(address, None)):
            held[gone.kind] -= gone.size
            total -= gone.size
        elif action == "oom":
            refused.append(Refused(size, _whole(one, "device_free", f"{place}[{n}]", 0)))
        if total > most:
            most, best = total, dict(held)
    return best, refused


def _entry(one: Any, place: str) -> tuple[str, int, int]:
    action = one.get("action") if isinstance(one, dict) else None
    if not isinstance(action, str):
        raise InputError(f"{place}: action: got {shorten(action)}; allowed: a text")
    if action not in ("alloc", "free_completed", "oom"):
        return action, 0, 0
    return action, _whole(one, "addr", place, 0), _whole(one, "size", place)


def _kind(one: Mapping[str, Any], known: dict[int, str]) -> str:
    """The kind of an allocation, by its category or its frames, the innermost first."""
    table, category = names().memory, one.get("category")
    if isinstance(category, str):
        return _first(table, category.upper()[:40])
    frames = one.get("frames")
    if not isinstance(frames, list):
        return UNTOLD
    found = known.get(id(frames))
    if found is None:
        found = UNTOLD
        for frame in frames[:_FRAMES]:
            if isinstance(frame, dict):
                found = _first(table, f"{str(frame.get('filename'))[-200:]}:"
                               f"{str(frame.get('name'))[:100]}")
            if found != UNTOLD:
                break
        known[id(frames)] = found
    return found


def _first(table: Mapping[str, Any], text: str) -> str:
    return next((kind for kind, form in table.items() if form.search(text)), UNTOLD)
