"""One layer's seconds and bytes against figures worked out by hand and published formulas.

Symbols as in arXiv:2205.05198: s sequence, b samples, h hidden, a heads, t tensor parallel.
"""

from __future__ import annotations

import pytest
from instances import instance
from plain import (
    FAST_MEMORY,
    FAST_PRODUCTS,
    FF,
    LINK,
    SBH,
    A,
    B,
    H,
    S,
    V,
    block,
    cost,
    mixture,
    model,
    translator,
)

from nest.costs.choices import (
    CORE_ATTN,
    FULL,
    MLA_UP_PROJ,
    MLP,
    MLP_ACT,
    MOE,
    NORM,
    SHARED_EXPERTS,
)
from nest.inputs import Model, Profile
from nest.model import Layer, build_chain, profile_chain

# ---------------------------------------------------------------- activations


def test_activations_of_a_plain_layer() -> None:
    # arXiv:2205.05198: s b h (34 + 5 a s / h); the two dropout masks of 1 byte behind attention
    # and MLP are not kept here: 32.
    found = cost(block(), flash_attention=False).activations
    assert found == pytest.approx([SBH * (32 + 5 * A * S / H)])
    # Selective recompute of the attention core: the second term goes.
    found = cost(block(), flash_attention=False, recompute=CORE_ATTN).activations
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
    for recompute in (CORE_ATTN, NORM, MLP_ACT, FULL):
        assert cost(head, recompute=recompute).activations == cost(head).activations


def test_activations_with_context_parallelism() -> None:
    # A rank holds its share of the tokens; of the scores, its rows against all keys.
    scores = 5 * A * S / H
    found = cost(block(), cp=2, flash_attention=False)
    assert found.activations == pytest.approx([SBH * (32 + scores) / 2])
    both = cost(block(), cp=2, tp=2, sp=True, flash_attention=False)
    assert both.activations == pytest.approx([SBH * (32 + scores) / 4])
    # Without sequence parallelism 8 + 24/t, see above.
    apart = cost(block(), cp=2, tp=2, sp=False, flash_attention=False)
    assert apart.activations == pytest.approx([SBH * (8 + 24 / 2 + scores / 2) / 2])
    full = cost(block(), cp=2, recompute=FULL)
    assert (full.activations, full.work) == (
        pytest.approx([SBH * 2 / 2]), pytest.approx([(SBH * 30 + 4 * A * S * B) / 2]))
    head = build_chain(model()).kinds[-1]
    assert cost(head, cp=2).activations == pytest.approx(cost(head).activations / 2)
    # Parameters are those of any other data-parallel rank.
    assert found.parameters == cost(block()).parameters


def test_activations_dropped_by_modules() -> None:
    # Norms in front of attention and MLP: their outputs, 2 x 2 s b h; activation function: its
    # output, 2 ff a token; attention core: 4 bytes of statistics a head and token.
    norm, act, core = 4 * SBH, 2 * S * B * FF, 4 * S * B * A
    everything = 32 * SBH + core
    for recompute, dropped in (
        (0, 0), (CORE_ATTN, core), (NORM, norm), (MLP_ACT, act), (CORE_ATTN + NORM, core + norm),
        (CORE_ATTN + NORM + MLP_ACT, core + norm + act), (MOE, 0), (MOE + MLP_ACT, act),
    ):
        found = cost(block(), recompute=recompute)
        assert found.activations == pytest.approx([everything - dropped])
        # It lives while the layer goes backward.
        assert found.work == pytest.approx([dropped])
        divided = cost(block(), recompute=recompute, tp=2, cp=2)
        assert divided.activations == pytest.approx([(everything - dropped) / 4])
        assert divided.work == pytest.approx([dropped / 4])


def test_activations_dropped_with_experts() -> None:
    # Of a token: router 2 E elements; of each of its two copies: input h, up 2 x 24, down 24; of
    # the shared experts up 2 x 40, down 40. The normed input stays, with norm it goes.
    router, copies, shared = 2 * 4, 2 * (H + 2 * 24 + 24), 3 * 40
    for described, moe, act in (
        (mixture(), router + copies, 2 * 24),
        (mixture(shared_ffn=40), router + copies + shared, 2 * 24 + 40),
    ):
        kept = cost(block(described)).activations
        for recompute, dropped in (
            (MOE, moe), (MLP_ACT, act), (MOE + MLP_ACT, moe), (MOE + NORM, moe + 2 * H),
            (MLP_ACT + NORM, act + 2 * H),
        ):
            found = cost(block(described), recompute=recompute)
            assert kept - found.activations == pytest.approx([2 * S * B * dropped])
            assert found.work == pytest.approx([2 * S * B * dropped])


