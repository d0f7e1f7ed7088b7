"""Files that tell of a cluster, each read by its own reader; its text shows what it is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from nest.errors import InputError
from nest.inputs import Device
from nest.inputs.device import Dtype
from nest.inputs.files import read_text
from nest.measured.calibration.collectives import MeasuredCollective
from nest.measured.calibration.gemms import Products, read_products
from nest.measured.calibration.timings import TimingSelection, read_collectives
from nest.measured.probe.results import ProbeResults, load_probe
from nest.network.readers import fabric
from nest.network.readers.format import read_topology
from nest.units import shorten

T = TypeVar("T")
_RESULTS = re.compile(r'"schema":\s*"nest\.probe/')
_ANY_GPU = "h100-sxm"
"""Type of the GPUs of NCCL's file while only its links are read."""


@dataclass
class ClusterFiles:
    """What files say.

    Attributes
    ----------
    results : of the probe program.
    products, collectives : of other files.
    node, network : shapes that files say.
    paths : all files that hold measurements.
    notes : what was left out.
    """

    results: ProbeResults | None = None
    products: Mapping[Dtype, Products] = field(default_factory=dict)
    collectives: tuple[MeasuredCollective, ...] = ()
    node: fabric.NodeShape | None = None
    network: fabric.FabricShape | None = None
    paths: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_evidence(paths: Sequence[str], asked: TimingSelection | None = None) -> ClusterFiles:
    """Read files of any of the known kinds.

    Parameters
    ----------
    paths : results of the probe program, output of nccl-tests, its -J files, tables of products or
        collectives, `nvidia-smi topo -m`, NCCL's topology file, Slurm's topology.conf,
        `ibnetdiscover`.
    asked : as of :func:`nest.measured.calibration.timings.read_collectives`.

    Raises
    ------
    InputError : a file cannot be read, is of no known kind, or two say the same thing.
    """
    found, tables = ClusterFiles(), list[str]()
    for path in paths:
        where = shorten(os.fspath(path), 300)[1:-1]
        text = read_text(path)
        if not text.strip():
            raise InputError(f"{where}: is empty; allowed: output of a probe or a tool")
        if text.lstrip().startswith("{") and _RESULTS.search(text):
            found.results = _once(found.results, load_probe(path), where)
            found.paths.append(path)
        elif text.lstrip().startswith("<"):
            shape = fabric.of_nccl(read_topology(path, _gpu()), where)
            found.node = _both(found.node, shape, where)
        elif fabric.SLURM.search(text):
            found.network = _once(found.network, fabric.from_slurm(text, where), where)
        elif fabric.IBNETDISCOVER.search(text):
            found.network = _once(found.network, fabric.from_ibnetdiscover(text, where), where)
        elif fabric.TOPO_MATRIX.search(text):
            found.node = _both(found.node, fabric.from_topo_matrix(text, where), where)
        elif re.match(r"\s*([^\n]*,)?\s*dtype\s*(,|\n)", text, re.IGNORECASE):
            found.products = {**found.products, **read_products(path)}
            found.paths.append(path)
        else:
            tables.append(path)
    if tables:
        own, notes = read_collectives(tables, asked or TimingSelection())
        found.collectives += own
        found.notes += notes
        found.paths += tables
    return found


def _gpu() -> Device:
    from nest.inputs import load_device

    return load_device(_ANY_GPU)


def _once(before: T | None, now: T, where: str) -> T:
    if before is not None:
        raise InputError(f"{where}: got a second file of its kind; allowed: one, of the whole "
                         "cluster")
    return now


def _both(
    before: fabric.NodeShape | None, now: fabric.NodeShape, where: str
) -> fabric.NodeShape:
    """A node as two files say it, which must agree."""
    if before is None:
        return now
    if before.devices != now.devices:
        raise InputError(f"{where}: got {now.devices} devices a node, and {before.devices} in "
                         f"{before.source}; allowed: files of one node")
    return fabric.NodeShape(
        now.devices, max(before.inner, now.inner), before.links or now.links,
        before.rate or now.rate, before.network or now.network, f"{before.source}, {now.source}")
