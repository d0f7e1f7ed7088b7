"""The simulation against schedules worked out by hand, on plain numbers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from nest.errors import KernelError
from nest.simulation.device import Stream
from nest.simulation.events import Ran, run
from nest.simulation.figures import ChunkMemory, LayerWork, Link, OverlapRates, StageWork
from nest.simulation.result import COMPUTE, DATA, Record
from nest.simulation.tasks import Task, levels, orders, peak

HALF = OverlapRates(0.5, 0.5, 0.5)
INSTANT = Link(0.0)


def stage(*layers: LayerWork, **end: float) -> StageWork:
    """A stage of one chunk."""
    return StageWork((layers,), **end)


def chunks(*times: tuple[float, float]) -> StageWork:
    """A stage of chunks of one layer each."""
    return StageWork(tuple((LayerWork(*pair),) for pair in times))


def simulated(
    schedule: str, m: int, *stages: StageWork, link: Link = INSTANT, **more: object
) -> Ran:
    """A pipeline whose links are all alike."""
    v = len(stages[0].chunks)
    return run(orders(schedule, len(stages), m, v), stages, [[link] * v] * len(stages), **more)


def short(tasks: tuple[Task, ...]) -> str:
    many = any(task.chunk for task in tasks)
    return " ".join(f"{'BF'[t.forward]}{t.chunk if many else ''}{t.micro_batch}" for t in tasks)


# ---------------------------------------------------------------- orders


def test_orders() -> None:
    # arXiv:2104.04473, figure 4, top: stage s warms up with p - s - 1 forwards.
    assert [short(order) for order in orders("1f1b", 3, 4)] == [
        "F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]
    assert short(orders("1f1b", 6, 2)[0]) == "F0 F1 B0 B1"
    assert short(orders("gpipe", 2, 3)[1]) == "F0 F1 F2 B2 B1 B0"
    # Figure 4, bottom, in groups of p = 2; warm-up of 2 (2 - 1 - 0) + (2 - 1) 2 = 4 and of 2.
    first, last = orders("interleaved", 2, 4, 2)
    assert short(first) == "F00 F01 F10 F11 F02 B10 F03 B11 F12 B00 F13 B01 B12 B13 B02 B03"
    assert short(last) == "F00 F01 F10 B10 F11 B11 F02 B00 F03 B01 F12 B12 F13 B13 B02 B03"


@pytest.mark.parametrize(("schedule", "m", "v"), [
    ("1f1b", 1, 1), ("1f1b", 7, 1), ("gpipe", 5, 1), ("interleaved", 4, 2), ("interleaved", 8, 3)])
def test_every_stage_does_everything_once(schedule: str, m: int, v: int) -> None:
    for order in orders(schedule, 4, m, v):
        assert sorted(order) == sorted(
            Task(way, c, k) for way in (True, False) for c in range(v) for k in range(m))


# ---------------------------------------------------------------- pipelines


def test_one_f_one_b_by_hand() -> None:
    # F0 0-2, F1 2-4 | F0 2-3, B0 3-5, F1 5-6, B1 6-8 | B0 5-9, B1 9-13.
    ran = simulated("1f1b", 2, chunks((2, 4)), chunks((1, 2)))
    assert ran.step_time == 13
    assert ran.backward_ends == [13, 8]
    # 1.5 s between: F0 3.5-4.5, B0 4.5-6.5, F1 6.5-7.5, B1 7.5-9.5 | B0 8-12, B1 12-16.
    ran = simulated("1f1b", 2, chunks((2, 4)), chunks((1, 2)), link=Link(1.5))
    assert ran.backward_ends == [16, 9.5]
    # Stage 0 computes 12 of 16 s, and waits for B0 from 4 to 8.
    assert (ran.spent[0].forward, ran.spent[0].backward, ran.spent[0].bubble) == (4, 8, 4)


@pytest.mark.parametrize("p", [1, 2, 3, 8])
@pytest.mark.parametrize("m", [1, 2, 5, 16])
def test_even_stages(p: int, m: int) -> None:
    """(m + p - 1)(f + b), for 1F1B and for GPipe (arXiv:2104.04473, section 2.2.1)."""
    for schedule in ("1f1b", "gpipe"):
        ran = simulated(schedule, m, *[chunks((1, 2.5))] * p)
        assert ran.step_time == pytest.approx((m + p - 1) * 3.5, rel=1e-12)


def test_gpipe_by_hand() -> None:
    # F0 0-2, F1 2-4 | F0 2-3, F1 4-5, B1 5-7, B0 7-9 | B1 7-11, B0 11-15.
    assert simulated("gpipe", 2, chunks((2, 4)), chunks((1, 2))).backward_ends == [15, 9]
    # 1 s between: F0 3-4, F1 5-6, B1 6-8, B0 8-10 | B1 9-13, B0 13-17.
    ran = simulated("gpipe", 2, chunks((2, 4)), chunks((1, 2)), link=Link(1))
    assert ran.backward_ends == [17, 10]


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 2), (2, 2, 6), (4, 3, 8), (3, 5, 3)])
def test_even_interleaved_stages(p: int, v: int, m: int) -> None:
    """m (f + b) + (p - 1)(f + b) / v (arXiv:2104.04473, section 2.2.2); f, b of all chunks."""
    ran = simulated("interleaved", m, *[chunks(*[(1, 2.5)] * v)] * p)
    assert ran.step_time == pytest.approx(m * 3.5 * v + (p - 1) * 3.5, rel=1e-12)


def test_uneven_interleaved_stages_by_hand() -> None:
    # Stage 0 has chunks (2, 4) and (1, 2), stage 1 (1, 2) and (3, 5). F10: chunk 1, micro-batch 0.
    # Stage 0: F00 0-2, F01 2-4, F10 4-5 (there at 3), F11 5-6 (there at 5).
    # Stage 1: F00 2-3, F01 4-5, F10 5-8, B10 8-13, F11 13-16, B11 16-21.
    # Stage 0: B10 13-15, B11 21-23. Stage 1: B00 21-23 (there at 15), B01 23-25.
    # Stage 0: B00 23-27, B01 27-31 (there at 25).
    ran = simulated("interleaved", 2, chunks((2, 4), (1, 2)), chunks((1, 2), (3, 5)))
    assert ran.backward_ends == [31, 25]


def test_interleaved_hand_overs_by_hand() -> None:
    # 1 s between the stages and 2 s back to the first; chunks of (1, 2).
    # Stage 0: F00 0-1, F01 1-2, F10 5-6, F11 6-7. Stage 1: F00 2-3, F01 3-4, F10 7-8, B10 8-10,
    # F11 10-11, B11 11-13. Stage 0: B10 11-13, B11 14-16. Stage 1: B00 15-17, B01 18-20.
    # Stage 0: B00 18-20, B01 21-23.
    both = chunks((1, 2), (1, 2))
    ran = run(orders("interleaved", 2, 2, 2), [both, both], [[Link(1)] * 2, [Link(2)] * 2])
    assert ran.backward_ends == [23, 20]


def test_messages_follow_each_other_on_a_link() -> None:
    # A message takes 0.5 s, and fills the link for 3 s. Forward: F0 ends at 1, there at 1.5; F1
    # ends at 2, there at 4.5. Stage 1: F0 1.5-2.5, F1 4.5-5.5, B1 5.5-6.5, B0 6.5-7.5. Backward:
    # B1 there at 7, B0 at 10 instead of 8. Stage 0: B1 7-8, B0 10-11.
    ran = simulated("gpipe", 2, *[chunks((1, 1))] * 2, link=Link(0.5, 3))
    assert ran.backward_ends == [11, 7.5]


def test_orders_that_wait_for_each_other_are_a_defect() -> None:
    with pytest.raises(KernelError, match="wait for each other"):
        run([(Task(False, 0, 0), Task(True, 0, 0))], [chunks((1, 1))], [[Link(0)]])


# ---------------------------------------------------------------- the end of a step


def test_reduction_hides_under_what_is_left_of_the_backward() -> None:
    # F 0-2. B of layer 1 2-4: its 3 s of gradients are queued. B of layer 0 4-6 hides half of its
    # 2 s: 2 s are left. Then 2 s and the 3 s of layer 0: 11. Optimizer: 12.
    layer = LayerWork(1, 2, reduced=3, gradient_bytes=10)
    ran = simulated("1f1b", 1, stage(layer, layer, update=1), rates=HALF)
    assert ran.ends == [12]
    assert (ran.spent[0].reduce, ran.spent[0].update) == (5, 1)
    # Both in a bucket: 6 s after the last backward. So where nothing overlaps.
    assert simulated("1f1b", 1, stage(layer, layer), rates=HALF, bucket_bytes=20).ends == [12]
    assert simulated("1f1b", 1, stage(layer, layer)).ends == [12]
    # Buckets of 20 bytes of three layers: layers 2 and 1, then layer 0. F 0-3, B 3-5, 5-7, 7-9;
    # 6 s queued at 7, 1 s hidden: 5 + 3 after 9.
    three = stage(layer, layer, layer)
    assert simulated("1f1b", 1, three, rates=HALF, bucket_bytes=15).ends == [17]


def test_reduction_runs_at_full_rate_while_the_stage_waits() -> None:
    # Two chunks on the last stage. Stage 1 by hand, chunks (1, 2): F00 1-2, F01 2-3, F10 3-4,
    # B10 4-6, F11 6-7, B11 7-9: 4 s of chunk 1's gradients queued at 9. Stage 0: B10 6-8, B11
    # 9-11. B00 (there at 8) 9-11: half of 2 s hidden, 3 left. B01 (there at 11) 11-13: 2 left. 15.
    last = StageWork(((LayerWork(1, 2),), (LayerWork(1, 2, reduced=4),)))
    first = chunks((1, 2), (1, 2))
    ran = simulated("interleaved", 2, first, last, rates=HALF)
    assert ran.backward_ends == [15, 13]
    assert ran.ends == [15, 15]
    # With 4 s back from stage 0's chunk 1: B00 there at 12: 9-12 hides 3 of 4 s, 12-14 the last.
    ran = run(orders("interleaved", 2, 2, 2), [first, last],
              [[Link(0)] * 2, [Link(4)] * 2], HALF)
    assert ran.ends[1] == ran.backward_ends[1]


def test_copies_of_tied_embeddings_wait_for_each_other() -> None:
    # Last backwards end at 13 and 8. Stage 1 reduces 1 s; the exchange begins at 13 on both, takes
    # 2 and 3 s, then optimizers of 1 s: 16 and 17.
    ran = simulated("1f1b", 2, stage(LayerWork(2, 4), tied=2, update=1),
                    stage(LayerWork(1, 2, reduced=1), tied=3, update=1))
    assert ran.ends == [16, 17]
    assert ran.spent[1].bubble == 17 - 6 - 1 - 3 - 1


def test_parameters_are_gathered_under_the_first_forward() -> None:
    # Layer 0 waits 0-1, computes 1-2 and hides half a second of layer 1's gather: that waits 0.5 s
    # and computes 2.5-3.5. The second micro-batch waits for nothing. 3.5 + 2 + 8 = 13.5.
    layer = LayerWork(1, 2, refreshed=1)
    ran = simulated("gpipe", 2, stage(layer, layer), rates=HALF)
    assert ran.step_time == 13.5
    assert ran.spent[0].refresh == 1.5
    # A later stage gathers while it waits for its first micro-batch, 2 of 3 s.
    ran = simulated("1f1b", 1, chunks((2, 1)), stage(LayerWork(1, 1, refreshed=3)), rates=HALF)
    assert ran.spent[1].refresh == 1
    assert ran.backward_ends == [6, 5]


# ---------------------------------------------------------------- ZeRO-2 and ZeRO-3


def test_zero3_gathers_one_layer_ahead() -> None:
    # A gather takes 2 s; half of computing hides it. F of layer 0: waits 0-2, computes 2-4, hides
    # 1 s of the next gather. Layer 1: waits 4-5, computes 5-7, hides 1 s of the gather for its own
    # backward. B of layer 1: waits 7-8, computes 8-12, hides all 2 s. B of layer 0: 12-16.
    layer = LayerWork(2, 4, gathered=2, regathered=2)
    ran = simulated("1f1b", 1, stage(layer, layer), rates=HALF)
    assert ran.step_time == 16
    assert ran.spent[0].zero == 4
    # Nothing hides without computing to hide under, everything with enough of it but the first.
    assert simulated("1f1b", 1, stage(layer, layer)).step_time == 12 + 4 * 2
    full = simulated("1f1b", 1, stage(layer, layer), rates=OverlapRates(1, 1, 1))
    assert full.step_time == 12 + 2


def test_exposed_gathers_of_layers_alike() -> None:
    """max(0, g - o c) for each pass through a layer but the very first, which hides nothing."""
    f, b, g, s, o, m = 2.0, 4.0, 3.0, 2.5, 0.5, 6
    layer = LayerWork(f, b, gathered=g, regathered=g, scattered=s)
    work = stage(*[layer] * 50)
    ran = simulated("1f1b", m, work, rates=HALF)
    exposed = 50 * m * (max(0, g - o * f) + max(0, g + s - o * b))
    assert ran.spent[0].zero == pytest.approx(exposed, rel=0.02)


def test_gathers_run_while_the_stage_waits() -> None:
    # Stage 1 gathers for two layers, 4 s, while stage 0 computes 5 s.
    layer = LayerWork(1, 1, gathered=2)
    ran = simulated("1f1b", 1, chunks((5, 1)), stage(layer, layer))
    assert ran.spent[1].zero == 0


def test_zero2_scatters_one_layer_behind() -> None:
    # Scatters of 3 s, half of computing hides them. F 0-2. B of layer 1 2-4; of layer 0 4-6: 1 s
    # of layer 1's scatter is hidden, 2 s are waited for: 8. F 8-10 hides 1 s of layer 0's scatter,
    # B of layer 1 10-12 another, 1 s is waited for: 13. Layer 0 13-15, waits until 17, and 3 s of
    # its own scatter: 20.
    layer = LayerWork(1, 2, scattered=3)
    ran = simulated("1f1b", 2, stage(layer, layer), rates=HALF)
    assert ran.ends == [20]
    assert (ran.spent[0].zero, ran.spent[0].reduce) == (5, 3)


def test_reduction_gives_way_to_what_is_waited_for() -> None:
    stream = Stream()
    late = stream.add(4.0, 1.0, "reduce", yields=True)
    stream.wait(1.0)  # 3 s left
    urgent = stream.add(2.0, 0.5, "gather")
    stream.compute(3.0)  # 1 s of it
    assert stream.finish(urgent) == 4.0
    assert stream.drain() == 7.0
    assert (late.begun, late.end) == (0.0, 7.0)


def test_exposed_traffic_hides_nothing() -> None:
    # F 0-2 and 3 s of traffic, B 5-9 and 3 s. Layer 1's gradients, 4 s, are queued at 8 of 12:
    # layer 0 computes 8-10, which hides 1 s, and its traffic 10-12 hides none. 3 + 4 s are left.
    layer = LayerWork(1, 2, 1.5, 1.5, reduced=4)
    ran = simulated("1f1b", 1, stage(layer, layer), rates=HALF)
    assert ran.backward_ends == [12]
    assert ran.ends == [19]
    assert ran.spent[0].traffic == 6


# ---------------------------------------------------------------- accounts


def test_seconds_add_up() -> None:
    layer = LayerWork(1, 2, 0.3, 0.4, scattered=3, reduced=1, refreshed=2)
    for schedule, m in (("1f1b", 5), ("gpipe", 3)):
        ran = simulated(schedule, m, stage(layer, tied=1, update=2), stage(layer, layer, tied=2),
                        rates=HALF, link=Link(0.7, 0.5))
        for spent, end in zip(ran.spent, ran.ends, strict=True):
            assert sum(vars(spent).values()) == pytest.approx(end, rel=1e-12)


def test_layers_of_a_chunk_together_take_what_they_take_apart() -> None:
    """A chunk is one event where nothing happens between its layers."""
    layers = [LayerWork(1, 2, 0.5), LayerWork(0.5, 1, 0.1, 0.2), LayerWork(2, 3)]
    whole = LayerWork(*map(sum, zip(*layers, strict=True)))
    apart = simulated("1f1b", 7, stage(*layers), stage(*layers[:2]))
    together = simulated("1f1b", 7, stage(whole), stage(*layers[:2]))
    assert apart.ends == pytest.approx(together.ends, rel=1e-12)
    assert apart.events == 2 * 2 * 7 + 2 * 7  # passes and messages


def test_memory_by_hand() -> None:
    # 1F1B, stage 0 of 2, 3 micro-batches of 10 bytes, 4 bytes of work: F0 F1 B0 F2 B1 B2.
    order = orders("1f1b", 2, 3)[0]
    found = levels(order, [ChunkMemory(10, 4)])
    assert [level.during for level in found] == [10, 20, 24, 20, 24, 14]
    assert [level.after for level in found] == [10, 20, 10, 20, 10, 0]
    assert peak(order, [ChunkMemory(10, 4)]) == 24
    # Interleaved, stage 1 of 2, chunks of 1 and 100 bytes: F00 F01 F10 B10 F11 B11 B00 B01. One
    # micro-batch of chunk 1 at a time, and two of chunk 0: 102, not 3 halves of 101.
    order = orders("interleaved", 2, 2, 2)[1]
    assert peak(order, [ChunkMemory(1, 0), ChunkMemory(100, 0)]) == 102


def test_slices_show_what_happens() -> None:
    layer = LayerWork(1, 2, reduced=3)
    record = Record(2, 2)
    simulated("1f1b", 2, stage(layer, update=1), chunks((1, 2)), link=Link(1), record=record)
    found = {(s.stage, s.stream, s.name): (s.start, s.end) for s in record.slices}
    # F0 0-1, F1 1-2 | F0 2-3, B0 3-5, F1 5-6, B1 6-8 | B0 6-8, B1 9-11, gradients 11-14, 14-15.
    assert found[0, COMPUTE, "F1"] == (1, 2)
    assert found[1, COMPUTE, "B1"] == (6, 8)
    assert found[0, COMPUTE, "B1"] == (9, 11)
    assert found[0, COMPUTE, "gradients"] == (11, 14)
    assert found[0, COMPUTE, "optimizer"] == (14, 15)
    assert found[0, DATA, "reduce from layer 0"] == (11, 14)
    assert found[1, 3, "gradient 1"] == (8, 9)


def test_micro_batches_in_the_middle_are_left_out() -> None:
    record = Record(2, 7)
    assert [k for k in range(7) if record.wants(k)] == [0, 1, 5, 6]
    assert record.wants(-1)
    assert not Record(4, 7).left_out


# ---------------------------------------------------------------- independence


def test_simulation_shares_nothing_but_the_price_of_a_layer() -> None:
    """Neither the closed forms nor anything of the search."""
    folder = Path(__file__).parents[2] / "src" / "nest" / "simulation"
    files = sorted(folder.glob("*.py"))
    assert len(files) > 8
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {f"{node.module}.{alias.name}" for node in ast.walk(tree)
                 if isinstance(node, ast.ImportFrom) for alias in node.names}
        names = {name for name in names if name.startswith("nest.")}
        assert not {n for n in names if n.startswith((
            "nest.schedules.closed", "nest.schedules.one_f_one_b", "nest.schedules.gpipe",
            "nest.search", "nest._kernels"))}, path.name
        shared = {n for n in names if n.startswith("nest.evaluation.evaluate")}
        # What a plan is compared with.
        assert shared <= {"nest.evaluation.evaluate.chain_of", "nest.evaluation.evaluate.evaluate"}
        assert shared <= {"nest.evaluation.evaluate.chain_of"} or path.stem == "step"
        assert {n for n in names if n.startswith("nest.costs.stage")} <= {
            "nest.costs.stage.hop"}
