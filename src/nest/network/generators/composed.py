"""Networks of unlike nodes, and of several equal networks."""

from __future__ import annotations

import itertools
import re
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, model_validator
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from nest.errors import InputError
from nest.inputs import Description, Device, link_kinds, load_device
from nest.inputs.base import Problems, Whole, at_most
from nest.inputs.cluster import MOST_TYPES, Level, LinkKind
from nest.inputs.sources import CATALOG
from nest.network.generators.fabric import Generator
from nest.network.topology import MOST_NODES, Draft, Topology
from nest.units import Bandwidth, Delay, shorten

_GROUP = re.compile(r"(?:(\d{1,6})\s*x\s*)?(\d{1,6})\s*x\s*([A-Za-z][\w.-]*)", re.ASCII)
_HELP = "DEVICES x DEVICE or NODES x DEVICES x DEVICE, such as 8xh100-sxm or 4x8xh100-sxm"


class Mixed(Generator):
    """Nodes of unlike devices behind one leaf; one adapter per device.

    Figures are the defaults of the kinds of link (src/nest/catalog/links.yaml), with their sources.
    """

    nodes: Annotated[tuple[str, ...], Field(min_length=1), at_most(1000)] = Field(
        description=f"nodes that are alike, each {_HELP}"
    )
    link: LinkKind = Field("infiniband", description="kind of the links between nodes")
    bandwidth: Bandwidth | None = Field(
        None, description="bytes/s of a device's port, each direction; default: that of the link"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = []
        for number, text in enumerate(self.nodes):
            try:
                _inside(_group(text)[2])
            except InputError as error:
                problems.append((f"nodes.{number}", str(error)))
        if not problems and len({_group(text)[2] for text in self.nodes}) > MOST_TYPES + 1:
            given = f"got more than {MOST_TYPES + 1} types of device"
            problems.append(("nodes", f"{given}; allowed: {MOST_TYPES + 1}"))
        if problems:
            raise Problems(problems)
        return self

    def topology(self) -> Topology:
        draft = Draft(f"mixed {','.join(self.nodes)} with default links", "mixed")
        port = _level(link=self.link, bandwidth=self.bandwidth)
        leaf, number = draft.switch("leaf", base_time=port.base_time, ramp=port.ramp), 0
        for text in self.nodes:
            count, size, device = _group(text)
            if count * size > MOST_NODES:
                raise draft.refuse("", f"got {text}; allowed: at most {MOST_NODES} devices")
            inner = _inside(device)
            for _ in range(count):
                switch = draft.switch(f"node{number}", base_time=inner.base_time, ramp=inner.ramp)
                for place in range(size):
                    gpu = draft.device(f"node{number}/gpu{place}", device)
                    nic = draft.switch(f"node{number}/nic{place}")
                    draft.cable(gpu, switch, _rate(inner), inner.latency / 2.0)
                    draft.cable(gpu, nic, _rate(port), 0.0)
                    draft.cable(nic, leaf, _rate(port), port.latency / 2.0)
                number += 1
        return draft.build()


def _group(text: str) -> tuple[int, int, Device]:
    """Nodes, devices of each, and their type.

    Raises
    ------
    InputError : another form, a number of 0, or an unknown device.
    """
    match = _GROUP.fullmatch(text.strip())
    if match is None or not int(match[1] or 1) or not int(match[2]):
        raise InputError(f"got {shorten(text)}; allowed: {_HELP}")
    return int(match[1] or 1), int(match[2]), load_device(match[3], sources=CATALOG)


def _inside(device: Device) -> Level:
    """The links inside a node of a type of device, by the beginning of its name.

    Raises
    ------
    InputError : no kind of link has it.
    """
    link = link_kinds.own_link(device.name)
    if link is None:
        raise InputError(f"got {device.name}, whose links in a node are not known; allowed: "
                         "a network in a file")
    return _level(link=link, bandwidth=link_kinds.device_rate(link, device.name))


def _level(**given: Any) -> Level:
    return Level.parse({"name": "link", "size": 1,
                        **{name: value for name, value in given.items() if value is not None}})


def _rate(level: Level) -> float:
    """Bytes/s that collectives reach."""
    assert level.bandwidth is not None
    return level.bandwidth * level.efficiency


class DataCentres(Description):
    """Copies of a network, each with a gateway; all gateways are linked to each other.

    The gateway of a copy is linked to its switches that are farthest from devices (spines, cores),
    or to all devices if there are no switches.
    """

    centres: Annotated[Whole, Field(ge=2, le=1000)] = Field(2, description="data-centres")
    bandwidth: Bandwidth = Field(
        100e9, description="bytes/s between two of them, each direction (assumed: 800 Gb/s)"
    )
    latency: Delay = Field(
        5e-3, description="seconds between two of them (assumed: 1,000 km of fibre at 5 us/km)"
    )

    def topology(self, fabric: Topology) -> Topology:
        """Give the network.

        Parameters
        ----------
        fabric : the network of one data centre.

        Raises
        ------
        InputError : too many nodes or links.
        """
        draft = Draft(f"{self.centres} x {fabric.name}"[:200], "data-centres")
        tops = _tops(fabric)
        gateways = []
        for centre in range(self.centres):
            copies = _copy(draft, fabric, f"centre{centre}/")
            gateways.append(draft.switch(f"centre{centre}/gateway"))
            for top in tops:  # never narrower than all links to the other centres
                wide = self.bandwidth * (self.centres - 1)
                draft.cable(copies[top], gateways[-1], wide, 0.0)
        for one, other in itertools.combinations(gateways, 2):
            draft.cable(one, other, self.bandwidth, self.latency)
        return draft.build()


def _copy(draft: Draft, fabric: Topology, prefix: str) -> list[int]:
    copies = []
    for node, name in enumerate(fabric.nodes):
        number = fabric.type_V[node]
        if number >= 0:
            copies.append(draft.device(prefix + name, fabric.types[number]))
        else:
            base_time, ramp = float(fabric.base_time_V[node]), float(fabric.ramp_V[node])
            reduces = bool(fabric.reduces_V[node])
            copies.append(draft.switch(prefix + name, "", base_time, ramp, reduces))
    for link in range(len(fabric.source_E)):
        source, target = copies[fabric.source_E[link]], copies[fabric.target_E[link]]
        bandwidth, latency = float(fabric.bandwidth_E[link]), float(fabric.latency_E[link])
        draft.link(source, target, bandwidth, latency)
    return copies


def _tops(fabric: Topology) -> list[int]:
    """Switches that are farthest from devices; all devices where there are no switches."""
    size = len(fabric.nodes)
    ones = np.ones(len(fabric.source_E))
    graph = csr_array((ones, (fabric.source_E, fabric.target_E)), shape=(size, size))
    away = dijkstra(graph, indices=fabric.device_N, unweighted=True, min_only=True)
    return [int(node) for node in np.flatnonzero(away == away.max())]
