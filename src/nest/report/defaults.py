"""Which figures of a cluster are defaults: nobody measured or stated them for it."""

from __future__ import annotations

from nest.inputs import Cluster, GemmEfficiency
from nest.inputs.device import default_gemm


def defaults(cluster: Cluster) -> str:
    """Default efficiencies of products, and figures by kind of link; empty: none."""
    usual: GemmEfficiency = default_gemm()["default"]
    found = [f"products of {device.name} at most {100 * usual.peak_fraction:.0f} % of the peak"
             for device in cluster.device_types if device.gemm["default"] == usual]
    found += [f"{', '.join(names)} of level {level.name} ({level.link})"
              for level in cluster.levels if (names := level.defaults(cluster.device))]
    return "; ".join(found)
