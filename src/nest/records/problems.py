"""What the kernels get of one outer choice once its options are known, and what rings need.

Shapes: L cuts, K positions (device numbers in units of the smallest usable block step), B block
sizes, P prices (a block size at a class of places), G signatures (layer ranges that cost the same),
O options; C candidates, S most stages, V most chunks a stage, N layers, T kinds of layers, W ways
to cut them into chunks.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from nest.records import (
    LINK,
    OPTION,
    PARTS,
    PIPE,
    Bools,
    Bools2,
    Floats,
    Floats2,
    Floats3,
    Int8s,
    Int16s4,
    Ints,
    Ints2,
    Ints3,
    Rows,
)


class Spans(NamedTuple):
    """What ``_kernels.spans.useful`` gets: stages by their layers and their block alone."""

    micro_batches: int
    sizes: Ints
    """(B,) block sizes, in positions."""
    price: Ints2
    """(B, K+1) price of a block size that starts at k, -1: none may."""
    share: Floats
    """(K+1,) devices in front of each position, of all of a super-pipeline."""
    seconds: Floats2
    """(P, L+1) least seconds of a micro-batch of the layers in front of each cut of a chain, of
    those that fit on a block of the price."""
    fits: Ints2
    """(P, L+1) last cut up to which each layer fits there, from each cut on."""
    work: Floats
    """(L+1,) least seconds of a step, over all devices, of the layers in front of each cut."""
    signature: Ints2
    """(L+1, L+1) see :class:`Problem`."""
    part: Ints
    """(G,) see ``nest.records.tables.Tables``."""
    whole: int
    """Signature of all layers."""
    chain: bool
    """The layers have no branches; else the rest says nothing."""


class Problem(NamedTuple):
    """What ``_kernels.pipeline.solve`` gets; arrays are C-contiguous, int64, float64 and bool."""

    micro_batches: int
    sizes: Ints
    """(B,) block sizes, in positions."""
    lanes: Ints
    """(B,) shards of a block at the most."""
    price: Ints2
    """(B, K+1) price of a block size that starts at k, -1: none may."""
    signature: Ints2
    """(L+1, L+1) signature of layers i..j-1, -1: none."""
    gpipe: bool
    """All forwards first: every stage holds all micro-batches."""
    ends: Ints3
    """(2, P, L+1) see ``_kernels.spans.useful``."""
    first: Ints2
    """(P, G+1) see ``_kernels.options.select``; options by ascending t."""
    option: Annotated[Rows, 1, OPTION]
    """(O,) records, see :class:`nest.records.OptionRow`."""
    hop_bytes: Floats
    """(L+1,) bytes handed over at a cut, one way."""
    hop_per_byte: Floats
    """(K+1,) seconds per byte and lane at a position."""
    hop_latency: Floats
    """(K+1,) seconds."""
    both: float
    """Ways of a hand-over that compute does not hide."""
    depths: Bools
    """(L+1,) numbers of stages allowed."""


class Rings(NamedTuple):
    """Places of alike stages under an outer choice, for ``_kernels.uniform.search.alike``."""

    size: Ints
    """(C,) number of each candidate's block size."""
    alike: Ints2
    """(C, classes) the same degrees at a class of places, or -1."""
    place: Ints3
    """(D, B, S) class of the place of stage s, -1: no block may start there. Where stages hold what
    others hold too, a class is one of places times one of ``twin``, and D counts pipelines; else 1.
    """
    hop: Annotated[Rows, 2, LINK]
    """(B, S+1) records between stages s-1 and s, see :class:`nest.records.LinkRow`."""
    wrap: Annotated[Rows, 2, LINK]
    """(B, S+1) the same from the last of s stages to the first."""
    twin: Annotated[Rows, 1, LINK]
    """(ways,) the same to the stage that holds the same layers."""
    both: float
    """Ways of a hand-over that compute does not hide."""
    handed: Floats
    """(N+1,) bytes handed over before each layer, one way."""
    received: Floats
    """(N+1,) of these, those that all micro-batches have buffers for: all of a step, or none."""
    marked_before: Ints
    """(N+1,) layers in front of each cut that recompute applies to."""


