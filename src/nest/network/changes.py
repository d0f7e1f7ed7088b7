"""Failed and slow parts of a network: the network without them, or with lower rates.

Parts are named as on the command line, several with commas between them:

    NAME            a node, and all nodes whose names begin with "NAME/"
    NAME3..7        the same for each of NAME3 to NAME7; also NAME3..NAME7
    link:A-B        the link between two nodes, both directions

`degrade` expects "=FACTOR" after each part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from nest.errors import InputError, did_you_mean
from nest.inputs import Device
from nest.network.topology import MOST_NODES, Flags, Floats, Topology
from nest.units import shorten

_RANGE = re.compile(r"(.*?)(\d{1,9})\.\.(.*?)(\d{1,9})", re.ASCII | re.DOTALL)
LINK = "link:"
"""Start of a part that is a link."""
MOST_STEMS = 6
"""Kinds of names that the message about an unknown name lists."""
_NUMBERED = re.compile(r"(.*?)(\d{1,9})", re.ASCII | re.DOTALL)
_FACTOR = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def without(topology: Topology, text: str) -> Topology:
    """The network without some nodes and links; switches that lead to no device are removed, too.

    Parameters
    ----------
    topology : the network.
    text : parts, such as ``node17,gpu8..15,link:sw3-sw9``.

    Raises
    ------
    InputError : no such part, or the rest is disconnected or has no device.
    """
    where = "without"
    kept_V = np.ones(len(topology.nodes), dtype=np.bool_)
    kept_E = np.ones(len(topology.source_E), dtype=np.bool_)
    for part in split(text, where):
        if part.startswith(LINK):
            kept_E &= ~_link(topology, part, where)
        else:
            kept_V &= ~_nodes(topology, part, where)
    left = topology.part(kept_V, kept_E)
    labels = left.parts()
    used = np.isin(labels, labels[left.device_N])
    left = left.part(used, np.ones(len(left.source_E), dtype=np.bool_))
    left.check_connected(f"{where} {shorten(text, 200)[1:-1]}")
    return left


def degrade(topology: Topology, text: str) -> Topology:
    """The network with some slower parts.

    Parameters
    ----------
    topology : the network.
    text : parts with factors, such as ``link:sw3-sw9=0.5,gpu8..15=0.8``. A link gets this share of
        its bandwidth; a switch affects all its links; a device gets this share of its FLOP/s and
        memory bandwidth.

    Raises
    ------
    InputError : no such part, or a factor that is not above 0 and at most 1.
    """
    where = "degrade"
    bandwidth_E = topology.bandwidth_E.copy()
    factor_V = np.ones(len(topology.nodes))
    for part in split(text, where):
        name, _, given = part.rpartition("=")
        given = given.strip()  # of more kinds of white space than float() takes off
        factor = float(given) if _FACTOR.fullmatch(given) and len(given) < 30 else 0.0
        if not name or not 0 < factor <= 1:
            allowed = "PART=FACTOR with a factor above 0 and at most 1"
            raise InputError(f"{where}: got {shorten(part)}; allowed: {allowed}")
        if name.startswith(LINK):
            bandwidth_E[_link(topology, name, where)] *= factor
        else:
            chosen = _nodes(topology, name.strip(), where)
            factor_V[chosen] *= factor
            switches = chosen & (topology.type_V < 0)
            bandwidth_E[switches[topology.source_E] | switches[topology.target_E]] *= factor
    return _slower(topology, bandwidth_E, factor_V)


def _slower(
    topology: Topology, bandwidth_E: Floats, factor_V: Floats
) -> Topology:
    types: dict[tuple[int, float], int] = {}
    type_V = topology.type_V.copy()
    for node in topology.device_N:
        key = (int(type_V[node]), float(factor_V[node]))
        type_V[node] = types.setdefault(key, len(types))
    return Topology(
        name=topology.name,
        nodes=topology.nodes,
        types=tuple(_slower_device(topology.types[number], factor) for number, factor in types),
        type_V=type_V,
        source_E=topology.source_E,
        target_E=topology.target_E,
        bandwidth_E=bandwidth_E,
        latency_E=topology.latency_E,
        base_time_V=topology.base_time_V,
        ramp_V=topology.ramp_V,
        reduces_V=topology.reduces_V,
    )


def _slower_device(device: Device, factor: float) -> Device:
    if factor == 1.0:
        return device
    return device.replace(
        name=f"{device.name} x {factor:.6g}",
        memory_bandwidth=device.memory_bandwidth * factor,
        peak_flops={dtype: rate * factor for dtype, rate in device.peak_flops.items()},
    )


def split(text: str, where: str) -> list[str]:
    """The parts of a text, with commas between them.

    Raises
    ------
    InputError : an empty one.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        allowed = "names of nodes, ranges (gpu8..15) or links (link:A-B), with commas between"
        raise InputError(f"{where}: got {shorten(text)}; allowed: {allowed}")
    return parts


