"""One layer's seconds and bytes against figures worked out by hand and published formulas.

Symbols as in arXiv:2205.05198: s sequence, b samples, h hidden, a heads, t tensor parallel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instances import instance
from plain import device, stack

from nest.costs.collectives import Group, Network
from nest.costs.compute import Machine
from nest.costs.layer import FULL, NONE, SELECTIVE, Choices, LayerCosts, Setting, layer_costs
from nest.describe import Job, Model, Profile
from nest.graph import Layer, build_chain, profile_chain

S, B, H, A, FF, V = 64, 2, 32, 4, 128, 1000
SBH = S * B * H
LINK = 1e9


def model(**changes: Any) -> Model:
    """GPT layers: LayerNorm, four heads, a plain MLP of four times the width."""
    plain: dict[str, Any] = {
        "name": "gpt", "layers": 2, "hidden": H, "heads": A, "ffn": FF, "gated": False, "vocab": V,
        "tied_embeddings": False, "norm": "layernorm", "bias": False, "positions": 128,
    }
    return Model(**(plain | changes))


def mixture(**changes: Any) -> Model:
    return model(gated=True, moe={"experts": 4, "top_k": 2, "ffn": 24}, **changes)


def group(size: int) -> Group:
    return Group(np.array([[size]]), np.array([True]))


def cost(
    layer: Layer, *, tp: int = 1, sp: bool | None = None, ep: int = 1, etp: int | None = None,
    dp: int = 1, zero: int = 0, recompute: int = NONE, precision: str = "bf16", samples: int = B,
    machine: dict[str, Any] | None = None, **software: Any,
) -> LayerCosts:
    """Price a layer on ``dp`` x ``tp`` devices, 1 GB/s without latency between any two."""
    etp = tp if etp is None else etp
    job = Job(global_batch=64, seq_len=S, precision=precision, stack=stack(**software))
    rows = Choices(
        samples=np.array([samples]), tp=np.array([tp]),
        sp=np.array([tp > 1 if sp is None else sp]), ep=np.array([ep]), etp=np.array([etp]),
        zero=np.array([zero]), recompute=np.array([recompute]), tp_group=group(tp),
        ep_group=group(ep), etp_group=group(etp), dp_group=group(dp),
        expert_dp_group=group(dp * tp // (ep * etp)),
    )
    network = Network(np.array([LINK]), np.array([0.0]), np.array([False]))
    hardware = Machine(device(**(machine or {})), job.stack, precision)
    return layer_costs(layer, rows, Setting(hardware, network, job, H, 0))


def block(chain_of: Model | None = None) -> Layer:
    """A transformer layer of a model."""
    chain = build_chain(chain_of or model())
    return next(kind for kind in chain.kinds if kind.repeated)


# ---------------------------------------------------------------- activations


def test_activations_of_a_plain_layer() -> None:
    # arXiv:2205.05198: s b h (34 + 5 a s / h); the two dropout masks of 1 byte behind attention
    # and MLP are not kept here: 32.
    found = cost(block(), flash_attention=False).activations
    assert found == pytest.approx([SBH * (32 + 5 * A * S / H)])
    # Selective recompute of the attention core: the second term goes.
    found = cost(block(), flash_attention=False, recompute=SELECTIVE).activations
    assert found == pytest.approx([SBH * 32])
    # Full recompute keeps the input: 2 s b h; the rest lives while the layer is computed again.
    full = cost(block(), flash_attention=False, recompute=FULL)
    assert full.activations == pytest.approx([SBH * 2])
    assert full.work == pytest.approx([SBH * (30 + 5 * A * S / H)])


def test_activations_with_tensor_parallelism() -> None:
    # Without sequence parallelism s b h (10 + 24/t + 5as/(ht)), less the masks: 8. With: all / t.
    apart = cost(block(), tp=2, sp=False, flash_attention=False).activations
    assert apart == pytest.approx([SBH * (8 + 24 / 2 + 5 * A * S / (H * 2))])
    together = cost(block(), tp=2, sp=True, flash_attention=False).activations
    assert together == pytest.approx([SBH * (32 + 5 * A * S / H) / 2])
    assert cost(block(), tp=2, sp=True, recompute=FULL).activations == pytest.approx([SBH * 2 / 2])
    assert cost(block(), tp=2, sp=False, recompute=FULL).activations == pytest.approx([SBH * 2])


def test_activations_of_a_gated_layer() -> None:
    # Flash attention, grouped queries: s b / t (12 h + 4 h_kv + 6 ff + 4 a).
    gated = block(model(gated=True, kv_heads=2, norm="rmsnorm"))
    per_token = 12 * H + 4 * (H // 2) + 6 * FF + 4 * A
    assert cost(gated).activations == pytest.approx([S * B * per_token])
    assert cost(gated, tp=2).activations == pytest.approx([S * B * per_token / 2])
    # Four ranks share two key-value heads: each holds one, so that part does not halve again.
    assert cost(gated, tp=4).activations == pytest.approx([
        S * B * ((12 * H + 6 * FF + 4 * A) / 4 + 4 * (H // 2) / 2)])


def test_activations_of_the_head() -> None:
    # 6 bytes a logit, and norm and logits keep their inputs of 2 bytes; 1,000 words padded to
    # 1,024, with tp 2 to a multiple of 256: the same.
    head = build_chain(model()).kinds[-1]
    assert cost(head).activations == pytest.approx([S * B * (6 * 1024 + 4 * H)])
    assert cost(head, tp=2).activations == pytest.approx([S * B * (6 * 1024 + 4 * H) / 2])
    # Recompute is for transformer layers only.
    assert cost(head, recompute=FULL).activations == cost(head).activations


# ---------------------------------------------------------------- compute


def test_forward_and_backward_seconds() -> None:
    # Memory infinitely fast: products and attention only. Forward FLOP per token:
    # 2 x (4 h^2 + 2 h ff) + 4 s h, causal half of the last; at 100 TFLOP/s.
    fast = {"memory_bandwidth": 1e18}
    products = S * B * 2 * (4 * H * H + 2 * H * FF) / 100e12
    core = S * B * 4 * S * H / 2 / 100e12
    found = cost(block(), machine=fast)
    assert found.forward == pytest.approx([products + core])
    # Backward twice the products, and 2.5 times the flash core (arXiv:2307.08691).
    assert found.backward == pytest.approx([2 * products + 2.5 * core])
    assert found.recompute == [0.0]
    assert cost(block(), machine=fast, recompute=SELECTIVE).recompute == pytest.approx([core])
    full = cost(block(), machine=fast, recompute=FULL)
    assert full.recompute == pytest.approx([products + core])
    assert full.backward == pytest.approx(found.backward)
    # Two ranks halve all of it.
    half = cost(block(), machine=fast, tp=2)
    assert half.forward == pytest.approx(found.forward / 2)
    assert half.backward == pytest.approx(found.backward / 2)
    # An encoder attends to all positions.
    encoder = cost(block(model(kind="encoder")), machine=fast)
    assert encoder.forward == pytest.approx([products + 2 * core])


def test_bytes_of_operators_that_only_move_memory() -> None:
    # Infinite FLOP/s. Elements per token forward: two norms 2 x 2 h, two residuals 2 x 3 h, the
    # activation function 2 ff. Products move m k + k n + m n elements.
    rich = {"peak_flops": {"bf16": 1e18}}
    m = S * B
    small = m * (2 * 2 * H + 2 * 3 * H + 2 * FF)
    products = sum(m * k + k * n + m * n
                   for k, n in ((H, H), (H, 2 * H), (H, H), (H, FF), (FF, H)))
    assert cost(block(), machine=rich).forward == pytest.approx([2 * (small + products) / 1e12])


def test_seconds_of_experts() -> None:
    # Gated experts: 6 h ff_e k FLOP a token, router 2 h E; attention as above.
    fast = {"memory_bandwidth": 1e18}
    attention = S * B * (2 * 4 * H * H + 4 * S * H / 2)
    experts = S * B * (6 * H * 24 * 2 + 2 * H * 4)
    found = cost(block(mixture()), machine=fast)
    assert found.forward == pytest.approx([(attention + experts) / 100e12])
    # Experts on two devices each take the copies of both: as much work for each.
    spread = cost(block(mixture()), machine=fast, dp=2, ep=2)
    assert spread.forward == pytest.approx(found.forward)


def test_latent_attention() -> None:
    # DeepSeek-V3, arXiv:2412.19437: parameters r_q (h + a (d_n + d_r)) + r_kv (h + a (d_n + d_v))
    # + h d_r + a d_v h; core 2 s a (d_n + d_r + d_v) FLOP a token, causal half.
    latent = block(model(head_dim=12, mla={
        "q_rank": 16, "kv_rank": 24, "nope_dim": 8, "rope_dim": 4, "value_dim": 10}))
    weights = 16 * (H + A * 12) + 24 * (H + A * 18) + H * 4 + A * 10 * H
    norms = 2 * (16 + 24) + 2 * 2 * H
    assert latent.parameters == weights + norms + 2 * H * FF
    found = cost(latent, machine={"memory_bandwidth": 1e18})
    core = 2 * S * A * 22 / 2
    flop = S * B * (2 * (weights + 2 * H * FF) + core)
    assert found.forward == pytest.approx([flop / 100e12])


# ---------------------------------------------------------------- communication


def test_tensor_parallel_traffic() -> None:
    # Each way two gathers and two scatters of 2 s b h bytes, half of which two ranks exchange,
    # and two more gathers backward; without sequence parallelism two all-reduces each way.
    once = 2 * SBH / 2 / LINK
    found = cost(block(), tp=2)
    assert found.tp_forward == pytest.approx([4 * once])
    assert found.tp_backward == pytest.approx([6 * once])
    apart = cost(block(), tp=2, sp=False)
    assert apart.tp_forward == pytest.approx([2 * 2 * once])
    assert apart.tp_backward == pytest.approx([2 * 2 * once])
    # Computed again, the forward's traffic comes again.
    again = cost(block(), tp=2, recompute=FULL)
    assert again.tp_backward == pytest.approx([10 * once])
    # A quarter of it hidden.
    assert cost(block(), tp=2, overlap_tp=0.25).tp_forward == pytest.approx([3 * once])
    assert cost(block()).tp_forward == [0.0]


def test_expert_traffic() -> None:
    # Dispatch and combine of 2 T k h bytes, half of which leaves the device with ep 2; forward and
    # again backward. T is what a rank holds: all tokens, or with tp 2 and sp half of them.
    once = 2 * S * B * 2 * H / 2 / LINK
    found = cost(block(mixture()), dp=2, ep=2)
    assert found.ep_forward == pytest.approx([2 * once])
    assert found.ep_backward == pytest.approx([2 * once])
    assert cost(block(mixture()), dp=2, ep=2, recompute=FULL).ep_backward == pytest.approx(
        [4 * once])
    assert cost(block(mixture()), tp=2, etp=1, ep=2).ep_forward == pytest.approx([2 * once / 2])
    # Expert tensor parallelism gathers and scatters the copies of its two ranks instead.
    assert cost(block(mixture()), tp=2, etp=2, ep=1).ep_forward == pytest.approx([2 * once])
    assert cost(block(), dp=2).ep_forward == [0.0]


def test_zero_traffic() -> None:
    # Four replicas, P parameters, fp32 gradients: all-reduce 2 x 3/4 x 4 P; scatter 3/4 x 4 P;
    # gather 3/4 x 2 P.
    layer = block()
    scatter = 0.75 * 4 * layer.parameters / LINK
    gather = 0.75 * 2 * layer.parameters / LINK
    none, one, two, three = (cost(layer, dp=4, zero=z) for z in range(4))
    assert none.sync == pytest.approx([2 * scatter])
    assert (none.gather, none.zero_forward, none.zero_backward) == ([0.0], [0.0], [0.0])
    assert one.sync == pytest.approx([scatter])
    assert one.gather == pytest.approx([gather])
    assert two.sync == [0.0]
    assert two.zero_backward == pytest.approx([scatter])
    assert two.gather == pytest.approx([gather])
    assert (three.sync, three.gather) == ([0.0], [0.0])
    assert three.zero_forward == pytest.approx([gather])
    assert three.zero_backward == pytest.approx([gather + scatter])
    kept = cost(layer, dp=4, zero=3, reshard_after_forward=False)
    assert kept.zero_backward == pytest.approx([scatter])
    # Half of the layer's own compute hides it.
    hidden = cost(layer, dp=4, zero=3, overlap_zero3=0.5)
    assert hidden.zero_forward == pytest.approx(np.maximum(0.0, gather - hidden.forward / 2))


def test_optimizer_step() -> None:
    # bf16 Adam moves 30 bytes a parameter; sharded from ZeRO-1 on.
    layer = block()
    assert cost(layer, dp=4).update == pytest.approx([30 * layer.parameters / 1e12])
    assert cost(layer, dp=4, zero=1).update == pytest.approx([30 * layer.parameters / 4 / 1e12])


def test_tied_embeddings() -> None:
    # Both copies' gradients of 4 bytes go each way once.
    chain = build_chain(model(tied_embeddings=True))
    for layer in (chain.kinds[0], chain.kinds[-3]):
        assert layer.tied_parameters == V * H
        assert cost(layer).tied == pytest.approx([4 * V * H / LINK])
        assert cost(layer, tp=2).tied == pytest.approx([4 * V * H / 2 / LINK])
    assert all(cost(chain.kinds[kind]).tied == [0.0] for kind in chain.stage(0, len(chain)))


# ---------------------------------------------------------------- states


def test_state_bytes() -> None:
    # Megatron-LM, bf16: 18 bytes a parameter; 6 + 12/d with a sharded optimizer. ZeRO-2 shards
    # gradients too and holds one layer's whole ones for a while; ZeRO-3 gathers two layers.
    layer, d = block(), 4
    p = layer.parameters

    def states(zero: int) -> tuple[float, float]:
        found = cost(layer, dp=d, zero=zero)
        held = found.parameters + found.gradients + found.optimizer
        return held[0], found.buffers[0]

    missing = p * (1 - 1 / d)
    assert states(0) == pytest.approx((18 * p, 0.0))
    assert states(1) == pytest.approx(((6 + 12 / d) * p, 0.0))
    assert states(2) == pytest.approx(((2 + 16 / d) * p, 4 * missing))
    assert states(3) == pytest.approx((18 / d * p, (2 * 2 + 4) * missing))


def test_parameters_of_a_rank() -> None:
    # tp 2 halves the matrices, not the norms (2 x 2 h without their positions).
    layer = block()
    norms = 2 * 2 * H
    assert layer.parameters == 4 * H * H + 2 * H * FF + norms
    found = cost(layer, tp=2)
    assert found.parameters == pytest.approx([2 * ((layer.parameters - norms) / 2 + norms)])
    # Experts divide by ep and etp, and belong to fewer data-parallel copies.
    sparse = block(mixture())
    routed = 4 * 3 * H * 24
    rest = sparse.parameters - routed
    assert cost(sparse, dp=2, ep=2).parameters == pytest.approx([2 * (rest + routed / 2)])
    shared = cost(sparse, dp=4, ep=2, zero=3)
    assert shared.parameters == pytest.approx([2 * (rest / 4 + routed / 2 / 2)])
    # The vocabulary is padded to a multiple of 128 t: 1,000 to 1,024 with tp 4 (512 x 2).
    table = build_chain(model(positions=0)).kinds[0]
    assert cost(table, tp=4).parameters == pytest.approx([2 * 1024 * H / 4])


def test_chain_has_the_parameters_of_the_model() -> None:
    models = [x for seed in range(150) if isinstance(x := instance(seed).model, Model)]
    models += [model(final_norm=False), model(qkv_bias=True, gated=True), model(layer_norms=4)]
    wrong = []
    for described in models:
        chain = build_chain(described)
        held = sum(chain.kinds[kind].parameters for kind in chain.stage(0, len(chain)))
        if held != described.parameters():
            wrong.append(f"{described.name}: {held} in the chain, {described.parameters()} in all")
    assert not wrong, "\n".join(wrong[:3])


def test_copies_of_tied_embeddings() -> None:
    # Apart, the stages hold the table twice.
    chain = build_chain(model(tied_embeddings=True))
    held = sum(chain.kinds[kind].parameters for kind in chain.order)
    assert held == model(tied_embeddings=True).parameters() + V * H


# ---------------------------------------------------------------- measured layers


def measured() -> Layer:
    return profile_chain(Profile(name="chain", bytes_per_parameter=4, layers=[{
        "name": "layer", "output_bytes": 10.0, "tp": {2: {
            "forward": 1.0, "backward": 3.0, "parameter_bytes": 400.0, "activation_bytes": 50.0,
            "work_bytes": 7.0}}}])).kinds[0]


def test_measured_layer() -> None:
    # 3 samples; 400 bytes of 4-byte parameters are 100.
    found = cost(measured(), tp=2, samples=3)
    assert (found.forward, found.backward, found.recompute) == ([3.0], [9.0], [0.0])
    assert (found.tp_forward, found.tp_backward) == ([0.0], [0.0])
    assert found.parameters + found.gradients + found.optimizer == pytest.approx([1800.0])
    assert (found.activations, found.work) == ([150.0], [21.0])
    # Full recompute keeps the input, as large as the output, and needs the rest for a while.
    full = cost(measured(), tp=2, samples=3, recompute=FULL)
    assert (full.recompute, full.activations) == ([3.0], [30.0])
    assert full.work == pytest.approx([21.0 + 120.0])
    # Gradients of four replicas: 2 x 3/4 x 4 bytes x 100.
    assert cost(measured(), tp=2, dp=4).sync == pytest.approx([600.0 / LINK])
