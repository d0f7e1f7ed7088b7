"""Values of a stack's choices that a search tries: combinations that no other is better than.

A value is left out where another one is never slower and never larger, and forbids nothing more
(docs/proofs.md, Lemma 52 (choices of software)). What remains of a mixture of experts is what
trades memory or rules for time: what CUDA graphs capture, and how tokens reach their experts.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from nest.costs.activations import saved_bytes
from nest.costs.choices import Body, settings
from nest.costs.compute import Array
from nest.costs.memory import recipe
from nest.costs.operators import compute_seconds, shares, tokens_of
from nest.inputs.base import FrozenDict
from nest.inputs.capabilities import Rule
from nest.inputs.choices import CHOICES, ChoiceName
from nest.inputs.job import Job
from nest.inputs.space import LARGEST, IntSet
from nest.model.legality import divisors
from nest.search.query import Query
from nest.stacks.choices import choosing, tried
from nest.stacks.figures import model_figures
from nest.stacks.rules import applies, impossible, wrong

Costs = dict[Hashable, Array]
JOB = ("precision", "optimizer", "capacity", "kind", "experts", "mla", "window", "sinks", "vision",
       "tied", "kv_heads", "trains", "lora_rank", "samples")
"""Figures that no choice changes."""
EXPERTS = ("dispatcher", "fused_experts")
"""Choices without a meaning for models without experts."""
COMPUTING = ("fused_experts", "fp8_attention", "fp8_head", "loss")
"""Choices that change what operators take, and what they keep."""


class Chosen(NamedTuple):
    """A combination."""

    choices: Mapping[ChoiceName, str]
    """Values that differ from what the job's stack says."""
    job: Job
    bounds: Mapping[str, IntSet]
    """Dimensions in which plans differ from those that a better value has too."""


class Value(NamedTuple):
    """A value of a choice that is worth a search."""

    name: str | None
    """None: the stack has no such choice."""
    bounds: Mapping[str, IntSet] = FrozenDict()


def combinations(query: Query) -> list[Chosen]:
    """Combinations worth a search, what the stack does by itself first.

    Those that the stack's rules exclude whatever the plan are left out; one stays if all are.
    """
    found = []
    for values in product(*(_useful(query, name) for name in CHOICES)):
        choices: dict[ChoiceName, str] = {
            name: value.name for name, value in zip(CHOICES, values, strict=True)
            if value.name is not None and value.name != query.job.stack.chosen(name)}
        bounds = {key: one for value in values for key, one in value.bounds.items()}
        found.append(Chosen(choices, choosing(query.cluster, query.job, choices), bounds))
    broken = [_excluding(query, one.job) for one in found]
    # Of combinations that all are excluded, the nearest to a plan says why.
    least = min(broken)
    return [one for one, rules in zip(found, broken, strict=True) if not rules] or [
        found[broken.index(least)]]


def _excluding(query: Query, job: Job) -> int:
    """How much of a combination the stack's rules exclude, also where plans may break others."""
    if query.rules is not None:
        return len(impossible(query.chain, job))
    return sum(_broken(query, rule, job) for name in CHOICES for rule in _rules(query, name))


def _useful(query: Query, name: ChoiceName) -> list[Value]:
    """Values of a choice that no other one makes needless."""
    values = tried(query.cluster, query.job, query.space, name)
    if name in EXPERTS and query.chain.experts is None:
        values = values[:1]
    jobs = {value: choosing(query.cluster, query.job, {name: value}) for value in values}
    rules = _rules(query, name)
    jobs = {value: job for value, job in jobs.items() if not any(
        _fixed(rule, name) and _broken(query, rule, job) for rule in rules)} or jobs
    if len(jobs) < 2:
        return [*map(Value, jobs)] or [Value(None)]
    costs = {value: _costs(query, job, name) for value, job in jobs.items()}
    left = {value: Value(value) for value in jobs}
    for value in reversed(jobs):  # of equals the first stays
        for one in left:
            if one == value or not _no_worse(query, jobs[one], jobs[value], costs[one],
                                             costs[value]):
                continue
            more = [rule for rule in rules if not _fixed(rule, name)
                    and not _alike(rule, name, jobs[one], jobs[value])]
            bounds = _outside(query, more)
            if bounds is not None:
                left[value] = Value(value, bounds)
            if not more:
                del left[value]
                break
    return [*left.values()]