# ---------------------------------------------------------------- compute


def test_forward_and_backward_seconds() -> None:
    # Memory infinitely fast: products and attention only. Forward FLOP per token:
    # 2 x (4 h^2 + 2 h ff) + 4 s h, causal half of the last; at 100 TFLOP/s.
    products = S * B * 2 * (4 * H * H + 2 * H * FF) / 100e12
    core = S * B * 4 * S * H / 2 / 100e12
    found = cost(block(), machine=FAST_MEMORY)
    assert found.forward == pytest.approx([products + core])
    # Backward twice the products, and 2.5 times the flash core (arXiv:2307.08691).
    assert found.backward == pytest.approx([2 * products + 2.5 * core])
    assert found.recompute == [0.0]
    again = cost(block(), machine=FAST_MEMORY, recompute=CORE_ATTN)
    assert again.recompute == pytest.approx([core])
    full = cost(block(), machine=FAST_MEMORY, recompute=FULL)
    assert full.recompute == pytest.approx([products + core])
    assert full.backward == pytest.approx(found.backward)
    # Two ranks halve all of it.
    half = cost(block(), machine=FAST_MEMORY, tp=2)
    assert half.forward == pytest.approx(found.forward / 2)
    assert half.backward == pytest.approx(found.backward / 2)
    # So do two context-parallel ranks, that share the causal half of the core evenly.
    parted = cost(block(), machine=FAST_MEMORY, cp=2, recompute=CORE_ATTN)
    assert parted.forward == pytest.approx(found.forward / 2)
    assert parted.backward == pytest.approx(found.backward / 2)
    assert parted.recompute == pytest.approx([core / 2])
    # An encoder attends to all positions.
    encoder = cost(block(model(kind="encoder")), machine=FAST_MEMORY)
    assert encoder.forward == pytest.approx([products + 2 * core])


def test_a_window_shortens_the_core_alone() -> None:
    # Query i sees min(i, w) keys: w s - w^2 / 2 pairs in all, of s^2 / 2 without a window.
    window = S // 4
    pairs = sum(min(query, window) for query in range(1, S + 1))
    assert pairs == pytest.approx(window * S - window**2 / 2, rel=1 / S)
    core = S * B * 4 * S * H / 2 / 100e12
    less = core * (1 - (window * S - window**2 / 2) / (S**2 / 2))
    full = cost(block(), machine=FAST_MEMORY, recompute=CORE_ATTN)
    near = cost(block(model(window=window)), machine=FAST_MEMORY, recompute=CORE_ATTN)
    assert full.forward - near.forward == pytest.approx([less])
    assert full.backward - near.backward == pytest.approx([2.5 * less])
    assert full.recompute - near.recompute == pytest.approx([less])
    # Flash kernels keep no scores, and other kernels compute and keep all of them.
    assert near.activations == full.activations
    plain = {"machine": FAST_MEMORY, "flash_attention": False}
    assert cost(block(model(window=window)), **plain).forward == cost(block(), **plain).forward
    # A window as long as the sequence is none, and a ring passes all keys in any case.
    for wide in (S, 2 * S):
        assert cost(block(model(window=wide))).forward == cost(block()).forward
    assert cost(block(model(window=window)), cp=2).forward < cost(block(), cp=2).forward


def test_bytes_of_operators_that_only_move_memory() -> None:
    # Infinite FLOP/s. Elements per token forward: two norms 2 x 2 h, two residuals 2 x 3 h, the
    # activation function 2 ff. Products move m k + k n + m n elements.
    m = S * B
    small = m * (2 * 2 * H + 2 * 3 * H + 2 * FF)
    products = sum(m * k + k * n + m * n
                   for k, n in ((H, H), (H, 2 * H), (H, H), (H, FF), (FF, H)))
    found = cost(block(), machine=FAST_PRODUCTS)
    assert found.forward == pytest.approx([2 * (small + products) / 1e12])
    # Run again: the two norms, the activation function.
    again = m * 2 * 2 * H, m * 2 * FF
    for recompute, elements in ((NORM, again[0]), (MLP_ACT, again[1]), (NORM + MLP_ACT, sum(again)),
                                (MOE, 0)):
        found = cost(block(), machine=FAST_PRODUCTS, recompute=recompute)
        assert found.recompute == pytest.approx([2 * elements / 1e12])
        halves = cost(block(), machine=FAST_PRODUCTS, recompute=recompute, tp=2)
        assert halves.recompute == pytest.approx([elements / 1e12])
    # Norms behind attention and MLP (Gemma 2) are not run again.
    four = cost(block(model(layer_norms=4)), machine=FAST_PRODUCTS, recompute=NORM)
    assert four.recompute == pytest.approx([2 * again[0] / 1e12])


