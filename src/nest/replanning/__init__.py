"""Losses of devices: the next plan, and what failures cost.

`replan` is :func:`nest.replan`; `moves` counts the bytes that devices receive. `goodput` is
:func:`nest.goodput`; `renewal` has its formulas. What is left of a cluster is in
:mod:`nest.network.losses`.
"""
