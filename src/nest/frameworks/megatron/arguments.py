"""Megatron-LM's command line as values of arguments, and these as figures.

Names, defaults and rules: NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py, cited by
line.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from nest.errors import InputError, did_you_mean
from nest.frameworks.megatron.write import SECTIONS
from nest.frameworks.settings import arguments_of, figures_of, known, listed, plain
from nest.frameworks.source import LEFT_OUT, MOST_PROBLEMS, unread
from nest.units import shorten

Figures = dict[str, Any]
LOSSES = "moe-router-load-balancing-type"
"""One for all layers, or several that are added."""
CHECKPOINT = ("use-checkpoint-args", "use-mp-args-from-checkpoint-args")
FROM_CHECKPOINT = ("arguments of the checkpoint replace those of the script; read the command line "
                   "that made the checkpoint, or the arguments that its log prints")

def values_of(words: Sequence[str], ignored: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Values of the arguments that matter, and notes on those that have no price.

    Raises
    ------
    InputError : arguments that may change the cost and are not read, or values without a price.
    """
    table = known()
    found, stray = arguments_of(words, table)
    for name, instead in table.aliases.items():
        if name in found:
            own = found.pop(name)
            for target, value in instead:
                found.setdefault(target, value or own)
    if found.get("transformer-impl") == ("local",):  # gpt_builders.py:47
        found["attention-backend"] = ("local",)
    found = {name: value for name, value in found.items() if name not in ignored}
    small = [name for name in found if name in table.small]
    costless = table.small | table.free | table.elsewhere
    strange = [name for name in found if name not in table.read | costless]
    problems = [
        f"--{name}: {FROM_CHECKPOINT}" if name in CHECKPOINT else
        f"--{unread(name)}" if name in table.takes else
        f"--{shorten(name)[1:-1]}: no argument of Megatron-LM core_v0.16.1; "
        f"{did_you_mean(name, table.takes)}".rstrip("; ") for name in strange[:MOST_PROBLEMS]]
    if (more := len(strange) - MOST_PROBLEMS) > 0:
        problems.append(f"and {more} more")
    given = {name: plain(name, value, table.takes.get(name, "one"))
             for name, value in found.items() if name in table.read and name not in costless}
    given = {name: value[0] if isinstance(value, tuple) and len(value) == 1
             and name not in ("recompute-modules", "offload-modules") else value
             for name, value in given.items()}
    problems += [f"--{name}: got {shorten(given[name])}; allowed: {', '.join(map(str, allowed))}"
                 for name, allowed in table.only.items()
                 if name in given and not _priced(name, given[name], allowed)]
    if stray:
        problems.append(f"got {shorten(stray[0])}, which belongs to no argument")
    if problems:
        raise InputError("\n".join(problems), tuple(problems))
    if given.get("position-embedding-type") == "mrope":
        given["position-embedding-type"] = "rope"
    notes = [f"no price for {listed(one for one in small if table.effects[one] == effect)} "
             f"({effect})" for effect in dict.fromkeys(table.effects[one] for one in small)]
    if others := [name for name in found if name in table.elsewhere]:
        notes.append(f"no arguments of Megatron-LM core_v0.16.1, and of no cost: {listed(others)}")
    if ignored:
        notes.append(f"ignored: {listed(ignored)}{LEFT_OUT}")
    return given, notes


def _priced(name: str, value: Any, allowed: tuple[Any, ...]) -> bool:
    """Whether a value has a price; of several that are added, all of them."""
    each = value if name == LOSSES and isinstance(value, tuple) else (value,)
    return all(one in allowed for one in each)


def figures_given(given: Mapping[str, Any]) -> Figures:
    """Figures of the tables that arguments say.

    Raises
    ------
    InputError : a number that is missing, none, or outside its range.
    """
    found: Figures = {}
    for table in SECTIONS.values():
        found |= figures_of(table, given)
    for name in ("layers", "hidden", "heads"):
        if not isinstance(found.get(name), int):
            text = {"layers": "num-layers", "hidden": "hidden-size",
                    "heads": "num-attention-heads"}[name]
            raise InputError(f"--{text}: got {shorten(found.get(name))}; allowed: a whole number")
    for one in (one for each in SECTIONS.values() for one in each):
        value = found.get(one.figure)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not (
                0 <= value <= 10**12) and one.figure != "capacity":
            raise InputError(f"--{one.name}: got {shorten(value)}; allowed: 0 to 10**12")
        if one.words is None and one.name in given and isinstance(value, str) and (
                one.type == "count"):
            raise InputError(f"--{one.name}: got {shorten(value)}; allowed: a whole number")
    return found


MOST = 10**4
"""Layers."""


def layer_pattern(value: object, layers: int, name: str, *, last_full: bool = False) -> list[int]:
    """0 or 1 for each layer.

    Parameters
    ----------
    value : a whole number N, or the text of an expression.
    last_full : what N means: of N layers the last is 0 and the others are 1; else the first is 1
        and the others are 0. Source: NVIDIA/Megatron-LM@core_v0.16.1, line 583 of
        GPT's layer specifications (experts), and is_layer_window_attention (windows).

    Raises
    ------
    InputError : no such value, or not one for each layer.
    """
    if isinstance(value, int):
        if value < 1:
            raise InputError(f"--{name}: got {shorten(value)}; allowed: at least 1")
        if last_full:
            return [int((n + 1) % value != 0) for n in range(layers)]
        return [int(n % value == 0) for n in range(layers)]
    found: object = None
    if isinstance(value, str) and len(value) <= 10**5:
        try:
            found = _evaluated(ast.parse(value.strip(), mode="eval").body, 0)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            found = None
    if not isinstance(found, list) or not all(one in (0, 1) for one in found):
        raise InputError(f"--{name}: got {shorten(value)}; allowed: a whole number, or a list of 0 "
                         "and 1 such as ([0]*3+[1]*58)")
    if len(found) != layers:
        raise InputError(f"--{name}: got {len(found)} entries; allowed: {layers}, one for each "
                         "layer")
    return found


def _evaluated(node: ast.expr, depth: int) -> list[int] | int:
    if depth > 50:
        raise ValueError
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) <= MOST:
        return node.value
    if isinstance(node, ast.List):
        found = [_evaluated(each, depth + 1) for each in node.elts]
        if all(isinstance(each, int) for each in found):
            return found  # type: ignore[return-value]
    if isinstance(node, ast.BinOp):
        left, right = _evaluated(node.left, depth + 1), _evaluated(node.right, depth + 1)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            if len(left) + len(right) <= MOST:
                return left + right
        elif isinstance(node.op, ast.Mult) and isinstance(left, list) != isinstance(right, list):
            items, times = (left, right) if isinstance(left, list) else (right, left)
            assert isinstance(items, list) and isinstance(times, int)
            if times >= 0 and len(items) * times <= MOST:
                return items * times
    raise ValueError
