"""Logs of training runs: what a run printed of its configuration, its steps and its memory.

>>> from nest.measured import logs
>>> log = logs.read("train.log")  # doctest: +SKIP
>>> log.step_time_s, log.verdict, log.settings.configuration  # doctest: +SKIP

`lines` reads a file of any size line by line; `printed` finds configurations, `scan` finds steps,
memory and ends by `formats.yaml`; `added` asks readers of other packages; `run_log` puts them
together. What a configuration means,
:mod:`nest.frameworks.logs` knows; `table_row` makes a row of a table of runs of both.
"""

from nest.measured.logs.printed import PrintedSettings
from nest.measured.logs.run_log import RunLog, is_log, read

__all__ = ["PrintedSettings", "RunLog", "is_log", "read"]
