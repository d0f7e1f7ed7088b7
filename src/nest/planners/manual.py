"""An expert's choice by the published rules for Megatron-LM, improved by a few steps.

The rules lead to a first choice, the smallest model-parallel size that fits:

1. Tensor parallelism up to the devices of a node, then pipeline stages across nodes
   (arXiv:2104.04473, takeaway 1 in section 3.2); the smallest tp x pp whose parameters and
   activations fit, data parallelism for the rest (takeaway 2, section 3.3). Degrees double, as in
   its table 1; where no power of two does, other numbers of stages that divide devices and layers
   are tried, such as its 35 stages for 530B.
2. Experts (Megatron-Core, megatron/core/transformer/moe/README.md, "Performance Best Practice"):
   model parallelism as small as possible; ep x tp within the scale-up domain; more stages before
   more of either; ep rather than tp for experts, so etp 1. Here ep is as large as the domain and
   the number of experts allow, then stages, then tp, then ep beyond the domain.
3. The optimizer sharded (ZeRO-1, the "distributed optimizer") where the stack allows it with
   pipelines (the same README: it lets model parallelism shrink; NeMo's recipes set it always).
4. Recompute only if nothing fits without it (arXiv:2205.05198, section 5: selective, and full only
   where that is not enough).
5. Context parallelism for sequences of 8,192 tokens and more (the same README, rule 5), here where
   the rules before leave devices idle or find nothing that fits.
6. Virtual stages from the divisors of the layers of a stage (the same README, rule 3), and the
   micro-batch, are tried, and the fastest kept (takeaway 3, section 3.4).

From there the next larger pp and, for dense models (experts have rule 2), the next larger tp of the
node are tried, and the faster one is taken as long as it is an improvement: "until it fits" is only
the start of an expert's search. Megatron-Bridge names ranges as starting points (skills,
"Parallelism Strategy Selection": tp 4 to 8 and pp 2 to 4 for 10 to 70 billion parameters, tp 8 and
pp 4 to 8 up to 175), and NeMo's Auto Configurator trains a few steps with some tp, pp and
micro-batches each and keeps the fastest. Recompute, cp, ep and ZeRO stay as chosen by the rules,
and only single steps upwards are tried: a rule, not a grid.

Ranks are ordered tp-cp-dp-pp (Megatron-Core's default) or tp-cp-pp-dp (its option
``--use-tp-pp-dp-mapping``), whichever is faster. Layers are cut evenly
(:mod:`nest.evaluation.even`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, NamedTuple

from nest.errors import InputError, NoPlanError
from nest.evaluation.even import even_configuration
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
from nest.inputs.space import SearchSpace
from nest.model import Chain
from nest.model.legality import divisors, tensor_degrees
from nest.planners.prices import Baseline, PlannerPrices, outside

LONG = 8192
"""Tokens of a sequence from which on context parallelism is considered (rule 5)."""


class ManualDegrees(NamedTuple):
    """Choices of the rules before micro-batch, virtual stages and order of ranks are tried."""

    tp: int
    cp: int
    ep: int
    pp: int
    dp: int
    recompute: str

    @property
    def devices(self) -> int:
        """Devices in use."""
        return self.tp * self.cp * self.pp * self.dp


@dataclass(frozen=True)
class Manual(Baseline):
    """The configuration of the rules above; if nothing fits, the one that lacks least memory."""

    name: ClassVar[str] = "manual"

    def choose(
        self, chain: Chain, cluster: Cluster, job: Job, space: SearchSpace
    ) -> Configuration:
        """Follow the rules."""
        rules = _Rules(chain, cluster, job, space)
        found = rules.choose()
        if found is None:
            raise NoPlanError(f"the rules lead to no legal configuration of {chain.name} on "
                              f"{cluster.size} devices in the space")
        return found


class _Rules:
    """The rules for one model, cluster, job and space."""

    def __init__(
        self, chain: Chain, cluster: Cluster, job: Job, space: SearchSpace
    ) -> None:
        self.chain, self.cluster, self.job, self.space = chain, cluster, job, space
        self.prices = PlannerPrices(chain, cluster, job)
        domain = next((g for g in cluster.group_sizes if g > 1), 1)
        every = [tp for tp in tensor_degrees(chain, cluster.size) if space.allows("tp", tp)]
        self.near = [tp for tp in every if tp <= domain] or every[:1]
        self.far = [tp for tp in every if tp not in self.near]
        pairs = [1] if chain.experts is None else [
            ep for ep in divisors(chain.experts.experts) if space.allows("ep", ep)]
        self.close = [ep for ep in pairs if ep <= domain] or pairs[:1]
        self.distant = [ep for ep in pairs if ep not in self.close]
        self.zero = self._zero()

    def choose(self) -> Configuration | None:
        """The first degrees that fit with all devices in use, or with the most, or larger ones.

        For these degrees the fastest micro-batch, virtual stages and order of ranks are taken. If
        nothing fits, the configuration that lacks least memory.
        """
        partial: ManualDegrees | None = None
        missed: list[tuple[float, Configuration]] = []
        for degrees in self.degrees():
            # The first variant has the smallest micro-batch and the fewest virtual stages.
            smallest = next(self.variants(degrees), None)
            if smallest is None:
                continue
            excess = self.prices.price(smallest).excess
            if excess > 0.0:
                missed.append((excess, smallest))
            elif degrees.devices == self.cluster.size:
                return self._improved(degrees)
            elif partial is None or degrees.devices > partial.devices:
                partial = degrees
        if partial is not None:
            return self._improved(partial)
        return min(missed, key=lambda pair: pair[0])[1] if missed else None

    def _improved(self, first: ManualDegrees) -> Configuration | None:
        """The fastest of degrees that fit and larger ones, one step at a time while it improves."""
        best, seconds = first, math.inf
        tried = {first: self._fastest(first)}
        while tried[best][0] < seconds:
            seconds = tried[best][0]
            tried |= {larger: self._fastest(larger) for larger in self.larger(best)}
            best = min(tried, key=lambda degrees: tried[degrees][0])
        return tried[best][1]

    def _fastest(self, degrees: ManualDegrees) -> tuple[float, Configuration | None]:
        """Seconds of the fastest variant that fits, and the variant; inf and None: none fits."""
        tried = [(self.prices.price(way), way) for way in self.variants(degrees)]
        fitting = [(price.step_time, way) for price, way in tried if price.excess == 0.0]
        return min(fitting, key=lambda pair: pair[0], default=(math.inf, None))

    def degrees(self) -> Iterator[ManualDegrees]:
        """Degrees in the order in which the rules try them.

        Outermost whether tp and ep stay in the domain; then whether stages are powers of two; then
        recompute, so that it comes before leaving the domain; then cp.
        """
        size, space = self.cluster.size, self.space
        policies = [name for name in ("none", "selective", "full")
                    if space.allows("recompute", name)]
        longest = size if self.job.seq_len >= LONG else 1
        contexts = [cp for cp in divisors(self.job.seq_len)
                    if cp <= longest and space.allows("cp", cp)]
        for inside, powers, again, cp in product((True, False), (True, False), policies, contexts):
            for tp, ep, pp in self._model_parallel(inside, self._stages(powers)):
                found = self._degrees(tp, cp, ep, pp, again)
                if found is not None and (inside or found.ep == ep):
                    yield found

    def larger(self, n: ManualDegrees) -> Iterator[ManualDegrees]:
        """The next larger tp in the domain, of dense models, and the next larger pp."""
        ep = max(n.ep, self.close[-1])
        wider = [tp for tp in self.near if tp > n.tp and self.chain.experts is None]
        deeper = [pp for pp in self._stages(_is_power(n.pp)) if pp > n.pp]
        for steps in ([(tp, n.pp) for tp in wider[:1]], [(n.tp, pp) for pp in deeper]):
            legal = (self._degrees(tp, n.cp, ep, pp, n.recompute) for tp, pp in steps)
            yield from [found for found in legal if found is not None][:1]

    def _stages(self, powers: bool) -> list[int]:
        """Numbers of stages that are powers of two, or those that are not."""
        first, last = self.chain.body
        most = min(last - first, self.cluster.size)
        return [pp for pp in range(1, most + 1)
                if self.space.allows("pp", pp) and _is_power(pp) == powers]

    def _degrees(self, tp: int, cp: int, ep: int, pp: int, again: str) -> ManualDegrees | None:
        """Degrees with as many replicas as devices and batch allow; ep is the most wanted."""
        first, last = self.chain.body
        size, one = self.cluster.size, tp * cp * pp
        whole = size % one == 0 and (last - first) % pp == 0
        if one > size or not (_is_power(pp) or whole):
            return None
        dp = max(d for d in divisors(self.job.global_batch) if d <= size // one)
        allowed = [n for n in divisors(ep) if self.space.allows("ep", n)
                   and tp * cp * dp % n == 0]
        return ManualDegrees(tp, cp, allowed[-1], pp, dp, again) if allowed else None

    def _model_parallel(
        self, inside: bool, stages: list[int]
    ) -> Iterator[tuple[int, int, int]]:
        """tp, ep and pp in their order, within the scale-up domain or beyond it.

        Within it, ep is the most that the devices of a stage may take.
        """
        if self.chain.experts is None:
            chosen = self.near if inside else self.far
            yield from ((tp, 1, pp) for pp in stages[:1] for tp in chosen)
            yield from ((tp, 1, pp) for pp in stages[1:] for tp in chosen[-1:])
            return
        yield from ((tp, ep, pp) for ep in (self.close[-1:] if inside else self.distant)
                    for tp in self.near for pp in stages)

    def variants(self, n: ManualDegrees) -> Iterator[Configuration]:
        """Legal configurations of the degrees: micro-batch, virtual stages, order of ranks."""
        first, last = self.chain.body
        chunks = [1]
        if self.chain.is_chain and n.pp > 1 and (last - first) % n.pp == 0:
            chunks = list(divisors((last - first) // n.pp))
        etp = 1 if self.chain.experts is not None else n.tp
        least = n.ep * etp // math.gcd(n.ep * etp, n.tp * n.cp)
        for dp_in in dict.fromkeys((n.dp, least)):
            if n.dp % dp_in:
                continue
            for mbs, vpp in product(divisors(self.job.global_batch // n.dp), chunks):
                way = self._configuration(n, dp_in, etp, mbs, vpp)
                if way is not None:
                    yield way

    def _configuration(
        self, n: ManualDegrees, dp_in: int, etp: int, mbs: int, vpp: int
    ) -> Configuration | None:
        """One configuration; None where it is not legal or not in the space."""
        sp = n.tp > 1 and self.space.allows("sp", True)
        fixed: dict[str, Any] = {
            "pp": n.pp, "tp": n.tp, "cp": n.cp, "ep": n.ep, "etp": etp, "sp": sp, "vpp": vpp,
            "dp_in": dp_in, "outer_dp": n.dp // dp_in, "mbs": mbs, "zero": self.zero,
            "recompute": n.recompute, "schedule": self._schedule(vpp)}
        try:
            way = even_configuration(self.chain, self.cluster, self.job, **fixed)
        except InputError:
            return None
        legal = self.prices.legal(way) and outside(self.space, self.chain, way) is None
        return way if legal else None

    def _schedule(self, vpp: int) -> str:
        if vpp > 1:
            return "interleaved"
        return "1f1b" if "1f1b" in self.space.schedules else "gpipe"

    def _zero(self) -> int:
        """The sharded optimizer if stack and space allow it; else the lowest allowed ZeRO stage."""
        wanted = (1, 0, 2, 3) if 1 in self.job.stack.zero_with_pipeline else (0, 1, 2, 3)
        return next(zero for zero in wanted if self.space.allows("zero", zero))


def _is_power(number: int) -> bool:
    return number & (number - 1) == 0
