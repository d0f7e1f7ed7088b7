"""Markov-chain Monte Carlo over strategies, as FlexFlow and TopoOpt search.

FlexFlow (Z. Jia, M. Zaharia, A. Aiken, "Beyond Data and Model Parallelism for Deep Neural
Networks", arXiv:1807.05358, section 6): a random change of the strategy is accepted with
probability min(1, exp(beta (cost - cost'))) (equation 3). Searches start from existing strategies
(data parallelism, the expert's) and a random one; each ends when its share of the budget is used
up, or after half of it without a better strategy (section 6.2).

- Strategies are configurations of NEST's space, with a configuration for each stage; changes are
  in :mod:`nest.planners.mcmc.moves`.
- The cost of a strategy is its step time by the cost functions on the real, hierarchical network,
  where FlexFlow simulates; missing memory costs 1 ms for each MB of each device, as in its source
  (``Simulator::simulate_runtime`` of flexflow/FlexFlow, src/runtime/simulator.cc). A strategy that
  does not fit is therefore a state, but the best that fits is returned.
- beta is relative to the cost of the first strategy, so that seconds and milliseconds of a step
  are searched in the same way (chosen; the paper names no value).
- The budget counts proposals, those that are not legal included, instead of seconds: the same seed
  gives the same plan.

With ``links``, a level of the network is joined by direct links that an optical switch sets, and
strategy and topology are optimised in turn, as in TopoOpt (arXiv:2202.00433, section 4.1): see
:mod:`nest.planners.reconfigurable`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from nest.errors import InputError, NoPlanError
from nest.evaluation.evaluate import chain_of, evaluate
from nest.evaluation.even import even_configuration
from nest.evaluation.plans import Plan
from nest.inputs.cluster import Cluster
from nest.inputs.configuration import Configuration
from nest.inputs.job import Job
from nest.inputs.model import Model
from nest.inputs.profile import Profile
from nest.inputs.space import SearchSpace
from nest.limits import count_problem
from nest.model import Chain
from nest.model.legality import divisors
from nest.planners.manual import Manual
from nest.planners.mcmc.moves import Proposals
from nest.planners.prices import PlannerPrices, Price, outside
from nest.planners.reconfigurable import DirectLinks, ReconfigurablePrices

State = TypeVar("State")

PENALTY = 1e-9
"""Seconds for each byte that a device lacks: 1 ms a MB (FlexFlow's source, see above)."""
TINY = 1e-30
"""Cost of a first strategy that takes no time, in seconds."""
WARM_UP = 300
"""Changes, all accepted, that lead from the first strategy to a random one (chosen)."""


def metropolis(
    state: State, cost: Callable[[State], float],
    propose: Callable[[random.Random, State], State | None], beta: float, rng: random.Random,
) -> Iterator[tuple[State, float]]:
    """Walk a Markov chain that visits states with weight exp(-beta cost).

    Parameters
    ----------
    state : where it starts.
    cost : of a state, seconds.
    propose : another state, as likely from here as this one from there; None: stay.
    beta : 1 / s; at 0 every proposal is accepted.
    rng : source of random numbers.

    Yields
    ------
    The state after each proposal, and its cost (arXiv:1807.05358, equation 3).
    """
    here = cost(state)
    while True:
        proposed = propose(rng, state)
        if proposed is not None:
            there = cost(proposed)
            if there <= here or rng.random() < math.exp(beta * (here - there)):
                state, here = proposed, there
        yield state, here


@dataclass(frozen=True)
class Mcmc:
    """The best visited strategy that fits; if none fits, the cheapest.

    Parameters
    ----------
    seed : of the random numbers; the same seed gives the same plan.
    proposals : of all searches and rounds together.
    beta : acceptance of worse strategies: one whose cost is 1 / beta of the first strategy's
        worse is accepted with probability 1 / e.
    links : direct links of a level that can be reset; None: a fixed network.
    rounds : of strategy and topology, at most.
    """

    name: ClassVar[str] = "mcmc"
    seed: int = 0
    proposals: int = 4000
    beta: float = 200.0
    links: DirectLinks | None = None
    rounds: int = 3

    def __post_init__(self) -> None:
        limits = {"proposals": self.proposals, "rounds": self.rounds}
        problems = [f"mcmc: {problem}" for name, value in limits.items()
                    if (problem := count_problem(name, value))]
        if not 0.0 <= self.beta < math.inf:
            problems.append(f"mcmc: beta: got {self.beta}; allowed: 0 or more, finite")
        if problems:
            raise InputError("\n".join(problems), tuple(problems))

    def plan(
        self, model: Model | Profile, cluster: Cluster, job: Job, space: SearchSpace
    ) -> Plan:
        """Search.

        Returns
        -------
        Plan
            With ``links``, priced on the cluster with the figures that the level has under the
            best topology found.

        Raises
        ------
        NoPlanError
            No strategy to start from is legal and in the space.
        InputError
            ``links`` names a level that the cluster does not have, or one that joins nothing.
        """
        chain = chain_of(model)
        rng = random.Random(self.seed)
        if self.links is None:
            prices = PlannerPrices(chain, cluster, job)
            search = _Search(self, chain, cluster, job, space, prices.price)
            best = search.run(rng, self.proposals, search.starts(rng))
            return evaluate(model, cluster, job, best)
        return self._alternate(model, chain, cluster, job, space, rng)

    def _alternate(
        self, model: Model | Profile, chain: Chain, cluster: Cluster, job: Job,
        space: SearchSpace, rng: random.Random,
    ) -> Plan:
        """Strategy on a topology, topology for the strategy, until nothing changes.

        The first round gives every pair of the level all its bandwidth.
        """
        assert self.links is not None
        fabric = ReconfigurablePrices(chain, cluster, job, self.links)
        found: list[Plan] = []
        start: list[Configuration] = []
        for _ in range(self.rounds):
            search = _Search(self, chain, cluster, job, space, fabric.price)
            best = search.run(rng, self.proposals // self.rounds, start or search.starts(rng))
            changed = fabric.rebuild(best)
            found.append(evaluate(model, fabric.cluster_for(best), job, best))
            start = [best]
            if not changed:
                break
        return min(found, key=lambda plan: (not plan.feasible, plan.step_time_s))


class _Search:
    """Chains over the strategies of one model, cluster, job and space."""

    def __init__(
        self, options: Mcmc, chain: Chain, cluster: Cluster, job: Job, space: SearchSpace,
        price: Callable[[Configuration], Price],
    ) -> None:
        self.options, self.chain, self.cluster, self.job = options, chain, cluster, job
        self.space, self.price = space, price
        self.prices = PlannerPrices(chain, cluster, job)
        self.moves = Proposals(chain, cluster, job, space, self.prices)
        self._last: list[tuple[Configuration, Price]] = []

    def starts(self, rng: random.Random) -> list[Configuration]:
        """The expert's strategy, data parallelism and a random one, if they are legal.

        Raises
        ------
        NoPlanError
            None of them is.
        """
        found = []
        with suppress(NoPlanError):
            found.append(Manual().choose(self.chain, self.cluster, self.job, self.space))
        found += filter(None, [self._data_parallel()])
        if not found:
            raise NoPlanError(f"neither data parallelism nor the expert's rules lead to a legal "
                              f"configuration of {self.chain.name} in the space to start from")
        walk = metropolis(found[0], lambda way: 0.0, self.moves.propose, 0.0, rng)
        for _ in range(WARM_UP):
            way, _ = next(walk)
        return [*found, way]

    def _data_parallel(self) -> Configuration | None:
        """Every device a replica, one sample per micro-batch, sharded only if necessary."""
        dp = max(d for d in divisors(self.job.global_batch) if d <= self.cluster.size)
        for zero in range(4):
            for recompute in ("none", "full"):
                way = even_configuration(self.chain, self.cluster, self.job, outer_dp=dp,
                                         zero=zero, recompute=recompute)
                if self.prices.legal(way) and outside(self.space, self.chain, way) is None:
                    return way
        return None

    def run(
        self, rng: random.Random, budget: int, starts: list[Configuration]
    ) -> Configuration:
        """The best strategy that the chains visit; those that fit come first."""
        unit = max(self._cost(starts[0]), TINY)
        share = max(1, budget // len(starts))
        ranked: list[tuple[bool, float, Configuration]] = []
        for start in starts:
            best, here, last = (*self._rank(start), start), start, 0
            walk = metropolis(start, self._cost, self.moves.propose, self.options.beta / unit, rng)
            for number in range(share):
                way, _ = next(walk)
                if way is not here and self._rank(way) < best[:2]:
                    best, last = (*self._rank(way), way), number
                if number - last > share / 2:
                    break
                here = way
            ranked.append(best)
        return min(ranked, key=lambda found: found[:2])[2]

    def _priced(self, way: Configuration) -> Price:
        """The price; the last two are cached."""
        for known, price in self._last:
            if known is way:
                return price
        price = self.price(way)
        self._last = [*self._last[-1:], (way, price)]
        return price

    def _cost(self, way: Configuration) -> float:
        price = self._priced(way)
        return price.step_time + PENALTY * price.excess

    def _rank(self, way: Configuration) -> tuple[bool, float]:
        return self._priced(way).excess > 0.0, self._cost(way)
