"""Bounded robust least squares with weak priors: few figures, each with its uncertainty.

Shapes: P parameters, N measurements.

The misfit of a measurement is log(predicted / measured), over the spread of the misfits (found
along the way, never below a floor), under the robust loss soft_l1. A prior pulls each parameter
to its catalog value with the strength of one measurement that says "value +- spread". A parameter
that the measurements do not determine stays there.

References: soft_l1 and the reflective trust region, scipy.optimize.least_squares; B. Triggs et
al., "Bundle adjustment - a modern synthesis", 2000, section 4.3 (robust Gauss-Newton); the
standard error is that of the Laplace approximation, D. MacKay, "Information Theory, Inference,
and Learning Algorithms", 2003, chapter 27.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

Array = NDArray[np.float64]

ROUNDS = 5
"""Fits in a row; each takes the spread of the misfits from the one before."""
TELLS = 0.5
"""A figure is determined if its error is below this share of the prior's spread."""
LOOSE = 0.1
"""Strength of the priors while the spread of the misfits is found."""
NEAR = 1e-3
"""Spreads from a bound at which a parameter counts as lying on it."""
INSIDE = 0.1
"""Least distance from the bounds at the start, in spreads: on a bound a fit would not move."""
SETTLED = 0.02
"""Change of the spread of the misfits, as a share, at which the rounds end."""
STEPS = 6
"""Most steps of a slow fit."""
SMALL_STEP = 0.02
"""Spreads of the priors; a slow fit ends where no parameter moves by more."""
STEP = 1e-3
"""Spreads by which a parameter is moved to find a slope."""
NORMAL = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


@dataclass(frozen=True)
class Parameter:
    """One figure to fit.

    Attributes
    ----------
    name : what it is called in the file that is written.
    catalog : value before, where the fit starts and the prior is centred.
    low, high : bounds.
    spread : standard deviation of the prior, in the unit of the value.
    unit : what text shows it in: `s`, `B/s` or nothing.
    """

    name: str
    catalog: float
    low: float
    high: float
    spread: float
    unit: str = ""


@dataclass(frozen=True)
class Estimate:
    """The estimate of one figure.

    Attributes
    ----------
    error : standard error, in the unit of the value.
    determined : by the measurements; else it has the catalog's value.
    bound : `lower` or `upper` where the value lies on a bound, or nothing.
    """

    parameter: Parameter
    value: float
    error: float
    determined: bool
    bound: str = ""


@dataclass(frozen=True)
class Fit:
    """A fit: its estimates, and the misfits log(predicted / measured) before and after.

    Attributes
    ----------
    before, after : float64, shape (N,)
    spread : standard deviation of the misfits without outliers.
    jacobian : float64, shape (N, P): change of a misfit per unit of a parameter.
    """

    estimates: tuple[Estimate, ...]
    before: Array
    after: Array
    spread: float
    jacobian: Array

    def values(self) -> dict[str, float]:
        """Value of each figure by name."""
        return {each.parameter.name: each.value for each in self.estimates}


def percent_off(misfits: Array) -> Array:
    """Absolute error, predicted / measured - 1, in per cent."""
    off: Array = 100.0 * np.abs(np.expm1(misfits))
    return off


def median_and_tail(misfits: Array) -> tuple[float, float]:
    """Median and 90th percentile of the absolute error, in per cent."""
    off = percent_off(misfits)
    return float(np.median(off)), float(np.quantile(off, 0.9))


def fit(
    parameters: Sequence[Parameter],
    misfits: Callable[[Array], Array],
    floor: float,
    weights: Array | None = None,
) -> Fit:
    """Fit parameters to measurements.

    A parameter that the measurements do not determine goes back to its catalog value, the worst
    first, and the others are fitted again without it. Standard errors are those with all parameters
    free, so that they include the uncertainty of the ones that went back.

    Parameters
    ----------
    parameters : P of them.
    misfits : from values, shape (P,), to log(predicted / measured), shape (N,), finite.
    floor : least spread of the misfits: noise of the measurements.
    weights : shape (N,): relative weight of each measurement; default 1.

    Returns
    -------
    Fit
        The same for the same input; `before` is at the catalog's values.
    """
    problem = _Problem(parameters, misfits, floor, weights)
    free = np.ones(len(parameters), dtype=bool)
    while True:
        value, spread = problem.solve(free)
        after = misfits(value)
        slopes = problem.slopes(value, after)
        errors = problem.errors(slopes, after, spread, free)
        worst = int(np.argmax(np.where(free, errors, -1.0)))
        if not free.any() or errors[worst] < TELLS:
            break
        free[worst] = False
    joint = problem.errors(slopes, after, spread, np.ones_like(free))
    found = tuple(_estimate(each, float(value[i]), float(joint[i]), bool(free[i]))
                  for i, each in enumerate(parameters))
    return Fit(found, problem.before, after, spread, slopes)


