"""Neighbouring steps at the same clocks, taken together, and the noise of their energies.

A step's energy is wrong by its instructions' own scatter, independent from step to step, and by
the counter's lateness: it moves about every 100 ms, so a reading is late by up to that much. A
reading ends one step and begins the next, so its error enters both with opposite signs, and
cancels in the sum of neighbours: a block of steps at the same clocks tells more than the same
steps scattered, and nothing is lost by taking their sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_server.profiling.mixed_model import FloatArray
from flyball_server.profiling.stage_points import StepTable

# Standard deviation of the logarithm of what the noise is, before any step was seen.
_SPREAD = 1.5


@dataclass(frozen=True, kw_only=True)
class StepBlocks:
    """Blocks of steps whose energies are known; n of them.

    Attributes:
        num_steps: of each; shape (n,).
        follows: whether each but the first shares a reading with the one before; shape (n - 1,).
        counts: instructions at each point, of all its steps; shape (n, num_points).
        idle_s: of all its steps; shape (n,).
        energy_j: likewise; same shape.
    """

    num_steps: FloatArray
    follows: NDArray[np.bool_]
    counts: FloatArray
    idle_s: FloatArray
    energy_j: FloatArray

    @classmethod
    def of_table(cls, table: StepTable) -> StepBlocks:
        """The blocks of a stage's steps, by step."""
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
        """Of the blocks' energies, where each reading is wrong by an independent unit error."""
        shared = np.diag(self.follows.astype(np.float64), 1)
        covariance: FloatArray = 2.0 * np.eye(len(self.num_steps)) - shared - shared.T
        return covariance


@dataclass(frozen=True, kw_only=True)
class StepNoise:
    """Standard deviations, in the energies' unit.

    Attributes:
        scatter: of a step's energy, by its instructions.
        lateness: of one reading of the counter.
    """

    scatter: float
    lateness: float


def step_noise(table: StepTable, blocking_power_w: float, expected: StepNoise) -> StepNoise:
    """The most probable noise, from how the steps of a block differ.

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
    # The first axis is the mean itself, which tells nothing of the noise.
    axes, directions = np.linalg.eigh(less_mean @ (lateness + np.eye(num_steps)) @ less_mean)
    return axes[1:] - 1, np.square(directions[:, 1:].T @ energies)


def _first_of_blocks(
    table: StepTable, known: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each known step begins a block; and whether each but the first follows the last."""
    follows = np.diff(table.step[known]) == 1
    counts = table.counts[known]
    is_alike = (counts[1:] == counts[:-1]).all(axis=1)
    return np.append(True, ~(follows & is_alike)), follows
