"""Linear mixed model of curves over the clock: unknowns of like stages from noisy readings.

Readings of several stages are `y = X b + noise`, with one vector b of unknowns per stage. The
covariance of the unknowns and of the noise is a sum of known matrices times unknown variances; a
part of it is either common to all stages, or independent from stage to stage. The variances are
those of highest posterior density, with log-normal priors (marginal likelihood: Rasmussen and
Williams, Gaussian Processes for Machine Learning, 2006, section 5.4); the unknowns then follow by
conditioning (equation 2.25; the best linear unbiased prediction).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyball_server.planning.model.array_dag import FloatArray

# Of the window of clocks on a log scale: over this length a curve stays much the same. Where power
# begins to limit a GPU differs from class to class, so the curves of classes bend sooner.
_COMMON_LENGTH, _OWN_LENGTH = 0.5, 0.2

_MAX_ROUNDS = 40
# Change of log s that is far below the error with which any s is known.
_CONVERGED = 0.01
# Standard deviations of log s beyond which no search goes, and its largest move.
_FARTHEST, _LARGEST_MOVE = 4.0, 1.0
# Readings that are fitted together at most: the work grows with their cube.
_MOST_READINGS, _MOST_STAGES = 600, 16


@dataclass(frozen=True, kw_only=True)
class VariancePart:
    """Part of a covariance: a matrix times s^2.

    Attributes:
        covariance: the matrix, of a stage's unknowns or of all readings; shape (n, n).
        guess: median of s.
        spread: standard deviation of log s; 0: s is the guess.
        is_common: true if all stages share this part of their unknowns.
    """

    covariance: FloatArray
    guess: float
    spread: float = 0.0
    is_common: bool = False


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Readings of a stage; n of them.

    Attributes:
        values: y; shape (n,).
        design: X; shape (n, p).
        noise: matrix of each part of the noise; each shape (n, n).
    """

    values: FloatArray
    design: FloatArray
    noise: tuple[FloatArray, ...]


@dataclass(frozen=True, kw_only=True)
class StageFit:
    """Posterior distribution of a stage's unknowns.

    Attributes:
        mean, covariance: shapes (p,) and (p, p).
        noise: standard deviation of each part of the noise.
    """

    mean: FloatArray
    covariance: FloatArray
    noise: tuple[float, ...]


def fit_stages(
    stages: Sequence[Readings],
    prior_mean: FloatArray,
    prior: Sequence[VariancePart],
    noise: Sequence[tuple[float, float]],
) -> list[StageFit]:
    """Return the unknowns of each stage under the most probable variances.

    Args:
        stages: readings of each stage; where there are many, neighbours are fitted together.
        prior_mean: prior mean of a stage's unknowns; shape (p,).
        prior: parts of the unknowns' covariance.
        noise: guess and spread of each part of the noise.
    """
    fitting = _MOST_READINGS // max(len(stage.values) for stage in stages)
    size = min(max(1, fitting), _MOST_STAGES)
    return [
        fit
        for first in range(0, len(stages), size)
        for fit in _fit_together(stages[first : first + size], prior_mean, prior, noise)
    ]


def _fit_together(
    stages: Sequence[Readings],
    prior_mean: FloatArray,
    prior: Sequence[VariancePart],
    noise: Sequence[tuple[float, float]],
) -> list[StageFit]:
    stage = np.repeat(np.arange(len(stages)), [len(each.values) for each in stages])
    is_same = stage[:, None] == stage
    design = np.concatenate([each.design for each in stages])
    residual = np.concatenate([each.values for each in stages]) - design @ prior_mean
    of_prior = [design @ part.covariance @ design.T * (is_same | part.is_common) for part in prior]
    of_noise = np.zeros((len(stages), len(noise), *is_same.shape))
    for number, each in enumerate(stages):
        of_stage = np.flatnonzero(stage == number)
        of_noise[number][:, of_stage[:, None], of_stage] = each.noise
    matrices = np.concatenate([of_prior, of_noise.reshape(-1, *is_same.shape)])
    spreads = [*((part.guess, part.spread) for part in prior), *list(noise) * len(stages)]
    scales = _most_probable(residual, matrices, np.array(spreads))
    of_noise_scales = scales[len(prior) :].reshape(len(stages), len(noise))
    root = np.linalg.cholesky(np.tensordot(scales**2, matrices, 1))
    white = np.linalg.solve(root, residual)
    common, own = (_covariance(prior, scales, is_common=is_common) for is_common in (True, False))
    fits: list[StageFit] = []
    for number in range(len(stages)):
        is_own = (stage == number)[:, None]
        to_readings = design @ common + np.where(is_own, design @ own, 0.0)
        gain = np.linalg.solve(root, to_readings)
        fits.append(
            StageFit(
                mean=prior_mean + white @ gain,
                covariance=common + own - gain.T @ gain,
                noise=tuple(of_noise_scales[number].tolist()),
            )
        )
    return fits


