"""Efficiency of matrix products, fitted per number format to products measured alone.

The model is :func:`nest.costs.compute.gemm_seconds` under a stack without derates.

Rows and columns of a product share one half (`m_half` = `n_half`) unless separate halves are
requested: backward passes exchange the sides, and with `cast_bytes` a separate half for the columns
adds the same m x k to the time as the cast, so that measurements cannot separate the two.

The launch overhead and the memory efficiency belong to the device, not to a format. They are
those of the format most used in training. The other formats are fitted with a separate launch
overhead, so that it does not distort their other figures, and written without it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nest.costs.compute import Machine, gemm_seconds, peak_flops
from nest.errors import InputError
from nest.inputs import Device, GemmEfficiency, Stack, load_stack
from nest.inputs.device import Dtype
from nest.inputs.files import read_text
from nest.measured.calibration.fit import Array, Fit, Parameter, fit
from nest.measured.table import only, rows, seconds
from nest.units import format_seconds, shorten

NEEDED = {"dtype": "number format", "m": "rows of the left matrix",
          "n": "columns of the right matrix", "k": "columns of the left, rows of the right one"}
FORMATS: tuple[Dtype, ...] = ("bf16", "fp16", "tf32", "fp32", "fp8")
"""Formats; the first one determines the figures of the device."""
FEWEST = 5
"""Products of a format below which nothing is fitted: as many as it has figures."""
NOISE = 0.01
"""Least spread of the misfits: clocks of one device differ by about so much (chosen)."""
SHORT = 2.0
"""A product shows the launch overhead if its peak time is below this many of them (chosen)."""
SHORTEST = 3
"""Such products that are needed to fit it (chosen)."""

_SPELLED: dict[str, Dtype] = {
    "bfloat16": "bf16", "torch.bfloat16": "bf16", "half": "fp16", "float16": "fp16",
    "torch.float16": "fp16", "float": "fp32", "float32": "fp32", "torch.float32": "fp32",
    "float8": "fp8", "fp8_e4m3": "fp8", "float8_e4m3": "fp8", "float8_e4m3fn": "fp8",
    "torch.float8_e4m3fn": "fp8", **{name: name for name in FORMATS}}


@dataclass(frozen=True)
class Products:
    """N measured matrix products (m x k) @ (k x n) of one format.

    Attributes
    ----------
    m, n, k, seconds : float64, shape (N,)
    """

    m: Array
    n: Array
    k: Array
    seconds: Array

    def __len__(self) -> int:
        return len(self.seconds)


@dataclass(frozen=True)
class GemmFit:
    """The fit of one format.

    Attributes
    ----------
    efficiency : the figures to write for the format.
    after : float64, shape (N,): misfits of the device that is written, which has one launch
        overhead for all formats; ``fit.after`` has the format's own.
    note : what the figures do not cover, or nothing.
    """

    dtype: Dtype
    count: int
    fit: Fit
    efficiency: GemmEfficiency
    after: Array
    note: str = ""


@dataclass(frozen=True)
class DeviceFit:
    """A device fitted to its products.

    Attributes
    ----------
    before, device : as it was, and as it is to be written.
    """

    before: Device
    device: Device
    formats: tuple[GemmFit, ...]


def read_products(
    path: str | os.PathLike[str], gpu: str | None = None
) -> dict[Dtype, Products]:
    """Measured products of one device from CSV, by number format.

    Parameters
    ----------
    path : columns dtype, m, n, k and one of latency_s, latency_ms, latency_us; gpu where the
        file holds several devices.
    gpu : which of them.

    Raises
    ------
    InputError : columns are missing, a cell is no number, a format is unknown, the file holds
        several devices and none is asked for, or too few products are left.
    """
    where = shorten(os.fspath(path), 300)[1:-1]
    found = rows(read_text(path), where, NEEDED)
    time = seconds(found, where)
    if "gpu" in found[0].cells:
        found = only(found, "gpu", gpu, "gpu")
    elif gpu is not None:
        raise InputError(f"gpu: got {shorten(gpu)}; allowed: nothing, for {where} has no such "
                         "column")
    lists: dict[Dtype, list[tuple[float, ...]]] = {}
    for row in found:
        taken = time(row)
        if taken is None or not row.text("m"):
            continue  # a row about something else, such as the best rate of any product
        given = row.text("dtype").casefold()
        if given not in _SPELLED:
            raise InputError(f"{row.place}: dtype: got {shorten(row.text('dtype'))}; allowed: "
                             f"{', '.join(FORMATS)}")
        cells = (row.number("m"), row.number("n"), row.number("k"), taken)
        lists.setdefault(_SPELLED[given], []).append(cells)
    few = {name: len(each) for name, each in lists.items() if len(each) < FEWEST}
    if few or not lists:
        shown = ", ".join(f"{number} of {name}" for name, number in few.items()) or "none"
        raise InputError(f"{where}: got {shown} with m, n, k and a time; needed: at least "
                         f"{FEWEST} products of a format")
    return products_of(lists)


def products_of(lists: Mapping[Dtype, list[tuple[float, ...]]]) -> dict[Dtype, Products]:
    """Products by format, of rows (m, n, k, seconds)."""
    return {name: Products(*np.array(lists[name]).T) for name in FORMATS if name in lists}


def fit_products(
    device: Device, products: Mapping[Dtype, Products], apart: bool = False
) -> DeviceFit:
    """Fit a device to its measured products.

    Parameters
    ----------
    device : where the fit starts and what its priors are centred on.
    products : by format; the first of :data:`FORMATS` also tells launch overhead and memory.
    apart : fit halves of rows and columns separately.

    Raises
    ------
    InputError : the device has no peak for a format.
    """
    now, done = device, list[GemmFit]()
    for dtype in (name for name in FORMATS if name in products):
        peak_flops(device, dtype)
        found, now = _fit_format(now, dtype, products[dtype], apart, first=not done)
        done.append(found)
    return DeviceFit(device, now, tuple(done))


def alone() -> Stack:
    """A stack that changes nothing: kernels as they are measured alone."""
    return load_stack("megatron-core").replace(gemm_derate=1.0, memory_derate=1.0, devices={})


def _fit_format(
    device: Device, dtype: Dtype, products: Products, apart: bool, first: bool
) -> tuple[GemmFit, Device]:
    stack = alone()
    parameters = _parameters(device, dtype, apart)
    short = _short(device, dtype, products)
    if first:
        parameters.append(Parameter("memory_efficiency", device.memory_efficiency, 0.05, 1.0, 0.15))
    if short:
        overhead = device.launch_overhead
        parameters.append(Parameter("launch_overhead", overhead, 0.0, 1e-4, max(overhead, 1e-6),
                                    "s"))
    names = [each.name for each in parameters]

    def misfits(values: Array) -> Array:
        changed = _changed(device, dtype, dict(zip(names, map(float, values), strict=True)))
        return _log_ratio(changed, stack, dtype, products)

    found = fit(parameters, misfits, NOISE)
    values = {name: _rounded(value) for name, value in found.values().items()}
    note = "" if short else (
        "launch_overhead is not fitted: too few products are as short as a launch, and in longer "
        "ones it looks like part of the product")
    if not first and (own := values.pop("launch_overhead", None)) is not None:
        note = (f"a launch of {dtype} takes {format_seconds(own, 3)}; the file keeps the device's "
                f"{format_seconds(device.launch_overhead, 3)}, so that short {dtype} products are "
                "priced too fast" if own > 1.5 * device.launch_overhead else "")
    changed = _changed(device, dtype, values)
    efficiency = GemmEfficiency.parse(changed.gemm_for(dtype).model_dump())
    after = _log_ratio(changed, stack, dtype, products)
    return GemmFit(dtype, len(products), found, efficiency, after, note), changed


def _parameters(device: Device, dtype: Dtype, apart: bool) -> list[Parameter]:
    """What is fitted of a format, with wide priors (chosen)."""
    e = device.gemm_for(dtype)
    half = (e.m_half + e.n_half) / 2
    found = [Parameter("peak_fraction", e.peak_fraction, 0.01, 1.0, 0.3)]
    if apart and dtype != "fp8":
        found += [Parameter("m_half", e.m_half, 0.0, 1e4, 150.0),
                  Parameter("n_half", e.n_half, 0.0, 1e4, 150.0)]
    else:
        found.append(Parameter("m_half, n_half", half, 0.0, 1e4, 150.0))
    found += [Parameter("k_half", e.k_half, 0.0, 1e4, 150.0),
              Parameter("decline", e.decline, 0.0, 0.5, 0.03)]
    if dtype == "fp8":
        found.append(Parameter("cast_bytes", e.cast_bytes, 0.0, 100.0, 5.0))
    return found


def _short(device: Device, dtype: Dtype, products: Products) -> bool:
    """Whether enough products are short enough to show the launch overhead."""
    at_peak = 2 * products.m * products.n * products.k / peak_flops(device, dtype)
    return int((at_peak < SHORT * device.launch_overhead).sum()) >= SHORTEST


def _changed(device: Device, dtype: Dtype, values: dict[str, float]) -> Device:
    """The device with some figures changed, those of a format among them; not validated."""
    own: dict[str, float] = {}
    whole: dict[str, object] = {}
    for name, value in values.items():
        if name in Device.model_fields:
            whole[name] = value
        else:
            own.update(dict.fromkeys(name.split(", "), value))
    efficiency = device.gemm_for(dtype).model_copy(update=own)
    return device.model_copy(
        update={**whole, "gemm": {**device.gemm, key_of(device, dtype): efficiency}})


def key_of(device: Device, dtype: Dtype) -> str:
    """Name under which a device keeps the figures of a format: its 16-bit one is `default`."""
    return "default" if dtype in ("bf16", "fp16") and dtype not in device.gemm else dtype


def _log_ratio(device: Device, stack: Stack, dtype: Dtype, products: Products) -> Array:
    machine = Machine(device, stack, dtype)
    predicted = gemm_seconds(machine, products.m, products.n, products.k)
    found: Array = np.log(predicted / products.seconds)
    return found


def _rounded(value: float) -> float:
    """Three digits: more are not known."""
    return float(f"{value:.3g}") if abs(value) > 1e-9 else 0.0
