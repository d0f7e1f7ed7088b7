"""Arguments that a plan decides: what a command line says of them, and what it should say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from nest.errors import UnsupportedError
from nest.evaluation.plans import Plan
from nest.frameworks.megatron import write as megatron
from nest.frameworks.megatron.write import (
    SECTIONS,
    is_fsdp,
    memory_figures,
    parallel_figures,
    training_figures,
)
from nest.frameworks.settings import Words, known, settings, words
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job

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
