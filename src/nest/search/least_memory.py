"""The least memory of a device at which some plan of a space fits."""

from __future__ import annotations

import math

import numpy as np

from nest.inputs.configuration import Configuration
from nest.search import compiled
from nest.search.branch_and_bound import entries, parts_of, pool_of
from nest.search.fitting import LARGEST_MEMORY, Fitting
from nest.search.formulating import formulate
from nest.search.query import Control
from nest.search.solution import Solution
from nest.search.tensors import Formulation
from nest.search.threads import thread_count
from nest.search.tree import ALIKE, Tree, Workers, schedules_of


def least_memory(
    f: Formulation, control: Control, close: float
) -> tuple[float, Configuration | None]:
    """Bytes of a device that a plan must be allowed to use, and that plan; None: it found none.

    They are at most ``close`` times too many. Devices of several types all get as many more. Of
    alike stages only those of one chunk are looked at, where the space has any.
    """
    watch = control.watch
    kernels, compile_seconds = compiled.load(entries(f.part.own, f.query.cluster))
    watch.excuse(compile_seconds)
    watch.begin()
    fitting = Fitting(f, kernels)
    plain = f.part.own and any(one.vpp == 1 for one in f.part.pipelines)
    with pool_of(control.threads or thread_count()) as pool:
        workers = Workers(kernels, pool, watch, np.zeros(3, dtype=np.int64))

        def any_within(limit: float) -> Solution | None:
            tree = Tree(f.within(limit), workers)
            tree.prune_by_memory(fitting)
            return tree.any(plain=plain)

        nodes = [(n, name) for n in np.flatnonzero(np.isfinite(f.needs)).tolist()
                 for name in schedules_of(f)]
        # Interleaved pipelines have no such bound, but need no less as a rule.
        bounded = [node for node in nodes if node[1] != ALIKE] or nodes
        low, step, found = max(f.limit, 1.0), close, None
        high = fitting.least(bounded, low, close)
        while found is None and high < LARGEST_MEMORY and not watch.over:
            found = any_within(high)
            if found is None:
                low, high, step = high, step * high, step * step
        # The first bound is close as a rule; behind it the least is between the last two limits.
        step = close if step == close else math.inf
        while found is not None and high > close * low and not watch.over:
            middle = max((low * high) ** 0.5, high / step)
            better = any_within(middle)
            if better is None:
                low = middle
            else:
                found, high, step = better, middle, step * step
    return high, found.configuration() if found is not None else None


def stack_part(f: Formulation) -> Formulation | None:
    """What a stack's own space adds to everything, as a space of its own; None: nothing."""
    *some, _ = parts_of(f.query.replace(beyond_stack=True))
    if f.part.own or not some:
        return None
    return formulate(f.query.replace(spare_host=False), some[0]._replace(later=()))
