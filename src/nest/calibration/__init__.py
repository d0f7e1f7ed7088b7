"""Figures of devices, networks and software, fitted to measurements.

`fit` is the bounded least squares that all share; `gemms`, `collectives` and `runs` define what is
measured, which figures are fitted, and which function of `costs` (or the whole evaluation) predicts
it; `nccl` reads the output of nccl-tests; `written` makes the file.
"""
