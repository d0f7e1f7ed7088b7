"""The pipeline schedules: an entry each, which search, evaluation, simulation and exports read.

An entry is a :class:`nest.schedules.closed.Closed` or a :class:`nest.schedules.path.Path` with its
:class:`nest.schedules.traits.Traits`. To add a schedule: CONTRIBUTING, "Adding a schedule".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from nest.schedules import controlled, orders
from nest.schedules.closed import Closed
from nest.schedules.path import Path
from nest.schedules.traits import MANY, Placement

Schedule = Literal[
    "1f1b", "interleaved", "gpipe", "combined", "zb1p", "interleaved-zb", "zb-v", "dualpipev",
    "dualpipe", "looped-bfs", "v-half", "v-min"]
USUAL: tuple[Schedule, ...] = ("1f1b", "interleaved")
"""Schedules of a space that names none; everything has ``BEYOND`` too."""
BEYOND: tuple[Schedule, ...] = ("dualpipe",)
"""Schedules that no listed stack runs."""

SCHEDULES: dict[str, Closed | Path] = {
    "1f1b": Closed(
        all_forward=False, ahead=orders.ahead_in_turn, alone=True, slack="none",
        label="1F1B", names={"torchtitan": "1F1B"}),
    "gpipe": Closed(
        all_forward=True, ahead=orders.all_ahead, alone=True, slack="all",
        label="GPipe", names={"torchtitan": "GPipe"}, written=r"gpipe"),
    "interleaved": Path(
        orders.write_interleaved, orders.ahead_in_turn, grouped=True,
        least_chunks=2, most_chunks=MANY,
        label="interleaved 1F1B", names={"torchtitan": "Interleaved1F1B"}),
    "combined": Path(
        orders.write_combined, orders.ahead_in_turn, together=True, grouped=True, alone=True,
        least_chunks=2, most_chunks=MANY, most_zero=1,
        label="combined 1F1B"),
    "zb1p": Path(
        orders.write_zero_bubble, orders.ahead_zero_bubble, split=True, grouped=True, most_zero=2,
        label="ZB1P", names={"torchtitan": "InterleavedZeroBubble"},
        written=r"zero-?bubble|zb1p|zb-?h1|zbb"),
    "interleaved-zb": Path(
        orders.write_zero_bubble, orders.ahead_zero_bubble, split=True, grouped=True,
        least_chunks=2, most_chunks=MANY, most_zero=2,
        label="interleaved zero-bubble", names={"torchtitan": "InterleavedZeroBubble"},
        written=r"interleaved.*(?:zero|zb)"),
    "zb-v": Path(
        orders.write_zb_v, orders.ahead_zb_v, split=True, placement="folded",
        least_chunks=2, most_chunks=2, most_zero=2,
        label="ZB-V", names={"torchtitan": "ZBVZeroBubble"}, written=r"zb-?v"),
    "v-half": Path(
        controlled.write_v_half, listed=True, split=True, placement="folded", lean=True,
        least_chunks=2, most_chunks=2, most_zero=2,
        label="V-Half", written=r"v-?half"),
    "v-min": Path(
        controlled.write_v_min, listed=True, split=True, placement="folded", lean=True,
        least_chunks=2, most_chunks=2, most_zero=2, slack="none",
        label="V-Min", written=r"v-?min"),
    "dualpipev": Path(
        orders.write_dualpipev, orders.ahead_dualpipev, split=True, placement="folded",
        least_chunks=2, most_chunks=2, most_zero=2, rounds=2,
        label="DualPipeV", names={"torchtitan": "DualPipeV"}, written=r"dualpipe-?v"),
    "dualpipe": Path(
        orders.write_dualpipe, orders.ahead_dualpipe, split=True, together=True,
        placement="crossed", least_chunks=2, most_chunks=2, most_zero=1, rounds=2,
        label="DualPipe", written=r"dualpipe(?!-?v)"),
    "looped-bfs": Path(
        orders.write_looped_bfs, orders.all_ahead, repeats=False,
        least_chunks=2, most_chunks=MANY,
        label="Looped BFS", names={"torchtitan": "LoopedBFS"}, written=r"bfs"),
}
"""Schedules by name; the kernels number them in this order."""
UNLIKE: tuple[str, ...] = tuple(
    name for name, one in SCHEDULES.items() if isinstance(one, Closed))
"""Schedules of stages that may differ; alike ones may be cut anywhere."""
PLAIN: tuple[Schedule, ...] = ("1f1b", "interleaved", "gpipe")
"""Schedules that planners other than NEST know."""
ONE_F_ONE_B = Path(orders.write_1f1b)
"""1F1B by its path, which its closed form is below where stages differ or hand over."""


def named(target: str) -> dict[str, str]:
    """What the framework of an export target calls the schedules that it has."""
    return {name: one.names[target] for name, one in SCHEDULES.items() if target in one.names}


def most_zero(schedule: str) -> int:
    """Largest ZeRO stage that is priced under a schedule."""
    return SCHEDULES[schedule].most_zero


def is_grouped(schedule: str, vpp: int) -> bool:
    """Whether micro-batches pass the chunks of a schedule in groups."""
    return vpp > 1 and has_groups(schedule)


def has_groups(schedule: str) -> bool:
    """Whether the micro-batches that pass a chunk in a row (``group``) can be chosen."""
    one = SCHEDULES[schedule]
    return isinstance(one, Path) and one.grouped and one.most_chunks > 1


def chunk_counts(schedule: str, pp: int, most: int) -> range:
    """Chunks that a stage of a pipeline of ``pp`` stages may have; up to ``most`` of each copy."""
    one = SCHEDULES[schedule]
    if one.copies > 1 and pp % 2:
        return range(0)
    if pp == 1:
        return range(1, 2) if one.alone else range(0)
    return range(one.least_chunks, min(one.most_chunks, one.copies * most) + 1)


def most_chunks(schedule: str) -> int:
    """Most chunks of a stage."""
    return SCHEDULES[schedule].most_chunks


def placement(schedule: str) -> Placement:
    """Where the chunks of a schedule are."""
    return SCHEDULES[schedule].placement


def is_folded(schedule: str) -> bool:
    """Whether the chunks of a schedule are placed in a V."""
    return placement(schedule) == "folded"


def copies(schedule: str) -> int:
    """Copies of the model that the stages of a pipeline hold together."""
    return SCHEDULES[schedule].copies


def twin(schedule: str, pp: int, stage: int) -> int | None:
    """The stage that holds the same layers; None: there is one copy of the model."""
    return pp - 1 - stage if copies(schedule) > 1 else None


def usual_chunks(schedule: str) -> int:
    """Chunks of a stage where nothing is said of them."""
    one = SCHEDULES[schedule]
    return one.least_chunks if one.least_chunks == one.most_chunks else 1


def position(schedule: str, pp: int, stage: int, chunk: int, vpp: int) -> int:
    """Place in the model of a chunk of a stage, 0 to pp x vpp / :func:`copies` - 1."""
    at = placement(schedule)
    if at == "folded" and chunk == 1:
        return 2 * pp - 1 - stage
    if at == "crossed":  # chunk 0 is the one that its micro-batches enter first
        ends = stage, pp - 1 - stage
        return max(ends) if chunk else min(ends)
    return chunk * pp + stage


def chunks_at(cuts: Sequence[int], pp: int, schedule: str) -> list[tuple[tuple[int, int], ...]]:
    """Layers [i, j) of every chunk of every stage, given the cuts in the order of the model."""
    vpp = copies(schedule) * (len(cuts) - 1) // pp
    at = [[position(schedule, pp, s, n, vpp) for n in range(vpp)] for s in range(pp)]
    return [tuple((cuts[q], cuts[q + 1]) for q in stage) for stage in at]


def stage_behind(schedule: str, pp: int, stage: int, chunk: int, vpp: int) -> int | None:
    """The stage that a chunk hands over to; None: it is the last one of the model."""
    here, at = position(schedule, pp, stage, chunk, vpp), placement(schedule)
    if here == pp * vpp // copies(schedule) - 1:
        return None
    if at == "folded":
        return here + 1 if here + 1 < pp else 2 * pp - 2 - here
    if at == "crossed":
        return stage + 1 if here == stage else stage - 1
    return (stage + 1) % pp
