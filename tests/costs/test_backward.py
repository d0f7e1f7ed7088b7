"""A backward in two parts, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from plain import FAST_MEMORY, LINK, B, S, block, cost, device, group, mixture, model, stack

from nest.costs.activations import BackwardParts, backward_parts
from nest.costs.choices import Body, StageSetting
from nest.costs.compute import Machine
from nest.costs.network.collectives import Network
from nest.costs.stage import chunk_costs, with_parts
from nest.inputs import Job, Model
from nest.model import Layer
from nest.schedules.chunk import LayerSeconds


def parts_of(described: Model, tp: int = 1, **machine: Any) -> BackwardParts:
    """Parts of the last layer of a model on one device, or sharded by ``tp`` with sp."""
    layer = block(described)
    one = {name: np.array([1]) for name in ("cp", "inner", "ep", "recompute")}
    body = Body(
        samples=np.array([B]), tp=np.array([tp]), sp=np.array([tp > 1]), gather=np.array([False]),
        etp=np.array([tp]), tp_group=group(tp), swap_group=group(1), cp_group=group(1),
        ep_group=group(1),
        etp_group=group(tp), **one)
    job = Job(global_batch=64, seq_len=S, stack=stack())
    setting = StageSetting(Machine(device(**machine), job.stack, "bf16"),
                      Network(np.array([LINK]), np.array([0.0]), np.array([False])), job)
    return backward_parts(layer, body, setting, np.ones(1), np.ones(1))


def test_weights_are_half_of_the_backward_of_products() -> None:
    """A device whose memory takes no time."""
    layer = block()
    products = sum(op.width * op.depth for op in layer.operators if op.type == "gemm")
    found = parts_of(model(), **FAST_MEMORY)
    assert found.weights == pytest.approx(2 * S * B * products / 100e12)
    assert found.weights < cost(layer, machine=FAST_MEMORY).backward[0] / 2  # attention has none


def test_kept_bytes() -> None:
    # Per token of 32: inputs of products are 32 (query, key, value), 32 (output), 32 (up) and 128
    # (down), the gradients of their outputs 3 x 32, 32, 128 and 32. 512 elements of 2 bytes.
    assert parts_of(model()).kept == S * B * 512 * 2
    # Two ranks with sp: what is divided by heads or width halves. The normed inputs are halves of
    # the tokens, the gradients of the output and of down are whole: 16 + 16 + 16 + 64, 48 + 32 + 64
    # + 32.
    assert parts_of(model(), tp=2).kept == S * B * 288 * 2


def test_experts_keep_their_copies() -> None:
    # The router reads what the MLP would, and has gradients of 4. Instead of the 128 before down,
    # with gradients of 2 x 128 and 32, two copies keep 32 and 24, with gradients of 2 x 24 and 32.
    plain, found = parts_of(model(gated=True)).kept, parts_of(mixture()).kept
    assert found - plain == S * B * 2 * (
        4 + 2 * (32 + 24 + 48 + 32) - (128 + 256 + 32))


def test_measured_layers_are_halved() -> None:
    layer = Layer("measured", measured={1: None})  # type: ignore[dict-item]
    assert backward_parts(layer, None, None, 6.0, 10.0) == (3.0, 10.0)  # type: ignore[arg-type]


def test_layers_in_parts() -> None:
    """Two layers, half of the computing hides ZeRO-2 traffic, a quarter reductions."""
    zero = dict.fromkeys(LayerSeconds._fields, 0.0)
    first = LayerSeconds(**{**zero, "free_forward": 4.0, "forward": 5.0, "free_backward": 8.0,
                            "backward": 10.0, "scattered": 3.0, "sync": 2.0})
    last = first._replace(scattered=6.0, sync=7.0)
    software = stack(overlap_zero3=0.5, overlap_grad_reduce=0.25)
    c = with_parts(chunk_costs([first, last], 0.0, 0.0, software), [first, last], [2.0, 3.0],
                   [(1.0, 2.0), (0.0, 0.0)], software)
    # Inputs 8 + 7; weights 2 + 3 and what the first layer's 2 s do not hide of 6: 5.
    assert (c.inputs, c.weights) == (15.0, 10.0)
    # Inputs hide half of 6 + 5 free seconds; the last layer's weights half of 3.
    assert (c.trails_inputs, c.trails_weights) == (5.5, 1.5)
    assert c.hides_inputs == 0.25 * 11.0
    # Behind the last layer's 3 s, of which the scatter of the pass before takes all in a row, none
    # of the reduction of 7 is hidden in a row; in the last pass the first layer's 2 s are taken by
    # the scatter of 6. Left: 3 to scatter and 7 + 2.
    assert c.hides_weights == 0.0
    assert c.left_weights == 3.0 + 9.0
    # Computing that hides all-to-alls is that of layers that have some: backward 8 less 6 / 0.5.
    assert (c.exchanged_forward, c.exchanged_backward) == (1.0, 2.0)
    assert (c.busy_forward, c.busy_backward) == (4.0, 0.0)
    # Without ZeRO both parts are the whole backward.
    plain = [layer._replace(scattered=0.0) for layer in (first, last)]
    c = with_parts(chunk_costs(plain, 0.0, 0.0, software), plain, [2.0, 3.0], [(0.0, 0.0)] * 2,
                   software)
    assert c.inputs + c.weights == c.backward == 20.0
    # A quarter of the first layer's 2 s hides of the last layer's 7 s; then the first one's 2 s.
    assert c.left_weights == 7.0 - 0.25 * 2.0 + 2.0
