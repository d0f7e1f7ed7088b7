"""Divisions of a chain into chunks, by their definition in `docs/layouts.md`: all that there are
are looked at one by one.

Sizes are the layers of the body that each chunk holds, in the order in which a micro-batch passes
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations, combinations_with_replacement, product

from nest.model import Chain

Cuts = tuple[int, ...]


def equal(chain: Chain, pp: int, vpp: int) -> Iterator[Cuts]:
    """Chunks of equally many layers; the first and the last hold the ends too."""
    (first, stop), parts = chain.body, pp * vpp
    if (stop - first) % parts == 0 and stop > first:
        each = (stop - first) // parts
        yield (0, *(first + n * each for n in range(1, parts)), len(chain))


def level(chain: Chain, parts: int) -> Iterator[Cuts]:
    """Parts whose layers of the body differ by one at the most, or all layers with the ends; the
    larger parts are in front or behind, with the ends in front. None is empty."""
    (first, stop), layers = chain.body, len(chain)
    for inner in combinations(range(1, layers), parts - 1):
        cuts = (0, *inner, layers)
        whole = [b - a for a, b in zip(cuts, cuts[1:], strict=False)]
        sizes = [max(0, min(b, stop) - max(a, first))
                 for a, b in zip(cuts, cuts[1:], strict=False)]
        if (max(whole) - min(whole) < 2 and whole == sorted(whole, reverse=True)) or (
                max(sizes) - min(sizes) < 2
                and sizes in (sorted(sizes), sorted(sizes, reverse=True))):
            yield cuts


def family(chain: Chain, pp: int, vpp: int, mixed: bool = False) -> tuple[Cuts, ...]:
    """Every division that belongs to the family; the first and the last chunk are not empty.

    ``mixed``: devices are of several types.
    """
    predicted = chain.model is not None and chain.model.mtp_layers > 0 and pp > 1
    return _family(*chain.body, len(chain), predicted, pp, vpp, mixed)


@cache
def _family(
    first: int, stop: int, layers: int, predicted: bool, pp: int, vpp: int, mixed: bool
) -> tuple[Cuts, ...]:
    found = list[Cuts]()
    for inner in combinations_with_replacement(range(1, layers), pp * vpp - 1):
        cuts = (0, *inner, layers)
        sizes = [max(0, min(b, stop) - max(a, first))
                 for a, b in zip(cuts, cuts[1:], strict=False)]
        joined = cuts[1] >= first and cuts[-2] <= stop
        if (joined and (_run(sizes) or (_stages(sizes, pp) and min(sizes) > 0)
                        or (mixed and _two_parts(sizes, pp)))) or (
                predicted and cuts[1] >= first and cuts[-3] <= stop and cuts[-2] == layers - 1
                and _run(sizes[:-1])):
            found.append(cuts)
    return tuple(found)


def _run(sizes: Sequence[int]) -> bool:
    """One size, or one more in a cyclic run; the first and the last may hold fewer."""
    return any(sizes[0] <= first and sizes[-1] <= last
               for first, last in _ends(len(sizes), max(sizes)).get(tuple(sizes[1:-1]), ()))


@cache
def _ends(parts: int, most: int) -> dict[Cuts, set[tuple[int, int]]]:
    """First and last of all whole divisions, by the sizes between them."""
    found: dict[Cuts, set[tuple[int, int]]] = {}
    for base, run, start in product(range(most + 1), range(parts), range(parts)):
        whole = [base + ((n - start) % parts < run) for n in range(parts)]
        found.setdefault(tuple(whole[1:-1]), set()).add((whole[0], whole[-1]))
    return found


def _stages(sizes: Sequence[int], pp: int) -> bool:
    """One size for the chunks of the first stage, of the last, and of those between."""
    own = [{size for n, size in enumerate(sizes) if n % pp == s} for s in range(pp)]
    return all(map(_single, (own[0], own[-1], set().union(*own[1:-1]))))


def _two_parts(sizes: Sequence[int], pp: int) -> bool:
    """Front stages alike, and those behind: chunks of a stage differ by one at the most, the larger
    ones in front or behind; the first and the last chunk may have two fewer."""
    for front, less_first, less_last in product(range(1, pp), range(3), range(3)):
        whole = [*sizes]
        whole[0] += less_first
        whole[-1] += less_last
        own = [whole[s::pp] for s in range(pp)]
        if own == [own[0]] * front + [own[-1]] * (pp - front) and all(
                min(one) > 0 and max(one) - min(one) < 2
                and one in (sorted(one), sorted(one, reverse=True)) for one in own):
            return True
    return False


def _single(sizes: set[int]) -> bool:
    return len(sizes) <= 1
