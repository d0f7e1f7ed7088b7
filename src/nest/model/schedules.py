"""Which configurations a pipeline schedule allows, and why not.

``interleaved`` and schedules of one chunk a stage: :mod:`nest.model.legality`.
"""

from __future__ import annotations

from collections.abc import Iterator

from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
from nest.model.chain import Chain
from nest.schedules.registry import SCHEDULES, copies, has_groups, position
from nest.schedules.traits import MANY, Traits


def group_of(plan: Configuration) -> int:
    """Micro-batches that pass a chunk in a row."""
    return plan.pp if plan.group is None else plan.group


def missing(plan: Configuration, micro_batches: int) -> int:
    """Micro-batches that the last group has fewer than stages."""
    rest = micro_batches % group_of(plan)
    return max(0, plan.pp - rest) if rest else 0


def group_problems(plan: Configuration, micro_batches: int) -> Iterator[str]:
    """Why micro-batches cannot pass the chunks in such groups.

    In groups smaller than the stages, passes may wait for each other (Megatron-Core 0.16.1,
    megatron/core/pipeline_parallel/schedules.py, lines 997 and 1007). All micro-batches may be
    one group.
    """
    group, pp = plan.group, plan.pp
    if group is None:
        if micro_batches % pp:
            yield (f"schedule {plan.schedule} needs pp {pp} to divide the {micro_batches} "
                   "micro-batches of a step, or a group")
    elif not min(pp, micro_batches) <= group <= micro_batches:
        yield (f"group: got {group}; allowed: {min(pp, micro_batches)} to {micro_batches}, the "
               "micro-batches of a step")
    elif missing(plan, micro_batches):
        yield (f"group: {group} leaves {micro_batches % group} of the {micro_batches} "
               f"micro-batches of a step; allowed: none, or at least pp {pp}")


def path_problems(chain: Chain, job: Job, plan: Configuration) -> Iterator[str]:
    """Requirements of a schedule with an order of passes that a plan violates."""
    name, pp, vpp = plan.schedule, plan.pp, plan.vpp
    rules, first = SCHEDULES[name], plan.stages[0]
    m = job.global_batch // (plan.outer_dp * plan.micro_batch)
    if pp < 2 and not (rules.alone and vpp == 1):
        yield f"schedule {name} needs pp above 1"
    elif pp > 1 and not rules.least_chunks <= vpp <= rules.most_chunks:
        most = "" if rules.most_chunks == MANY else f" to {rules.most_chunks}"
        yield f"vpp: got {vpp} with schedule {name}; allowed: {rules.least_chunks}{most}"
    elif not chain.is_chain:
        yield f"schedule {name} needs a chain; {chain.name} has branches"
    elif m < rules.rounds * pp:
        yield f"schedule {name} needs {rules.rounds} x pp {pp} micro-batches a step; here {m}"
    elif rules.placement == "crossed" and (pp % 2 or m % 2):
        yield (f"schedule {name} needs an even pp, and an even number of micro-batches, half of "
               f"them from each end; here pp {pp}, {m} micro-batches")
    elif rules.placement == "folded" and chain.model is not None and chain.model.tied_embeddings:
        yield (f"schedule {name} has embedding and head on the first stage; tied embeddings of "
               f"{chain.name} are priced on two stages only")
    else:
        if plan.group is not None and not has_groups(name):
            yield f"group: got {plan.group} with schedule {name}, which has none"
        elif has_groups(name) and vpp > 1:
            yield from group_problems(plan, m)
        yield from _stage_problems(plan, rules)
        yield from _combined_problems(chain, plan) if name == "combined" else ()
        if copies(name) > 1 and job.optimizer == "muon":  # whose matrices both copies would share
            yield f"schedule {name} with optimizer muon is not priced"
        problem = chunk_problem(chain, plan) if vpp > 1 else None
        if problem is None and copies(name) > 1:
            problem = _tables_problem(chain, plan)
        if problem is not None:
            yield problem
    if first.zero > rules.most_zero:
        yield (f"stages.0.zero: got {first.zero} with schedule {name}; allowed: up to "
               f"{rules.most_zero}")


def _stage_problems(plan: Configuration, rules: Traits) -> Iterator[str]:
    first = plan.stages[0]
    size = first.devices[1] - first.devices[0]
    for number, stage in enumerate(plan.stages):
        same = {"layers": stage.layers, "chunks": stage.chunks,
                "devices": (number * size, (number + 1) * size)}
        if stage != first.unchecked(**same):
            yield (f"stages.{number}: differs from stage 0; stages have equal blocks and degrees "
                   f"with schedule {plan.schedule}")


def _combined_problems(chain: Chain, plan: Configuration) -> Iterator[str]:
    """Rules of Megatron-Core 0.16.1 (its TransformerConfig with EP A2A overlap)."""
    first = plan.stages[0]
    if first.ep < 2:
        yield f"schedule combined needs ep above 1; here {first.ep}"
    if first.recompute == "full" or "moe" in first.recompute_modules:
        yield "schedule combined excludes recompute full, and of moe"
    if chain.model is not None and chain.model.mtp_layers > 1:
        yield (f"schedule combined needs at most one layer of multi-token prediction; "
               f"{chain.model.name} has {chain.model.mtp_layers}")


def _tables_problem(chain: Chain, plan: Configuration) -> str | None:
    """Which layer has a table of the vocabulary in common with others, and is not with them.

    The first and the last stage hold both ends of the model, and one table for all layers there
    (arXiv:2412.19437, section 3.2.3).
    """
    first, last = plan.stages[0].chunks[0], plan.stages[0].chunks[-1]
    for number, kind in enumerate(chain.order):
        if chain.kinds[kind].tied_parameters and first[1] <= number < last[0]:
            return (f"schedule {plan.schedule}: layer {number} ({chain.kinds[kind].name}) has a "
                    "table of the vocabulary in common with others; allowed: in the first and the "
                    "last chunk of the model, which share a stage")
    return None


def chunk_problem(chain: Chain, plan: Configuration) -> str | None:
    """Where the chunks do not follow each other from the first to the last layer; None: they do.

    A chunk may hold any layers, or none.
    """
    for number, stage in enumerate(plan.stages):
        if len(stage.chunks) != plan.vpp:
            return (f"stages.{number}.chunks: got {len(stage.chunks)} chunks; allowed: "
                    f"vpp {plan.vpp}")
    placed = sorted((position(plan.schedule, plan.pp, s, n, plan.vpp), s, n)
                    for s in range(plan.pp) for n in range(plan.vpp))
    at, first, before = 0, 0, ""
    for number, (_, s, n) in enumerate(placed):
        start, stop = plan.stages[s].chunks[n]
        if number % copies(plan.schedule):  # another copy of the chunk in front
            if (start, stop) != (first, at):
                return (f"stages.{s}.chunks.{n}: got [{start}, {stop}); allowed: [{first}, {at}), "
                        "of which it is another copy")
            continue
        first = start
        if start != at:
            return (f"stages.{s}.chunks.{n}: got [{start}, {stop}); allowed: to start at layer "
                    f"{at}{before}")
        at, before = stop, f", where stages.{s}.chunks.{n} ends"
    if at != len(chain):
        return (f"stages.{s}.chunks.{n}: ends at {at}; allowed: {len(chain)}, the number of layers "
                f"of {chain.name} with embedding and head")
    return None