def fit_slow(
    parameters: Sequence[Parameter],
    misfits: Callable[[Array], Array],
    floor: float,
    weights: Array | None = None,
) -> Fit:
    """The same as :func:`fit` for slow predictions: P + 1 of them per step, few steps.

    Each step fits a straight line through the misfits at the values of the step before, within
    the bounds; a step that makes the misfits larger is halved.
    """
    problem = _Problem(parameters, misfits, floor, weights)
    at, now = problem.start, problem.before
    for _ in range(STEPS):
        slopes = problem.slopes(at, now)
        found = fit(parameters, _line(at, now, slopes), floor, weights)
        target = np.array([each.value for each in found.estimates])
        step, size = target - at, 1.0
        while True:
            after = misfits(at + size * step)
            if problem.cost(at + size * step, after) <= problem.cost(at, now) or size < 0.2:
                break
            size /= 2.0
        at, now = at + size * step, after
        if np.all(np.abs(step) < SMALL_STEP * problem.scale):
            break
    return replace(found, before=problem.before, after=now)


def _line(at: Array, misfits: Array, slopes: Array) -> Callable[[Array], Array]:
    return lambda values: misfits + slopes @ (values - at)


def without(found: Fit, rows: Sequence[int], weights: Array | None = None) -> Array:
    """Values of a fit without some measurements: one Gauss-Newton step from the fit.

    Parameters
    ----------
    rows : measurements to leave out.
    weights : those of the fit.

    Returns
    -------
    float64, shape (P,)
        Within the bounds; parameters that the whole fit did not determine are unchanged.

    Notes
    -----
    R. D. Cook, S. Weisberg, "Residuals and Influence in Regression", 1982, section 5.2.
    """
    parameters = [each.parameter for each in found.estimates]
    value = np.array([each.value for each in found.estimates])
    scale = np.array([each.spread for each in parameters])
    free = np.array([each.determined and not each.bound for each in found.estimates])
    counts = np.ones(len(found.after)) if weights is None else np.asarray(weights, np.float64)
    deviations = np.sqrt(counts) * found.after / found.spread
    scaled = (found.jacobian * scale * np.sqrt(counts)[:, None] / found.spread)[:, free]
    pull = (1.0 + deviations**2) ** -0.5
    left = np.setdiff1d(np.arange(len(deviations)), rows)
    curvature = (scaled[left] * pull[left, None]).T @ scaled[left] + np.eye(int(free.sum()))
    gradient = scaled[list(rows)].T @ (pull * deviations)[list(rows)]
    value[free] += scale[free] * np.linalg.solve(curvature, gradient)
    low = np.array([each.low for each in parameters])
    inside: Array = np.clip(value, low, np.array([each.high for each in parameters]))
    return inside


