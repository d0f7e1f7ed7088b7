"""Fields of a model that contradict each other are named, with what is allowed."""

from __future__ import annotations

import re
import runpy
import sys
from typing import Any

import pytest
from descriptions import MODEL

import nest

MOE = {"experts": 8, "top_k": 2, "ffn": 64}
VISION = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "tokens": 16,
          "patch_width": 588}


def kinds(**fields: Any) -> dict[str, Any]:
    """A model whose layers are all of one kind of its own."""
    return {"layer_kinds": [{"name": "own", **fields}], "layer_types": ["own"] * MODEL["layers"]}


@pytest.mark.parametrize(("fields", "told"), [
    ({"moe": {**MOE, "top_k": 9}}, "moe.top_k: got 9; allowed: 1 to 8 (experts)"),
    ({"moe": {**MOE, "groups": 3}}, "moe.groups: got 3; allowed: a divisor of experts = 8"),
    ({"moe": {**MOE, "groups": 2, "group_limit": 3}},
     "moe.group_limit: got 3; allowed: 1 to 2 (groups)"),
    ({"vision": {**VISION, "heads": 3}}, "heads: got 3; allowed: a divisor of hidden = 64"),
    ({"vision": {**VISION, "merge": 3}}, "merge: got 3; allowed: a divisor of tokens = 16"),
    (kinds(mixer="none", mlp="none"), "mlp: got 'none'; allowed: dense or experts"),
    (kinds(mixer="none", heads=4), "heads: got 4; allowed: nothing with mixer none"),
    (kinds(chunked=True), "chunked: got true; allowed: false without a window"),
    (kinds(mlp="none", ffn=64), "ffn: got 64; allowed: nothing with mlp none"),
    (kinds(mlp="experts"), "moe: missing; needed: with layers that have experts"),
    (kinds(mixer="recurrence"), "recurrence: missing; needed: with layers of that kind"),
    ({**kinds(), "moe": MOE}, "moe: given; allowed: with layers that have experts"),
    ({**kinds(mlp="none"), "parallel": True}, "one part; allowed: mixer and mlp with"),
    ({**kinds(), "window": 64}, "window: given; allowed: nothing with layer_types"),
    ({**kinds(), "kind": "encoder"}, "got 'own'; allowed: nothing with kind encoder"),
    ({"chunked": True}, "chunked: got true; allowed: false without a window"),
    ({"patch_width": 8}, "patch_width: got 8; allowed: 0 unless kind is encoder"),
    ({"parallel": True, "kind": "encoder"}, "parallel: got true; allowed: false with kind encoder"),
    ({"qk_norm_form": "all"}, "qk_norm_form: got 'all'; allowed: head without qk_norm"),
])
def test_contradictions_are_named(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(nest.InputError, match=re.escape(told)):
        nest.Model.parse({**MODEL, **fields})


def test_python_runs_nest_as_a_module(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["nest", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("nest", run_name="__main__")
    assert not ended.value.code and nest.__version__ in capsys.readouterr().out
