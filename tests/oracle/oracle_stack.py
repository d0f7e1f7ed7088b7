"""Exhaustive twin of the search of a stack's own space, from docs/stacks.md and docs/layouts.md.

Every configuration whose stages are alike is listed, asked whether it is legal and whether the
stack can run it, and priced with the functions of `nest.evaluate`. What the search knows of rules
for many configurations at once, of bounds, tensors and kernels is not used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, islice
from typing import NamedTuple

from oracle_layouts import Cuts, family
from oracle_plans import write_stage
from oracle_rules import (
    Choice,
    Outer,
    blocks,
    checkpointed,
    outer_choices,
    policies,
    splits,
    states,
)

from nest.errors import InputError
from nest.evaluation.feasibility import check
from nest.evaluation.stages import Layers, Pricing
from nest.inputs import Cluster, Configuration, Job, SearchSpace
from nest.inputs.capabilities import Capabilities
from nest.model import Chain
from nest.stacks import not_runnable
from nest.stacks.rules import applies

EVERY = ("1f1b", "gpipe", "interleaved", "zb1p", "interleaved-zb", "zb-v", "dualpipev",
         "looped-bfs", "combined", "v-half", "v-min")
FOLDED = ("zb-v", "v-half", "v-min", "dualpipev")
GROUPED = ("interleaved", "interleaved-zb", "combined")
FREE = ("1f1b", "gpipe")
"""Schedules whose stages may be cut anywhere."""


class TooMany(Exception):
    """More configurations than asked for."""


class Best(NamedTuple):
    """The best runnable configuration that fits."""

    seconds: float | None
    configuration: Configuration | None
    fitting: int
    schedules: frozenset[str]
    """Of all runnable configurations that fit."""


def solve(chain: Chain, cluster: Cluster, job: Job, space: SearchSpace, most: int) -> Best:
    """Price every configuration of the stack's own space; at most ``most`` are listed."""
    plans = [*islice(listed(chain, cluster, job, space), most + 1)]
    if len(plans) > most:  # seen before any is priced
        raise TooMany
    pricing, known = Pricing(chain, cluster, job), dict[object, Layers]()
    best, chosen, fitting, seen = math.inf, None, 0, set()
    for plan in plans:
        try:
            check(pricing, plan)
        except InputError:
            continue
        if not_runnable(chain, job, plan):
            continue
        seconds = priced(pricing, plan, known)
        if seconds is not None:
            fitting, seen = fitting + 1, seen | {plan.schedule}
            if seconds < best:
                best, chosen = seconds, plan
    return Best(best if chosen else None, chosen, fitting, frozenset(seen))


def priced(pricing: Pricing, plan: Configuration, known: dict[object, Layers]) -> float | None:
    """Seconds of a step; None: it does not fit."""
    prices = []
    for number, stage in enumerate(plan.stages):
        # Chunks do not change the price of a layer, nor does the order but for its parts.
        same = stage.unchecked(layers=(0, 1), chunks=((0, 1),), recompute_layers=None)
        key = (same, plan.outer_dp, plan.micro_batch, plan.stride, plan.schedule, plan.pp,
               plan.offload)
        layers = known.setdefault(key, {})
        price = pricing.stage(plan, stage, layers)
        if (price.resident + pricing.held(plan, number, price) > pricing.limit(stage)
                or pricing.hosted(plan, number, price) > pricing.host_limit(plan, stage)):
            return None
        prices.append(price)
    hops = [pricing.hops(plan, number) for number in range(plan.pp)]
    return pricing.step_time(plan, prices, hops).total


def schedules_of(rules: Capabilities, space: SearchSpace, pp: int = 2) -> list[str]:
    """Schedules that the stack has with so many stages, and the space allows."""
    names = [*EVERY] if space.schedule is None else list(space.schedule)
    about = [(rule, field) for rule in rules.rules.values() if not rule.alike
             for field in rule.fields if {field, *rule.when} <= {"schedule", "pp"}
             and rule.allowed is not None]

    def has(name: str, stages: int) -> bool:
        figures = {"schedule": name, "pp": stages}
        return not any(applies(rule, figures) and figures[field] not in rule.allowed
                       for rule, field in about)

    # Of a single stage passes run beside each other where the stack knows that of pipelines.
    return [name for name in names if has(name, pp) and (
        pp > 1 or name in FREE or any(has(name, many) for many in range(2, 20)))]


