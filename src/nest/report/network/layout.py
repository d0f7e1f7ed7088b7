"""Positions of the nodes of a sketched network, and lines of its cables.

A square is a little less than 1 wide. Shapes: V nodes, C cables, K cells (switches with their
squares, and squares without a switch).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import networkx as nx
import numpy as np

from nest.network.arrangement import products
from nest.report.network.sketch import Floats, Ints, Near, Sketch

PITCH = 1.0
"""From a square to the next one of its block."""
WIDE, SINGLE = 48.0, 32
"""Width that rows of squares should have (chosen); squares that always stand in one row."""
APART = 1.25
"""Least distance of two switches of a row, and of squares on a circle."""
STEP = 1.8
"""From a device of a grid to the next one."""
ENDS = {-1: (0.45, 0.0), -2: (0.0, -0.45), -3: (0.34, 0.34), -4: (0.34, -0.34)}
"""Where an end of a cable points that goes around the back or to another slice, by dimension."""
PUSHES = 200
"""Rounds in which cells that overlap are pushed apart (chosen)."""
DENSE, LEAST = 0.7, 2.5
"""Share of all links from which cells count as fully linked; cells of a group on average
(chosen)."""
SLOW = 200
"""Cells from which on a quicker drawing of a graph is taken: 300 would take a second."""


@dataclass
class MapLayout:
    """Positions and lines.

    Attributes
    ----------
    position_V : float64, shape (V, 2)
        Of each node, to the right and upwards.
    lines : points of a line, float64 of shape (2 or more, 2), and the number of its cable.
    rows : height and name of rows of switches.
    notes : for the reader.
    """

    position_V: Floats
    lines: list[tuple[Floats, int]] = field(default_factory=list)
    rows: list[tuple[float, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def layout(drawn: Sketch) -> MapLayout:
    """Place the nodes of a network so that its shape shows.

    Switches in rows above devices where cables lead from row to row; else cells (devices around
    their switch, or single devices) in a grid if their links are those of a grid or torus, in a
    circle if they are a ring or all linked, in circles of a circle if they are groups that are all
    linked inside (a dragonfly), and otherwise by T. Kamada and S. Kawai 1989, or for many cells by
    T. Fruchterman and E. Reingold 1991, as networkx has them.

    Parameters
    ----------
    drawn : of :func:`nest.report.network.sketch.sketch`.
    """
    near = drawn.near()
    row_V = _rows(near, drawn.squares)
    ends = drawn.ends_C
    between_squares = bool((ends < drawn.squares).all(axis=1).any())
    level = ends[(row_V[ends[:, 0]] == row_V[ends[:, 1]]) & (ends[:, 0] >= drawn.squares)]
    if drawn.switches and not between_squares and not (row_V[level] == 1).any():
        return _tiers(drawn, near, row_V)
    return _flat(drawn, near)


def _rows(near: Near, squares: int) -> Ints:
    """Cables from each node to the nearest square."""
    row_V = np.zeros(len(near), dtype=np.int64)
    found, seen, row = list(range(squares)), set(range(squares)), 0
    while found:
        row_V[found] = row
        found = sorted({other for node in found for other in near[node]} - seen)
        seen.update(found)
        row += 1
    return row_V


# ---------------------------------------------------------------- rows of switches


def _tiers(drawn: Sketch, near: Near, row_V: Ints) -> MapLayout:
    """Blocks of squares; switches that only join squares of a block below, all others above."""
    squares = drawn.squares
    inner = _inner(near, squares, row_V)
    blocks = _blocks(near, squares, inner, row_V)
    place = np.zeros((len(near), 2))
    width, tall = _place_blocks(drawn, blocks, place)
    for node in sorted(inner):
        own = place[sorted(near[node])]
        place[node] = own[:, 0].mean(), own[:, 1].min() - 1.6
    high = max(2.4, 0.075 * width)
    found = MapLayout(place)
    for row in range(1, int(row_V.max()) + 1):
        members = [node for node in range(squares, len(near))
                   if row_V[node] == row and node not in inner]
        wanted = [np.mean([place[other, 0] for other in near[node] if row_V[other] < row])
                  for node in members]
        gap = max(APART, min(0.6 * width / max(len(members), 1), 4.0))
        place[members, 0] = _spread(np.array(wanted), gap)
        place[members, 1] = 0.5 * tall + row * high
        found.rows += _named(drawn, members, place)
    found.rows += _named(drawn, sorted(inner), place)
    for cable, (one, other) in enumerate(drawn.ends_C.tolist()):
        points = place[[one, other]]
        beside = one >= squares and abs(points[0, 1] - points[1, 1]) < 1e-9
        found.lines.append((_arc(points) if beside else points, cable))
    return found


def _inner(near: Near, squares: int, row_V: Ints) -> set[int]:
    """Switches whose squares other switches also join, such as that of a node.

    If no switch leads further, those that join the most squares are excluded.
    """
    found = [node for node in range(squares, len(near)) if row_V[node] == 1
             and all(other < squares for other in near[node])
             and any(len(near[other]) > 1 for other in near[node])]
    if len(found) == len(near) - squares:
        most = max((len(near[node]) for node in found), default=0)
        found = [node for node in found if len(near[node]) < most]
    return set(found)


def _named(drawn: Sketch, members: list[int], place: Floats) -> list[tuple[float, str]]:
    """Name of the switches of a row, if all have the same name without numbers."""
    if not drawn.names or not members:
        return []
    stems = {drawn.names[node - drawn.squares].rpartition("/")[2].rstrip("0123456789.")
             for node in members}
    stem = stems.pop() if len(stems) == 1 else ""
    return [] if re.fullmatch("|level|tier[a-h]", stem) else [(float(place[members[0], 1]), stem)]


def _blocks(near: Near, squares: int, inner: set[int], row_V: Ints) -> list[list[int]]:
    """Squares by the switch that joins them, or by all nearest switches, in their order."""
    found: dict[tuple[int, ...], list[int]] = {}
    for square in range(squares):
        own = tuple(sorted(other for other in near[square] if other in inner))
        found.setdefault(own[:1] or tuple(sorted(near[square])), []).append(square)
    return list(found.values())


def _place_blocks(
    drawn: Sketch, blocks: list[list[int]], place: Floats
) -> tuple[float, float]:
    """Set the positions of the squares around height 0; width and height of it all."""
    largest = max(map(len, blocks))
    columns = largest
    if drawn.squares > SINGLE:
        columns = min(largest, max(8, math.ceil(math.sqrt(3 * largest))))
        while columns > 1 and len(blocks) * (columns + 0.8) > WIDE:
            columns -= 1
    columns = math.ceil(largest / math.ceil(largest / columns))
    lines = math.ceil(largest / columns)
    right = 0.0
    for block, after in itertools.zip_longest(blocks, blocks[1:]):
        line, column = np.divmod(np.arange(len(block)), columns)
        place[block, 0] = right + PITCH * column
        place[block, 1] = PITCH * ((lines - 1) / 2 - line)
        right += PITCH * min(len(block), columns)
        if after is not None:
            right += 0.5 + 0.4 * sum(block[-1] // size != after[0] // size
                                     for size in drawn.groups)
    return right, PITCH * lines


def _spread(wanted: Floats, gap: float) -> Floats:
    """The places nearest to those wanted (least squares) that are a gap apart, in their order."""
    from scipy.optimize import isotonic_regression

    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(len(wanted))
    found = np.empty(len(wanted))
    found[order] = isotonic_regression(wanted[order] - steps).x + steps
    return found


def _arc(points: Floats) -> Floats:
    """A curve over the row from one switch to another."""
    share = np.linspace(0.0, 1.0, 17)[:, None]
    curve: Floats = points[0] + share * (points[1] - points[0])
    curve[:, 1] += (0.9 * abs(points[1, 0] - points[0, 0]) * share * (1.0 - share))[:, 0]
    return curve


# ---------------------------------------------------------------- cells


def _flat(drawn: Sketch, near: Near) -> MapLayout:
    """Cells by the links between them."""
    squares = drawn.squares
    centre = [min((o for o in near[v] if o >= squares), default=v) for v in range(squares)]
    keys = list(dict.fromkeys([*centre, *range(squares, len(near))]))
    number = {key: place for place, key in enumerate(keys)}
    members: list[list[int]] = [[] for _ in keys]
    for square, key in enumerate(centre):
        members[number[key]].append(square)
    cell_V = np.array([number[key] for key in [*centre, *range(squares, len(near))]])
    links = {(int(a), int(b)) for a, b in np.sort(cell_V[drawn.ends_C], axis=1) if a != b}
    size = max(map(len, members))
    if all(len(own) == size for own in members):
        places = [int(drawn.number_S[own].min()) // size for own in members]
        grid = grid_of(places, links) if len(set(places)) == len(places) else None
        if grid is not None:
            return _as_grid(drawn, members, cell_V, *grid)
    groups = _groups(len(keys), links)
    if groups is not None:
        place = _circles(drawn, members, cell_V, groups)
    else:
        place = _drawing(members, cell_V, len(keys), links)
    lines = [(place[pair], cable) for cable, pair in enumerate(drawn.ends_C)]
    return MapLayout(place, lines)


def _groups(cells: int, links: set[tuple[int, int]]) -> list[list[int]] | None:
    """Cells to put in circles: groups that are all linked inside, or everything in one ring.

    Groups are taken greedily in the order of the cells. None: too few.
    """
    near: list[set[int]] = [set() for _ in range(cells)]
    for one, other in links:
        near[one].add(other)
        near[other].add(one)
    if len(links) >= DENSE * cells * (cells - 1) / 2:
        return [list(range(cells))]
    if all(len(own) == 2 for own in near):
        ring = [0]
        while after := sorted(near[ring[-1]] - set(ring)):
            ring.append(after[0])
        return [ring] if len(ring) == cells else None
    groups: list[list[int]] = []
    for cell in range(cells):
        if groups and near[cell].issuperset(groups[-1]):
            groups[-1].append(cell)
        else:
            groups.append([cell])
    return groups if cells / len(groups) >= LEAST else None


def _turn(count: int, start: float = math.pi / 2) -> Floats:
    """``count`` directions, clockwise from the top, of shape (count, 2)."""
    angle = start - 2.0 * math.pi * np.arange(count) / max(count, 1)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _circles(
    drawn: Sketch, members: list[list[int]], cell_V: Ints, groups: list[list[int]]
) -> Floats:
    """Each group as a circle of squares around a circle of their switches; groups in a circle."""
    place = np.zeros((len(cell_V), 2))
    most = max(sum(max(len(members[cell]), 1) for cell in group) for group in groups)
    ring = max(1.0, APART * (1.0 if drawn.switches else 1.3) * most / (2 * math.pi))
    radius = 0.0
    if len(groups) > 1:
        radius = (ring + 1.3) / math.sin(math.pi / len(groups))
    for group, way in zip(groups, _turn(len(groups)), strict=True):
        counts = [max(len(members[cell]), 1) for cell in group]
        start = math.atan2(way[1], way[0]) + math.pi * (counts[0] - 1) / sum(counts)
        spots = _turn(sum(counts), start)
        first = 0
        for cell, count in zip(group, counts, strict=True):
            own = spots[first : first + count]
            first += count
            middle = own.mean(axis=0)
            middle /= max(float(np.hypot(*middle)), 1e-9)
            place[cell_V == cell] = radius * way + 0.55 * ring * middle
            if members[cell]:
                place[members[cell]] = radius * way + ring * own
    return place


def _around(members: list[list[int]], cell_V: Ints, centre_K: Floats) -> Floats:
    """Squares of each cell on a circle around its switch, or in its place."""
    place = centre_K[cell_V]
    for cell, own in enumerate(members):
        if np.count_nonzero(cell_V == cell) > len(own) and own:
            place[own] = centre_K[cell] + _reach(len(own)) * _turn(len(own), 0.75 * math.pi)
    return place


def _reach(count: int) -> float:
    """Distance of ``count`` squares from their switch."""
    return max(1.0, APART * count / (2 * math.pi))


def _drawing(
    members: list[list[int]], cell_V: Ints, cells: int, links: set[tuple[int, int]]
) -> Floats:
    """Cells placed by springs along links, without overlap."""
    graph = nx.Graph()
    graph.add_nodes_from(range(cells))
    graph.add_edges_from(sorted(links))
    quick = cells > SLOW
    spots = nx.spring_layout(graph, seed=1) if quick else nx.kamada_kawai_layout(graph)
    centre = np.array([spots[cell] for cell in range(cells)], dtype=np.float64)
    wanted = 2.0 * _reach(max(map(len, members))) + 1.2 if len(cell_V) > cells else 1.3
    return _around(members, cell_V, _apart(centre, wanted))


def _apart(centre: Floats, wanted: float) -> Floats:
    """Scale the picture until most cells, and push them until all cells, are far enough apart."""
    for turn in range(PUSHES):
        away = centre[:, None] - centre
        far = np.hypot(away[..., 0], away[..., 1])
        np.fill_diagonal(far, np.inf)
        if far.min() < 1e-9:  # two in one place
            return _turn(len(centre)) * wanted / (2.0 * math.sin(math.pi / len(centre)))
        if turn == 0:
            centre = centre * (wanted / np.quantile(far.min(axis=1), 0.2))
            continue
        short = np.maximum(wanted - far, 0.0)
        if short.max() < 0.05 * wanted:
            break
        centre = centre + 0.5 * np.einsum("ijk,ij->ik", away, short / far)
    return centre


# ---------------------------------------------------------------- grids


def _as_grid(
    drawn: Sketch, members: list[list[int]], cell_V: Ints, dims: tuple[int, ...], place_KD: Ints
) -> MapLayout:
    """Slices of the last two dimensions side by side, all others in rows of slices.

    Cables inside a slice are lines, those around the back end at the border, and those between
    slices are short ends that point to the next or the last slice.
    """
    step = STEP if not drawn.switches else 2.0 * _reach(max(map(len, members))) + 1.6
    outer, rows, columns = dims[:-2], dims[-2], dims[-1]
    wide, tall = columns * step + 0.9 * step, rows * step + 0.9 * step
    slices = np.ravel_multi_index(tuple(place_KD.T[:-2]), outer) if outer else np.zeros(
        len(place_KD), dtype=np.int64)
    count = math.prod(outer)
    fair = round(math.sqrt(1.8 * count * tall / wide))
    across = outer[-1] if len(outer) == 2 else next(
        (n for n in range(max(1, fair), count) if count % n == 0), count)
    line, column = np.divmod(slices, across)
    centre = np.stack([column * wide + place_KD[:, -1] * step,
                       -line * tall - place_KD[:, -2] * step], axis=1)
    found = MapLayout(_around(members, cell_V, centre))
    for cable, pair in enumerate(drawn.ends_C):
        cells, spots = cell_V[pair], found.position_V[pair]
        away = place_KD[cells[1]] - place_KD[cells[0]]
        axis = int(np.abs(away).argmax())
        if cells[0] == cells[1] or (axis >= len(outer) and abs(away[axis]) == 1):
            found.lines.append((spots, cable))
            continue
        onward = 1.0 if away[axis] in (1, 1 - dims[axis]) else -1.0
        end = onward * step * np.array(ENDS[axis - len(dims)])
        found.lines += [(np.array([spots[0], spots[0] + end]), cable),
                        (np.array([spots[1], spots[1] - end]), cable)]
    if outer:
        shape = "x".join(map(str, dims))
        found.notes.append(f"{count} slices of {shape}, slanting ends: links to the same place in "
                           "the slices before and after")
    return found


# ---------------------------------------------------------------- grids and tori

SPARSE = 0.6
"""Share of the links of a grid that must be there for a network to be drawn as one (chosen)."""
MOST_DIMENSIONS = 4

Grid = tuple[tuple[int, ...], Ints]


def grid_of(numbers: Sequence[int], links: set[tuple[int, int]]) -> Grid | None:
    """Dimensions of a grid or torus that is numbered row by row, and the place of each cell.

    Some cells and links may be missing. None: it is none of two to four dimensions.

    Parameters
    ----------
    numbers : of the K cells, each once.
    links : pairs of cells, by their place in ``numbers``.

    Returns
    -------
    tuple
        The dimensions, and the place of each cell as int64 of shape (K, dimensions).
    """
    top, cells = max(numbers) + 1, np.array(numbers)
    if not links or len(cells) < 4 or SPARSE * top > len(cells):
        return None
    pairs = cells[np.array(sorted(links))]
    best: tuple[float, Grid] | None = None
    for total in range(top, top + max(1, len(numbers) // 4)):
        for dims in products(total, MOST_DIMENSIONS):
            if len(dims) == 1:
                continue
            ends = np.array(np.unravel_index(pairs, dims))  # (dimensions, links, 2)
            away = np.abs(ends[..., 0] - ends[..., 1])
            sizes = np.array(dims)[:, None]
            step = np.where(np.minimum(away, sizes - away) == 1, 1, 2 * (away > 0))
            if (step.sum(axis=0) != 1).any():
                continue
            share = len(pairs) / sum(_lines(total, size, bool((away[n] > 1).any()))
                                     for n, size in enumerate(dims))
            if share == 1.0 and len(cells) == total:
                return dims, np.array(np.unravel_index(cells, dims)).T
            if share >= SPARSE and (best is None or share > best[0]):
                best = share, (dims, np.array(np.unravel_index(cells, dims)).T)
    return None if best is None else best[1]


def _lines(total: int, size: int, ring: bool) -> int:
    """Links of a whole grid along one dimension."""
    return total // size * (size if ring else size - 1)
