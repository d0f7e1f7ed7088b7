"""What the kernels get of one outer choice once its options are known, and what rings need.

Shapes: L cuts, K positions (device numbers in units of the smallest usable block step), B block
sizes, P prices (a block size at a class of places), G signatures (layer ranges that cost the same),
O options; C candidates, S most stages, V most chunks a stage, N layers, T kinds of layers, W ways
to cut them into chunks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    lanes: Floats
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
    option: Floats
    """(O, OPTION)"""
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


class Ways(NamedTuple):
    """Ways to cut the layers of a chain into p stages of v chunks each."""

    number: Ints
    """(S+1, V+1) number of the way, -1: there is none."""
    stage_kinds: Ints
    """(W, S', T) layers of each kind of each stage; S' >= S."""
    first_kinds: Ints
    """(W, S', T) those of its first chunk."""
    longest: Ints
    """(W,) most layers of a chunk that recompute applies to."""
    cuts: Ints
    """(W, N+1) first layer of each chunk, in the order of the layers, and then their number."""


class Rings(NamedTuple):
    """What ``_kernels.interleaved.interleave`` gets besides the candidates of an outer choice."""

    size: Ints
    """(C,) number of each candidate's block size."""
    alike: Ints
    """(C, classes) the same degrees at a class of places, or -1."""
    place: Ints
    """(B, S) class of the place of stage s, -1: no block may start there."""
    hop: Floats
    """(2, B, S+1) seconds per byte and lane, and seconds, between stages s-1 and s."""
    wrap: Floats
    """(2, B, S+1) the same from the last of s stages to the first."""
    both: float
    """Ways of a hand-over that compute does not hide."""
    handed: Floats
    """(N+1,) bytes handed over before each layer, one way."""
    ways: Ways
    order: Ints
    """(N,) kind of each layer."""
    counts: Ints
    """(T,) layers of each kind."""
    marked_before: Ints
    """(N+1,) layers in front of each cut that recompute applies to."""