def test_an_mlp_that_is_run_again() -> None:
    # Dropped: its normed input h, its first product's output and the second one's input, ff each.
    # Run again: both products, 4 h ff FLOP a token, and, of four collectives of the forward, two.
    plain, found = cost(block()), cost(block(), recompute=MLP)
    assert plain.activations - found.activations == pytest.approx([2 * S * B * (H + 2 * FF)])
    assert found.work == pytest.approx([2 * S * B * (H + 2 * FF)])
    assert cost(block(), machine=FAST_MEMORY, recompute=MLP).recompute == pytest.approx(
        [S * B * 4 * H * FF / 100e12])
    # Its norm, 2 h elements, and the activation function, 2 ff.
    only = cost(block(), machine=FAST_PRODUCTS, recompute=MLP).recompute
    products = S * B * (H + FF) + H * FF
    assert only == pytest.approx([2 * (S * B * (2 * H + 2 * FF) + 2 * products) / 1e12])
    apart, again = cost(block(), tp=2), cost(block(), tp=2, recompute=MLP)
    assert again.tp_backward - apart.tp_backward == pytest.approx(apart.tp_forward / 2)
    # The norm behind it is not run again; layers with experts have no such module.
    assert cost(block(mixture()), recompute=MLP).recompute == [0.0]
    assert block(mixture()).further_modules == ()


def test_shared_experts_that_are_run_again() -> None:
    # Up 2 x 40, down 40 elements of a token; 6 h ff_s FLOP; half of the tensor-parallel traffic.
    both = block(mixture(shared_ffn=40))
    plain, found = cost(both), cost(both, recompute=SHARED_EXPERTS)
    assert plain.activations - found.activations == pytest.approx([2 * S * B * 3 * 40])
    assert cost(both, machine=FAST_MEMORY, recompute=SHARED_EXPERTS).recompute == pytest.approx(
        [S * B * 6 * H * 40 / 100e12])
    apart, again = cost(both, tp=2), cost(both, tp=2, recompute=SHARED_EXPERTS)
    assert again.tp_backward - apart.tp_backward == pytest.approx(apart.tp_forward / 2)
    assert again.ep_backward == pytest.approx(apart.ep_backward)
    # All experts run the shared ones again, once.
    every = cost(both, tp=2, recompute=MOE + SHARED_EXPERTS)
    assert every == cost(both, tp=2, recompute=MOE)


def test_projections_of_latent_attention_that_are_run_again() -> None:
    # Dropped: queries and keys of 4 x 12, values of 4 x 10 elements of a token, and the normed
    # latents, 16 and 24. Run again: 16 x 48 and 24 x 72 products.
    latent = block(model(head_dim=12, mla={
        "q_rank": 16, "kv_rank": 24, "nope_dim": 8, "rope_dim": 4, "value_dim": 10}))
    plain, found = cost(latent), cost(latent, recompute=MLA_UP_PROJ)
    assert plain.activations - found.activations == pytest.approx(
        [2 * S * B * (48 + 48 + 40 + 16 + 24)])
    assert cost(latent, machine=FAST_MEMORY, recompute=MLA_UP_PROJ).recompute == pytest.approx(
        [S * B * 2 * (16 * 48 + 24 * 72) / 100e12])
    # With all of the layer's other modules: the core's statistics and the inputs that norms keep.
    assert latent.further_modules == ("mlp", "mla_up_proj")


