"""A stage from the sums over its layers: what enters the step time, and what memory it needs.

Element-wise on arrays of any shape: stages of a plan, or all configurations of all cuts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.layer import LayerCosts
from nest.describe.job import Stack

Array = NDArray[np.float64]


class Sums(NamedTuple):
    """What a stage needs of its layers: arrays that add up, and two that do not."""

    forward: Array
    """All seconds of a micro-batch going forward."""
    backward: Array
    sync: Array
    """Gradient reduction less what hides it; below zero where the layer hides others'."""
    gather: Array
    """Parameter all-gather less what hides it."""
    exposed: Array
    """Seconds after the last backward that nothing hides."""
    traffic: Array
    """Gradient reduction and parameter all-gather, before anything hides them."""
    resident: Array
    """Bytes of parameters, gradients and optimizer states."""
    activations: Array
    """Bytes per micro-batch in flight."""
    work: Array
    """Largest, not summed."""
    buffers: Array
    """Largest, not summed."""


SUMMED = len(Sums._fields) - 2
"""The first so many fields of :class:`Sums` add up over layers; the rest are maxima."""


def sums(c: LayerCosts, stack: Stack) -> Sums:
    """Fold the causes of :class:`LayerCosts` into what a stage needs.

    Gradients reduce while the last micro-batch goes backward, parameters gather under the next
    step's first forward pass, as far as the stack overlaps them; what hides ZeRO traffic hides
    nothing else, or else computing longer would shorten the step. The exchange of tied embeddings
    is exposed (Megatron-LM finalises those gradients last), and so is the optimizer.
    """
    return Sums(
        forward=c.forward + c.tp_forward + c.cp_forward + c.ep_forward + c.zero_forward,
        backward=(c.backward + c.recompute + c.tp_backward + c.cp_backward + c.ep_backward
                  + c.zero_backward),
        sync=c.sync - stack.overlap_grad_reduce * c.spare,
        gather=c.gather - stack.overlap_param_gather * c.free_forward,
        exposed=c.tied + c.update,
        traffic=c.sync + c.gather,
        resident=c.parameters + c.gradients + c.optimizer,
        activations=c.activations,
        work=c.work,
        buffers=c.buffers,
    )


class StageCosts(NamedTuple):
    """What the step time and the memory limit see of a stage."""

    forward: Array
    """Seconds of a micro-batch going forward, exposed communication included."""
    backward: Array
    """The same going backward, recompute included."""
    finish: Array
    """Seconds after the last backward pass: gradients, optimizer, parameters."""
    resident: Array
    """Bytes held whatever is in flight."""
    activations: Array
    """Bytes per micro-batch in flight."""


def stage_costs(layers: Sums, chunks: int = 1) -> StageCosts:
    """Seconds and bytes of a stage whose layers fold to ``layers``.

    What layers have left to hide under hides the gradients and gathers of others. Of several
    chunks only the last to end, and the first to begin, have nothing else to hide under (arXiv:
    2104.04473, figure 4).
    """
    return StageCosts(
        forward=layers.forward,
        backward=layers.backward,
        finish=(np.maximum(0.0, layers.sync) / chunks + layers.exposed
                + np.maximum(0.0, layers.gather) / chunks),
        resident=layers.resident + layers.work + layers.buffers,
        activations=layers.activations,
    )


def hop_seconds(
    total_bytes: float, lanes: float, per_byte: float, latency: float, stack: Stack
) -> float:
    """Seconds of handing a micro-batch to the next stage and its gradient back.

    ``total_bytes`` is one direction of the whole super-pipeline; it travels over as many lanes as
    the side with fewer shards has: with sequence parallelism, or where the stack scatters and
    gathers (arXiv:2104.04473, section 4.1), tp of them. The stack says which share compute hides.
    """
    return 2.0 * (1.0 - stack.overlap_p2p) * (total_bytes / lanes * per_byte + latency)
