"""The oracle's figures of groups and pairs on graphs of links, worked out by hand.

Whole plans are in ``test_oracle_graphs.py``.
"""

from __future__ import annotations

import pytest
from fabrics import ODD, RING, THIN, Row, both, graph, one
from oracle_links import Fabric, Figures, Seen, parents, rounded, worst
from oracle_rules import Outer, spreads

# ---------------------------------------------------------------- routes


def test_routes_of_a_ring() -> None:
    x = graph((4,), RING)

    def share(i: int, j: int) -> dict[tuple[int, int], float]:
        return {x.ends[e]: part for e, part in x.route(i, j)[0].items()}

    assert share(0, 1) == {(0, 1): 1.0}
    # Half goes either way round.
    assert share(0, 2) == {(0, 1): 0.5, (1, 2): 0.5, (0, 3): 0.5, (3, 2): 0.5}
    assert (x.route(0, 1)[1], x.route(0, 2)[1]) == (1.0, 2.0)


def test_a_route_splits_at_each_node() -> None:
    # From 0 to 1, behind switch 4: half over switch 2, to switch 7; half over switch 3, which
    # splits it between switches 7 and 8. Fewest links win, not the fastest (5, 6, 9 and then 1).
    rows: list[Row] = [
        (0, 4, 1.0, 1.0), (4, 2, 1.0, 1.0), (4, 3, 1.0, 2.0), (2, 7, 1.0, 1.0), (3, 7, 1.0, 5.0),
        (3, 8, 1.0, 1.0), (7, 1, 1.0, 1.0), (8, 1, 1.0, 1.0), (4, 5, 9.0, 0.0), (5, 6, 9.0, 0.0),
        (6, 9, 9.0, 0.0), (9, 1, 9.0, 0.0), (1, 0, 1.0, 1.0)]
    x = graph((2,), rows, switches=8)
    share, latency = x.route(0, 1)
    assert share == {0: 1.0, 1: 0.5, 2: 0.5, 3: 0.5, 4: 0.25, 5: 0.25, 6: 0.75, 7: 0.25}
    assert latency == 1.0 + 2.0 + 5.0 + 1.0


# ---------------------------------------------------------------- groups in a block


def test_a_ring_of_four() -> None:
    found = graph((4,), RING).inner(0, 4, 1, 4, one(4))
    # One byte over each link clockwise: 1/2 s.
    assert (found.ring_per_byte, found.ring_latency) == (0.5, 1.0)
    # A quarter of a byte to each neighbour, an eighth either way to the one opposite: over link
    # 0-1 pass 1/4 (0 to 1), 1/8 (0 to 2) and 1/8 (3 to 1): 1/2 byte, 1/4 s.
    assert (found.spread_per_byte, found.spread_latency) == (0.25, 2.0)
    # Round 0: 0-1 and 2-3, 1 byte, 1/2 s. Round 1: 0-2 and 1-3, half either way: over 0-1 pass
    # half of 0 to 2 and half of 3 to 1, 1/2 s again, 2 s of latency.
    assert found.per_byte == pytest.approx([(0.5 / 2 + 0.5 / 4) / (3 / 4)])
    assert found.latency == (1.5,)


def test_tiers_of_a_ring_of_four() -> None:
    found = graph((2, 2), RING).inner(0, 4, 1, 4, ((2, 4), True))
    # Level 0: 0-1 and 2-3. Level 1: both rails at once, 0-2 and 1-3, half either way: 1/2 s for
    # 1 byte a member, and each carries half of the buffer.
    assert found.per_byte == pytest.approx([0.5, 0.25])
    assert found.latency == (1.0, 2.0)
    # cp of 2 behind tp of 2: 0-2 and 1-3, no rails.
    across = graph((2, 2), RING).inner(0, 4, 2, 2, ((1, 2), True))
    assert across.per_byte == pytest.approx([0.0, 0.5])
    assert across.latency == (0.0, 2.0)


def test_rounds_of_eight_on_a_line() -> None:
    # Round j of 8: partners 2^j apart, 2^j messages over the middle link of each pair of runs, one
    # direction: 1, 2, 4 s a byte, 1, 2, 4 s. Halves, quarters, eighths of the buffer.
    line = [row for n in range(7) for row in both(n, n + 1, 1.0, 1.0)]
    found = graph((8,), line).inner(0, 8, 1, 8, one(8))
    assert found.per_byte == pytest.approx([(1 / 2 + 2 / 4 + 4 / 8) / (7 / 8)])
    assert found.latency == pytest.approx([7 / 3])
    # Two groups of four beside each other are the same without the last round; ring: from the last
    # member back to the first one, over three links, which carry nothing else that way.
    found = graph((8,), line).inner(0, 8, 1, 4, one(4))
    assert found.per_byte == pytest.approx([(1 / 2 + 2 / 4) / (3 / 4)])
    assert (found.ring_per_byte, found.ring_latency) == (1.0, 3.0)


