"""Figures of devices, networks and software, fitted to measurements.

`fit` is the bounded least squares that all share; `gemms`, `collectives` and `runs` say what is
measured, which figures that concerns, and which function of `costs` (or the whole evaluation)
predicts it; `timings` reads collectives, from CSV and from output of nccl-tests; `written` makes
the file.
"""
