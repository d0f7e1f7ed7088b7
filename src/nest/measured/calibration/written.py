"""Files that a calibration writes: what it changed, on top of what was there, with its source.

A device and a stack of the catalog are written as `base` and changes; clusters, which have no base,
and descriptions from files are written in full.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nest.inputs import Device, Stack, catalog, load_stack
from nest.inputs.files import read_description
from nest.measured.calibration.collectives import NetworkFit
from nest.measured.calibration.fit import Estimate
from nest.measured.calibration.gemms import DeviceFit, key_of
from nest.measured.calibration.runs import RunsFit
from nest.units import format_seconds

DEVICE_FIGURES = ("launch_overhead", "memory_efficiency")


def told(
    paths: Sequence[str | os.PathLike[str]], count: int, things: str, spread: float
) -> str:
    """Source of figures: files, number of measurements, spread of the misfits."""
    files = ", ".join(Path(path).name for path in paths[:5])
    more = f" and {len(paths) - 5} more files" if len(paths) > 5 else ""
    return (f"fitted by nest calibrate to {count} {things} of {files}{more}; "
            f"they differ from it by {100 * spread:.1f} % (standard deviation)")


def kept(estimates: Sequence[Estimate]) -> str:
    """What the measurements did not determine, for the source."""
    names = [each.parameter.name for each in estimates if not each.determined]
    return f"; not determined, as before: {', '.join(names)}" if names else ""


def device_data(
    found: DeviceFit, name: str, paths: Sequence[str | os.PathLike[str]]
) -> dict[str, Any]:
    """A device as it is written.

    Parameters
    ----------
    name : catalog name or file that the fit started from.
    paths : where the measurements came from.
    """
    device = found.device
    changes: dict[str, Any] = {"gemm": {
        key_of(found.before, each.dtype): each.efficiency.model_dump() for each in found.formats}}
    for field in DEVICE_FIGURES:
        value = getattr(device, field)
        if value != getattr(found.before, field):
            changes[field] = format_seconds(value, 6) if field == "launch_overhead" else value
    parts = [f"gemm {each.dtype}: " + told(paths, each.count, "products", each.fit.spread)
             + kept(each.fit.estimates) for each in found.formats]
    known = catalog.find("devices", name)
    rest = f"all else as {known or found.before.name}"
    changes["source"] = _shortened("; ".join([*parts, rest]), "" if known else device.source)
    if known:
        return {"base": known, "name": f"{known} (calibrated)", **changes}
    whole = device.as_dict()
    whole["gemm"] = {**whole["gemm"], **changes.pop("gemm")}
    return {**whole, **changes, "name": _calibrated(device)}


def cluster_of(name: str) -> dict[str, Any]:
    """The data of a cluster of the catalog or of a file, before it is sized."""
    known = catalog.find("clusters", name)
    return dict(catalog.load("clusters", known) if known else read_description(name))


def cluster_data(
    found: NetworkFit, before: Mapping[str, Any], paths: Sequence[str | os.PathLike[str]]
) -> dict[str, Any]:
    """A cluster as it is written: its data before, with figures of levels changed."""
    data = {**before, "name": f"{before['name']} (calibrated)"}
    fitted = {level.name: level for level in found.cluster.levels}
    text = told(paths, len(found.measured), "collectives", found.fit.spread)
    levels = []
    for given in before["levels"]:
        own = [each for each in found.fit.estimates
               if each.parameter.name.rpartition(": ")[0] == given["name"]]
        if not any(each.determined for each in own):
            levels.append(given)
            continue
        level = fitted[given["name"]]
        changed = {name: getattr(level, name) for each in own if each.determined
                   for name in [each.parameter.name.rpartition(": ")[2]]}
        for field in ("latency", "base_time"):
            if field in changed:
                changed[field] = format_seconds(changed[field], 6)
        source = _shortened(f"{', '.join(changed)}: {text}{kept(own)}", given.get("source", ""))
        levels.append({**given, **changed, "source": source})
    return {**data, "levels": levels}


def stack_data(
    found: RunsFit, given: str | None, path: str | os.PathLike[str]
) -> dict[str, Any]:
    """A stack as it is written.

    Parameters
    ----------
    given : catalog name or file that a person named; None: the stack is that of the runs.
    path : where the measurements came from.
    """
    start = found.chosen.stack
    known = catalog.find("stacks", given if given is not None else start.name)
    data = {name: value for name, value in found.stack.as_dict().items()
            if name in found.stack.model_fields_set and name not in ("name", "source")}
    told = [each.parameter.name for each in found.fit.estimates
            if each.determined and each.parameter.name in Stack.model_fields]
    text = _of_runs(found, told, path)
    if known:
        before = load_stack(known).as_dict()
        changes = {name: value for name, value in data.items() if value != before[name]}
        return {"base": known, "name": f"{known} (calibrated)", **changes,
                "source": f"{text}; all else as {known}"}
    return {"name": _calibrated(start), **data, "source": _shortened(text, start.source)}


def run_device_data(
    found: RunsFit, given: str | None, path: str | os.PathLike[str]
) -> dict[str, Any]:
    """A device as it is written after a fit to training runs; as :func:`stack_data`."""
    device, before = found.device, found.chosen.device
    assert device is not None and before is not None  # figures of it were fitted
    known = catalog.find("devices", given if given is not None else before.name)
    changes: dict[str, Any] = {
        each.parameter.name: getattr(device, each.parameter.name)
        for each in found.fit.estimates
        if each.determined and each.parameter.name in Device.model_fields}
    text = _of_runs(found, changes, path)
    if "launch_overhead" in changes:
        changes["launch_overhead"] = format_seconds(changes["launch_overhead"], 6)
    if known:
        return {"base": known, "name": f"{known} (calibrated)", **changes,
                "source": f"{text}; all else as {known}"}
    source = _shortened(text, before.source)
    return {**device.as_dict(), "name": _calibrated(before), "source": source}


def _of_runs(found: RunsFit, changes: Iterable[str], path: str | os.PathLike[str]) -> str:
    text = told([path], len(found.chosen.runs), "training runs", found.fit.spread)
    return f"{', '.join(changes) or 'nothing'}: {text}{kept(found.fit.estimates)}"


def _calibrated(described: Device | Stack) -> str:
    return described.name if "calibrated" in described.name else f"{described.name} (calibrated)"


def _shortened(text: str, before: str) -> str:
    """The source, with its text before, cut to the limit of a file."""
    return (f"{text}; before: {before}" if before else text)[:3900]
