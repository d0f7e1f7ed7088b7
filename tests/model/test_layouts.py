"""The family of layouts against its definition in docs/layouts.md, written down naively."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from descriptions import MODEL

from nest.inputs import Model, Profile, load_model
from nest.model import Chain, build_chain, profile_chain
from nest.model.layouts import family

Sizes = tuple[int, ...]


def model_chain(layers: int, mtp: int = 0) -> Chain:
    return build_chain(Model.parse({**MODEL, "layers": layers, "mtp_layers": mtp}))


def profile(*repeats: int) -> Chain:
    """A chain of measured layers, each kind so many times."""
    point = {"forward": 1, "backward": 2, "parameter_bytes": 3, "activation_bytes": 4}
    return profile_chain(Profile.parse({"name": "p", "layers": [
        {"name": f"l{n}", "repeat": times, "output_bytes": 1, "tp": {1: point}}
        for n, times in enumerate(repeats)]}))


def cyclic(layers: int, positions: int) -> Iterator[Sizes]:
    """Sizes B and B + 1, the larger in one cyclic run; first and last reduced."""
    for base, run, start in product(range(layers + 1), range(positions), range(positions)):
        whole = [base + ((n - start) % positions < run) for n in range(positions)]
        last = 0 if positions == 1 else whole[-1]
        for less_first, less_last in product(range(whole[0] + 1), range(last + 1)):
            sizes = list(whole)
            sizes[0] -= less_first
            sizes[-1] -= less_last
            if sum(sizes) == layers:
                yield tuple(sizes)


def by_stages(layers: int, pp: int, vpp: int) -> Iterator[Sizes]:
    """`decoder_first_pipeline_num_layers` and `decoder_last_...`, each given or not."""
    given = (None, *range(1, layers + 1))
    for first, last in product(given, given):
        left, stages = layers - (first or 0) - (last or 0), pp - sum(map(bool, (first, last)))
        if pp == 1 or left < 0 or (left % stages if stages else left):
            continue
        own = [left // stages if stages else 0] * pp
        if first:
            own[0] = first
        if last:
            own[-1] = last
        if min(own) > 0 and not any(size % vpp for size in own):
            yield tuple(size // vpp for size in own) * vpp


def with_ends_as_layers(layers: int, pp: int, vpp: int) -> Iterator[Sizes]:
    """`account_for_embedding_in_pipeline_split` and `account_for_loss_in_pipeline_split`."""
    for embedding, loss in product((0, 1), (0, 1)):
        if (layers + embedding + loss) % (pp * vpp) == 0:
            sizes = [(layers + embedding + loss) // (pp * vpp)] * (pp * vpp)
            sizes[0] -= embedding
            sizes[-1] -= loss
            if min(sizes[0], sizes[-1]) >= 0:
                yield tuple(sizes)


def remainder_in_front(layers: int, positions: int) -> Iterator[Sizes]:
    """torchtitan: ends weigh some layers, no more than a position has; the rest goes in front."""
    for embedding, head in product(range(layers + 1), range(layers + 1)):
        each, more = divmod(layers + embedding + head, positions)
        if positions > 1 and max(embedding, head) <= each:
            sizes = [each + (n < more) for n in range(positions)]
            sizes[0] -= embedding
            sizes[-1] -= head
            yield tuple(sizes)


def in_two_parts(layers: int, pp: int, vpp: int) -> Iterator[Sizes]:
    """Front stages alike, and those behind; the first and the last position reduced by up to 2."""
    def ways(total: int) -> list[list[int]]:
        base, more = divmod(total, vpp)
        chunks = [base + 1] * more + [base] * (vpp - more)
        return [chunks, chunks[::-1]] if base else []

    counts = range(vpp, layers + 4)
    for front, one, other in product(range(1, pp), counts, counts):
        if not layers <= front * one + (pp - front) * other <= layers + 4:
            continue
        for a, b, first, last in product(ways(one), ways(other), range(3), range(3)):
            sizes = [(a if s < front else b)[v] for v in range(vpp) for s in range(pp)]
            sizes[0] -= first
            sizes[-1] -= last
            if sum(sizes) == layers and min(sizes) >= 0:
                yield tuple(sizes)


def by_definition(chain: Chain, pp: int, vpp: int, mixed: bool) -> set[Sizes]:
    """Cuts of all members."""
    (first, last), positions = chain.body, pp * vpp
    found = set()

    def add(sizes: Sizes, end: int) -> None:
        cuts = [0, *(first + sum(sizes[:n + 1]) for n in range(len(sizes) - 1)), end]
        cuts += [len(chain)] * (end < len(chain))
        if cuts[1] and cuts[-2] < len(chain) and all(a <= b for a, b in pairwise(cuts)):
            found.add(tuple(cuts))

    for listed in (cyclic(last - first, positions), by_stages(last - first, pp, vpp),
                   with_ends_as_layers(last - first, pp, vpp),
                   remainder_in_front(last - first, positions),
                   in_two_parts(last - first, pp, vpp) if mixed else ()):
        for sizes in listed:
            add(sizes, len(chain))
    if chain.model is not None and chain.model.mtp_layers and pp > 1:
        for sizes in cyclic(last - first, positions - 1):
            add(sizes, len(chain) - 1)
    return found


SHAPES = [(pp, vpp) for pp in range(1, 5) for vpp in range(1, 5) if pp * vpp <= 8]


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(("pp", "vpp"), SHAPES)
def test_the_family_is_its_definition(pp: int, vpp: int, mixed: bool) -> None:
    chains = [model_chain(layers, mtp) for layers in range(1, 10) for mtp in (0, 1, 2)]
    chains += [profile(7), profile(1, 8), profile(5, 1), profile(1, 6, 2, 1), profile(2, 1, 3)]
    for chain in chains:
        found = family(chain, pp, vpp, mixed)
        listed = [tuple(map(int, cuts)) for cuts in found]
        assert found.dtype == np.int64 and found.shape[1:] == (pp * vpp + 1,)
        assert listed == sorted(by_definition(chain, pp, vpp, mixed)), chain.name


def test_numbers_of_layouts_are_those_of_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "layouts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w.-]+) \| (\d+) \| (\d+) \| ([\d,]+) \|$", text, re.MULTILINE)
    assert len(rows) == 10
    for name, pp, vpp, count in rows:
        found = family(build_chain(load_model(name)), int(pp), int(vpp))
        assert len(found) == int(count.replace(",", "")), (name, pp, vpp)
