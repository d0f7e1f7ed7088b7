"""A training step as events, to check the closed forms by something that shares none of them.

:func:`simulate` takes a plan; :func:`nest.simulation.events.run` takes plain numbers. `work` lists
the passes and `parts` what they are made of; `times` takes seconds from `costs`; `device` and
`stream` run them, `events` all devices together; `memory` follows bytes, `record` what happened.
`step` puts it together, and `result` is what it returns. Read `step`, `events`, `device`.
"""

from __future__ import annotations

from nest.simulation.result import Simulation
from nest.simulation.step import simulate

__all__ = ["Simulation", "simulate"]
