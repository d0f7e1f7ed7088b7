"""The next plan after devices are lost or return.

`replan` is :func:`nest.replan`; `moves` counts the bytes that devices receive.
What is left of a cluster is in :mod:`nest.network.losses`.
"""