class Pipelines(NamedTuple):
    """What ``_kernels.uniform.search.alike`` gets besides :class:`Rings`: pipelines of
    alike stages.

    Shapes: Q pipelines (an order of passes, stages, chunks a stage), W layouts; C, Z, R, N as in
    ``nest.records.tables``, F numbers of first layers that full recompute may take, 0 for all.
    """

    pipe: Annotated[Rows, 1, PIPE]
    """(Q,) records, see :class:`nest.records.Pipe`."""
    begin: Ints
    """(W,) where the cuts of a layout begin in ``layouts``, one more than it has chunks."""
    load: Ints
    """(W,) layers of the body in the heaviest stage, ascending for each pipeline."""
    layouts: Ints
    cut: Bools2
    """(Q, N+1)"""
    heaviest: Ints
    """(W,) the stage with most layers of the body, about."""
    seen: Int16s4
    """(W, 3, 5, T) of three stages of a layout, the heaviest, the first and the last, layers by
    kind: of all its chunks but the last, of the first, of the last, those in front of it, those
    behind it. Of one chunk the last has none."""
    run: Ints
    """(W,) number of the run of each layout: of those behind each other whose heaviest stage is the
    same, and at the same place."""
    until: Ints
    """(runs,) layout behind each run."""
    least_seen: Int16s4
    """(runs, 3, 5, T) the least of each run."""
    given: Int8s
    """Codes of the passes of pipelines whose orders are listed (:class:`nest.schedules.path.Path`).
    """
    given_from: Ints
    """(Q,) where those of a pipeline begin; -1: it has none."""
    asked: Ints
    """(n,) codes of :class:`nest.search.totals.OpenChoices`."""
    floor: Floats
    """(n,) no plan takes less."""
    apart: Annotated[Rows, 3, PARTS]
    """(U, R, T) records of bodies, see :class:`nest.schedules.chunk.Parts`."""
    repeated: Bools
    """(T,) transformer layers."""
    signature: Ints2
    """(N+1, N+1) of the layers between two cuts."""
    order: Ints
    """(N,) kind of each layer."""
    whole: Ints
    """(N,) the same where one stage holds all."""
    body: Ints
    """(2,) layers [i, j) that layouts divide."""
    least_handed: float
    """Bytes handed over at the least."""
    grows: bool
    """Longer stages never fit better than those they hold."""
    most: int
    """Ways to cut one pipeline that are priced one by one at the most; 0: only those with the
    least bound are."""


class Sums(NamedTuple):
    """What ``_kernels.uniform.asked.ask`` gets of one outer choice: sums over all layers,
    each at its least wherever it is.

    Shapes: C candidates, U bodies, V states, Z ways of ZeRO, R recompute policies, T layer kinds;
    X choices of recompute; Y pairs of kinds that a layer may be of, one where it lies with all that
    share its parameters, one elsewhere; D stages of the deepest pipeline.
    """

    own: Floats3
    """(2 or 6, U, R) of bodies: seconds; bytes; the most that passes beside each other may hide,
    forward and backward, and what hides it, as less than 0."""
    slower: Floats2
    """(V, Z) of states: seconds."""
    held: Floats2
    """(V, Z) of states: bytes."""
    kept: Floats3
    """(U, R, T) bytes of a layer."""
    resident: Floats3
    """(V, Z, T) bytes of a layer."""
    first: Ints
    """(Y,) the kind elsewhere."""
    second: Ints
    """(Y,) the kind with all others."""
    counts: Ints
    """(Y,) layers."""
    body: Ints
    """(C,) number of a candidate's body."""
    state: Ints
    """(C,) and of its state."""
    most: Ints
    """(C,) stages that there is room for; D + 1 at the most."""
    fast: Ints
    """(X,) the policy whose seconds count; the last choice may be full recompute of some layers."""
    lean: Ints
    """(X,) the policy whose bytes count."""
    row_way: Bools2
    """(C, Z) what the rules of the stack allow; the others likewise."""
    row_policy: Bools2
    """(C, X)"""
    way_policy: Bools2
    """(Z, X)"""
    warm: Floats3
    """(2, D+2, D+2) least ``Pipe.warm`` of pipelines of so many stages, from .. to ..; of
    those whose passes do not run beside each other, and of those whose do."""
    deepest: int
    """D."""
    copies: int
    """Copies of the model that the stages hold together."""
    micro_batches: int
    limit_bytes: float


class Wide(NamedTuple):
    """What a kernel gets of rules about more than two axes, see :mod:`nest.search.wide_rules`.

    n rules, T entries of all tables.
    """

    table: Bools
    """(T,) where rules are broken. An entry of a rule is the sum of its fields of all axes."""
    row: Ints2
    """(n, C)"""
    way: Ints2
    """(n, Z)"""
    policy: Ints2
    """(n, R)"""
    first: Ints2
    """(n, F)"""
    pipeline: Ints2
    """(n, Q)"""
    layout: Ints2
    """(n, W), or (n, 1) where no rule has figures of layouts."""
    plain: int
    """Rules without figures of layouts, which come first."""


NONE = Wide._make(
    (np.zeros(0, dtype=np.bool_), *(np.zeros((0, 1), dtype=np.int64),) * 6, 0))
"""No such rules."""


class Legal(NamedTuple):
    """What ``_kernels.uniform.search.alike`` gets of a stack's rules: what it can run.

    Shapes as of :class:`Pipelines`.
    """

    row_pipeline: Bools2
    """(C, Q) degrees that a pipeline may have; the others likewise."""
    way_pipeline: Bools2
    """(Z, Q)"""
    policy_pipeline: Bools2
    """(R, Q)"""
    first_pipeline: Bools2
    """(F, Q)"""
    wide: Wide
    """Of all of them together."""
