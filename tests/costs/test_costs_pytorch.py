"""What PyTorch's FSDP2, checkpointing and ring of context parallelism cost, by hand.

1 GB/s without latency between devices, 1 TB/s of memory, 100 TFLOP/s.
"""

from __future__ import annotations

import pytest
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
    block,
    cost,
    mixture,
    model,
)

from nest.costs.choices import ATTN_PROJ, CORE_ATTN, FULL, MLP, MLP_ACT, NORM, QKV_LINEAR
from nest.model.build import prediction

MEMORY, FLOPS = 1e12, 1e14


def test_ring_moves_all_heads_and_gradients_in_fp32() -> None:
    # One of four heads has keys and values: 2 x 2 s b h bytes all the same, half of which pass a
    # rank of two. Backward again, and 4 bytes of gradients in two steps, the second one home.
    layer = block(model(kv_heads=1))
    ring = 4 * SBH / 2 / LINK
    found = cost(layer, cp=2, wide_ring=True)
    assert found.cp_forward == pytest.approx([ring])
    assert found.cp_backward == pytest.approx([ring + 2 * 2 * ring])
    assert cost(layer, cp=2).cp_forward == pytest.approx([ring / 4])
    four = cost(layer, cp=4, wide_ring=True)  # 4 x 1/4 of them, at 3/4 forward
    assert four.cp_backward == pytest.approx([ring * 3 / 2 + 2 * 2 * ring])
    assert cost(layer, cp=2, tp=2, wide_ring=True).cp_forward == pytest.approx([ring / 2])
    for recompute in (CORE_ATTN, FULL):
        again = cost(layer, cp=2, wide_ring=True, recompute=recompute)
        assert again.cp_backward == pytest.approx(found.cp_backward + ring)
    # The core hides it as it hides a ring: half of the core, 4 s h / 2 FLOP a token.
    slow = {"memory_bandwidth": 1e18, "peak_flops": {"bf16": 1e11}}
    core = S * B / 2 * 4 * S * H / 2 / 1e11
    hidden = cost(layer, cp=2, wide_ring=True, machine=slow, overlap_cp=0.5)
    assert hidden.cp_forward == pytest.approx([ring - 0.5 * core])
    assert hidden.cp_backward == pytest.approx([5 * ring - 0.5 * 2.5 * core])


def test_ring_merges_in_fp32() -> None:
    # Two steps: 2 bytes read and 4 written, then 4 + 2 read and 4 written, then 4 read and 2
    # written, of s b h / 2 outputs; backward of queries, keys and values.
    merged = (6 + 10 + 6) * SBH / 2 / MEMORY
    plain, wide = (cost(block(), cp=2, wide_ring=flag) for flag in (False, True))
    assert wide.forward - plain.forward == pytest.approx([merged])
    assert wide.backward - plain.backward == pytest.approx([3 * merged])
    again = cost(block(), cp=2, wide_ring=True, recompute=CORE_ATTN)
    core = cost(block(), cp=2, recompute=CORE_ATTN).recompute
    assert again.recompute - core == pytest.approx([merged])
    for given in ({}, {"cp": 2, "inner": 2}):
        assert cost(block(), wide_ring=True, **given).forward == cost(block(), **given).forward


def test_fsdp_copies() -> None:
    # What is gathered, 2 bytes a parameter, is read and written once more before each pass; whole
    # gradients are read and written in 4 bytes, and 2 are added.
    layer = block()
    copy, added = 4 * layer.parameters / MEMORY, 10 * layer.parameters / MEMORY
    for zero, wanted in ((0, (0, added)), (1, (0, added)), (2, (0, 0)), (3, (copy, copy))):
        found = cost(layer, dp=4, zero=zero, fsdp_copies=True)
        assert found.slowed_forward == pytest.approx([wanted[0]])
        assert found.slowed_backward == pytest.approx([wanted[1]])
    kept = cost(layer, dp=4, zero=3, fsdp_copies=True, reshard_after_forward=False)
    assert (kept.slowed_forward, kept.slowed_backward) == (pytest.approx([copy]), [0.0])


