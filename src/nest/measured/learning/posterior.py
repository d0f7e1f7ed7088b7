"""What runs determine of the factors on prices, and what is left open.

Two models, one for the logarithm of measured over priced seconds and one for that of bytes needed
over the limit. Each is a sum of

- factors on causes, log-normal around 1 (:data:`SECONDS`, :data:`BYTES`);
- an error that all runs of one model, number of devices and length of samples share;
- an error that configurations share which are alike (an exponential kernel over degrees);
- noise of the measurement, with heavy tails, so that one wrong row does not decide.

So the posterior of the factors and that of a new configuration come from one Gaussian process
(C. E. Rasmussen, C. Williams, "Gaussian Processes for Machine Learning", 2006, sections 2.2 and
2.7), seconds after Gauss-Newton steps, since causes add up. That a run ran out of memory, or did
not, is a probit observation (section 3.4, Laplace's approximation). Heavy tails: weights of
Student's t (K. Lange et al., "Robust statistical modeling using the t distribution", 1989); the
spread of seconds follows the surprise of what was seen (A. Shah et al., "Student-t processes as
alternatives to Gaussian processes", 2014, equation 4).

Spreads are chosen: between halves and twice of each, replays of 37 sweeps of five codes end alike
(docs/learning.md). Shapes: N observations, P points, K factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import log_ndtr, ndtr

from nest.evaluation.evidence import NINE_OF_TEN
from nest.measured.learning.observations import Observation

Array = NDArray[np.float64]

SECONDS = {"compute": 0.3, "tp": 0.5, "exchange": 0.5, "reduction": 0.5}
"""Spread of the logarithm of each factor."""
BYTES = {"activations": 0.2, "states": 0.1}
SHARED_BYTES = 0.1
"""Spread of an error of all bytes."""
QUESTION = 0.03
"""Spread of the error of seconds that runs of one question share."""
ALIKE_SECONDS, ALIKE_BYTES = 0.1, 0.08
"""Spread of the error that configurations share which are alike."""
LENGTH = 4.0
"""Doublings of degrees over which likeness falls to 1/e."""
SIZES = (0.3, 0.2, 0.2)
"""Distance of two questions for each doubling of parameters, devices, tokens."""
VARIANT = 0.7
"""Distance of two variants of a software."""
NOISE_SECONDS, NOISE_BYTES = 0.03, 0.02
TAILS = 4.0
"""Degrees of freedom of the noise."""
FREEDOM = 2.0
"""Runs that the prior's spread of seconds counts as."""
STEPS, SETTLED = 40, 1e-6


@dataclass(frozen=True)
class Forecast:
    """What is expected of configurations; arrays of shape (P,)."""

    seconds: Array
    """Median."""
    spread: Array
    """Standard deviation of their logarithm, the noise of a run included."""
    needed: Array
    """Bytes needed over the limit, median."""
    doubt: Array
    """Standard deviation of its logarithm."""
    fits: Array
    """Probability that a run does not run out of memory."""

    @property
    def low(self) -> Array:
        """Seconds that 95 of 100 runs take at the least."""
        return np.asarray(self.seconds * np.exp(-NINE_OF_TEN * self.spread))

    @property
    def high(self) -> Array:
        """Seconds that 95 of 100 runs take at the most."""
        return np.asarray(self.seconds * np.exp(NINE_OF_TEN * self.spread))


class _Points:
    """Observations as arrays."""

    def __init__(self, told: Sequence[Observation]) -> None:
        def column(name: str) -> Array:
            return np.array([getattr(one, name) for one in told], np.float64)

        self.parts = np.stack([column(name) for name in SECONDS], 1)
        sizes = np.stack([column(name) for name in BYTES], 1)
        self.total = sizes.sum(1)
        self.shares = np.concatenate([sizes / self.total[:, None], np.ones((len(told), 1))], 1)
        self.limit = column("limit")
        self.degrees = np.array([one.degrees for one in told], np.float64)
        self.sizes = np.array([one.sizes for one in told], np.float64)
        self.variant = np.array([one.variant for one in told])


def _distance(a: Array, b: Array) -> Array:
    return np.asarray(np.abs(a[:, None, :] - b[None, :, :]).sum(2))


def _kernels(a: _Points, b: _Points) -> tuple[Array, Array]:
    """Likeness of questions, and of configurations; (A, B)."""
    apart = _distance(a.sizes * SIZES, b.sizes * SIZES)
    apart = apart + VARIANT * (a.variant[:, None] != b.variant[None, :])
    return np.exp(-apart), np.exp(-apart - _distance(a.degrees, b.degrees) / LENGTH)


