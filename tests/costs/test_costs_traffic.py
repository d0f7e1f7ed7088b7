"""One layer's traffic against volumes worked out by hand, 1 GB/s without latency.

Symbols as in arXiv:2205.05198: s sequence, b samples, h hidden, a heads, t tensor parallel.
"""

from __future__ import annotations

import pytest
from plain import LINK, SBH, A, B, H, S, V, block, cost, mixture, model, translator

from nest.costs.choices import CORE_ATTN, FULL, MLP_ACT, MOE, NORM
from nest.costs.stage import layer_seconds
from nest.costs.traffic import PER_PROCESSOR
from nest.model import build_chain

# ---------------------------------------------------------------- tensor and expert parallelism


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


def test_copies_of_tensor_parallel_traffic() -> None:
    # Each gather and scatter reads and writes 2 s b h bytes once more at 1 TB/s; of two samples, as
    # one lies in order. Hidden as they are.
    once, copy = 2 * SBH / 2 / LINK, 2 * 2 * SBH / 1e12
    found = cost(block(), tp=2, sequence_copies=True)
    assert found.tp_forward == pytest.approx([4 * (once + copy)])
    assert found.tp_backward == pytest.approx([6 * (once + copy)])
    half = cost(block(), tp=2, sequence_copies=True, overlap_tp=0.5)
    assert half.tp_forward == pytest.approx([2 * (once + copy)])
    for given in ({"samples": 1, "tp": 2}, {"tp": 2, "sp": False}, {}):
        plain, copied = (cost(block(), sequence_copies=flag, **given) for flag in (False, True))
        assert plain.tp_forward == copied.tp_forward


def test_what_tensor_parallelism_gathers_and_keeps() -> None:
    # The inputs of both parts are kept whole, 2 s b h bytes each, instead of halves, and backward
    # gathers neither again. Recompute of norms drops them, and that of all gathers them once.
    once, plain = 2 * SBH / 2 / LINK, cost(block(), tp=2)
    for recompute, times, kept in ((0, 4, 2), (NORM, 6, 0), (FULL, 8, 0)):
        found = cost(block(), tp=2, keeps_gathered=True, recompute=recompute)
        other = cost(block(), tp=2, recompute=recompute)
        assert found.tp_backward == pytest.approx([times * once])
        assert found.activations == pytest.approx(other.activations + kept * SBH)
        assert found.activations + found.work == pytest.approx(
            plain.activations + plain.work + 2 * SBH)
    alone = cost(block(), tp=2, sp=False, keeps_gathered=True)
    assert alone.activations == cost(block(), tp=2, sp=False).activations


def test_tensor_parallel_traffic_of_experts() -> None:
    # Routed experts have none of it: each way a gather and a scatter, and one more gather. Shared
    # experts have as much as an MLP, and what belongs to them is run again with them.
    once = 2 * SBH / 2 / LINK
    routed, shared = block(mixture()), block(mixture(shared_ffn=40))
    assert cost(routed, tp=2).tp_forward == pytest.approx([2 * once])
    assert cost(shared, tp=2).tp_forward == pytest.approx([4 * once])
    for layer, recompute, times in (
        (routed, 0, 3), (routed, MOE, 3), (routed, FULL, 5),
        (shared, 0, 6), (shared, MOE, 6 + 2), (shared, MOE + MLP_ACT + NORM, 6 + 2),
        (shared, MLP_ACT + NORM + CORE_ATTN, 6), (shared, FULL, 6 + 4),
    ):
        found = cost(layer, tp=2, recompute=recompute)
        assert found.tp_backward == pytest.approx([times * once])


def test_cross_attention_traffic() -> None:
    # Three pairs forward instead of two. The encoder's 96 tokens, 3/2 s: gathered forward, and
    # backward once more, where their gradient is scattered.
    once = 2 * SBH / 2 / LINK
    layer = block(translator())
    found = cost(layer, tp=2)
    assert found.tp_forward == pytest.approx([(6 + 1.5) * once])
    assert found.tp_backward == pytest.approx([(9 + 2 * 1.5) * once])
    # An all-reduce is a gather and a scatter; forward every rank has the encoder's output.
    apart = cost(layer, tp=2, sp=False)
    assert apart.tp_forward == pytest.approx([3 * 2 * once])
    assert apart.tp_backward == pytest.approx([(3 + 1.5) * 2 * once])
    again = cost(layer, tp=2, recompute=FULL)
    assert again.tp_backward == pytest.approx([(12 + 7.5) * once])
    # A layer of the encoder has 96 tokens.
    encoder = build_chain(translator()).kinds[1]
    assert cost(encoder, tp=2).tp_forward == pytest.approx([4 * 1.5 * once])
    # Context-parallel ranks hold half of everything.
    assert cost(layer, tp=2, cp=2).tp_forward == pytest.approx(found.tp_forward / 2)


