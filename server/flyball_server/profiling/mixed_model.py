"""Linear mixed model: estimates of many unknowns from fewer readings, with standard errors.

Readings are `y = X b + noise`; the unknowns b have a Gaussian prior whose covariance, like the
noise's, is a sum of given matrices times unknown variances. The variances are those of highest
posterior density, with log-normal priors (marginal likelihood: Rasmussen and Williams, Gaussian
Processes for Machine Learning, 2006, section 5.4); the unknowns then follow by conditioning
(equation 2.25; it is best linear unbiased prediction).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_MAX_ROUNDS = 40
# Of log s: far below the error with which any s is known.
_CONVERGED = 0.01
# Standard deviations of log s beyond which no search goes.
_FARTHEST = 4.0
_LARGEST_MOVE = 1.0


@dataclass(frozen=True, kw_only=True)
class VarianceComponent:
    """One matrix of a covariance, with the prior of its factor.

    Attributes:
        covariance: covariance that the component adds, times s^2; shape (n, n).
        guess: median of s.
        spread: standard deviation of log s; 0: s is the guess.
    """

    covariance: FloatArray
    guess: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Posterior distribution of unknowns.

    Attributes:
        mean: shape (p,).
        covariance: shape (p, p).
    """

    mean: FloatArray
    covariance: FloatArray


@dataclass(frozen=True, kw_only=True)
class MixedModel:
    """Readings with their expected values and covariance.

    Attributes:
        readings: y; shape (n,).
        design: X; shape (n, p).
        prior_mean: prior mean of b; shape (p,).
        prior: components of b's covariance; each shape (p, p).
        noise: components of the noise's; each shape (n, n).
    """

    readings: FloatArray
    design: FloatArray
    prior_mean: FloatArray
    prior: Sequence[VarianceComponent]
    noise: Sequence[VarianceComponent]

    def fitted(self) -> FittedModel:
        """Return the model with the standard deviation of each component, the most probable one."""
        matrices = np.array(
            [
                *(self.design @ part.covariance @ self.design.T for part in self.prior),
                *(part.covariance for part in self.noise),
            ]
        )
        residual = self.readings - self.design @ self.prior_mean
        found = _most_probable(residual, matrices, (*self.prior, *self.noise))
        of_prior, of_noise = found[: len(self.prior)], found[len(self.prior) :]
        return FittedModel(
            readings=self.readings,
            design=self.design,
            prior=Posterior(mean=self.prior_mean, covariance=covariance_of(self.prior, of_prior)),
            noise=covariance_of(self.noise, of_noise),
            noise_scales=of_noise,
        )


@dataclass(frozen=True, kw_only=True)
class FittedModel:
    """Readings of unknowns with known variances.

    Attributes:
        readings: y; shape (n,).
        design: X; shape (n, p).
        prior: prior of b.
        noise: covariance of the readings' errors; shape (n, n).
        noise_scales: standard deviation of each component of the noise.
    """

    readings: FloatArray
    design: FloatArray
    prior: Posterior
    noise: FloatArray
    noise_scales: tuple[float, ...]

    def posterior(self, prior: Posterior | None = None) -> Posterior:
        """Return the unknowns, given the readings and a prior; None: the model's own."""
        prior = prior or self.prior
        to_readings = self.design @ prior.covariance
        gain = np.linalg.solve(to_readings @ self.design.T + self.noise, to_readings).T
        remaining = prior.covariance - gain @ to_readings
        return Posterior(
            mean=prior.mean + gain @ (self.readings - self.design @ prior.mean),
            covariance=(remaining + remaining.T) / 2,
        )


def covariance_of(parts: Sequence[VarianceComponent], scales: Sequence[float]) -> FloatArray:
    """Return the sum of the components."""
    total = np.zeros_like(parts[0].covariance)
    for part, scale in zip(parts, scales, strict=True):
        total += scale * scale * part.covariance
    return total


def _most_probable(
    residual: FloatArray, matrices: FloatArray, parts: Sequence[VarianceComponent]
) -> tuple[float, ...]:
    """Scoring with the average information matrix (Gilmour et al., Biometrics 51, 1995)."""
    guess = np.log([part.guess for part in parts])
    free = np.array([part.spread > 0 for part in parts])
    spread = np.array([part.spread if part.spread > 0 else 1.0 for part in parts])
    log_scale = guess.copy()
    density, slope, information = _log_density(residual, matrices, log_scale)
    penalty = _penalty(log_scale, guess, spread)
    damping = 1.0
    for _ in range(_MAX_ROUNDS):
        gradient = (slope - (log_scale - guess) / spread**2)[free]
        curvature = (information + np.diag(1 / spread**2))[np.ix_(free, free)]
        curvature[np.diag_indices_from(curvature)] *= damping
        move = np.zeros_like(log_scale)
        move[free] = np.clip(np.linalg.solve(curvature, gradient), -_LARGEST_MOVE, _LARGEST_MOVE)
        tried = np.clip(log_scale + move, guess - _FARTHEST * spread, guess + _FARTHEST * spread)
        if np.abs(tried - log_scale).max() < _CONVERGED:
            break
        after = _log_density(residual, matrices, tried)
        if after[0] - _penalty(tried, guess, spread) > density - penalty:
            log_scale, (density, slope, information) = tried, after
            penalty = _penalty(log_scale, guess, spread)
            damping = max(1.0, damping / 4)
        else:
            damping *= 4
    return tuple(float(scale) for scale in np.exp(log_scale))


def _penalty(log_scale: FloatArray, guess: FloatArray, spread: FloatArray) -> float:
    return float(0.5 * (((log_scale - guess) / spread) ** 2).sum())


def _log_density(
    residual: FloatArray, matrices: FloatArray, log_scale: FloatArray
) -> tuple[float, FloatArray, FloatArray]:
    """Log density of the readings, its slope over each log s, and the average information."""
    weights = np.exp(2 * log_scale)
    num_readings = len(residual)
    flat = matrices.reshape(len(weights), -1)
    inverse = np.linalg.inv((weights @ flat).reshape(num_readings, num_readings))
    _, log_determinant = np.linalg.slogdet(inverse)
    solved = inverse @ residual
    applied = weights[:, None] * (matrices @ solved)
    slope = applied @ solved - weights * (flat @ inverse.ravel())
    density = 0.5 * (log_determinant - residual @ solved)
    return float(density), slope, 2 * applied @ inverse @ applied.T
