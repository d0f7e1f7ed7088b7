"""Several equal networks, joined by slow links."""

from __future__ import annotations

import itertools
from typing import Annotated

import numpy as np
from pydantic import Field
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from nest.inputs import Description
from nest.inputs.base import Whole
from nest.network.draft import Draft
from nest.network.topology import Topology
from nest.units import Bandwidth, Delay


class DataCentres(Description):
    """Fields of `data_centres` besides the network of one of them."""

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


def data_centres(fabric: Topology, **given: object) -> Topology:
    """Copies of a network, each with a gateway; all gateways are linked to each other.

    The gateway of a copy is linked to its switches that are farthest from devices (spines, cores),
    or to all devices if there are no switches.

    Parameters
    ----------
    fabric : the network of one data centre.
    given : fields of `DataCentres`.

    Raises
    ------
    InputError : a field that is unknown or not allowed, or too many nodes or links.
    """
    return DataCentres(**given).topology(fabric)
