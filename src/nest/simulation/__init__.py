"""A training step as events, to check the closed forms by something that shares none of them.

:func:`simulate` takes a plan; :func:`nest.simulation.events.run` takes plain numbers.
"""

from __future__ import annotations

from nest.simulation.result import Simulation
from nest.simulation.step import simulate

__all__ = ["Simulation", "simulate"]
