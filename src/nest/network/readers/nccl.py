"""The topology of a node as NCCL sees it (``NCCL_TOPO_DUMP_FILE``): XML.

Elements: ``system/cpu/pci/gpu/nvlink`` and ``system/cpu/pci/nic/net``, as NVIDIA/nccl reads them
in src/graph/topo.cc (ncclTopoAddCpu, ncclTopoAddPci, ncclTopoAddNvLinks, ncclTopoAddNic,
ncclTopoConnectCpus), commit 069a3d4f95. It has no bandwidths per link; these are from
src/graph/topo.h and topo.cc of that commit, in GB/s there: figures that NCCL reaches, not nominal
ones. Latencies of a step of a ring (simple protocol): src/graph/tuning.cc, hwLat; a path has two
ends, so a link at the end of a path carries half.

A GPU has its own slot, so that paths over PCI are always longer than over NVLink. Elements of
other names (``c2c``, ``pcilink``, ``gin``, ``rma``) are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from nest.inputs import Device
from nest.network.readers.graphs import DeviceTypes, NetworkFile
from nest.network.topology import Draft, Topology
from nest.units import shorten

_GPU, _BRIDGE = "0x03", "0x068001"


@dataclass
class _Gpu:
    element: Element
    node: int
    cpu: int


@dataclass
class _System:
    """Results of the first pass over the elements."""

    draft: Draft
    device: Device | None
    types: DeviceTypes = field(default_factory=lambda: DeviceTypes({}, None))
    gpus: dict[tuple[str, str], _Gpu] = field(default_factory=dict)
    slots: set[tuple[str, str]] = field(default_factory=set)
    cpus: dict[str, list[tuple[int, Element]]] = field(default_factory=dict)
    cpu: int = -1
    host: str = ""
    prefix: str = ""


def from_nccl_xml(root: Element, file: NetworkFile) -> Topology:
    """Topology of the ``system`` element of an NCCL topology file; types by PCI identity if none.

    Raises
    ------
    InputError : elements or attributes that are missing or not allowed, a bus id inside itself or
        twice, or a bad network.
    """
    draft = Draft(file.name, file.where, adds_parallel=True)
    system = _System(draft, file.device)
    hosts = {cpu.get("host_hash", "") for cpu in root.findall("cpu")}
    labels = {host: f"host{n}/" if len(hosts) > 1 else "" for n, host in enumerate(sorted(hosts))}
    for element in root.findall("cpu"):
        system.host = element.get("host_hash", "")
        system.prefix = labels[system.host]
        _add_cpu(system, element)
    if not system.gpus:
        hint = "a file that NCCL has written itself (NCCL_TOPO_DUMP_FILE) has them"
        raise draft.refuse("", f"got no gpu below system/cpu/pci; allowed: at least one ({hint})")
    for (host, _), gpu in system.gpus.items():
        for link in gpu.element.findall("nvlink"):
            _add_nvlink(system, host, gpu, link)
    for cpus in system.cpus.values():
        for one, element in cpus:
            bandwidth = _checked(system, "cpu", cpu_bandwidth, element)
            for other, _ in cpus:
                if other != one:
                    draft.link(one, other, bandwidth, 0.0, "cpu")
    return draft.build()


def _whole(draft: Draft, element: Element, key: str, default: int | None = None) -> int:
    text = element.get(key)
    if text is None and default is not None:
        return default
    try:
        value = int(text or "", 0)
    except ValueError:
        value = -(2**62)
    if abs(value) > 2**60:
        place = f"{element.tag}.{key}"
        raise draft.refuse(place, f"got {shorten(text)}; allowed: a whole number")
    return value


def _checked(
    system: _System, place: str, read: Callable[[Element], float], element: Element
) -> float:
    try:
        return read(element)
    except ValueError as error:
        raise system.draft.refuse(place, str(error)) from None


def _add_cpu(system: _System, element: Element) -> None:
    number = _whole(system.draft, element, "numaid")
    system.cpu = system.draft.switch(f"{system.prefix}cpu{number}", "cpu.numaid")
    system.cpus.setdefault(system.host, []).append((system.cpu, element))
    for child in element.findall("pci"):
        _add_pci(system, child, system.cpu, ())
    for place, child in enumerate(element.findall("nic")):
        nic = system.draft.switch(f"{system.prefix}cpu{number}/nic{place}", "nic")
        system.draft.cable(system.cpu, nic, LOCAL_BANDWIDTH, 0.0, "nic")
        _add_nets(system, child, nic)


def _add_pci(system: _System, element: Element, parent: int, above: tuple[str, ...]) -> None:
    draft = system.draft
    bus = (element.get("busid") or "").lower()
    if not bus:
        raise draft.refuse("pci.busid", "missing; needed: the bus id")
    place = f"pci {shorten(bus)}"
    if bus in above:
        raise draft.refuse(place, "got the bus id inside itself; allowed: a tree without cycles")
    if (system.host, bus) in system.slots:
        raise draft.refuse(place, "got the bus id twice; allowed: once")
    system.slots.add((system.host, bus))
    bandwidth = _checked(system, place, pci_bandwidth, element)
    node = draft.switch(f"{system.prefix}pci/{bus}", place)
    children = {child.tag for child in element}
    leaf = bool(children & {"gpu", "nic"})
    draft.cable(parent, node, bandwidth, PCI_LATENCY if leaf else 0.0, place)
    for child in element:
        if child.tag == "pci":
            _add_pci(system, child, node, (*above, bus))
        elif child.tag == "nic":
            _add_nets(system, child, node)
        elif child.tag == "gpu":
            _add_gpu(system, child, element, node, bus)


def _add_gpu(system: _System, element: Element, slot: Element, node: int, bus: str) -> None:
    draft = system.draft
    name = f"{system.prefix}gpu{_whole(draft, element, 'dev')}"
    try:
        device = system.device or system.types.get(device_name(slot))
    except ValueError as error:
        raise draft.refuse(f"{name}.device", str(error)) from None
    gpu = draft.device(name, device, f"pci {shorten(bus)}.gpu")
    draft.cable(gpu, node, LOCAL_BANDWIDTH, 0.0, name)
    system.gpus.setdefault((system.host, bus), _Gpu(element, gpu, system.cpu))


def _add_nets(system: _System, element: Element, nic: int) -> None:
    draft = system.draft
    for net in element.findall("net"):
        if net.get("dev") is None:
            continue  # as NCCL does
        name = f"{system.prefix}net{_whole(draft, net, 'dev')}"
        bandwidth = net_bandwidth(_whole(draft, net, "speed", 0))
        text = net.get("latency", "0")
        try:
            extra = float(text) * 1e-6
        except ValueError:
            extra = -1.0
        if not (0 <= extra <= 1 and math.isfinite(extra)):
            problem = f"got {shorten(text)}; allowed: microseconds, 0 to 1e6"
            raise draft.refuse(f"{name}.latency", problem)
        draft.cable(nic, draft.switch(name, "net.dev"), bandwidth, NET_LATENCY + extra, name)


def _add_nvlink(system: _System, host: str, gpu: _Gpu, element: Element) -> None:
    draft = system.draft
    count = _whole(draft, element, "count")
    if not 1 <= count <= 1000:
        raise draft.refuse("nvlink.count", f"got {count}; allowed: 1 to 1000")
    bandwidth = count * nvlink_bandwidth(_whole(draft, gpu.element, "sm"))
    target = (element.get("target") or "").lower()
    known = system.gpus.get((host, target))
    link = element.get("tclass", _GPU if known else "")
    if not link:
        problem = "missing; needed: the class of the target, where it is no GPU of the file"
        raise draft.refuse("nvlink.tclass", problem)
    if link.startswith(_GPU):
        if known is not None:  # else it is not visible, and NCCL leaves the link out too
            draft.link(gpu.node, known.node, bandwidth, NVLINK_LATENCY, "nvlink")
    elif link == _BRIDGE:
        draft.cable(gpu.node, gpu.cpu, bandwidth, NVLINK_LATENCY * SWITCH_SHARE, "nvlink")
    else:  # NCCL takes all NVSwitches together for one
        switch = draft.find("nvswitch")
        if switch is None:
            switch = draft.switch("nvswitch", "nvlink")
        draft.cable(gpu.node, switch, bandwidth, NVLINK_LATENCY * SWITCH_SHARE, "nvlink")


# ---------------------------------------------------------------- nccl figures


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
