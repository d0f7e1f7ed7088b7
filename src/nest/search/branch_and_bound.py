"""Branch and bound over the outer choices of a query.

The phases of a search are the parts of the space, the widest last, then the pipelines that are
searched behind each part with its prices. Each phase is one tree
(:class:`nest.search.tree.Tree`), visited below the incumbent: the best plan of the phases before
it. A draft over a part of the space may look for a first incumbent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import numpy as np

from nest.inputs.capabilities import Capabilities
from nest.inputs.cluster import Cluster
from nest.inputs.space import SearchSpace
from nest.schedules.registry import UNLIKE, copies
from nest.search import compiled
from nest.search.alike import pipelines
from nest.search.cache import Cache, Identity
from nest.search.combined import COMBINED, combined
from nest.search.draft import draft_of
from nest.search.dualpipe import dualpipe
from nest.search.formulating import formulate
from nest.search.layer_prices import Map
from nest.search.query import Control, Query
from nest.search.runnable import Pipeline, SpacePart
from nest.search.solution import TIE, Effort, SearchResult, Solution
from nest.search.tensors import Formulation
from nest.search.threads import Alone, thread_count
from nest.search.tree import Tree, Workers

Derive = Callable[[Formulation, Sequence[Pipeline], float, Cache], Formulation]
"""Other pipelines on the outer choices and prices of a formulation, below a limit."""


class Phase(NamedTuple):
    """A part of the space that is searched as one tree."""

    formulated: Callable[[float], Formulation]
    """Its formulation, given seconds that a plan has to stay below."""
    whole: bool = False
    """Bounds of its plans are bounds of the whole space, as far as progress is reported."""
    draft: SearchSpace | None = None
    """A space that is searched first if there is no incumbent."""


def search_one(
    query: Query, control: Control | None = None, below: float = np.inf, any_plan: bool = False
) -> SearchResult:
    """Best configuration of a space with one way of using the memory of hosts.

    Parameters
    ----------
    query : the space's ``offload`` does not count here, but in
        :func:`nest.search.ways.search`.
    control : when ``watch`` ends the search early, the best plan so far is returned.
    below : search only for plans that take fewer seconds per step.
    any_plan : stop at the first plan that fits.

    Returns
    -------
    SearchResult
        ``configuration`` is None when nothing in the space fits, or was found in time.
    """
    control = control or Control()
    kernels, compile_seconds = compiled.load(entries(query.rules is not None, query.cluster))
    control.watch.excuse(compile_seconds)
    control.watch.begin()
    started, threads = time.perf_counter(), control.threads or thread_count()
    with pool_of(threads, control.watch.waits) as pool:
        workers = Workers(kernels, pool, control.watch, np.zeros(3, dtype=np.int64))
        incumbent: Solution | None = None
        trees = list[Tree]()
        for phase in _phases(query, control, pool.map, any_plan, below):
            limit = below if incumbent is None else incumbent.step_time
            tree = Tree(phase.formulated(np.inf if query.top > 1 else limit), workers,
                        part=not phase.whole)
            trees.append(tree)
            if any_plan:
                tree.prune_by_memory()
                incumbent = tree.any()
                if incumbent is not None:
                    break
                continue
            if phase.draft is not None and incumbent is None:
                draft = formulate(
                    query.replace(space=phase.draft), SpacePart(), control.cache, pool.map)
                incumbent = Tree(draft, workers, part=True).first()
                if incumbent is None:
                    tree.prune_by_memory()
            tree.sort_near(incumbent)
            incumbent = tree.best(incumbent, below)
        others, proved = list[Solution](), True
        if incumbent is not None and query.top > 1 and not any_plan:
            for tree in trees:
                others, sure = tree.others(incumbent, query.top, others)
                proved = proved and sure
    effort = Effort(
        time.perf_counter() - started, compile_seconds, threads,
        sum(len(tree.solved) for tree in trees), 0, *workers.counts.tolist())
    return _found(incumbent, trees, effort)._replace(
        others=[(other.step_time, other.configuration()) for other in others],
        others_proved=proved)


def _found(best: Solution | None, trees: list[Tree], effort: Effort) -> SearchResult:
    """The best plan, and what all trees prove of it."""
    least = np.inf if best is None else best.step_time
    bound = min(tree.lower_bound() for tree in trees)
    whole, = (tree.formulation for tree in trees if not tree.part)
    return SearchResult(
        step_time=least, configuration=None if best is None else best.configuration(),
        lower_bound=least if bound * TIE >= least else bound, others=[], others_proved=True,
        effort=effort._replace(pruned=sum(len(tree.pruned(least)) for tree in trees)),
        formulation=whole)


@contextmanager
def pool_of(threads: int, waits: bool = True) -> Iterator[Executor]:
    """Threads; nobody waits for a kernel that was stopped: it ends by itself.

    ``waits``: somebody may stop one, so that the asking thread has to look at the clock.
    """
    pool: Executor = ThreadPoolExecutor(threads) if waits or threads > 1 else Alone()
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def entries(own: bool, cluster: Cluster) -> tuple[str, ...]:
    """Kernels that a search needs, of the space of a stack or of everything."""
    return (*compiled.ALIKE, *(() if own else compiled.UNLIKE),
            *(() if cluster.links is None else compiled.LINKS))


def _even(devices: int) -> bool:
    """Whether alike stages can share so many devices; if not, stages that differ gain most."""
    for prime in (2, 3, 5, 7):
        while devices % prime == 0:
            devices //= prime
    return devices == 1


# ------------------------------------------------------------ phases


def _phases(
    query: Query, control: Control, each_of: Map, any_plan: bool, below: float
) -> list[Phase]:
    """Phases in the order of their search; ``any_plan``: the widest part first."""
    parts = control.cache.of(
        ("parts", Identity(query.chain), query.cluster.size, query.job, query.space,
         query.beyond_stack, query.waits), lambda: parts_of(query))
    base = cache(lambda part: formulate(query, part, control.cache, each_of))

    def phase(part: SpacePart) -> Phase:
        return Phase(lambda _: base(part), whole=part is parts[-1])

    def behind(part: SpacePart, derive: Derive, combines: bool) -> list[Phase]:
        listed = [one for one in part.later if (one.schedule == COMBINED) == combines]
        return [Phase(lambda limit: derive(base(part), listed, limit, control.cache))
                ] if listed else []

    found = [phase(part) for part in (reversed(parts) if any_plan else parts)]
    if below == np.inf and not any_plan and not parts[-1].own and query.waits is None:
        early = query.chain.experts is None and not _even(query.cluster.size)
        at = 0 if early else -1
        found[at] = found[at]._replace(draft=draft_of(query.space, query.chain))
    for part in parts:
        found += [*behind(part, combined, True), *behind(part, dualpipe, False)]
    return found


def parts_of(query: Query) -> list[SpacePart]:
    """Parts of the space that are searched one by one; the widest comes last.

    Everything holds the stack's own space: what the search of unlike stages and equal chunks
    lacks of it is a part of its own.
    """
    chain, space, devices = query.chain, query.space, query.cluster.size
    rules = query.job.stack.capabilities

    def listed(own: bool, *known: Capabilities) -> list[Pipeline]:
        return [one for one in pipelines(chain, space, devices, own, *known)
                if query.may_be(one.schedule, one.pp)]

    every = _part(None, [one for one in listed(False)
                         if copies(one.schedule) == 1 or query.job.optimizer != "muon"])
    if rules is None:
        return [every]
    own = listed(True, rules)
    if not query.beyond_stack:
        return [_part(rules, own)]
    more = [one for one in own
            if one.schedule not in UNLIKE or one.schedule not in space.schedules]
    return [_part(rules, more), every] if more else [every]


def _part(rules: Capabilities | None, listed: list[Pipeline]) -> SpacePart:
    """Pipelines with several copies of the model, and those whose passes run beside each other, are
    searched behind all others: then most of their candidates are pruned."""
    one = [pipeline for pipeline in listed if copies(pipeline.schedule) == 1]
    first = tuple(pipeline for pipeline in one if pipeline.schedule != COMBINED) or tuple(one)
    at_once = {*first}
    return SpacePart(rules, first, tuple(one for one in listed if one not in at_once))
