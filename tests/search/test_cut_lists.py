"""Cuts of named forms."""

from __future__ import annotations

import pytest

from nest.inputs import load_model
from nest.model import build_chain
from nest.search.cut_lists import MOST_WAYS, _by_form, body_layers


@pytest.mark.parametrize("parts", [4, 48])
def test_a_tower_among_many_chunks_has_no_ways_without_number(parts):
    """Of 24 layers in front of 32, many divisions among 16 chunks without layers of the body."""
    chain = build_chain(load_model("llava1.5-7b"))
    found = _by_form(chain, parts)
    assert len(found) < 5 * MOST_WAYS
    assert (body_layers(chain, found).sum(axis=1) == 32).all()
    assert len(found) or parts > 32
