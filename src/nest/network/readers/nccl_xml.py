"""The topology of a node as NCCL sees it (``NCCL_TOPO_DUMP_FILE``): XML.

Elements: ``system/cpu/pci/gpu/nvlink`` and ``system/cpu/pci/nic/net``, as NVIDIA/nccl reads them
in src/graph/topo.cc (ncclTopoAddCpu, ncclTopoAddPci, ncclTopoAddNvLinks, ncclTopoAddNic,
ncclTopoConnectCpus), commit 069a3d4f95. It has no bandwidths per link; these are from
src/graph/topo.h of that commit: figures that NCCL reaches, not nominal ones.

A GPU has its own slot, so that paths over PCI are always longer than over NVLink. Elements of
other names (``c2c``, ``pcilink``, ``gin``, ``rma``) are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from nest.inputs import Device
from nest.network.draft import Draft
from nest.network.readers.entries import DeviceTypes
from nest.network.readers.nccl_figures import (
    LOCAL_BANDWIDTH,
    NET_LATENCY,
    NVLINK_LATENCY,
    PCI_LATENCY,
    SWITCH_SHARE,
    cpu_bandwidth,
    device_name,
    net_bandwidth,
    nvlink_bandwidth,
    pci_bandwidth,
)
from nest.network.topology import Topology
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


def from_nccl_xml(root: Element, name: str, where: str, device: Device | None) -> Topology:
    """Topology of the ``system`` element of an NCCL topology file.

    Parameters
    ----------
    root : the element.
    name : of the topology.
    where : name of the file.
    device : type of all GPUs; None: by the PCI identity of each.

    Raises
    ------
    InputError : elements or attributes that are missing or not allowed, a bus id inside itself or
        twice, or a bad network.
    """
    draft = Draft(name, where, adds_parallel=True)
    system = _System(draft, device)
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
