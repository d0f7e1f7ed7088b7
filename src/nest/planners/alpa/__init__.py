"""Alpa: stages by dynamic programming, operators by integer programming.

`alpa` is the planner; `layers` clusters operators into layers, `intra` shards the operators of a
stage on one mesh with the program of `program`, `profile` prices a stage alone, `stages` lists
meshes and the times of stages on them, `inter` chooses the stages.
"""

from nest.planners.alpa.alpa import Alpa

__all__ = ["Alpa"]
