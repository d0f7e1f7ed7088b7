"""Every uniform configuration of a grid, as in calculators of training time.

`exhaustive` is the planner, `grid` what is in the grid, and its points as arrays.
"""

from nest.planners.exhaustive.exhaustive import Exhaustive

__all__ = ["Exhaustive"]
