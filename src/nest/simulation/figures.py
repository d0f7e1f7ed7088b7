"""The figures of a stage and its links in the simulation: plain seconds and bytes."""

from __future__ import annotations

from typing import NamedTuple


class LayerWork(NamedTuple):
    """Seconds of one layer on one device; the default is no time."""

    forward: float
    """Computing a micro-batch forward."""
    backward: float
    """Computing it backward, with what is recomputed."""
    ahead: float = 0.0
    """Tensor, context and expert parallel traffic of a micro-batch forward that is exposed."""
    back: float = 0.0
    """The same backward."""
    gathered: float = 0.0
    """Gathering its parameters before every forward (ZeRO-3)."""
    regathered: float = 0.0
    """Gathering them again before every backward."""
    scattered: float = 0.0
    """Scattering its gradients after every backward (ZeRO-2 and 3)."""
    reduced: float = 0.0
    """Reducing its gradients after its last backward of the step."""
    refreshed: float = 0.0
    """Gathering its updated parameters before its first forward of the step (ZeRO-1 and 2)."""
    gradient_bytes: float = 0.0
    """Gradients for the bucket."""
    weights: float = 0.0
    """Part of ``backward`` that is for weights."""
    exchanged_ahead: float = 0.0
    """All-to-alls of experts, part of ``ahead``."""
    exchanged_back: float = 0.0
    """The same of ``back``."""
    busy_ahead: float = 0.0
    """Computing of a layer with experts that may hide the all-to-alls of a pass beside."""
    busy_back: float = 0.0
    """The same backward."""


class ChunkMemory(NamedTuple):
    """Bytes that a chunk needs on a device besides parameters, gradients and optimizer."""

    activations: float
    """From the start of a micro-batch's forward to the end of its backward."""
    work: float
    """During a backward."""
    kept: float = 0.0
    """From a backward for inputs to the one for weights, instead of activations."""
    layer: float = 0.0
    """Activations of the largest layer that runs beside others."""


class StageWork(NamedTuple):
    """A stage: its chunks, each a sequence of layers, and its end of a step."""

    chunks: tuple[tuple[LayerWork, ...], ...]
    tied: float = 0.0
    """Seconds of exchanging gradients with other stages that hold a copy of a tied embedding."""
    update: float = 0.0
    """Seconds of the optimizer."""


class Link(NamedTuple):
    """The link for one chunk's output to the next chunk, and its gradient back."""

    delay: float
    """Seconds from the end of computing to the arrival, one way."""
    gap: float = 0.0
    """Seconds that a message occupies the link: the least distance of two arrivals."""


class OverlapRates(NamedTuple):
    """Shares of computing time under which each traffic makes progress."""

    zero: float = 0.0
    """ZeRO-2 and ZeRO-3 traffic of every micro-batch."""
    reduce: float = 0.0
    """Gradient reduction at the end of a step."""
    refresh: float = 0.0
    """Gathering updated parameters at the start of a step."""
