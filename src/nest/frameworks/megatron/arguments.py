"""Megatron-LM's command line as values of arguments, as figures, and what a plan changes of it.

Names, defaults and rules: NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py, cited by
line.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nest.errors import InputError, UnsupportedError, did_you_mean
from nest.evaluation.plans import Plan
from nest.frameworks.megatron import write as megatron
from nest.frameworks.megatron.write import (
    SECTIONS,
    is_fsdp,
    memory_figures,
    parallel_figures,
    training_figures,
)
from nest.frameworks.settings import (
    Words,
    arguments_of,
    figures_of,
    known,
    listed,
    plain,
    settings,
    words,
)
from nest.frameworks.source import LEFT_OUT, MOST_PROBLEMS, unread
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
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


DECIDED = ("PARALLEL", "MEMORY", "TRAINING")
"""Sections of arguments that a plan decides; those of the model are the user's."""
SIZE, LAYOUT = "pipeline-model-parallel-size", "pipeline-model-parallel-layout"
"""A layout says how many stages have its chunks only with their number."""
DIVISION = (
    LAYOUT, "num-layers-per-virtual-pipeline-stage",
    "num-virtual-stages-per-pipeline-rank", "decoder-first-pipeline-num-layers",
    "decoder-last-pipeline-num-layers", "account-for-embedding-in-pipeline-split",
    "account-for-loss-in-pipeline-split")
RECOMPUTE = ("recompute-granularity", "recompute-modules", "recompute-method",
             "recompute-num-layers", "recompute-activations", "checkpoint-activations",
             "moe-layer-recompute")
TOGETHER = (DIVISION, RECOMPUTE, ("micro-batch-size", "batch-size"),
            ("tensor-model-parallel-size", "model-parallel-size"),
            ("moe-token-dispatcher-type", "moe-flex-dispatcher-backend", "moe-enable-deepep"))
"""Arguments that say one thing between them: if it changes, all are written anew."""
DEPENDS = ("global-batch-size", "expert-tensor-parallel-size", "sequence-parallel",
           "tp-comm-overlap")
"""Arguments that mean something else without others: their absence, or the size of tp, counts."""


NEEDS: Mapping[str, Callable[[Configuration, Job], bool]] = {
    "defer-embedding-wgrad-compute": lambda way, job: way.pp > 1,
    "wgrad-deferral-limit": lambda way, job: way.pp > 1,
    "overlap-p2p-communication-warmup-flush": lambda way, job: way.vpp > 1,
    "overlap-param-gather-with-optimizer-step":
        lambda way, job: way.vpp > 1 and way.stages[0].zero > 0,
    "no-overlap-p2p-communication": lambda way, job: way.pp > 2 or way.vpp == 1,
    "distribute-saved-activations": lambda way, job: (
        way.stages[0].tp > 1 and not way.stages[0].sp and way.stages[0].recompute == "full"),
    "fp8-param-gather": lambda way, job: way.stages[0].zero > 0 or is_fsdp(job),
    "delay-wgrad-compute": lambda way, job: way.schedule == "combined",
    "ep-overlap-early-attn-memory-release": lambda way, job: way.schedule == "combined",
    "moe-shared-expert-overlap": lambda way, job: (
        way.schedule != "combined" and job.stack.dispatcher == "alltoall"
        and "shared_experts" not in way.stages[0].recompute_modules),
}
"""Arguments without a price that Megatron-LM refuses beside some plans, and those that it takes.
Source: NVIDIA/Megatron-LM@core_v0.16.1 megatron/training/arguments.py:574 to 589, 635, 655, 884;
megatron/core/model_parallel_config.py:425, 450;
megatron/core/transformer/transformer_config.py:1090, 1187, 1235, 1887, 1909, 1922."""


class Flags(NamedTuple):
    """A command line's arguments, changed."""

    taken: tuple[str, ...]
    """Names of arguments that are taken out."""
    given: Mapping[str, Words]
    """Words of those that are written, by name; without hyphens."""


def said(plan: Plan, mapped: bool) -> dict[str, Words]:
    """Words of each argument that a plan decides.

    Parameters
    ----------
    plan : of a stack that Megatron-LM's command line speaks of.
    mapped : ranks go replica by replica (``--use-tp-pp-dp-mapping``).

    Raises
    ------
    UnsupportedError : layers of chunks that have no text.
    """
    model, job, way = plan.inputs.model, plan.inputs.job, plan.configuration
    assert model is not None
    if plan.layout is None and way.pp * way.vpp > 1:
        reason = ("layers of the chunks: --pipeline-model-parallel-layout has no text for them",)
        raise UnsupportedError(reason[0], reason)
    figures = {**memory_figures(way), **training_figures(job, way),
               **parallel_figures(model, job, way, plan.layout, mapped)}
    found: dict[str, Words] = {}
    for section in DECIDED:
        for first, *rest in words(settings(SECTIONS[section], figures)):
            found[first[2:]] = tuple(rest)
    found.pop("log-throughput", None)
    return found


def unpriced(given: Mapping[str, Words], after: Mapping[str, Words]) -> dict[str, Words]:
    """What a command line says that is no configuration, so that no plan says it."""
    of_job = {one.name for one in SECTIONS["TRAINING"]} - {"micro-batch-size"}
    plain = {one.name for name in DECIDED for one in SECTIONS[name]} - of_job
    decided = {one for name in plain for one in _family(name)}
    return {**{name: value for name, value in given.items() if name in decided},
            **{name: value for name, value in after.items() if name in of_job}}


def mapped(plan: Plan) -> bool:
    """Whether a plan's ranks go replica by replica, as `nest export` decides it."""
    return megatron.replica_by_replica(plan.configuration, bool(plan.launch_needs))


def changed(
    given: Mapping[str, Words], before: Mapping[str, Words], after: Mapping[str, Words], plan: Plan
) -> Flags:
    """What to take out of a command line and what to write, such that the rest stays as it is.

    Parameters
    ----------
    given : arguments of the command line, by name.
    before, after : those that its plan and the next one decide (:func:`said`).
    plan : the next one.
    """
    sizes = [each.get(SIZE) for each in (before, after)]
    names = [name for name in dict.fromkeys((*before, *after))
             if before.get(name) != after.get(name)
             or (name == LAYOUT and sizes[0] != sizes[1])
             or (name in DEPENDS and given.get(name, _absent(name, after)) != after.get(name))]
    touched = dict.fromkeys(one for name in names for one in _family(name))
    wanted = {name: after[name] for name in touched if name in after}
    same = [name for name, value in wanted.items()
            if given.get(name) == value and not {*_family(name)} & ({*given} - {*wanted})]
    for name in same:
        del wanted[name]
    taken = [name for name in touched if name in given and name not in same]
    taken += [name for name, fits in NEEDS.items()
              if name in given and not fits(plan.configuration, plan.inputs.job)]
    return Flags(tuple(taken), wanted)


def _absent(name: str, after: Mapping[str, Words]) -> Words | None:
    """What an argument's absence says beside others."""
    return after.get("tensor-model-parallel-size") if name.startswith("expert-tensor") else None


def applied(given: Mapping[str, Words], flags: Flags) -> dict[str, Words]:
    """Arguments of a command line after a change."""
    kept = {name: value for name, value in given.items() if name not in flags.taken}
    return {**kept, **flags.given}


def _family(name: str) -> Iterator[str]:
    """Arguments that are written together with one; aliases of it."""
    group = next((one for one in TOGETHER if name in one), (name,))
    yield from group
    yield from (alias for alias, others in known().aliases.items()
                if others[0][0] in group and alias not in group)
