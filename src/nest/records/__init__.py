"""Records: rows of arrays, whose fields have the names of a class.

``array[i]`` is a record, whose fields are read and set by name, in Python and compiled; a kernel
passes it as one address. What a record is made of stands once, as a class.

`tables`, `problems` and `links` have what the kernels get. Arrays are annotated with their axes,
those of records with their dtype too: the signatures of the kernels follow from them.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Annotated, Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from nest.schedules.chunk import ChunkCosts, LayerSeconds, Parts
from nest.schedules.stage import StageSeconds

Floats = Annotated[NDArray[np.float64], 1]
Floats2 = Annotated[NDArray[np.float64], 2]
Floats3 = Annotated[NDArray[np.float64], 3]
Ints = Annotated[NDArray[np.int64], 1]
Ints2 = Annotated[NDArray[np.int64], 2]
Ints3 = Annotated[NDArray[np.int64], 3]
Int32s = Annotated[NDArray[np.int32], 1]
Int32s2 = Annotated[NDArray[np.int32], 2]
Int16s2 = Annotated[NDArray[np.int16], 2]
Int16s4 = Annotated[NDArray[np.int16], 4]
Int8s = Annotated[NDArray[np.int8], 1]
Bools = Annotated[NDArray[np.bool_], 1]
Bools2 = Annotated[NDArray[np.bool_], 2]
"""C-contiguous arrays, by the number of their axes."""
Rows = NDArray[Any]
"""An array of records; annotated with its axes and their dtype where it enters a kernel."""
Row = Any
"""A record of several classes."""

SIZES = {float: np.float64, int: np.int64, bool: np.bool_}


def record(*parts: Any) -> np.dtype[Any]:
    """A record with the fields of some classes."""
    fields = [(name, SIZES[kind]) for part in parts for name, kind in get_type_hints(part).items()]
    row: Any = type("Record", (np.void,), {name: _field(name) for name, _ in fields})
    return np.dtype((row, np.dtype(fields, align=True)))


def _field(name: str) -> property:
    """A field by its name; as fast as Python allows, of which ``np.record`` takes five times."""
    return property(itemgetter(name), lambda row, value: row.__setitem__(name, value))


def rows_of(of: np.dtype[Any], figures: NDArray[np.float64]) -> NDArray[Any]:
    """Records that figures along the last axis are the fields of; the same memory."""
    found: NDArray[Any] = np.ascontiguousarray(figures).view(of)[..., 0]
    return found


def columns(of: np.dtype[Any], **fields: Any) -> NDArray[Any]:
    """Records of columns, or of what is the same for all."""
    found = np.empty(max(map(np.size, fields.values())), of)
    for name in of.names or ():
        found[name] = fields[name]
    return found


class Ahead:
    """A forward of a layer; seconds."""

    free: float
    """Computing free to hide traffic."""
    seconds: float
    """All of it."""


class Back:
    """A backward of a layer under a recompute policy."""

    free: float
    seconds: float
    activations: float
    """Bytes of a micro-batch."""
    work: float
    """Bytes while it is recomputed."""


class StateRow:
    """States of a layer with a way of ZeRO: seconds, but for the two that are bytes."""

    gathered: float
    """ZeRO traffic of a micro-batch: before a forward; before a backward; after one."""
    regathered: float
    scattered: float
    sync: float
    """Of a step: reduction of gradients; gather of parameters."""
    gather: float
    buffers: float
    """Bytes."""
    update: float
    """The optimizer."""
    tied: float
    """Exchange with other copies of a tied embedding."""
    resident: float
    """Bytes."""
    slowed_forward: float
    """What computing loses beside the traffic."""
    slowed_backward: float
    maxima: float
    """Of a pass of all layers of a device."""


class LayerBytes:
    """What a stage adds up besides the seconds of its layers, or takes the largest of."""

    buffers: float
    """Bytes; of a stage the largest."""
    update: float
    """Seconds of the optimizer."""
    tied: float
    """Seconds of the exchange with other copies of a tied embedding."""
    resident: float
    """Bytes of the state."""
    activations: float
    """Bytes of a micro-batch."""
    work: float
    """Bytes while it is recomputed; of a stage the largest."""


class Unfinished:
    """Of layers to which others may be added, see :func:`nest.schedules.chunk.append`."""

    free_forward: float
    balance: float
    start: float


AHEAD, BACK, STATE = record(Ahead), record(Back), record(StateRow)
class ChangeRow:
    """What a recompute policy changes of a layer without it."""

    backward: float
    """Seconds, at the least."""
    activations: float
    work: float
    """Bytes while it is recomputed."""


class Total:
    """Figures of layers without recompute that :func:`nest.schedules.chunk.append` adds to."""

    forward: float
    backward: float
    zero: float
    hides_sync: float
    left: float
    wait: float
    largest: float


LAYER, LAYER_BYTES = record(LayerSeconds, LayerBytes), record(LayerBytes)
PARTS, CHANGE = record(Parts), record(ChangeRow)
TOTAL = record(Total, Unfinished, LayerBytes)


class OptionRow:
    """What is known of a configuration of a stage besides ``nest.schedules.stage.StageSeconds``.

    All but ``degrees`` decide between two, or follow from what does.
    """

    late: float
    """By how much the last backward is shorter."""
    ready: float
    """The last backward and what follows it."""
    waited: float
    """The first forward, and what it waits for."""
    paced: float
    """Forward and backward, with what they take longer behind each other."""
    chased: float
    """The same without what a backward takes longer."""
    queued: float
    """A forward right behind another."""
    queued_back: float
    """A backward right behind another."""
    degrees: int
    """See ``nest.search.tensors.Formulation.degrees``."""
    held: int
    """Micro-batches in flight that fit."""
    shards: int
    """Pieces of what it hands over that travel side by side."""


class Least:
    """Least figures of the options of a signature under a price; seconds."""

    time: float
    """Forward and backward; then with what follows the last backward."""
    finished: float
    step: float
    """Those of all micro-batches; then with what follows."""
    step_finished: float
    backward: float
    """A backward; then with what follows."""
    backward_finished: float
    backward_ready: float
    """With what follows before copies of an embedding are exchanged; -inf: there is none."""
    forward: float
    sent: float
    """All forwards, and the backwards that are in front of the last one."""
    rounds: float
    """Micro-batches that are not in flight behind; then with what follows."""
    rounds_finished: float


class Front:
    """What the stages in front of a cell add, see ``nest._kernels.bounds.reach``; seconds."""

    added: float
    forced: float
    hidden: float
    ready: float
    fronts: float
    arrives: float
    trips: float


class Fast:
    """Of a layer, or the sums over those of a stage, and the largest ``buffers`` and ``work``."""

    time: float
    """Seconds of a micro-batch, of the fastest policy."""
    resident: float
    kept: float
    """Bytes of activations with it."""
    least: float
    """The same of the policy that keeps least."""
    buffers: float
    work: float


FAST = record(Fast)
LEAST, FRONT = record(Least), record(Front)
OPTION = record(StageSeconds, OptionRow)


class Candidate:
    """Degrees on a block size at a class of places, for stages that are alike."""

    body: int
    """Number of its body, and of its state."""
    held: int
    shards: int
    """Pieces of what it hands over that travel side by side."""
    relayed: float
    """Bytes on a device of a byte per sample that a stage passes on."""


class LinkRow:
    """A way between two blocks."""

    per_byte: float
    """Seconds per byte and lane."""
    latency: float
    """Seconds."""


class Exchanged:
    """What two holders of a layer exchange: bytes, and times."""

    gradient_bytes: float
    gradient_times: float
    parameter_bytes: float
    parameter_times: float


class Pipe:
    """A pipeline of alike stages: an order of passes, stages and chunks a stage."""

    schedule: int
    """Number of it in ``nest.schedules.registry.SCHEDULES``."""
    pp: int
    """Stages."""
    vpp: int
    """Chunks a stage."""
    group: int
    """Micro-batches that pass a chunk in a row."""
    row: int
    """Row of ``Rings.place``."""
    smallest: int
    """The same pipeline with the smallest groups; itself where it is none of the others."""
    free: bool
    """Cuts may lie wherever ``Pipelines.cut`` says; else ``first`` to ``last`` - 1 are listed."""
    first: int
    last: int
    longest: int
    """More layers than any chunk has that recompute applies to."""
    widest: int
    """Most layers of the body in a chunk, where layouts are listed."""
    warm: float
    """Least seconds of a step for each second that a micro-batch computes."""


CANDIDATE, LINK, EXCHANGED, PIPE = map(record, (Candidate, LinkRow, Exchanged, Pipe))


class AnswerRow:
    """What is known of a pipeline of a search."""

    best: float
    """Step seconds of its best plan; inf: none was found."""
    option: int
    """See ``nest.search.tensors.Formulation.degrees``."""
    barren: int
    """The last option, plus 1, with which no layout came past the first look."""
    under: float
    """And below so many seconds."""
    open: bool
    """It may have a plan of the questions that are looked at together."""
    run: int
    """Where those of ``UniformWork.decided`` of its runs begin, behind its own."""
    layout: int
    """Where those of its layouts begin."""


class NowRow:
    """What a search looks at."""

    candidate: int
    pipeline: int
    policy: int
    first: int
    """First layers of each chunk that the policy holds for; 0: all. -1: the seconds without
    recompute, the bytes with the policy."""
    option: int
    quicker: int
    """Policies of ``decided`` with which no layer takes longer, each a bit."""
    number: int
    """Of the question."""
    priced: int
    """Plans that were priced."""
    order_of: int
    """Pipeline whose passes ``order`` has, plus 1; whose ``few`` has; whose ``pairs`` has."""
    few_of: int
    pairs_of: int
    further: int
    """1: the last ``next_layout`` came past the first look at a block of layouts."""
    run: int
    """Place in ``decided`` of the run that is looked at, and of the layout."""
    layout: int
    undecided: int
    """How often bytes alone ruled out layouts of the pipeline."""
    looked: int
    """Policies that were looked at, each a bit."""
    guess: float
    """Least bound of cuts that were priced."""
    unproved: float
    """No cuts that were left out take less."""
    full: int
    """1: there was no room for more labels."""


class KindRow:
    """A layer of a kind at the least, under any of some policies, wherever it is; seconds."""

    forward: float
    backward: float
    inputs: float
    """Of a backward, the part for inputs."""
    left: float
    """Of the optimizer and copies."""
    gathered: float
    """ZeRO traffic, as of :class:`nest.schedules.chunk.LayerSeconds`."""
    regathered: float
    scattered: float
    sync: float
    gather: float
    resident: float
    """Bytes of the state."""
    activations: float
    """Bytes of a micro-batch."""
    freed: float
    """Bytes that recompute saves of them."""
    room: float
    """Bytes of work and buffers."""
    marked: bool
    """Recompute applies to such layers."""
    free_forward: float
    """Computing that may hide traffic: the most."""
    free_backward: float
    weights: float
    """Of a backward, the part for weights: the most."""
    exchanged_forward: float
    """All-to-alls that passes beside each other may hide, and what hides them: the most."""
    exchanged_backward: float
    busy_forward: float
    busy_backward: float
    two: float
    """What passes wait for traffic between two layers of the body, the second of this kind; what
    they wait more with a third in front of these."""
    three: float
    ahead: float
    """What they wait for what is gathered of the layer forward, and backward, wherever it is."""
    back: float


class BodyRow:
    """Layers of the body at the least; then all layers."""

    seconds: float
    """A layer of it, forward and backward."""
    recompute: float
    """What recompute adds to that."""
    hidden: float
    """Seconds of it that passes beside each other save at the most."""
    freed: float
    """Bytes that recompute frees of a layer that it applies to."""
    two: float
    """The most of any :class:`KindRow`, as the next three."""
    three: float
    ahead: float
    back: float
    resident: float
    """Bytes of a layer of the body."""
    activations: float
    begin: float
    """Seconds that the first layer of the model is waited for, and that it leaves."""
    end: float
    gathered: float
    """The most that any layer is gathered (ZeRO-3)."""
    all_two: float
    """Sums over all layers, of the body alone; then over all."""
    all_three: float
    all_ahead: float
    all_back: float
    exchanged_forward: float
    """The most of all layers."""
    exchanged_backward: float
    busy_forward: float
    busy_backward: float


class Before:
    """All layers in front of a cut at the least; seconds and bytes."""

    forward: float
    backward: float
    inputs: float
    resident: float
    activations: float


class ChunkBytes:
    """Bytes of a chunk, and the question that its figures are of."""

    resident: float
    activations: float
    work: float
    buffers: float
    kept_back: float
    """What a backward for inputs leaves of the activations."""
    layer: float
    """Activations of the largest of its transformer layers."""
    asked: int
    """Number of the question."""
    parted: int
    """The same of the figures of a backward in two parts, and beside a forward."""


class RankRow:
    """A stage of a pipeline that is looked at; seconds unless noted."""

    near: float
    """Least hand-overs in front of it, there and back."""
    room: float
    """Bytes for all activations."""
    own: float
    """All its passes."""
    ran: float
    """Those in front of its first backward."""
    spared: float
    """What its first pass may not have waited for."""
    left: float
    """What it leaves behind its last pass."""
    weights: float
    """A backward for weights of its first chunk."""
    wait: float
    """What its first pass waits for."""
    forward: float
    """A forward through all chunks; the first; the last."""
    first: float
    last: float
    back_first: float
    """A backward through the first chunk; the last."""
    back_last: float
    sent: float
    """Bytes, then seconds, of a micro-batch handed over behind all chunks; the first; the last."""
    sent_first: float
    sent_last: float
    begin: float
    """Start of the first pass."""
    end: float
    """From the end of the last pass to that of the step."""
    idle: float
    """All in which it runs nothing."""
    fresh: float
    """What its forwards wait for the parameters of any chunk."""
    reduced: float
    """What its gradients take behind its last pass, if it runs its last ones in a row."""
    gather: float
    """The same of the chunks that were looked at, two sums."""
    sync: float
    held: float
    """Most bytes of activations."""


ANSWER, NOW, KIND, BODY, BEFORE, RANK = map(
    record, (AnswerRow, NowRow, KindRow, BodyRow, Before, RankRow))
FIGURES = record(ChunkCosts, Unfinished, ChunkBytes)
