"""Alpa's intra-operator pass: sharding of every operator on a device mesh, by an integer program.

Before it, layers of a model are merged into those that stages may be cut between (arXiv:2201.12023,
section 5.2, and ``cluster_jaxpr_by_cost`` of its authors' program, alpa-projects/alpa,
alpa/pipeline_parallel/layer_construction.py).

L. Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep
Learning", OSDI 2022, arXiv:2201.12023, section 4. The mesh has two axes: n0 devices that divide the
batch, and n1 neighbouring ones that divide each operator. The inter-operator pass requires the
batch on axis 0 (``force_batch_dim_to_mesh_dim`` of its authors' program, alpa-projects/alpa,
alpa/pipeline_parallel/stage_construction.py).

The time that profiling measures for each stage of Alpa: a stage alone, compiled as a whole.

arXiv:2201.12023, section 5.2: the latency of a stage comes from compiling it and running it on its
mesh, forward and backward (``generate_training_stages_2d`` and ``profile_all`` of its authors'
program, alpa-projects/alpa, alpa/pipeline_parallel/stage_profiling.py). It includes the overlap of
the software: the formulas here are those of :func:`nest.costs.stage.chunk_costs`, for all stages at
once.

Shapes: K kinds of layers, C options, S stages that grow together, each from its own first layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from nest.costs.choices import Site, bodies, setting, states
from nest.costs.layer import LayerCosts, body_costs
from nest.costs.network.collectives import Group, all_gather, all_reduce
from nest.costs.network.fabric import fabric_of
from nest.costs.network.placement import inner_group
from nest.costs.zero import state_costs
from nest.errors import KernelError
from nest.inputs.cluster import Cluster
from nest.inputs.job import Job, Stack
from nest.model import Chain, Layer
from nest.planners.flat import Array, Ints

MOST_LAYERS = 128
"""Clusters at most (chosen: time and memory grow with their third power)."""
IMBALANCE = 0.5
"""A cluster may exceed the average by this share (``DEFAULT_EPS`` of the program)."""


def clusters(work: Array, received: Array) -> tuple[int, ...]:
    """Cuts between clusters, from 0 to the number of layers.

    As many clusters as layers with at least half of the average work, so that embeddings join a
    neighbour; fewer if these cannot be balanced.

    Parameters
    ----------
    work : compute of each layer, in any unit.
    received : bytes that cross the cut before each layer.
    """
    heavy = int((2.0 * work >= work.mean()).sum())
    for count in range(min(max(heavy, 1), MOST_LAYERS), 1, -1):
        found = merge(work, received, count, IMBALANCE)
        if found is not None:
            return found
    return 0, len(work)


def merge(work: Array, received: Array, count: int, imbalance: float) -> tuple[int, ...] | None:
    """Cuts between exactly ``count`` clusters; None: no such clusters are balanced.

    The most bytes that a cluster receives are minimised, and among equals the variance of work:
    G(k, r) = min over i of max(G(i - 1, r - 1), C(i, k)) where work(i..k) is at most (1 +
    imbalance) of the average, or i..k is one layer.
    """
    layers, average = len(work), float(work.sum()) / count
    total = np.concatenate([[0.0], np.cumsum(work)])
    most = np.full((count + 1, layers + 1), np.inf)
    spread = np.full((count + 1, layers + 1), np.inf)
    came = np.zeros((count + 1, layers + 1), dtype=np.int64)
    most[0, 0] = spread[0, 0] = 0.0
    for r in range(1, count + 1):
        for k in range(r, layers + 1):
            starts = np.arange(k)
            held = total[k] - total[:k]
            legal = (held <= (1.0 + imbalance) * average) | (starts == k - 1)
            bytes_ = np.where(legal, np.maximum(most[r - 1, :k], received[:k]), np.inf)
            deviation = spread[r - 1, :k] + (held - average) ** 2
            best = int(np.lexsort((deviation, bytes_))[0])
            if math.isfinite(bytes_[best]):
                most[r, k], spread[r, k], came[r, k] = bytes_[best], deviation[best], best
    if not math.isfinite(most[count, layers]):
        return None
    cuts = [layers]
    for r in range(count, 0, -1):
        cuts.append(int(came[r, cuts[-1]]))
    return tuple(reversed(cuts))


# ---------------------------------------------------------------- program


LARGEST = 1e4
"""The largest cost after scaling for HiGHS (chosen: its gap of 1e-6 is then 1e-10 of it)."""


class Edge(NamedTuple):
    """A tensor from one node to another."""

    source: int
    target: int
    cost: Array
    """Resharding where source and target take strategies a and b; shape (A, B)."""


def solve(nodes: Sequence[Array], edges: Sequence[Edge]) -> list[int]:
    """The strategies with the least cost of all nodes and edges.

    Parameters
    ----------
    nodes : costs of the strategies of each node, finite.
    edges : costs of resharding between two of them.

    Notes
    -----
    Choices of a node are binary and sum up to one. The product of two choices is a variable of
    its own; those of an edge sum up to either choice, so they need not be binary. Nodes without
    edges take their cheapest strategy.
    """
    linked = {node for edge in edges for node in (edge.source, edge.target)}
    chosen = [int(np.argmin(cost)) for cost in nodes]
    if not linked:
        return chosen
    starts = np.cumsum([0, *(len(cost) for cost in nodes)])
    first = starts[-1] + np.cumsum([0, *(edge.cost.size for edge in edges)])
    entries: list[tuple[int, int, float]] = []
    right: list[float] = []
    for node in range(len(nodes)):
        entries += [(len(right), v, 1.0) for v in range(starts[node], starts[node + 1])]
        right.append(1.0)
    for edge, begin in zip(edges, first, strict=False):
        both = begin + np.arange(edge.cost.size).reshape(edge.cost.shape)
        for node, rows in ((edge.source, both), (edge.target, both.T)):
            for choice, row in enumerate(rows):
                entries += [(len(right), int(v), 1.0) for v in row]
                entries.append((len(right), int(starts[node]) + choice, -1.0))
                right.append(0.0)
    lines, columns, values = zip(*entries, strict=True)
    cost = np.concatenate([*nodes, *(edge.cost.ravel() for edge in edges)])
    matrix = coo_array((values, (lines, columns)), shape=(len(right), len(cost))).tocsr()
    whole = np.zeros(len(cost))
    whole[: starts[-1]] = 1
    found = milp(cost * (LARGEST / max(float(np.abs(cost).max()), 1e-300)), integrality=whole,
                 bounds=Bounds(0.0, 1.0), constraints=LinearConstraint(matrix, right, right),
                 options={"mip_rel_gap": 0.0})
    if found.x is None:
        raise KernelError(f"the integer program was not solved: {found.message}")
    return [int(np.argmax(found.x[a:b])) for a, b in zip(starts, starts[1:], strict=False)]


# ---------------------------------------------------------------- intra


Pair = tuple[int, int]


class Mesh(NamedTuple):
    """A logical mesh and its share of the batch."""

    batch: int
    """n0: devices along the axis that divides the batch."""
    operators: int
    """n1: devices along the axis that divides operators."""
    samples: int
    """Samples of a micro-batch on each device."""


class AlpaSharding(NamedTuple):
    """The choices of the program that a configuration can express."""

    pair: Pair
    """ep and etp."""
    parameters: bool
    """Parameters are sharded over the batch axis too (ZeRO-3)."""


class AlpaProduct(NamedTuple):
    """A large operator; the others follow their neighbours (section 4.2)."""

    taken: float
    """Elements per sample that it reads; 0: token numbers."""
    given: float
    """Elements per sample of its output."""
    heads: bool
    """The attention core: sharded by heads, else it would be computed n1 times."""


def products(layer: Layer, seq_len: int) -> list[list[AlpaProduct]]:
    """Paths of a layer from the residual to the residual, as operators that follow each other.

    Products of one input are one operator: their input gradients are summed before they travel.
    Experts are left out: :func:`shard` distributes them.
    """
    paths: list[list[AlpaProduct]] = [[]]
    for op in layer.operators:
        rows = op.positions if op.positions and op.type != "attention" else (
            layer.tokens or seq_len)
        if op.type in ("attention", "scan"):
            paths[-1].append(AlpaProduct(0.0, 0.0, True))
        elif op.type == "gemm" and op.split in ("column", "row"):
            taken, given = float(rows * op.depth), float(rows * (op.width if op.depth else 0))
            if not op.depth:  # a look-up in a table divided by rows: its output is summed
                given = float(rows * layer.hidden)
            before = paths[-1][-1] if paths[-1] else None
            if op.split == "column" and op.depth and before and before.taken and not before.heads:
                paths[-1][-1] = before._replace(given=before.given + given)
                continue
            paths[-1].append(AlpaProduct(taken, given, False))
            if op.split == "row" or not op.depth:
                paths.append([])
    return [path for path in paths if path]


# ---------------------------------------------------------------- the program

# Layouts of a tensor over axis 1.
REPLICATED, SHARDED = 0, 1
# Layouts of input and output of the strategies of a product: split by columns, after a gather, by
# rows with the sum everywhere, by rows with the sum scattered (table 3 of the paper).
TAKES = (REPLICATED, SHARDED, SHARDED, SHARDED)
GIVES = (SHARDED, SHARDED, REPLICATED, SHARDED)


def shard(
    chain: Chain, view: Cluster, job: Job, mesh: Mesh, pairs: Sequence[Pair], replicate: bool
) -> AlpaSharding:
    """Choose strategies for all layers of a model on a mesh, with the least communication.

    Layers of a kind take the same strategies, and all share the layout of the residual: a model
    has one program, where Alpa has one for each stage. Computing costs nothing (section 4.2: heavy
    operators are never replicated), memory is not considered, and gradients count in full for any
    number of micro-batches (the authors' program has ``grad_acc_num_micro_batches`` disabled).

    Parameters
    ----------
    view : two-level network.
    pairs : ways to distribute (ep) or divide (etp) experts over the mesh.
    replicate : parameters may be held by all devices of axis 0; otherwise they are sharded
        (``allow_replicated_parameters`` of the program).
    """
    times = np.bincount(np.array(chain.order), minlength=len(chain.kinds)).astype(np.float64)
    weights, ways = _weights(chain, view, job, mesh, pairs, replicate, times)
    nodes: list[Array] = [weights, np.zeros(2)]  # the second is the residual
    edges: list[Edge] = []
    if mesh.operators > 1:
        for kind, count in zip(chain.kinds, times, strict=True):
            for path in products(kind, job.seq_len) if count else ():
                add_path(nodes, edges, path, AlpaTraffic(view, job, mesh, count))
    chosen = solve(nodes, edges)
    return ways[chosen[0]]


class AlpaTraffic:
    """Seconds of collectives over axis 1, forward and backward, of one kind of layer."""

    def __init__(self, view: Cluster, job: Job, mesh: Mesh, count: float) -> None:
        s = setting(view, job)
        self.network, self.count = s.network, count
        self.bytes = mesh.samples * s.machine.element
        inside, even = inner_group(view.group_sizes, mesh.batch * mesh.operators, 1,
                                   mesh.operators)
        self.group = Group(np.array([inside]), np.array([even]))

    def reduce(self, elements: float) -> float:
        """Seconds to sum so many elements per sample on all devices of the axis."""
        size = np.array([elements * self.bytes])
        return self.count * float(all_reduce(size, self.network, self.group)[0])

    def gather(self, elements: float) -> float:
        """Seconds to gather them, or to sum and scatter them."""
        size = np.array([elements * self.bytes])
        return self.count * float(all_gather(size, self.network, self.group)[0])

    def product(self, product: AlpaProduct) -> Array:
        """Seconds of each strategy of a product."""
        if product.heads:
            return np.zeros(1)
        into, out = self.gather(product.taken), self.gather(product.given)
        return np.array([
            self.reduce(product.taken), 3.0 * into,  # gathered forward and once more backward
            self.reduce(product.given), 2.0 * out])

    def reshard(self, takes: Sequence[int], gives: Sequence[int], elements: float) -> Array:
        """Seconds between a tensor's layouts: a gather in one direction, nothing in the other."""
        once = self.gather(elements)
        return np.array([[once if a != b else 0.0 for b in takes] for a in gives])


def add_path(
    nodes: list[Array], edges: list[Edge], path: Sequence[AlpaProduct], traffic: AlpaTraffic
) -> None:
    """The operators of a path between the residual, node 1, and itself."""
    gives: tuple[int, ...] = (REPLICATED, SHARDED)
    before, elements = 1, path[0].taken
    for product in path:
        takes: tuple[int, ...] = (SHARDED,) if product.heads else TAKES
        nodes.append(traffic.product(product))
        if product.taken or product.heads:
            edges.append(Edge(before, len(nodes) - 1, traffic.reshard(takes, gives, elements)))
        before, gives = len(nodes) - 1, (SHARDED,) if product.heads else GIVES
        elements = elements if product.heads else product.given
    if elements == path[0].taken or not path[0].taken:  # logits do not come back
        edges.append(Edge(before, 1, traffic.reshard((REPLICATED, SHARDED), gives, elements)))


def _weights(
    chain: Chain, view: Cluster, job: Job, mesh: Mesh, pairs: Sequence[Pair], replicate: bool,
    times: Array,
) -> tuple[Array, list[AlpaSharding]]:
    """Costs of holding parameters: gradients, gathers, and tokens that travel to experts."""
    ways = [AlpaSharding(pair, parameters) for pair in pairs
            for parameters in ((False, True) if replicate else (True,))]
    ep, etp = np.array([way.pair for way in ways]).T
    one = np.ones_like(ep)
    tp, block = one * mesh.operators, one * mesh.batch * mesh.operators
    zero = np.array([3 if way.parameters else 0 for way in ways])
    fabric, site = fabric_of(view), Site.alone(block)
    body = bodies(fabric, site, one * mesh.samples, tp, tp > 1, one, one, one == 0, ep, etp,
                  recompute=0 * one)
    state = states(fabric, site, tp, ep * etp, zero, 0 * one)
    total, s = np.zeros(len(ways)), setting(view, job)
    for kind, count in zip(chain.kinds, times, strict=True):
        b, c = body_costs(kind, body, s), state_costs(kind, state, s)
        total += count * (b.ep_forward + b.ep_backward + c.sync
                          + c.gathered + c.regathered + c.scattered
                          + c.slowed_forward + c.slowed_backward)
    return total, ways


# ---------------------------------------------------------------- profile


class AlpaLayerSeconds(NamedTuple):
    """Seconds of a layer, :class:`nest.schedules.chunk.LayerSeconds`; (C,), stacked (K, C)."""

    free_forward: Array
    forward: Array
    free_backward: Array
    backward: Array
    gathered: Array
    regathered: Array
    scattered: Array
    sync: Array
    gather: Array
    maxima: Array
    once: Array
    """Per step: optimizer, and exchange of gradients with other copies of a tied embedding."""


def figures(c: LayerCosts) -> AlpaLayerSeconds:
    """One layer under C options."""
    return AlpaLayerSeconds(
        free_forward=c.free_forward,
        forward=c.forward + c.tp_forward + c.cp_forward + c.ep_forward + c.slowed_forward,
        free_backward=c.free_backward,
        backward=(c.backward + c.recompute + c.tp_backward + c.cp_backward + c.ep_backward
                  + c.slowed_backward),
        gathered=c.gathered, regathered=c.regathered, scattered=c.scattered, sync=c.sync,
        gather=c.gather, maxima=c.maxima, once=c.update + c.tied,
    )


def alone(
    each: AlpaLayerSeconds, order: Ints, starts: Ints, batches: int, stack: Stack
) -> Iterator[Array]:
    """Seconds of a micro-batch on stages of 1, 2, ... layers, alone on their meshes.

    A stage runs the B micro-batches of a step, each forward and then backward, from the gather of
    its parameters to the end of its optimizer; 1/B of that is the latency of a micro-batch. Alpa
    has the gradients reduced once for all micro-batches (``get_grad_sync_channel_ids``, and
    ``num_micro_batches`` of its cost model), here the part that the backward does not hide.

    Parameters
    ----------
    each : layers by kind.
    order : kind of each layer; shape (L,).
    starts : first layers, ascending; shape (S,).
    batches : B.

    Yields
    ------
    Array
        For n = 1, 2, ..., all stages of n layers: those of a first part of ``starts``; shape (at
        most S, C).
    """
    walk = _Walk(each, order, starts, stack)
    for n in range(len(order) - int(starts[0])):
        if n:
            walk.grow(n, int(np.searchsorted(starts, len(order) - n)))
        yield walk.latency(batches)


class _Walk:
    """Stages that grow by one layer at a time, without the terms of the last layer.

    :meth:`latency` adds them: the traffic during the last layer, and between passes.
    """

    def __init__(self, each: AlpaLayerSeconds, order: Ints, starts: Ints, stack: Stack) -> None:
        self._each, self._order, self._starts, self._stack = each, order, starts, stack
        self._last = 0
        first = self._seen(0)
        self._gathers = first("gathered") > 0.0
        self._forward, self._backward = (
            first(way) + first("maxima") for way in ("forward", "backward"))
        self._balance = self._left = first("sync")
        self._begun = self._wait = first("gather")
        self._free, self._once = first("free_forward"), first("once")

    def _seen(self, n: int) -> Callable[[str], Array]:
        """Figures of the layers ``n`` after the first ones."""
        kinds = self._order[self._starts + n]
        return lambda name: np.asarray(getattr(self._each, name)[kinds])

    def grow(self, n: int, count: int) -> None:
        """Add layer ``n`` to the first ``count`` stages, which have one."""
        self._last, self._starts = n, self._starts[:count]
        for name in ("gathers", "forward", "backward", "balance", "left", "begun", "wait", "free",
                     "once"):
            setattr(self, f"_{name}", getattr(self, f"_{name}")[:count])
        new, last = self._seen(n), self._seen(n - 1)
        o, r, q = (self._stack.overlap_zero3, self._stack.overlap_grad_reduce,
                   self._stack.overlap_param_gather)
        x, y = o * last("free_forward"), o * last("free_backward")
        self._gathers = self._gathers | (new("gathered") > 0.0)
        beside = new("scattered")
        waited = beside + self._seen(n - 2)("regathered") if n > 1 else beside
        self._backward = self._backward + _more(waited, y) + new("backward")
        self._forward = self._forward + new("forward")
        if n > 1:
            self._forward = self._forward + _more(new("gathered"), x)
        # Compute that hides ZeRO traffic hides no reduction.
        beside = waited if n > 1 else beside + last("gathered")
        spare = last("free_backward")
        spare = _more(spare, beside / o) if o else np.where(beside > 0.0, 0.0, spare)
        self._balance = self._balance - r * spare + new("sync")
        self._left = np.maximum(self._left, self._balance)
        self._begun = self._begun - q * last("free_forward") + new("gather")
        self._wait = np.maximum(self._wait, self._begun)
        self._free = self._free + new("free_forward")
        self._once = self._once + new("once")

    def latency(self, batches: int) -> Array:
        """1/B of a step of the current stages."""
        first, o = self._seen(0), self._stack.overlap_zero3
        late, turn, chase = (np.where(self._gathers, figure, 0.0) for figure in self._borders())
        wait = self._wait + first("gathered")
        if self._last:
            wait = wait + _more(self._seen(1)("gathered"), o * first("free_forward"))
        trailing = np.where(self._gathers, 0.0, first("scattered"))
        pace = turn + chase + _more(
            trailing, o * self._free + o * self._seen(self._last)("free_backward"))
        step = (wait + batches * (self._forward + self._backward) + turn
                + (batches - 1) * (late + pace)
                + self._left + first("scattered") + self._once)
        return np.asarray(step / batches)

    def _borders(self) -> tuple[Array, Array, Array]:
        """``late``, ``turn``, ``chase`` of :class:`nest.schedules.chunk.ChunkCosts` with ZeRO-3."""
        first, last, o = self._seen(0), self._seen(self._last), self._stack.overlap_zero3
        x, y = o * first("free_forward"), o * first("free_backward")
        turn = _more(last("regathered"), o * last("free_forward"))
        if not self._last:
            both = _more(first("gathered") + first("regathered") + first("scattered"), x + y)
            return 0.0 * x, turn, np.maximum(_more(first("gathered"), y), both - turn)
        second, below = self._seen(1), self._seen(self._last - 1)
        late = (_more(second("scattered") + first("gathered"), y)
                - _more(second("scattered"), y))
        turn = turn + _more(below("regathered"), o * last("free_backward"))
        ahead = second("gathered") + first("scattered")
        if self._last == 1:
            return late, turn, _more(ahead, x)
        third, under = self._seen(2)("gathered"), o * second("free_forward")
        chase = np.maximum(_more(second("gathered"), x),
                           _more(ahead + third, x + under) - _more(third, under))
        return late, turn, chase


def _more(traffic: Array, hidden: Array) -> Array:
    """The exposed part of traffic."""
    return np.maximum(0.0, traffic - hidden)
