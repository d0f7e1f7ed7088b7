"""Networks as graphs: reading, generating and changing them; routes; those that are hierarchies."""

from nest.topology.arrangement import Arrangement, arrangements
from nest.topology.changes import degrade, without
from nest.topology.generators.text import names_generator, parse_generator
from nest.topology.hierarchy import Hierarchy, graph_of, hierarchy_of, levels_of
from nest.topology.mixture import mixtures, together
from nest.topology.readers.format import read_topology
from nest.topology.routing import Routes
from nest.topology.topology import Topology

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