def test_expert_traffic() -> None:
    # Dispatch and combine of 2 T k h bytes, half of which leaves the device with ep 2; forward and
    # again backward. T is what a rank holds: all tokens, or with tp 2 and sp half of them.
    once = 2 * S * B * 2 * H / 2 / LINK
    found = cost(block(mixture()), dp=2, ep=2)
    assert found.ep_forward == pytest.approx([2 * once])
    assert found.ep_backward == pytest.approx([2 * once])
    for recompute, times in ((FULL, 4), (MOE, 4), (MOE + NORM, 4), (MLP_ACT + CORE_ATTN, 2)):
        again = cost(block(mixture()), dp=2, ep=2, recompute=recompute)
        assert again.ep_backward == pytest.approx([times * once])
    assert cost(block(mixture()), tp=2, etp=1, ep=2).ep_forward == pytest.approx([2 * once / 2])
    # Expert tensor parallelism gathers and scatters the copies of its two ranks instead.
    assert cost(block(mixture()), tp=2, etp=2, ep=1).ep_forward == pytest.approx([2 * once])
    assert cost(block(), dp=2).ep_forward == [0.0]


def test_dispatchers() -> None:
    # One copy of S B tokens for each rank: of two experts on two ranks 1.5, half of them away.
    layer, tokens = block(mixture()), 2 * SBH / LINK
    for dispatcher, sent in (("alltoall", 1.0), ("hybridep", 0.75), ("allgather", 2 * 0.5)):
        found = cost(layer, dp=2, ep=2, dispatcher=dispatcher)
        assert found.ep_forward == pytest.approx([2 * sent * tokens]), dispatcher
        assert found.ep_backward == found.ep_forward
    # In fp8 one of two ways; deepep handles 15.6 GB/s on each of its multiprocessors.
    eight = cost(layer, dp=2, ep=2, dispatcher="hybridep", dispatch_fp8=True)
    assert eight.ep_forward == pytest.approx([1.5 * 0.75 * tokens])
    assert PER_PROCESSOR > LINK
    deep = cost(layer, dp=2, ep=2, dispatcher="deepep", dispatch_processors=1)
    assert deep.ep_forward == pytest.approx([2 * 0.75 * tokens])


# ---------------------------------------------------------------- context parallelism


def test_ring_of_context_parallelism() -> None:
    # Keys and values of all tokens, 2 x 2 s b h bytes, (n-1)/n of which pass each rank; backward
    # their gradients too.
    half = 4 * SBH / 2 / LINK
    found = cost(block(), cp=2)
    assert (found.cp_forward, found.cp_backward) == (
        pytest.approx([half]), pytest.approx([2 * half]))
    assert cost(block(), cp=4).cp_forward == pytest.approx([4 * SBH * 3 / 4 / LINK])
    assert (cost(block()).cp_forward, cost(block()).cp_backward) == ([0.0], [0.0])
    # Two ranks of tensor parallelism have half of the heads each; of two key-value heads, one
    # each, whether two or four.
    assert cost(block(), cp=2, tp=2).cp_forward == pytest.approx([half / 2])
    grouped = block(model(kv_heads=2))
    for tp, share in ((1, 1 / 2), (2, 1 / 4), (4, 1 / 4)):
        assert cost(grouped, cp=2, tp=tp).cp_forward == pytest.approx([share * half])
    # Latent attention exchanges what the core takes: a (d_n + d_r) of keys, a d_v of values.
    latent = block(model(head_dim=12, mla={
        "q_rank": 16, "kv_rank": 24, "nope_dim": 8, "rope_dim": 4, "value_dim": 10}))
    assert cost(latent, cp=2).cp_forward == pytest.approx([S * B * A * 22 * 2 / 2 / LINK])
    # The encoder's keys and values travel too.
    across = cost(block(translator()), cp=2)
    assert across.cp_forward == pytest.approx([half * (1 + 1.5)])
    # Run again with the core, and with everything; not with other modules.
    for recompute, times in ((CORE_ATTN, 3), (FULL, 3), (NORM + MLP_ACT + MOE, 2)):
        assert cost(block(), cp=2, recompute=recompute).cp_backward == pytest.approx([times * half])