class _Problem:
    """Parameters in spreads from their catalog values, and the misfits over their own spread."""

    def __init__(self, parameters: Sequence[Parameter], misfits: Callable[[Array], Array],
                 floor: float, weights: Array | None) -> None:
        self.misfits, self.floor = misfits, floor
        self.start = np.array([each.catalog for each in parameters])
        self.low = np.array([each.low for each in parameters])
        self.high = np.array([each.high for each in parameters])
        self.scale = np.array([each.spread for each in parameters])
        self.before = misfits(self.start)
        n = len(self.before)
        self.root = np.sqrt(np.ones(n) if weights is None else np.asarray(weights, np.float64))

    def solve(self, free: NDArray[np.bool_]) -> tuple[Array, float]:
        """Values with the free parameters fitted, and the spread of the misfits.

        The spread is found under very loose priors: misfits that a prior causes would widen the
        spread, and a wider spread would strengthen the prior.
        """
        if not free.any():
            return self.start.copy(), max(self.floor, _spread(self.before, 0))
        low = ((self.low - self.start) / self.scale)[free]
        high = ((self.high - self.start) / self.scale)[free]
        margin = np.minimum(INSIDE, (high - low) / 4)
        position = np.clip(np.zeros(len(low)), low + margin, high - margin)
        spread = self.floor  # that of `before` may be large, and the priors would then decide
        for _ in range(ROUNDS):
            position = self._least(position, low, high, free, spread, LOOSE)
            value, last = self._value(position, free), spread
            misfits = self.misfits(value)
            errors = self.errors(self.slopes(value, misfits), misfits, spread, free, LOOSE)
            told = float((1.0 - LOOSE**2 * errors[free] ** 2).sum())
            spread = max(self.floor, _spread(misfits, told))
            if abs(spread - last) < SETTLED * last:
                break
        return self._value(self._least(position, low, high, free, spread, 1.0), free), spread

    def _least(
        self, position: Array, low: Array, high: Array, free: NDArray[np.bool_], spread: float,
        pull: float,
    ) -> Array:
        """Positions of the free parameters at which the cost is least."""
        solved = least_squares(
            lambda x: self._whitened(x, free, spread, pull), position, bounds=(low, high),
            loss=self._loss, xtol=1e-7, ftol=1e-8, gtol=1e-8)
        found: Array = np.clip(solved.x, low, high)
        return found

    def _value(self, position: Array, free: NDArray[np.bool_]) -> Array:
        value = self.start.copy()
        value[free] += self.scale[free] * position
        return value

    def _whitened(
        self, position: Array, free: NDArray[np.bool_], spread: float, pull: float
    ) -> Array:
        """Deviations in standard deviations: measurements first, then priors."""
        misfits = self.misfits(self._value(position, free))
        return np.concatenate([self.root * misfits / spread, pull * position])

    def _loss(self, z: Array) -> Array:
        """soft_l1 of the measurements, squares of the priors; value and two derivatives."""
        n = len(self.before)
        found = np.stack([z, np.ones_like(z), np.zeros_like(z)])
        inner = 1.0 + z[:n]
        found[:, :n] = 2.0 * (np.sqrt(inner) - 1.0), inner**-0.5, -0.5 * inner**-1.5
        return found

    def cost(self, value: Array, misfits: Array) -> float:
        """The objective of the fit, with the floor as the spread of the misfits."""
        deviations = self.root * misfits / self.floor
        priors = (value - self.start) / self.scale
        return float(2.0 * (np.sqrt(1.0 + deviations**2) - 1.0).sum() + (priors**2).sum())

    def slopes(self, value: Array, at: Array) -> Array:
        """Change of each misfit per unit of each parameter, by a step within the bounds."""
        columns = []
        for i in range(len(value)):
            step = STEP * min(self.scale[i], self.high[i] - self.low[i])
            moved = value.copy()
            moved[i] += step if value[i] + step <= self.high[i] else -step
            columns.append((self.misfits(moved) - at) / (moved[i] - value[i]))
        return np.stack(columns, axis=1)

    def errors(
        self, slopes: Array, misfits: Array, spread: float, free: NDArray[np.bool_],
        pull: float = 1.0,
    ) -> Array:
        """Standard errors in spreads of the priors: the inverse curvature of the whole cost.

        An outlier has the weight 1/sqrt(1 + z) that it has in the loss. Zero where not free.
        """
        weight = (1.0 + (self.root * misfits / spread) ** 2) ** -0.5
        scaled = (slopes * self.scale * self.root[:, None] / spread)[:, free]
        curvature = (scaled * weight[:, None]).T @ scaled + pull**2 * np.eye(int(free.sum()))
        found = np.zeros(len(free))
        found[free] = np.sqrt(np.diag(np.linalg.inv(curvature)))
        return found


def _spread(misfits: Array, fitted: float) -> float:
    """Standard deviation around zero, from the median, so that outliers do not count."""
    left = max(len(misfits) - fitted, 1.0)
    return NORMAL * float(np.median(np.abs(misfits))) * float(np.sqrt(len(misfits) / left))


def _estimate(parameter: Parameter, value: float, error: float, determined: bool) -> Estimate:
    edge = NEAR * parameter.spread
    bound = "lower" if value <= parameter.low + edge else ""
    bound = "upper" if value >= parameter.high - edge else bound
    return Estimate(parameter, value, error * parameter.spread, determined,
                    bound if determined else "")
