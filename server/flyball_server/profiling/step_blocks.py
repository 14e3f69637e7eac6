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

# What is expected of the noise counts as much as so many pairs of steps.
_PRIOR_PAIRS = 8.0


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
    """The noise that steps of the same block show, and what is expected of it, J.

    The difference of neighbours has the variance 2 scatter^2 + 6 lateness^2, that of steps two
    apart 2 scatter^2 + 4 lateness^2.

    Args:
        table: the stage's steps.
        blocking_power_w: about what all its ranks draw while they wait.
        expected: before any step was seen, J.
    """
    known = np.flatnonzero(np.isfinite(table.energy_j))
    is_first, _ = _first_of_blocks(table, known)
    block = np.cumsum(is_first)
    energies = table.energy_j[known] - blocking_power_w * table.idle_s[known]

    def mean_square(apart: int, prior: float) -> float:
        is_same = block[apart:] == block[:-apart]
        squares = np.square(energies[apart:] - energies[:-apart])[is_same]
        return float((squares.sum() + _PRIOR_PAIRS * prior) / (len(squares) + _PRIOR_PAIRS))

    scatter2, lateness2 = expected.scatter**2, expected.lateness**2
    neighbours = mean_square(1, 2 * scatter2 + 6 * lateness2)
    two_apart = mean_square(2, 2 * scatter2 + 4 * lateness2)
    lateness2 = max((neighbours - two_apart) / 2, 0.01 * neighbours)
    scatter2 = max(two_apart / 2 - 2 * lateness2, 0.01 * neighbours)
    return StepNoise(scatter=float(np.sqrt(scatter2)), lateness=float(np.sqrt(lateness2)))


def _first_of_blocks(
    table: StepTable, known: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each known step begins a block; and whether each but the first follows the last."""
    follows = np.diff(table.step[known]) == 1
    counts = table.counts[known]
    is_alike = (counts[1:] == counts[:-1]).all(axis=1)
    return np.append(True, ~(follows & is_alike)), follows
