"""Jobs that run today, read back as model, job and configuration; nothing is executed.

Reading order: `shell` (what a launch script runs, followed as text), `arguments` (a command line as
arguments by name), `patterns` (lists of layers), `megatron` (arguments as model, job and
configuration, by the tables that `nest.exports` writes them with), `places` (devices of the ranks),
`run` (:func:`nest.read`).
"""

from nest.reading.reader import TARGETS, read
from nest.reading.run import Reading

__all__ = ["TARGETS", "Reading", "read"]
