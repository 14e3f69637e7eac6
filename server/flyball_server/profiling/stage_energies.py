"""Energies of the stages' instructions, with the covariance of their errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flyball_server.profiling.energy_regression import energy_regression
from flyball_server.profiling.instruction_times import CurvePrior, StageTimes
from flyball_server.profiling.mixed_model import (
    FittedModel,
    FloatArray,
    Posterior,
    covariance_of,
)
from flyball_server.profiling.stage_points import StagePoints, StepTable

# Of a stage from the common powers, as shares of the mean power.
_BETWEEN_STAGES = CurvePrior(
    level=0.02, offset=0.0, shape=(0.01, 0.0), own_shape=(0.005, 0.0), roughness=(0.002, 0.0)
)
_BLOCKING_POWER_BETWEEN_STAGES = 0.01
# Factors of these, tried in turn as long as the readings become more probable; and the standard
# deviation of the logarithm of the right one.
_FACTORS = (0.5, 1.0, 2.0, 4.0, 8.0)
_FACTOR_SPREAD = 1.0


def stage_powers(
    points: Mapping[int, StagePoints], models: Mapping[int, FittedModel]
) -> dict[int, Posterior]:
    """Return the powers of each stage, given its own readings and those of the stages like it.

    Stages of the same classes and clocks are alike: they have the same kind of GPU.

    Args:
        points: points of each stage.
        models: regression of each stage.
    """
    powers: dict[int, Posterior] = {}
    for shared in dict.fromkeys(points[stage] for stage in models):
        alike = {stage: model for stage, model in models.items() if points[stage] == shared}
        for stage, prior in _expected(shared, alike).items():
            powers[stage] = alike[stage].posterior(prior)
    return powers


def _expected(points: StagePoints, models: Mapping[int, FittedModel]) -> dict[int, Posterior]:
    """Return what to expect of each stage's powers before its own readings."""
    if len(models) == 1:
        return {stage: model.prior for stage, model in models.items()}
    vague = Posterior(  # of a stage on average
        mean=np.mean([model.prior.mean for model in models.values()], axis=0),
        covariance=np.mean([model.prior.covariance for model in models.values()], axis=0),
    )
    evidence = {stage: _Evidence.of_readings(model, vague.mean) for stage, model in models.items()}
    departure = _departure(points, len(vague.mean))

    def of_factor(factor: float) -> tuple[float, dict[int, Posterior]]:
        expected = _predicted(vague, evidence, factor**2 * departure)
        density = sum(_log_density(model, expected[stage]) for stage, model in models.items())
        return density - 0.5 * (np.log(factor) / _FACTOR_SPREAD) ** 2, expected

    density, expected = of_factor(_FACTORS[0])
    for factor in _FACTORS[1:]:
        tried = of_factor(factor)
        if tried[0] <= density:
            break
        density, expected = tried
    return expected


def _departure(points: StagePoints, num_powers: int) -> FloatArray:
    """Covariance of a stage's departure from the common powers."""
    parts = _BETWEEN_STAGES.components(len(points.classes), points.clocks_mhz)
    covariance = covariance_of(parts, [part.guess for part in parts])
    if num_powers > points.num_points:  # the blocking power too
        covariance = np.pad(covariance, (0, 1))
        covariance[-1, -1] = _BLOCKING_POWER_BETWEEN_STAGES**2
    return covariance


@dataclass(frozen=True, kw_only=True)
class _Evidence:
    """Evidence of a stage's readings about its powers, without any prior.

    Attributes:
        precision: shape (p, p).
        weighted: precision times the powers less their vague mean; shape (p,).
    """

    precision: FloatArray
    weighted: FloatArray

    @classmethod
    def of_readings(cls, model: FittedModel, mean: FloatArray) -> _Evidence:
        weights = np.linalg.solve(model.noise, model.design)
        return cls(
            precision=model.design.T @ weights,
            weighted=weights.T @ (model.readings - model.design @ mean),
        )

    def of_common(self, departure: FloatArray) -> _Evidence:
        """Return the same about the common powers, from which the stage's depart."""
        identity = np.eye(len(departure))
        shrink = np.linalg.inv(identity + self.precision @ departure)
        return _Evidence(precision=shrink @ self.precision, weighted=shrink @ self.weighted)


def _predicted(
    vague: Posterior, evidence: Mapping[int, _Evidence], departure: FloatArray
) -> dict[int, Posterior]:
    """Return each stage's powers as predicted from the others."""
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


