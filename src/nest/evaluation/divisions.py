"""Divisions of a chain's layers among stages and chunks: even ones, and those that flags give.

Rule of even cuts: the L repeated layers over pp stages give L // pp to each; the remaining r = L %
pp go to the r stages nearest the middle, one each; of two equally near stages to the later one.
Layers before the repeated ones (the embedding) join the first stage, layers after them (the head)
the last.

Chunks of virtual stages are equal. Where the layers do not divide evenly, the head counts as one of
its chunk if that makes it even, or embedding and head do; torchtitan counts both and gives the
remainder to the first chunks. Sources: docs/layouts.md.
"""

from __future__ import annotations

from itertools import accumulate

from nest.errors import InputError
from nest.inputs.job import Job
from nest.model import Chain
from nest.model.layouts import layout_cuts, layout_of
from nest.schedules.registry import chunks_at, copies, is_folded, most_chunks, usual_chunks

Span = tuple[int, int]


def even_sizes(layers: int, stages: int) -> tuple[int, ...]:
    """Repeated layers of each stage, first to last; they add up to ``layers``.

    Parameters
    ----------
    layers : repeated layers, at least ``stages``.
    stages : pipeline stages, at least 1.
    """
    base, left = divmod(layers, stages)
    middle = (stages - 1) / 2
    nearest = sorted(range(stages), key=lambda s: (abs(s - middle), -s))
    more = set(nearest[:left])
    return tuple(base + (s in more) for s in range(stages))


def chunks_of_stages(
    chain: Chain, job: Job, pp: int, vpp: int | None, *, schedule: str = "interleaved",
    layout: str | None = None, first_stage_layers: int | None = None,
    last_stage_layers: int | None = None,
) -> list[tuple[Span, ...]]:
    """Layers [i, j) of every chunk of every stage.

    Parameters
    ----------
    vpp : chunks of a stage; None: as the layout has them, else the least that the schedule has.
    schedule : says where the chunks of a stage are.
    layout : Megatron-Core's text of all chunks.
    first_stage_layers, last_stage_layers : repeated layers of a stage, over all its chunks; the
        others divide the rest evenly.

    Raises
    ------
    InputError : the layers cannot be divided so.
    """
    ends = {"first_stage_layers": first_stage_layers, "last_stage_layers": last_stage_layers}
    given = {name: value for name, value in ends.items() if value is not None}
    if layout is not None:
        if given:
            raise InputError(f"layout: got {layout} and {', '.join(given)}; allowed: one of them")
        cuts = layout_cuts(chain, layout, pp)
        found = copies(schedule) * (len(cuts) - 1) // pp
        if vpp not in (None, found):
            raise InputError(f"vpp: got {vpp}; allowed: {found}, the chunks of a stage in layout "
                             f"{layout}")
        return chunks_at(cuts, pp, schedule)
    first, last = chain.body
    layers, vpp = last - first, vpp or usual_chunks(schedule)
    usual, twice = usual_chunks(schedule), copies(schedule) > 1
    if vpp > most_chunks(schedule) or (twice and vpp != usual):
        raise InputError(f"vpp: got {vpp} with schedule {schedule}; allowed: {usual}")
    if twice:  # each chunk
        for name, size in given.items():
            raise InputError(f"{name}: got {size} with schedule {schedule}, of which two stages "
                             "hold each chunk; allowed: layout")
        vpp = vpp // copies(schedule)
    if given:
        own = _by_ends(chain, layers, pp, vpp, first_stage_layers, last_stage_layers)
        sizes = (*own, *own[::-1]) if is_folded(schedule) else own * vpp
    elif vpp > 1:
        sizes = _virtual(chain, job, layers, pp, vpp)
    elif pp > layers:
        raise InputError(f"pp: got {pp}; allowed: 1 to {layers}, the layers of {chain.name} that "
                         "even cuts divide")
    else:
        sizes = even_sizes(layers, pp)
    cuts = (0, *(first + size for size in accumulate(sizes[:-1])), len(chain))
    return chunks_at(cuts, pp, schedule)


def _virtual(chain: Chain, job: Job, layers: int, pp: int, vpp: int) -> tuple[int, ...]:
    """Repeated layers of each position."""
    parts, ends = pp * vpp, (0, 0)
    ways = [(0, 0)]
    if chain.body[0] > 0 and chain.body[1] < len(chain):
        ways += [(0, 1), (1, 1)]
    known = job.stack.capabilities
    front = known is not None and known.software == "torchtitan"
    for ends in ways:
        if (layers + sum(ends)) % parts == 0 or (front and ends == ways[-1]):
            break
    else:
        raise InputError(
            f"vpp: got {vpp}; allowed: pp {pp} x vpp must divide the {layers} repeated layers of "
            f"{chain.name}, with the head or with both ends counted as layers too; other chunks "
            f"with layout ({_layout_option(chain, layers, pp, parts)}), or with first_stage_layers "
            "and last_stage_layers")
    sizes = _larger_in_front(layers, parts, ends)
    if sizes[-1] < 0 or sizes[0] < 0:
        raise InputError(f"vpp: got {vpp}; allowed: pp {pp} x vpp up to the {layers} repeated "
                         f"layers of {chain.name}")
    return tuple(sizes)


def _larger_in_front(layers: int, parts: int, ends: tuple[int, int]) -> list[int]:
    """Repeated layers of each chunk, with as many at each of the two ends counted as layers."""
    each, more = divmod(layers + sum(ends), parts)
    sizes = [each + (n < more) for n in range(parts)]
    sizes[0] -= ends[0]
    sizes[-1] -= ends[1]
    return sizes


def _layout_option(chain: Chain, layers: int, pp: int, parts: int) -> str:
    """An option that divides the layers as evenly as can be; without a text where there is none."""
    sizes = _larger_in_front(layers, parts, (1, 1))
    text = None
    if min(sizes) >= 0:
        cuts = (0, *(chain.body[0] + size for size in accumulate(sizes[:-1])), len(chain))
        text = layout_of(chain, cuts, pp)
    return "--layout TEXT" if text is None else f"--layout '{text}'"


def _by_ends(
    chain: Chain, layers: int, pp: int, vpp: int, first: int | None, last: int | None
) -> tuple[int, ...]:
    """Repeated layers of a chunk of each stage; the first or the last one has its own number."""
    both = {"first_stage_layers": first, "last_stage_layers": last}
    said = {name: size for name, size in both.items() if size is not None}
    for name, size in said.items():
        if pp < 2 or size < 1 or size % vpp:
            raise InputError(f"{name}: got {size} with pp {pp}, vpp {vpp}; allowed: a multiple of "
                             "vpp, with pp above 1")
    others = pp - len(said)
    rest = layers - (first or 0) - (last or 0)
    if (rest <= 0 or rest % (others * vpp)) if others else rest:
        allowed = f"a multiple of {others * vpp}, and more than none" if others else "none left"
        raise InputError(
            f"{' and '.join(said)}: got {' and '.join(map(str, said.values()))}, which leaves "
            f"{rest} of the {layers} repeated layers of {chain.name} to {others} other stages; "
            f"allowed: {allowed}")
    own = [rest // others if others else 0] * pp
    if first is not None:
        own[0] = first
    if last is not None:
        own[-1] = last
    return tuple(size // vpp for size in own)
