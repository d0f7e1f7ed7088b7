"""Ranges that nine of ten measured steps of models that nobody priced before lie in.

For each stack, dense models and mixtures apart, the logarithms of measured over priced seconds have
a center, the mean of the models' medians, and a spread about it. A model counts with the square
root of its configurations, because those of one model err alike; and a few models as usual, that
err by nothing in the mean and by the usual spread, count besides, so that a single model does not
promise what it cannot.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from nest.measured.validation.pricing import PricedRun
from nest.measured.validation.score import compare

NINE_OF_TEN = 1.645
"""Spreads to each side; on models left out the ranges cover 90 % of the table's configurations."""
USUAL = {False: 0.06, True: 0.13}
"""Spread of models without and with experts where nothing is known of the stack: of all stacks."""
WEIGHT = 4.0
"""What the usual models count, in square roots of configurations (chosen among 2 and 4)."""
FARTHEST = 0.5
"""Largest logarithm of an error that counts, so that a single run does not set a range."""

Ratios = Mapping[str, Sequence[float]]
"""Measured over priced seconds of the configurations of each model."""


def span(models: Ratios, experts: bool) -> tuple[float, float]:
    """Least and largest measured over priced seconds.

    Parameters
    ----------
    models : of one stack, all with experts or all without.
    experts : whether they have experts.
    """
    logs = [np.clip(np.log(found), -FARTHEST, FARTHEST) for found in models.values()]
    weights = np.sqrt([len(found) for found in logs])
    total = weights.sum() + WEIGHT
    center = sum(w * float(np.median(x)) for w, x in zip(weights, logs, strict=True)) / total
    squares = sum(w * float(np.mean((x - center) ** 2))
                  for w, x in zip(weights, logs, strict=True))
    half = NINE_OF_TEN * math.sqrt((squares + WEIGHT * USUAL[experts] ** 2) / total)
    return math.exp(center - half), math.exp(center + half)


def ratios(priced: Iterable[PricedRun]) -> dict[tuple[str, bool], dict[str, list[float]]]:
    """Measured over priced seconds, by stack and whether there are experts, and by model.

    Measurements that contradict their neighbours are left out.
    """
    found: dict[tuple[str, bool], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in compare(row for row in priced if not row.run.anomalous):
        first = one.members[0]
        key = first.stack, bool(first.run.text("n_experts"))
        found[key][one.model].append(one.measured_s / one.predicted_s)
    return found


def covered(models: Ratios, experts: bool) -> list[bool]:
    """Whether each configuration lies in the range of the other models of its stack."""
    inside = []
    for name, own in models.items():
        low, high = span({n: each for n, each in models.items() if n != name}, experts)
        inside += [low <= ratio <= high for ratio in own]
    return inside
