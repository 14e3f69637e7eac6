"""Energies of the stages' instructions, with the covariance of their errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flyball_server.profiling.energy_regression import EnergyRegression
from flyball_server.profiling.instruction_times import StageTimes
from flyball_server.profiling.mixed_model import FloatArray, Posterior
from flyball_server.profiling.stage_hierarchy import stage_powers
from flyball_server.profiling.stage_points import StagePoints, StepTable


@dataclass(frozen=True, kw_only=True)
class StageEnergies:
    """Energies at the points of a stage, all its ranks together.

    Attributes:
        mean_j: shape (num_points,).
        blocking_power_w: of one rank.
        covariance: of the errors of the energies (J) and, as the last one, of the blocking power
            (W; 0 where it was given); shape (num_points + 1, num_points + 1).
        num_ranks: whose energies these are.
        step_noise_j: standard deviation of a step's energy by its instructions' scatter.
        lateness_noise_j: of one reading of the counter.
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
    """What a stage's energies are found from.

    Attributes:
        blocking_power_w: of one rank; None: estimated.
    """

    points: StagePoints
    table: StepTable
    times: StageTimes
    num_ranks: int
    blocking_power_w: float | None


def estimate_energies(stages: Mapping[int, MeasuredStage]) -> dict[int, StageEnergies]:
    """Of those stages whose energies were read."""
    powers_w = {
        stage: power_w
        for stage, each in stages.items()
        if (power_w := _mean_busy_power_w(each)) is not None
    }
    if not powers_w:
        return {}
    unit_w = float(np.median(list(powers_w.values())))
    regressions = {stage: _regression(stages[stage], unit_w) for stage in powers_w}
    return {
        stage: _in_joules(stages[stage], regressions[stage], powers, unit_w)
        for stage, powers in stage_powers(regressions).items()
    }


def _mean_busy_power_w(stage: MeasuredStage) -> float | None:
    """Energy of a rank by the time that its instructions run, W; None where it is not known."""
    known = np.isfinite(stage.table.energy_j)
    total_j = float(stage.table.energy_j[known].sum())
    if total_j <= 0:
        return None
    busy_s = float((stage.table.counts[known] @ stage.times.mean_s).sum())
    return total_j / (stage.num_ranks * busy_s)


def _regression(stage: MeasuredStage, unit_w: float) -> EnergyRegression:
    power_w = stage.blocking_power_w
    return EnergyRegression.of_steps(
        stage.points,
        stage.table,
        stage.times,
        unit_j_per_s=stage.num_ranks * unit_w,
        blocking_power=None if power_w is None else power_w / unit_w,
    )


def _in_joules(
    stage: MeasuredStage, regression: EnergyRegression, powers: Posterior, unit_w: float
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
        step_noise_j=regression.step_noise * unit_j_per_s,
        lateness_noise_j=regression.lateness_noise * unit_j_per_s,
    )


def split_free(points: StagePoints, energies: StageEnergies) -> FloatArray:
    """Covariance of the errors without the division between classes, on which no plan depends.

    What all classes take together at the highest clock is divided as the estimate says; each
    other point stands by its difference from its class's highest. Shape as of `covariance`.
    """
    highest = points.highest()
    share = energies.mean_j[highest] / energies.mean_j[highest].sum()
    transform = np.eye(points.num_points + 1)
    for index, top in enumerate(highest):
        of_class = slice(top, top + len(points.clocks_mhz))
        transform[of_class, top] -= 1.0
        transform[of_class, highest] += share[index]
    return transform @ energies.covariance @ transform.T
