"""Every uniform configuration of a grid, as calculators of training time do.

`exhaustive` is the planner, `grid` what is in the grid, `table` its points as arrays.
"""

from nest.planners.exhaustive.exhaustive import Exhaustive

__all__ = ["Exhaustive"]
