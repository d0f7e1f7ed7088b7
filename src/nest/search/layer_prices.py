"""What a layer of each kind takes and holds: with each body of a stage, and each state of it.

Shapes: C candidates, U bodies and V states (see :mod:`nest.costs.layer`; many candidates share
one), R recompute policies, Z ways of ZeRO, T layer kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.activations import backward_parts
from nest.costs.choices import FULL, Body, Site, StageSetting, State, bodies, policy, states
from nest.costs.distinct import distinct_rows, spread
from nest.costs.layer import BodyCosts, body_costs
from nest.costs.memory import limit_bytes
from nest.costs.network.fabric import Fabric
from nest.costs.zero import StateCosts, state_costs
from nest.model import Layer
from nest.model.operators import FURTHER_MODULES, OUTPUT_MODULES
from nest.schedules.chunk import STATE_BUFFERS, STATE_RESIDENT
from nest.search.candidates import Candidates, Rows
from nest.search.query import Query

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Map = Callable[[Callable[[Any], None], Iterable[Any]], Iterable[None]]

BODY, STATE, APART, EXCHANGED = 4, 12, 4, 4
SOME = 1 << 17
"""Bodies x policies that a thread prices at once: fewer, and NumPy takes longer for its calls."""
SUMMED = 512
"""Bodies whose seconds are summed at once, for little memory."""


class OfType(NamedTuple):
    """The bodies and states of blocks that may lie on devices of one type."""

    type: int
    bodies: Ints
    """(n,) their numbers."""
    body: Body
    states: Ints
    """(n,) their numbers."""
    state: State


class Grouped(NamedTuple):
    """Candidates whose layers cost the same, whatever the rates of levels."""

    body_of: Ints
    """(C,) number of the body of each."""
    state_of: Ints
    states: int
    by_type: list[OfType]
    ends: list[tuple[Ints, Ints]]
    """Super-pipelines and their distance, of each state of each type."""


class LayerPrices:
    """Prices of layers on the devices of a cluster, each body and each state once.

    Parameters
    ----------
    query : what is planned.
    settings : rates of the devices of each type.
    policies, zeros : recompute policies and ways of ZeRO.

    Attributes
    ----------
    ahead, back, state : see :class:`nest.records.tables.Tables`.
    apart : see :class:`nest.records.problems.Pipelines`.
    exchanged : see :class:`nest.records.tables.Degrees`.
    exchange : float64 (U, 2, T, 2), all-to-alls of experts, forward and backward, where experts
        do not run again and where they do; None: there are no experts.
    again : int64 (R,), 1: experts run again.
    """

    def __init__(
        self, query: Query, settings: Sequence[StageSetting], policies: list[int],
        zeros: list[tuple[int, int]],
    ) -> None:
        chain, job = query.chain, query.job
        self.chain, self.job, self.policies, self.zeros = chain, job, policies, zeros
        self.settings = settings
        limits = [limit_bytes(one.machine.device, job) for one in settings]
        self.limit = max(limits)
        self._less = [self.limit - limit for limit in limits]
        """Bytes that devices of each type hold less than those that hold most."""
        self._host = [
            limit / (one.machine.device.host_memory or np.inf) if query.spare_host else 0.0
            for limit, one in zip(limits, settings, strict=True)]
        """Bytes of a device that a byte on its host counts as, at the least."""
        self.again = np.array([int(bits == FULL or bits & policy("", ["moe"]) > 0)
                               for bits in policies], dtype=np.int64)
        self._distinct = [_distinct(kind, policies) for kind in chain.kinds]
        kinds = len(chain.kinds)
        self.ahead = np.zeros((0, kinds, 2))
        self.back = np.zeros((0, len(policies), kinds, BODY))
        self.state = np.zeros((0, len(zeros), kinds, STATE))
        self.apart = np.zeros((0, len(policies), kinds, APART))
        self.exchanged = np.zeros((0, len(zeros), kinds, EXCHANGED))
        self.exchange: Floats | None = None
        self.by_type: list[OfType] = []

    def filled(
        self, known: Grouped, fabric: Fabric, in_parts: bool, each_of: Map = map
    ) -> LayerPrices:
        """Prices of what candidates need.

        Parameters
        ----------
        fabric : of levels of the same sizes as that of ``known``.
        in_parts : price the two parts of backwards too.
        each_of : calls a function with each of some arguments, in threads or not.
        """
        if not known.by_type:
            return self
        by_type = [
            one._replace(state=one.state._replace(tied_per_byte=per_byte, tied_latency=latency))
            for one, ends in zip(known.by_type, known.ends, strict=True)
            for _, per_byte, latency in [fabric.ends(*ends)]]
        new = self.with_bodies(by_type, in_parts, each_of)
        new.state = np.empty((known.states, len(self.zeros), len(self.chain.kinds), STATE))
        for n, _, _, own, held in by_type:
            for kind, layer in enumerate(self.chain.kinds):
                new.state[own, :, kind] = self.state_of(
                    state_costs(layer, held, self.settings[n]), n)
        return new

    def with_bodies(
        self, by_type: list[OfType], in_parts: bool, each_of: Map = map
    ) -> LayerPrices:
        """The same with prices of the bodies of ``by_type``."""
        count = sum(len(one.bodies) for one in by_type)
        kinds, new = len(self.chain.kinds), self.replace(by_type=by_type)
        new.ahead = np.empty((count, kinds, 2))
        new.back = np.empty((count, len(self.policies), kinds, BODY))
        if self.chain.experts is not None:
            new.exchange = np.zeros((count, 2, kinds, 2))
            each = [int(np.argmax(self.again == again)) for again in range(2)]
        new.apart = np.zeros((count if in_parts else 0, len(self.policies), kinds, APART))

        def price(part: tuple[OfType, Ints]) -> None:
            (n, mine, of_type, _, _), some = part
            rows, own = mine[some], of_type.take(some)
            for kind, layer in enumerate(self.chain.kinds):
                distinct, number = self._distinct[kind]
                own = own._replace(recompute=distinct)
                costs = body_costs(layer, own, self.settings[n])
                new._put_body(rows, kind, costs, self._host[n])
                if in_parts:
                    new.apart[rows, :, kind] = self.parts_of(kind, own, costs, n)[:, number]
                if new.exchange is not None:
                    away = np.broadcast_arrays(costs.ep_forward, costs.ep_backward)
                    new.exchange[rows, :, kind] = np.stack(away, axis=-1)[:, number[each]]

        size = max(1, SOME // len(self.policies))
        list(each_of(price, [(one, np.arange(begin, min(begin + size, len(one.bodies))))
                             for one in by_type for begin in range(0, len(one.bodies), size)]))
        return new

    def parts_of(self, kind: int, body: Body, costs: BodyCosts, number: int) -> Floats:
        """``apart`` of layers of a kind on devices of a type; (n, R, 4)."""
        two = backward_parts(self.chain.kinds[kind], body, self.settings[number], costs.backward,
                    costs.activations)
        share = self.job.stack.overlap_ep
        figures = (share * costs.ep_forward, share * costs.ep_backward, *two)
        return np.stack(np.broadcast_arrays(*figures), axis=-1)

    def _put_body(self, rows: Ints, kind: int, b: BodyCosts, host: float) -> None:
        ahead = b.forward + b.tp_forward + b.cp_forward + b.ep_forward + b.offload_forward
        self.ahead[rows, kind] = np.concatenate([b.free_forward[:, :1], ahead[:, :1]], axis=1)
        back = (b.backward + b.recompute + b.tp_backward + b.cp_backward + b.ep_backward
                + b.offload_backward)
        kept = np.maximum(b.activations, host * b.host_activations)
        self.back[rows, :, kind] = np.stack(np.broadcast_arrays(
            b.free_backward, back, kept, b.work), axis=-1)[:, self._distinct[kind][1]]

    def state_of(self, z: StateCosts, number: int) -> Floats:
        """``state`` on devices of a type; (n, Z, 12). The bytes that they lack count as a buffer:
        the largest counts once a stage."""
        held = np.maximum(z.parameters + z.gradients + z.optimizer,
                          self._host[number] * z.host_states)
        figures = (z.gathered, z.regathered, z.scattered, z.sync, z.gather,
                   z.buffers + self._less[number], z.update, z.tied, held, z.slowed_forward,
                   z.slowed_backward, z.maxima)
        return np.stack(np.broadcast_arrays(*figures), axis=-1)

    def all_to_alls(self, bodies: slice = slice(None)) -> Floats:
        """Seconds of all-to-alls of experts, forward and backward; (bodies, R, T, 2)."""
        assert self.exchange is not None
        found: Floats = self.exchange[bodies][:, self.again]
        return found

    def beside(self, bodies: slice = slice(None)) -> Floats:
        """(bodies, R, T) seconds of a micro-batch in a layer, if passes hide all of the all-to-alls
        that the stack lets them hide."""
        found: Floats = self.ahead[bodies, None, :, 1] + self.back[bodies, ..., 1]
        if self.exchange is not None:
            found -= self.job.stack.overlap_ep * self.all_to_alls(bodies).sum(axis=3)
        return found

    def least_beside(self, pairs: Mapping[tuple[int, int], int]) -> Floats:
        """(U,) least :meth:`beside` of all layers; ``pairs``: kinds of a layer, and how many have
        these."""
        found = np.empty(len(self.ahead))
        for begin in range(0, len(found), SUMMED):
            some = slice(begin, begin + SUMMED)
            seconds = self.beside(some)
            found[some] = np.asarray(sum(
                many * np.minimum(seconds[..., a], seconds[..., b])
                for (a, b), many in pairs.items())).min(axis=1, initial=np.inf)
        return found

    def of_bodies(self, used: Ints) -> LayerPrices:
        """The same of some bodies alone."""
        return self.replace(
            ahead=self.ahead[used], back=self.back[used],
            apart=self.apart[used if len(self.apart) else slice(0)],
            by_type=some_bodies(self.by_type, used),
            exchange=None if self.exchange is None else self.exchange[used])

    def with_parts(self, used: Ints) -> LayerPrices:
        """The same with the two parts of backwards, of some bodies."""
        apart = np.zeros((*self.back.shape[:3], APART))
        for n, numbers, body, _, _ in self.by_type:
            mine = np.isin(numbers, used)
            body = body.take(np.flatnonzero(mine))
            for kind, layer in enumerate(self.chain.kinds if mine.any() else ()):
                distinct, number = self._distinct[kind]
                own = body._replace(recompute=distinct)
                apart[numbers[mine], :, kind] = self.parts_of(
                    kind, own, body_costs(layer, own, self.settings[n]), n)[:, number]
        return self.replace(apart=apart)

    def replace(self, **attributes: Any) -> LayerPrices:
        """The same with other values of some attributes."""
        other = copy(self)
        other.__dict__.pop("least", None)
        vars(other).update(attributes)
        return other

    def compared(self, together: bool) -> tuple[Floats, Floats]:
        """What one body is compared with another by: ``ahead`` and ``back``, with more kinds.

        Of a backward in two parts each part is one; of all-to-alls that computing of the other
        direction hides (``together``) a pass less these, less the computing, and less both:
        docs/proofs.md, Lemma 20 (candidates).
        """
        if not len(self.apart):
            return self.ahead, self.back
        away, back, weights, kept = np.moveaxis(self.apart, 3, 0)
        free, whole = self.back[..., 0], self.back[..., 1]
        none = 0.0 * free
        extra = [np.stack([np.maximum(0.0, free - weights), whole - weights, kept, none], axis=3),
                 np.stack([weights, weights, none, none], axis=3)]
        ahead = [np.zeros((len(self.ahead), 2 * free.shape[2], 2))]
        if together:
            own, spare = self.ahead[..., 1], self.ahead[..., 0]
            for out, less in ((away, 0.0), (none, 1.0), (away, 1.0)):
                ahead.append(np.stack([0.0 * own, own - out[:, 0] - less * spare], axis=2))
            for out, less in ((back, 0.0), (none, 1.0), (back, 1.0)):
                extra.append(np.stack([none, whole - out - less * free, none, none], axis=3))
        return (np.concatenate([self.ahead, *ahead], axis=1),
                np.concatenate([self.back, *extra], axis=2))

    @cached_property
    def least(self) -> tuple[Floats, Floats, Floats]:
        """Of a layer of each kind, the least seconds of a body, and bytes of it and of a state."""
        return (self.ahead[:, :, 1] + self.back[..., 1].min(axis=1),
                (self.back[..., 2] + self.back[..., 3]).min(axis=1),
                (self.state[..., STATE_BUFFERS] + self.state[..., STATE_RESIDENT]).min(axis=1))


def some_bodies(by_type: list[OfType], used: Ints) -> list[OfType]:
    """Some of the bodies alone, by number, ascending; they get new numbers."""
    return [one._replace(bodies=np.searchsorted(used, one.bodies[here]), body=one.body.take(here))
            for one in by_type for here in [np.flatnonzero(np.isin(one.bodies, used))]]


def grouped(
    candidates: Candidates, rows: Rows, site: Site, policies: list[int],
    zeros: list[tuple[int, int]],
) -> Grouped:
    """What there is to price, each body and each state once; ``site``: of the candidates."""
    none = np.zeros(0, dtype=np.int64)
    if not len(rows.block) or not policies or not zeros:
        return Grouped(none, none, 0, [], [])
    fabric, splits, pairs = candidates.fabric, candidates.splits, candidates.pairs
    here = site if fabric.by_links else site[1:2]  # what groups inside a block depend on
    device = fabric.types(rows.start)
    # Where samples differ in length, ranks with samples of their own count.
    near = rows.block // splits.width[rows.split]
    owners = [site.outer_dp * near, near] if candidates.job.samples else []
    one, body_of = distinct_rows(*here, rows.samples, rows.split, rows.pair, *owners)
    machine = device[one]
    split, pair = rows.split[one], rows.pair[one]
    body = bodies(
        fabric, site.take(one), rows.samples[one], splits.tp[split], splits.sp[split],
        splits.cp[split], splits.inner[split], splits.gather[split], pairs.ep[pair],
        np.maximum(pairs.etp[pair], 1), recompute=np.array([policies]),
    )
    alike, number = distinct_rows(
        machine, rows.samples[one], split, pair, *(owner[one] for owner in owners),
        *(spread(group) for group in body.groups))
    body_of = number[body_of]
    body, machine = body.take(alike), machine[alike]
    tp, experts = splits.tp[rows.split], pairs.width[rows.pair]
    one, state_of = distinct_rows(*site, tp, experts)
    zero, shard = np.array(zeros, dtype=np.int64).T[:, None, :]
    site = site.take(one)
    state = states(fabric, site, tp[one], experts[one], zero, shard,
                   candidates.job.reduces_maxima)
    alike, number = distinct_rows(
        device[one], state.tp, state.ep, fabric.ends(site.outer_dp, site.stride)[0],
        *(spread(group) for group in state.groups))
    state_of = number[state_of]
    state, site, device = state.take(alike), site.take(alike), device[one][alike]
    by_type = [
        OfType(n, mine, body.take(mine), own, state.take(own))
        for n in np.unique(machine).tolist() if len(mine := np.flatnonzero(machine == n))
        for own in [np.flatnonzero(device == n)]]
    return Grouped(body_of, state_of, len(state.tp), by_type, [
        (site.outer_dp[own], site.stride[own]) for _, _, _, own, _ in by_type])


def _distinct(layer: Layer, policies: Sequence[int]) -> tuple[Ints, Ints]:
    """Policies that differ in a layer, (1, D), and the number of each policy among them, (R,)."""
    lacks = 0
    has = (*layer.modules, *layer.further_modules, *layer.output_modules)
    for name in (*FURTHER_MODULES, *OUTPUT_MODULES, "moe"):
        if name not in has and not (
                layer.traffic.mlp if name == "mlp" else layer.traffic.experts):
            lacks |= policy("", [name])
    own = [bits if bits == FULL else bits & ~lacks for bits in policies]
    found, number = np.unique(own if layer.checkpointed else [0 for _ in own], return_inverse=True)
    return found[None].astype(np.int64), number