def test_ring_hides_under_the_core() -> None:
    # At 0.1 TFLOP/s half of the core, 4 s h / 2 FLOP a token, takes 2.6 us, the exchange 8.2.
    slow = {"memory_bandwidth": 1e18, "peak_flops": {"bf16": 1e11}}
    core = S * B / 2 * 4 * S * H / 2 / 1e11
    ring = 4 * SBH / 2 / LINK
    for kind, times in (("decoder", 1), ("encoder", 2)):  # an encoder's core has both halves
        layer = block(model(kind=kind))
        found = cost(layer, cp=2, machine=slow, overlap_cp=0.5)
        assert found.cp_forward == pytest.approx([ring - 0.5 * times * core])
        assert found.cp_backward == pytest.approx([2 * ring - 0.5 * times * 2.5 * core])
    # Run again, it hides under the core that is run again.
    again = cost(block(), cp=2, machine=slow, overlap_cp=0.5, recompute=CORE_ATTN)
    assert again.cp_backward == pytest.approx([3 * ring - 0.5 * 3.5 * core])
    # A slower core hides all of it.
    hidden = cost(block(), cp=2, machine={"peak_flops": {"bf16": 1e9}}, overlap_cp=0.5)
    assert (hidden.cp_forward, hidden.cp_backward) == ([0.0], [0.0])


def test_all_to_all_of_context_parallelism() -> None:
    # A rank turns the queries, keys, values and output of its tokens, 4 x 2 s b h / c bytes, from
    # a share of the tokens to a share of the heads: (c-1)/c of them leave. Nothing hides it.
    found = cost(block(), cp=2, inner=2, overlap_cp=1.0)
    once = 8 * SBH / 2 / 2 / LINK
    assert (found.cp_forward, found.cp_backward) == (
        pytest.approx([once]), pytest.approx([once]))
    four = cost(block(), cp=4, inner=4)
    assert four.cp_forward == pytest.approx([8 * SBH / 4 * 3 / 4 / LINK])
    again = cost(block(), cp=2, inner=2, recompute=CORE_ATTN)
    assert again.cp_backward == pytest.approx([2 * once])
    # Two key-value heads: keys and values are half as wide. Tensor parallelism halves all.
    grouped = block(model(kv_heads=2))
    assert cost(grouped, cp=2, inner=2).cp_forward == pytest.approx([once * 3 / 4])
    assert cost(grouped, cp=2, tp=2, inner=2).cp_forward == pytest.approx([once * 3 / 8])
    # Across to the encoder: queries and output of s tokens, keys and values of 96.
    across = cost(block(translator()), cp=2, inner=2)
    assert across.cp_forward == pytest.approx([once * (1 + 1 / 2 + 1.5 / 2)])


def test_gathered_keys_and_values() -> None:
    # Each of 4 ranks gathers the others' 3/4 of 2 x 2 s b h bytes of keys and values, which are
    # then put in order: read and written. The core hides nothing of it.
    held = 4 * SBH
    once, copy = held * 3 / 4 / LINK, held / 1e12
    slow = {"peak_flops": {"bf16": 1e9}}
    found = cost(block(), cp=4, gather=True, overlap_cp=1.0, machine=slow)
    assert found.cp_forward == pytest.approx([once + 2 * copy])
    # Backward the same, and gradients of all positions: zeros, sums (2 reads, a write), order, and
    # reduce-scatter.
    assert found.cp_backward == pytest.approx([2 * once + (2 + 1 + 3 + 2) * copy])
    assert found.free_forward == pytest.approx(cost(block(), machine=slow).forward / 4, rel=0.1)
    ring = cost(block(), cp=4, machine=slow)
    assert found.activations == pytest.approx(ring.activations)
    # While a layer runs: keys, values and both gradients of all positions.
    assert found.work == pytest.approx(ring.work + 2 * held)
    # PyTorch's FlexAttention keeps what it gathered, but for the rank's own quarter.
    kept = cost(block(), cp=4, gather=True, keeps_gathered=True)
    assert kept.cp_forward == pytest.approx([once + 2 * copy])
    assert kept.cp_backward == pytest.approx([once + 2 * copy])
    assert kept.activations == pytest.approx(ring.activations + held * 3 / 4)
    assert kept.work == pytest.approx(ring.work + held)
    # Where norms are run again, it is gathered again and not kept.
    again = cost(block(), cp=4, gather=True, keeps_gathered=True, recompute=NORM)
    assert again.cp_backward == pytest.approx([2 * (once + 2 * copy)])
    assert again.activations == pytest.approx(cost(block(), cp=4, recompute=NORM).activations)
    # Two of four key-value heads: half.
    grouped = cost(block(model(kv_heads=2)), cp=4, gather=True)
    assert grouped.cp_forward == pytest.approx([(once + 2 * copy) / 2])


