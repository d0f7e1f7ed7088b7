"""Which layouts no look with another recompute policy can make the best.

Proof: docs/proofs.md, Lemma 42 (policies).

A set of policies is a number, each a bit of it.
"""

from __future__ import annotations

from nest._kernels import leaf
from nest._kernels.uniform.work import UniformWork
from nest.records import Row
from nest.records.problems import Pipelines, Rings
from nest.records.tables import Degrees

MOST_POLICIES = 62
"""Policies that a set may have; those with higher numbers are in none."""


@leaf
def quicker_than(
    degrees: Degrees, places: Rings, pipelines: Pipelines, work: UniformWork, c: int, r: int,
) -> int:
    """Of the policies that were looked at, those with which no layer of a candidate takes longer
    than with policy r, whatever is hidden beside it; each a bit."""
    found = 0
    for other in range(min(r, MOST_POLICIES)):
        quicker = work.now[0].looked & bit_of(other) > 0
        for y in range(places.alike.shape[1]):
            if quicker and places.alike[c, y] >= 0:
                for kind in range(len(work.kind) - 1):
                    quicker = quicker and _adds(work.layers[y, other, kind],
                        work.layers[y, r, kind])
                if quicker and len(pipelines.apart):
                    apart = pipelines.apart[degrees.candidate[places.alike[c, y]].body]
                    for kind in range(len(work.kind) - 1):
                        quicker = quicker and _differ_in_bytes(apart[other, kind], apart[r, kind])
        if quicker:
            found |= bit_of(other)
    return found


@leaf
def _adds(own: Row, slow: Row) -> bool:
    """Whether the second layer takes longer, and hides more by no more than what it adds."""
    more, rounded = slow.backward - own.backward, 1e-15 * slow.backward
    return more >= 0.0 and slow.free_backward - own.free_backward <= more + rounded


@leaf
def _differ_in_bytes(own: Row, slow: Row) -> bool:
    """Whether parts of backwards, and what passes beside each other may hide, are the same."""
    return (own.exchanged_forward == slow.exchanged_forward
            and own.exchanged_backward == slow.exchanged_backward
            and own.weights == slow.weights)


@leaf
def is_decided(work: UniformWork, at: int) -> bool:
    """Whether a policy with which no layer takes longer left out nothing of a run, or a layout, for
    its bytes."""
    if work.decided[at] & work.now[0].quicker:
        work.now[0].further = 1  # which a look at other groups would not repeat
        return True
    return False


@leaf
def look_at(work: UniformWork, at: int, run: int) -> None:
    """Look at a run, or a layout: bytes leave out nothing until :func:`note_bytes` says so."""
    now = work.now[0]
    if at != (now.run if run else now.layout):
        now.layout = at
        if run:
            now.run = at
        if now.first == 0:
            work.decided[at] |= bit_of(now.policy)


@leaf
def note_bytes(work: UniformWork) -> None:
    """Note that bytes alone say that the layouts which are looked at are not the best."""
    work.now[0].undecided += 1
    if work.now[0].first == 0:
        left_out = ~bit_of(work.now[0].policy)
        work.decided[work.now[0].run] &= left_out
        work.decided[work.now[0].layout] &= left_out


@leaf
def bit_of(policy: int) -> int:
    """A policy in a set of them, which is a number; 0: it is none of those that a set may have."""
    return 1 << policy if policy < MOST_POLICIES else 0
