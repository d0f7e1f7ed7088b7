"""Operator graph of a model, folded into the layers that the search may cut between."""

from nest.graph.build import build_chain, profile_chain
from nest.graph.chain import (
    MOST_CUTS,
    Chain,
    Tensor,
    boundary_bytes,
    model_flop,
    relay_bytes,
    tensor_bytes,
)
from nest.graph.operators import (
    EXPERT,
    MODULES,
    Experts,
    Layer,
    Measured,
    Operator,
    Traffic,
)

__all__ = [
    "EXPERT",
    "MODULES",
    "MOST_CUTS",
    "Chain",
    "Experts",
    "Layer",
    "Measured",
    "Operator",
    "Tensor",
    "Traffic",
    "boundary_bytes",
    "build_chain",
    "model_flop",
    "profile_chain",
    "relay_bytes",
    "tensor_bytes",
]
