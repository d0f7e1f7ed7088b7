"""Where the nodes of a network stand in its picture, and what of a network is drawn."""

from __future__ import annotations

import math
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

import nest
from nest.errors import InputError
from nest.report.network import layout as network_layout
from nest.report.network.chart import SIDE
from nest.report.network.layout import STEP, grid_of, layout
from nest.report.network.sketch import MOST_CABLES, Sketch, sketch


def unruly(folder: Path, crowded: bool = False) -> str:
    """Routers that are linked at random, two devices each; or devices, some of them near others."""
    links = (nx.random_geometric_graph(40, 0.3, seed=5) if crowded
             else nx.random_regular_graph(3, 12, seed=4)).edges
    graph = nx.Graph([(f"n{one}", f"n{other}") for one, other in links])
    for node in list(graph):
        graph.nodes[node].update({"kind": "device", "device": "h100-sxm"} if crowded
                                 else {"kind": "switch"})
        for n in range(0 if crowded else 2):
            graph.add_node(f"{node}.{n}", kind="device", device="h100-sxm")
            graph.add_edge(node, f"{node}.{n}")
    nx.set_edge_attributes(graph, "50 GB/s", "bandwidth")
    nx.set_edge_attributes(graph, "1 us", "latency")
    path = folder / "unruly.graphml"
    nx.write_graphml(graph, path)
    return str(path)


