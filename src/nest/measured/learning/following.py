"""Which configuration to run next: likely best, or most likely to be better than the best so far.

Expected improvement of the logarithm of seconds (D. Jones et al., "Efficient global optimization of
expensive black-box functions", 1998, equation 15), times the chance to fit; before anything ran,
the expected seconds over that chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from nest.evaluation.evaluate import evaluate
from nest.evaluation.plans import Plan
from nest.measured.learning.learned import Learned
from nest.measured.learning.observations import Observation, observed
from nest.measured.learning.posterior import Array, Forecast, Posterior
from nest.measured.learning.sources import unlearned

SURE = 0.9
"""Chance to fit below which a run is a risk of memory."""
WORTH = 0.005
"""Expected share of the best step that a run must save to be worth it, by default."""
CANDIDATES = 60
"""Plans of which the next run is one (chosen)."""
CHANCE = 0.5
"""Power of the chance to fit once something ran: a run that fails costs less than one unfound."""


@dataclass(frozen=True)
class Next:
    """A configuration to run."""

    number: int
    """Of the candidates."""
    seconds: float
    low: float
    high: float
    fits: float
    """Chance that it does not run out of memory."""
    saves: float | None
    """Share of the best measured step that it is expected to save; None: nothing ran yet."""


def following(
    observations: Sequence[Observation], candidates: Sequence[Observation], runs: int = 1,
    worth: float = WORTH, posterior: Posterior | None = None,
) -> list[Next]:
    """The next runs, of which at most one is a risk of memory; fewer where no more are worth it.

    Parameters
    ----------
    observations : what ran, of any question of the software.
    candidates : configurations of one question that may be run; none of them was.
    runs : to choose at the most.
    worth : share of the best step so far that a run must be expected to save.
    posterior : of the observations, if it is known.
    """
    posterior = Posterior(observations) if posterior is None else posterior
    best, failed = _best(observations, candidates), _failed(observations, candidates)
    told, found, risked = list(observations), list[Next](), False
    for _ in range(min(runs, len(candidates))):
        forecast = posterior.forecast(candidates)
        score, saves = _scores(forecast, best, failed)
        left = np.ones(len(candidates), bool)
        left[[one.number for one in found]] = False
        if risked and (left & (forecast.fits >= SURE)).any():
            left &= forecast.fits >= SURE
        number = int(np.argmax(np.where(left, score, -np.inf)))
        saved = None if best is None else float(saves[number])
        if saved is not None and saved < worth:
            break
        seconds, low, high, fits = (float(column[number]) for column in (
            forecast.seconds, forecast.low, forecast.high, forecast.fits))
        found.append(Next(number, seconds, low, high, fits, saved))
        risked = risked or fits < SURE
        if len(found) == runs:
            break
        # The next run is chosen as if this one took what is expected of it.
        told.append(candidates[number].model_copy(update={
            "verdict": "ran", "seconds": seconds}))
        posterior = Posterior(told)
    return found


def candidates(best: Plan, known: Learned) -> tuple[list[Plan], list[Observation]]:
    """Distinct plans that were not run, and what their stack before it learned says of them.

    Parameters
    ----------
    best : a plan with alternatives, of the stack that learned.
    known : what it learned.
    """
    inputs, done = best.inputs, {(one.degrees, one.sizes) for one in known.observations}
    plans, points = [], []
    for way in (best.configuration, *(one.configuration for one in best.alternatives)):
        plan = evaluate(inputs.subject, inputs.cluster, inputs.job, way)
        point = observed(unlearned(plan), plan.headline)
        if (point.degrees, point.sizes) not in done:
            plans.append(plan)
            points.append(point)
    return plans, points


def _best(
    observations: Sequence[Observation], candidates: Sequence[Observation]
) -> float | None:
    """Fewest measured seconds of the candidates' question."""
    asked = {(one.sizes, one.variant) for one in candidates}
    return min((one.seconds for one in observations
                if one.seconds is not None and (one.sizes, one.variant) in asked), default=None)


def _failed(observations: Sequence[Observation], candidates: Sequence[Observation]) -> int:
    """Runs of the candidates' question that ran out of memory."""
    asked = {(one.sizes, one.variant) for one in candidates}
    return sum(one.verdict == "out of memory" and (one.sizes, one.variant) in asked
               for one in observations)


def _scores(forecast: Forecast, best: float | None, failed: int) -> tuple[Array, Array]:
    """What decides, larger is better, and the expected saving as a share of the best; (P,).

    As long as nothing ran, each run that failed makes the chance to fit weigh more.
    """
    mean, spread = np.log(forecast.seconds), forecast.spread
    chance = np.log(np.maximum(forecast.fits, 1e-12))
    if best is None:
        return (1.0 + failed) * chance - mean, np.zeros(len(mean))
    z = (np.log(best) - mean) / spread
    gain = spread * (z * ndtr(z) + np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi))
    gain = np.maximum(gain, 1e-300)
    return np.log(gain) + CHANCE * chance, gain * np.exp(chance)
