"""Methods to choose a configuration: NEST and earlier ones.

Each is an implementation of a published method over the configurations of NEST; all plans are
priced by :func:`nest.evaluate`, never by the planner's own estimate.

`registry` has the interface and finds planners by name, NEST's and those of other packages, and
`compare` asks them all; one file or folder each: `nest`, `manual`, `zero`, `mcmc`, `alpa`,
`phaze`, `piper`, `exhaustive`. They share `prices` (fast ones, equal to those of ``evaluate``, and
whether a plan is in a space) and `flat` (the flat network that some see). `reconfigurable` sets
optical links by the `demands` of a strategy.
"""

from nest.planners.registry import PlanningMethod, planner, registered, usable

__all__ = ["PlanningMethod", "planner", "registered", "usable"]
