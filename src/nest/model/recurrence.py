"""Operators of linear attention and of state-space models."""

from __future__ import annotations

from types import MappingProxyType

from nest.inputs.model import Model
from nest.model.norm_linear import gemm, kept_input
from nest.model.operators import Operator

SPEED = MappingProxyType({"gated_delta": 1.0, "kimi_delta": 0.6, "lightning": 1.65, "mamba2": 0.82,
                          "mamba": 1.0})
"""Rate of a recurrence's kernels, in FLOP of `Recurrence.flop`, over that of the gated delta rule.

Of Triton kernels, heads of 128 x 128, bf16, forward: kimi_delta 0.54 on H200 and 0.66 on GB200,
lightning 1.67 on GB200 (inclusionAI/cuLA BENCHMARK_H200.md and BENCHMARK_GB200.md against
QwenLM/FlashQLA, below). mamba2: half of lightning, as mamba-ssm 2.2.2 takes twice as long as
chunk_simple_gla (fla-org/flash-linear-attention pull request 50, device not stated). mamba: its
bytes are what takes long.
"""


def recurrence(model: Model) -> list[Operator]:
    """A layer's mixer that passes on a state, after its norm.

    Tensor parallelism divides its heads. Unfused kernels are assumed: the convolution keeps its
    input and the recurrence its own, the gated norm its input and the gate. All of it runs again
    with full recompute only. The kernel keeps the state before each chunk (arXiv:2405.21060,
    section 6); Mamba computes states again (arXiv:2312.00752, section 3.3.2).
    """
    r = model.recurrence
    assert r is not None
    inner, mixed = r.inner, r.mixed
    ops = [
        gemm(p.name, p.split, p.width, p.depth, p.bias, 0 if p.from_input else p.depth)
        for p in r.products(model.hidden)
    ]
    ops.append(kept_input(model, "projection_input"))
    parameters = r.own_parameters
    if r.conv:
        own = mixed * (r.conv + r.conv_bias)
        parameters -= own
        ops.append(Operator("convolution", "memory", "heads", forward_elements=2 * mixed,
                            backward_elements=3 * mixed, parameters=own, saved_elements=mixed))
    states = 0.0 if r.form == "mamba" else r.inner * r.state / r.chunk
    ops += [
        Operator("recurrence", "scan", "heads", attention_width=r.flop / 2.0, speed=SPEED[r.form],
                 forward_elements=mixed + inner + states,
                 backward_elements=2 * (mixed + inner) + 2 * states, parameters=parameters,
                 saved_elements=mixed + states),
        Operator("gated_norm", "memory", "heads", forward_elements=3 * inner,
                 backward_elements=5 * inner, saved_elements=2 * inner),
        gemm("mixer_output", "row", model.hidden, inner, r.bias, inner),
    ]
    return ops