def _rules(query: Query, name: ChoiceName) -> list[Rule]:
    """Rules about a choice; where plans may break others, those of the model and the job alone."""
    known = query.job.stack.capabilities
    rules = [rule for rule in (known.rules.values() if known is not None else ()) if (
        query.rules is not None or {*rule.fields, *rule.when} <= {*JOB, *CHOICES})]
    offload = {"offload_modules", "offload_layers", "offload_optimizer"}
    return [rule for rule in rules if name in (*rule.fields, *rule.when) and not (
        query.space.offload == ("none",) and offload & {*rule.fields})]


def _fixed(rule: Rule, name: ChoiceName) -> bool:
    """Whether a rule about a choice is otherwise about the model and the job alone."""
    return {*rule.fields, *rule.when} - {name} <= {*JOB}


def _broken(query: Query, rule: Rule, job: Job) -> bool:
    figures = model_figures(query.chain, job)
    return applies(rule, figures) and any(wrong(rule, field, figures) for field in rule.fields)


def _outside(query: Query, rules: list[Rule]) -> Mapping[str, IntSet] | None:
    """Bounds of the plans that one rule forbids; None: there are several, or other figures."""
    if len(rules) != 1 or rules[0].fields != ("etp",) or rules[0].allowed != IntSet.of(1):
        return None
    given = query.space.etp
    left = [(max(low, 2), high) for low, high in (given.ranges if given else ((2, LARGEST),))
            if high > 1]
    return {"etp": IntSet(tuple(left))} if left else None


def _no_worse(query: Query, one: Job, other: Job, costs: Costs, others: Costs) -> bool:
    """Whether plans under a job are never slower nor larger than under another."""
    ways = one.stack.dispatcher, other.stack.dispatcher
    if query.chain.experts is not None and len({*ways}) > 1 and ways != ("hybridep", "deepep"):
        return False  # one rate is not limited; of the others it depends on the network
    return all(bool(np.all(value <= others.get(key, 0.0))) for key, value in costs.items())


def _alike(rule: Rule, name: ChoiceName, one: Job, other: Job) -> bool:
    """Whether a rule that names a choice forbids the first job nothing that it allows the other."""
    figures = [_figure(job, name) for job in (one, other)]
    if name in rule.when:
        inside = [figure in rule.when[name] for figure in figures]
        return inside[1] or not inside[0]
    inside = [figure in (rule.allowed or figures) for figure in figures]
    return inside[0] or not inside[1]


def _figure(job: Job, name: ChoiceName) -> str:
    value = getattr(job.stack, name, "")
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def _costs(query: Query, job: Job, name: ChoiceName) -> Costs:
    """What choices change of prices, but for dispatchers: less is never slower nor larger.

    Computing of each kind of layer over all degrees that a device can have, by the modules that
    may run it again; waits for the host; bytes of memory and of parameters on their way; the share
    of tensor-parallel traffic that is not hidden.
    """
    stack, experts = job.stack, query.chain.experts is not None
    found: Costs = {"stack": np.array([
        *(stack.host(experts, job.counted) if experts else ()), stack.reserved,
        recipe(job).gathered, 1.0 - stack.overlap_tp])}
    if name not in COMPUTING:
        return found
    degrees = _degrees(query)
    for number, setting in enumerate(settings(query.cluster, job)):
        for kind in query.chain.kinds:
            every = shares(kind, degrees, setting)
            _, backward, again = compute_seconds(
                kind, degrees, setting, every, tokens_of(kind, degrees, setting)[0])
            found[number, kind.name, "backward"] = backward
            found |= {(number, kind.name, bits): part for bits, part in again.items()}
            if name == "loss" and any(op.loss for op in kind.operators):
                saved, _, live, _ = saved_bytes(kind, degrees, setting, every)
                found[number, kind.name, "kept"] = sum(saved.values(), 0.0 * live)
                found[number, kind.name, "live"] = live
    return found


def _degrees(query: Query) -> Body:
    """Sizes of a device's share that a plan may have: samples, tp, cp, ep and etp."""
    size, experts = query.cluster.size, query.chain.experts
    many = divisors(experts.experts) if experts is not None else [1]
    heads = [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= size]
    rows = np.array([*product((1, 2, 4, 8), heads, (1, 2, 4, 8, 16, 32, 64), many,
                              heads if experts is not None else [1])], dtype=np.int64)
    samples, tp, cp, ep, etp = rows.T
    none: Any = None
    return Body(samples, tp, tp > 1, cp, np.ones_like(tp), tp < 1, ep, etp, np.zeros_like(tp),
                none, none, none, none, none)