def _covariance(
    prior: Sequence[VariancePart], scales: FloatArray, *, is_common: bool
) -> FloatArray:
    """Return the covariance that stages share, or the one of each."""
    total = np.zeros_like(prior[0].covariance)
    for part, scale in zip(prior, scales[: len(prior)].tolist(), strict=True):
        if part.is_common == is_common:
            total += scale**2 * part.covariance
    return total


def _most_probable(residual: FloatArray, matrices: FloatArray, spreads: FloatArray) -> FloatArray:
    """Return each s of highest posterior density, from the guesses and spreads of all.

    By scoring with the average information matrix (Gilmour et al., Biometrics 51, 1995).
    """
    guess, free = np.log(spreads[:, 0]), spreads[:, 1] > 0
    spread = np.where(free, spreads[:, 1], 1.0)
    log_scale, damping = guess, 1.0
    density, slope, information = _log_density(residual, matrices, log_scale)
    for _ in range(_MAX_ROUNDS if free.any() else 0):
        off = (log_scale - guess) / spread
        curvature = (information + np.diag(1 / spread**2))[np.ix_(free, free)]
        curvature[np.diag_indices_from(curvature)] *= damping
        move = np.zeros_like(log_scale)
        move[free] = np.linalg.solve(curvature, (slope - off / spread)[free])
        tried = log_scale + np.clip(move, -_LARGEST_MOVE, _LARGEST_MOVE)
        tried = np.clip(tried, guess - _FARTHEST * spread, guess + _FARTHEST * spread)
        if np.abs(tried - log_scale).max() < _CONVERGED:
            break
        after = _log_density(residual, matrices, tried)
        gain = 0.5 * (off @ off - np.sum(((tried - guess) / spread) ** 2))
        if after[0] - density + gain > 0:
            log_scale, (density, slope, information) = tried, after
            damping = max(1.0, damping / 4)
        else:
            damping *= 4
    scales: FloatArray = np.exp(log_scale)
    return scales


def _log_density(
    residual: FloatArray, matrices: FloatArray, log_scale: FloatArray
) -> tuple[float, FloatArray, FloatArray]:
    """Log density of the readings, its slope over each log s, and the average information."""
    weights = np.exp(2 * log_scale)
    inverse = np.linalg.inv(np.tensordot(weights, matrices, 1))
    _, log_determinant = np.linalg.slogdet(inverse)
    solved = inverse @ residual
    applied = weights[:, None] * (matrices @ solved)
    slope = applied @ solved - weights * (matrices.reshape(len(weights), -1) @ inverse.ravel())
    density = 0.5 * (log_determinant - residual @ solved)
    return float(density), slope, 2 * applied @ inverse @ applied.T


@dataclass(frozen=True, kw_only=True)
class CurveSpreads:
    """Standard deviations of curves from their mean, each with that of its logarithm.

    Attributes:
        level: level of all curves together.
        offset: offset of a class's curve from the common one.
        shape: shape of the common curve about its level.
        own_shape: shape of a class's curve about the common one, none at the highest clock.
        roughness: deviation of a point from its smooth curve.
    """

    level: tuple[float, float] = (0.0, 0.0)
    offset: tuple[float, float] = (0.0, 0.0)
    shape: tuple[float, float] = (0.0, 0.0)
    own_shape: tuple[float, float] = (0.0, 0.0)
    roughness: tuple[float, float] = (0.0, 0.0)


def curve_parts(
    spreads: CurveSpreads, num_classes: int, clocks_mhz: Sequence[int], *, is_common: bool
) -> list[VariancePart]:
    """Return the parts of the curves of a stage, class after class, each over falling clocks."""
    num_clocks = len(clocks_mhz)
    own_class, all_classes = np.eye(num_classes), np.ones((num_classes, num_classes))
    flat = np.ones((num_clocks, num_clocks))
    own = _smooth(clocks_mhz, _OWN_LENGTH)
    return [
        VariancePart(
            covariance=np.kron(of_class, of_clock).astype(np.float64),
            guess=guess,
            spread=spread,
            is_common=is_common,
        )
        for of_class, of_clock, (guess, spread) in (
            (all_classes, flat, spreads.level),
            (own_class, flat, spreads.offset),
            (all_classes, _smooth(clocks_mhz, _COMMON_LENGTH), spreads.shape),
            (own_class, own - own[:, :1] - own[:1] + own[0, 0], spreads.own_shape),
            (own_class, np.eye(num_clocks), spreads.roughness),
        )
        if guess
    ]


def _smooth(clocks_mhz: Sequence[int], length: float) -> FloatArray:
    """Matern 5/2 covariance of a smooth curve's values at these clocks, on a log scale."""
    position = np.log(np.array(clocks_mhz, dtype=np.float64))
    position /= position[0] - position[-1]
    distance = np.abs(position[:, None] - position[None, :]) * (np.sqrt(5.0) / length)
    smooth: FloatArray = (1 + distance + distance**2 / 3) * np.exp(-distance)
    return smooth
