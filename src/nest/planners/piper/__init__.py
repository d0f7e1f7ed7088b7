"""Piper: stages of tensor and data parallel devices by dynamic programming.

`piper` is the planner, `stages` what a stage takes under each choice.
"""

from nest.planners.piper.piper import Piper

__all__ = ["Piper"]
