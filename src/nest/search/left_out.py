"""What a search leaves out of the plans that `evaluate` prices, for the certificate of a plan.

What is left out because another plan is no slower is not listed: docs/proofs.md, Lemma 20
(candidates) and others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from nest.costs.network.placement import strides
from nest.evaluation.plans import LeftOut
from nest.inputs.capabilities import Capabilities
from nest.inputs.choices import CHOICES
from nest.model.legality import divisors
from nest.schedules.registry import BEYOND, SCHEDULES, UNLIKE
from nest.search.branch_and_bound import parts_of
from nest.search.candidates import Candidates
from nest.search.cut_lists import LONGEST, MOST_WAYS, any_cuts, is_free
from nest.search.policies import policies_of, runnable_policies
from nest.search.runnable import TIMES, Pipeline, larger_groups
from nest.search.tensors import Formulation

SETTINGS = ("block", "dp_in", "tp", "sp", "cp", "cp_comm", "ep", "etp", "zero", "shard",
            "recompute", "recompute_modules", "recompute_layers")
"""Settings that each stage has of its own."""


def left_out(f: Formulation, rules: Capabilities | None) -> tuple[LeftOut, ...]:
    """What the search of a formulation leaves out.

    Parameters
    ----------
    f : of the whole space.
    rules : of the stack, if its space alone is searched.
    """
    if f.query.waits is not None:  # all that is searched, in whichever part
        f = replace(f, part=parts_of(f.query.replace(waits=None))[-1])
    found = dict[str, str]()
    chain, space = f.query.chain, f.query.space
    for part in (_stages(f, rules), _schedules(f, rules), _cuts(f, rules),
                 _modules(f, rules), _places(f)):
        for figure, sentence in part:
            found.setdefault(figure, sentence)
    if rules is not None and rules.offload and space.offload == ("none",):
        found["offload"] = "what the space does not name in the memory of the hosts"
    job, named = f.query.job, []
    for name in CHOICES if chain.experts is not None else ("loss",):
        known = (job.stack.choices.get(name) or {}).items()
        named += [f"{name} {value}" for value, one in known
                  if one.named and getattr(space, name) is None
                  and all(one.is_on(device.name) for device in f.query.cluster.device_types)]
    if named:
        found["choices"] = f"{', '.join(named)}, which need other software"
    if not chain.is_chain and rules is not None:
        found["order"] = "stages of layers that do not follow each other in the model"
    return tuple(LeftOut(figure=figure, sentence=sentence) for figure, sentence in found.items())


def _piped(f: Formulation) -> list[Pipeline]:
    return [one for one in f.part.pipelines if one.pp > 1]


def _stages(f: Formulation, rules: Capabilities | None) -> Iterator[tuple[str, str]]:
    """Settings in which the rules of a stack let stages differ."""
    if rules is None or not _piped(f):
        return
    alike = {name for rule in rules.rules.values() if rule.alike and not rule.when
             for name in rule.fields}
    may = [name for name in SETTINGS
           if name not in alike and _has_choice(f.choices.candidates, name)]
    if may:
        yield "stages", f"stages that differ in {', '.join(may)}"


def _has_choice(candidates: Candidates, name: str) -> bool:
    splits = candidates.splits
    return name != "cp_comm" or len({*splits.form[splits.cp > 1].tolist()}) > 1


def _schedules(f: Formulation, rules: Capabilities | None) -> Iterator[tuple[str, str]]:
    """Schedules, and groups of micro-batches."""
    space, known = f.query.space, {one.schedule for one in f.part.pipelines}
    if space.schedule is None and rules is None:
        names = [name for name in SCHEDULES if name not in {*space.schedules, *BEYOND}]
        yield "schedule", f"{', '.join(names)}, which the space does not name" + (
            ", but as the stack can run them" if f.query.job.stack.capabilities else "")
    elif rules is not None and space.allows("pp", 1) and {*UNLIKE} <= known:
        yield "schedule", f"{UNLIKE[1]} of a single stage"
    larger = larger_groups(rules)
    if space.group is None and larger and any(
            one.times in TIMES[1:] or one.vpp > 1 for one in _piped(f)):
        yield "group", ("more micro-batches that pass a chunk in a row than the fewest from "
                        f"{' and from '.join(f'{n} x pp' if n > 1 else 'pp' for n in TIMES)} on")


def _cuts(f: Formulation, rules: Capabilities | None) -> Iterator[tuple[str, str]]:
    """Divisions of the layers."""
    chain, piped = f.query.chain, _piped(f)
    chunked = [one for one in piped if one.schedule not in UNLIKE]
    runnable = f.layouts.runnable
    listed = [one for one in piped if runnable.lists(one)] if runnable.asks_layouts else []
    asked = [one for one in listed if not any_cuts(chain, one)]
    free = [one for one in chunked if is_free(runnable.about_cuts(one))]
    first, last = chain.body
    ends = math.comb(first, first // 2) * math.comb(len(chain) - last, (len(chain) - last) // 2)
    if rules is None and chunked:
        yield "cuts", "chunks of unequal sizes" + (
            ", but those that the stack can run" if f.query.job.stack.capabilities else "")
    elif (free or asked) and len(chain) > LONGEST:
        yield "cuts", (f"of {_names(free + asked)}: chunks that differ by more than a layer "
                       f"(chains of more than {LONGEST} layers)")
    elif free or asked:
        yield "cuts", f"of {_names(free + asked)}: divisions outside the family of docs/layouts.md"
    elif len(chunked) + len(listed) < len(piped) and ends > MOST_WAYS and not all(
            is_free(runnable.about_cuts(one)) for one in piped):
        yield "cuts", ("chunks without transformer layers, where more than "
                       f"{MOST_WAYS:,} divisions have them")


def _names(pipelines: list[Pipeline]) -> str:
    return ", ".join(dict.fromkeys(one.schedule for one in pipelines))


def _modules(f: Formulation, rules: Capabilities | None) -> Iterator[tuple[str, str]]:
    """Sets of modules that are recomputed only where the space names them."""
    chain, space, stack = f.query.chain, f.query.space, f.query.job.stack
    every = chain.modules_under(stack) if rules is None else chain.further_modules
    more = [name for name in every if name not in chain.modules]
    if space.recompute_modules is not None or not more:
        return
    named = policies_of(chain, space.replace(recompute_modules=tuple(more)), stack)
    usual = policies_of(chain, space, stack)
    if rules is not None:
        named = runnable_policies(named, rules, f.query)
    if {*named} - {*usual}:
        yield "recompute_modules", f"sets with {', '.join(more)}, which the space does not name"


def _places(f: Formulation) -> Iterator[tuple[str, str]]:
    """Devices of the stages."""
    cluster, space = f.query.cluster, f.query.space
    idle = any(
        outer_dp * stride < cluster.size
        for outer_dp in divisors(f.query.job.global_batch)
        if outer_dp <= cluster.size and space.allows("outer_dp", outer_dp)
        for stride in strides(cluster.size, outer_dp, cluster.group_sizes))
    if idle:
        yield "stride", "replicas that start elsewhere than an even share of the devices apart, " \
                        "rounded down to whole groups"
    if cluster.links is not None:
        yield "devices", "orders of the devices, but those that were tried"
