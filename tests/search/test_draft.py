"""The part of a space that is searched first."""

from __future__ import annotations

import nest
from nest.evaluation.evaluate import chain_of
from nest.search.draft import draft_of


def test_the_draft_of_a_model_without_experts_has_all_its_tensor_parallelism():
    """Of such a model etp is tp: bound to 1, the draft had no other degree."""
    space = nest.SearchSpace()
    for name, free in (("llama3-70b", True), ("deepseek-v3", False)):
        part = draft_of(space, chain_of(nest.load_model(name)))
        assert part is not None and part.allows("tp", 8)
        assert part.allows("etp", 8) is free
