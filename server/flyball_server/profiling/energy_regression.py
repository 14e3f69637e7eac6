"""Energies of a stage's instructions, and its blocking power, by regression over steps.

A step's energy is the sum over its instructions of power times time, the blocking power of its
ranks times their idle time, and noise (`step_blocks`).

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

# Standard deviation of the logarithm of what the noise is, before any step was seen.
_SPREAD = 1.5


@dataclass(frozen=True, kw_only=True)
class StepBlocks:
    """Blocks of steps whose energies are known; n of them.

    Attributes:
        num_steps: number of steps of each; shape (n,).
        follows: whether each but the first shares a reading with the one before; shape (n - 1,).
        counts: instructions at each point, of all its steps; shape (n, num_points).
        idle_s: idle time of all its steps, s; shape (n,).
        energy_j: energy of all its steps, J; same shape.
    """

    num_steps: FloatArray
    follows: NDArray[np.bool_]
    counts: FloatArray
    idle_s: FloatArray
    energy_j: FloatArray

    @classmethod
    def of_table(cls, table: StepTable) -> StepBlocks:
        """Return the blocks of a stage's steps, by step."""
        known = np.flatnonzero(np.isfinite(table.energy_j))
        is_first, follows = _first_of_blocks(table, known)
        begins = np.flatnonzero(is_first)
        return cls(
            num_steps=np.diff(np.append(begins, len(known))).astype(np.float64),
            follows=follows[begins[1:] - 1],
            counts=np.add.reduceat(table.counts[known], begins),
            idle_s=np.add.reduceat(table.idle_s[known], begins),
            energy_j=np.add.reduceat(table.energy_j[known], begins),
        )

    def lateness_covariance(self) -> FloatArray:
        """Covariance of the blocks' energies for independent unit errors of the readings."""
        shared = np.diag(self.follows.astype(np.float64), 1)
        covariance: FloatArray = 2.0 * np.eye(len(self.num_steps)) - shared - shared.T
        return covariance


@dataclass(frozen=True, kw_only=True)
class StepNoise:
    """Standard deviations, in the energies' unit.

    Attributes:
        scatter: deviation of a step's energy, by its instructions.
        lateness: deviation of one reading of the counter, by its lateness.
    """

    scatter: float
    lateness: float


def step_noise(table: StepTable, blocking_power_w: float, expected: StepNoise) -> StepNoise:
    """Return the most probable noise, from how the steps of a block differ.

    Energies of one block less their mean, turned along the principal axes of what lateness does
    to them, are independent, with the variances scatter^2 + axis * lateness^2.

    Args:
        table: the stage's steps.
        blocking_power_w: about what all its ranks draw while they wait.
        expected: before any step was seen, J: medians of log-normal priors.
    """
    known = np.flatnonzero(np.isfinite(table.energy_j))
    is_first, _ = _first_of_blocks(table, known)
    energies = table.energy_j[known] - blocking_power_w * table.idle_s[known]
    parts = [_principal(block) for block in np.split(energies, np.flatnonzero(is_first)[1:])]
    axis, square = (np.concatenate(each) for each in zip(*parts, strict=True))
    factors = np.exp(_SPREAD * np.linspace(-2, 2, 33))
    scatter2 = np.square(expected.scatter * factors)[:, None]
    lateness2 = np.square(expected.lateness * factors)[None, :]
    density = -0.5 * np.add.outer(np.log(factors) ** 2, np.log(factors) ** 2) / _SPREAD**2
    for each_axis, each_square in zip(axis, square, strict=True):
        variance = scatter2 + each_axis * lateness2
        density -= 0.5 * (np.log(variance) + each_square / variance)
    best = np.unravel_index(int(np.argmax(density)), density.shape)
    return StepNoise(
        scatter=expected.scatter * float(factors[best[0]]),
        lateness=expected.lateness * float(factors[best[1]]),
    )


def _principal(energies: FloatArray) -> tuple[FloatArray, FloatArray]:
    """A block's axes, and the squares of its energies along them; one less than its steps."""
    num_steps = len(energies)
    lateness = 2 * np.eye(num_steps) - np.eye(num_steps, k=1) - np.eye(num_steps, k=-1)
    less_mean = np.eye(num_steps) - 1 / num_steps
    # The first axis is the mean itself, which holds nothing of the noise.
    axes, directions = np.linalg.eigh(less_mean @ (lateness + np.eye(num_steps)) @ less_mean)
    return axes[1:] - 1, np.square(directions[:, 1:].T @ energies)


def _first_of_blocks(
    table: StepTable, known: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return whether each known step begins a block, and whether each follows the one before."""
    follows = np.diff(table.step[known]) == 1
    counts = table.counts[known]
    is_alike = (counts[1:] == counts[:-1]).all(axis=1)
    return np.append(True, ~(follows & is_alike)), follows


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
_NOISE_SPREAD = 0.5
_NOISE_SHARE = 0.02


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
        blocks = StepBlocks.of_table(table)
        energies = blocks.energy_j / unit_j_per_s
        busy_s = blocks.counts * times.mean_s
        powers = POWER_PRIOR.components(len(points.classes), points.clocks_mhz)
        mean = np.ones(points.num_points)
        if blocking_power is None:
            busy_s = np.column_stack([busy_s, blocks.idle_s])
            mean = np.append(mean, _BLOCKING_POWER)
            powers = (*map(_beside_blocking_power, powers), _blocking_power_part(len(mean)))
        else:
            energies -= blocking_power * blocks.idle_s
        about = _BLOCKING_POWER if blocking_power is None else blocking_power
        noise = _noise(blocks, _step_noise(table, times, about, unit_j_per_s))
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


def _step_noise(
    table: StepTable, times: StageTimes, blocking_power: float, unit_j_per_s: float
) -> StepNoise:
    """Return the noise of single steps, in the regression's unit."""
    variances = table.counts @ np.square(_NOISE_SHARE * times.mean_s)
    expected = StepNoise(
        scatter=unit_j_per_s * float(np.sqrt(variances.mean())),
        lateness=unit_j_per_s * _LATENESS_S,
    )
    found_j = step_noise(table, blocking_power * unit_j_per_s, expected)
    return StepNoise(
        scatter=found_j.scatter / unit_j_per_s, lateness=found_j.lateness / unit_j_per_s
    )


def _noise(blocks: StepBlocks, of_steps: StepNoise) -> list[VarianceComponent]:
    return [
        VarianceComponent(
            covariance=np.diag(blocks.num_steps), guess=of_steps.scatter, spread=_NOISE_SPREAD
        ),
        VarianceComponent(
            covariance=blocks.lateness_covariance(),
            guess=of_steps.lateness,
            spread=_NOISE_SPREAD,
        ),
    ]
