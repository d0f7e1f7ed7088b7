"""Alpa's intra-operator pass: sharding of every operator on a device mesh, by an integer program.

L. Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep
Learning", OSDI 2022, arXiv:2201.12023, section 4. The mesh has two axes: n0 devices that divide the
batch, and n1 neighbouring ones that divide each operator. The inter-operator pass requires the
batch on axis 0 (``force_batch_dim_to_mesh_dim`` of its authors' program, alpa-projects/alpa,
alpa/pipeline_parallel/stage_construction.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nest.costs.choices import Site, bodies, setting, states
from nest.costs.layer import body_costs
from nest.costs.network.collectives import Group, all_gather, all_reduce
from nest.costs.network.fabric import fabric_of
from nest.costs.network.groups import inner_group
from nest.costs.zero import state_costs
from nest.inputs.cluster import Cluster
from nest.inputs.job import Job
from nest.model import Chain, Layer
from nest.planners.alpa.program import Edge, solve
from nest.planners.flat import Array

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