def test_a_ring_of_pairs() -> None:
    # Three pairs of devices at a switch each, all switches joined, 1 byte/s. Level 1 joins three:
    # each member sends to the same one of the next pair, 2 bytes a link, and has 2 rails.
    rows = [r for n in range(6) for r in both(n, 6 + n // 2, 4.0, 0.0)]
    rows += both(6, 7, 1.0) + both(7, 8, 1.0) + both(8, 6, 1.0)
    found = graph((2, 3), rows, switches=3).inner(0, 6, 1, 6, ((2, 6), True))
    assert (found.per_byte, found.latency) == ((0.25, 1.0), (0.0, 1.0))


def test_a_star_of_three() -> None:
    # 4 bytes/s and 1 s to the switch, 2 bytes/s and 0.5 s from it.
    rows: list[Row] = [r for n in range(3) for r in ((n, 3, 4.0, 1.0), (3, n, 2.0, 0.5))]
    found = graph((3,), rows, switches=1).inner(0, 3, 1, 3, one(3))
    assert (found.ring_per_byte, found.ring_latency) == (0.5, 1.5)
    # Three at a level are a ring as well. Two thirds of a byte leave and reach each device.
    assert (found.per_byte, found.latency) == ((0.5,), (1.5,))
    assert found.spread_per_byte == pytest.approx(1 / 3, rel=1e-11)
    # Trees 1-2-0 and, shifted, 2-0-1: 2 sends half a byte of either to 0, which gets one byte, in
    # two steps.
    assert found[6:] == (0.5, 1.5, 0.5, 3.0)
    assert graph((3,), rows, 1).inner(0, 3, 1, 1, one(1)) == Figures((0.0,), (0.0,), *(0.0,) * 8)


def test_a_thin_link_between_two_switches() -> None:
    x = graph((2, 2), THIN, switches=2)
    # Pairs inside stay at their switches, whatever the other pair does. The two trees of two send
    # half a byte, but count no less than rings.
    inside = x.inner(0, 2, 1, 2, ((2, 2), True))
    assert inside == Figures((0.25, 0.0), (2.0, 0.0), 0.25, 2.0, 0.125, 2.0, 0.25, 2.0, 0.25, 2.0)
    # All four in a ring: 1 to 2 and 3 to 0 cross, one byte each way: 1 s, 1 + 3 + 1 s.
    # Level 1 exchanges 0-2 and 1-3: 2 bytes each way, of which 2 rails need half. All-to-all: four
    # messages of 1/4 byte cross each way. Rings on rails: a byte to the neighbour, 1/4 s; half a
    # byte across on each of two rails, 1 s. Trees: a step of 2 s and one of 5 s.
    around = x.inner(0, 4, 1, 4, ((2, 4), True))
    assert around == Figures((0.25, 1.0), (2.0, 5.0), 1.0, 5.0, 1.0, 5.0, 1.0, 5.0, 1.0, 7.0)
    # {0, 2} and {1, 3} at once: 2 bytes each way, in a ring and at level 1; all-to-all half of it.
    beside = x.inner(0, 4, 2, 2, ((1, 2), True))
    assert beside == Figures((0.0, 2.0), (0.0, 5.0), 2.0, 5.0, 1.0, 5.0, 2.0, 5.0, 2.0, 5.0)


def test_own_messages_set_the_pace_over_the_load_of_all() -> None:
    # Pairs at a switch of 4 bytes/s; the other pair has 1 byte/s: own links count alone.
    rows = [r for n in range(4) for r in both(n, 4 + n // 2, 4.0 if n < 2 else 1.0)]
    x = graph((2, 2), rows + both(4, 5), switches=2)
    assert x.inner(0, 2, 1, 2, ((2, 2), True)).ring_per_byte == 0.25
    assert x.inner(2, 2, 1, 2, ((2, 2), True)).ring_per_byte == 1.0


def test_direction_counts() -> None:
    # Clockwise 2 bytes/s but 1 byte/s from 0 to 1, the other way 4 bytes/s.
    rows: list[Row] = [(0, 1, 1.0, 1.0), (1, 2, 2.0, 1.0), (2, 3, 2.0, 1.0), (3, 0, 2.0, 1.0)]
    rows += [((n + 1) % 4, n, 4.0, 2.0) for n in range(4)]
    x = graph((4,), rows)
    assert x.inner(0, 4, 1, 4, one(4)).ring_per_byte == 1.0
    # 1 to 2 and back; 0 and 3 are left over, either alone on its side.
    assert x.inner(1, 2, 1, 2, one(2)).ring_per_byte == 0.5
    assert x.pair(0, 1) == (1.0, 1.0)
    assert x.pair(1, 0) == (0.25, 2.0)


# ---------------------------------------------------------------- rails and trees


def adapters(nodes: int, each: int, inner: float, outer: float) -> list[Row]:
    """Devices at a switch for each node, ``inner`` bytes/s and 1 s, and at one switch for all.

    The way there is an adapter, so that no way inside a node leads over it: ``outer`` bytes/s, 2 s.
    """
    devices, rows = nodes * each, list[Row]()
    for n in range(devices):
        rows += both(n, devices + n // each, inner, 0.5)
        rows += both(n, devices + nodes + 1 + n, outer, 0.0)
        rows += both(devices + nodes + 1 + n, devices + nodes, outer, 1.0)
    return rows


def test_a_ring_for_each_adapter() -> None:
    # Two nodes of four, 3 bytes/s inside, 1 byte/s for each adapter. One ring leaves a node by one
    # adapter: 1 s. Four rings: inside a byte from each to the next, 1/3 s; a quarter of a byte over
    # each adapter, 1/4 s. Level 1 exchanges at 1 s a byte on four rails. Trees: 2 steps of 1 s, one
    # of 2 s.
    spread = ((4, 8), True)
    found = graph((4, 2), adapters(2, 4, 3.0, 1.0), 11).inner(0, 8, 1, 8, spread)
    assert (found.ring_per_byte, found.ring_latency) == (1.0, 2.0)
    assert found.per_byte == pytest.approx([1 / 3, 0.25])
    assert found[6:] == (rounded(1 / 3), 2.0, rounded(1 / 3), 4.0)
    # With 16 bytes/s inside and 2 bytes/s outside, adapters are the slowest.
    rows = adapters(2, 4, 16.0, 2.0)
    found = graph((4, 2), rows, 11).inner(0, 8, 1, 8, spread)
    assert found[6:] == (0.125, 2.0, 0.125, 4.0)
    # That of device 0 with 1 byte/s slows its own rail, and all: they have equal parts.
    slow = [(a, b, 1.0 if 11 in (a, b) else rate, delay) for a, b, rate, delay in rows]
    found = graph((4, 2), slow, 11).inner(0, 8, 1, 8, spread)
    assert (found.ring_per_byte, found.rails_per_byte) == (1.0, 0.25)


def test_rings_on_rails_share_links_of_several_levels() -> None:
    # A ring of eight in fours. One ring: a byte over each link. On rails: from 3 back to 0 over
    # three links, the other way round than all else. From each to its twin four links away half a
    # quarter of a byte either way round: eight quarters, four links each, over 16: 1/2 byte a link.
    # Together 3/4 of the circle, and that: 5/4 bytes.
    x = graph((4, 2), [row for n in range(8) for row in both(n, (n + 1) % 8, 1.0)])
    found = x.inner(0, 8, 1, 8, ((4, 8), True))
    assert (found.ring_per_byte, found.ring_latency) == (1.0, 1.0)
    assert (found.rails_per_byte, found.rails_latency) == (1.25, 4.0)


def test_parts_of_uneven_groups_have_rails() -> None:
    # Three replicas of two devices, 4 apart, 8 bytes/s in nodes of 8, 1 byte/s an adapter: members
    # 0, 1, 4, 5 and 8, 9 are three parts of two. From 4 and 5 to 8 and 9, and from there to 0 and
    # 1, half a byte an adapter. One ring: a byte from 5 to 8. By themselves 0 to 1 a byte.
    x = graph((8, 2), adapters(2, 8, 8.0, 1.0), 19)
    found = x.replicas(Outer(3, 1, 4), 0, 2, 1, ((2, 6), False))
    assert (found.ring_per_byte, found.rails_per_byte) == (1.0, 0.5)
    # The level that joins both nodes counts with the better of the two rings.
    assert (found.per_byte, found.latency) == ((0.5, 0.5), (0.0, 0.0))


def test_two_trees() -> None:
    # As on a ruler: odd parts below those that 2 divides once, and so on; 0 is the root.
    assert parents(2) == [{1: 0}, {0: 1}]
    assert parents(4) == [{1: 2, 2: 0, 3: 2}, {2: 1, 1: 3, 0: 1}]
    # 5 would be below 6, and 4 below 8.
    assert parents(5)[0] == {1: 2, 2: 4, 3: 2, 4: 0}
    assert parents(5)[1] == {2: 3, 3: 0, 4: 3, 0: 1}
    assert parents(6)[0] == {1: 2, 2: 4, 3: 2, 4: 0, 5: 4}


@pytest.mark.parametrize("parts", range(2, 40))
def test_who_adds_in_one_tree_only_sends_in_the_other(parts: int) -> None:
    # So nobody gets more than two halves of a byte, whatever goes up; and steps are few.
    trees = parents(parts)
    above = [up for tree in trees for up in tree.values()]
    assert max(above.count(part) for part in range(parts)) <= 2
    for tree in trees:
        root = (set(range(parts)) - set(tree)).pop()
        depth = []
        for part in range(parts):
            steps = 0
            while part != root:
                part, steps = tree[part], steps + 1
            depth.append(steps)
        assert max(depth) == (parts - 1).bit_length()


def test_trees_on_a_line() -> None:
    # Four devices in a row: 1-2-0 with 3-2, mirrored 2-1-3 with 0-1. Over the link from 1 to 2
    # passes half a byte of 1, and of 1 to 3; from 2 to 1 of 2 to 0, and of 2: 1 s, as the ring
    # takes. The farthest step is one of two links.
    x = graph((4,), [row for n in range(3) for row in both(n, n + 1, 1.0, 1.0)])
    found = x.inner(0, 4, 1, 4, one(4))
    assert (found.tree_per_byte, found.tree_latency) == (1.0, 4.0)


# ---------------------------------------------------------------- tiles

CORE = [r for n in range(6) for r in both(n, 6 + n // 2, 4.0, 0.0)]
CORE += [r for n in range(3) for r in both(6 + n, 9, 1.0, 1.0)]
"""Three pairs of devices at a switch each, 4 bytes/s; 1 byte/s and 1 s to a switch above."""


def sends(x: Fabric, start: int, size: int, devices: int) -> list[int | None]:
    """Start of the block in which each device sends, to others of that start."""
    found: list[int | None] = [None] * devices
    for first, talking in x.tile(start, size, devices):
        for device in talking:
            assert found[device] is None and first <= device < first + size
            found[device] = first
    return found


def test_tiles() -> None:
    x = graph((5,), ODD, switches=2)
    # Device 0 is left over: alone in [0, 2), as 1 is in a block of its own.
    assert sends(x, 1, 2, 5) == sends(x, 3, 2, 5) == [0, 1, 1, 3, 3]
    # Device 4 is, alone in [3, 5).
    assert sends(x, 0, 2, 5) == sends(x, 2, 2, 5) == [0, 0, 2, 2, 3]
    # One on either side, two on one.
    assert sends(x, 1, 3, 5) == [0, 1, 1, 1, 2]
    assert sends(x, 0, 3, 5) == [0, 0, 0, 2, 2]
    assert sends(x, 2, 3, 5) == [0, 0, 2, 2, 2]
    assert sends(x, 0, 5, 5) == [0] * 5


def test_tiles_of_levels() -> None:
    # Groups of 3, two of them in 6, two of these: the lowest that holds the block counts.
    wide = graph((3, 2, 2), [r for n in range(11) for r in both(n, n + 1)])
    assert sends(wide, 1, 1, 12) == list(range(12))
    assert sends(wide, 4, 2, 12) == [0, 1, 1, 3, 4, 4, 6, 7, 7, 9, 10, 10]
    assert sends(wide, 3, 2, 12) == [0, 0, 1, 3, 3, 4, 6, 6, 7, 9, 9, 10]
    assert sends(wide, 6, 3, 12) == [0] * 3 + [3] * 3 + [6] * 3 + [9] * 3
    assert sends(wide, 6, 6, 12) == [0] * 6 + [6] * 6
    assert sends(wide, 5, 2, 12) == [0, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 10]  # in no group of 3 or 6


def test_tiles_of_a_super_pipeline() -> None:
    wide = graph((3, 2, 2), [r for n in range(11) for r in both(n, n + 1)])
    # Of 8 devices the last two are all that there is of [6, 9): room for a block of 2.
    assert sends(wide, 0, 2, 8) == sends(wide, 6, 2, 8) == [0, 0, 1, 3, 3, 4, 6, 6]
    # That block would begin at 7: 6 is left over in front, 7 behind, either by itself in [6, 8).
    assert sends(wide, 1, 2, 8) == [0, 1, 1, 3, 4, 4, 6, 6]
    assert [first for first, _ in wide.tile(1, 2, 8)] == [0, 1, 3, 4, 6, 6]
    # No room for a block of 3 there, and none for 2 at a stride of 7.
    assert sends(wide, 3, 3, 8) == [0, 0, 0, 3, 3, 3, None, None]
    assert sends(wide, 4, 2, 7) == [0, 1, 1, 3, 4, 4, None]
    assert sends(wide, 4, 1, 7) == list(range(7))
    # In groups of 6, of which 4 devices of the second are left: 6 and 7 as in [6, 9), 8 and 9 as
    # in [7, 10).
    assert sends(wide, 2, 3, 10) == [0, 0, 2, 2, 2, 3, 6, 6, 7, 7]


def test_devices_left_over_load_links() -> None:
    x = graph((5,), ODD, switches=2)
    # {1, 2} and {3, 4} cross twice each way; 0, left over, has nobody to talk to.
    found = x.inner(1, 2, 1, 2, one(2))
    assert found == Figures((2.0,), (1.0,), 2.0, 1.0, 1.0, 1.0, 2.0, 1.0, 2.0, 1.0)
    # {0, 1} and {2, 3}; 4 has nobody.
    assert x.inner(0, 2, 1, 2, one(2)) == found
    # {1, 2, 3}: 1 to 2 and 2 to 3 cross; all to all, 2 to 1 and to 3, a third of a byte each. 0 and
    # 4 are left over on two sides.
    found = x.inner(1, 3, 1, 3, one(3))
    assert (found.ring_per_byte, found.spread_per_byte) == (1.0, rounded(2 / 3))
    # {0, 1, 2}, and of the ring {2, 3, 4} only 3 to 4: after 1 to 2 from odd to even. All to all,
    # from even to odd: 0 to 1, 2 to 1 and 4 to 3, a third each; as much back.
    found = x.inner(0, 3, 1, 3, one(3))
    assert (found.ring_per_byte, found.spread_per_byte) == (2.0, 1.0)
    # {2, 3, 4}, and of the ring {0, 1, 2} only 0 to 1: after 2 to 3 from even to odd. All to all,
    # 2 to 3, 4 to 3 and 0 to 1.
    assert x.inner(2, 3, 1, 3, one(3)) == found
    # {0, 1, 2, 3, 4}: 0-1, 1-2, 2-3, 3-4: two each way; 4 to 0 does not cross.
    assert x.inner(0, 5, 1, 5, one(5)).ring_per_byte == 2.0


def test_devices_left_over_form_the_groups_of_a_block() -> None:
    # 0, 3 and 6 at one switch, all others at another, 1 byte/s between them.
    rows = [r for n in range(7) for r in both(n, 7 + (n % 3 > 0), 100.0)] + both(7, 8, 1.0)
    x = graph((7,), rows, switches=2)
    # tp 2 in a block of 4: {0, 1} and {2, 3}; of {3, 4} and {5, 6} in [3, 7) 3 is not left over.
    assert x.inner(0, 4, 1, 2, one(2)).ring_per_byte == 3.0
    # {3, 4} and {5, 6}; of {0, 1} and {2, 3} in [0, 4) 3 is not.
    assert x.inner(3, 4, 1, 2, one(2)).ring_per_byte == 3.0
    # cp 2 behind tp 2: {0, 2} and {1, 3} cross, and {4, 6} of [3, 7); 3 of {3, 5} is not left over.
    assert x.inner(0, 4, 2, 2, one(2)).ring_per_byte == 3.0
    # {3, 5} and {4, 6}, and {0, 2} of [0, 4); 3 of {1, 3} is not.
    assert x.inner(3, 4, 2, 2, one(2)).ring_per_byte == 3.0


def test_devices_left_over_load_direct_links() -> None:
    # A ring of 6, 1 byte/s. {0, 1, 2, 3}: half of 3 to 0 goes over 3-4-5-0, and 4, of {2, 3, 4, 5},
    # sends to 5. All to all, over 1-2 pass 1 to 2, 0 to 2, 1 to 3 and half of 0 to 3, a quarter of
    # a byte each; over 4-5 half of 3 to 0, and 4 to 5.
    x = graph((6,), [row for n in range(6) for row in both(n, (n + 1) % 6, 1.0)])
    found = x.inner(0, 4, 1, 4, one(4))
    assert (found.ring_per_byte, found.spread_per_byte) == (1.5, 0.875)
    # A torus of rows 0 1 2, 3 4 5, 6 7 8: 2 bytes/s, 1 between the last of a row and its first. In
    # {0, 1, 2, 3, 4} half of 2 to 3 goes over 2-5-3, the other half over 2-0-3; of the ring
    # {4, 5, 6, 7, 8} half of 5 to 6 goes over 5-3-6: 1 byte over 5-3.
    rows = [r for n in range(9) for r in both(n, n // 3 * 3 + (n + 1) % 3, (2.0, 2.0, 1.0)[n % 3])]
    rows += [r for n in range(9) for r in both(n, (n + 3) % 9)]
    assert graph((9,), rows).inner(0, 5, 1, 5, one(5)).ring_per_byte == 1.0


def test_devices_left_over_leave_a_hierarchy_alone() -> None:
    # Each figure is what levels say. A star, 1 byte/s: all of a ring is 1 s a byte, all to all
    # 2/3, 3/4. Trees take two steps. {0, 1, 2}, of {2, 3, 4} 3 to 4; and the other way round.
    star = [graph((n,), [r for d in range(n) for r in both(d, n, 1.0, 0.5)], 1) for n in (5, 6)]
    for start in (0, 2):
        assert star[0].inner(start, 3, 1, 3, one(3)) == Figures(
            (1.0,), (1.0,), 1.0, 1.0, rounded(2 / 3), 1.0, 1.0, 1.0, 1.0, 2.0)
        # {0, 1, 2, 3}; in [2, 6) 4 and 5 exchange in the first round alone.
        assert star[1].inner(start, 4, 1, 4, one(4)) == Figures(
            (1.0,), (1.0,), 1.0, 1.0, 0.75, 1.0, 1.0, 1.0, 1.0, 2.0)
    # Pairs below a core, 4 bytes/s, 1/2 of a byte/s for each device of a pair: rings and level 1 of
    # two devices of a pair 1 s, all to all half a byte through level 1. [0, 4): 1 to 2, or 0 to 2
    # and 1 to 3 of which two rails need half, or 0 and 1 to 2 and 3, a quarter of a byte each. 4
    # and 5 stay at their switch, as 0 and 1 do beside [2, 6).
    x = graph((2, 3), CORE, switches=4)
    for start in (0, 2):
        assert x.inner(start, 4, 1, 4, ((2, 4), True)) == Figures(
            (0.25, 1.0), (0.0, 2.0), 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0)
    # Over replicas of 3: {0, 1, 3, 4}; of {1, 2, 4, 5} only 2 and 5 to each other.
    assert star[1].replicas(Outer(2, 1, 3), 0, 2, 1, one(4)) == Figures(
        (1.0,), (1.0,), 1.0, 1.0, 0.75, 1.0, 1.0, 1.0, 1.0, 2.0)


# ---------------------------------------------------------------- replicas


def test_groups_over_replicas() -> None:
    x = graph((2, 2), THIN, switches=2)
    outer = Outer(2, 1, 2)
    # Blocks of 2 with tp 2: {0, 2} and {1, 3}: two bytes cross each way.
    assert x.replicas(outer, 0, 2, 2, ((1, 2), True)).ring_per_byte == 2.0
    # A block of 1: {0, 2}, while the block beside it does the same with {1, 3}.
    assert x.replicas(outer, 0, 1, 1, ((1, 2), True)).ring_per_byte == 2.0
    # Blocks of 2 with dp 2: {0, 1, 2, 3}, 1 to 2 and 3 to 0 cross.
    assert x.replicas(outer, 0, 2, 1, ((2, 4), True)) == x.inner(0, 4, 1, 4, ((2, 4), True))
    # One replica of one device: nobody to talk to.
    assert x.replicas(Outer(1, 1, 4), 3, 1, 1, ((1, 1), True)).ring_per_byte == 0.0


def halves(there: float, back: float) -> list[Row]:
    """12 devices of 100 bytes/s, the first five at one switch; bytes/s between the two."""
    rows = [r for n in range(12) for r in both(n, 12 + (n > 4), 100.0, 0.0)]
    return [*rows, (12, 13, there, 1.0), (13, 12, back, 1.0)]


def test_the_tile_of_replicas_stays_in_groups() -> None:
    # On a ring of 6 in pairs, two replicas of 3: blocks of 1, all of them at once: {0, 3}, {1, 4},
    # {2, 5}. Each message takes three links either way, half of it each: 6 messages of 3 links
    # over 12 directions at 1 byte/s: 1.5 bytes on each link.
    rows = [row for n in range(6) for row in both(n, (n + 1) % 6, 1.0)]
    pairs, flat = graph((2, 3), rows), graph((6,), rows)
    outer = Outer(2, 1, 3)
    assert pairs.replicas(outer, 0, 1, 1, ((1, 2), True)).ring_per_byte == 1.5
    # A block of 2 at 0 is a pair; of the next pair the super-pipeline has 2 alone, no room. {0, 3}
    # and {1, 4}: over 0-1 pass halves of 0 to 3 and of 4 to 1, over 1-2 of 0 to 3 and of 1 to 4.
    assert pairs.replicas(outer, 0, 2, 2, ((1, 2), True)).ring_per_byte == 1.0
    # Where there are no pairs, 2 and 5 send to each other, as in the block at 1.
    assert flat.replicas(outer, 0, 2, 2, one(2)).ring_per_byte == 1.5
    # A block of 2 at 1 is in no pair: 0 and 3 send, as in the block at 0.
    assert pairs.replicas(outer, 1, 2, 2, ((1, 2), True)).ring_per_byte == 1.5


def test_devices_left_over_in_groups_over_replicas() -> None:
    # On a ring of 6, {0, 1, 3, 4}: 0 to 1, 1 to 3, 3 to 4, 4 to 0, each over links of its own. All
    # to all: 4 messages of one link, 4 of two, 4 of three, a quarter of a byte each, over 12
    # directions alike: half a byte.
    rows = [row for n in range(6) for row in both(n, (n + 1) % 6, 1.0)]
    pairs, flat, outer = graph((2, 3), rows), graph((6,), rows), Outer(2, 1, 3)
    found = pairs.replicas(outer, 0, 2, 1, ((2, 4), True))
    assert (found.ring_per_byte, found.spread_per_byte) == (1.0, 0.5)
    # 2 and 5 are left over: no neighbours in the ring {1, 2, 4, 5}; all to all, 2 to 5 and 5 to 2,
    # half either way, an eighth of a byte more on each link. So are 0 and 3 in front of
    # {1, 2, 4, 5}, of {0, 1, 3, 4}.
    for start in (0, 1):
        found = flat.replicas(outer, start, 2, 1, one(4))
        assert (found.ring_per_byte, found.spread_per_byte) == (1.0, 0.625)


def test_left_over_in_front_and_behind() -> None:
    # Two replicas of 5 on groups of 3, one at either switch: {1, 2, 6, 7}, in a ring one message
    # each way. All to all 1 and 2 to 6 and 7; 0 to 5, of {0, 1, 5, 6}; and 3 to 8 and 4 to 9 of
    # {3, 4, 8, 9}, but not 3 to 9, from the front to behind: 7 quarters of a byte.
    x = graph((3, 4), halves(1.0, 1.0), switches=2)
    found = x.replicas(Outer(2, 1, 5), 1, 2, 1, ((2, 4), True))
    assert (found.ring_per_byte, found.spread_per_byte) == (1.0, 1.75)


@pytest.mark.parametrize(("there", "back"), [(1.0, 100.0), (100.0, 1.0)])
def test_every_super_pipeline_has_the_same_tile(there: float, back: float) -> None:
    # Two replicas of 5 on groups of 3, one at either switch: who sends crosses, as its twin does.
    x, outer = graph((3, 4), halves(there, back), switches=2), Outer(2, 1, 5)

    def crossing(start: int, size: int) -> float:
        return x.replicas(outer, start, size, size, ((1, 2), True)).ring_per_byte

    # 0 and 1, 3 and 4, and 2, left over behind the first. The block at 3 fills what there is of
    # its group; where blocks begin at 1 and would at 4, 0, 3 and 4 are left over.
    assert crossing(0, 2) == crossing(3, 2) == crossing(1, 2) == crossing(0, 1) == 5.0
    # No room for three behind 0, 1, 2.
    assert crossing(0, 3) == 3.0
    # In groups of 12 three more have room: none behind [1, 4), but 0 and 4 are left over.
    assert crossing(1, 3) == 5.0


def test_unused_devices_have_no_replicas() -> None:
    # Two replicas of 4 on one group of 12: [0, 3), and 3 as in [1, 4). The twin of 0 is 4, at the
    # same switch: three messages cross each way.
    x = graph((12,), halves(1.0, 1.0), switches=2)
    assert x.replicas(Outer(2, 1, 4), 0, 3, 3, one(2)).ring_per_byte == 3.0


def test_uneven_groups_take_the_ring_at_every_level() -> None:
    # Three replicas, 2 apart, on groups of 4 of 8 devices: {0, 2, 4} and {1, 3, 5}, two members in
    # one group, one in the other. 8 devices at a switch, 1 byte/s, 1 s each way.
    rows = [row for n in range(8) for row in both(n, 8, 1.0, 1.0)]
    found = spreads((4, 8), 3, 2, 0, 2, 2, 1, 1, 1)
    assert found.dp == ((1, 3), False)
    seen = dict(zip(found._fields, graph((4, 2), rows, 1).seen(
        Outer(3, 1, 2), 0, 2, 2, 1, (1, 1), found), strict=True))
    # No exchange, so no steps of one; two members and one are three parts.
    assert seen["dp"].figures == Figures(
        (0.0, 1.0), (0.0, 0.0), 1.0, 2.0, rounded(2 / 3), 2.0, 1.0, 2.0, 1.0, 4.0)
    # A ring and an exchange cost the same where two devices talk at a switch.
    assert seen["tp"].figures == Figures(
        (1.0, 0.0), (2.0, 0.0), 1.0, 2.0, 0.5, 2.0, 1.0, 2.0, 1.0, 2.0)
    assert seen["cp"].figures == seen["ep"].figures == seen["inner"].figures


def test_the_worst_replica_counts() -> None:
    # Pairs at switches of 4 and of 1 byte/s and of more latency: see above.
    rows = [r for n in range(4) for r in both(n, 4 + n // 2, 4.0 if n < 2 else 1.0, 1.0 + n // 2)]
    x = graph((2, 2), rows + both(4, 5), switches=2)
    found = spreads((2, 4), 2, 2, 0, 2, 2, 1, 1, 2)
    tensor = next(x.seen(Outer(2, 1, 2), 0, 2, 2, 1, (1, 2), found))
    assert tensor == Seen(((2, 2), True), Figures(
        (1.0, 0.0), (4.0, 0.0), 1.0, 4.0, 0.5, 4.0, 1.0, 4.0, 1.0, 4.0))
    # Each figure by itself.
    a, b = Figures((1.0, 5.0), (3.0, 0.0), 1.0, 8.0, 2.0, 0.0, 7.0, 1.0, 2.0, 3.0), Figures(
        (2.0, 4.0), (1.0, 1.0), 3.0, 7.0, 1.0, 9.0, 6.0, 2.0, 4.0, 2.0)
    assert worst([a, b]) == Figures(
        (2.0, 5.0), (3.0, 1.0), 3.0, 8.0, 2.0, 9.0, 7.0, 2.0, 4.0, 3.0)


# ---------------------------------------------------------------- pairs


def test_pairs() -> None:
    x = graph((2, 2), THIN, switches=2)
    # Inside a pair: every device to the next one, 0 to 1 uses the links of 0 and 1 alone.
    assert x.pair(0, 1) == (0.25, 2.0)
    # Across: the whole pairs side by side, 0 to 2 and 1 to 3: 2 bytes at 1 byte/s.
    assert x.pair(1, 2) == x.pair(0, 3) == (2.0, 5.0)
    assert x.pair(3, 0) == (2.0, 5.0)
    assert x.pair(2, 2) == (0.0, 0.0)
    # Of two replicas of pairs the one at the slower switch counts; three devices apart nobody
    # else sends.
    rows = [r for n in range(4) for r in both(n, 4 + n // 2, 4.0 if n < 2 else 1.0, 1.0)]
    slow = graph((2, 2), rows + both(4, 5, 8.0, 0.5), switches=2)
    assert slow.between(Outer(2, 1, 2), 0, 1) == (1.0, 2.0)
    assert slow.between(Outer(1, 1, 4), 0, 1) == (0.25, 2.0)
    # Fewer bytes/s in one replica, more latency in the other: the largest of each.
    rows = both(0, 1, 1.0, 2.0) + both(2, 3, 4.0, 8.0) + both(1, 2)
    assert graph((2, 2), rows).between(Outer(2, 1, 2), 0, 1) == (1.0, 8.0)
    flat = graph((4,), THIN, switches=2)
    assert flat.pair(0, 3) == (1.0, 5.0)
    # 1 to 2 crosses, 0 to 1 and 2 to 3 do not.
    assert flat.pair(1, 2) == (1.0, 5.0)
    # Two apart: 0 to 2 and 1 to 3 cross.
    assert flat.pair(0, 2) == (2.0, 5.0)


def test_two_spines() -> None:
    # Leaves 4 and 5, spines 6 (3 bytes/s, 1 s a link) and 7 (1 byte/s, 2 s): half of each of two
    # messages over each spine, one byte: the slower one sets the pace.
    rows = [r for n in range(4) for r in both(n, 4 + n // 2, 8.0, 0.0)]
    rows += [r for leaf in (4, 5) for r in both(leaf, 6, 3.0, 1.0) + both(leaf, 7, 1.0, 2.0)]
    x = graph((2, 2), rows, switches=4)
    assert x.pair(1, 2) == (1.0, 4.0)
    assert x.inner(0, 4, 1, 4, ((2, 4), True)).ring_per_byte == 0.5
    assert x.inner(0, 4, 1, 4, ((2, 4), True)).per_byte == pytest.approx([1 / 8, 0.5])


# ---------------------------------------------------------------- rounding


def test_twelve_digits() -> None:
    assert rounded(1 / 3) == 0.333333333333
    assert rounded(200.0 / 3) == 66.6666666667
    assert rounded(0.1 + 0.2) == 0.3
    assert rounded(0.0) == 0.0
    # Thirds of a byte at 1 byte/s.
    rows = [r for n in range(3) for r in both(n, 3, 1.0, 0.0)]
    found = graph((3,), rows, 1).inner(0, 3, 1, 3, one(3))
    assert found.spread_per_byte == 0.666666666667
