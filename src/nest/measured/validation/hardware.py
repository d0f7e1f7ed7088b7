"""From a row's GPU and network to a cluster."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

from nest.errors import InputError
from nest.inputs import catalog
from nest.inputs.cluster import Cluster, Level
from nest.inputs.device import Device, resolve_device
from nest.inputs.loading import load_cluster, load_device
from nest.units import shorten

PROVISIONAL: dict[str, dict[str, Any]] = {
    "h100-sxm-hbm2e-96gb": {
        "base": "h100-sxm", "memory": "96 GB", "memory_bandwidth": "2.4 TB/s",
        "attention_fraction": 0.456,
        "gemm": {
            "default": {"peak_fraction": 0.619, "m_half": 58, "n_half": 58, "k_half": 138,
                        "decline": 0.036},
            "fp8": {"peak_fraction": 0.618, "m_half": 111, "n_half": 111, "k_half": 406,
                    "decline": 0.037, "cast_bytes": 8.0},
        },
        "source": "96 GB HBM2e, 2.4 TB/s, 500 W: pytorch/torchtitan "
                  "benchmarks/llama3_h100_202412_torchtitan.md; gemm: 0.72 of h100-sxm's, the "
                  "median of forward and backward of 16384 x 8192 x 7168 and 16384 x 3584 x 8192 "
                  "in bf16 and fp8 (0.71 to 0.75; smaller ones 0.50 to 0.69; pytorch/ao pull "
                  "request 2185, on what is taken to be the same machine: H100 of 95.0 GiB in pull "
                  "requests 1718 and 1802); attention_fraction: 0.83 of h100-sxm's, the best of "
                  "0.72, 0.83, 0.91 and 1 for 11 runs of torchtitan; all else as h100-sxm, assumed",
    },
    "gh200-96gb": {
        "base": "h100-sxm", "memory": "96 GB", "memory_bandwidth": "4 TB/s",
        "source": "96 GB HBM3, 4 TB/s: stas00/ml-engineering compute/accelerator/README.md; all "
                  "else as h100-sxm (same chip), assumed",
    },
}
"""Devices of measured runs that the catalog lacks; the catalog takes precedence."""

_DEVICES = (
    # pattern of the cell, of the memory in GB (empty: any), device
    (r"a100", r"40", "a100-sxm-40gb"),
    (r"a100", r"", "a100-sxm-80gb"),
    (r"gh200", r"", "gh200-96gb"),
    (r"h100.*hbm2e", r"", "h100-sxm-hbm2e-96gb"),
    (r"h100", r"", "h100-sxm"),
    (r"h200", r"", "h200-sxm"),
    (r"gb300", r"", "gb300"),
    (r"gb200", r"", "gb200"),
    (r"b300", r"", "b300"),
    (r"b200", r"", "b200-sxm"),
    (r"v100", r"", "v100-sxm2-32gb"),
    (r"h800", r"", "h800"),
    (r"h20\b", r"", "h20"),
    (r"mi300x", r"", "mi300x"),
    (r"mi325x", r"", "mi325x"),
    (r"mi350x", r"", "mi350x"),
    (r"mi355x", r"", "mi355x"),
)
_NETWORKS = (
    # pattern of the device, catalog cluster that has its links, Gb/s of network a device
    (r"a100|v100", "dgx-a100", 200.0),
    (r"gh200", "dgx-h100", 200.0),  # Alps: one 200 Gb/s Slingshot adapter for each GH200
    (r"h200", "dgx-h200", 400.0),
    (r"h100|h800|h20|mi3", "dgx-h100", 400.0),
    (r"gb300", "gb300-nvl72", 800.0),
    (r"gb200", "gb200-nvl72", 400.0),
    (r"b300", "dgx-b300", 800.0),
    (r"b200", "dgx-b200", 400.0),
)
"""Links of a node and latencies come from the catalog; so does the network of a row that does not
state it, at the usual adapters of the machine."""

RACK = 72  # most devices of one NVLink domain of an NVL72 rack


class Shape(NamedTuple):
    """A cluster without its device."""

    device: str
    """Name in the catalog or in ``PROVISIONAL``."""
    levels: tuple[Level, ...]
    remark: str
    """Missing facts about the network; empty: none."""


@cache
def device_name(gpu: str, memory_gb: str = "") -> str | None:
    """The device of a cell, by its name in the catalog or in sources.

    Parameters
    ----------
    gpu : such as `H100-SXM` or `h100-sxm`.
    memory_gb : its memory as text, to distinguish variants; may be empty.
    """
    known = catalog.find("devices", gpu)
    if known is not None or gpu in PROVISIONAL:
        return known or gpu
    size = memory_gb.split(".")[0]
    return next((name for mark, memory, name in _DEVICES
                 if re.search(mark, gpu.lower()) and (not memory or memory == size)), None)


@cache
def device(name: str) -> Device:
    """A device by name: of the catalog, else provisional."""
    if catalog.find("devices", name) is not None:
        return load_device(name)
    return Device.parse(resolve_device({**PROVISIONAL[name], "name": name}), f"device {name}")


def shape(
    gpu: str, memory_gb: str, devices: int, node: int, link: str, network_gbps: float | None
) -> Shape:
    """Levels of the network that a run's devices span.

    A node, or the part of an NVLink rack that the run uses, is level 0; all of them level 1,
    with the figures of the catalog's leaf if all nodes fit below one, else of its spine.

    Parameters
    ----------
    devices, node : of the run, of a node.
    link : the cell of the link inside a node.
    network_gbps : Gb/s of network per device and direction; None: not known.

    Raises
    ------
    InputError : the GPU is unknown, or the devices do not fill the nodes.
    """
    name = device_name(gpu, memory_gb)
    if name is None:
        raise InputError(f"gpu: got {shorten(gpu)}; allowed: a name from `nest list devices`")
    found = next(((cluster, speed) for mark, cluster, speed in _NETWORKS
                  if re.search(mark, name)), None)
    if found is None:
        raise InputError(f"no network is known for gpu {name}")
    template, usual = found
    like = _template(template)
    remarks = []
    inner, rack = node, _rack(name, link)
    if rack:
        inner = _of_a_rack(devices, rack)
        if "NVL" not in link.upper():
            remarks.append(f"link not stated: an NVL{rack} rack, usual for {name}")
        if devices > inner < rack:
            remarks.append(f"{devices // inner} racks of {rack}, {inner} devices of each, inferred")
    if devices <= inner:
        return Shape(name, (like.levels[0].replace(size=devices),), "; ".join(remarks))
    if devices % inner:
        raise InputError(f"n_gpus: got {devices}; allowed: whole nodes of {inner}")
    nodes = devices // inner
    outer = like.levels[1] if nodes <= like.levels[1].size else like.levels[-1]
    speed = usual if network_gbps is None else network_gbps
    # A share of oversubscription would refer to a level that is not there.
    outer = Level(name="network", size=nodes, bandwidth=speed * 1e9 / 8, latency=outer.latency,
                  efficiency=outer.efficiency, base_time=outer.base_time, ramp=outer.ramp,
                  source=outer.source)
    if network_gbps is None:
        remarks.append(f"network not stated: {usual:.0f} Gb/s a device, usual for {name}")
    return Shape(name, (like.levels[0].replace(size=inner), outer), "; ".join(remarks))


def _rack(name: str, link: str) -> int:
    """Devices of an NVLink domain of several trays; 0: there is none.

    GB200 and GB300 are those of NVL72 racks unless the link names another domain, as NVL4.
    """
    stated = re.search(r"NVL(\d+)", link.upper())
    if stated and int(stated[1]) > 8:
        return int(stated[1])
    return RACK if re.match(r"gb[23]00", name) and not stated else 0


def _of_a_rack(devices: int, rack: int) -> int:
    """Devices of each rack: as few racks as hold all, equally filled."""
    racks = next(n for n in range(-(-devices // rack), devices + 1) if devices % n == 0)
    return devices // racks


@cache
def _template(name: str) -> Cluster:
    return load_cluster(name)


def cluster(found: Shape, with_device: Device) -> Cluster:
    """The cluster of a run."""
    return Cluster(name="as measured", device=with_device, levels=found.levels)
