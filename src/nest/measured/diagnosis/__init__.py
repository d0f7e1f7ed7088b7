"""Why a run is slower, or holds more memory, than its plan is priced.

:func:`diagnose` compares a plan with a log (:mod:`nest.measured.logs`), with traces and with memory
snapshots. `result` is what it returns. `timeline` has what a device did in the steps of a trace,
which `kineto` and `nsight` read; `pickled` reads pickles of plain values, `snapshot` the bytes in
them; `steps` divides the times of a log; `causes.yaml` names kernels, groups and what to try;
`seconds` makes the causes of a step, `held` those of memory, `diagnosed` puts them together.
Nothing that is read is executed.
"""

from nest.measured.diagnosis.diagnosed import diagnose
from nest.measured.diagnosis.result import Diagnosis

__all__ = ["Diagnosis", "diagnose"]
