"""The public functions: what the command line does, from Python."""

from __future__ import annotations

import sys

from nest.describe.cluster import Cluster
from nest.describe.job import Job
from nest.describe.model import Model
from nest.describe.profile import Profile
from nest.describe.space import SearchSpace
from nest.errors import InputError, KernelError
from nest.evaluation import chain_of, evaluate
from nest.legality import sequence_problem, space_problems
from nest.plans import Plan, SearchReport

TOLERANCE = 1e-9
"""Relative difference between the search and ``evaluate`` above which the search is wrong."""


def plan(
    model: Model | Profile,
    cluster: Cluster,
    job: Job,
    space: SearchSpace | None = None,
    *,
    threads: int | None = None,
) -> Plan:
    """Find the fastest configuration of a space that fits, and price it.

    Parameters
    ----------
    model, cluster, job : what is trained, where, how.
    space : what may be chosen; default: everything legal.
    threads : outer choices solved side by side; the plan does not depend on it.

    Returns
    -------
    Plan
        Optimal over ``space``, confirmed by :func:`nest.evaluate`.

    Raises
    ------
    InputError
        Model, cluster and job do not go together.
    InfeasibleError
        Nothing in the space fits; carries the nearest miss.
    KernelError
        The search and ``evaluate`` disagree: a defect of NEST.
    """
    from nest.search import search

    space = space or SearchSpace()
    chain = chain_of(model)
    problems = [*filter(None, [sequence_problem(chain, job)])]
    problems += space_problems(chain, cluster, job, space)
    if problems:
        raise InputError("\n".join(problems), tuple(problems))
    found = search(chain, cluster, job, space, threads=threads)
    if found.configuration is None:
        from nest.compiled import announce
        from nest.infeasible import explain

        if announce is not None:
            announce("Nothing fits; looking for the nearest miss ...")
        raise explain(model, cluster, job, space)
    priced = evaluate(model, cluster, job, found.configuration)
    off = abs(priced.step_time_s - found.step_time)
    if not priced.feasible or off > TOLERANCE * found.step_time:
        raise KernelError(
            f"search found {found.step_time!r} s, evaluate says {priced.step_time_s!r} s, "
            f"problems: {priced.problems}"
        )
    report = SearchReport(
        seconds=found.seconds, compile_seconds=found.compile_seconds, threads=found.threads,
        solved=found.solved, pruned=found.pruned, cells=found.cells, labels=found.labels,
        transitions=found.transitions, peak_bytes=_peak_bytes(), space=space.describe(),
    )
    return priced.model_copy(update={
        "optimal": True, "lower_bound_s": priced.step_time_s, "search": report,
    })


def _peak_bytes() -> int:
    """Largest resident memory of the process so far; 0 where the system does not say."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
