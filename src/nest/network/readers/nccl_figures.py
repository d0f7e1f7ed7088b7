"""Bandwidths and latencies that NCCL's topology file does not contain.

Bandwidths: NVIDIA/nccl, src/graph/topo.h and topo.cc, commit 069a3d4f95, in GB/s there. Latencies
of a step of a ring (simple protocol): src/graph/tuning.cc, hwLat; a path has two ends, so a link
at the end of a path carries half.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element

from nest.units import shorten

LOCAL_BANDWIDTH = 5000e9
"""Bytes/s inside a slot, LOC_BW."""
NVLINK_LATENCY = 3.4e-6
"""Seconds of an NVLink from GPU to GPU."""
SWITCH_SHARE = 0.5
"""Share of that on the link from a GPU to a switch."""
PCI_LATENCY = 2.85e-6
"""Seconds of the link of a slot: half of 5.7 us."""
NET_LATENCY = 7e-6
"""Seconds of the port of an adapter: half of 14 us."""

_NVLINK = ((100, 40.1e9), (90, 20.6e9), (87, 20.0e9), (86, 12.0e9), (70, 20.0e9), (60, 18.0e9))
_OTHER_NVLINK = 20.0e9
_LANE = {"2.5": 15, "5": 30, "5.0": 30, "8": 60, "8.0": 60, "16": 120, "16.0": 120, "32": 240,
         "32.0": 240, "64.0": 480}
_UNKNOWN_LANE = 60  # what NCCL takes where the system does not say
_USUAL_WIDTH = 16
_SLOWEST_NET = 10_000  # Mb/s, where a file says -1 or nothing
_VENDOR = "0x10de"
_DEVICES = {
    "0x1db5": "v100-sxm2-32gb",
    "0x20b0": "a100-sxm-40gb",
    "0x20b2": "a100-sxm-80gb",
    "0x2330": "h100-sxm",
    "0x2335": "h200-sxm",
    "0x2324": "h800",
    "0x2329": "h20",
    "0x2684": "rtx-4090",
    "0x26b9": "l40s",
    "0x2901": "b200-sxm",
    "0x2941": "gb200",
    "0x31c2": "gb300",
}
"""Types by the device id of PCI (pci-ids.ucw.cz, vendor 10de)."""


def nvlink_bandwidth(compute_capability: int) -> float:
    """Bytes/s of one NVLink (ncclTopoNVLinkBw).

    Parameters
    ----------
    compute_capability : such as 90.
    """
    found = (rate for least, rate in _NVLINK if compute_capability >= least)
    return next(found, _OTHER_NVLINK)


def pci_bandwidth(element: Element) -> float:
    """Bytes/s of a slot by its ``link_speed`` and ``link_width`` (ncclTopoAddPci).

    Raises
    ------
    ValueError : a width that is no whole number from 0 to 1024.
    """
    text = element.get("link_width", "0")
    width = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else -1
    if not 0 <= width <= 1024:
        raise ValueError(f"link_width: got {shorten(text)}; allowed: 0 to 1024")
    speed = element.get("link_speed", "").partition(" GT/s")[0]
    return (width or _USUAL_WIDTH) * _LANE.get(speed, _UNKNOWN_LANE) / 80 * 1e9


def net_bandwidth(speed: int) -> float:
    """Bytes/s of an adapter's port by its ``speed`` in Mb/s (ncclTopoAddNet)."""
    return (speed if speed > 0 else _SLOWEST_NET) / 8000 * 1e9


def cpu_bandwidth(element: Element) -> float:
    """Bytes/s from one CPU to another (ncclTopoGetInterCpuBw).

    Raises
    ------
    ValueError : a family or model that is no number.
    """
    architecture, vendor = element.get("arch", ""), element.get("vendor", "")
    numbers = []
    for key in ("familyid", "modelid"):
        text = element.get(key, "0")
        try:
            numbers.append(int(text, 0))
        except ValueError:
            raise ValueError(f"{key}: got {shorten(text)}; allowed: a whole number") from None
    family, model = numbers
    if architecture == "ppc64":
        return 32e9
    if architecture == "arm64":
        return 6e9
    if architecture == "x86_64" and vendor == "GenuineIntel":
        if family != 6 or model < 0x55:
            return 6e9
        newest = model >= 0xCF or model in (0xAD, 0xAE, 0xAF)
        return 40e9 if newest else 22e9 if model >= 0x8F else 10e9
    if architecture == "x86_64" and vendor == "AuthenticAMD":
        return 32e9 if family in (0xBF, 26) else 24e9 if family in (0xAF, 25) else 16e9
    if architecture == "x86_64" and vendor in ("CentaurHauls", "  Shanghai  "):
        return 9e9 if (family, model) == (7, 0x5B) else 6e9
    return LOCAL_BANDWIDTH


def device_name(element: Element) -> str:
    """Name in the catalog of the GPU in a slot.

    Raises
    ------
    ValueError : a GPU that is not in the table.
    """
    vendor, number = element.get("vendor", "").lower(), element.get("device", "").lower()
    if vendor != _VENDOR or number not in _DEVICES:
        given = f"vendor {shorten(vendor)}, device {shorten(number)}"
        raise ValueError(f"got {given}; allowed: {', '.join(_DEVICES)} of {_VENDOR}, or a type "
                         "of device given besides: --device with a name from `nest list devices`")
    return _DEVICES[number]