def test_seconds_of_experts() -> None:
    # Gated experts: 6 h ff_e k FLOP a token, router 2 h E; attention as above.
    attention = S * B * (2 * 4 * H * H + 4 * S * H / 2)
    experts = S * B * (6 * H * 24 * 2 + 2 * H * 4)
    found = cost(block(mixture()), machine=FAST_MEMORY)
    assert found.forward == pytest.approx([(attention + experts) / 100e12])
    # Experts on two devices each take the copies of both: as much work for each.
    spread = cost(block(mixture()), machine=FAST_MEMORY, dp=2, ep=2)
    assert spread.forward == pytest.approx(found.forward)
    # Context-parallel ranks each send their own tokens.
    parted = cost(block(mixture()), machine=FAST_MEMORY, cp=2, ep=2)
    assert parted.forward == pytest.approx(found.forward / 2)


def test_seconds_of_experts_run_again() -> None:
    # Router and experts, as above; shared experts 6 h ff_s FLOP a token.
    experts, shared = S * B * (6 * H * 24 * 2 + 2 * H * 4), S * B * 6 * H * 40
    core = S * B * 4 * S * H / 2
    both = mixture(shared_ffn=40)
    for described, recompute, flop in (
        (mixture(), MOE, experts), (both, MOE, experts + shared), (mixture(), CORE_ATTN, core),
        (both, MOE + MLP_ACT + NORM, experts + shared), (both, MOE + CORE_ATTN,
                                                         experts + shared + core),
    ):
        found = cost(block(described), machine=FAST_MEMORY, recompute=recompute)
        assert found.recompute == pytest.approx([flop / 100e12])
    # A layer without experts has nothing of it to run again.
    layers = build_chain(mixture(first_dense=1))
    dense = cost(layers.kinds[layers.order[1]], recompute=MOE)
    assert (dense.recompute, dense.work) == ([0.0], [0.0])


def test_the_host_of_layers_with_experts() -> None:
    # A layer with experts takes 1 s longer forward, and no less than 4 s forward, 8 s backward.
    plain = cost(block(mixture()))
    waits = cost(block(mixture()), expert_gap=1.0)
    assert waits.forward - plain.forward == pytest.approx([1.0])
    assert waits.backward == plain.backward
    twice = cost(block(mixture()), expert_gap=1.0, recompute=FULL)
    assert twice.backward - plain.backward == pytest.approx([1.0])
    host = cost(block(mixture()), expert_overhead=4.0)
    assert (host.forward, host.backward) == (pytest.approx([4.0]), pytest.approx([8.0]))
    again = cost(block(mixture()), expert_overhead=4.0, recompute=FULL)
    assert again.backward + again.recompute == pytest.approx([12.0])
    # Not where the whole step is captured in a CUDA graph, nor in other layers.
    whole = {"cuda_graphs": "step", "expert_gap": 1.0, "expert_overhead": 4.0}
    assert cost(block(mixture()), **whole).forward == plain.forward
    assert cost(block(mixture()), **{**whole, "cuda_graphs": "layers"}).forward > 4.0 * 0.99
    assert cost(block(), **{**whole, "cuda_graphs": "none"}).forward == cost(block()).forward


def test_what_captured_layers_save() -> None:
    # A gap of 1 s, 0.5 s captured, 60 % of the way with parts of layers: 0.7 s; forward 2 s more
    # unless the whole step is captured; no less than 40 % of 12 s forward. A layer without experts
    # keeps its gap.
    plain = cost(block(mixture()))
    stack = {"layer_gap": 1.0, "expert_gap": 2.0, "captured_gap": 0.5, "captured_share": 0.6}
    for graphs, wait, gap in (("none", 2.0, 1.0), ("layers", 2.0, 0.7), ("step", 0.0, 0.5)):
        found = cost(block(mixture()), cuda_graphs=graphs, **stack)
        assert found.forward - plain.forward == pytest.approx([wait + gap])
        assert found.backward - plain.backward == pytest.approx([gap])
    host = cost(block(mixture()), cuda_graphs="layers", expert_overhead=12.0, **stack)
    assert host.forward == pytest.approx([4.8])
    dense = cost(block(), cuda_graphs="step", **stack)
    assert dense.forward - cost(block()).forward == pytest.approx([1.0])


def test_the_time_of_routing() -> None:
    # 1 ms a token each way, of the tokens of a device.
    for tp, sp in ((1, False), (2, True)):
        plain, routed = (cost(block(mixture()), tp=tp, sp=sp, routing_time=time)
                         for time in (0.0, 1e-3))
        added = S * B / tp * 1e-3
        assert routed.forward - plain.forward == pytest.approx([added])
        assert routed.backward - plain.backward == pytest.approx([added])
    assert cost(block(), routing_time=1e-3).forward == cost(block()).forward


