"""Dense arrays for the kernels: the only gate of shapes and types into compiled code.

Shapes: L layers, K positions of one super-pipeline (device numbers in steps that all usable block
sizes share), B block sizes, P prices (block size x class of places), C candidates (block size and
degrees), A policies (ZeRO stage x recompute), G signatures (ranges of layers that hold the same
kinds and cost the same), T layer kinds, F fields of :class:`nest.costs.layer.Sums`, N = C x A
configurations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import Row, choices, setting, span_level
from nest.costs.groups import place_class, strides
from nest.costs.layer import RECOMPUTE, Sums, layer_costs, sums
from nest.costs.memory import limit_bytes
from nest.costs.stage import hop_seconds
from nest.describe.cluster import Cluster
from nest.describe.job import Job
from nest.describe.space import SearchSpace
from nest.errors import LimitError
from nest.graph import Chain, boundary_bytes
from nest.legality import ep_problem, tp_problem

MOST_LAYERS = 1024

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Outer(NamedTuple):
    """One outer choice: what is the same for all stages."""

    outer_dp: int
    stride: int
    micro_batch: int
    micro_batches: int


class Tables(NamedTuple):
    """What the kernels get of one outer choice; the fields of ``_kernels.options.Candidates``.

    All arrays are C-contiguous; int64, float64 and bool.
    """

    layers: Floats
    """(N, T, F) what a layer of each kind adds, a slice of the array of all outer choices."""
    price: Ints
    """(N,) price of each configuration, ascending from 0."""
    shards: Floats
    """(N,) distinct shards of what a stage hands over."""
    forbidden: NDArray[np.bool_]
    """(N,) policies that no pipeline may use."""
    counts: Ints
    """(G, T) layers of each kind in a range of the signature."""
    part: Ints
    """(G,) signature with one layer less, of a lower number; -1 for none."""
    last: Ints
    """(G,) kind of that layer."""
    whole: int
    """Signature of the whole chain, the only one that is no part of a pipeline."""
    limit_bytes: float
    micro_batches: int
    most_in_flight: int


@dataclass(frozen=True)
class Signatures:
    """Ranges of layers by what they hold.

    ``index`` int64 (L+1, L+1): signature of layers i..j, -1 for none. ``counts`` int64 (G, T).
    ``part`` int64 (G,): the signature with one layer less, -1 for none; ``last`` that layer's kind.
    """

    index: Ints
    counts: Ints
    part: Ints
    last: Ints
    whole: int


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def signatures(chain: Chain) -> Signatures:
    """Group the ranges of a chain by the number of layers of each kind."""
    length, kinds = len(chain), len(chain.kinds)
    if length > MOST_LAYERS:
        raise LimitError(
            f"{chain.name}: {length} layers; at most {MOST_LAYERS} can be planned: merge layers"
        )
    whole = np.bincount(chain.stage(0, length), minlength=kinds)
    index = np.full((length + 1, length + 1), -1, dtype=np.int64)
    known: dict[bytes, int] = {}
    counts: list[Ints] = []
    part: list[int] = []
    last: list[int] = []
    for start in range(length):
        held = np.zeros(kinds, dtype=np.int64)
        for stop in range(start + 1, length + 1):
            held[chain.order[stop - 1]] += 1
            all_of_it = (start, stop) == (0, length)
            now = whole if all_of_it else held
            key = now.tobytes()
            if key not in known:
                known[key] = len(counts)
                counts.append(now.copy())
                # The whole chain may hold tied embeddings once, and any ZeRO stage.
                part.append(-1 if all_of_it else int(index[start, stop - 1]))
                last.append(chain.order[stop - 1])
            index[start, stop] = known[key]
    return Signatures(
        index, np.array(counts), np.array(part), np.array(last), int(index[0, length])
    )


def outers(cluster: Cluster, job: Job, space: SearchSpace) -> list[Outer]:
    """Outer choices of a space, by outer_dp, stride and micro_batch."""
    found = []
    for outer_dp in divisors(job.global_batch):
        if outer_dp > cluster.size or (space.outer_dp and outer_dp not in space.outer_dp):
            continue
        for stride in strides(cluster.size, outer_dp, cluster.group_sizes):
            for size in divisors(job.global_batch // outer_dp):
                if space.micro_batch is None or size in space.micro_batch:
                    count = job.global_batch // outer_dp // size
                    found.append(Outer(outer_dp, stride, size, count))
    return found


class Builder:
    """Costs of everything that the space allows, for all outer choices at once.

    Parameters
    ----------
    chain, cluster, job, space : what is planned.

    Attributes
    ----------
    outers : outer choices under which some block is legal.
    bounds : float64 (len(outers),), least step seconds of each: device-seconds that the layers
        need at the least where each alone fits, spread over all devices. inf: nothing fits.
    """

    def __init__(self, chain: Chain, cluster: Cluster, job: Job, space: SearchSpace) -> None:
        self.chain, self.cluster, self.job, self.space = chain, cluster, job, space
        self.group_sizes = cluster.group_sizes
        self.limit = limit_bytes(cluster.device, job)
        self.signatures = signatures(chain)
        self.tensor = self._tensor_degrees()
        self.depths = np.array(
            [d > 0 and (space.pp is None or d in space.pp) for d in range(len(chain) + 1)]
        )
        self.policies = [
            (zero, RECOMPUTE.index(policy))
            for zero in range(4)
            if space.zero is None or zero in space.zero
            for policy in (space.recompute or RECOMPUTE)
        ]
        self._places: dict[tuple[int, int], _Places] = {}
        self._experts: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.outers: list[Outer] = []
        self.rows: list[Row] = []
        first = []
        for outer in outers(cluster, job, space):
            found = self._candidates(outer)
            if found:
                self.outers.append(outer)
                first.append(len(self.rows))
                self.rows += found
        self._layer_costs = self._layers()
        self._first = [*first, len(self.rows)]
        self.bounds = self._bounds()

    # ------------------------------------------------------------ what is legal

    def _tensor_degrees(self) -> list[tuple[int, bool]]:
        """Legal (tp, sp), ascending."""
        model = self.chain.model
        if model is None:
            degrees = sorted(set.intersection(*(set(k.measured) for k in self.chain.kinds)))
        else:
            degrees = list(divisors(model.heads))
        found = []
        for tp in degrees:
            if tp > self.cluster.size or (self.space.tp is not None and tp not in self.space.tp):
                continue
            flags = (True, False) if self.space.sp is None else self.space.sp
            allowed = [False] if tp == 1 else sorted(flags, reverse=True)
            found += [(tp, sp) for sp in allowed if not tp_problem(self.chain, self.job, tp, sp)]
        return found

    def _expert_degrees(self, block: int, tp: int) -> list[tuple[int, int]]:
        if (block, tp) not in self._experts:
            self._experts[block, tp] = list(self._legal_experts(block, tp))
        return self._experts[block, tp]

    def _legal_experts(self, block: int, tp: int) -> Iterator[tuple[int, int]]:
        """Legal (ep, etp) on a block; etp is tp or 1 unless the space names others."""
        model, space = self.chain.model, self.space
        moe = model.moe if model is not None else None
        etps: tuple[int, ...] = tuple({tp, 1}) if moe is not None else (tp,)
        if space.etp is not None:
            etps = space.etp.values(block)
        for etp in sorted(etps, reverse=True):
            for ep in divisors(moe.experts) if moe is not None else (1,):
                if space.ep is not None and ep not in space.ep:
                    continue
                if not ep_problem(self.chain, ep, etp, tp, block):
                    yield ep, etp

    def _candidates(self, outer: Outer) -> list[Row]:
        """Blocks with their degrees and one start per class of places, by size and start."""
        space, found = self.space, []
        places = self.places(outer)
        for dp_in in divisors(outer.micro_batch):
            samples = outer.micro_batch // dp_in
            if dp_in > outer.stride or (space.dp_in is not None and dp_in not in space.dp_in):
                continue
            if space.mbs is not None and samples not in space.mbs:
                continue
            for tp, sp in self.tensor:
                block = dp_in * tp
                if block > outer.stride or any(block > g and block % g for g in self.group_sizes):
                    continue
                for ep, etp in self._expert_degrees(block, tp):
                    found += [
                        Row(start, block, samples, tp, sp, ep, etp, outer.outer_dp, outer.stride)
                        for start in places.representatives(block)
                    ]
        return sorted(found, key=lambda row: (row.block, row.start))

    def places(self, outer: Outer) -> _Places:
        key = outer.outer_dp, outer.stride
        if key not in self._places:
            self._places[key] = _Places(*key, self.group_sizes)
        return self._places[key]

    # ------------------------------------------------------------ prices

    def _layers(self) -> Floats:
        """What one layer of each kind adds under all candidates and policies; (C, A, T, F)."""
        kinds = self.chain.kinds
        shape = (len(self.rows), len(self.policies), len(kinds), len(Sums._fields))
        if not self.rows or not self.policies:
            return np.zeros(shape)
        zero, recompute = np.array(self.policies, dtype=np.int64).T[:, None, :]
        priced = choices(self.rows, zero, recompute, self.group_sizes)
        spans = {key: place.span for key, place in self._places.items()}
        level = np.array([spans[row.outer_dp, row.stride] for row in self.rows])
        common = setting(self.chain, self.cluster, self.job, level)
        layers = np.empty(shape)
        for kind, layer in enumerate(kinds):
            folded = sums(layer_costs(layer, priced, common), self.job.stack)
            for field, values in enumerate(folded):
                layers[:, :, kind, field] = values
        return layers

    def _bounds(self) -> Floats:
        low = Sums(*np.moveaxis(self._layer_costs, 3, 0))
        held = low.resident + low.work + low.buffers + low.activations
        block = np.array([row.block for row in self.rows], dtype=np.float64)
        time = np.where(held <= self.limit, low.forward + low.backward, np.inf)
        work = time.min(axis=1, initial=np.inf) * block[:, None]
        counts = self.signatures.counts[self.signatures.whole]
        used = counts > 0
        result = np.full(len(self.outers), np.inf)
        for n, outer in enumerate(self.outers):
            least = work[self._span(n)][:, used].min(axis=0)
            result[n] = outer.micro_batches * float(counts[used] @ least) / outer.stride
        return result

    def _span(self, number: int) -> slice:
        """Rows of an outer choice."""
        return slice(self._first[number], self._first[number + 1])

    # ------------------------------------------------------------ one outer choice

    @cached_property
    def deepest(self) -> int:
        """Most stages of a plan."""
        return int(np.flatnonzero(self.depths).max(initial=0))

    def configuration(self, number: int, option: int) -> tuple[Row, int, str]:
        """Degrees, ZeRO stage and recompute policy of a configuration of an outer choice."""
        row, policy = divmod(option, len(self.policies))
        zero, recompute = self.policies[policy]
        return self.rows[self._first[number] + row], zero, RECOMPUTE[recompute]

    def tables(self, number: int) -> Tables:
        """Arrays from which the options of outer choice ``number`` are selected."""
        outer, span = self.outers[number], self._span(number)
        rows, policies = self.rows[span], len(self.policies)
        prices = self._prices(rows)
        price = np.array([prices[self._price_key(row)] for row in rows], dtype=np.int64)
        shards = np.array([float(r.block if r.sp else r.block // r.tp) for r in rows])
        allowed = self.job.stack.zero_with_pipeline
        forbidden = np.array([zero not in allowed for zero, _ in self.policies])
        layers = self._layer_costs[span]
        return Tables(
            layers=layers.reshape(-1, *layers.shape[2:]),
            price=np.repeat(price, policies),
            shards=np.repeat(shards, policies),
            forbidden=np.tile(forbidden, len(rows)),
            counts=self.signatures.counts,
            part=self.signatures.part,
            last=self.signatures.last,
            whole=self.signatures.whole,
            # Sums in another order than ``evaluate``'s must not end on the other side.
            limit_bytes=self.limit * (1.0 - 1e-12),
            micro_batches=outer.micro_batches,
            most_in_flight=min(outer.micro_batches, max(self.deepest, 1)),
        )

    def _prices(self, rows: list[Row]) -> dict[tuple[int, int], int]:
        """Number of each block size and class of places, in the order of the rows."""
        return {key: n for n, key in enumerate(dict.fromkeys(map(self._price_key, rows)))}

    def _price_key(self, row: Row) -> tuple[int, int]:
        return row.block, int(self._places[row.outer_dp, row.stride].classes[row.start])

    def problem(self, number: int, options: tuple[Any, ...]) -> tuple[int, tuple[Any, ...]]:
        """Devices per position, and the fields of ``_kernels.pipeline.Problem``.

        ``options`` is what ``_kernels.options.select`` returned; block sizes without an option
        are left out.
        """
        outer, rows = self.outers[number], self.rows[self._span(number)]
        first, chosen = options[0], options[1]
        places = self.places(outer)
        sizes = sorted({rows[n].block for n in np.unique(chosen // len(self.policies))})
        unit = math.gcd(*sizes)
        starts = np.arange(0, outer.stride + 1, unit)
        prices = self._prices(rows)
        price = np.stack([places.prices(size, starts, prices) for size in sizes])
        both = hop_seconds(1.0, 1.0, 1.0, 0.0, self.job.stack)
        level = places.hop_level[starts]
        latency = np.array([lv.latency for lv in self.cluster.levels])[level]
        arrays = (
            outer.micro_batches,
            np.array(sizes, dtype=np.int64) // unit,
            np.array(sizes, dtype=np.float64),
            price,
            self.signatures.index,
            first,
            *options[2:],
            both * outer.micro_batch * self._boundaries,
            1.0 / np.array(self.cluster.resolved_bandwidth)[level],
            both * latency,
            self.depths,
        )
        return unit, arrays

    @cached_property
    def _boundaries(self) -> Floats:
        """Bytes per sample handed over before each layer; (L+1,), 0 at both ends."""
        inner = [boundary_bytes(self.chain, self.job, i) for i in range(1, len(self.chain))]
        return np.array([0.0, *inner, 0.0])


class _Places:
    """Where blocks may start in every super-pipeline, and which starts cost the same."""

    def __init__(self, outer_dp: int, stride: int, group_sizes: tuple[int, ...]) -> None:
        self.stride, self.group_sizes = stride, group_sizes
        self.span = span_level(outer_dp, stride, group_sizes)
        regular = not place_class(0, outer_dp, stride, group_sizes)
        self.origins = stride * np.arange(1 if regular else outer_dp)[:, None]
        self.classes: Ints = np.zeros(stride, dtype=np.int64)
        if not regular:
            names: dict[tuple[int, ...], int] = {}
            for start in range(stride):
                key = place_class(start, outer_dp, stride, group_sizes)
                self.classes[start] = names.setdefault(key, len(names))
        # Highest level, over the replicas, between the devices on both sides of a start.
        self.hop_level: Ints = np.zeros(stride + 1, dtype=np.int64)
        device = self.origins + np.arange(1, stride)
        for g in group_sizes:
            self.hop_level[1:stride] += ((device - 1) // g != device // g).any(axis=0)
        self._allowed: dict[int, NDArray[np.bool_]] = {}
        self._representatives: dict[int, list[int]] = {}

    def allowed(self, block: int) -> NDArray[np.bool_]:
        """Whether a block may start at each device; (stride,)."""
        if block not in self._allowed:
            first = self.origins + np.arange(self.stride - block + 1)
            good = np.ones(first.shape, dtype=np.bool_)
            for g in self.group_sizes:
                inside = first // g == (first + block - 1) // g
                good &= inside | ((first % g == 0) & (block % g == 0))
            result = np.zeros(self.stride, dtype=np.bool_)
            result[: self.stride - block + 1] = good.all(axis=0)
            self._allowed[block] = result
        return self._allowed[block]

    def representatives(self, block: int) -> list[int]:
        """One start for every class of places that a block may take, ascending."""
        if block not in self._representatives:
            starts = np.flatnonzero(self.allowed(block))
            _, first = np.unique(self.classes[starts], return_index=True)
            self._representatives[block] = sorted(int(s) for s in starts[first])
        return self._representatives[block]

    def prices(self, block: int, starts: Ints, numbers: dict[tuple[int, int], int]) -> Ints:
        """Price of a block at ``starts`` (the last is the end), -1 where it may not start."""
        known = np.array([numbers.get((block, c), -1) for c in range(self.classes.max() + 1)])
        result = np.full(len(starts), -1, dtype=np.int64)
        inner = starts[:-1]
        result[:-1] = np.where(self.allowed(block)[inner], known[self.classes[inner]], -1)
        return result
