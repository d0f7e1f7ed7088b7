"""How the loss and the product of the head run: at once, in parts, or without logits in memory.

In parts (``chunks``: torchtitan==0.3.0 torchtitan/components/loss.py:567; ``liger``:
linkedin/Liger-Kernel@v0.6.4 src/liger_kernel/ops/fused_linear_cross_entropy.py) the head's product,
the loss and their backward pass run for some tokens of a micro-batch after the other: logits of one
part are there at a time, and none afterwards, but the gradient of the head's input is. It is
priced as part of the backward pass. Liger's parts are as many tokens, a power of two, as take about
the bytes of the head's input; its kernel reads logits twice and writes their gradient in place.
Cut cross-entropy (``cut``: arXiv:2411.09009, section 4) keeps logits on chip and computes them once
more for the backward pass.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from nest.costs.compute import Array
from nest.inputs.job import Stack
from nest.inputs.space import Loss


class Form(NamedTuple):
    """Figures of one form."""

    moved: tuple[float, float] | None = None
    """Elements that its kernels read and write for each logit, each way; None: the model's."""
    keeps: bool = True
    """Logits stay between the passes, as the stack's ``loss_kept`` says."""
    gradient: float = 0.0
    """Bytes of each element of the gradient of the head's input that is there early."""
    again: bool = False
    """The head's product runs again in the backward pass."""


FORMS: MappingProxyType[Loss, Form] = MappingProxyType({
    "whole": Form(), "chunks": Form(keeps=False, gradient=4.0),
    "liger": Form((3.0, 0.0), False, 2.0), "cut": Form((0.0, 0.0), False, again=True)})


def parts(stack: Stack, rows: Array, width: Array, depth: float) -> Array:
    """Parts that the loss runs in, one after the other; (C,), at least 1.

    Parameters
    ----------
    rows : tokens of a micro-batch on a device.
    width : words of the vocabulary on a device.
    depth : width of the head's input.
    """
    if stack.loss == "chunks":
        return np.minimum(float(stack.loss_chunks), np.maximum(1.0, rows))
    if stack.loss != "liger":
        return np.ones(len(rows))
    each = np.ceil(np.maximum(1.0, rows) / np.ceil(width / depth))
    found: Array = np.ceil(np.maximum(1.0, rows) / 2.0 ** np.ceil(np.log2(each)))
    return found