def test_biases_and_clamps_of_experts() -> None:
    # 2 copies of each token, 2 bytes an element at 1 TB/s: bias 6 h forward, 8 h and 2 x 24
    # backward; clamps 4 and 5 times 2 x 24. Fused experts have no clamps of their own.
    copies = 2 * SBH // H * 2 / 1e12
    plain, clamped = cost(block(mixture())), cost(block(mixture(clamped=True)))
    assert clamped.forward - plain.forward == pytest.approx([copies * 4 * 48])
    assert clamped.backward - plain.backward == pytest.approx([copies * 5 * 48])
    biased = cost(block(mixture().replace(bias=True)))
    assert biased.forward - plain.forward == pytest.approx([copies * 6 * H])
    assert biased.backward - plain.backward == pytest.approx([copies * (8 * H + 48)])
    fused = cost(block(mixture()), fused_experts=True)
    assert cost(block(mixture(clamped=True)), fused_experts=True).forward == fused.forward
    assert fused.forward < plain.forward
    fused_bias = cost(block(mixture().replace(bias=True)), fused_experts=True)
    assert fused_bias.forward - fused.forward == pytest.approx([copies * 6 * H])


def test_cross_attention() -> None:
    # Decoder layer: 8 h^2 of self-attention, 4 h ff of the MLP, 4 s h of the core, causal half;
    # queries and output of cross-attention 4 h^2, its core 4 x 96 h, all of it; keys and values
    # 4 h^2 for each of the 96 tokens of the encoder.
    found = cost(block(translator()), machine=FAST_MEMORY)
    decoder = 8 * H * H + 4 * H * FF + 4 * S * H / 2 + 4 * H * H + 4 * 96 * H
    flop = B * (S * decoder + 96 * 4 * H * H)
    assert found.forward == pytest.approx([flop / 100e12])
    # Both cores run again.
    again = cost(block(translator()), machine=FAST_MEMORY, recompute=CORE_ATTN).recompute
    assert again == pytest.approx([B * S * (4 * S * H / 2 + 4 * 96 * H) / 100e12])
    # More is kept than in a plain layer: a norm's input and its output, queries, the core's
    # output, statistics; keys and values of 96 tokens.
    more = B * S * (2 * 4 * H + 4 * A) + B * 96 * 2 * 2 * H
    kept = cost(block(translator())).activations - cost(block()).activations
    assert kept == pytest.approx([more])


def test_latent_attention() -> None:
    # DeepSeek-V3, arXiv:2412.19437: parameters r_q (h + a (d_n + d_r)) + r_kv (h + a (d_n + d_v))
    # + h d_r + a d_v h; core 2 s a (d_n + d_r + d_v) FLOP a token, causal half.
    latent = block(model(head_dim=12, mla={
        "q_rank": 16, "kv_rank": 24, "nope_dim": 8, "rope_dim": 4, "value_dim": 10}))
    weights = 16 * (H + A * 12) + 24 * (H + A * 18) + H * 4 + A * 10 * H
    norms = 2 * (16 + 24) + 2 * 2 * H
    assert latent.parameters == weights + norms + 2 * H * FF
    found = cost(latent, machine=FAST_MEMORY)
    core = 2 * S * A * 22 / 2
    flop = S * B * (2 * (weights + 2 * H * FF) + core)
    assert found.forward == pytest.approx([flop / 100e12])


def test_optimizer_step() -> None:
    # bf16 Adam moves 30 bytes a parameter; sharded from ZeRO-1 on.
    layer = block()
    assert cost(layer, dp=4).update == pytest.approx([30 * layer.parameters / 1e12])
    assert cost(layer, dp=4, zero=1).update == pytest.approx([30 * layer.parameters / 4 / 1e12])


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
    # Context-parallel ranks hold the same parameters, and share them as well.
    for zero in range(4):
        mixed, plain = cost(layer, dp=2, cp=2, zero=zero), cost(layer, dp=4, zero=zero)
        assert mixed.optimizer == plain.optimizer


