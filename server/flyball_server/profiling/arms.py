"""Choice of the points that a stage probes next.

First each class of instructions is walked from the highest clock downwards, a few coarse levels a
version, until E - P t (what a point costs beyond waiting as long) has clearly passed its least
value: what is slower takes longer and costs more, so no frontier uses it. Then those points are
probed that refine the estimates most, until all that the profile needs are known well enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flyball_server.planning.model.array_dag import FloatArray, IndexArray
from flyball_server.profiling.observations import Z_95, ErrorLimits, ProbeSetup
from flyball_server.profiling.stage_estimates import StageEnergies, StageFindings

# Coarse levels below the highest clock, of all classes of a stage together; and of each.
_ALL_LEVELS, _FEWEST_LEVELS, _MOST_LEVELS = 32, 4, 9
_LEVELS_PER_VERSION = 3
# Standard errors beyond which a rise of E - P t counts.
_CLEAR_RISE = 2.0
# By less than this factor a time has hardly grown.
_GROWN = 1.03
# Of the limits at 95 %, where probing a point stops: half, so that nearly every one keeps them.
_GOAL = 0.5
# Of all steps, those planned for the walk down the window.
_WALK_SHARE = 0.55
_LONGEST_BLOCK, _REFINING_BLOCKS = 6, 6
# A version for fewer steps is not worth its delay.
_FEWEST_STEPS = 8


class Arm(NamedTuple):
    """A point to be probed."""

    class_index: int
    clock_index: int


def next_arms(
    setup: ProbeSetup, findings: Sequence[StageFindings], num_steps: int
) -> tuple[list[list[Arm | None]], int] | None:
    """Return per stage the points to probe, and in how many steps in a row each.

    Where the walk goes on, each stage has one block of steps at rest. None: nothing more is needed,
    or the steps are too few.

    Args:
        setup: setup of the profiling.
        findings: estimates of all stages.
        num_steps: limit on the steps.
    """
    walking = [_walking_arms(of_stage) for of_stage in findings]
    longest = max(map(len, walking))
    if not longest and all(_is_known(of_stage, setup.limits) for of_stage in findings):
        return None
    if num_steps < _FEWEST_STEPS:
        return None
    num_blocks = longest + 1 if longest else _REFINING_BLOCKS
    block = min(_block_steps(setup), max(1, num_steps // num_blocks))
    num_blocks = min(num_blocks, num_steps // block)
    arms: list[list[Arm | None]] = []
    for of_walk, of_stage in zip(walking, findings, strict=True):
        chosen: list[Arm | None] = [*of_walk, None][:num_blocks] if of_walk else []
        missing = num_blocks - len(chosen)
        arms.append(chosen + refining_arms(of_stage, setup.limits, num_blocks=missing, block=block))
    return arms, block


def _block_steps(setup: ProbeSetup) -> int:
    """Return the steps in a row at the same clocks: the counter's lateness counts once in a row."""
    num_arms = 1
    for stage, clocks_mhz in enumerate(setup.clocks_mhz):
        num_classes = len(setup.classes_of(stage))
        num_arms = max(num_arms, num_classes * len(_coarse_levels(len(clocks_mhz), num_classes)))
    return max(1, min(_LONGEST_BLOCK, round(_WALK_SHARE * setup.max_steps / num_arms)))


