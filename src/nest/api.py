"""The public functions :func:`plan`: search, confirm, report; and :func:`plan_batches`.

:class:`Planner` does the same for many questions.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack, get_args

from nest.costs.memory import memory_problem
from nest.errors import InfeasibleError, InputError, KernelError, LimitError, NoFasterError
from nest.evaluation.confidence import preferred
from nest.evaluation.evaluate import chain_of, need_question, priced
from nest.evaluation.plans import Plan, SearchReport
from nest.inputs.arguments import (
    need,
    need_bytes,
    need_count,
    need_seconds,
    need_word,
    takes,
)
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
from nest.inputs.model import Model
from nest.inputs.profile import Profile
from nest.inputs.space import Preference, SearchSpace
from nest.model import Chain
from nest.model.legality import divisors, sequence_problem, space_problems
from nest.network.network import other_fillings, other_orders
from nest.stacks import cannot_offload, choice_problems
from nest.units import format_seconds, shorten

if TYPE_CHECKING:
    from nest.questions import Question
    from nest.search.cache import Cache
    from nest.search.progress import Follower
    from nest.search.query import Control, Query
    from nest.search.solution import SearchResult

MOST_BATCHES = 1000
"""Batches that one question may ask for."""
PLANNER_MEMORY = 256 * 2**20
"""Bytes that a planner keeps by default: some ten families of near questions (chosen)."""
PREFERRED = 8
"""Distinct plans from which a measured one is preferred (chosen)."""
NEAR = 1.0 + 1e-8
"""A plan that is known is found below its price times this."""
TOLERANCE = 1e-9
"""Relative difference between the search and ``evaluate`` above which the search is wrong."""


class Options(TypedDict, total=False):
    """Arguments of :func:`plan` by name."""

    threads: int | None
    top: int
    time_limit: float | None
    reorder: bool
    fillings: bool
    beyond_stack: bool
    near_batches: bool
    prefer: Preference
    progress: Follower | None


def plan(
    model: Model | Profile,
    cluster: Cluster,
    job: Job,
    space: SearchSpace | None = None,
    *,
    threads: int | None = None,
    top: int = 1,
    time_limit: float | None = None,
    reorder: bool = True,
    fillings: bool = False,
    beyond_stack: bool = False,
    near_batches: bool = False,
    prefer: Preference = "fastest",
    progress: Follower | None = None,
) -> Plan:
    """Find the fastest configuration of a space that fits, and price it.

    Parameters
    ----------
    model, cluster, job : what is trained, where, how.
    space : what may be chosen; default: everything legal.
    threads : number of threads; the plan does not depend on it.
    top : how many distinct plans to look for, at most 100; those after the best are its
        ``alternatives``. They differ in outer_dp, micro_batch, pp, vpp or schedule, and not in
        names alone: docs/proofs.md, Lemma 6 (distinct plans). Each is the best with its values.
    time_limit : seconds of searching after which the best plan so far is returned, with its gap;
        compiling the kernels, once for each version on a machine, comes before.
    reorder : where the cluster has links, try other orders of its devices too, and take the order
        with the fastest plan: it is in the ``inputs`` of the plan. Devices of several types are
        distributed over the super-pipelines in this way: all orders of the types are tried for each
        number of super-pipelines.
    fillings : where groups are partly used, try whole groups and about even ones too
        (:mod:`nest.inputs.filling`), and take those with the fastest plan.
    beyond_stack : search what the job's stack cannot run too: stages of their own block and
        degrees each. False: only what it can run, where that is known; all stages are alike then.
    near_batches : where the batch is no multiple of the devices, look for one near it that takes
        less time per sequence: ``better_batch`` of the plan. The plan is not affected.
    prefer : measured: of the fastest plans that the error of prices does not tell apart, take the
        one with the nearest evidence, then the one that holds the least memory; up to
        ``PREFERRED`` distinct plans are looked at.
    progress : called about ten times a second with a :class:`nest.search.progress.Progress`.
        Returning False ends the search with the best plan so far, as the time limit does; what it
        raises is passed on.

    Returns
    -------
    Plan
        Confirmed by :func:`nest.evaluate`; optimal over ``space`` unless the time limit ended the
        proof.

    Raises
    ------
    InputError
        Model, cluster and job are incompatible, or an argument is not allowed.
    InfeasibleError
        Nothing in the space fits, which is proved; carries the nearest miss.
    LimitError
        No plan was found before the time limit or ``progress`` ended the search.
    KernelError
        The search and ``evaluate`` disagree: a defect of NEST.
    """
    return Planner(0).plan(
        model, cluster, job, space, threads=threads, top=top, time_limit=time_limit,
        reorder=reorder, fillings=fillings, beyond_stack=beyond_stack, near_batches=near_batches,
        prefer=prefer,
        progress=progress)


class OfUse(NamedTuple):
    """Plans of a question that are of use to whoever asks; by default all are."""

    below: float = math.inf
    """Seconds of a step that a plan has to stay below."""
    floor: float = 0.0
    """Seconds that no plan takes less than, as is known already."""
    within: float = 0.0
    """A plan that takes at most this share longer than ``floor`` is good enough."""


class Planner:
    """Plans as :func:`plan` does, and keeps what near questions share.

    It pays where one model or one cluster is asked about again: a sweep, a scheduler, a server.
    What is kept is made of parts of the question alone, so that the answer is that of :func:`plan`
    bit for bit, whatever was asked before, but for the seconds and the effort in ``search``.

    Parameters
    ----------
    memory : bytes that it may keep between two questions; those used least recently go first. A
        question may take more while it is answered. 0: nothing is kept.

    Raises
    ------
    InputError : ``memory`` is no number from 0 on.

    Notes
    -----
    One question at a time: those of other threads wait. What follows the progress of a question
    must not ask another one, nor wait for a thread that does.
    """

    def __init__(self, memory: int = PLANNER_MEMORY) -> None:
        from nest.search.cache import Cache

        need_bytes("memory", memory)
        self._cache, self._lock, self._asked = Cache(int(memory)), RLock(), False

    @property
    def memory(self) -> int:
        """Bytes that it may keep."""
        return self._cache.most

    @property
    def held(self) -> int:
        """Bytes that it keeps now, at most ``memory``."""
        return self._cache.size

    def plan(
        self, model: Model | Profile, cluster: Cluster, job: Job,
        space: SearchSpace | None = None, **options: Unpack[Options],
    ) -> Plan:
        """The fastest configuration; arguments and errors are those of :func:`plan`.

        Raises
        ------
        InputError : besides, where its own ``progress`` asks it while it answers.
        """
        return self.answer(_question(model, cluster, job, space, options),
                           options.get("threads"), options.get("progress"))

    @takes(progress="function")
    def answer(
        self, question: Question, threads: int | None = None, progress: Follower | None = None,
        of_use: OfUse = OfUse(),  # noqa: B008
    ) -> Plan:
        """The plan that a question asks for; errors are those of :func:`plan`.

        Raises
        ------
        NoFasterError : besides, no plan takes fewer seconds than ``of_use`` says.
        """
        with self._lock:
            if self._asked:
                raise InputError("planner: is asked by the progress of its own question; allowed: "
                                 "nest.plan or another nest.Planner there, or after the answer")
            self._asked = True
            try:
                return _planned(
                    question, _control(question, threads, progress, self._cache), of_use)
            finally:
                self._asked = False
                self._cache.settle()


class WarmStart:
    """The plan that answered the last question of a family."""

    configuration: Configuration | None = None


class _Priced(NamedTuple):
    """A warm start, and its plan with the prices of today; None: there is none, or it does not fit.
    """

    start: WarmStart
    plan: Plan | None

    @property
    def limit(self) -> float:
        """Seconds below which it is found again."""
        return math.inf if self.plan is None else self.plan.step_time_s * NEAR


def _question(
    model: Model | Profile, cluster: Cluster, job: Job, space: SearchSpace | None,
    options: Options,
) -> Question:
    """The question that arguments ask, checked."""
    need_question(model, cluster, job)
    space = SearchSpace() if space is None else space
    need("space", space, (SearchSpace,), "nest.SearchSpace(tp=8)")
    if unknown := [*options.keys() - Options.__annotations__.keys()]:
        raise TypeError(f"plan() got an unexpected keyword argument {unknown[0]!r}")
    if (time_limit := options.get("time_limit")) is not None:
        need_seconds("time_limit", time_limit)
    top = need_count("top", options.get("top", 1))
    from nest.questions import Question, Search

    # Its parts are checked already.
    how = {name: value for name, value in options.items() if name in Search.model_fields}
    return Question.model_construct(
        model=model if isinstance(model, Model) else None,
        profile=model if isinstance(model, Profile) else None, cluster=cluster, job=job,
        space=space, search=Search().unchecked(**how), top=top,
        near_batches=options.get("near_batches", False),
        prefer=need_word("prefer", options.get("prefer", "fastest"), get_args(Preference)))


def _control(
    question: Question, threads: int | None, progress: Follower | None, cache: Cache
) -> Control:
    """What a search may use for a question."""
    from nest.search.progress import Watch
    from nest.search.query import Control

    limit = question.search.time_limit
    return Control(None if threads is None else need_count("threads", threads),
                   Watch(math.inf if limit is None else limit, progress), cache)


def _query(question: Question, cache: Cache) -> Query:
    """What the search is asked.

    Raises
    ------
    InputError : model, cluster, job and space are incompatible.
    """
    from nest.search.query import Query

    model, cluster, job, space = (
        question.subject, question.cluster, question.job, question.space)
    chain = cache.of(("chain", model), lambda: chain_of(model))
    problems = [*_problems(chain, cluster, job, space), *choice_problems(cluster, job, space)]
    if not question.search.beyond_stack:
        problems += cannot_offload(job, space.offload)
    if problems:
        raise InputError("\n".join(problems), tuple(problems))
    return Query(chain, cluster, job, space, question.search.beyond_stack,
                 max(question.top, PREFERRED if question.prefer == "measured" else 1))


def _problems(chain: Chain, cluster: Cluster, job: Job, space: SearchSpace) -> list[str]:
    """Why nothing can be planned, whatever the stack."""
    found = [*filter(None, [sequence_problem(chain, job), memory_problem(cluster, job)])]
    return [*found, *space_problems(chain, cluster, job, space)]


def _planned(question: Question, control: Control, of_use: OfUse = OfUse()) -> Plan:  # noqa: B008
    """The fastest plan, confirmed."""
    query = _query(question, control.cache)
    warm = _warm_start(query, control.cache)
    enough = of_use.floor * (1.0 + of_use.within)
    if of_use.within and warm.plan is not None and warm.plan.step_time_s <= enough:
        gap = warm.plan.step_time_s / of_use.floor - 1.0
        return warm.plan.unchecked(lower_bound_s=of_use.floor, gap=max(gap, 0.0))
    query, found = _searched(question, query, control, warm, of_use.below)
    if found.configuration is None and of_use.below < math.inf and not control.watch.over:
        raise NoFasterError(min(found.lower_bound, of_use.below))
    if found.configuration is None:
        raise _no_plan(question, query, found, control)
    again = warm.plan is not None and found.configuration == warm.start.configuration
    warm.start.configuration = found.configuration
    best = _confirmed(query, found.configuration, found.step_time, warm.plan if again else None)
    if not query.beyond_stack and best.broken_rules:
        raise KernelError(f"the stack cannot run what was found: {best.broken_rules}")
    others = [_confirmed(query, configuration, value) for value, configuration in found.others]
    fastest = best
    if question.prefer == "measured":
        best = preferred([best, *others])
        others = [plan for plan in (fastest, *others) if plan is not best]
    alternatives = [best.alternative(plan) for plan in others[:question.top - 1]]
    better = None
    if question.near_batches:
        from nest.search.batches import better_batch

        better = better_batch(query, control, best.step_time_s)
    lower = fastest.step_time_s if found.proved else found.lower_bound
    return best.unchecked(
        optimal=found.proved and best is fastest, lower_bound_s=lower,
        gap=best.step_time_s / lower - 1.0,
        alternatives=tuple(alternatives), alternatives_proved=found.others_proved,
        better_batch=better, search=_report(query, found))


def _no_plan(
    question: Question, query: Query, found: SearchResult, control: Control
) -> InfeasibleError | LimitError:
    """Why no plan was found."""
    watch = control.watch
    if found.lower_bound == math.inf:
        from nest.explanation.infeasible import explain
        from nest.search.compiled import announce

        if announce is not None:
            announce("Nothing fits; looking for the nearest miss ...")
        return explain(question.subject, found.formulation, control, query)
    if not watch.over:
        return LimitError("no plan was found that fits into the memory of the hosts, which does "
                          "not prove that there is none: keep less there (offload)")
    when = "before the search was stopped" if watch.stopped else (
        f"in {question.search.time_limit:g} s")
    return LimitError(
        f"no plan was found {when}; the lower bound is "
        f"{format_seconds(found.lower_bound)} per step: allow more time or bound the space")


def _report(query: Query, found: SearchResult) -> SearchReport:
    """What the search did."""
    from nest.search.left_out import left_out

    return SearchReport(
        **found.effort._asdict(), peak_bytes=_peak_bytes(), space=query.space.describe(),
        within_stack=query.rules is not None, left_out=left_out(found.formulation, query.rules))


def plan_batches(
    model: Model | Profile,
    cluster: Cluster,
    job: Job,
    batches: Iterable[int],
    space: SearchSpace | None = None,
    **options: Unpack[Options],
) -> Plan:
    """Find the batch, and the plan for it, that take the least time per sequence.

    Each batch is searched for plans that take less per sequence than the best so far; batches of
    many divisors first, as they have most plans. No batch has a faster plan per sequence, in the
    order of devices that the cluster has.

    Parameters
    ----------
    model, cluster, job, space : as of :func:`nest.plan`; the batch of ``job`` does not count.
    batches : numbers of sequences in a step, at most 1,000, such as ``range(4000, 4201)``.
    options : others of :func:`nest.plan`, for the plan of the best batch. A time limit holds for
        all searches that choose the batch together, and again for the plan: batches may be left.

    Returns
    -------
    Plan
        Of the best batch, as :func:`nest.plan` finds it; its ``inputs.job`` has the batch.

    Raises
    ------
    InputError : no batch or more than 1,000, or as :func:`nest.plan`, if it is so for each batch.
    InfeasibleError : nothing fits with any batch; carries the nearest miss of one of them.
    """
    question = _question(model, cluster, job, space, options)
    jobs = [job.replace(global_batch=batch) for batch in _counted(batches)]
    jobs.sort(key=lambda each: (-len(divisors(each.global_batch)), each.global_batch))
    chain = chain_of(model)
    legal = [each for each in jobs if not _problems(chain, cluster, each, question.space)]
    from nest.search.cache import Cache
    from nest.search.query import Query
    from nest.search.ways import search

    control = _control(question, options.get("threads"), options.get("progress"), Cache())
    query = Query(chain, cluster, job, question.space, question.search.beyond_stack)
    best, least = (legal or jobs)[0], math.inf
    for each in legal:
        if control.watch.over:
            break
        found = search(query.replace(job=each), control, below=least * each.global_batch)
        if found.configuration is not None:
            best, least = each, found.step_time / each.global_batch
    return plan(model, cluster, best, question.space, **options)


def _counted(batches: Iterable[int]) -> list[int]:
    """Each batch once."""
    found = [] if not isinstance(batches, Iterable) else sorted(
        {batch for _, batch in zip(range(MOST_BATCHES + 1), batches, strict=False)})
    if not 1 <= len(found) <= MOST_BATCHES:
        raise InputError(f"batches: got {shorten(batches)}; allowed: 1 to {MOST_BATCHES} numbers "
                         "of sequences, such as range(4000, 4201)")
    return found


def _searched(
    question: Question, query: Query, control: Control, warm: _Priced, below: float
) -> tuple[Query, SearchResult]:
    """Search until the time is over; the query comes back with the best order and filling."""
    from nest.search.ways import search

    cluster, job, space, how = query.cluster, query.job, query.space, question.search
    found = search(query, control, min(warm.limit, below))
    unproved = found.configuration is None or not found.proved
    if warm.limit < below and unproved and not control.watch.over:
        found = search(query, control, below)
    replicas = [n for n in divisors(job.global_batch)
                if n <= cluster.size and space.allows("outer_dp", n)]
    for other, count in (*(other_orders(cluster, replicas) if how.reorder else ()),
                         *(other_fillings(cluster) if how.fillings else ())):
        if control.watch.over:
            break
        bounds = space if count is None else space.replace(outer_dp=count)
        tried = search(query.replace(cluster=other, space=bounds), control,
                       min(found.step_time, below))
        if tried.step_time < found.step_time:
            # Plans with other numbers of super-pipelines have other orders.
            proved = tried.others_proved and (query.top == 1 or count is None)
            query = query.replace(cluster=other)
            found = tried._replace(others_proved=proved).after(found)
        else:
            found = found.after(tried)
    return query, found


def _warm_start(query: Query, cache: Cache) -> _Priced:
    """The plan of the question before, where it is one of this space whatever the prices.

    Only in the space of a stack: elsewhere plans that are equally fast may be found in turn.
    """
    cluster = query.cluster
    if query.rules is None or cluster.links is not None or query.space.offload != ("none",):
        return _Priced(WarmStart(), None)
    from nest.search.cache import Identity

    start = cache.of(("warm start", Identity(query.chain), cluster.size, cluster.group_sizes,
                      query.job, query.space), WarmStart)
    if start.configuration is None:
        return _Priced(start, None)
    again = priced(query.chain, cluster, query.job, start.configuration)
    return _Priced(start, again if again.feasible else None)


def _confirmed(
    query: Query, configuration: Configuration, value: float, known: Plan | None = None
) -> Plan:
    """Price a found configuration with ``evaluate``; the search found ``value`` seconds.

    ``known``: its price, where that was asked for before.
    """
    again = known
    if again is None:
        again = priced(query.chain, query.cluster, query.job, configuration)
    if not again.feasible or abs(again.step_time_s - value) > TOLERANCE * value:
        raise KernelError(
            f"search found {value!r} s, evaluate says {again.step_time_s!r} s, "
            f"problems: {again.problems}"
        )
    return again


def _peak_bytes() -> int:
    """Largest resident memory of the process so far; 0 where the system does not report it."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