def test_all_to_all_among_neighbours_and_a_ring_across() -> None:
    # 8 ranks, 4 of which exchange heads: 3/4 of 4 x 2 s b h / 8 bytes. Then each has a quarter of
    # the heads and half of the tokens, and two pass half of a quarter of 2 x 2 s b h bytes.
    found = cost(block(), cp=8, inner=4)
    swap, ring = 8 * SBH / 8 * 3 / 4 / LINK, 4 * SBH / 4 / 2 / LINK
    assert found.cp_forward == pytest.approx([swap + ring])
    assert found.cp_backward == pytest.approx([swap + 2 * ring])
    # The core hides the ring alone.
    hidden = cost(block(), cp=8, inner=4, overlap_cp=1.0, machine={"peak_flops": {"bf16": 1e9}})
    assert (hidden.cp_forward, hidden.cp_backward) == (
        pytest.approx([swap]), pytest.approx([swap]))
    # All that hides the ring hides no other traffic.
    assert hidden.free_forward == pytest.approx(
        cost(block(), cp=8, inner=8, machine={"peak_flops": {"bf16": 1e9}}).free_forward - ring)


def test_context_parallel_ranks_share_other_traffic() -> None:
    # They hold half of the tokens: half of what tensor and expert parallelism exchange.
    for layer, degrees in ((block(), {"tp": 2}), (block(mixture()), {"ep": 2})):
        one, two = cost(layer, dp=2, **degrees), cost(layer, cp=2, **degrees)
        for name in ("tp_forward", "tp_backward", "ep_forward", "ep_backward"):
            assert getattr(two, name) == pytest.approx(getattr(one, name) / 2)
        # Gradients are reduced over them as over others.
        assert two.sync == pytest.approx(one.sync)


# ---------------------------------------------------------------- gradients and parameters


def test_zero_traffic() -> None:
    # Four replicas, P parameters, fp32 gradients: all-reduce 2 x 3/4 x 4 P; scatter 3/4 x 4 P;
    # gather 3/4 x 2 P.
    layer = block()
    scatter = 0.75 * 4 * layer.parameters / LINK
    gather = 0.75 * 2 * layer.parameters / LINK
    none, one, two, three = (cost(layer, dp=4, zero=z) for z in range(4))
    assert none.sync == pytest.approx([2 * scatter])
    assert (none.gather, none.gathered, none.scattered) == ([0.0], [0.0], [0.0])
    assert one.sync == pytest.approx([scatter])
    assert one.gather == pytest.approx([gather])
    assert two.sync == [0.0]
    assert (two.gathered, two.scattered) == ([0.0], pytest.approx([scatter]))
    assert two.gather == pytest.approx([gather])
    assert (three.sync, three.gather) == ([0.0], [0.0])
    assert three.gathered == three.regathered == pytest.approx([gather])
    assert three.scattered == pytest.approx([scatter])
    kept = cost(layer, dp=4, zero=3, reshard_after_forward=False)
    assert (kept.gathered, kept.regathered) == (pytest.approx([gather]), [0.0])


def test_computing_is_slower_beside_zero() -> None:
    # A quarter of the seconds of the traffic above, hidden or not; once a step nothing.
    layer = block()
    scatter = 0.75 * 4 * layer.parameters / LINK
    gather = 0.75 * 2 * layer.parameters / LINK
    for zero, wanted in ((1, (0.0, 0.0)), (2, (0.0, scatter)), (3, (gather, gather + scatter))):
        found = cost(layer, dp=4, zero=zero, overlap_slowdown=0.25)
        assert found.slowed_forward == pytest.approx([0.25 * wanted[0]])
        assert found.slowed_backward == pytest.approx([0.25 * wanted[1]])
    plain, slowed = (layer_seconds(cost(layer, dp=4, zero=3, overlap_slowdown=share))
                     for share in (0.0, 0.25))
    assert slowed.forward - plain.forward == pytest.approx(0.25 * gather)
    assert slowed.backward - plain.backward == pytest.approx(0.25 * (gather + scatter))
    assert slowed.free_forward == plain.free_forward


