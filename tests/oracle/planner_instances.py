"""Random small instances for planners of a smaller space than NEST's: whole, not bounded."""

from __future__ import annotations

import math
from functools import cache
from random import Random

from instances import Instance
from instances_hardware import need, random_cluster, random_job, shape
from instances_models import FAMILIES, KINDS, random_family, random_model, random_profile

from nest.evaluation.evaluate import chain_of
from nest.inputs import Model, Profile, SearchSpace

THEMES = ("pipeline", "close", "any", "graph", "tight", "pipeline", "experts", "families")


@cache
def small_instance(seed: int, devices: int, cuts: int, batch: int) -> Instance:
    """Instance number ``seed`` with at most so many devices, cuts and samples; any space."""
    rng = Random(f"small {seed}")
    theme = THEMES[seed % len(THEMES)]
    while True:
        model: Model | Profile
        if theme == "experts":
            model = random_model(rng, rng.choice(("moe", "shared")), theme)
        elif theme == "families":
            model = random_family(rng, rng.choice(FAMILIES), theme)
        elif rng.random() < 0.7 or theme == "graph":
            model = random_profile(rng, theme)
        else:
            model = random_model(rng, rng.choice(KINDS), theme)
        chain, job, sizes = chain_of(model), random_job(rng, theme), shape(rng, theme)
        if (len(chain) < 10 and len(chain.downsets()) <= cuts and math.prod(sizes) <= devices
                and job.global_batch <= batch):
            cluster = random_cluster(rng, sizes, need(chain, job), theme)
            return Instance(seed, theme, model, chain, cluster, job, SearchSpace())
