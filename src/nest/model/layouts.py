"""The declared family of layouts: the divisions of a chain into chunks that searches list.

docs/layouts.md has the definition and counts. Every division of a chain is priced
(:mod:`nest.model.legality`); these are the ones that are worth listing, or that flags of the
software give.

Shapes: P positions in the order in which a micro-batch passes them, position v x pp + s is chunk v
of stage s; W ways to divide; I inner positions, all but the first and the last.

Megatron-Core's text of a layout, such as `Et*3|(t*4|)*30t*3L`: read, checked and written.

E is the embedding, t a transformer layer, m one of multi-token prediction, L the head and the loss;
| separates chunks, in the order in which a micro-batch passes them. `*n` repeats a letter, or a
group in parentheses. Groups do not nest; commas mean nothing.

docs/layouts.md names the source, and each check its line there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nest.errors import InputError
from nest.model.chain import Chain
from nest.units import shorten

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


# ---------------------------------------------------------------- layout text


WORDS = {"E": "the embedding", "t": "transformer layers", "m": "multi-token prediction",
         "L": "the head"}
MOST = 10**5
"""Declared limit of letters and chunks of a layout."""
MOST_GROUPED = 128
"""Chunks of the largest group that is written: looking for groups takes time with its square."""
_PIECE = re.compile(r"\(([^()]+)\)\*(\d{1,6})|([EtmL|])(?:\*(\d{1,6}))?")


def layout_cuts(chain: Chain, text: str, pp: int) -> tuple[int, ...]:
    """Cuts of a chain that a layout for ``pp`` stages stands for.

    Returns
    -------
    Chunk n holds the layers [cuts[n], cuts[n + 1]).

    Raises
    ------
    InputError : no layout, not one of this chain, or one that Megatron-Core refuses.
    """
    letters = _letters(chain)
    if letters is None:
        raise InputError(f"layout: {chain.name} has other layers than {', '.join(WORDS.values())}; "
                         "allowed: for models of these alone")
    chunks = _read(text)
    if problem := _problem(chunks, letters, pp):
        raise InputError(f"layout: {problem}")
    cuts = [0]
    for chunk in chunks:
        cuts.append(cuts[-1] + len(chunk))
    return tuple(cuts)


def layout_of(chain: Chain, cuts: Sequence[int], pp: int) -> str | None:
    """The layout of cuts for ``pp`` stages; None: Megatron-Core has none for them."""
    letters = _letters(chain)
    if letters is None:
        return None
    chunks = tuple(letters[first:end] for first, end in pairwise(cuts))
    return None if _problem(chunks, letters, pp) else _written(chunks)


def _letters(chain: Chain) -> str | None:
    """A letter for each layer; None: not all layers have one."""
    model = chain.model
    if model is None or not chain.is_chain or len(chain) != model.layers + model.mtp_layers + 2:
        return None
    return "E" + "t" * model.layers + "m" * model.mtp_layers + "L"


def _read(text: str) -> list[str]:
    """Letters of each chunk."""
    if not text.strip():
        raise InputError(f"layout: got {shorten(text)}; allowed: layers of all chunks, such as "
                         "Et*3|(t*4|)*30t*3L")
    plain, at, found = text.replace(",", ""), 0, ""
    while at < len(plain):
        piece = _PIECE.match(plain, at)
        inner = None if piece is None else piece[3] or _unrolled(piece[1])
        if piece is None or inner is None:
            raise InputError(
                f"layout: got {shorten(plain[at:])} at character {at + 1} of {shorten(plain)}; "
                "allowed: E, t, m, L and |, each alone or with *n, and groups of them as (...)*n, "
                "which do not nest")
        times = int(piece[2] or piece[4] or 1)
        if len(found) + times * len(inner) > MOST:
            raise InputError(f"layout: got more than {MOST} letters; allowed: {MOST}")
        found += times * inner
        at = piece.end()
    return found.split("|")


def _unrolled(group: str) -> str | None:
    """The letters of a group, cut off behind more than are allowed; None: it is none."""
    pieces = list(_PIECE.finditer(group))
    if "".join(piece[0] for piece in pieces) != group or not all(piece[3] for piece in pieces):
        return None
    found = ""
    for piece in pieces:
        found += piece[3] * min(MOST + 1 - len(found), int(piece[4] or 1))
    return found


def _problem(chunks: Sequence[str], letters: str, pp: int) -> str | None:
    """Why Megatron-Core does not take these chunks; None: it does."""
    flat = "".join(chunks)

    def place(n: int) -> str:
        return f"chunk {n} (chunk {n // pp} of stage {n % pp}) is {chunks[n] or 'empty'}"

    if len(chunks) % pp:  # line 40
        return f"got {len(chunks)} chunks; allowed: a multiple of pp {pp}"
    for letter, word in WORDS.items():  # lines 103 to 113
        if flat.count(letter) != letters.count(letter):
            return (f"got {flat.count(letter)} x {letter}; allowed: {letters.count(letter)}, "
                    f"{word} of the model")
    # Lines 95 and 98. Tokens enter the first chunk and the loss leaves the last one, whatever a
    # layout says: neither of these is empty.
    if not chunks[0].startswith("E"):
        return f"{place(0)}; allowed: it begins with E"
    if not chunks[-1].endswith("L"):
        return f"{place(len(chunks) - 1)}; allowed: it ends with L"
    with_m = [n for n, chunk in enumerate(chunks) if "m" in chunk]
    for n in with_m:
        if "t" in chunks[n].partition("m")[2] or any("t" in chunk for chunk in chunks[n + 1:]):
            return f"{place(n)}; allowed: m behind all t"  # line 116
        if n < len(chunks) - pp:  # lines 122 and 132
            return f"{place(n)}; allowed: m in the last chunk of its stage"
        if chunks[n].count("m") != letters.count("m"):  # line 128
            return f"{place(n)}; allowed: all {letters.count('m')} m in one chunk"
    return None


@lru_cache(1024)
def _written(chunks: tuple[str, ...]) -> str:
    """The shortest text whose groups are up to ``MOST_GROUPED`` whole chunks.

    The last chunk has no | behind it, and stands alone. Of two texts of one length the one with
    the smaller groups, and the fewer repetitions, counts.
    """
    parts, last = [_runs(chunk) + "|" for chunk in chunks[:-1]], _runs(chunks[-1])
    # Characters of the shortest text from chunk k on, and the group that it begins with.
    least, group = [0] * len(parts) + [len(last)], [(1, 1)] * len(parts)
    for k in range(len(parts) - 1, -1, -1):
        least[k] = len(parts[k]) + least[k + 1]
        for size in range(1, min(MOST_GROUPED, (len(parts) - k) // 2) + 1):
            once, times, end = parts[k : k + size], 1, k + size
            if size > 1 and once.count(once[0]) == size:
                continue
            without = len(_repeated("".join(once), ""))
            while parts[end : end + size] == once:
                times, end = times + 1, end + size
                length = without + len(str(times)) + least[end]
                if length < least[k]:
                    least[k], group[k] = length, (size, times)
    text, k = "", 0
    while k < len(parts):
        size, times = group[k]
        once = parts[k : k + size]
        text += _repeated("".join(once), times) if times > 1 else once[0]
        k += size * times
    return text + last


def _repeated(text: str, times: int | str) -> str:
    return f"|*{times}" if text == "|" else f"({text})*{times}"


def _runs(chunk: str) -> str:
    """A chunk with its equal letters counted, where that is no longer."""
    return re.sub(r"(.)\1{2,}", lambda run: f"{run[1]}*{len(run[0])}", chunk)
