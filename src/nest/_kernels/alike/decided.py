"""Which layouts no look with another recompute policy can make the best.

Proof: docs/proofs.md, Lemma 42 (policies).

A set of policies is a number, each a bit of it.
"""

from __future__ import annotations

from nest._kernels import leaf
from nest._kernels.alike.work import FIRST, LAYOUT, LOOKED, POLICY, QUICKER, RUN, UNDECIDED
from nest._kernels.layers import (
    BACKWARD,
    EXCHANGED_BACKWARD,
    EXCHANGED_FORWARD,
    FREE_BACKWARD,
    WEIGHTS,
)

MOST_POLICIES = 62
"""Policies that a set may have; those with higher numbers are in none."""


@leaf
def quicker_than(t, q, a, w, c, r):
    """Of the policies that were looked at, those with which no layer of a candidate takes longer
    than with policy r, whatever is hidden beside it; each a bit."""
    found = 0
    for other in range(min(r, MOST_POLICIES)):
        quicker = w.mark[LOOKED] & bit_of(other) > 0
        for y in range(q.alike.shape[1]):
            if quicker and q.alike[c, y] >= 0:
                for kind in range(w.least.shape[1]):
                    quicker = quicker and _adds(w.layers[y, other, kind], w.layers[y, r, kind])
                if quicker and len(a.apart):
                    apart = a.apart[t.body[q.alike[c, y]]]
                    for kind in range(w.least.shape[1]):
                        quicker = quicker and _differ_in_bytes(apart[other, kind], apart[r, kind])
        if quicker:
            found |= bit_of(other)
    return found


@leaf
def _adds(own, slow):
    """Whether the second layer takes longer, and hides more by no more than what it adds."""
    more, rounded = slow[BACKWARD] - own[BACKWARD], 1e-15 * slow[BACKWARD]
    return more >= 0.0 and slow[FREE_BACKWARD] - own[FREE_BACKWARD] <= more + rounded


@leaf
def _differ_in_bytes(own, slow):
    """Whether parts of backwards, and what passes beside each other may hide, are the same."""
    return (own[EXCHANGED_FORWARD] == slow[EXCHANGED_FORWARD]
            and own[EXCHANGED_BACKWARD] == slow[EXCHANGED_BACKWARD]
            and own[WEIGHTS] == slow[WEIGHTS])


@leaf
def is_decided(w, level, at):
    """Whether a policy with which no layer takes longer left out nothing of a run, or a layout, for
    its bytes. Until :func:`note_bytes` says otherwise, that holds for the one that is looked at."""
    if w.decided[at] & w.question[QUICKER]:
        w.tally[4] = 1  # which a look at other groups would not repeat
        return True
    if at != w.mark[level]:
        w.mark[level] = w.mark[LAYOUT] = at
        if w.question[FIRST] == 0:
            w.decided[at] |= bit_of(w.question[POLICY])
    return False


@leaf
def note_bytes(w):
    """Note that bytes alone say that the layouts which are looked at are not the best."""
    w.mark[UNDECIDED] += 1
    if w.question[FIRST] == 0:
        w.decided[w.mark[RUN]] &= ~bit_of(w.question[POLICY])
        w.decided[w.mark[LAYOUT]] &= ~bit_of(w.question[POLICY])


@leaf
def bit_of(policy):
    """A policy in a set of them, which is a number; 0: it is none of those that a set may have."""
    return 1 << policy if policy < MOST_POLICIES else 0