def test_hybrid_sharding_traffic() -> None:
    # Three blocks of two: scatter 1/2 x 4 P and gather 1/2 x 2 P inside a block; the shard's
    # gradients, 4 P / 2, are all-reduced over the blocks once a step: 2 x 2/3 of them.
    layer = block()
    p = layer.parameters / LINK
    scatter, gather, across = 4 * p / 2, 2 * p / 2, 2 * 2 / 3 * 4 * p / 2
    one, two, three = (cost(layer, dp=2, outer=3, zero=z, hybrid=True) for z in (1, 2, 3))
    assert one.sync == pytest.approx([scatter + across])
    assert two.sync == pytest.approx([across])
    assert three.sync == pytest.approx([across])
    assert one.gather == pytest.approx([gather])
    assert two.gather == pytest.approx([gather])
    assert three.gather == [0.0]
    for found, gathered, scattered in ((one, 0, 0), (two, 0, scatter), (three, gather, scatter)):
        assert found.gathered == found.regathered == pytest.approx([gathered])
        assert found.scattered == pytest.approx([scattered])
        assert found.update == pytest.approx([30 * layer.parameters / 2 / 1e12])
    # Over all six instead: nothing is left to reduce, and more to scatter and gather.
    wide = cost(layer, dp=2, outer=3, zero=3)
    assert wide.sync == [0.0]
    assert wide.gathered == pytest.approx([5 / 6 * 2 * p])
    # One block: as without.
    assert cost(layer, dp=4, zero=3, hybrid=True) == cost(layer, dp=4, zero=3)


def test_hybrid_sharding_of_experts() -> None:
    # Two blocks of two devices that hold half of the experts each: nothing to shard them over in
    # a block, so that their gradients are all-reduced whole, 2 x 1/2 x 4 bytes; the rest by half.
    layer = block(mixture())
    routed = 4 * 3 * H * 24
    rest = layer.parameters - routed
    found = cost(layer, dp=2, ep=2, outer=2, zero=3, hybrid=True)
    assert found.sync == pytest.approx([4 * (rest / 2 + routed / 2) / LINK])
    assert found.gathered == pytest.approx([2 * rest / 2 / LINK])
    assert found.scattered == pytest.approx([4 * rest / 2 / LINK])
    assert found.parameters == pytest.approx([2 * (rest / 2 + routed / 2)])
    assert found.buffers == pytest.approx([(2 * 2 + 4) * rest / 2])


def test_tied_embeddings() -> None:
    # Both copies' gradients of 4 bytes go each way once.
    chain = build_chain(model(tied_embeddings=True))
    for layer in (chain.kinds[0], chain.kinds[-3]):
        assert layer.tied_parameters == V * H
        assert cost(layer).tied == pytest.approx([4 * V * H / LINK])
        assert cost(layer, tp=2).tied == pytest.approx([4 * V * H / 2 / LINK])
    assert all(cost(chain.kinds[kind]).tied == [0.0] for kind in chain.stage(range(len(chain))))


def test_fp8_training_gathers_single_bytes() -> None:
    # Each way two gathers of half the bytes and two scatters, and two more gathers backward.
    once = 2 * SBH / 2 / LINK
    found = cost(block(), tp=2, precision="fp8")
    assert found.tp_forward == pytest.approx([3 * once])
    assert found.tp_backward == pytest.approx([4 * once])


def test_what_hides_a_ring_hides_nothing_else() -> None:
    # Of the computing, the attention core is taken as far as the ring needs it: all of it where
    # the ring is long, ring / share where it is short; an all-to-all takes none.
    fast = {"memory_bandwidth": 1e18, "peak_flops": {"bf16": 1e12}}
    alone = cost(block(), cp=2, overlap_cp=0.0, machine=fast)
    assert alone.free_forward == pytest.approx(alone.forward)
    ring = alone.cp_forward[0]
    assert alone.cp_backward == pytest.approx([2 * ring])
    long = cost(block(), cp=2, overlap_cp=0.5, machine=fast)
    hidden = (ring - long.cp_forward[0]) / 0.5
    assert long.free_forward == pytest.approx(long.forward - hidden)
    assert 0 < hidden < ring / 0.5
    slow = {**fast, "peak_flops": {"bf16": 1e9}}
    short = cost(block(), cp=2, overlap_cp=0.5, machine=slow)
    assert short.cp_forward == [0.0]
    assert short.free_forward == pytest.approx(short.forward - ring / 0.5)
    assert short.free_backward == pytest.approx(short.backward - 2 * ring / 0.5)
    again = cost(block(), cp=2, overlap_cp=0.5, machine=slow, recompute=CORE_ATTN)
    assert again.free_backward == pytest.approx(
        again.backward + again.recompute - 3 * ring / 0.5)
    swap = cost(block(), cp=2, inner=2, overlap_cp=0.5, machine=slow)
    assert swap.free_forward == pytest.approx(swap.forward)
