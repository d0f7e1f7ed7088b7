"""The cluster and the software stack of a measured run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from nest.errors import InputError
from nest.inputs import catalog
from nest.inputs.cluster import Cluster, Level
from nest.inputs.device import Device, resolve_device
from nest.inputs.job import UNKNOWN_STACK, Stack, resolve_stack
from nest.inputs.loading import load_cluster, load_device, load_stack
from nest.measured.validation.cells import tables
from nest.units import shorten

RACK = 72  # most devices of one NVLink domain of an NVL72 rack


HOST = 8
"""Most TPUs of a host; more of a node are those of a slice."""


class Shape(NamedTuple):
    """A cluster without its device."""

    device: str
    """Name in the catalog or in tables.yaml."""
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
    if known is not None or gpu in tables()["devices"]:
        return known or gpu
    size = memory_gb.split(".")[0]
    return next((name for mark, memory, name in tables()["device_patterns"]
                 if re.search(mark, gpu.lower()) and (not memory or memory == size)), None)


@cache
def device(name: str) -> Device:
    """A device by name: of the catalog, else provisional."""
    if catalog.find("devices", name) is not None:
        return load_device(name)
    given = {**tables()["devices"][name], "name": name}
    return Device.parse(resolve_device(given), f"device {name}")


def shape(
    gpu: str, memory_gb: str, devices: int, node: int, link: str, network_gbps: float | None
) -> Shape:
    """Levels of the network that a run's devices span.

    A node, or the part of an NVLink rack or of a slice of TPUs that the run uses, is level 0; all
    of them level 1, with the figures of the catalog's leaf if all nodes fit below one, else of its
    spine.

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
    found = next(((cluster, speed) for mark, cluster, speed in tables()["networks"]
                  if re.search(mark, name)), None)
    if found is None:
        raise InputError(f"no network is known for gpu {name}")
    template, usual = found
    like = _template(template)
    remarks = []
    inner, rack = node, _rack(name, link)
    if name.startswith("tpu"):  # the links of a slice join all of its hosts
        inner = node if node > HOST else _of_a_rack(devices, like.levels[0].size)
    elif rack:
        inner = _of_a_rack(devices, rack)
        if "NVL" not in link.upper():
            remarks.append(f"link not stated: an NVL{rack} rack, usual for {name}")
        if devices > inner < rack:
            remarks.append(f"{devices // inner} racks of {rack}, {inner} devices of each, inferred")
    torus = like.levels[0].axes > 0
    first = like.levels[0].replace(
        size=min(inner, devices), whole=like.levels[0].size if torus else None)
    if devices <= inner:
        return Shape(name, (first,), "; ".join(remarks))
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
    return Shape(name, (first, outer), "; ".join(remarks))


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


# ---------------------------------------------------------------- software


_GROUPS = {"vtrain_multi": "vtrain"}
"""Stacks of groups that their framework does not identify."""
_RELEASE = r"(?: (?:core_|core )?[rv]?\d[\w.]*| dev)?(?: \((?:mlperf v)?[\d./-]+\))?"
"""What RELEASE stands for in patterns of stacks: a version, or when software was current."""
_PRICED = {"megatron-bridge": "26.08"}
"""Release whose speed a stack has: errors of its releases differ by up to 7 points in the mean."""


def stack_name(
    framework: str, group: str = "", precision: str = "", notes: str = "", source: str = ""
) -> str:
    """The stack of a run: by its framework, and by variants of that framework.

    Never by model or run. A stack's own name stands for itself, but for a group that has one.
    Composer's mixed precision PURE keeps and reduces 16-bit gradients; torchtitan compiles or not,
    and did not compile the loss in 2024 ("compiling loss function causes CUDA errors" in
    pytorch/torchtitan@9dec370), the year that framework or source state.
    """
    if group in _GROUPS:
        return _GROUPS[group]
    words = framework.strip().lower()
    known = words if words in tables()["stacks"] else catalog.find("stacks", words)
    if known is not None:
        return known
    name = next((stack for mark, stack in tables()["stack_patterns"]
                 if re.fullmatch(mark.replace("RELEASE", _RELEASE), words)), UNKNOWN_STACK)
    if name == "llm-foundry" and re.search(r"\bPURE\b", precision):
        return "llm-foundry-pure"
    if name == "torchtitan" and "compile" not in notes and "float8" not in notes:
        return "torchtitan-eager"
    if name == "torchtitan" and re.search(r"\b2024|_2024", f"{words} {source}"):
        return "torchtitan-2024"
    return name


def older(framework: str, name: str) -> str | None:
    """A remark where a run is of another release than the one whose prices its stack has."""
    found, priced = re.search(r"\b\d\d\.\d\d\b", framework), _PRICED.get(name)
    if found is None or priced is None or found[0] == priced:
        return None
    return f"release {found[0]}, priced as {priced}"


def stack(name: str, changed: Mapping[str, Stack] | None = None) -> Stack:
    """A stack by name: one of ``changed``, else of the catalog."""
    if changed and name in changed:
        return changed[name]
    return _stack(name)


@cache
def _stack(name: str) -> Stack:
    given = tables()["stacks"].get(name)
    if given is None:
        return load_stack(name)
    return Stack.parse({**resolve_stack(given), "name": name}, f"stack {name}")
