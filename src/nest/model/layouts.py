"""The declared family of layouts: the divisions of a chain into chunks that searches list.

docs/layouts.md has the definition and counts. Every division of a chain is priced
(:mod:`nest.model.legality`); these are the ones that are worth listing, or that flags of the
software give.

Shapes: P positions in the order in which a micro-batch passes them, position v x pp + s is chunk v
of stage s; W ways to divide; I inner positions, all but the first and the last.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nest.model.chain import Chain

Ints = NDArray[np.int64]


def family(chain: Chain, pp: int, vpp: int, mixed: bool = False) -> Ints:
    """All divisions of the family, each once, in ascending order of their cuts.

    Parameters
    ----------
    chain : its body, :attr:`nest.model.chain.Chain.body`, is what is divided.
    pp, vpp : stages, and chunks of each.
    mixed : devices are of several types: those of a part of the stages may be faster.

    Returns
    -------
    int64, shape (W, pp x vpp + 1)
        Cuts: chunk n of the order holds the layers [cuts[n], cuts[n + 1]); none, if it is one of
        those between the first and the last, in layouts whose other chunks have one layer of the
        body at the most. No rows where there are too few layers.
    """
    (first, last), parts, layers = chain.body, pp * vpp, len(chain)
    least = int(first == 0)  # the embedding may be alone, as may what is behind the body
    ways = [
        _cuts_WP(_cyclic_WP(last - first, parts, least, int(last == layers)), first, layers),
        _cuts_WP(_by_stages_WP(last - first, pp, vpp), first, layers)]
    if mixed and pp > 1:
        ways.append(_cuts_WP(
            _in_two_parts_WP(last - first, pp, vpp, least, int(last == layers)), first, layers))
    if pp > 1 and chain.model is not None and chain.model.mtp_layers:
        # The head alone behind the layers of multi-token prediction, which may be alone, too.
        before = _cuts_WP(_cyclic_WP(last - first, parts - 1, 0, 0), first, layers - 1)
        ways.append(np.insert(before, parts, layers, axis=1))
    found = np.concatenate(ways)
    # Rows as bytes, the high one first, sort as their numbers do, and much faster.
    rows = found.astype(">u2").view(f"V{2 * found.shape[1]}")[:, 0]
    return found[np.unique(rows, return_index=True)[1]]


def _cuts_WP(sizes_WP: Ints, first: int, layers: int) -> Ints:
    """Cuts of a chain whose body begins at ``first``, given the layers of it in each position."""
    cuts = np.zeros((len(sizes_WP), sizes_WP.shape[1] + 1), dtype=np.int64)
    cuts[:, 1:] = first + np.cumsum(sizes_WP, axis=1)
    cuts[:, -1] = layers
    return cuts


def _cyclic_WP(layers: int, parts: int, least_first: int, least_last: int) -> Ints:
    """Sizes B, or B + 1 in one cyclic run of positions; less in the first and the last.

    For each size of the first and of the last position the inner ones have to divide what is left:
    a cyclic run of larger ones, too. Where that touches neither end, the first and the last
    position are no part of the whole run, and hold B at the most.
    """
    if parts <= 2:
        sizes_W1 = np.arange(least_first, layers - least_last + 1)[:, None]
        return (np.full((int(layers > 0), 1), layers) if parts == 1
                else np.hstack((sizes_W1, layers - sizes_W1)))
    inner = parts - 2
    most = layers // inner + 1
    ends = np.arange(least_first, most + 1)[:, None], np.arange(least_last, most + 1)
    first, last = (x.ravel() for x in np.broadcast_arrays(*ends))
    base, more = np.divmod(layers - first - last, inner)
    largest = np.maximum(first, last)
    fits = (base >= 0) & (largest <= base + 1)
    first, last, base, more, largest = (
        x[fits] for x in (first, last, base, more, largest))
    ways = np.where(more > 0, inner, 1)  # starts of the run
    row = np.repeat(np.arange(len(ways)), ways)
    start = np.arange(len(row)) - np.repeat(np.cumsum(ways) - ways, ways)
    reaches = (more[row] == 0) | (start == 0) | (start + more[row] >= inner)
    kept = reaches | (largest[row] <= base[row])
    row, start = row[kept], start[kept]
    larger_WI = (np.arange(inner) - start[:, None]) % inner < more[row, None]
    return np.column_stack((first[row], base[row, None] + larger_WI, last[row]))


def _by_stages_WP(layers: int, pp: int, vpp: int) -> Ints:
    """One size of chunks for the first stage, one for the last, and one for those between.

    Megatron-Core has flags for the layers of the first and of the last stage over all its chunks;
    docs/layouts.md names them and their source.
    """
    if layers % vpp or pp < 2:
        return np.empty((0, pp * vpp), dtype=np.int64)
    each, between = layers // vpp, pp - 2
    middle = np.arange(1, (each - 2) // between + 1) if between else np.ones(1, dtype=np.int64)
    first, middle = (x.ravel() for x in np.meshgrid(np.arange(1, each), middle))
    last = each - first - middle * between
    found = np.column_stack((first, *[middle] * between, last))[last >= 1]
    return np.tile(found, (1, vpp))


LESS = 2
"""Layers that the first and the last position may have fewer where stages are in two parts."""


def _in_two_parts_WP(
    layers: int, pp: int, vpp: int, least_first: int, least_last: int
) -> Ints:
    """Front stages alike, and those behind, each part with a number of layers of its own.

    Chunks of a stage differ by one at the most, the larger ones in front or behind. The first and
    the last position have up to ``LESS`` fewer.
    """
    fewer = np.arange(LESS + 1)
    front, own, first, last = (x.ravel() for x in np.meshgrid(
        np.arange(1, pp), np.arange(vpp, layers + 2 * LESS), fewer, fewer, indexing="ij"))
    behind, rest = np.divmod(layers + first + last - front * own, pp - front)
    fits = (rest == 0) & (behind >= vpp)
    front, own, first, last, behind = (x[fits] for x in (front, own, first, last, behind))
    in_front = np.arange(pp) < front[:, None]
    base, more = np.divmod(np.where(in_front, own[:, None], behind[:, None]), vpp)
    found = []
    for start, end in ((0, 0), (0, 1), (1, 0), (1, 1)):
        larger_late = np.where(in_front, start, end).astype(np.bool_)
        at = np.arange(vpp)[:, None]
        larger = np.where(larger_late[:, None], at >= vpp - more[:, None], at < more[:, None])
        sizes_WP = (base[:, None] + larger).reshape(-1, pp * vpp)
        sizes_WP[:, 0] -= first
        sizes_WP[:, -1] -= last
        found.append(sizes_WP[(sizes_WP[:, 0] >= least_first) & (sizes_WP[:, -1] >= least_last)])
    return np.concatenate(found)
