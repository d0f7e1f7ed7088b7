"""Networks by rule, from sizes and figures: a file for each, named after it.

`fabric` is their base class, `text` reads the names and fields of the command line.
"""

from nest.topology.generators.data_centres import data_centres
from nest.topology.generators.dragonfly import dragonfly
from nest.topology.generators.fat_tree import fat_tree
from nest.topology.generators.fully_connected import fully_connected
from nest.topology.generators.mixed import mixed
from nest.topology.generators.nvl_domains import nvl_domains
from nest.topology.generators.rail_optimized import rail_optimized
from nest.topology.generators.spine_leaf import spine_leaf
from nest.topology.generators.text import parse_generator
from nest.topology.generators.torus import torus

__all__ = [
    "data_centres",
    "dragonfly",
    "fat_tree",
    "fully_connected",
    "mixed",
    "nvl_domains",
    "parse_generator",
    "rail_optimized",
    "spine_leaf",
    "torus",
]
