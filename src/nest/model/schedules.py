"""What a pipeline schedule asks of a configuration, and where in the model its chunks are.

Schedules priced as the longest path through their order of passes (:mod:`nest.forms.passes`), but
``interleaved``, whose rules are in :mod:`nest.model.legality`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
from nest.model.chain import Chain

Placement = Literal["looped", "folded", "crossed"]
"""Where in the model the chunks of stages are: around the pipeline; in a V, 0, 1, ..., p - 1,
p - 1, ..., 1, 0; or twice, 0, 1, ..., p - 1 and p - 1, ..., 1, 0, with micro-batches from both
ends."""


class Rules(NamedTuple):
    """Of a schedule."""

    least_chunks: int
    """Chunks a stage."""
    most_chunks: int
    placement: Placement = "looped"
    most_zero: int = 2
    """Largest ZeRO stage: parameters that are gathered for every pass are not priced between the
    parts of a backward."""
    grouped: bool = False
    """Micro-batches pass a chunk in groups (``group``)."""
    rounds: int = 0
    """Micro-batches at the least, in multiples of the stages."""


MANY = 10**4
RULES = {
    "looped-bfs": Rules(2, MANY, most_zero=3),
    "zb1p": Rules(1, 1),
    "interleaved-zb": Rules(2, MANY, grouped=True),
    "zb-v": Rules(2, 2, "folded"),
    "dualpipev": Rules(2, 2, "folded", rounds=2),
    "dualpipe": Rules(2, 2, "crossed", most_zero=1, rounds=2),
    "combined": Rules(1, MANY, most_zero=1, grouped=True),
}


def most_zero(schedule: str) -> int:
    """Largest ZeRO stage that is priced under a schedule."""
    return RULES[schedule].most_zero if schedule in RULES else 3


def is_grouped(schedule: str, vpp: int) -> bool:
    """Whether micro-batches pass the chunks of a schedule in groups."""
    return vpp > 1 and (schedule == "interleaved" or (
        schedule in RULES and RULES[schedule].grouped))


def chunk_counts(schedule: str, pp: int, most: int) -> range:
    """Chunks that a stage of a pipeline of ``pp`` stages may have; up to ``most`` of each copy."""
    if copies(schedule) > 1 and pp % 2:
        return range(0)
    if schedule == "combined":
        return range(1, 2) if pp == 1 else range(2, most + 1)
    if pp == 1:
        return range(1, 2) if schedule in ("1f1b", "gpipe") else range(0)
    if schedule == "interleaved":
        return range(2, most + 1)
    if schedule not in RULES:
        return range(1, 2)
    return range(RULES[schedule].least_chunks,
                 min(RULES[schedule].most_chunks, copies(schedule) * most) + 1)


def most_chunks(schedule: str) -> int:
    """Most chunks of a stage."""
    if schedule in RULES:
        return RULES[schedule].most_chunks
    return MANY if schedule == "interleaved" else 1


def placement(schedule: str) -> Placement:
    """Where the chunks of a schedule are."""
    return RULES[schedule].placement if schedule in RULES else "looped"


def is_folded(schedule: str) -> bool:
    """Whether the chunks of a schedule are placed in a V."""
    return placement(schedule) == "folded"


def copies(schedule: str) -> int:
    """Copies of the model that the stages of a pipeline hold together.

    Each has its part of the micro-batches.
    """
    return 2 if placement(schedule) == "crossed" else 1


def twin(schedule: str, pp: int, stage: int) -> int | None:
    """The stage that holds the same layers; None: there is one copy of the model."""
    return pp - 1 - stage if copies(schedule) > 1 else None


def usual_chunks(schedule: str) -> int:
    """Chunks of a stage where nothing is said of them."""
    fixed = schedule in RULES and RULES[schedule].least_chunks == RULES[schedule].most_chunks
    return RULES[schedule].least_chunks if fixed else 1


def position(schedule: str, pp: int, stage: int, chunk: int, vpp: int) -> int:
    """Place in the model of a chunk of a stage, 0 to pp x vpp / :func:`copies` - 1."""
    at = placement(schedule)
    if at == "folded" and chunk == 1:
        return 2 * pp - 1 - stage
    if at == "crossed":  # chunk 0 is the one that its micro-batches enter first
        ends = stage, pp - 1 - stage
        return max(ends) if chunk else min(ends)
    return chunk * pp + stage


def chunks_at(cuts: Sequence[int], pp: int, schedule: str) -> list[tuple[tuple[int, int], ...]]:
    """Layers [i, j) of every chunk of every stage, given the cuts in the order of the model."""
    vpp = copies(schedule) * (len(cuts) - 1) // pp
    at = [[position(schedule, pp, s, n, vpp) for n in range(vpp)] for s in range(pp)]
    return [tuple((cuts[q], cuts[q + 1]) for q in stage) for stage in at]


def stage_behind(schedule: str, pp: int, stage: int, chunk: int, vpp: int) -> int | None:
    """The stage that a chunk hands over to; None: it is the last one of the model."""
    here, at = position(schedule, pp, stage, chunk, vpp), placement(schedule)
    if here == pp * vpp // copies(schedule) - 1:
        return None
    if at == "folded":
        return here + 1 if here + 1 < pp else 2 * pp - 2 - here
    if at == "crossed":
        return stage + 1 if here == stage else stage - 1
    return (stage + 1) % pp


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
    """Requirements of a schedule of ``RULES`` that a plan violates."""
    name, pp, vpp = plan.schedule, plan.pp, plan.vpp
    rules, first = RULES[name], plan.stages[0]
    m = job.global_batch // (plan.outer_dp * plan.micro_batch)
    if pp < 2 and not (name == "combined" and vpp == 1):
        yield f"schedule {name} needs pp above 1"
    elif not rules.least_chunks <= vpp <= rules.most_chunks:
        most = "" if rules.most_chunks == MANY else f" to {rules.most_chunks}"
        yield f"vpp: got {vpp} with schedule {name}; allowed: {rules.least_chunks}{most}"
    elif name == "combined" and pp > 1 and vpp == 1:
        yield "schedule combined needs vpp above 1 where pp is above 1"
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
        if plan.group is not None and not rules.grouped:
            yield f"group: got {plan.group} with schedule {name}, which has none"
        elif rules.grouped and vpp > 1:
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


def _stage_problems(plan: Configuration, rules: Rules) -> Iterator[str]:
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