def _nodes(topology: Topology, part: str, where: str) -> Flags:
    """Nodes of one part of the text, bool of shape (V,)."""
    found = np.zeros(len(topology.nodes), dtype=np.bool_)
    found[numbered(part, lambda name: _named(topology, name),
                   lambda name, of: _unknown(topology, name, of, where), where)] = True
    return found


def numbered(
    part: str, named: Callable[[str], Sequence[int]],
    unknown: Callable[[str, str], InputError], where: str,
) -> list[int]:
    """Numbers of what a name or a range of names stands for.

    Parameters
    ----------
    part : such as ``node17`` or ``gpu8..15``.
    named : numbers of a name; none of an unknown one.
    unknown : the error of an unknown name in a part.
    where : start of messages.

    Raises
    ------
    InputError : an unknown name, or a range that falls or is too long.
    """
    names = [part]
    match = _RANGE.fullmatch(part)
    beginnings = ("", match[1], match[1].rpartition("/")[2]) if match else ()
    if match and match[3] in beginnings and not named(part):
        first, last = int(match[2]), int(match[4])
        if not first <= last < first + MOST_NODES:
            problem = f"got {shorten(part)}; allowed: a range that does not fall"
            raise InputError(f"{where}: {problem}")
        names = [f"{match[1]}{number}" for number in range(first, last + 1)]
    found: list[int] = []
    for name in names:
        chosen = named(name)
        if not len(chosen):
            raise unknown(name, part)
        found += chosen
    return found


def _named(topology: Topology, name: str) -> list[int]:
    own = topology.index.get(name)
    return [*(() if own is None else (own,)), *topology.below.get(name, ())]


def unknown_part(
    where: str, name: str, part: str, groups: Sequence[str], devices: Sequence[str]
) -> InputError:
    """The error of a name that no part of a network has.

    Parameters
    ----------
    where : start of the message.
    name, part : the name, and the part of the text that it is in.
    groups, devices : names of nodes and groups of them, and of devices.
    """
    ranges: dict[str, tuple[int, int]] = {}
    for known in (*groups, *(one for one in devices if "/" not in one)):
        match = _NUMBERED.fullmatch(known)
        stem, number = (match[1], int(match[2])) if match else (known, -1)
        low, high = ranges.get(stem, (number, number))
        ranges[stem] = min(low, number), max(high, number)
    shown = [stem if high < 0 else f"{stem}{low}" if low == high else f"{stem}{low} to {stem}{high}"
             for stem, (low, high) in ranges.items() if "/" not in stem]
    shown = [*shown[:MOST_STEMS], *(["..."] if len(shown) > MOST_STEMS else [])]
    shown += [f"devices such as {one}" for one in devices[:1] if "/" in one]
    near = did_you_mean(name, [*groups, *devices[:10_000]])
    inside = "" if name == part else f" in {shorten(part)}"
    return InputError(f"{where}: got {shorten(name)}{inside}; {near}allowed: {', '.join(shown)}, "
                      "or ranges with ..")


def _unknown(topology: Topology, name: str, part: str, where: str) -> InputError:
    devices = [topology.nodes[number] for number in topology.device_N]
    known = {*devices}
    groups = [one for one in (*topology.below, *topology.nodes) if one not in known]
    return unknown_part(where, name, part, list(dict.fromkeys(groups)), devices)


def _link(topology: Topology, part: str, where: str) -> Flags:
    """Links of one part of the text, both directions, bool of shape (E,)."""
    text = part[len(LINK) :].strip()
    cuts = [place for place, letter in enumerate(text) if letter == "-"]
    pairs = [(text[:cut].strip(), text[cut + 1 :].strip()) for cut in cuts]
    known = [pair for pair in pairs if all(name in topology.index for name in pair)]
    if not known:
        if len(pairs) == 1:
            missing = next(name for name in pairs[0] if name not in topology.index)
            raise _unknown(topology, missing, part, where)
        allowed = "link:A-B with the names of two nodes"
        raise InputError(f"{where}: got {shorten(part)}; allowed: {allowed}")
    ends = np.array([[topology.index[name] for name in pair] for pair in known], dtype=np.int64)
    there = topology.links(ends[:, 0], ends[:, 1])
    back = topology.links(ends[:, 1], ends[:, 0])
    found = np.zeros(len(topology.source_E), dtype=np.bool_)
    found[there[there >= 0]] = True
    found[back[back >= 0]] = True
    if not found.any():
        a, b = (shorten(name) for name in known[0])
        raise InputError(f"{where}: got no link between {a} and {b}; allowed: a link")
    return found