def test_recompute_stops_early() -> None:
    # Not run again: the second product of the MLP, 2 s b h f FLOP, and the residual addition.
    down, addition = 2 * SBH * FF / FLOPS, 3 * 2 * SBH / MEMORY
    bytes_of_down = 2 * (S * B * FF + FF * H + SBH) / MEMORY
    layer = block()
    for machine, less in ((FAST_MEMORY, down), (FAST_PRODUCTS, addition + bytes_of_down)):
        plain, early = (cost(layer, recompute=FULL, stops_early=flag, machine=machine)
                        for flag in (False, True))
        assert plain.recompute - early.recompute == pytest.approx([less])
        assert plain.forward == pytest.approx(early.forward)
        assert plain.backward == early.backward
    for recompute in (NORM + MLP_ACT, CORE_ATTN, MLP):
        assert (cost(layer, recompute=recompute).recompute
                == cost(layer, recompute=recompute, stops_early=True).recompute)
    # Nor its scatter; without sequence parallelism its all-reduce.
    once = 2 * SBH / 2 / LINK
    for sp, less in ((True, once), (False, 2 * once)):
        plain, early = (cost(layer, recompute=FULL, stops_early=flag, tp=2, sp=sp)
                        for flag in (False, True))
        assert plain.tp_backward - early.tp_backward == pytest.approx([less])


def test_recompute_stops_where_the_backward_pass_reads_nothing_more() -> None:
    # A norm behind the MLP reads its output, and so does one behind multi-token prediction; of
    # experts all is run again.
    for layer in (block(model(layer_norms=4)), block(mixture()), prediction(model(mtp_layers=1))):
        plain, early = (cost(layer, recompute=FULL, stops_early=flag, tp=2)
                        for flag in (False, True))
        assert plain.recompute == early.recompute
        assert plain.tp_backward == early.tp_backward
    # A parallel block sums both outputs: neither product is run again.
    both = block(model(parallel=True))
    plain, early = (cost(both, recompute=FULL, stops_early=flag, machine=FAST_MEMORY)
                    for flag in (False, True))
    assert plain.recompute - early.recompute == pytest.approx([2 * SBH * (FF + H) / FLOPS])


def test_inputs_that_tensor_parallel_ranks_divide() -> None:
    # Full recompute keeps half of 2 s b h bytes on each of two ranks, and gathers the other half.
    plain, split = (cost(block(), tp=2, sp=False, recompute=FULL, split_inputs=flag)
                    for flag in (False, True))
    assert split.activations == pytest.approx([2 * SBH / 2])
    assert split.tp_backward - plain.tp_backward == pytest.approx([2 * SBH / 2 / LINK])
    for given in ({"tp": 2, "recompute": FULL}, {"tp": 2, "sp": False}):
        plain, split = (cost(block(), split_inputs=flag, **given) for flag in (False, True))
        assert plain.tp_backward == split.tp_backward
        assert plain.activations == split.activations


def test_policies_of_named_outputs_drop_what_attention_returns() -> None:
    # save_dot_except_mlp of MaxText keeps queries, keys and values, the sum before the second norm
    # and the layer's input; with the context the core's output too. No last product runs again.
    code = NORM + MLP_ACT + MLP
    plain, named = ({"stops_early": True}, {"stops_early": True, "saves_outputs": True})
    kept = [cost(block(), recompute=code, **named).activations,
            cost(block(), recompute=code + CORE_ATTN, **named).activations]
    assert kept[0] - kept[1] == pytest.approx([2 * SBH + S * B * A * 4])
    assert cost(block(), recompute=code, **plain).activations == kept[0]
    assert kept[1] == pytest.approx([2 * SBH * (3 + 1 + 1)])
    again = cost(block(), recompute=code, machine=FAST_MEMORY, **named).recompute
    assert again == pytest.approx([2 * S * B * H * FF / 100e12])
    # Of save_qkv_proj the sum before the second norm is gone too, of save_out_proj queries, keys
    # and values; with the context alone there is only that and the input. Products: attention's
    # output, queries with keys and values, both. Collectives: the MLP gathers, attention scatters
    # or gathers, a quarter of the layer's each.
    core = S * B * 4 * S * H / 2
    up, apart = 2 * S * B * H * FF, cost(block(), tp=2, **named)
    for policy, kept, flop, share in (
            (code + CORE_ATTN + ATTN_PROJ, 3 + 1, up + core + 2 * S * B * H * H, 0.5),
            (code + CORE_ATTN + QKV_LINEAR, 1 + 1, up + core + 6 * S * B * H * H, 0.5),
            (code + QKV_LINEAR + ATTN_PROJ, 1 + 1 + 2 * A / H, up + 8 * S * B * H * H, 0.75)):
        found = cost(block(), recompute=policy, machine=FAST_MEMORY, **named)
        assert found.activations == pytest.approx([2 * SBH * kept])
        assert found.recompute == pytest.approx([flop / 100e12])
        assert cost(block(), tp=2, recompute=policy, **named).tp_backward - apart.tp_backward == (
            pytest.approx(share * apart.tp_forward))
        # Stacks that do not name outputs have no such modules.
        code_alone = policy & ~(QKV_LINEAR | ATTN_PROJ)
        assert cost(block(), recompute=policy, **plain) == cost(
            block(), recompute=code_alone, **plain)
