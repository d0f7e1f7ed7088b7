"""The three descriptions of a probed cluster: device, cluster, stack."""

from __future__ import annotations

from nest.errors import InputError
from nest.inputs import Cluster, Device, load_cluster, load_stack
from nest.inputs.device import resolve_device
from nest.inputs.job import Stack, resolve_stack
from nest.measured.probe.device import ProbedFigures, probed_device
from nest.measured.probe.network import probed_cluster
from nest.measured.probe.software import probed_stack
from nest.measured.probe.sources import ClusterFiles


def describe(
    told: ClusterFiles, device: str | None = None, cluster: str | None = None,
    stack: str | None = None,
) -> dict[str, ProbedFigures]:
    """Descriptions by name: device, cluster and, of results of the program, stack.

    Parameters
    ----------
    told : files that were read.
    device, cluster, stack : catalog names or files to start from; None: what the files say.

    Raises
    ------
    InputError : the files do not say what a device or a node is, or contradict what is given.
    """
    if stack is not None:
        load_stack(stack)
    if device is None and told.results is None and cluster is not None:
        device = load_cluster(cluster).device.name
    made = probed_device(told.results, device, told.products, told.paths)
    if made is None:
        raise InputError("device: no file says its type; needed: --device NAME (`nest list "
                         "devices`), or results of the probe program")
    Device.parse(resolve_device(made.data), "device")
    start = str(made.data.get("base", made.data["name"])).removesuffix(" (probed)")
    found = {"device": made, "cluster": probed_cluster(told, cluster, made.data, start)}
    Cluster.parse(found["cluster"].data, "cluster")
    if told.results is not None:
        found["stack"] = probed_stack(told.results, stack)
        Stack.parse(resolve_stack(found["stack"].data), "stack")
    return found
