"""What the stages of a job tell of each other: powers over the clock, and the blocking power.

All stages run the same kinds of instructions on the same GPUs, so their powers at one clock are
much alike, though not their times. A stage's powers are those common to all, and a departure of
its own whose size is found from how well the other stages predict its readings. So each stage's
readings sharpen the others', and tell what those leave open: the last stage of 1F1B runs forward
and backward in turn all the time, and cannot tell how energy is divided between them.

It is a hierarchical Gaussian model (Gelman et al., Bayesian Data Analysis, 3rd edition, section
5.4), each stage being predicted from the others alone, so that none counts twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flyball_server.profiling.curve_prior import CurvePrior
from flyball_server.profiling.energy_regression import EnergyRegression
from flyball_server.profiling.mixed_model import (
    FloatArray,
    Posterior,
    conditioned,
    covariance_of,
)

# Of a stage from the common powers, as shares of the mean power.
_BETWEEN_STAGES = CurvePrior(
    level=0.02, offset=0.007, shape=(0.01, 0.0), own_shape=(0.005, 0.0), roughness=(0.002, 0.0)
)
_BLOCKING_POWER_BETWEEN_STAGES = 0.01
# Factors of these, tried in turn as long as the readings become more probable; and the standard
# deviation of the logarithm of the right one.
_FACTORS = (0.5, 1.0, 2.0, 4.0, 8.0)
_FACTOR_SPREAD = 1.0


def stage_powers(regressions: Mapping[int, EnergyRegression]) -> dict[int, Posterior]:
    """The powers of each stage, given its own readings and those of the stages like it."""
    powers: dict[int, Posterior] = {}
    for alike in _groups(regressions):
        for stage, prior in _expected(alike).items():
            model = alike[stage].model
            powers[stage] = conditioned(model.readings, model.design, alike[stage].noise, prior)
    return powers


def _groups(
    regressions: Mapping[int, EnergyRegression],
) -> list[dict[int, EnergyRegression]]:
    """Stages of the same classes and clocks: they have the same kind of GPU."""
    groups: dict[object, dict[int, EnergyRegression]] = {}
    for stage, regression in regressions.items():
        groups.setdefault(regression.points, {})[stage] = regression
    return list(groups.values())


def _expected(regressions: Mapping[int, EnergyRegression]) -> dict[int, Posterior]:
    """What to expect of each stage's powers before its own readings."""
    if len(regressions) == 1:
        return {stage: regression.prior for stage, regression in regressions.items()}
    vague = _vague(list(regressions.values()))
    evidence = {
        stage: _Evidence.of_readings(regression, vague.mean)
        for stage, regression in regressions.items()
    }
    departure = _departure(next(iter(regressions.values())))

    def of_factor(factor: float) -> tuple[float, dict[int, Posterior]]:
        expected = _predicted(vague, evidence, factor**2 * departure)
        density = sum(
            _log_density(regression, expected[stage]) for stage, regression in regressions.items()
        )
        return density - 0.5 * (np.log(factor) / _FACTOR_SPREAD) ** 2, expected

    density, expected = of_factor(_FACTORS[0])
    for factor in _FACTORS[1:]:
        tried = of_factor(factor)
        if tried[0] <= density:
            break
        density, expected = tried
    return expected


def _vague(regressions: Sequence[EnergyRegression]) -> Posterior:
    """What is expected of the common powers before any reading: as of a stage, on average."""
    return Posterior(
        mean=np.mean([each.prior.mean for each in regressions], axis=0),
        covariance=np.mean([each.prior.covariance for each in regressions], axis=0),
    )


def _departure(regression: EnergyRegression) -> FloatArray:
    """Covariance of a stage's departure from the common powers."""
    points = regression.points
    parts = _BETWEEN_STAGES.components(len(points.classes), points.clocks_mhz)
    covariance = covariance_of(parts, [part.guess for part in parts])
    has_blocking_power = len(regression.prior.mean) > points.num_points
    if has_blocking_power:
        covariance = np.pad(covariance, (0, 1))
        covariance[-1, -1] = _BLOCKING_POWER_BETWEEN_STAGES**2
    return covariance


@dataclass(frozen=True, kw_only=True)
class _Evidence:
    """What a stage's readings say of its powers, without any prior.

    Attributes:
        precision: shape (p, p).
        weighted: precision times the powers less their vague mean; shape (p,).
    """

    precision: FloatArray
    weighted: FloatArray

    @classmethod
    def of_readings(cls, regression: EnergyRegression, mean: FloatArray) -> _Evidence:
        model = regression.model
        weights = np.linalg.solve(regression.noise, model.design)
        return cls(
            precision=model.design.T @ weights,
            weighted=weights.T @ (model.readings - model.design @ mean),
        )

    def of_common(self, departure: FloatArray) -> _Evidence:
        """The same about the common powers, from which the stage's depart."""
        identity = np.eye(len(departure))
        shrink = np.linalg.inv(identity + self.precision @ departure)
        return _Evidence(precision=shrink @ self.precision, weighted=shrink @ self.weighted)


def _predicted(
    vague: Posterior, evidence: Mapping[int, _Evidence], departure: FloatArray
) -> dict[int, Posterior]:
    """Each stage's powers as the others tell them."""
    of_common = {stage: each.of_common(departure) for stage, each in evidence.items()}
    all_precision = sum((each.precision for each in of_common.values()), np.zeros_like(departure))
    all_weighted = sum((each.weighted for each in of_common.values()), np.zeros(len(departure)))
    identity = np.eye(len(departure))
    expected: dict[int, Posterior] = {}
    for stage, own in of_common.items():
        precision = all_precision - own.precision
        covariance = vague.covariance @ np.linalg.inv(identity + precision @ vague.covariance)
        expected[stage] = Posterior(
            mean=vague.mean + covariance @ (all_weighted - own.weighted),
            covariance=(covariance + covariance.T) / 2 + departure,
        )
    return expected


def _log_density(regression: EnergyRegression, expected: Posterior) -> float:
    """Of the stage's readings, up to a constant."""
    model = regression.model
    total = model.design @ expected.covariance @ model.design.T + regression.noise
    residual = model.readings - model.design @ expected.mean
    _, log_determinant = np.linalg.slogdet(total)
    return float(-0.5 * (log_determinant + residual @ np.linalg.solve(total, residual)))
