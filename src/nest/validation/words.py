"""Cells that are words: number formats and recompute policies as sources write them."""

from __future__ import annotations

import re
from typing import NamedTuple

from nest.describe.space import MODULES, Module, Precision, Recompute


class Recomputed(NamedTuple):
    """Recompute policy."""

    policy: Recompute
    modules: tuple[Module, ...] = ()
    layers: int | None = None
    """Of full recompute: only this many first layers of a stage; None: all."""
    remark: str = ""
    """Difference of the policy from the source; empty: none."""


def precision(text: str) -> Precision | None:
    """Number format of matrix products; None: not one that NEST prices.

    Tables that do not state which 16-bit format was used are read as bf16.
    """
    words = text.lower()
    if "fp4" in words:
        return None
    known: tuple[Precision, ...] = ("fp8", "bf16", "fp16", "fp32")
    return next((name for name in known if name in words), None)


_SELECTIVE = {
    "attention core": "core_attn", "core_attn": "core_attn", "layernorm": "norm", "norm": "norm",
    "moe_act": "mlp_act", "mlp_act": "mlp_act", "moe": "moe",
}
_OPERATORS = re.compile(r"op sac|llama3_8b\.toml default|minimal_flash")


def recompute(text: str) -> Recomputed | None:
    """Recompute policy of a cell; None: not stated, or not one that NEST prices.

    `full`, `full, 5 layers`, `none` and `selective: norm+mlp_act` may be followed by a remark in
    parentheses. Operator-level checkpointing of torchtitan (torchtitan/parallelisms/
    parallelize_llama.py, December 2024) keeps attention and every other matrix product; MaxText's
    minimal_flash keeps all of them. NEST's policy runs norms and activation functions again, and
    under torchtitan's stacks (selective_products) every other product.
    """
    words = text.strip().lower()
    operators = _OPERATORS.search(words)
    if operators:
        half = "" if "minimal" in words else " and, under torchtitan, every other product"
        return Recomputed("selective", ("norm", "mlp_act"), None,
                          f"recompute of single operators: priced as norm+mlp_act{half}")
    if re.match(r"none\b", words):
        return Recomputed("none")
    full = re.match(r"full(?:, (\d+) layers)?\s*(?:\(.*\))?$", words)
    if full:
        return Recomputed("full", (), int(full[1]) if full[1] else None)
    named = re.match(r"selective(?::\s*|\s*\()([\w +]+)\)?$", words)
    if named is None:
        return None
    names = [_SELECTIVE.get(name.strip()) for name in named[1].split("+")]
    if None in names:
        return None
    return Recomputed("selective", tuple(module for module in MODULES if module in names))
