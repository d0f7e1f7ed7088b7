"""The module for PyTorch's FSDP2: its constants, refusals, and that it is Python.

`tests/stacks/test_framework_plans.py` runs exported modules.
"""

from __future__ import annotations

import ast
from typing import Any

import pytest
from exported import EXPERTS, files_of
from launches import launched
from test_exports_megatron import small

import nest
from nest.errors import UnsupportedError
from nest.frameworks import fsdp2
from nest.frameworks.settings import figures_of


def constants(text: str) -> dict[str, Any]:
    """Constants of a module; nothing is run. Of ``torch.NAME``, the name."""
    found: dict[str, Any] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(name := node.targets[0], ast.Name):
            value = node.value
            found[name.id] = value.attr if isinstance(value, ast.Attribute) \
                else ast.literal_eval(value)
    return found


@pytest.mark.parametrize(("given", "wanted"), [
    ({"zero": 3, "tp": 2}, {"DP_REPLICATE": 1, "DP_SHARD": 8, "CP": 1, "TP": 2, "LAYERS": 8,
                            "SEQUENCE_PARALLEL": True, "RESHARD_AFTER_FORWARD": True,
                            "PARAM_DTYPE": "bfloat16", "REDUCE_DTYPE": "float32",
                            "RECOMPUTE": "none", "PARTS": {}, "MICRO_BATCHES": 8}),
    ({"zero": 0}, {"DP_REPLICATE": 16, "DP_SHARD": 1, "RESHARD_AFTER_FORWARD": False}),
    ({"zero": 2, "shard": "dp_in", "dp_in": 8}, {"DP_REPLICATE": 2, "DP_SHARD": 8}),
    ({"zero": 2, "cp": 2}, {"CP": 2, "DP_SHARD": 8}),
    ({"zero": 2, "recompute": "full", "recompute_layers": 3},
     {"RECOMPUTE": "full", "RECOMPUTE_LAYERS": 3}),
    ({"zero": 2, "recompute": "selective", "recompute_modules": ("core_attn", "norm")},
     {"RECOMPUTE": "selective", "RECOMPUTE_LAYERS": None, "PARTS": {
         "core_attn": ("self_attn",),
         "norm": ("input_layernorm", "post_attention_layernorm")}}),
    ({"zero": 2, "stack": {"base": "fsdp", "gradient_dtype": "bf16"}},
     {"REDUCE_DTYPE": "bfloat16"}),
], ids=lambda value: str(value)[:60])
def test_constants(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    text = files_of("fsdp2", given.pop("stack", "fsdp"), **given)["parallelize.py"]
    compile(text, "parallelize.py", "exec")
    found = constants(text)
    assert {name: found.get(name) for name in wanted} == wanted


def test_the_constants_are_read_back() -> None:
    for given in ({"zero": 3, "tp": 2}, {"zero": 2, "recompute": "full"},
                  {"zero": 3, "cp": 2, "recompute": "selective"}):
        plan = small(stack="fsdp", **given)
        here = fsdp2.figures_here(plan)
        back = figures_of(fsdp2.SETTINGS, constants(
            nest.export(plan, "fsdp2")["parallelize.py"]))
        assert back == {name: here[name] for name in back}
        assert {"replicas", "shards", "cp", "tp", "zero", "recompute"} <= set(back)


def test_the_program_is_the_users() -> None:
    name = '"""+__import__("os").system("touch owned")+"""\\'
    files = files_of("fsdp2", "fsdp", devices=8, changes={"name": name})
    assert ast.get_docstring(ast.parse(files["parallelize.py"]))
    [one] = launched(files, 0, {"PROGRAM": "/a b/$(touch owned).py"})
    assert one.words == [] and one.launcher["--nproc-per-node"] == 8


@pytest.mark.parametrize(("given", "wanted"), [
    ({"stack": "torchtitan"}, "plan for fsdp (--stack)"),
    ({"zero": 2, "ep": 4, "etp": 1, "changes": {"moe": EXPERTS}}, "ep 4: "),
    ({"zero": 2, "tp": 2, "changes": {"moe": EXPERTS}}, "tp 2: experts"),
    ({"zero": 2, "tp": 2, "changes": {"tied_embeddings": True}}, "tp 2: a table"),
    ({"zero": 2, "tp": 2, "changes": {"gated": False}}, "tp 2: names"),
    ({"zero": 2, "tp": 4, "changes": {"kv_heads": 2}},
     "kv_heads 2 is no multiple of tp 4: "),
    ({"zero": 1}, "zero 1: "),
], ids=lambda value: str(value)[:60])
def test_what_it_cannot_express(given: dict[str, Any], wanted: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        files_of("fsdp2", given.pop("stack", "fsdp"), **given)
    assert wanted in caught.value.problems[0]
