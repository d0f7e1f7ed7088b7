"""Figures of devices, networks and software, fitted to measurements.

`fit` is the bounded least squares that all share; `gemms`, `collectives` and `runs` say what is
measured, which figures that concerns, and which function of `costs` (or the whole evaluation)
predicts it; `table` reads measurements from CSV, `timings` collectives in any format, `nccl` the
output of nccl-tests; `written` makes the file.
"""
