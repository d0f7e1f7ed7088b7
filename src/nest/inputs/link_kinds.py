"""Kinds of link: the figures of each, and the rate that a type of device has on it.

One kind may be wider on one device than on another: an H800 has fewer lanes of NVLink 4 than an
H100.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from nest.inputs import catalog
from nest.units import parse_bandwidth

FIGURES = ("bandwidth", "latency", "efficiency", "base_time", "ramp")
"""What a level takes from its kind of link where it says nothing."""


def figures(kind: str, device: str = "") -> dict[str, Any]:
    """Figures of a kind of link (src/nest/catalog/links.yaml); empty: an unknown kind.

    Parameters
    ----------
    kind : such as ``nvlink4``.
    device : name of the type of device at its ends, whose bandwidth replaces that of the kind.
    """
    known = catalog.link_kinds().get(kind, {})
    found = {name: known[name] for name in FIGURES if name in known}
    rate = device_rate(kind, device)
    return found if rate is None else {**found, "bandwidth": rate}


def device_rate(kind: str, device: str) -> float | None:
    """Bytes/s of a type of device on a kind of link; None: the catalog does not have it.

    Parameters
    ----------
    kind : such as ``nvlink4``.
    device : name of the type, which begins as an entry of the catalog does; the longest counts.
    """
    found = _of_device(kind, device, "devices")
    return None if found is None else parse_bandwidth(found)


@cache
def rates(kind: str | None) -> frozenset[float]:
    """Bytes/s that the types of device have on a kind of link; empty: it joins other things."""
    known = {} if kind is None else catalog.link_kinds().get(kind, {}).get("devices", {})
    return frozenset(map(parse_bandwidth, known.values()))


def own_link(device: str) -> str | None:
    """The kind of link inside a node of a type of device; None: the catalog does not have it."""
    kinds = catalog.link_kinds()
    return next((kind for kind in kinds if device_rate(kind, device) is not None), None)


def port_rate(device: str) -> float | None:
    """Bytes/s of one of the links that join a type of device to its neighbours without a switch.

    None: the catalog does not have their number.
    """
    kind = own_link(device)
    ports = None if kind is None else _of_device(kind, device, "ports")
    rate = None if kind is None else device_rate(kind, device)
    return None if ports is None or rate is None else rate / ports


def _of_device(kind: str, device: str, field: str) -> Any:
    """The figure of a device whose name begins as the longest entry of a field; None: none."""
    known = catalog.link_kinds().get(kind, {}).get(field, {})
    start = max((start for start in known if device.startswith(start)), key=len, default=None)
    return None if start is None else known[start]
