"""Networks as graphs, and the clusters that they describe.

`topology` is the graph itself, also one under construction; `generators` make one from a line of
text, `readers` from files of other tools, `changes` remove failed parts or slow them down.
`routing` finds shortest routes. `hierarchy` (with `planes`) tells whether a graph is a hierarchy of
levels; `arrangement` chooses the order of its devices. `network` is the entry: the
cluster of a name, a file or a graph (`nest.load_network`); `losses` is what is left of a cluster.
Read `topology`, `network`, `hierarchy` first.

The names below are imported when they are first used: a cluster with levels needs no graphs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nest.network.arrangement import Arrangement, arrangements, mixtures, together
    from nest.network.changes import degrade, without
    from nest.network.generators.text import names_generator, parse_generator
    from nest.network.hierarchy import Hierarchy, graph_of, hierarchy_of, levels_of
    from nest.network.readers.format import read_topology
    from nest.network.routing import Routes
    from nest.network.topology import Topology

__all__ = [
    "Arrangement",
    "Hierarchy",
    "Routes",
    "Topology",
    "arrangements",
    "degrade",
    "graph_of",
    "hierarchy_of",
    "levels_of",
    "mixtures",
    "names_generator",
    "parse_generator",
    "read_topology",
    "together",
    "without",
]

_HOME = {
    "Arrangement": "arrangement",
    "arrangements": "arrangement",
    "degrade": "changes",
    "without": "changes",
    "names_generator": "generators.text",
    "parse_generator": "generators.text",
    "Hierarchy": "hierarchy",
    "graph_of": "hierarchy",
    "hierarchy_of": "hierarchy",
    "levels_of": "hierarchy",
    "mixtures": "arrangement",
    "together": "arrangement",
    "read_topology": "readers.format",
    "Routes": "routing",
    "Topology": "topology",
}
"""Module of each name."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'nest.network' has no attribute {name!r}")
    value = getattr(import_module(f"nest.network.{_HOME[name]}"), name)
    globals()[name] = value
    return value