class Posterior:
    """What observations say of factors and of other configurations.

    Parameters
    ----------
    observations : runs beside their prices; the order does not matter. None: the prior.
    """

    def __init__(self, observations: Sequence[Observation] = ()) -> None:
        self.observations = tuple(observations)
        self._timed = [one for one in observations if one.seconds is not None]
        self._held = [one for one in observations if one.verdict is not None]

    @cached_property
    def _seconds(self) -> _Seconds:
        return _Seconds(_Points(self._timed),
                        np.log([one.seconds or 1.0 for one in self._timed]))

    @cached_property
    def _bytes(self) -> _Bytes:
        return _Bytes(
            _Points(self._held), np.array([one.verdict == "ran" for one in self._held], bool),
            np.array([np.nan if one.bytes is None else np.log(one.bytes / one.limit)
                      for one in self._held], np.float64))

    def forecast(self, points: Sequence[Observation]) -> Forecast:
        """What is expected of configurations, priced with nothing learned."""
        at = _Points(points)
        mean, variance = self._seconds.at(at)
        needed, doubt = self._bytes.at(at)
        return Forecast(np.exp(mean), np.sqrt(variance + NOISE_SECONDS**2), np.exp(needed),
                        np.sqrt(doubt), ndtr(-needed / np.sqrt(doubt + (2.0 * NOISE_BYTES) ** 2)))

    def factors(self) -> dict[str, tuple[float, float]]:
        """Of each factor its most likely value, and its doubt: nine of ten lie within that factor
        up and down."""
        seconds, lengths = self._seconds.factors()
        sizes, widths = self._bytes.factors()
        means = np.concatenate([seconds, sizes])
        doubts = np.concatenate([lengths, widths])
        return {name: (float(np.exp(mean)), float(np.exp(NINE_OF_TEN * doubt)))
                for name, mean, doubt in zip((*SECONDS, *BYTES), means, doubts, strict=True)}


class _Seconds:
    """The model of seconds, with the factors that are most likely."""

    def __init__(self, told: _Points, seen: Array) -> None:
        self.told, self.seen = told, seen
        self.prior = np.array(list(SECONDS.values())) ** 2
        self.most = np.zeros(len(self.prior))
        self.noise = np.full(len(seen), NOISE_SECONDS**2)
        self.wider = 1.0
        if len(seen):
            self._fit()

    def _fit(self) -> None:
        alike = self._own(self.told, self.told)
        # How far what was seen lies from what was priced, in spreads of the prior.
        misses = self.seen - self._mean(self.told)
        surprise = float(misses @ np.linalg.solve(
            self._covariance(self.told, self.told) + np.diag(self.noise), misses))
        self.wider = (FREEDOM + surprise) / (FREEDOM + len(self.seen))
        for _ in range(STEPS):
            solver = cho_factor(alike + np.diag(self.noise))
            slopes = self._slopes(self.told)
            misses = self.seen - self._mean(self.told)
            bent = cho_solve(solver, slopes)
            step = np.linalg.solve(slopes.T @ bent + np.diag(1.0 / self.prior),
                                   bent.T @ misses - self.most / self.prior)
            step = step * min(1.0, 1.0 / max(float(np.abs(step).max()), 1e-12))
            self.most = self.most + step
            left = self.noise * cho_solve(solver, self.seen - self._mean(self.told))
            noise = (TAILS * NOISE_SECONDS**2 + left**2) / (TAILS + 1.0)
            moved = max(float(np.abs(step).max()), float(np.abs(np.log(noise / self.noise)).max()))
            self.noise = noise
            if moved < 1e-4:
                break
        self.inverse = np.linalg.inv(self._covariance(self.told, self.told) + np.diag(self.noise))
        self.slopes = self._slopes(self.told)
        self.misses = self.inverse @ (
            self.seen - self._mean(self.told) + self.slopes @ self.most)

    def _mean(self, at: _Points) -> Array:
        return np.asarray(np.log(at.parts @ np.exp(self.most)))

    def _slopes(self, at: _Points) -> Array:
        """Change of the logarithm of seconds by that of each factor; (P, K)."""
        each = at.parts * np.exp(self.most)
        return np.asarray(each / each.sum(1)[:, None])

    def _own(self, a: _Points, b: _Points) -> Array:
        asked, alike = _kernels(a, b)
        return np.asarray(QUESTION**2 * asked + ALIKE_SECONDS**2 * alike)

    def _covariance(self, a: _Points, b: _Points) -> Array:
        return np.asarray((self._slopes(a) * self.prior) @ self._slopes(b).T + self._own(a, b))

    def at(self, points: _Points) -> tuple[Array, Array]:
        """Mean and variance of the logarithm of seconds; (P,) each."""
        slopes = self._slopes(points)
        mean = self._mean(points)
        variance = (slopes**2) @ self.prior + QUESTION**2 + ALIKE_SECONDS**2
        if len(self.seen):
            shared = self._covariance(points, self.told)
            mean = mean - slopes @ self.most + shared @ self.misses
            variance = variance - np.einsum("ij,jk,ik->i", shared, self.inverse, shared)
        return mean, self.wider * np.maximum(variance, 1e-9)

    def factors(self) -> tuple[Array, Array]:
        """Mean and standard deviation of the logarithm of each factor; (K,) each."""
        if not len(self.seen):
            return self.most, np.sqrt(self.prior)
        shared = self.prior[:, None] * self.slopes.T
        variance = self.prior - np.einsum("ij,jk,ik->i", shared, self.inverse, shared)
        return shared @ self.misses, np.sqrt(self.wider * np.maximum(variance, 0.0))


