"""After the walk: which points to probe so that the errors come down the most.

Of the coarse points and those between them alike: a point that interpolation knows well enough
gains little by a probe and is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_server.profiling.findings import StageFindings
from flyball_server.profiling.mixed_model import FloatArray
from flyball_server.profiling.observations import Z_95, ErrorLimits
from flyball_server.profiling.stage_energies import StageEnergies, split_free
from flyball_server.profiling.walk import Arm, needed_points

# Of the limits at 95 %, where probing a point stops: half, so that nearly every one keeps them.
_GOAL = 0.5


@dataclass(frozen=True, kw_only=True)
class _Goals:
    """Variances, relative to their points, that are small enough; shapes (num_points,)."""

    time: FloatArray
    energy: FloatArray

    @classmethod
    def of_stage(cls, findings: StageFindings, limits: ErrorLimits) -> _Goals:
        share = np.where(findings.times.num_probes > 0, _GOAL, 1.0) / Z_95
        return cls(time=(share * limits.time) ** 2, energy=(share * limits.energy) ** 2)


def is_known(findings: StageFindings, limits: ErrorLimits) -> bool:
    """Whether every needed point's errors are as small as they have to be."""
    needed, goals = needed_points(findings), _Goals.of_stage(findings, limits)
    return bool(
        (findings.time_share_error() ** 2 <= goals.time)[needed].all()
        and (findings.energy_share_error() ** 2 <= goals.energy)[needed].all()
    )


def refining_arms(
    findings: StageFindings, limits: ErrorLimits, *, num_blocks: int, block: int
) -> list[Arm | None]:
    """What to probe, one point a block of steps; None: nothing, which tells the blocking power.

    One after the other: each block is worth what it takes off the sum of squared error
    variances, all relative to their goals, after those chosen before it.
    """
    energies = findings.energies
    if energies is None:  # refused before it comes to this
        return [None] * num_blocks
    candidates = _Candidates.of_stage(findings, energies)
    needed, goals = needed_points(findings), _Goals.of_stage(findings, limits)
    covariance = split_free(findings.points, energies)
    energy_goal = goals.energy[needed] * energies.mean_j[needed] ** 2
    time_goal = goals.time[candidates.number]
    time_variance = findings.time_share_error() ** 2
    # A block's mean energy: each step's own scatter, and the counter at the block's two ends.
    noise = energies.step_noise_j**2 / block + 2 * energies.lateness_noise_j**2 / block**2
    arms: list[Arm | None] = []
    for _ in range(num_blocks):
        effects = covariance @ candidates.readings
        spread = (candidates.readings * effects).sum(axis=0) + noise
        lowered = np.diag(covariance)[needed, None] - effects[needed] ** 2 / spread
        excess = np.square(np.maximum(lowered, 0.0) / energy_goal[:, None]).sum(axis=0)
        before = time_variance[candidates.number]
        after = np.where(
            candidates.count > 0, 1 / (1 / before + block * candidates.certainty), before
        )
        best = int(np.argmin(excess - (before**2 - after**2) / time_goal**2))
        covariance = covariance - np.outer(effects[:, best], effects[:, best]) / spread[best]
        time_variance[candidates.number[best]] = after[best]
        arms.append(candidates.arm(best, len(findings.points.clocks_mhz)))
    return arms


@dataclass(frozen=True, kw_only=True)
class _Candidates:
    """Points that a stage could probe in a step; the last one probes nothing.

    Attributes:
        number: of the point; shape (m,).
        count: instructions of a step that could run there; same shape.
        readings: a step's energy as a sum of energies and blocking power; shape
            (num_points + 1, m).
        certainty: what a step adds to the inverse variance of the time's logarithm; shape (m,).
    """

    number: NDArray[np.int64]
    count: FloatArray
    readings: FloatArray
    certainty: FloatArray

    @classmethod
    def of_stage(cls, findings: StageFindings, energies: StageEnergies) -> _Candidates:
        points, times = findings.points, findings.times
        tops = points.highest()
        number = np.array([n for n in needed_points(findings) if n not in tops] + [tops[0]])
        top = tops[number // len(points.clocks_mhz)]
        count = _counts_per_step(findings)[number]
        count[-1] = 0.0
        columns = np.arange(len(number))
        readings = np.zeros((points.num_points + 1, len(number)))
        readings[tops] = _instructions_per_step(findings)[:, None]
        readings[number, columns] += count
        readings[top, columns] -= count
        idle_s = _idle_at_rest_s(findings) - count * (times.mean_s[number] - times.mean_s[top])
        readings[-1] = energies.num_ranks * np.maximum(idle_s, 0.0)
        scatter = times.scatter[number // len(points.clocks_mhz)]
        return cls(number=number, count=count, readings=readings, certainty=count / scatter**2)

    def arm(self, index: int, num_clocks: int) -> Arm | None:
        if self.count[index] == 0:
            return None
        return Arm(*divmod(int(self.number[index]), num_clocks))


def _instructions_per_step(findings: StageFindings) -> FloatArray:
    """Per class, how many instructions a step has."""
    points = findings.points
    counts = findings.table.counts[-1]
    per_class: FloatArray = counts.reshape(len(points.classes), -1).sum(axis=1)
    return per_class


def _idle_at_rest_s(findings: StageFindings) -> float:
    """How long the stage would be idle in a step where the others probe and it does not, s."""
    table, times = findings.table, findings.times
    tops = findings.points.highest()
    busy_s = (table.counts * times.mean_s).sum(axis=1)
    at_rest_s = float(_instructions_per_step(findings) @ times.mean_s[tops])
    below = table.counts.sum(axis=1) > table.counts[:, tops].sum(axis=1)
    rows = below if below.any() else np.ones(len(table.step), dtype=np.bool_)
    return float((table.idle_s + busy_s - at_rest_s)[rows].mean())


def _counts_per_step(findings: StageFindings) -> FloatArray:
    """Per point, how many instructions of a step could run at it, from those that did."""
    counts = findings.table.counts
    rows = (counts > 0).sum(axis=0)
    seen = counts.sum(axis=0) / np.maximum(rows, 1)
    num_clocks = len(findings.points.clocks_mhz)
    clocks = np.arange(num_clocks)
    guessed = np.empty_like(seen)
    for top in findings.points.highest():
        of_class = seen[top : top + num_clocks]
        # The highest clock's own count is of steps that had little else.
        below = np.flatnonzero(of_class)
        below = below[below > 0]
        guessed[top : top + num_clocks] = (
            np.interp(clocks, below, of_class[below]) if len(below) else of_class[0] / 4
        )
    counts_per_step: FloatArray = np.maximum(guessed, 1.0)
    return counts_per_step
