"""Random small instances whose plans can all be listed; the same seed gives the same instance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from instances_hardware import need, partly, random_cluster, random_job, shape
from instances_models import FAMILIES, KINDS, random_family, random_model, random_profile
from oracle_listing import Question
from oracle_rules import FULL, checkpointed, comm_of, modules_of

from nest.inputs import Cluster, Job, Model, Profile, SearchSpace
from nest.model import Chain, build_chain, profile_chain

THEMES = (
    "any", "pipeline", "close", "replicas",
    "long",  # long sequences, few samples: context parallelism
    "tight",  # little memory: ZeRO, HSDP, recompute of modules and of some layers
    "outer",  # fast inner and slow outer links: HSDP, all-to-all
    "chunks",  # many micro-batches, many layers: interleaving
    "experts",
    "graph",  # measured layers with branches
    "families",  # encoder-decoder, vision, multi-token prediction
)
FREED = {
    "long": ("cp", "cp_comm", "sp", "tp"),
    "tight": ("recompute", "recompute_layers", "recompute_modules", "zero", "shard"),
    "outer": ("shard", "zero", "outer_dp", "cp", "cp_comm"),
    "chunks": ("vpp", "schedule", "pp"),
    "experts": ("etp", "ep", "tp", "sp"),
    "graph": ("pp", "outer_dp"),
    "pipeline": ("pp",),
    "replicas": ("pp",),
}
"""Dimensions that a theme keeps as free as it can."""


@dataclass(frozen=True)
class Instance:
    """One question to the planner."""

    seed: int
    theme: str
    model: Model | Profile
    chain: Chain
    cluster: Cluster
    job: Job
    space: SearchSpace


@cache
def instance(seed: int) -> Instance:
    """Instance number ``seed``, bounded so that the oracle can list its plans."""
    rng = Random(f"instance {seed}")
    theme = THEMES[seed % len(THEMES)]
    sizes = shape(rng, theme)
    model, chain = described(rng, theme)
    job = random_job(rng, theme)
    cluster = partly(Random(f"partly {seed}"), theme,
                     random_cluster(rng, sizes, need(chain, job), theme))
    # Seldom up to a million.
    most = 10 ** rng.uniform(4.3, 5.0 if rng.random() < 0.97 else 6.1)
    bounds = bounds_of(rng, chain, math.prod(sizes), theme)
    space = bounded(rng, chain, cluster, job, bounds, most, FREED.get(theme, ()))
    return Instance(seed, theme, model, chain, cluster, job, space)


def described(rng: Random, theme: str) -> tuple[Model | Profile, Chain]:
    """A model or measured layers."""
    measured = rng.random() < {
        "close": 1.0, "pipeline": 0.7, "long": 0.0, "outer": 0.2, "tight": 0.2, "chunks": 0.3,
        "experts": 0.0, "graph": 1.0, "families": 0.0,
    }.get(theme, 0.3)
    model: Model | Profile
    if measured:
        model = random_profile(rng, theme)
    elif theme == "families":
        model = random_family(rng, rng.choice(FAMILIES), theme)
    elif theme == "chunks" and rng.random() < 0.25:
        model = random_family(rng, "prediction", theme)
    else:
        model = random_model(
            rng, rng.choice(("moe", "shared") if theme == "experts" else KINDS), theme)
    chain = profile_chain(model) if isinstance(model, Profile) else build_chain(model)
    return model, chain


# ---------------------------------------------------------------- search spaces


def bounds_of(rng: Random, chain: Chain, devices: int, theme: str) -> dict[str, Any]:
    """Bounds that some instances have anyway; more of them where there are more plans."""
    freed, small = FREED.get(theme, ()), devices * len(chain) <= 30
    deepest = min(devices, len(chain))
    stages = [(1, 1), (2, 2), (1, 2), (2, 4), (2, 7), (3, 7), (3, 3)]
    stages = stages[3:] if theme in ("pipeline", "replicas", "graph") and deepest > 1 else stages
    named = ["+".join(m) for n in range(1, 16) if set(m := modules_of(n)) <= set(chain.modules)]
    space: dict[str, Any] = {}
    for name, values, chance in (
        ("zero", [rng.sample(range(4), rng.randint(1, 4))], 0.5),
        ("recompute", [rng.sample(("none", "selective", "full"), rng.randint(1, 3))], 0.6),
        ("recompute_modules", [rng.sample(named, rng.randint(1, 4))] if named else [], 0.9),
        ("recompute_layers", [[9], [1, 9], [1, 2, 9], [2, 9], [1]], 0.7),
        ("shard", [["dp"], ["dp_in"], ["dp", "dp_in"]], 0.5),
        ("tp", [[1], [1, 2], [2], [3], [1, 4]], 0.08),
        ("sp", [[True, False], [False], [True]], 0.2),
        ("cp", [[1], [1], [1, 2], [2], [3]], 0.5),
        ("cp_comm", [["p2p"], ["all_gather"], ["a2a"], ["a2a+p2p"], ["p2p", "a2a"],
                     ["p2p", "all_gather", "a2a+p2p"]], 0.3),
        ("pp", [list(range(low, high + 1)) for low, high in stages if low <= deepest],
         {"pipeline": 1.0, "replicas": 0.6, "graph": 0.8}.get(theme, 0.25)),
        ("schedule", [["1f1b"], ["gpipe"], ["interleaved"], ["1f1b", "gpipe", "interleaved"]],
         0.4),
        ("vpp", [[1], [2], [1, 2], [3]], 0.1),
        ("mbs", [[1], [1, 2], [3]], 0.08),
        ("dp_in", [[1], [1, 2], [2], [1, 3]], 0.08),
        ("outer_dp", [[2], [3], ["2..5"]] if theme == "replicas" else [[1], [1, 2], [3]],
         0.9 if theme == "replicas" else 0.08),
        ("micro_batch", [[1], [1], [1], [2, 4], [3], ["1..3"]], 0.2),
        ("ep", [[1], [2], [1, 2, 3]], 0.1),
        ("etp", [[1], [1, 2, 3], [1, 2, 4]], 0.1),
    ):
        if values and rng.random() < chance * (0.3 if name in freed else 0.7 if small else 1.0):
            space[name] = rng.choice(values)
    if theme == "close":
        space |= {"zero": [rng.randrange(4)], "recompute": [rng.choice(("none", "full"))],
                  "sp": [False], "outer_dp": [1], "recompute_layers": [9], "schedule": ["1f1b"]}
    if theme == "chunks":
        space |= {"pp": rng.choice(([2], [2, 3, 4], [4], [2, 4], [3])), "outer_dp": [1, 2],
                  "recompute": ["none", rng.choice(("selective", "full"))]}
    if theme == "outer" and rng.random() < 0.6:
        space |= {"zero": rng.choice(([2, 3], [2], [3], [1, 2, 3])), "micro_batch": ["1..2"]}
    if theme == "experts" and rng.random() < 0.6:
        space |= {"etp": rng.choice(([2], [3], [2, 3], [2, 4])), "tp": ["1..8"]}
    if isinstance(chain.profile, Profile) and space.get("recompute") == ["selective"]:
        space["recompute"] = ["none"]
    return space


def bounded(
    rng: Random, chain: Chain, cluster: Cluster, job: Job, bounds: dict[str, Any], most: float,
    freed: tuple[str, ...],
) -> SearchSpace:
    """Take away values until at most ``most`` plans, finished or not, are left to list."""
    bounds = dict(bounds)
    while True:
        question = Question(chain, cluster, job, SearchSpace(**bounds))
        count, finished = question.counts()
        if not finished and bounds:
            del bounds[rng.choice(list(bounds))]
            continue
        if count <= most:  # schedules are named: of a stack's own the oracle has not all
            return question.space.replace(schedule=question.space.schedules)
        present = {name: values for name, values in _present(question).items()
                   if len(values) > 1}
        for _ in range(1 + int(math.log10(count / most))):
            names = [name for name, values in present.items() if len(values) > 1]
            names = [name for name in names if name not in freed] or names
            if names:
                name = rng.choice(names)
                present[name].remove(
                    max(present[name]) if name == "pp" else rng.choice(present[name]))
                bounds[name] = list(present[name])


def _present(question: Question) -> dict[str, list[Any]]:
    """Values that each dimension takes in the plans of a question."""
    space, chain = question.space, question.chain
    splits = {split for ways in question.all_splits() for split in ways}
    many = checkpointed(chain, range(len(chain)))
    policies = question.policies(tuple(range(len(chain))))
    sharding = {state for outer in question.outers for split in splits
                for state in question.states(outer, split, piped=False)}
    found: dict[str, set[Any]] = {
        "zero": {state.zero for state in sharding},
        "shard": {("dp", "dp_in")[state.shard] for state in sharding},
        "recompute": {"full" if p.code == FULL else "selective" if p.code else "none"
                      for p in policies},
        "recompute_modules": {"+".join(modules_of(p.code)) for p in policies} - {""},
        "recompute_layers": {p.first or max(many, 1) for p in policies if p.code == FULL},
        "tp": {s.tp for s in splits}, "sp": {s.sp for s in splits if s.tp > 1},
        "cp": {s.cp for s in splits}, "dp_in": {s.dp_in for s in splits},
        "cp_comm": {comm_of(s.cp, s.inner, s.gather)[0] for s in splits if s.cp > 1},
        "ep": {s.ep for s in splits},
        "etp": {s.etp for s in splits} if chain.model and chain.model.moe else set(),
        "outer_dp": {o.outer_dp for o in question.outers},
        "micro_batch": {o.micro_batch for o in question.outers},
        "pp": {n for n in range(1, len(chain) + 1) if space.allows("pp", n)},
        "schedule": set(space.schedules),
    }
    return {name: sorted(values) for name, values in found.items()}
