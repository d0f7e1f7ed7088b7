"""Devices, stacks and models with round figures, for tests worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from nest.costs.choices import Body, StageSetting, State
from nest.costs.compute import Machine
from nest.costs.layer import LayerCosts, layer_costs
from nest.costs.network.collectives import Group, Network
from nest.inputs import Device, Job, Model, Stack
from nest.model import Layer, build_chain
from nest.schedules.chunk import ChunkCosts

S, B, H, A, FF, V = 64, 2, 32, 4, 128, 1000
"""Tokens of a sample, samples, hidden, heads, MLP and vocabulary of :func:`model`."""
SBH = S * B * H
LINK = 1e9
FAST_MEMORY = {"memory_bandwidth": 1e18}
FAST_PRODUCTS = {"peak_flops": {"bf16": 1e18}}


def stack(**changes: Any) -> Stack:
    """Nothing overlaps, nothing is lost; flash attention."""
    plain: dict[str, Any] = {
        "name": "plain", "overlap_grad_reduce": 0.0, "overlap_param_gather": 0.0,
        "overlap_zero3": 0.0, "overlap_tp": 0.0, "overlap_p2p": 0.0, "flash_attention": True,
        "gemm_derate": 1.0, "memory_derate": 1.0, "workspace": 0.0, "fragmentation": 0.0,
    }
    return Stack(**(plain | changes))


def device(**changes: Any) -> Device:
    """80 GB, 1 TB/s, 100 TFLOP/s of which any product reaches all; no launch overhead."""
    plain: dict[str, Any] = {
        "name": "plain", "memory": 80e9, "memory_bandwidth": 1e12, "memory_efficiency": 1.0,
        "peak_flops": {"bf16": 100e12, "fp8": 200e12, "tf32": 50e12}, "launch_overhead": 0.0,
        "attention_fraction": 1.0,
        "gemm": {"default": {"peak_fraction": 1.0, "m_half": 0, "n_half": 0, "k_half": 0}},
        "grouped": {"default": {"rate": 1.0, "memory_share": 1.0, "group_time": 0.0}},
    }
    return Device(**(plain | changes))


def model(**changes: Any) -> Model:
    """GPT layers: LayerNorm, four heads, a plain MLP of four times the width."""
    plain: dict[str, Any] = {
        "name": "gpt", "layers": 2, "hidden": H, "heads": A, "ffn": FF, "gated": False, "vocab": V,
        "tied_embeddings": False, "norm": "layernorm", "bias": False, "positions": 128,
    }
    return Model(**(plain | changes))


def mixture(**changes: Any) -> Model:
    """Four gated experts of width 24, two a token."""
    return model(gated=True, moe={"experts": 4, "top_k": 2, "ffn": 24, **changes})


def translator() -> Model:
    """Encoder of 96 tokens, decoder."""
    return model(kind="encoder-decoder", encoder_layers=2, encoder_seq_len=96)


def chunk(forward: float, backward: float, **given: float) -> ChunkCosts:
    """A stage, or a chunk of one, of which everything else takes no time."""
    zero = dict.fromkeys(ChunkCosts._fields, 0.0)
    return ChunkCosts(**{**zero, "forward": forward, "backward": backward, **given})


def group(size: int) -> Group:
    return Group(np.array([[size]]), np.array([True]))


def cost(
    layer: Layer, *, tp: int = 1, sp: bool | None = None, cp: int = 1, inner: int = 1,
    gather: bool = False,
    ep: int = 1, etp: int | None = None, dp: int = 1, outer: int = 1, zero: int = 0,
    hybrid: bool = False, recompute: int = 0, precision: str = "bf16", samples: int = B,
    imbalance: float = 1.0, capacity: float | None = None, padded: bool = False,
    optimizer: str = "adam", machine: dict[str, Any] | None = None,
    lengths: dict[int, float] | None = None, packing: Any = "packed",
    **software: Any,
) -> LayerCosts:
    """Price a layer on ``outer`` blocks of ``dp`` x ``cp`` x ``tp`` devices, all on one switch.

    1 GB/s without latency between any two. ``hybrid``: ZeRO shards within a block.
    """
    etp = tp if etp is None else etp
    job = Job(global_batch=64, seq_len=S, precision=precision, expert_imbalance=imbalance,
              expert_capacity=capacity, expert_padding=padded, optimizer=optimizer,
              lengths=lengths, packing=packing,
              stack=stack(**software))
    body = Body(
        samples=np.array([samples]), tp=np.array([tp]),
        sp=np.array([tp > 1 if sp is None else sp]), cp=np.array([cp]), inner=np.array([inner]),
        gather=np.array([gather]),
        ep=np.array([ep]), etp=np.array([etp]), recompute=np.array([recompute]),
        tp_group=group(tp), swap_group=group(inner), cp_group=group(cp // inner),
        ep_group=group(ep), etp_group=group(etp),
        replicas=np.array([outer * dp]), near=np.array([dp]),
    )
    inner, inner_expert = dp * cp, dp * cp * tp // (ep * etp)
    state = State(
        tp=np.array([tp]), ep=np.array([ep]), etp=np.array([etp]), zero=np.array([zero]),
        shard=np.array([int(hybrid)]),
        tied_per_byte=np.array([1.0 / LINK]), tied_latency=np.array([0.0]),
        dp_group=group(inner * outer), expert_dp_group=group(inner_expert * outer),
        inner_group=group(inner), inner_expert_group=group(inner_expert),
        outer_group=group(outer),
    )
    network = Network(np.array([LINK]), np.array([0.0]), np.array([False]))
    hardware = Machine(device(**(machine or {})), job.stack, precision)
    return layer_costs(layer, body, state, StageSetting(hardware, network, job))


def block(described: Model | None = None) -> Layer:
    """The last transformer layer of a model."""
    chain = build_chain(described or model())
    return [chain.kinds[kind] for kind in chain.order if chain.kinds[kind].repeated][-1]
