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
    FittedModel,
    FloatArray,
    MixedModel,
    VarianceComponent,
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


def step_noise(
    table: StepTable, energies: FloatArray, expected: tuple[float, float]
) -> tuple[float, float]:
    """Return the most probable noise, from how the steps of a block differ.

    Energies of one block less their mean, turned along the principal axes of what lateness does
    to them, are independent, with the variances scatter^2 + axis * lateness^2.

    Args:
        table: the stage's steps.
        energies: energies of its instructions in each step; NaN where unknown; shape (n,).
        expected: standard deviation of a step's energy by its instructions' scatter, and of one
            reading of the counter by its lateness, before any step was seen: medians of log-normal
            priors.

    Returns:
        The two standard deviations.
    """
    known = np.flatnonzero(np.isfinite(energies))
    is_first, _ = _first_of_blocks(table, known)
    blocks = np.split(energies[known], np.flatnonzero(is_first)[1:])
    axis, square = (np.concatenate(each) for each in zip(*map(_principal, blocks), strict=True))
    factors = np.exp(_SPREAD * np.linspace(-2, 2, 33))
    scatter2, lateness2 = (np.square(each * factors) for each in expected)
    density = -0.5 * np.add.outer(np.log(factors) ** 2, np.log(factors) ** 2) / _SPREAD**2
    for each_axis, each_square in zip(axis, square, strict=True):
        variance = scatter2[:, None] + each_axis * lateness2[None, :]
        density -= 0.5 * (np.log(variance) + each_square / variance)
    best = np.unravel_index(int(np.argmax(density)), density.shape)
    scatter, lateness = expected
    return scatter * float(factors[best[0]]), lateness * float(factors[best[1]])


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


def energy_regression(
    points: StagePoints,
    table: StepTable,
    times: StageTimes,
    *,
    unit_j_per_s: float,
    blocking_power: float | None,
) -> FittedModel:
    """Return the readings of one stage, and what its powers are expected to be.

    Powers are of one rank, in units of `unit_w`, one at each point, then the blocking power where
    it is unknown. The noise has two scales in s: of a step's energy, by its instructions' scatter,
    and of one reading of the counter.

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
    variances = table.counts @ np.square(_NOISE_SHARE * times.mean_s)
    scatter, lateness = step_noise(
        table,
        table.energy_j / unit_j_per_s - about * table.idle_s,
        (float(np.sqrt(variances.mean())), _LATENESS_S),
    )
    noise = [
        VarianceComponent(covariance=covariance, guess=guess, spread=_NOISE_SPREAD)
        for covariance, guess in (
            (np.diag(blocks.num_steps), scatter),
            (blocks.lateness_covariance(), lateness),
        )
    ]
    return MixedModel(
        readings=energies, design=busy_s, prior_mean=mean, prior=powers, noise=noise
    ).fitted()


def _beside_blocking_power(part: VarianceComponent) -> VarianceComponent:
    return VarianceComponent(
        covariance=np.pad(part.covariance, (0, 1)), guess=part.guess, spread=part.spread
    )


def _blocking_power_part(num_powers: int) -> VarianceComponent:
    covariance = np.zeros((num_powers, num_powers))
    covariance[-1, -1] = 1.0
    return VarianceComponent(covariance=covariance, guess=_BLOCKING_POWER_ERROR, spread=0.0)
