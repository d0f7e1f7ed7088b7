"""Networks whose links are those of a grid or torus.

Shapes: K cells.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nest.network.arrangement import products
from nest.report.network.sketch import Ints

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
