"""Every DualPipe of a question, from docs/schedules.md and docs/stacks.md: listed, asked whether it
is legal, and priced as ``nest.evaluate`` does, which :mod:`oracle_dualpipe` checks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from oracle_layouts import Cuts, level
from oracle_listing import Question
from oracle_plans import Found, Key, later, write_stage
from oracle_rules import Choice, Outer
from oracle_stack import priced

from nest.errors import InputError
from nest.evaluation.feasibility import check
from nest.evaluation.stages import Layers, Pricing
from nest.inputs import Configuration


def crossed(question: Question) -> tuple[int, list[Found]]:
    """How many plans fit, and the best of each key."""
    chain, cluster, job = question.chain, question.cluster, question.job
    pricing, known = Pricing(chain, cluster, job), dict[object, Layers]()
    fitting, best = 0, dict[Key, Found]()
    for plan in listed(question) if chain.is_chain else ():
        try:
            check(pricing, plan)
        except InputError:
            continue
        seconds = priced(pricing, plan, known)
        if seconds is None:
            continue
        fitting += 1
        key = plan.outer_dp, plan.micro_batch, plan.pp, plan.vpp, plan.schedule
        if seconds < (best[key].seconds if key in best else math.inf):
            best[key] = Found(seconds, key, later(lambda plan: plan, plan))
    return fitting, list(best.values())


def listed(question: Question) -> Iterator[Configuration]:
    """All configurations, legal or not: each stage holds part s and part pp - 1 - s."""
    for outer in question.outers:
        m = question.job.global_batch // (outer.outer_dp * outer.micro_batch)
        if m % 2 or not question.space.allows("vpp", 2):
            continue
        legal = question.blocks(outer)
        for pp in range(2, min(len(question.chain), m // 2) + 1, 2):
            if question.space.allows("pp", pp):
                for size in range(1, outer.stride // pp + 1):
                    if all((s * size, size) in legal for s in range(pp)):
                        for cuts in level(question.chain, pp):
                            yield from _degrees(question, outer, pp, size, cuts)


def _degrees(
    question: Question, outer: Outer, pp: int, size: int, cuts: Cuts
) -> Iterator[Configuration]:
    spans = [*zip(cuts, cuts[1:], strict=False)]
    ends = [(min(s, pp - 1 - s), max(s, pp - 1 - s)) for s in range(pp)]
    chunks = [[spans[near], spans[far]] for near, far in ends]
    for split in question.splits(outer.micro_batch, size):
        for state in question.states(outer, split, piped=True):
            for policy in question.policies(*(tuple(range(*span)) for span in spans)):
                if state.zero <= 1:
                    yield Configuration(
                        outer_dp=outer.outer_dp, micro_batch=outer.micro_batch,
                        stride=outer.stride, vpp=2, schedule="dualpipe", stages=[
                            write_stage(Choice(s * size, size, split, state), policy, own)
                            for s, own in enumerate(chunks)])
