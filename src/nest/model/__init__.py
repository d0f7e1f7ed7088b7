"""From a model to the layers that a plan may cut between.

`operators` has what one operator computes, keeps and sends; `transformer` builds a transformer
layer, `sparse` what reads selected or compressed keys, `build` an embedding and a head, and puts a
model together, `trained` freezes parts of it and adds adapters; `chain` is the result: layers in
order, with the tensors that cross each cut; `layouts` lists divisions of it into chunks, reads and
writes them as Megatron-Core does. `schedules` says where a schedule puts
chunks and what it needs, `legality` which degrees of parallelism are legal, and why not. Read them
in this order; `capture` makes operator graphs of modules and files.

Where to find: attention windows in `operators` (`Operator.seen`), chunks of virtual pipelines (vpp)
in `nest.schedules.registry`.
"""

from nest.model.build import build_chain, profile_chain
from nest.model.chain import (
    MOST_CUTS,
    Chain,
    Tensor,
    boundary_bytes,
    model_flop,
    relay_bytes,
    spans,
    tensor_bytes,
)
from nest.model.operators import (
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
    "spans",
    "tensor_bytes",
]
