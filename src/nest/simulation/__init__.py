"""A training step as events, an independent check of the closed forms.

:func:`simulate` takes a plan; :func:`nest.simulation.events.run` takes plain numbers. `tasks` lists
the passes, and the bytes held from one to the next; `figures` has their figures; `times` takes
seconds from `evaluation`; `device` and `stream` run them, `events` all devices together. `step`
puts it together, and `result` is what it returns, with slices of time for a trace. Read `step`,
`events`, `device`. The same step for other simulators: `volumes` (bytes of collectives), `graph`
(what each rank does, and what waits for what), `chakra` (with `protobuf`) and `simai` (their
files).
"""

from __future__ import annotations

from nest.simulation.result import Simulation
from nest.simulation.step import simulate

__all__ = ["Simulation", "simulate"]
