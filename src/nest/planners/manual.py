"""What an expert chooses by the published rules for Megatron-LM, without a search.

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
4. Recompute only where nothing fits without (arXiv:2205.05198, section 5: selective, and full only
   where that is not enough).
5. Context parallelism for sequences of 8,192 tokens and more (the same README, rule 5), here where
   the rules before leave devices idle or find nothing that fits.
6. Virtual stages from the divisors of the layers of a stage (the same README, rule 3), and the
   micro-batch, are tried, and the fastest kept (takeaway 3, section 3.4).

Ranks are ordered tp-cp-dp-pp (Megatron-Core's default) or tp-cp-pp-dp (its option
``--use-tp-pp-dp-mapping``), whichever is faster. Layers are cut evenly (:mod:`nest.even`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, NamedTuple

from nest.describe.cluster import Cluster
from nest.describe.configuration import Configuration
from nest.describe.job import Job
from nest.describe.model import Model
from nest.describe.profile import Profile
from nest.describe.space import SearchSpace
from nest.errors import InputError, NoPlanError
from nest.evaluation import chain_of, evaluate
from nest.even import even_configuration
from nest.graph import Chain
from nest.legality import divisors, tensor_degrees
from nest.planners.bounds import outside
from nest.planners.prices import Prices
from nest.plans import Plan

LONG = 8192
"""Tokens of a sequence from which on context parallelism is considered (rule 5)."""


class Degrees(NamedTuple):
    """What the rules decide before micro-batch, virtual stages and order of ranks are tried."""

    tp: int
    cp: int
    ep: int
    pp: int
    dp: int
    recompute: str


@dataclass(frozen=True)
class Manual:
    """The configuration of the rules above; where nothing fits, the one that lacks least."""

    name: ClassVar[str] = "manual"

    def plan(
        self, model: Model | Profile, cluster: Cluster, job: Job, space: SearchSpace
    ) -> Plan:
        """Follow the rules.

        Raises
        ------
        NoPlanError
            The rules lead to no legal configuration in the space.
        """
        return evaluate(model, cluster, job, self.choose(chain_of(model), cluster, job, space))

    def choose(
        self, chain: Chain, cluster: Cluster, job: Job, space: SearchSpace
    ) -> Configuration:
        """The configuration, unpriced.

        Raises
        ------
        NoPlanError
            There is none.
        """
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
        self.prices = Prices(chain, cluster, job)
        self.domain = next((g for g in cluster.group_sizes if g > 1), 1)
        self.zero = self._zero()

    def choose(self) -> Configuration | None:
        """The first degrees that fit with all devices at work, or with the most; else the nearest.

        Of these degrees, the fastest micro-batch, virtual stages and order of ranks.
        """
        partial: tuple[int, Degrees] | None = None
        missed: list[tuple[float, Configuration]] = []
        for degrees in self.degrees():
            # The first variant has the smallest micro-batch and the fewest virtual stages.
            smallest = next(self.variants(degrees), None)
            if smallest is None:
                continue
            excess = self.prices.price(smallest).excess
            used = degrees.tp * degrees.cp * degrees.pp * degrees.dp
            if excess > 0.0:
                missed.append((excess, smallest))
            elif used == self.cluster.size:
                return self._fastest(degrees)
            elif partial is None or used > partial[0]:
                partial = used, degrees
        if partial is not None:
            return self._fastest(partial[1])
        return min(missed, key=lambda pair: pair[0])[1] if missed else None

    def _fastest(self, degrees: Degrees) -> Configuration:
        tried = [(self.prices.price(way), way) for way in self.variants(degrees)]
        fitting = [(price.step_time, way) for price, way in tried if price.excess == 0.0]
        return min(fitting, key=lambda pair: pair[0])[1]

    def degrees(self) -> Iterator[Degrees]:
        """Degrees in the order in which the rules try them.

        Outermost whether tp and ep stay in the domain; then whether stages are powers of two; then
        recompute, so that it comes before leaving the domain; then cp.
        """
        batch, size, space = self.job.global_batch, self.cluster.size, self.space
        policies = [name for name in ("none", "selective", "full")
                    if space.allows("recompute", name)]
        longest = size if self.job.seq_len >= LONG else 1
        contexts = [cp for cp in divisors(self.job.seq_len)
                    if cp <= longest and space.allows("cp", cp)]
        first, last = self.chain.body
        stages = [pp for pp in range(1, min(last - first, size) + 1) if space.allows("pp", pp)]
        for inside, powers, again, cp in product((True, False), (True, False), policies, contexts):
            allowed = [pp for pp in stages if powers == (pp & (pp - 1) == 0)]
            for tp, ep, pp in self._model_parallel(inside, allowed):
                one = tp * cp * pp
                whole = size % one == 0 and (last - first) % pp == 0
                if one <= size and (powers or whole):
                    dp = max(d for d in divisors(batch) if d <= size // one)
                    near = [n for n in divisors(ep) if space.allows("ep", n)
                            and tp * cp * dp % n == 0]
                    if near and (inside or near[-1] == ep):
                        yield Degrees(tp, cp, near[-1], pp, dp, again)

    def _model_parallel(
        self, inside: bool, stages: list[int]
    ) -> Iterator[tuple[int, int, int]]:
        """tp, ep and pp in their order, within the scale-up domain or beyond it.

        Within it, ep is the most that the devices of a stage may take.
        """
        every = [tp for tp in tensor_degrees(self.chain, self.cluster.size)
                 if self.space.allows("tp", tp)]
        near = [tp for tp in every if tp <= self.domain] or every[:1]
        moe = self.chain.experts
        if moe is None:
            chosen = near if inside else [tp for tp in every if tp not in near]
            yield from ((tp, 1, pp) for pp in stages[:1] for tp in chosen)
            yield from ((tp, 1, pp) for pp in stages[1:] for tp in chosen[-1:])
            return
        pairs = [ep for ep in divisors(moe.experts) if self.space.allows("ep", ep)]
        close = [ep for ep in pairs if ep <= self.domain] or pairs[:1]
        far = [ep for ep in pairs if ep not in close]
        yield from ((tp, ep, pp) for ep in (close[-1:] if inside else far)
                    for tp in near for pp in stages)

    def variants(self, n: Degrees) -> Iterator[Configuration]:
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
        self, n: Degrees, dp_in: int, etp: int, mbs: int, vpp: int
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
        return "1f1b" if "1f1b" in self.space.schedule else "gpipe"

    def _zero(self) -> int:
        """The sharded optimizer where stack and space allow it; else the least that they do."""
        wanted = (1, 0, 2, 3) if 1 in self.job.stack.zero_with_pipeline else (0, 1, 2, 3)
        return next(zero for zero in wanted if self.space.allows("zero", zero))
