"""Random changes of a configuration, each as likely as its reverse.

A change picks its move, then its target and its value, all uniformly, from sets that are equally
large in the changed configuration: so the probability of a proposal equals that of its reverse, as
plain Metropolis acceptance requires (arXiv:1807.05358, section 6.1). A configuration that is
illegal or outside the space is no proposal: the chain stays.

FlexFlow replaces the configuration of one operator. Here that is the configuration of one stage;
replicas, micro-batch and cuts change too, and some changes affect all stages at once, where single
changes would pass through worse configurations. Degrees change by a prime factor of the number of
devices.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

from nest.evaluation.even import even_configuration
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration, StageConfiguration
from nest.inputs.job import Job
from nest.inputs.space import SearchSpace
from nest.model import Chain
from nest.model.legality import divisors, interleaved_chunks, module_sets
from nest.planners.prices import PlannerPrices, degrees_of, outside
from nest.schedules.registry import PLAIN

Stages = tuple[StageConfiguration, ...]
Move = Callable[[random.Random, Configuration], Configuration | None]

INNER = ("tp", "cp", "dp_in")
"""Degrees that fill a block."""
FARTHEST = 3
"""Layers that a cut moves at once, at most (chosen)."""


class Proposals:
    """Proposals for one model, cluster, job and space."""

    def __init__(
        self, chain: Chain, cluster: Cluster, job: Job, space: SearchSpace, prices: PlannerPrices
    ) -> None:
        self.chain, self.cluster, self.job, self.space = chain, cluster, job, space
        self.prices = prices
        self.factors = _primes(cluster.size) or (2,)
        self.samples = _primes(job.global_batch) or (2,)
        self.ways = [(z, s) for z in range(4) for s in ("dp", "dp_in")
                     if space.allows("zero", z) and (z or s == "dp")
                     and (not z or space.allows("shard", s))]
        forms = [(name, 1) for name in ("p2p", "a2a", "all_gather")]
        forms += [("a2a+p2p", inner) for inner in divisors(cluster.size) if inner > 1]
        self.forms = [(name, inner) for name, inner in forms if space.allows("cp_comm", name)
                      and (inner == 1 or space.allows("cp_a2a", inner))] or forms[:1]
        self.module_sets = module_sets(chain, space, job.stack)
        moe = chain.experts
        self.pairs = [] if moe is None else [
            (ep, etp) for ep in divisors(moe.experts) for etp in divisors(moe.ffn)
            if space.allows("ep", ep) and space.allows("etp", etp) and ep * etp <= cluster.size]
        self.moves: list[Move] = [
            self._exchange, self._resize, self._trade, self._replicas, self._depth, self._cut,
            self._micro_batch, self._zero, self._recompute, self._traffic, self._schedule]
        if self.pairs:
            self.moves.append(self._experts)

    def propose(self, rng: random.Random, plan: Configuration) -> Configuration | None:
        """A changed configuration; None where the change is not legal or not in the space."""
        found = rng.choice(self.moves)(rng, plan)
        if found is None or found.stages[-1].devices[1] > found.stride:
            return None
        for stage in found.stages:  # r as large as the stage equals full recompute
            if stage.recompute_layers is not None and (
                    stage.recompute_layers >= stage.layers[1] - stage.layers[0]):
                return None
        legal = outside(self.space, self.chain, found) is None and self.prices.legal(found)
        return found if legal else None

    # ------------------------------------------------------------ degrees and blocks

    def _scope(self, rng: random.Random, plan: Configuration) -> Sequence[int]:
        """One stage, or all of them."""
        if rng.random() < 0.5:
            return range(plan.pp)
        return (rng.randrange(plan.pp),)

    def _exchange(self, rng: random.Random, plan: Configuration) -> Configuration | None:
        """Divide one degree of a block and multiply another."""
        down, up = rng.choice(list(permutations(INNER, 2)))
        factor = rng.choice(self.factors)
        return self._scaled(plan, self._scope(rng, plan), {down: (1, factor), up: (factor, 1)})

    def _resize(self, rng: random.Random, plan: Configuration) -> Configuration | None:
        """Multiply or divide one degree, and the block with it."""
        factor = rng.choice(self.factors)
        change = rng.choice(((1, factor), (factor, 1)))
        return self._scaled(plan, self._scope(rng, plan), {rng.choice(INNER): change})

    def _trade(self, rng: random.Random, plan: Configuration) -> Configuration | None:
        """Multiply a degree of one stage and divide that of another."""
        if plan.pp == 1:
            return None
        more, less = rng.sample(range(plan.pp), 2)
        name, factor = rng.choice(INNER), rng.choice(self.factors)
        found = self._scaled(plan, (less,), {name: (1, factor)})
        return found and self._scaled(found, (more,), {name: (factor, 1)})

    def _replicas(self, rng: random.Random, plan: Configuration) -> Configuration | None:
        """More replicas of smaller blocks, or fewer of larger ones; or only more or fewer."""
        name, factor = rng.choice((*INNER, None)), rng.choice(self.factors)
        up, down = rng.choice(((1, factor), (factor, 1)))
        if plan.outer_dp * up % down or name == "dp_in" and plan.micro_batch * down % up:
            return None
        outer_dp = plan.outer_dp * up // down
        outer = {"outer_dp": outer_dp, "stride": max(1, self.cluster.size // outer_dp)}
        if name == "dp_in":  # as many samples on each device as before
            outer["micro_batch"] = plan.micro_batch * down // up
        changed = plan.unchecked(**outer)
        if name is None:
            return changed
        return self._scaled(changed, range(plan.pp), {name: (down, up)})

    def _scaled(
        self, plan: Configuration, scope: Sequence[int], changes: dict[str, tuple[int, int]]
    ) -> Configuration | None:
        """Degrees of some stages times up / down; None where that is not a whole number."""
        stages = list(plan.stages)
        for number in scope:
            new = self._degrees(stages[number], changes)
            if new is None:
                return None
            stages[number] = new
        return _placed(plan, stages)

    def _degrees(
        self, stage: StageConfiguration, changes: dict[str, tuple[int, int]]
    ) -> StageConfiguration | None:
        new: dict[str, Any] = {}
        for name, (up, down) in changes.items():
            value = getattr(stage, name) * up
            if value % down:
                return None
            new[name] = value // down
        tp, cp = new.get("tp", stage.tp), new.get("cp", stage.cp)
        # Where a degree falls to 1, its dependent fields must equal those set when it rises.
        if tp == 1 < stage.tp and stage.sp != self.usual_sp or cp == 1 < stage.cp and (
                stage.cp_comm, stage.cp_a2a) != self.forms[0]:
            return None
        if (tp > 1) != (stage.tp > 1):
            new["sp"] = tp > 1 and self.usual_sp
        if (cp > 1) != (stage.cp > 1):
            new["cp_comm"], new["cp_a2a"] = self.forms[0] if cp > 1 else ("p2p", 1)
        if not self.pairs:
            new["etp"] = tp
        return stage.unchecked(**new)

    @property
    def usual_sp(self) -> bool:
        """Dependent fields of a stage when its tp rises from 1."""
        return self.space.allows("sp", True)

    # ------------------------------------------------------------ stages

    def _depth(self, rng: random.Random, plan: Configuration) -> Configuration | None:
        """Cut one or all stages in two of half the devices or replicas, or undo that."""
        name = rng.choice((*INNER, "outer_dp"))
        everything = rng.random() < 0.5
        if plan.vpp > 1:
            return self._interleaved_depth(rng, plan, name) if everything else None
        if name == "outer_dp" and not everything:
            return None
        if rng.random() < 0.5:
            chosen = range(plan.pp) if everything else (rng.randrange(plan.pp),)
            stages = self._split(plan.stages, chosen, name)
            outer_dp, odd = divmod(plan.outer_dp, 2)
        else:
            if plan.pp == 1 or everything and plan.pp % 2:
                return None
            firsts = range(0, plan.pp, 2) if everything else (rng.randrange(plan.pp - 1),)
            stages = self._joined(plan.stages, firsts, name)
            outer_dp, odd = 2 * plan.outer_dp, 0
        if stages is None:
            return None
        if name != "outer_dp":
            return _placed(plan, stages)
        if odd:
            return None
        return _placed(plan.unchecked(**{
            "outer_dp": outer_dp, "stride": max(1, self.cluster.size // outer_dp)}), stages)

    def _interleaved_depth(
        self, rng: random.Random, plan: Configuration, name: str
    ) -> Configuration | None:
        """Twice or half the stages with half or twice the devices or replicas, all equal.

        As many virtual stages as before, or as many chunks in all.
        """
        deeper, same = rng.random() < 0.5, rng.random() < 0.5
        up, down = (2, 1) if deeper else (1, 2)
        vpp = plan.vpp if same else plan.vpp * down // up
        first, last = self.chain.body
        if (plan.pp * up % down or not same and plan.vpp * down % up or vpp == 1
                or plan.pp * up // down == 1 or (last - first) % (plan.pp * up // down * vpp)):
            return None
        outer = plan
        if name == "outer_dp":
            if plan.outer_dp * down % up:
                return None
            outer_dp = plan.outer_dp * down // up
            outer = plan.unchecked(**{
                "outer_dp": outer_dp, "stride": max(1, self.cluster.size // outer_dp)})
        stage = plan.stages[0] if name == "outer_dp" else self._degrees(
            plan.stages[0], {name: (down, up)})
        if stage is None:
            return None
        chunks = interleaved_chunks(self.chain, plan.pp * up // down, vpp)
        return _placed(outer.unchecked(vpp=vpp), [
            stage.unchecked(layers=(c[0][0], c[-1][1]), chunks=c)
            for c in chunks])

    def _split(
        self, stages: Stages, chosen: Sequence[int], name: str
    ) -> list[StageConfiguration] | None:
        found = []
        for number, stage in enumerate(stages):
            if number not in chosen:
                found.append(stage)
                continue
            half = stage if name == "outer_dp" else self._degrees(stage, {name: (1, 2)})
            first, last = stage.layers
            middle = (first + last) // 2
            if half is None or middle == first:
                return None
            found += [half.unchecked(layers=span, chunks=(span,))
                      for span in ((first, middle), (middle, last))]
        return found

    def _joined(
        self, stages: Stages, firsts: Sequence[int], name: str
    ) -> list[StageConfiguration] | None:
        found = []
        for number, stage in enumerate(stages):
            if number - 1 in firsts:
                continue
            if number not in firsts:
                found.append(stage)
                continue
            after = stages[number + 1]
            span = stage.layers[0], after.layers[1]
            if degrees_of(stage) != degrees_of(after) or stage.layers[1] != sum(span) // 2:
                return None
            whole = stage if name == "outer_dp" else self._degrees(stage, {name: (2, 1)})
            if whole is None:
                return None
            found.append(whole.unchecked(layers=span, chunks=(span,)))
        return found

    def _cut(self, rng: random.Random, plan: Configuration) -> Configuration | None:
        """Move one cut by a few layers."""
        if plan.pp == 1 or plan.vpp > 1:
            return None
        number = rng.randrange(1, plan.pp)
        by = rng.choice((-1, 1)) * rng.randint(1, FARTHEST)
        before, after = plan.stages[number - 1], plan.stages[number]
        cut = after.layers[0] + by
        if not before.layers[0] < cut < after.layers[1]:
            return None
        stages = list(plan.stages)
        for place, span in ((number - 1, (before.layers[0], cut)),
                            (number, (cut, after.layers[1]))):
            stages[place] = stages[place].unchecked(layers=span, chunks=(span,))
        return plan.unchecked(stages=tuple(stages))

    def _schedule(self, rng: random.Random, plan: Configuration) -> Configuration | None:
        """Another schedule, or other virtual stages; only between even cuts and equal stages."""
        first, last = self.chain.body
        options: list[tuple[str, int]] = [
            (name, 1) for name in self.space.schedules
            if name in PLAIN and name != "interleaved"]
        if "interleaved" in self.space.schedules and plan.pp > 1 and (last - first) % plan.pp == 0:
            options += [("interleaved", vpp) for vpp in divisors((last - first) // plan.pp)
                        if vpp > 1]
        schedule, vpp = rng.choice(options) if options else (plan.schedule, plan.vpp)
        update: dict[str, Any] = {"schedule": schedule, "vpp": vpp}
        if vpp != plan.vpp:
            before, after = self._chunks(plan.pp, plan.vpp), self._chunks(plan.pp, vpp)
            if [s.chunks for s in plan.stages] != before or not _alike(plan):
                return None
            update["stages"] = tuple(
                stage.unchecked(layers=(c[0][0], c[-1][1]), chunks=c)
                for stage, c in zip(plan.stages, after, strict=True))
        return plan.unchecked(**update)

    def _chunks(self, pp: int, vpp: int) -> list[tuple[tuple[int, int], ...]]:
        if vpp > 1:
            return interleaved_chunks(self.chain, pp, vpp)
        even = even_configuration(self.chain, self.cluster, self.job, pp=pp, outer_dp=1)
        return [stage.chunks for stage in even.stages]

    # ------------------------------------------------------------ what a stage keeps and sends

    def _micro_batch(self, rng: random.Random, plan: Configuration) -> Configuration | None:
        """A larger or smaller micro-batch."""
        up, factor = rng.random() < 0.5, rng.choice(self.samples)
        if not up and plan.micro_batch % factor:
            return None
        size = plan.micro_batch * factor if up else plan.micro_batch // factor
        return plan.unchecked(micro_batch=size)

    def _replaced(
        self, rng: random.Random, plan: Configuration, new: dict[str, Any]
    ) -> Configuration | None:
        """Other values for one stage, or for all where all have the same."""
        scope = self._scope(rng, plan)
        values = {tuple(getattr(plan.stages[n], name) for name in new) for n in scope}
        if len(values) > 1:
            return None
        stages = tuple(stage.unchecked(**new) if n in scope else stage
                       for n, stage in enumerate(plan.stages))
        return plan.unchecked(stages=stages)

    def _zero(self, rng: random.Random, plan: Configuration) -> Configuration | None:
        """Another ZeRO stage, or other devices to shard over."""
        if not self.ways:
            return None
        zero, shard = rng.choice(self.ways)
        return self._replaced(rng, plan, {"zero": zero, "shard": shard})

    def _experts(self, rng: random.Random, plan: Configuration) -> Configuration | None:
        """Other expert-parallel and expert-tensor degrees."""
        ep, etp = rng.choice(self.pairs)
        return self._replaced(rng, plan, {"ep": ep, "etp": etp})

    def _recompute(self, rng: random.Random, plan: Configuration) -> Configuration | None:
        """Another recompute policy: none, modules, everything, or the first layers."""
        shortest = min(stage.layers[1] - stage.layers[0] for stage in plan.stages)
        policies: list[tuple[str, tuple[str, ...], int | None]] = [
            ("none", (), None), ("full", (), None)]
        policies += [("selective", modules, None) for modules in self.module_sets]
        policies += [("full", (), layers) for layers in range(1, shortest)]
        recompute, modules, layers = rng.choice(policies)
        return self._replaced(rng, plan, {"recompute": recompute, "recompute_modules": modules,
                                          "recompute_layers": layers})

    def _traffic(self, rng: random.Random, plan: Configuration) -> Configuration | None:
        """Sequence parallelism on or off, or another exchange of cp."""
        if rng.random() < 0.5:
            return self._replaced(rng, plan, {"sp": rng.random() < 0.5})
        name, inner = rng.choice(self.forms)
        return self._replaced(rng, plan, {"cp_comm": name, "cp_a2a": inner})


def _primes(number: int) -> tuple[int, ...]:
    """Distinct prime factors, ascending."""
    return tuple(d for d in divisors(number) if d > 1 and len(divisors(d)) == 2)


def _placed(plan: Configuration, stages: Sequence[StageConfiguration]) -> Configuration:
    """Stages on consecutive blocks of the sizes that their degrees give."""
    found, start = [], 0
    for stage in stages:
        stop = start + stage.tp * stage.cp * stage.dp_in
        found.append(stage if stage.devices == (start, stop)
                     else stage.unchecked(devices=(start, stop)))
        start = stop
    return plan.unchecked(stages=tuple(found))


def _alike(plan: Configuration) -> bool:
    return len({degrees_of(stage) for stage in plan.stages}) == 1
