"""Steps of plain layers, by :mod:`oracle_plain` and event by event by ``nest.simulation``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from random import Random

import numpy as np
from oracle_plain import gpipe_step, one_f_one_b_step, wrapped_step
from oracle_plain_runs import Figures, Hand, PlainRun
from plain import stack

from nest.costs.layer import LayerCosts
from nest.simulation.events import run
from nest.simulation.figures import LayerWork, Link, OverlapRates, StageWork
from nest.simulation.tasks import orders

Named = dict[str, float]


def any_layer(rng: Random, zero: int, again: bool) -> Named:
    """Half a second to 3 s of computing; ZeRO traffic of a thirtieth to six times a forward."""
    forward, backward = rng.uniform(0.5, 1.5), rng.uniform(1.0, 3.0)
    traffic = 10.0 ** rng.uniform(-1.5, 0.8)
    gathered = traffic if zero == 3 else 0.0
    return {"forward": forward, "free_forward": forward, "backward": backward,
            "free_backward": backward, "gathered": gathered,
            "regathered": gathered if again else 0.0,
            "scattered": traffic * rng.choice((1.0, 2.0))}


def plain_run(layers: Sequence[Named], **overlaps: float) -> PlainRun:
    """Layers by their figures in seconds; what is not named is 0."""
    return PlainRun([Figures(LayerCosts(**{
        field.name: np.array([layer.get(field.name, 0.0)]) for field in fields(LayerCosts)}))
        for layer in layers], stack(**overlaps), 0.0)


def off(
    schedule: str, chunks: list[list[Named]], p: int, m: int, hidden: float, hop: float
) -> float:
    """How much longer the form has it than the events, as a share; all stages hold these chunks."""
    way = Hand(2.0 * hop, 0.0)
    runs = [plain_run(chunk, overlap_zero3=hidden) for chunk in chunks]
    if schedule == "interleaved":
        form = wrapped_step([runs] * p, [[way] * len(chunks)] * p, m)
    else:
        step = gpipe_step if schedule == "gpipe" else one_f_one_b_step
        form = step(runs * p, [*[way] * (p - 1), Hand(0.0, 0.0)], m)
    work = StageWork(tuple(tuple(LayerWork(**{
        name: layer[name] for name in
        ("forward", "backward", "gathered", "regathered", "scattered")}) for layer in chunk)
        for chunk in chunks))
    links = [[Link(hop)] * len(chunks)] * p
    events = run(orders(schedule, p, m, len(chunks)), [work] * p, links, OverlapRates(zero=hidden))
    return form / events.step_time - 1.0
