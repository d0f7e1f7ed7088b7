"""Figures of a software stack (and of a device) fitted to measured training runs.

The model is :func:`nest.evaluate` of exactly each run's configuration, by
:func:`nest.measured.validation.price`. A training step determines few figures: how much slower
matrix products and element-wise kernels run than alone, and how much traffic is hidden. Each has a
prior at the value of the catalog. The prior is wide compared with what five runs determine, and
narrow compared with what they do not determine, so that such a figure keeps its value.

Runs of one configuration and software version count as one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nest.errors import InputError
from nest.inputs import Device, Stack
from nest.measured import validation
from nest.measured.calibration.fit import Array, Fit, Parameter, fit_slow, without
from nest.measured.table import like
from nest.measured.validation import PricedRun, Run
from nest.measured.validation.translate import facts
from nest.units import shorten

FEWEST = 2
"""Configurations below which nothing is fitted."""
MANY = 10
"""Fewest runs to fit attention separately from products, unless figures are named (chosen)."""
NOISE = 0.03
"""Least spread of the misfits: repeats of one configuration differ by 2 to 8 %."""

_DERATE, _SHARE = (0.2, 1.0, 0.25, ""), (0.0, 1.0, 0.3, "")
STACK_FIGURES: dict[str, tuple[float, float, float, str]] = {
    # bounds, spread of the prior (chosen), unit
    "gemm_derate": _DERATE,
    "attention_derate": _DERATE,
    "memory_derate": _DERATE,
    "overlap_grad_reduce": _SHARE,
    "overlap_param_gather": _SHARE,
    "overlap_zero3": _SHARE,
    "overlap_slowdown": _SHARE,
    "overlap_tp": _SHARE,
    "overlap_p2p": _SHARE,
    "overlap_cp": _SHARE,
    "layer_gap": (0.0, 1e-2, 3e-4, "s"),
    "layer_overhead": (0.0, 1e-2, 3e-4, "s"),
}
DEVICE_FIGURES: dict[str, tuple[float, float, float, str]] = {
    "attention_fraction": (0.05, 1.0, 0.15, ""),
    "memory_efficiency": (0.2, 1.0, 0.15, ""),
    "launch_overhead": (0.0, 1e-4, 3e-6, "s"),
}
FIGURES = (*STACK_FIGURES, *DEVICE_FIGURES)


@dataclass(frozen=True)
class FitRuns:
    """Runs to fit, and what they are priced with.

    Attributes
    ----------
    runs : each has a measured step and can be priced.
    stacks, devices : by the name that a run has for it, what to start from; a stack with rates
        of its own on these devices has them as its own figures.
    stack, device : the one of all runs; no device where they ran on several.
    skipped : why runs were left out, with their number.
    """

    runs: tuple[Run, ...]
    stacks: Mapping[str, Stack]
    devices: Mapping[str, Device]
    stack: Stack
    device: Device | None
    skipped: Mapping[str, int]


@dataclass(frozen=True)
class RunsFit:
    """The fit of a stack and, where requested, a device to training runs.

    Attributes
    ----------
    weights : float64, shape (N,): 1 over the number of runs of the same configuration.
    left_out : float64, shape (N,): misfit of each run under a fit without its configuration.
    """

    chosen: FitRuns
    fit: Fit
    stack: Stack
    device: Device | None
    weights: Array
    left_out: Array


def choose(
    runs: Sequence[Run], stack: Stack | None = None, stack_name: str | None = None,
    device: Device | None = None, group: str | None = None, gpu: str | None = None,
) -> FitRuns:
    """Runs of one software stack, with a measured step, that NEST can price.

    Parameters
    ----------
    runs : of :func:`nest.measured.validation.read`.
    stack : price all under it, whatever software they name.
    stack_name : take only runs that are known to be of it.
    device : price all on it, whatever device they name.
    group, gpu : take only these; `*` stands for anything.

    Raises
    ------
    InputError : several stacks and none is asked for, or too few runs are left.
    """
    taken = [run for run in runs if like(run.group, group) and like(run.text("gpu"), gpu)]
    skipped: Counter[str] = Counter()
    usable: list[tuple[Run, str, str]] = []
    for priced in validation.price(taken):
        if priced.reason is not None:
            skipped[priced.reason] += 1
        elif priced.run.measured_s is None:
            skipped["no measured step time"] += 1
        elif priced.run.anomalous:
            skipped["contradicts its neighbours"] += 1
        elif stack is None and stack_name is not None and priced.stack != stack_name:
            skipped[f"of {priced.stack}"] += 1
        else:
            usable.append((priced.run, priced.stack, facts(priced.run).shape.device))
    names = Counter(name for _, name, _ in usable)
    if len(names) > 1 and stack is None:
        given = ", ".join(f"{name} ({number} runs)" for name, number in names.most_common())
        raise InputError(f"stack: got none; needed, for the runs are of {given}; or a file, to "
                         "price all under it")
    if len(usable) < FEWEST:
        why = "; ".join(f"{number}: {text}" for text, number in skipped.most_common(3))
        raise InputError(f"runs: got {len(usable)} that can be fitted; needed: at least {FEWEST}"
                         + (f" (left out: {why})" if why else ""))
    own = [validation.question(run) for run, _, _ in usable]
    on = {name: device or one.cluster.device
          for (_, _, name), one in zip(usable, own, strict=True)}
    start = settled(stack or own[0].job.stack, {each.name for each in on.values()})
    return FitRuns(tuple(run for run, _, _ in usable), dict.fromkeys(names, start), on, start,
                  next(iter(on.values())) if len(set(on.values())) == 1 else None, dict(skipped))


def settled(stack: Stack, devices: set[str]) -> Stack:
    """A stack whose own rates are those that it has on these devices.

    Raises
    ------
    InputError : it has several on them.
    """
    marks = [mark for mark in stack.devices
             if any(name.casefold().startswith(mark.casefold()) for name in devices)]
    if not marks:
        return stack
    rates = [stack.rates(name) for name in sorted(devices)]
    if any(each != rates[0] for each in rates):
        raise InputError(f"stack: {stack.name} has rates of its own on {', '.join(marks)}; needed: "
                         "runs on one type of device (--gpu)")
    given = {name: getattr(stack, name) for name in stack.model_fields_set
             if name != "attention_derate"}
    own = {name: getattr(rates[0], name) for name in rates[0].model_fields_set}
    left = {mark: each for mark, each in stack.devices.items() if mark not in marks}
    return Stack.parse({**given, **own, "devices": left})


def usual(chosen: FitRuns) -> tuple[str, ...]:
    """Figures to fit where none are named: derates, and what hides the runs' own traffic.

    With few runs attention is not fitted separately: it follows the products.
    """
    found = ["gemm_derate", "memory_derate"]
    if len(chosen.runs) >= MANY and chosen.stack.flash_attention:
        found.insert(1, "attention_derate")
    for run in chosen.runs:
        zero, shared = run.degree("zero_stage") if run.text("zero_stage") else 0, run.degree("dp")
        if shared * run.degree("cp") > 1:
            found.append("overlap_zero3" if zero >= 2 else "overlap_grad_reduce")
    return tuple(dict.fromkeys(found))


def check_figures(names: Sequence[str], chosen: FitRuns) -> None:
    """Refuse names that are no figures to fit.

    Raises
    ------
    InputError : an unknown name, one given twice, or a device's where runs are of several.
    """
    for name in names:
        if name not in FIGURES or list(names).count(name) > 1:
            raise InputError(f"fit: got {shorten(name)}; allowed, each once: {', '.join(FIGURES)}")
        if name in DEVICE_FIGURES and chosen.device is None:
            raise InputError(f"fit: got {name}, of a device, and runs on "
                             f"{', '.join(chosen.devices)}; needed: runs on one device (--gpu)")


def fit_runs(chosen: FitRuns, names: Sequence[str] | None = None) -> RunsFit:
    """Fit figures of the stack, and of the device where named, to measured runs.

    Parameters
    ----------
    chosen : of :func:`choose`.
    names : of :data:`FIGURES`; default: :func:`usual`.

    Raises
    ------
    InputError : a name is no figure to fit.
    """
    names = usual(chosen) if names is None else tuple(names)
    check_figures(names, chosen)
    parameters = [_parameter(chosen, name) for name in names]
    weights = _weights(validation.price(chosen.runs, chosen.stacks, chosen.devices))

    def misfits(values: Array) -> Array:
        return _misfits(chosen, chosen.runs, names, values)

    found = fit_slow(parameters, misfits, NOISE, weights[0])
    values = np.array([float(f"{each.value:.3g}") for each in found.estimates])
    stack, device = _changed(chosen, names, values)
    left_out = _leave_out(chosen, names, found, *weights)
    return RunsFit(chosen, found, stack, device, weights[0], left_out)


def _parameter(chosen: FitRuns, name: str) -> Parameter:
    if name in STACK_FIGURES:
        return Parameter(name, getattr(chosen.stack, name), *STACK_FIGURES[name])
    return Parameter(name, getattr(chosen.device, name), *DEVICE_FIGURES[name])


def _changed(
    chosen: FitRuns, names: Sequence[str], values: Array
) -> tuple[Stack, Device | None]:
    """Stack and device with these figures."""
    new = dict(zip(names, map(float, values), strict=True))
    stack = chosen.stack.replace(**{k: v for k, v in new.items() if k in STACK_FIGURES})
    own = {name: value for name, value in new.items() if name in DEVICE_FIGURES}
    return stack, chosen.device.replace(**own) if chosen.device and own else chosen.device


def _misfits(
    chosen: FitRuns, runs: Sequence[Run], names: Sequence[str], values: Array
) -> Array:
    """log(predicted / measured) of the runs; shape (N,)."""
    stack, device = _changed(chosen, names, values)
    devices = chosen.devices if device is None else dict.fromkeys(chosen.devices, device)
    priced = validation.price(runs, dict.fromkeys(chosen.stacks, stack), devices)
    return np.array([math.log((each.predicted_s or 1.0) / (each.run.measured_s or 1.0))
                     for each in priced])


def _weights(priced: Sequence[PricedRun]) -> tuple[Array, list[list[int]]]:
    """Weight of each run, and the runs of each configuration."""
    together: dict[object, list[int]] = {}
    for number, each in enumerate(priced):
        together.setdefault(each.key, []).append(number)
    weights = np.ones(len(priced))
    for rows in together.values():
        weights[rows] = 1.0 / len(rows)
    return weights, list(together.values())


def _leave_out(
    chosen: FitRuns, names: Sequence[str], found: Fit, weights: Array, together: list[list[int]]
) -> Array:
    """Misfit of each run under figures fitted without its configuration."""
    result = np.zeros(len(chosen.runs))
    for rows in together:
        values = without(found, rows, weights)
        result[rows] = _misfits(chosen, [chosen.runs[i] for i in rows], names, values)
    return result