def listed(
    chain: Chain, cluster: Cluster, job: Job, space: SearchSpace
) -> Iterator[Configuration]:
    """All configurations with alike stages of a space, legal or not."""
    rules, many = job.stack.capabilities, len(chain)
    assert rules is not None
    sizes = tuple(cluster.group_sizes)
    for outer in outer_choices(cluster, job, space):
        m = job.global_batch // (outer.outer_dp * outer.micro_batch)
        whole = set(blocks(sizes, outer.outer_dp, outer.stride))
        for pp in range(1, min(many, outer.stride) + 1):
            if not space.allows("pp", pp):
                continue
            for size in range(1, outer.stride // pp + 1):
                if all((s * size, size) in whole for s in range(pp)):
                    yield from _degrees(chain, job, space, outer, m, pp, size,
                                        bool(cluster.types))


def _degrees(
    chain: Chain, job: Job, space: SearchSpace, outer: Outer, m: int, pp: int, size: int,
    mixed: bool,
) -> Iterator[Configuration]:
    rules = job.stack.capabilities
    assert rules is not None
    for split in splits(chain, job, space, outer.micro_batch, size):
        for state in states(job, space, outer.outer_dp, split, piped=pp > 1):
            for name, vpp, group, cuts in _orders(
                    chain, space, m, pp, rules, mixed):
                chunks = _placed(name, pp, vpp, cuts)
                most = max(checkpointed(chain, range(i, j)) for c in chunks for i, j in c)
                for policy in policies(chain, space, most, job.stack.saves_outputs):
                    yield Configuration(
                        outer_dp=outer.outer_dp, micro_batch=outer.micro_batch,
                        stride=outer.stride, vpp=vpp, schedule=name, group=group, stages=[
                            write_stage(Choice(s * size, size, split, state), policy, own)
                            for s, own in enumerate(chunks)])


def _orders(
    chain: Chain, space: SearchSpace, m: int, pp: int, rules: Capabilities,
    mixed: bool,
) -> Iterator[tuple[str, int, int | None, Cuts]]:
    """Schedule, chunks a stage, group and cuts.

    Groups may be PyTorch's rounds, or Megatron-Core's, of which some are searched; or those that
    the space names.
    """
    names = schedules_of(rules, space, pp)
    rounds = any("round" in (*rule.fields, *rule.when, *(rule.equal_to or ()))
                 for rule in rules.rules.values())
    chosen = any("group" in rule.fields and rule.at_least for rule in rules.rules.values())
    if pp == 1:
        names = [*[n for n in names if n in FREE][:1], *[n for n in names if n == "combined"]]
    for name in names:
        for vpp in range(1, (len(chain) + (pp + 3) // 4) // pp + 1):
            if not space.allows("vpp", vpp) or not _takes(name, pp, vpp):
                continue
            groups: list[int | None] = [None]
            if rounds and name in ("interleaved", "interleaved-zb") and m % pp:
                groups = [m // max(1, m // pp)]
            if chosen and name in ("interleaved", "combined") and vpp > 1:
                groups = [*some_groups(m, pp)]
            if space.group is not None and name in GROUPED and vpp > 1:
                groups = [None if n == pp else n for n in range(1, m + 1) if n in space.group]
            for group in groups:
                for cuts in _cuts(chain, name, pp, vpp, rules, mixed):
                    yield name, vpp, group, cuts


def some_groups(m: int, pp: int) -> Iterator[int | None]:
    """Groups of Megatron-Core that are searched (docs/schedules.md); None: pp."""
    legal = [n for n in range(pp, m + 1) if not 0 < m % n < pp]
    for group in sorted({min(n for n in legal if n >= share * pp)
                         for share in (1, 2) if any(n >= share * pp for n in legal)}):
        yield group if group > pp else None


def _takes(name: str, pp: int, vpp: int) -> bool:
    """Whether a schedule may have so many chunks a stage."""
    if name in (*FREE, "zb1p") or (name == "combined" and pp == 1):
        return vpp == 1
    return vpp == 2 if name in FOLDED else vpp > 1


def _cuts(
    chain: Chain, name: str, pp: int, vpp: int, rules: Capabilities, mixed: bool
) -> Iterator[Cuts]:
    figures = {"schedule": name, "pp": pp, "vpp": vpp}
    named = any("cuts" in rule.fields and "free" not in rule.allowed and applies(rule, figures)
                for rule in rules.rules.values())
    if name in FREE or named:  # any, of which the rules allow those of some forms
        for inner in combinations(range(1, len(chain)), pp * vpp - 1):
            yield (0, *inner, len(chain))
    else:
        yield from family(chain, pp, vpp, mixed)


def _placed(name: str, pp: int, vpp: int, cuts: Cuts) -> list[list[tuple[int, int]]]:
    """Layers of each chunk of each stage: dealt out in turn, or along a V."""
    spans = list(zip(cuts, cuts[1:], strict=False))
    if name in FOLDED:
        return [[spans[s], spans[2 * pp - 1 - s]] for s in range(pp)]
    return [spans[s::pp] for s in range(pp)]
