"""Alpa: stages by dynamic programming, operators by integer programming.

`alpa` is the planner; `intra` clusters operators into layers, shards the operators of a stage on
one mesh by an integer program, and prices a stage alone; `inter` lists meshes and chooses stages.
"""

from nest.planners.alpa.alpa import Alpa

__all__ = ["Alpa"]
