"""A stage from the sums over its layers: what enters the step time, and what memory it needs.

Element-wise on arrays of any shape: stages of a plan, or all configurations of all cuts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.layer import Sums
from nest.describe.job import Stack

Array = NDArray[np.float64]


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
    the side with fewer distinct shards has (Megatron-LM scatter-gather, arXiv:2104.04473,
    section 4.1). The stack says which share compute hides.
    """
    return 2.0 * (1.0 - stack.overlap_p2p) * (total_bytes / lanes * per_byte + latency)
