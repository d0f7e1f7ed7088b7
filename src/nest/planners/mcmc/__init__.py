"""Random changes to a configuration, accepted by gain: FlexFlow's search.

`mcmc` is the planner, `moves` the changes.
"""

from nest.planners.mcmc.mcmc import Mcmc

__all__ = ["Mcmc"]
