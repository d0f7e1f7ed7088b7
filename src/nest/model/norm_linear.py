"""Operators that layers of all kinds have: norms, linear layers, their inputs, additions."""

from __future__ import annotations

from nest.inputs.model import Model
from nest.model.operators import Operator, Split


def norm(model: Model, name: str, width: int) -> Operator:
    """A norm that reads and writes ``width`` elements per token."""
    parameters = width * (1 + model.norm_bias)
    return Operator(name, "memory", "sequence", forward_elements=2 * width,
                    backward_elements=3 * width, parameters=parameters, saved_elements=width)


def gemm(
    name: str, split: Split, width: int, depth: int, bias: bool, saved: float,
    again: tuple[str, ...] = (), dropped: tuple[str, ...] = (), cast_elements: float | None = None,
) -> Operator:
    """A linear layer; ``saved``: elements of its input that no other operator saves."""
    return Operator(name, "gemm", split, width=width, depth=depth,
                    parameters=width * depth + (width if bias else 0), saved_elements=saved,
                    product_input=saved == depth, again=again, dropped=dropped,
                    cast_elements=cast_elements)


def kept_input(model: Model, name: str) -> Operator:
    """The normed input of linear layers, saved once for all that read it."""
    return Operator(name, "memory", "sequence", saved_elements=model.hidden, dropped=("norm",),
                    product_input=True, cast_elements=model.hidden)


def residual(model: Model, name: str) -> Operator:
    """Residual addition, behind dropout; its gradient is added once in the backward."""
    return Operator(name, "memory", "sequence", forward_elements=3 * model.hidden,
                    backward_elements=model.hidden, masked_elements=model.hidden)
