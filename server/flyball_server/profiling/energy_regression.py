"""Energies of a stage's instructions, and its blocking power, by regression over steps.

A step's energy is the sum over its instructions of power times time, the blocking power of its
ranks times their idle time, and noise.

In every step all classes of instructions run equally often, whatever their clocks are. So whole
steps tell how each class's energy changes over the clock, and the energy of all classes together
at one clock, but not its division between them: energy moved from each forward to each backward
changes no step and no plan, also where one of them drifts. The division is by equal power: at the
highest clock all classes of a stage draw the same power, so that energies are in proportion to
times. What is measured, the change over the clock, is added to that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_server.profiling.instruction_times import CurvePrior, StageTimes
from flyball_server.profiling.mixed_model import (
    FloatArray,
    MixedModel,
    Posterior,
    VarianceComponent,
    covariance_of,
)
from flyball_server.profiling.stage_points import StagePoints, StepTable

# Of power, as a share of the stages' mean power while they are busy. No offset: the division by
# equal power.
POWER_PRIOR = CurvePrior(
    level=1.0,
    offset=0.0,
    shape=(0.3, 1.0),
    own_shape=(0.03, 0.5),
    roughness=(0.003, 0.8),
)
# Of the blocking power as the same share: mean and standard deviation.
_BLOCKING_POWER, _BLOCKING_POWER_ERROR = 0.25, 0.25
# Of a late reading: standard deviation of a uniform 0.1 s, at somewhat less than mean power, as at
# the end of a step.
_LATENESS_S = 0.02
# Of an instruction's energy, as a share; and the standard deviation of the logarithm of both.
_NOISE_SHARE, _NOISE_SPREAD = 0.02, 1.5


@dataclass(frozen=True, kw_only=True)
class EnergyRegression:
    """Readings of one stage, and what its powers are expected to be.

    Powers are of one rank, in units of `unit_w`, one at each point, then the blocking power
    where it is unknown.

    Attributes:
        model: model of the powers.
        noise: covariance of the readings' errors, found from them.
        prior: prior of the powers, its variances found from the readings.
        step_noise: standard deviation of a step's energy by its instructions' scatter, s.
        lateness_noise: noise of one reading of the counter, s.
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
        """Find the variances of a stage's steps.

        Args:
            points: operating points of the stage.
            table: its steps.
            times: at its points.
            unit_j_per_s: power of all the stage's ranks that counts as 1, W.
            blocking_power: in that unit; None: estimated.
        """
        known = np.flatnonzero(np.isfinite(table.energy_j))
        energies, idle_s = table.energy_j[known] / unit_j_per_s, table.idle_s[known]
        busy_s = table.counts[known] * times.mean_s
        powers = POWER_PRIOR.components(len(points.classes), points.clocks_mhz)
        mean = np.ones(points.num_points)
        if blocking_power is None:
            busy_s = np.column_stack([busy_s, idle_s])
            mean = np.append(mean, _BLOCKING_POWER)
            powers = (*map(_beside_blocking_power, powers), _blocking_power_part(len(mean)))
        else:
            energies -= blocking_power * idle_s
        noise = _noise(table.step[known], table.counts[known] @ np.square(times.mean_s))
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


def _beside_blocking_power(part: VarianceComponent) -> VarianceComponent:
    return VarianceComponent(
        covariance=np.pad(part.covariance, (0, 1)), guess=part.guess, spread=part.spread
    )


def _blocking_power_part(num_powers: int) -> VarianceComponent:
    covariance = np.zeros((num_powers, num_powers))
    covariance[-1, -1] = 1.0
    return VarianceComponent(covariance=covariance, guess=_BLOCKING_POWER_ERROR, spread=0.0)


def _noise(steps: NDArray[np.int64], squares_s2: FloatArray) -> list[VarianceComponent]:
    """Return the noise of steps by their instructions' scatter, and by the counter's lateness.

    Two steps in a row share a reading of the counter.

    Args:
        steps: numbers of the steps.
        squares_s2: per step, sum of the squares of its instructions' times, s^2.
    """
    shared = np.diag((np.diff(steps) == 1).astype(np.float64), 1)
    scatter_s = _NOISE_SHARE * float(np.sqrt(squares_s2.mean()))
    return [
        VarianceComponent(covariance=np.eye(len(steps)), guess=scatter_s, spread=_NOISE_SPREAD),
        VarianceComponent(
            covariance=2.0 * np.eye(len(steps)) - shared - shared.T,
            guess=_LATENESS_S,
            spread=_NOISE_SPREAD,
        ),
    ]
