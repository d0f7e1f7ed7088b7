"""What the option kernel gets of one outer choice: arrays, and what each of them holds.

Shapes: U bodies, V states, T layer kinds, C candidates, R recompute policies, Z ways of ZeRO, G
signatures.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from nest.records import (
    AHEAD,
    BACK,
    CANDIDATE,
    EXCHANGED,
    STATE,
    Bools,
    Floats,
    Int32s2,
    Ints,
    Ints2,
    Rows,
)


class Tables(NamedTuple):
    """What ``select`` and ``alike`` get of one outer choice.

    All arrays are C-contiguous; int64, float64 and bool, the two largest int32. The kernels see the
    names of the fields.
    """

    ahead: Annotated[Rows, 2, AHEAD]
    """(U, T) records, see :class:`nest.records.Ahead`: what a layer of each kind adds forward."""
    back: Annotated[Rows, 3, BACK]
    """(U, R, T) records, see :class:`nest.records.Back`: the same backward."""
    state: Annotated[Rows, 3, STATE]
    """(V, Z, T) records, see :class:`nest.records.StateRow`."""
    body: Ints
    """(C,) body of each candidate."""
    held: Ints
    """(C,) its state."""
    price: Ints
    """(C,) its price, ascending from 0."""
    weight: Floats
    """(C,) seconds of a step for each second of a micro-batch on its block, at the least."""
    shards: Ints
    """(C,) pieces of what it hands over that travel side by side."""
    relayed: Floats
    """(C,) bytes on a device of a byte per sample that a stage passes on."""
    hybrid: Bools
    """(C,) HSDP is not the same as sharding over all."""
    shard: Ints
    """(Z,) 1 for HSDP."""
    forbidden: Bools
    """(Z,) ways of ZeRO that no pipeline may use."""
    keep_none: bool
    """Policy 0, no recompute, may be chosen."""
    full: int
    """Policy of full recompute, -1 for none."""
    first_layers: Bools
    """(most layers of a stage + 1,) numbers of first layers that full recompute may take."""
    most_layers: int
    """Full recompute may take all layers of stages of up to so many."""
    last: Ints
    """(G,) kind of the last layer of each signature."""
    part: Ints
    """(G,) signature with that layer less, of a lower number; -1 for none."""
    seen: Int32s2
    """(rows, T) layers of each kind: ``stretch`` (G, 2) has the rows whose difference a signature
    holds."""
    stretch: Ints2
    among: Ints2
    """(G, 2) which of ``kinds`` it may hold: the first, and the last + 1."""
    marked: Ints
    """(G,) layers that recompute applies to."""
    way: Ints
    """(G,) row of ``ancestor`` of a signature."""
    ancestor: Int32s2
    """(ways, most layers + 1) first part of a signature that has so many of those layers."""
    kinds: Ints
    """Kinds of layers that recompute applies to."""
    relay: Floats
    """(G,) bytes per sample that a stage keeps for later ones."""
    received: Floats
    """(G,) bytes of all devices of a stage for what it receives of all micro-batches."""
    cap: Ints
    """(G,) most micro-batches in flight that a stage of the signature ever holds; 0: no stage."""
    whole: int
    """Signature of all layers, the only one that is no part of a pipeline."""
    limit_bytes: float
    micro_batches: int
    least: Floats
    """(T,) least seconds of a step that a layer of each kind takes: weight x its time."""
    overlaps: Floats
    """(3,) of the stack: ZeRO under compute, reduction under backward, gather under forward; with a
    pipeline, which never hides more."""
    overlaps_alone: Floats
    """The same of a single stage."""
    root: Ints
    second: Ints
    third: Ints
    """(G,) kinds of the first three layers of each signature; -1: none."""
    children: Ints
    """(G,) signatures by the one that they extend; ``begin`` (G+2,) says where those begin that
    extend none, number 0, 1, ..."""
    begin: Ints
    before: Ints
    """(G,) signature without the last layers of one kind, -1 for none."""
    depth: Ints
    """(G,) layers."""
    gpipe: bool


class Degrees(NamedTuple):
    """What the kernel of alike stages gets of :class:`Tables`, with the same names; two more."""

    ahead: Annotated[Rows, 2, AHEAD]
    back: Annotated[Rows, 3, BACK]
    state: Annotated[Rows, 3, STATE]
    candidate: Annotated[Rows, 1, CANDIDATE]
    """(C,) records, see :class:`nest.records.Candidate`."""
    shard: Ints
    forbidden: Bools
    full: int
    first_layers: Bools
    most_layers: int
    relay: Floats
    limit_bytes: float
    micro_batches: int
    overlaps: Floats
    overlaps_alone: Floats
    exchanged: Annotated[Rows, 3, EXCHANGED]
    """(V, Z, T) records, see :class:`nest.records.Exchanged`; none where each layer has one holder.
    """


class Blocks(NamedTuple):
    """What ``undominated`` gets of all outer choices; fields of the same names are as above.

    Candidates of a block (a size under an outer choice) stand together, within it those of each
    class of places, each class with the same degrees in the same order.
    """

    ahead: Annotated[Rows, 2, AHEAD]
    back: Annotated[Rows, 3, BACK]
    state: Annotated[Rows, 3, STATE]
    body: Ints
    held: Ints
    shards: Ints
    relayed: Floats
    hybrid: Bools
    overlaps: Floats
    """The most that any number of stages hides."""
    begin: Ints
    """(N+1,) first candidate of each block."""
    choices: Ints
    """(N,) degrees of each block."""
