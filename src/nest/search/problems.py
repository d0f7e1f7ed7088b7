"""What the kernels get of one outer choice once its options are known, and what rings need.

Shapes: L cuts, K positions (device numbers in units of the smallest usable block step), B block
sizes, P prices (a block size at a class of places), G signatures (layer ranges that cost the same),
O options; C candidates, S most stages, V most chunks a stage, N layers, T kinds of layers, W ways
to cut them into chunks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.search.wide_rules import Wide

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Spans(NamedTuple):
    """What ``_kernels.spans.useful`` gets: stages by their layers and their block alone."""

    micro_batches: int
    sizes: Ints
    """(B,) block sizes, in positions."""
    price: Ints
    """(B, K+1) price of a block size that starts at k, -1: none may."""
    share: Floats
    """(K+1,) devices in front of each position, of all of a super-pipeline."""
    seconds: Floats
    """(P, L+1) least seconds of a micro-batch of the layers in front of each cut of a chain, of
    those that fit on a block of the price."""
    fits: Ints
    """(P, L+1) last cut up to which each layer fits there, from each cut on."""
    work: Floats
    """(L+1,) least seconds of a step, over all devices, of the layers in front of each cut."""
    signature: Ints
    """(L+1, L+1) see :class:`Problem`."""
    part: Ints
    """(G,) see ``nest.search.tables.Tables``."""
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
    price: Ints
    """(B, K+1) price of a block size that starts at k, -1: none may."""
    signature: Ints
    """(L+1, L+1) signature of layers i..j-1, -1: none."""
    gpipe: bool
    """All forwards first: every stage holds all micro-batches."""
    ends: Ints
    """(2, P, L+1) see ``_kernels.spans.useful``."""
    first: Ints
    """(P, G+1) see ``_kernels.options.select``; options by ascending t."""
    option: Any
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
    alike: Ints
    """(C, classes) the same degrees at a class of places, or -1."""
    place: Ints
    """(D, B, S) class of the place of stage s, -1: no block may start there. Where stages hold what
    others hold too, a class is one of places times one of ``twin``, and D counts pipelines; else 1.
    """
    hop: Any
    """(B, S+1) records between stages s-1 and s, see :class:`nest.records.LinkRow`."""
    wrap: Any
    """(B, S+1) the same from the last of s stages to the first."""
    twin: Any
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
    ``nest.search.tables``, F numbers of first layers that full recompute may take, 0 for all.
    """

    pipe: Any
    """(Q,) records, see :class:`nest.records.Pipe`."""
    begin: Ints
    """(W,) where the cuts of a layout begin in ``layouts``, one more than it has chunks."""
    load: Ints
    """(W,) layers of the body in the heaviest stage, ascending for each pipeline."""
    layouts: Ints
    cut: Bools
    """(Q, N+1)"""
    heaviest: Ints
    """(W,) the stage with most layers of the body, about."""
    seen: NDArray[np.int16]
    """(W, 3, 5, T) of three stages of a layout, the heaviest, the first and the last, layers by
    kind: of all its chunks but the last, of the first, of the last, those in front of it, those
    behind it. Of one chunk the last has none."""
    run: Ints
    """(W,) number of the run of each layout: of those behind each other whose heaviest stage is the
    same, and at the same place."""
    until: Ints
    """(runs,) layout behind each run."""
    least_seen: NDArray[np.int16]
    """(runs, 3, 5, T) the least of each run."""
    given: NDArray[np.int8]
    """Codes of the passes of pipelines whose orders are listed (:class:`nest.schedules.path.Path`).
    """
    given_from: Ints
    """(Q,) where those of a pipeline begin; -1: it has none."""
    asked: Ints
    """(n,) codes of :class:`nest.search.totals.OpenChoices`."""
    floor: Floats
    """(n,) no plan takes less."""
    apart: Any
    """(U, R, T) records of bodies, see :class:`nest.schedules.chunk.Parts`."""
    repeated: Bools
    """(T,) transformer layers."""
    signature: Ints
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

    own: Floats
    """(2 or 6, U, R) of bodies: seconds; bytes; the most that passes beside each other may hide,
    forward and backward, and what hides it, as less than 0."""
    slower: Floats
    """(V, Z) of states: seconds."""
    held: Floats
    """(V, Z) of states: bytes."""
    kept: Floats
    """(U, R, T) bytes of a layer."""
    resident: Floats
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
    row_way: Bools
    """(C, Z) what the rules of the stack allow; the others likewise."""
    row_policy: Bools
    """(C, X)"""
    way_policy: Bools
    """(Z, X)"""
    warm: Floats
    """(2, D+2, D+2) least ``Pipe.warm`` of pipelines of so many stages, from .. to ..; of
    those whose passes do not run beside each other, and of those whose do."""
    deepest: int
    """D."""
    copies: int
    """Copies of the model that the stages hold together."""
    micro_batches: int
    limit_bytes: float


class Legal(NamedTuple):
    """What ``_kernels.uniform.search.alike`` gets of a stack's rules: what it can run.

    Shapes as of :class:`Pipelines`.
    """

    row_pipeline: Bools
    """(C, Q) degrees that a pipeline may have; the others likewise."""
    way_pipeline: Bools
    """(Z, Q)"""
    policy_pipeline: Bools
    """(R, Q)"""
    first_pipeline: Bools
    """(F, Q)"""
    wide: Wide
    """Of all of them together."""
