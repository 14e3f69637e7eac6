"""Energies of a stage's instructions, and its blocking power, by regression over steps.

A step's energy is the sum over its instructions of power times time, the blocking power of its
ranks times their idle time, and noise. Two of the noise's parts are told apart:

- each instruction's own scatter, independent from step to step;
- the counter's lateness: it moves about every 100 ms, so a reading is late by up to that much.
  A reading ends one step and begins the next, so its error enters both with opposite signs, and
  cancels in the sum of neighbours: a run of steps at the same clocks tells more than the same
  steps scattered.

In every step all classes of instructions run equally often, whatever their clocks are. So whole
steps tell how each class's energy changes over the clock, and what all classes take together at
one clock, but not how that is divided between them: energy moved from each forward to each
backward changes no step (and no plan). The division comes from runs of one class between two
readings of the counter within a step, and from what stages have in common (`stage_hierarchy`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_server.profiling.curve_prior import CurvePrior
from flyball_server.profiling.instruction_times import StageTimes
from flyball_server.profiling.mixed_model import (
    FloatArray,
    MixedModel,
    Posterior,
    VarianceComponent,
    covariance_of,
)
from flyball_server.profiling.stage_points import StagePoints, StepTable

# Of power, as a share of the stages' mean power while they are busy. In published profiles (GPT-3
# on A100 and A40) forward and backward differ by 0 to 6 % at one clock.
POWER_PRIOR = CurvePrior(
    level=1.0,
    offset=0.03,
    shape=(0.3, 1.0),
    own_shape=(0.03, 0.5),
    roughness=(0.003, 0.8),
)
# Of the blocking power, likewise: mean and standard deviation.
_BLOCKING_POWER, _BLOCKING_POWER_ERROR = 0.25, 0.25
# Of a late reading: standard deviation of a uniform 0.1 s, at mean power while instructions run,
# and at somewhat less at the end of a step.
_LATENESS_IN_RUN_S, _LATENESS_S = 0.03, 0.02
_NOISE_SPREAD = 1.5
_NOISE_SHARE = 0.02


def mean_busy_power_w(table: StepTable, times: StageTimes, num_ranks: int) -> float | None:
    """Energy of a rank by the time that its instructions run, W; None where it is not known."""
    known = np.isfinite(table.energy_j)
    total_j = float(table.energy_j[known].sum())
    if total_j <= 0:
        return None
    return total_j / (num_ranks * float((table.counts[known] @ times.mean_s).sum()))


@dataclass(frozen=True, kw_only=True)
class EnergyRegression:
    """Readings of one stage, and what its powers are expected to be.

    Powers are of one rank, in units of `unit_w`, one at each point, then the blocking power
    where it is unknown.

    Attributes:
        model: of the powers.
        noise: covariance of the readings' errors, found from them.
        prior: what is expected of the powers, its variances found from the readings.
        step_noise: standard deviation of a step's energy by its instructions' scatter, s.
        lateness_noise: of one reading of the counter, s.
    """

    points: StagePoints
    model: MixedModel
    noise: FloatArray
    prior: Posterior
    step_noise: float
    lateness_noise: float

    @classmethod
    def of_steps(
        cls,
        points: StagePoints,
        table: StepTable,
        times: StageTimes,
        *,
        unit_j_per_s: float,
        blocking_power: float | None,
    ) -> EnergyRegression:
        """Find the variances.

        Args:
            unit_j_per_s: power of all the stage's ranks that counts as 1, W.
            blocking_power: in that unit; None: estimated.
        """
        known = np.flatnonzero(np.isfinite(table.energy_j))
        runs = _Runs.of_table(table, times, unit_j_per_s)
        energies = np.append(table.energy_j[known] / unit_j_per_s, runs.energies)
        busy_s = np.vstack([table.counts[known] * times.mean_s, runs.busy_s])
        idle_s = np.append(table.idle_s[known], runs.idle_s)
        powers = POWER_PRIOR.components(len(points.classes), points.clocks_mhz)
        mean = np.ones(points.num_points)
        if blocking_power is None:
            busy_s, mean = np.column_stack([busy_s, idle_s]), np.append(mean, _BLOCKING_POWER)
            powers = (*map(_beside_blocking_power, powers), _blocking_power_part(len(mean)))
        else:
            energies -= blocking_power * idle_s
        noise = [*_step_noise(table, known, times, len(runs.energies)), runs.noise(len(known))]
        model = MixedModel(
            readings=energies, design=busy_s, prior_mean=mean, prior=powers, noise=noise
        )
        scales = model.scales()
        return cls(
            points=points,
            model=model,
            noise=covariance_of(noise, scales.noise),
            prior=Posterior(mean=mean, covariance=covariance_of(powers, scales.prior)),
            step_noise=scales.noise[0],
            lateness_noise=scales.noise[1],
        )


@dataclass(frozen=True, kw_only=True)
class _Runs:
    """Runs within steps, those at the same point together as their mean.

    Attributes:
        busy_s: at each point; shape (num_runs, num_points).
        idle_s: shape (num_runs,).
        energies: same shape.
        num_readings: runs in each mean; same shape.
        scatter: standard deviation of a single one's energy.
    """

    busy_s: FloatArray
    idle_s: FloatArray
    energies: FloatArray
    num_readings: FloatArray
    scatter: float

    @classmethod
    def of_table(cls, table: StepTable, times: StageTimes, unit_j_per_s: float) -> _Runs:
        at, which = np.unique(table.run_point, return_inverse=True)
        num_readings = np.bincount(which, minlength=len(at)).astype(np.float64)

        def mean(values: FloatArray) -> FloatArray:
            return np.bincount(which, values, minlength=len(at)) / num_readings

        ran_s = table.run_count * times.mean_s[table.run_point]
        busy_s = np.zeros((len(at), table.counts.shape[1]))
        busy_s[np.arange(len(at)), at] = mean(ran_s)
        single = table.run_energy_j / unit_j_per_s
        energies = mean(single)
        expected = 2 * _LATENESS_IN_RUN_S**2
        freedom = len(which) - len(at)
        squares = float(np.square(single - energies[which]).sum())
        return cls(
            busy_s=busy_s,
            idle_s=mean(np.maximum(table.run_time_s - ran_s, 0.0)),
            energies=energies,
            num_readings=num_readings,
            scatter=float(np.sqrt((squares + 4 * expected) / (freedom + 4))),
        )

    def noise(self, num_steps: int) -> VarianceComponent:
        variances = np.append(np.zeros(num_steps), 1 / self.num_readings)
        return VarianceComponent(covariance=np.diag(variances), guess=self.scatter, spread=0.0)


def _beside_blocking_power(part: VarianceComponent) -> VarianceComponent:
    return VarianceComponent(
        covariance=np.pad(part.covariance, (0, 1)), guess=part.guess, spread=part.spread
    )


def _blocking_power_part(num_powers: int) -> VarianceComponent:
    covariance = np.zeros((num_powers, num_powers))
    covariance[-1, -1] = 1.0
    return VarianceComponent(covariance=covariance, guess=_BLOCKING_POWER_ERROR, spread=0.0)


def _step_noise(
    table: StepTable, known: NDArray[np.int64], times: StageTimes, num_runs: int
) -> list[VarianceComponent]:
    variances = table.counts[known] @ np.square(_NOISE_SHARE * times.mean_s)
    return [
        VarianceComponent(
            covariance=np.pad(np.eye(len(known)), (0, num_runs)),
            guess=float(np.sqrt(variances.mean())),
            spread=_NOISE_SPREAD,
        ),
        VarianceComponent(
            covariance=np.pad(lateness_covariance(table.step[known]), (0, num_runs)),
            guess=_LATENESS_S,
            spread=_NOISE_SPREAD,
        ),
    ]


def lateness_covariance(step: NDArray[np.int64]) -> FloatArray:
    """Of the steps' energies, where each reading is wrong by an independent unit error.

    Args:
        step: numbers of the steps, rising; neighbours share a reading. Shape (n,).
    """
    follows = (np.diff(step) == 1).astype(np.float64)
    shared = np.diag(follows, 1)
    covariance: FloatArray = 2.0 * np.eye(len(step)) - shared - shared.T
    return covariance
