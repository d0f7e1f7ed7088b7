"""A software stack of what the host and overlapped work took.

A stack that measured runs speak for keeps all of its figures: they were fitted together.
"""

from __future__ import annotations

from nest.inputs import catalog, load_stack
from nest.inputs.job import Stack
from nest.measured.calibration.fit import Estimate, Parameter
from nest.measured.probe.device import ProbedFigures, middle, spreads
from nest.measured.probe.results import ProbeResults

DEFAULT = "fsdp"
"""PyTorch's own, as the probe's layer is."""
DOUBT = 0.2
"""Doubt of the slowdown above which it is not taken over (chosen)."""
ASSUMED = ("overlap_grad_reduce", "overlap_param_gather", "overlap_zero3", "overlap_tp",
           "overlap_p2p", "overlap_cp", "gemm_derate", "attention_derate", "memory_derate",
           "fragmentation")
"""What no probe tells, and training does: `nest learn`."""


def probed_stack(results: ProbeResults, given: str | None) -> ProbedFigures:
    """A stack with the measured gaps of the host, overlap and buffers.

    The host's time of a layer is a least time (`layer_overhead`) where a GPU works beside it, and
    adds to the layer's where the device is the host itself (`layer_gap`).

    Raises
    ------
    InputError : no such stack.
    """
    stack = load_stack(given or DEFAULT)
    known = catalog.find("stacks", given or DEFAULT)
    base = {"base": known} if known else stack.as_dict()
    if stack.is_measured:
        return ProbedFigures(base, [], [
            f"{stack.name}: measured runs speak for its figures: none is replaced"])
    gap = "layer_overhead" if results.device.kind == "cuda" else "layer_gap"
    layers = [row for row in results.of("host") if (row.what or "").startswith("layer ")]
    found: list[Estimate | None] = [middle(
        gap, layers, lambda row, seconds: seconds / row.count, getattr(stack, gap), "s")]
    found.append(_slowdown(results, stack))
    if results.buffer_bytes:
        found.append(Estimate(Parameter("workspace", stack.workspace, 0.0, float("inf"), 1.0, "B"),
                              float(results.buffer_bytes), 0.0, True))
    told = [each for each in found if each is not None]
    changes = {each.parameter.name: each.value for each in told if each.determined}
    assumed = ", ".join(name for name in ASSUMED if name not in changes)
    text = (f"{', '.join(changes) or 'nothing'}: measured by nest probe"
            f"{spreads(told)}; assumed, as {stack.name}: {assumed} and all else")
    return ProbedFigures({**base, "name": f"{stack.name} (probed)", **changes, "source": text},
                         told)



def _slowdown(results: ProbeResults, stack: Stack) -> Estimate | None:
    """Seconds that products lose for each second of an all-reduce beside them.

    None: not measured, or the all-reduce is so long that products do not cover it.
    """
    rows = {row.what: row for row in results.of("overlap")}
    if not {"product", "collective", "both"} <= set(rows):
        return None
    product, collective, both = (rows[name].seconds or 1.0
                                 for name in ("product", "collective", "both"))
    if collective > 0.8 * product:
        return None
    value = min(1.0, max(0.0, (both - product) / collective))
    doubt = sum(abs((rows[name].high or 0.0) - (rows[name].low or 0.0)) / 2.0
                for name in ("product", "both")) / collective
    before, told = stack.overlap_slowdown, doubt < DOUBT
    return Estimate(Parameter("overlap_slowdown", before, 0.0, 1.0, 1.0),
                    float(f"{value:.3g}") if told else before, doubt, told)
