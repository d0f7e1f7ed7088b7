"""Cells of a table of runs: the columns, and what words in cells mean."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from nest.inputs.files import read_description
from nest.inputs.offload import Offload
from nest.inputs.space import MODULES, Module, Precision, Recompute


@cache
def tables() -> Mapping[str, Any]:
    """What tables.yaml says of columns, and of words in cells."""
    return read_description(Path(__file__).with_name("tables.yaml"))


def first_match(table: str, text: str) -> Any:
    """What a table of patterns has for a text: that of the first pattern found; None: of none."""
    return next((meaning for mark, meaning in tables()[table] if re.search(mark, text)), None)


@dataclass(frozen=True)
class RunColumn:
    """A column of a table of runs; the fields are those of tables.yaml."""

    means: str
    whole: int | Sequence[int] | None = None
    real: bool = False

    def problem(self, text: str) -> str | None:
        """What is allowed instead of a cell that is not empty; None: it is allowed."""
        if self.whole is not None:
            low, high = (self.whole, _LARGEST) if isinstance(self.whole, int) else self.whole
            value = whole(text)
            return None if value is not None and low <= value <= high else (
                f"a whole number from {low} to {high}")
        if self.real:
            number = real(text)
            return None if number is not None and 0.0 < number < 1e12 else "a number above 0"
        return None if len(text) <= 2000 else "at most 2000 characters"


_LARGEST = 10**9
NEEDED: dict[str, str] = {name: given["means"] for name, given in tables()["columns"].items()}
"""Columns that a table has to have, with their meaning; a cell may be empty: not known."""
COLUMNS = {name: RunColumn(**given)
           for name, given in {**tables()["columns"], **tables()["optional_columns"]}.items()}
"""All columns; those that are not needed may be left out."""


def whole(text: str) -> int | None:
    """A whole number, also written as `8.0`; None: it is not one."""
    number = real(text)
    return int(number) if number is not None and number.is_integer() else None


def real(text: str) -> float | None:
    """A finite number; None: it is none."""
    if not text.isascii() or "_" in text or len(text) > 40:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None



class Recomputed(NamedTuple):
    """Recompute policy."""

    policy: Recompute
    modules: tuple[Module, ...] = ()
    layers: int | None = None
    """Of full recompute: only this many first layers of a stage; None: all."""
    remark: str = ""
    """Difference of the policy from the source; empty: none."""


def precision(text: str, framework: str = "") -> Precision | None:
    """Number format of matrix products; None: not one that NEST prices.

    Tables that do not state which 16-bit format was used are read as bf16, those that do not state
    a recipe of fp8 as one scale for each tensor, delayed where that is the framework's recipe.
    """
    found: Precision | None = first_match("precisions", text.lower())
    delayed = text.strip().lower() == "fp8" and re.fullmatch(
        tables()["delayed_frameworks"], framework.strip().lower())
    return "fp8-delayed" if delayed else found


_SELECTIVE: dict[str, Module] = {
    # a source's word, the module
    **{name: name for name in MODULES},
    "attention core": "core_attn", "layernorm": "norm", "moe_act": "mlp_act", "act": "mlp_act",
}
_OPERATORS = re.compile(r"op sac|llama3_8b\.toml default|\bminimal|save_(?:dots?|all_dots)\b")
_SAVED = re.compile(r"\b(?:remat|policy)?:? ?(save_\w+)")


def recompute(text: str) -> Recomputed | None:
    """Recompute policy of a cell; None: not stated, or not one that NEST prices.

    `full`, `full, 5 layers`, `none` and `selective: norm+mlp_act` may be followed by a remark in
    parentheses; `selective` alone is Megatron-Core's default, the attention core
    (default of --recompute-modules). Operator-level checkpointing of
    torchtitan (torchtitan/parallelisms/parallelize_llama.py, December 2024) keeps attention and
    every other matrix product; MaxText's minimal policies keep all of them, and its save_qkv_proj,
    save_out_proj and save_dot_except_mlp some, which is priced as keeping none. NEST's policy runs
    norms and activation functions again, and under torchtitan's stacks (selective_products) every
    other product.
    """
    words = text.strip().lower()
    operators = _OPERATORS.search(words)
    if operators:
        half = "" if "minimal" in words else " and, under torchtitan, every other product"
        return Recomputed("selective", ("norm", "mlp_act"), None,
                          f"recompute of single operators: priced as norm+mlp_act{half}")
    if re.match(r"none\b", words):
        return Recomputed("none")
    full = re.match(r"(?:remat )?full(?:, (\d+) layers)?\s*(?:\(.*\))?$", words)
    if full:
        return Recomputed("full", (), int(full[1]) if full[1] else None)
    saved = _SAVED.match(words)
    if saved:
        return Recomputed("full", (), None, f"{saved[1]} is priced as full recompute")
    if re.match(r"selective\s*(?:\(default\))?$", words):
        return Recomputed("selective", ("core_attn",), None, "selective alone: the attention core")
    named = re.match(r"(?:selective\b)?[:\s(]*([a-z_ +,&/]+?)\)?$", words)
    if named is None:
        return None
    known = {_SELECTIVE.get(name.strip()) for name in re.split(r"[+,&/]", named[1])}
    if None in known:
        return None
    return Recomputed("selective", tuple(module for module in MODULES if module in known))


_LAYERS = re.compile(r"offload(?:ing)?_num_layers=(\d+)|\bactivations of (\d+) layers\b")


def offload(cell: str, notes: str) -> str | None:
    """What is kept on the host, as :class:`nest.inputs.offload.Offload` writes it.

    The cell counts, then what the notes name; None: something that NEST does not price.
    """
    words = cell.strip().lower()
    if re.match(r"(?:none|no|0)?$", words):
        words = notes.lower()
        if not re.search(r"offload(?:ing)?_num_layers=|\boffload(?:s|ed)? (?!left blank)", words):
            return "none"
    listed = _LAYERS.search(words)
    if listed:
        layers = int(listed[1] or listed[2])
        return f"layers:{layers}" if layers else "none"
    try:
        return str(Offload.of(words))
    except ValueError:
        return None