def test_state_bytes_of_hybrid_sharding() -> None:
    # Three blocks of two: shares are halves, however many blocks there are.
    layer = block()
    p = layer.parameters
    for zero, held, buffers in ((1, 6 + 12 / 2, 0), (2, 2 + 16 / 2, 4 / 2), (3, 18 / 2, 8 / 2)):
        found = cost(layer, dp=2, outer=3, zero=zero, hybrid=True)
        assert found.parameters + found.gradients + found.optimizer == pytest.approx([held * p])
        assert found.buffers == pytest.approx([buffers * p])


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
    models = [x.replace(trainable=None)  # adapters come on top
              for seed in range(150) if isinstance(x := instance(seed).model, Model)]
    models += [model(final_norm=False), model(qkv_bias=True, gated=True), model(layer_norms=4)]
    wrong = []
    for described in models:
        chain = build_chain(described)
        held = sum(chain.kinds[kind].parameters for kind in chain.stage(range(len(chain))))
        wanted = described.parameters() + described.mtp_parameters()
        if held != wanted:
            wrong.append(f"{described.name}: {held} in the chain, {wanted} in all")
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


def test_the_head_stays_in_16_bit_in_fp8_training() -> None:
    chain = build_chain(model())
    head, fast = chain.kinds[chain.order[-1]], {"memory_bandwidth": 1e18}
    at = {rate: {**fast, "peak_flops": {"bf16": rate, "fp8": 1e18}} for rate in (1e14, 1e15)}
    for layer, low in ((head, False), (block(), True)):
        slower = cost(layer, machine=at[1e14]).forward
        assert slower > 5 * cost(layer, machine=at[1e15]).forward
        fp8 = cost(layer, precision="fp8", machine=at[1e14]).forward
        assert fp8 < slower / 2 if low else fp8 == pytest.approx(slower)


def test_a_layer_takes_no_less_than_the_host_needs() -> None:
    usual, slow = cost(block(), tp=2), cost(block(), tp=2, layer_overhead=1.0)
    assert (usual.forward + usual.tp_forward)[0] < 1.0
    assert slow.forward + slow.tp_forward == pytest.approx([1.0])
    assert slow.backward + slow.tp_backward + slow.recompute == pytest.approx([1.0])
    again = cost(block(), tp=2, layer_overhead=1.0, recompute=FULL)
    assert again.backward + again.tp_backward + again.recompute == pytest.approx([2.0])
    assert again.recompute == cost(block(), tp=2, recompute=FULL).recompute
    little = cost(block(), tp=2, layer_overhead=1e-12)
    assert little.forward == usual.forward and little.backward == usual.backward


def test_the_gaps_of_a_layer_add_to_its_time() -> None:
    usual, slow = cost(block(), tp=2), cost(block(), tp=2, layer_gap=1.0)
    assert slow.forward - usual.forward == pytest.approx([1.0])
    assert slow.backward - usual.backward == pytest.approx([1.0])
    # Full recompute runs the forward's kernels again, gaps included.
    again, before = (cost(block(), tp=2, recompute=FULL, layer_gap=gap) for gap in (1.0, 0.0))
    assert again.backward - before.backward == pytest.approx([2.0])
    assert again.recompute == before.recompute
    # The host issues kernels during the gaps: 3 seconds of it have 1 less to wait for.
    host = cost(block(), tp=2, layer_gap=1.0, layer_overhead=3.0)
    assert host.forward + host.tp_forward == pytest.approx([3.0])
    assert host.backward + host.tp_backward == pytest.approx([3.0])
    assert cost(measured(), tp=2, layer_gap=1.0).forward == cost(measured(), tp=2).forward


def test_derates_by_device() -> None:
    rates = {"gemm_derate": 0.5, "attention_derate": 0.25, "memory_derate": 0.5}
    usual = cost(block())
    for named, factor in (("plain", 2.0), ("PL", 2.0), ("other", 1.0)):
        found = cost(block(), devices={named: rates}, machine={"memory_bandwidth": 1e18})
        plain = cost(block(), machine={"memory_bandwidth": 1e18})
        assert found.forward[0] / plain.forward[0] == pytest.approx(factor, rel=0.2)
        assert (found.forward[0] > plain.forward[0]) == (factor > 1)
    # The longest beginning counts.
    both = {"p": rates, "plain": dict.fromkeys(rates, 1.0)}
    assert cost(block(), devices=both).forward == pytest.approx(usual.forward)
    slow = cost(block(), attention_derate=0.5)
    assert slow.forward > usual.forward
