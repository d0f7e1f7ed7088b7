"""Plans and what the oracle says of them, between its own words and those of the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from oracle_rules import (
    FULL,
    SHARDS,
    Choice,
    Policy,
    Split,
    State,
    code_of,
    comm_of,
    modules_of,
)

from nest.inputs import Configuration, StageConfiguration

Key = tuple[int, int, int, int, str]
"""(outer_dp, micro_batch, pp, vpp, schedule): of the plans that agree in it the best one counts."""


class Ranked(NamedTuple):
    """The best plan of a key."""

    seconds: float
    key: Key
    configuration: Configuration


@dataclass(frozen=True)
class Priced:
    """One plan, priced stage by stage."""

    seconds: float
    memory: tuple[float, ...]
    """Bytes of each stage with its micro-batches in flight."""
    limits: tuple[float, ...]

    @property
    def fits(self) -> bool:
        return all(m <= most for m, most in zip(self.memory, self.limits, strict=True))


@dataclass(frozen=True)
class Answer:
    """How many plans fit, and the best of them, one a key, the fastest first."""

    plans: int
    best: tuple[Ranked, ...]

    @property
    def seconds(self) -> float | None:
        return self.best[0].seconds if self.best else None

    @property
    def configuration(self) -> Configuration | None:
        return self.best[0].configuration if self.best else None


class Found(NamedTuple):
    """The best plan of a key, not yet written out."""

    seconds: float
    key: Key
    configuration: Callable[[], Configuration]


def read_stage(s: StageConfiguration) -> tuple[Choice, Policy]:
    """A stage in the words of the oracle."""
    inner = {"a2a": s.cp, "a2a+p2p": s.cp_a2a}.get(s.cp_comm, 1)
    split = Split(s.dp_in, s.tp, s.sp, s.cp, inner, s.cp_comm == "all_gather", s.ep, s.etp)
    choice = Choice(s.devices[0], s.devices[1] - s.devices[0], split,
                    State(s.zero, SHARDS.index(s.shard)))
    return choice, Policy(code_of(s.recompute, s.recompute_modules), s.recompute_layers)


def write_stage(
    c: Choice, policy: Policy, chunks: Sequence[tuple[int, int]]
) -> StageConfiguration:
    """A stage in the words of the package."""
    s, modules = c.split, modules_of(policy.code)
    comm, part = comm_of(s.cp, s.inner, s.gather)
    return StageConfiguration(
        layers=(chunks[0][0], chunks[-1][1]), chunks=tuple(chunks),
        devices=(c.start, c.start + c.size), dp_in=s.dp_in, tp=s.tp, sp=s.sp, cp=s.cp,
        cp_comm=comm, cp_a2a=part, ep=s.ep, etp=s.etp, zero=c.state.zero,
        shard=SHARDS[c.state.shard],
        recompute="full" if policy.code == FULL else "selective" if modules else "none",
        recompute_modules=modules, recompute_layers=policy.first)


def later(
    build: Callable[..., Configuration], *arguments: object
) -> Callable[[], Configuration]:
    return lambda: build(*arguments)