def _coarse_levels(num_clocks: int, num_classes: int) -> list[int]:
    """Return the clocks of the first walk below the highest, the lowest included."""
    num_levels = max(_FEWEST_LEVELS, min(_MOST_LEVELS, _ALL_LEVELS // num_classes))
    spaced = np.linspace(0, num_clocks - 1, min(num_levels, num_clocks - 1) + 1)
    return sorted({round(level) for level in spaced[1:].tolist()})


def _walk_of(findings: StageFindings, class_index: int) -> tuple[int, list[int]]:
    """Return the slowest clock that a class's profile needs so far, and the levels to probe next.

    There are none where the walk is over.
    """
    points = findings.points
    first, num_clocks = points.number(class_index, 0), len(points.clocks_mhz)
    probed = findings.times.num_probes[first : first + num_clocks] > 0
    levels = _coarse_levels(num_clocks, len(points.classes))
    reached = [level for level in levels if probed[level]]
    floor = max(reached, default=0)
    if _has_risen(findings, first, reached):
        return floor, []
    return floor, [level for level in levels if not probed[level]][:_LEVELS_PER_VERSION]


def _has_risen(findings: StageFindings, first: int, reached: Sequence[int]) -> bool:
    """Return whether E - P t is clearly above its least value at the two slowest levels reached.

    Where the time has hardly grown, power limits the GPU and the clock does not: a rise there
    is no valley's.
    """
    energies = findings.energies
    if energies is None or len(reached) < 2:
        return False
    of_class = np.arange(first, first + reached[-1] + 1)
    times_s = findings.times.mean_s[of_class]
    # From energies and blocking power to costs.
    to_costs = np.eye(len(energies.covariance))[of_class]
    to_costs[:, -1] = -energies.num_ranks * times_s
    costs = to_costs @ np.append(energies.mean_j, energies.blocking_power_w)
    least = int(np.argmin(costs))
    beyond = to_costs - to_costs[least]
    variances = np.einsum("ij,jk,ik->i", beyond, energies.covariance, beyond)
    is_above = costs - costs[least] > _CLEAR_RISE * np.sqrt(np.maximum(variances, 0.0))
    is_above &= times_s > _GROWN * times_s[least]
    return least < reached[-2] and bool(is_above[list(reached[-2:])].all())


def needed_points(findings: StageFindings) -> IndexArray:
    """Return the numbers of the points that the profile needs: down to each class's floor."""
    points = findings.points
    return np.concatenate(
        [
            points.number(index, 0) + np.arange(_walk_of(findings, index)[0] + 1)
            for index in range(len(points.classes))
        ]
    )


def _walking_arms(findings: StageFindings) -> list[Arm]:
    """Return the coarse levels to probe next, from the highest down, the classes in turn."""
    walks = [_walk_of(findings, index)[1] for index in range(len(findings.points.classes))]
    return [
        Arm(index, levels[place])
        for place in range(_LEVELS_PER_VERSION)
        for index, levels in enumerate(walks)
        if place < len(levels)
    ]


def _goals(findings: StageFindings, limits: ErrorLimits) -> tuple[FloatArray, FloatArray]:
    """Return per point the relative variances of time and energy that are small enough."""
    share = np.where(findings.times.num_probes > 0, _GOAL, 1.0) / Z_95
    return (share * limits.time) ** 2, (share * limits.energy) ** 2


def _is_known(findings: StageFindings, limits: ErrorLimits) -> bool:
    """Return whether every needed point's errors are as small as they have to be."""
    needed, (time_goal, energy_goal) = needed_points(findings), _goals(findings, limits)
    return bool(
        (findings.time_share_error() ** 2 <= time_goal)[needed].all()
        and (findings.energy_share_error() ** 2 <= energy_goal)[needed].all()
    )


def refining_arms(
    findings: StageFindings, limits: ErrorLimits, *, num_blocks: int, block: int
) -> list[Arm | None]:
    """Return the points to probe, one a block of steps; None: none, for the blocking power.

    One after the other: each block is worth what it takes off the sum of squared error
    variances, all relative to their goals, after those chosen before it.
    """
    energies = findings.energies
    if energies is None:  # refused before it comes to this
        return [None] * num_blocks
    num_clocks = len(findings.points.clocks_mhz)
    needed, (time_goals, energy_goals) = needed_points(findings), _goals(findings, limits)
    number, count, readings = _candidates(findings, energies, needed)
    # Inverse variance of the time's logarithm that a step adds.
    certainty = count / findings.times.scatter[number // num_clocks] ** 2
    covariance = energies.covariance
    energy_goal = energy_goals[needed] * energies.mean_j[needed] ** 2
    time_variance, time_goal = findings.time_share_error() ** 2, time_goals[number]
    # A block's mean energy: each step's own scatter, and the counter at the block's two ends.
    noise = energies.step_noise_j**2 / block + 2 * energies.lateness_noise_j**2 / block**2
    arms: list[Arm | None] = []
    for _ in range(num_blocks):
        effects = covariance @ readings
        spread = (readings * effects).sum(axis=0) + noise
        lowered = np.diag(covariance)[needed, None] - effects[needed] ** 2 / spread
        excess = np.square(np.maximum(lowered, 0.0) / energy_goal[:, None]).sum(axis=0)
        before = time_variance[number]
        after = 1 / (1 / before + block * certainty)
        best = int(np.argmin(excess - (before**2 - after**2) / time_goal**2))
        covariance = covariance - np.outer(effects[:, best], effects[:, best]) / spread[best]
        time_variance[number[best]] = after[best]
        arms.append(Arm(*divmod(int(number[best]), num_clocks)) if count[best] else None)
    return arms


def _candidates(
    findings: StageFindings, energies: StageEnergies, needed: IndexArray
) -> tuple[IndexArray, FloatArray, FloatArray]:
    """Return the points that a stage could probe in a step, m of them; the last probes nothing.

    Returns:
        Their numbers; how many instructions of a step could run there; and a step's energy as a
        sum of energies and blocking power, shape (num_points + 1, m).
    """
    points, times, counts = findings.points, findings.times, findings.table.counts
    tops = points.highest()
    number = np.append(np.setdiff1d(needed, tops), tops[0])
    top = tops[number // len(points.clocks_mhz)]
    count = np.append(_counts_per_step(findings)[number[:-1]], 0.0)
    per_class = counts[-1].reshape(len(tops), -1).sum(axis=1)
    at_rest_s = per_class @ times.mean_s[tops]
    idle_s = (findings.table.idle_s + counts @ times.mean_s - at_rest_s).mean()
    columns = np.arange(len(number))
    readings = np.zeros((points.num_points + 1, len(number)))
    readings[tops] = per_class[:, None]
    readings[number, columns] += count
    readings[top, columns] -= count
    idle_s = idle_s - count * (times.mean_s[number] - times.mean_s[top])
    readings[-1] = energies.num_ranks * np.maximum(idle_s, 0.0)
    return number, count, readings


def _counts_per_step(findings: StageFindings) -> FloatArray:
    """Return per point how many instructions of a step could run at it, from those that did."""
    counts = findings.table.counts
    seen = counts.sum(axis=0) / np.maximum((counts > 0).sum(axis=0), 1)
    by_class = seen.reshape(len(findings.points.classes), -1)
    for of_class in by_class:
        # The highest clock's own count is of steps that had little else.
        probed = 1 + np.flatnonzero(of_class[1:])
        usual = of_class[probed] if len(probed) else [of_class[0] / 4]
        of_class[:] = np.interp(np.arange(len(of_class)), probed if len(probed) else [0], usual)
    counts_per_step: FloatArray = np.maximum(by_class.ravel(), 1.0)
    return counts_per_step