NETWORKS = {
    "fat-tree:k=4": (16, 8 + 4 + 1, 16 + 8 + 4),
    "spine-leaf:leaves=4,per_leaf=16,node=8": (64, 8 + 4 + 1, 64 + 8 + 4),
    # 2 units x 8 leaves, 8 node switches, 4 spines; a port is no node of its own
    "rail-optimized:nodes=4,units=2,spines=4": (64, 16 + 8 + 4, 64 + 64 + 64),
    "rail-optimized:nodes=2,node=4,units=1,spines=1": (8, 2 + 4 + 1, 8 + 8 + 4),
    # 9 groups of 4 routers: 36 x 2 devices, 9 x 6 links inside and 36 between groups
    "dragonfly:a=4,p=2,h=2": (72, 36, 72 + 54 + 36),
    "torus:dims=4x6": (24, 0, 48),
    "torus:dims=3x4x2x2": (48, 0, 48 + 48 + 24 + 24),
    "torus:dims=7": (7, 0, 7),
    "torus:dims=2x2x2x2x2": (32, 0, 80),
    "fully-connected:devices=9": (9, 0, 36),
    "nvl-domains:domains=2,size=18": (36, 3, 38),
    "data-centres:centres=2,fabric=[fat-tree:k=4]": (32, 16 + 8 + 2 + 1, 32 + 16 + 8 + 2),
    # 3 x (2 leaves, 2 spines, gateway): 16 + 4 + 2 links each, 3 between gateways
    "data-centres:centres=3,fabric=[spine-leaf:leaves=2,per_leaf=8,spines=2]": (
        48, 15, 3 * 22 + 3),
    "spine-leaf:leaves=1,per_leaf=1": (1, 1, 1),
    "unruly": (24, 12, 24 + 18),
    "crowded": (40, 0, 131),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_nodes_are_apart_and_lines_end_at_them(name: str, tmp_path: Path) -> None:
    cluster = nest.load_network(
        unruly(tmp_path, name == "crowded") if name in ("unruly", "crowded") else name)
    drawn = sketch(cluster)
    assert (drawn.squares, drawn.switches, len(drawn.ends_C)) == NETWORKS[name]
    found, again = layout(drawn), layout(sketch(cluster))
    place = found.position_V
    assert (place == again.position_V).all()
    away = np.abs(place[:, None] - place)
    far = np.hypot(away[..., 0], away[..., 1])
    np.fill_diagonal(far, np.inf)
    assert far.min() > 0.5  # also between switches and squares
    squares = away[: drawn.squares, : drawn.squares].max(axis=2)
    np.fill_diagonal(squares, np.inf)
    assert squares.min() >= SIDE  # squares do not overlap
    assert {cable for _, cable in found.lines} == set(range(len(drawn.ends_C)))
    ends: dict[int, list[np.ndarray]] = {}
    for line, cable in found.lines:
        ends.setdefault(cable, []).append(line)
    for cable, own in ends.items():
        one, other = place[drawn.ends_C[cable]]
        assert (own[0][0] == one).all()
        if len(own) == 1:
            assert own[0][-1] == pytest.approx(other)
        else:  # two short ends
            assert (own[1][0] == other).all()
            assert all(0.5 < math.dist(end[0], end[-1]) < STEP for end in own)


def test_rows_of_switches() -> None:
    drawn = sketch(nest.load_network("fat-tree:k=4"))
    found = layout(drawn)
    heights = [found.position_V[drawn.squares + n, 1] for n in range(13)]
    by_row = {name: {heights[n] for n in range(13) if drawn.names[n].startswith(name)}
              for name in ("edge", "aggregation", "core")}
    assert all(len(own) == 1 for own in by_row.values())
    assert sorted(found.rows) == [(by_row[name].pop(), name)
                                  for name in ("edge", "aggregation", "core")]
    assert max(found.position_V[:16, 1]) < min(heights)
    # a switch stands over the middle of what it joins
    for node, others in enumerate(drawn.near()):
        below = [other for other in others if other < node]
        if node >= 16:
            assert found.position_V[node, 0] == pytest.approx(
                np.mean(found.position_V[below, 0]))


def test_switches_of_nodes_stand_below_and_rails_above() -> None:
    drawn = sketch(nest.load_network("rail-optimized:nodes=4,units=2,spines=4"))
    height = layout(drawn).position_V[:, 1]
    near = drawn.near()
    for node in range(drawn.squares, len(near)):
        # 8 devices of a node; a leaf has 4 devices and 4 spines, a spine 16 leaves
        below = len(near[node]) == 8 and max(near[node]) < drawn.squares
        assert (height[node] < height[: drawn.squares].min()) == below
        assert (height[node] > height[: drawn.squares].max()) == (not below)
    assert len(set(height[drawn.squares :].round(6))) == 3


def test_a_dragonfly_is_circles_in_a_circle() -> None:
    drawn = sketch(nest.load_network("dragonfly:a=4,p=2,h=2"))
    place = layout(drawn).position_V
    own = place[:72].reshape(9, 8, 2)
    middle = own.mean(axis=1)
    assert np.hypot(*middle.T) == pytest.approx(np.hypot(*middle[0]))
    for group in range(9):
        inside = np.hypot(*(own[group] - middle[group]).T)
        assert inside == pytest.approx(inside[0])
        outside = np.hypot(*(np.delete(own, group, 0).reshape(-1, 2) - middle[group]).T)
        assert outside.min() > inside[0] + 1.0
    for router in range(36):  # nearer to its own devices than to any other
        away = np.hypot(*(place[:72] - place[72 + router]).T)
        assert set(np.argsort(away)[:2]) == {2 * router, 2 * router + 1}


def test_a_grid_with_holes_is_still_a_grid() -> None:
    cluster = nest.load_network("torus:dims=6x6", without="chip7,chip35,link:chip0-chip1")
    place = layout(sketch(cluster)).position_V
    numbers = [n for n in range(36) if n not in (7, 35)]
    assert place == pytest.approx(np.array([(STEP * (n % 6), -STEP * (n // 6)) for n in numbers]))


def test_what_is_a_grid() -> None:
    mesh = {(n, n + 1) for n in range(12) if n % 4 < 3} | {(n, n + 4) for n in range(8)}
    dims, place = grid_of(range(12), mesh)
    assert dims == (3, 4) and place[6].tolist() == [1, 2]
    assert grid_of(range(12), mesh | {(0, 5)}) is None  # a diagonal
    assert grid_of(range(12), mesh | {(0, 2)}) is None  # over one
    assert grid_of(range(12), set(sorted(mesh)[:9])) is None  # 9 of 17 links: too few
    ring = {(n, (n + 1) % 8) for n in range(8)}
    assert grid_of(range(8), ring) is None


def test_slices_of_a_torus_stand_side_by_side() -> None:
    found = layout(sketch(nest.load_network("torus:dims=4x4x4")))
    spots = found.position_V.reshape(4, 4, 4, 2)
    assert np.diff(spots[..., 0], axis=2) == pytest.approx(STEP)
    assert np.diff(spots[..., 1], axis=1) == pytest.approx(-STEP)
    assert (spots[1:, :, 0, 0] > spots[:-1, :, -1, 0] + STEP).all()
    assert found.notes == ["4 slices of 4x4x4, slanting ends: links to the same place in the "
                           "slices before and after"]
    # 192 links; in two ends: 64 between slices, and around the back 4 x 4 in rows and columns each
    assert len(found.lines) == 192 + 64 + 16 + 16
    # from the first to the second slice up to the right, from it to the first down to the left
    ends = [line[1] - line[0] for line, cable in found.lines if len(line) == 2 and (
        sketch(nest.load_network("torus:dims=4x4x4")).ends_C[cable].tolist() == [0, 16])]
    assert (ends[0] > 0).all() and (ends[1] < 0).all()


def test_links_around_the_back_end_outside() -> None:
    drawn = sketch(nest.load_network("torus:dims=4x6"))
    found = layout(drawn)
    low, high = found.position_V.min(axis=0), found.position_V.max(axis=0)
    ends = [line[1] for line, cable in found.lines
            if max(np.abs(np.diff(found.position_V[drawn.ends_C[cable]], axis=0)[0])) > STEP + 0.1]
    outside = [bool((end < low).any() or (end > high).any()) for end in ends]
    assert outside == [True] * 2 * (4 + 6)


def test_many_cells_without_a_shape_are_drawn_quickly_and_apart(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(network_layout, "SLOW", 5)
    drawn = sketch(nest.load_network(unruly(tmp_path)))
    one, two = layout(drawn).position_V, layout(drawn).position_V
    assert (one == two).all()
    away = np.abs(one[:24, None] - one[:24]).max(axis=2) + 9 * np.eye(24)
    assert away.min() >= SIDE


# ---------------------------------------------------------------- what is drawn


def test_a_large_torus_is_a_grid_of_groups() -> None:
    cluster = nest.load_network("torus:dims=8x8x16")
    drawn = sketch(cluster)
    assert (drawn.each, drawn.squares) == (8, 128)
    assert drawn.number_S.tolist() == list(range(128))
    assert "8 slices of 8x8x2" in layout(drawn).notes[0]


def too_large(sketched: nest.Cluster) -> str:
    with pytest.raises(InputError) as raised:
        sketch(sketched)
    return str(raised.value)


def test_too_large_for_a_picture() -> None:
    told = too_large(nest.load_cluster("dgx-h100", devices=8 * 1024))
    assert told == (
        "map: got dgx-h100 with 8,192 devices, too large for a picture; allowed: at most 600 "
        "devices (or innermost groups of devices) and switches, and 20,000 links (--ranks FILE "
        "lists which device does what)")
    # 600 devices below one switch: 601 nodes, and no smaller group to draw
    level = {"name": "all", "size": 599, "bandwidth": "1 GB/s", "latency": "1 us"}
    flat = {"name": "flat", "device": "h100-sxm", "levels": [level]}
    assert sketch(nest.load_cluster(flat)).squares == 599
    assert "flat with 600 devices" in too_large(
        nest.load_cluster({**flat, "levels": [{**level, "size": 600}]}))


def test_too_many_links_for_a_picture() -> None:
    def linked(count: int) -> Sketch:
        pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
        links = {"source": [a for a, _ in pairs], "target": [b for _, b in pairs],
                 "bandwidth": [1e9] * len(pairs), "latency": [1e-6] * len(pairs)}
        levels = [{"name": "all", "size": count, "bandwidth": "1 GB/s", "latency": "1 us"}]
        return sketch(nest.load_cluster({
            "name": "all linked", "device": "h100-sxm", "levels": levels, "links": links}))

    assert len(linked(200).ends_C) == 200 * 199 // 2 <= MOST_CABLES
    with pytest.raises(InputError, match="all linked with 201 devices, too large"):
        linked(201)


# ---------------------------------------------------------------- ports


def test_ports_are_part_of_the_cable_and_dead_ends_are_left_out() -> None:
    whole = nest.load_network("rail-optimized:nodes=2,node=2,units=2,spines=1")
    # 8 devices, each with its node and its leaf; 4 nodes, 4 leaves, a spine
    assert sketch(whole).near()[0] == {8: 450e9, 12: 50e9}
    less = sketch(nest.load_network(
        "rail-optimized:nodes=2,node=2,units=2,spines=1", without="node1/gpu1,leaf2"))
    # left are nodes 0, 2 and 3, leaves 0 and 3, and the spine: node 1 has one cable, as have ports
    # at leaf 2 and that of the lost device at leaf 1, which then only passes one cable on
    assert (less.squares, less.switches) == (7, 3 + 2 + 1)
    assert [len(near) for near in less.near()[7:]] == [2, 2, 2, 3, 3, 3]
    assert less.near()[1] == {7: 450e9, 12: 50e9}