class _Bytes:
    """The model of the logarithm of bytes needed over the limit."""

    def __init__(self, told: _Points, ran: NDArray[np.bool_], seen: Array) -> None:
        self.told = told
        self.prior = np.array([*BYTES.values(), SHARED_BYTES]) ** 2
        if len(ran):
            self._fit(ran, seen)

    def _fit(self, ran: NDArray[np.bool_], seen: Array) -> None:
        count = len(ran)
        prior = self._covariance(self.told, self.told) + 1e-8 * np.eye(count)
        inverse = np.linalg.inv(prior)
        start = self._mean(self.told)
        known, sharp = np.isfinite(seen), 2.0 * NOISE_BYTES
        at, sign = start.copy(), np.where(ran, -1.0, 1.0)
        for _ in range(STEPS):
            z = sign * at / sharp
            ratio = np.exp(-0.5 * z**2 - 0.5 * np.log(2.0 * np.pi) - log_ndtr(z))
            slope = np.where(known, (np.where(known, seen, 0.0) - at) / NOISE_BYTES**2,
                             sign * ratio / sharp)
            bend = np.where(known, 1.0 / NOISE_BYTES**2, ratio * (ratio + z) / sharp**2)
            bend = np.maximum(bend, 1e-6)
            step = np.linalg.solve(inverse + np.diag(bend), slope - inverse @ (at - start))
            step = step * min(1.0, 0.2 / max(float(np.abs(step).max()), 1e-12))
            at = at + step
            if float(np.abs(step).max()) < SETTLED:
                break
        self.misses = inverse @ (at - start)
        self.inverse = np.linalg.inv(prior + np.diag(1.0 / bend))

    def _mean(self, at: _Points) -> Array:
        return np.asarray(np.log(at.total / at.limit))

    def _covariance(self, a: _Points, b: _Points) -> Array:
        alike = _kernels(a, b)[1]
        return np.asarray((a.shares * self.prior) @ b.shares.T + ALIKE_BYTES**2 * alike)

    def at(self, points: _Points) -> tuple[Array, Array]:
        """Mean and variance of the logarithm of bytes needed over the limit; (P,) each."""
        mean = self._mean(points)
        variance = (points.shares**2) @ self.prior + ALIKE_BYTES**2
        if len(self.told.limit):
            shared = self._covariance(points, self.told)
            mean = mean + shared @ self.misses
            variance = variance - np.einsum("ij,jk,ik->i", shared, self.inverse, shared)
        return mean, np.maximum(variance, 1e-9)

    def factors(self) -> tuple[Array, Array]:
        """Mean and standard deviation of the logarithm of each factor, the error of all included.
        """
        own = np.concatenate([np.eye(len(BYTES)), np.ones((len(BYTES), 1))], 1)
        mean, variance = np.zeros(len(BYTES)), own @ self.prior
        if len(self.told.limit):
            shared = (own * self.prior) @ self.told.shares.T
            mean = shared @ self.misses
            variance = variance - np.einsum("ij,jk,ik->i", shared, self.inverse, shared)
        return mean, np.sqrt(np.maximum(variance, 0.0))