def _log_density(model: FittedModel, expected: Posterior) -> float:
    """Return the log density of the stage's readings, up to a constant."""
    total = model.design @ expected.covariance @ model.design.T + model.noise
    residual = model.readings - model.design @ expected.mean
    _, log_determinant = np.linalg.slogdet(total)
    return float(-0.5 * (log_determinant + residual @ np.linalg.solve(total, residual)))


@dataclass(frozen=True, kw_only=True)
class StageEnergies:
    """Energies at the points of a stage, all its ranks together.

    Attributes:
        mean_j: shape (num_points,).
        blocking_power_w: blocking power of one rank, W.
        covariance: covariance of the errors of the energies (J) and, last, of the blocking
            power (W; 0 where it was given); shape (num_points + 1, num_points + 1).
        num_ranks: number of ranks that the energies belong to.
        step_noise_j: standard deviation of a step's energy by its instructions' scatter.
        lateness_noise_j: noise of one reading of the counter, J.
    """

    mean_j: FloatArray
    blocking_power_w: float
    covariance: FloatArray
    num_ranks: int
    step_noise_j: float
    lateness_noise_j: float

    @property
    def error_j(self) -> FloatArray:
        """Standard errors of the energies; shape (num_points,)."""
        errors: FloatArray = np.sqrt(np.maximum(np.diag(self.covariance)[:-1], 0.0))
        return errors

    @property
    def blocking_power_error_w(self) -> float:
        """Standard error of the blocking power, W."""
        return float(np.sqrt(max(0.0, self.covariance[-1, -1])))


@dataclass(frozen=True, kw_only=True)
class MeasuredStage:
    """Input for a stage's energies.

    Attributes:
        blocking_power_w: blocking power of one rank, W; None: estimated.
    """

    points: StagePoints
    table: StepTable
    times: StageTimes
    num_ranks: int
    blocking_power_w: float | None


def estimate_energies(stages: Mapping[int, MeasuredStage]) -> dict[int, StageEnergies]:
    """Estimate the energies of the stages whose energy was read."""
    powers_w = {
        stage: power_w
        for stage, each in stages.items()
        if (power_w := _mean_busy_power_w(each)) is not None
    }
    if not powers_w:
        return {}
    unit_w = float(np.median(list(powers_w.values())))
    models = {stage: _regression(stages[stage], unit_w) for stage in powers_w}
    points = {stage: each.points for stage, each in stages.items()}
    return {
        stage: _in_joules(stages[stage], models[stage].noise_scales, powers, unit_w)
        for stage, powers in stage_powers(points, models).items()
    }


def _mean_busy_power_w(stage: MeasuredStage) -> float | None:
    """Energy of a rank by the time that its instructions run, W; None where it is not known."""
    known = np.isfinite(stage.table.energy_j)
    total_j = float(stage.table.energy_j[known].sum())
    if total_j <= 0:
        return None
    busy_s = float((stage.table.counts[known] @ stage.times.mean_s).sum())
    return total_j / (stage.num_ranks * busy_s)


def _regression(stage: MeasuredStage, unit_w: float) -> FittedModel:
    power_w = stage.blocking_power_w
    return energy_regression(
        stage.points,
        stage.table,
        stage.times,
        unit_j_per_s=stage.num_ranks * unit_w,
        blocking_power=None if power_w is None else power_w / unit_w,
    )


def _in_joules(
    stage: MeasuredStage, noise_s: tuple[float, ...], powers: Posterior, unit_w: float
) -> StageEnergies:
    num_points, times = stage.points.num_points, stage.times
    unit_j_per_s = stage.num_ranks * unit_w
    per_power = np.append(unit_j_per_s * times.mean_s, unit_w)
    num_known = len(powers.mean)
    covariance = np.zeros((num_points + 1, num_points + 1))
    covariance[:num_known, :num_known] = powers.covariance
    covariance *= np.outer(per_power, per_power)
    # An interpolated point's power is known beside its time: the time's error adds. A probed
    # one's energy was read as a whole.
    of_times = np.where(times.num_probes > 0, 0.0, powers.mean[:num_points] * times.error_s)
    covariance[:num_points, :num_points] += np.diag((unit_j_per_s * of_times) ** 2)
    given_w = stage.blocking_power_w
    return StageEnergies(
        mean_j=powers.mean[:num_points] * per_power[:num_points],
        blocking_power_w=max(0.0, unit_w * float(powers.mean[-1])) if given_w is None else given_w,
        covariance=covariance,
        num_ranks=stage.num_ranks,
        step_noise_j=noise_s[0] * unit_j_per_s,
        lateness_noise_j=noise_s[1] * unit_j_per_s,
    )
