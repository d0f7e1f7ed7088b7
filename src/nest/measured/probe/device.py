"""A device of what was measured of it alone: products, grouped ones, attention, bytes, kernels.

Each figure is fitted with the function of :mod:`nest.costs.compute` that prices it, or is the
median of its measurements. What was not measured stays as in the catalog, or is a default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nest.costs.compute import Machine, attention_seconds, grouped_seconds
from nest.costs.host import LINK_EFFICIENCY
from nest.errors import InputError
from nest.inputs import Device, load_device
from nest.inputs.device import Dtype
from nest.measured.calibration.fit import NORMAL, Array, Estimate, Parameter, fit
from nest.measured.calibration.gemms import (
    NOISE,
    DeviceFit,
    Products,
    alone,
    fit_products,
    key_of,
)
from nest.measured.calibration.written import device_data
from nest.measured.probe.results import ProbeResults, ProbeRow
from nest.measured.validation.hardware import device_name

SPEEDIEST = 0.8
"""Share of its nominal rate that the fastest measurement of unknown hardware is taken to reach
(chosen: prices have the product of both, which is measured)."""
FEWEST = 4
"""Measurements that a fit needs besides (chosen)."""
_VARIANT = re.compile(r"pcie|nvl\b", re.IGNORECASE)
"""In names of GPUs that have other rates than those of the catalog."""


@dataclass
class ProbedFigures:
    """What was made of a device, a network or a stack.

    Attributes
    ----------
    data : the description as it is written.
    estimates : figures that were measured, with their spread.
    notes : what a reader must know of it.
    """

    data: dict[str, Any]
    estimates: list[Estimate] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def middle(name: str, rows: Sequence[ProbeRow], of: Callable[[ProbeRow, float], float],
           before: float, unit: str = "") -> Estimate | None:
    """The median of a figure over rows, with the larger of their spread and that of repeats.

    Parameters
    ----------
    of : the figure of a row for a number of seconds.
    before : what stood there.
    """
    if not rows:
        return None
    values = [of(row, row.seconds or 1.0) for row in rows]
    inside = [abs(of(row, row.high or 1.0) - of(row, row.low or 1.0)) for row in rows
              if row.low and row.high]
    value = float(np.median(values))
    among = float(np.median(np.abs(np.array(values) - value))) if len(values) > 1 else 0.0
    spread = NORMAL * max(among, float(np.median(inside)) / 2.0 if inside else 0.0)
    value = float(f"{value:.3g}")
    return Estimate(Parameter(name, before, 0.0, np.inf, 1.0, unit), value, spread, True)


def start_of(results: ProbeResults, given: str | None) -> tuple[Device, str, list[str]]:
    """The device that the fit starts from, its name, and notes.

    Raises
    ------
    InputError : no such device, or nothing is known and nothing was measured of an unknown one.
    """
    if given is not None:
        return load_device(given), given, []
    it = results.device
    name = None if _VARIANT.search(it.name) or it.kind == "cpu" else device_name(it.name)
    if name is not None:
        return load_device(name), name, [f"{it.name} is taken for {name}; --device says else"]
    rates: dict[str, float] = {}
    for row in results.of("products"):
        assert row.dtype and row.m and row.n and row.k and row.seconds
        rate = 2.0 * row.m * row.n * row.k / row.seconds / SPEEDIEST
        rates[row.dtype] = max(rates.get(row.dtype, 0.0), _round(rate))
    moved = [_rate(row) / SPEEDIEST for row in results.of("bytes")]
    if not rates or not moved:
        raise InputError(f"device: got {it.name}, which the catalog lacks, without "
                         f"{'products' if not rates else 'bytes'}; needed: --device NAME, or a "
                         "probe with products and bytes")
    device = Device.parse({
        "name": it.name[:60], "memory": it.memory_bytes, "memory_bandwidth": _round(max(moved)),
        "peak_flops": rates,
        "source": f"memory: as PyTorch says; nominal rates: the fastest measured over "
                  f"{SPEEDIEST}, chosen; shares of the peak and MFU are of these"}, "device")
    return device, device.name, [
        f"{it.name} is not in the catalog: nominal rates are the fastest measured over "
        f"{SPEEDIEST}, so MFU is of these (--device FILE has others)"]


def _round(value: float) -> float:
    return float(f"{value:.3g}")


def _rate(row: ProbeRow) -> float:
    assert row.bytes and row.seconds
    return row.bytes / row.seconds


def probed_device(
    results: ProbeResults | None, given: str | None, products: Mapping[Dtype, Products],
    paths: Sequence[str],
) -> ProbedFigures | None:
    """A device with all figures that results and tables of products determine.

    None: nothing of a device was measured, and none is given.

    Raises
    ------
    InputError : the device is unknown, or has no rate for a measured format.
    """
    if results is None:
        if given is None:
            return None
        start, name, notes = load_device(given), given, list[str]()
    else:
        start, name, notes = start_of(results, given)
    own = {**products, **(results.products if results else {})}
    fits = {dtype: each for dtype, each in own.items()
            if dtype in start.peak_flops or dtype in ("bf16", "fp16", "fp32")}
    notes += [f"{dtype} was measured, and {start.name} has no rate of it: left out"
              for dtype in own if dtype not in fits]
    direct = [] if results is None else _direct(results, start)
    # Measured alone, which is more certain than what a fit of products says of them.
    fixed = {each.parameter.name: each.value for each in direct}
    before = start.replace(**fixed)
    found = fit_products(before, fits) if fits else DeviceFit(before, before, ())
    device = found.device.replace(**fixed)
    estimates = [replace(each, parameter=replace(
        each.parameter, name=f"{one.dtype} {each.parameter.name}"))
        for one in found.formats for each in one.fit.estimates if each.parameter.name not in fixed]
    fitted: dict[str, Any] = {}
    if results is not None:
        for fit_of in (_attention, _grouped):
            more, values = fit_of(results, device)
            estimates += more
            fitted |= values
    data = device_data(DeviceFit(start, device, found.formats), name, paths) | fixed | fitted
    data["name"] = data["name"].replace("(calibrated)", "(probed)")
    told = [f"{', '.join(fixed)}: measured{spreads(direct)}"] if fixed else []
    told += [f"{', '.join(fitted)}: fitted to what was measured"] if fitted else []
    data["source"] = "; ".join([*told, data["source"]]).replace(
        "nest calibrate", "nest probe")[:3900]
    estimates += direct
    if not any(each.determined for each in estimates):
        notes.append("nothing of the device was measured: it is as before")
    return ProbedFigures(data, estimates, notes)


def spreads(told: Sequence[Estimate]) -> str:
    """Figures with their spreads, for a source."""
    shown = [f"{each.parameter.name} +- {each.error:.2g}" for each in told
             if each.error and each.determined]
    return f" ({', '.join(shown)})" if shown else ""


def _direct(results: ProbeResults, device: Device) -> list[Estimate]:
    """Figures that are medians of their measurements."""
    hosts = [row for row in results.of("host") if row.what in ("to device", "to host")]
    found = [
        middle("memory_efficiency", results.of("bytes"), lambda row, seconds: min(
            1.0, (row.bytes or 0) / seconds / device.memory_bandwidth), device.memory_efficiency),
        middle("launch_overhead", results.of("host", what="kernel"),
               lambda row, seconds: seconds / row.count, device.launch_overhead, "s"),
        middle("host_link", hosts, lambda row, seconds: (
            row.bytes or 0) / seconds / LINK_EFFICIENCY, device.host_link or 0.0, "B/s")]
    measured = [each for each in found if each is not None]
    facts = {"host_memory": float(results.host_memory_bytes)} if results.device.kind == (
        "cuda") else {}
    if results.context_bytes:
        facts["memory_reserved"] = float(results.context_bytes)
    if abs(results.device.memory_bytes / device.memory - 1.0) > 0.01:
        facts["memory"] = float(results.device.memory_bytes)
    measured += [Estimate(Parameter(name, getattr(device, name) or 0.0, 0.0, np.inf, 1.0, "B"),
                          value, 0.0, True) for name, value in facts.items()]
    return measured


def _fitted(
    parameters: Sequence[Parameter], change: Callable[[dict[str, float]], Device],
    predict: Callable[[Device], Array], measured: Array,
) -> tuple[list[Estimate], dict[str, float]]:
    """Estimates, and the values of those that the measurements determine."""
    names = [each.name for each in parameters]

    def misfits(values: Array) -> Array:
        device = change(dict(zip(names, map(float, values), strict=True)))
        return np.asarray(np.log(predict(device) / measured))

    found = fit(parameters, misfits, NOISE)
    return list(found.estimates), {
        each.parameter.name: _round(each.value) for each in found.estimates if each.determined}


def _attention(
    results: ProbeResults, device: Device
) -> tuple[list[Estimate], dict[str, Any]]:
    """Rates of flash attention; causal, so that half of the keys are seen."""
    rows = results.of("attention")
    if len(rows) < FEWEST:
        return [], {}
    stack = alone()
    dtype = rows[0].dtype
    assert dtype is not None
    columns = {name: np.array([getattr(row, name) for row in rows], np.float64)
               for name in ("tokens", "heads", "width")}
    back = np.array([row.way == "backward" for row in rows])

    def predict(changed: Device) -> Array:
        machine, found = Machine(changed, stack, dtype), np.zeros(len(rows))
        for n, (tokens, heads, width) in enumerate(zip(*columns.values(), strict=True)):
            keys = min(tokens, tokens / 2.0 + changed.attention_edge)
            found[n] = attention_seconds(machine, np.array(tokens), np.array(2.0 * heads * width),
                                         keys, width, bool(back[n]))
        return found

    parameters = [Parameter("attention_fraction", device.attention_fraction, 0.01, 1.0, 0.2),
                  Parameter("attention_edge", device.attention_edge, 0.0, 4e3, 400.0)]
    if len(set(columns["width"])) > 1 and min(columns["width"]) < 128:
        parameters.append(Parameter("attention_narrow", device.attention_narrow, 0.05, 1.0, 0.2))
    return _fitted(parameters, lambda values: device.model_copy(update=values), predict,
                   np.array([row.seconds for row in rows], np.float64))


GROUPED = {
    # figure: bounds, spread of its prior (chosen: wide), unit
    "rate": (0.01, 1.0, 0.3, ""), "memory_share": (0.01, 1.0, 0.3, ""),
    "group_time": (0.0, 1e-3, 1e-5, "s"), "fused_rate": (0.01, 1.0, 0.3, "")}


def _grouped(results: ProbeResults, device: Device) -> tuple[list[Estimate], dict[str, Any]]:
    """Rates of grouped products: one call for each expert, then the fused kernel."""
    estimates: list[Estimate] = []
    now = device
    for way, names in (("each", ("rate", "memory_share", "group_time")),
                       ("fused", ("fused_rate",))):
        rows = results.of("grouped", way=way)
        if len(rows) >= FEWEST:
            own, now = _of_groups(rows, now, names)
            estimates += own
    return estimates, {} if now is device else {"grouped": {
        key: each.model_dump() for key, each in now.grouped.items()}}


def _of_groups(
    rows: Sequence[ProbeRow], device: Device, names: Sequence[str]
) -> tuple[list[Estimate], Device]:
    """Some figures of grouped products of one format and way; the device with them."""
    dtype = rows[0].dtype
    assert dtype is not None
    key, before = key_of(device, dtype), device.grouped_for(dtype)
    stack = alone().replace(fused_experts=rows[0].way == "fused")
    m, n, k, groups = (np.array([getattr(row, name) for row in rows], np.float64)
                       for name in ("m", "n", "k", "groups"))

    def change(values: dict[str, float]) -> Device:
        own = {name.removeprefix("grouped "): value for name, value in values.items()}
        return device.model_copy(update={"grouped": {
            **device.grouped, key: before.model_copy(update=own)}})

    def predict(changed: Device) -> Array:
        machine = Machine(changed, stack, dtype)
        return grouped_seconds(machine, m, n, k, groups, machine.element, 0.0)

    parameters = []
    for name in names:
        low, high, spread, unit = GROUPED[name]
        parameters.append(Parameter(f"grouped {name}", getattr(before, name), low, high, spread,
                                    unit))
    found, values = _fitted(parameters, change, predict,
                            np.array([row.seconds for row in rows], np.float64))
    return found, change(values)
