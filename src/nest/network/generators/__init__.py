"""Networks by rule, from sizes and figures: a file for each, named after it.

`fabric` is their base class, `text` reads the names and fields of the command line.
"""

from nest.network.generators.data_centres import data_centres
from nest.network.generators.dragonfly import dragonfly
from nest.network.generators.fat_tree import fat_tree
from nest.network.generators.fully_connected import fully_connected
from nest.network.generators.mixed import mixed
from nest.network.generators.nvl_domains import nvl_domains
from nest.network.generators.rail_optimized import rail_optimized
from nest.network.generators.spine_leaf import spine_leaf
from nest.network.generators.text import parse_generator
from nest.network.generators.torus import torus

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
