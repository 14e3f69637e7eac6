"""The walk down the window of clocks: how far each class of instructions is, and what comes next.

Each class of instructions is walked from the highest clock downwards by itself, a few coarse
levels a version, until E - P t (what a point costs beyond waiting as long) has clearly passed
its least value: what is slower takes longer and costs more, so no frontier uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flyball_server.profiling.findings import StageFindings

# Coarse levels below the highest clock, of all classes of a stage together; and of each.
_ALL_LEVELS, _FEWEST_LEVELS, _MOST_LEVELS = 32, 4, 9
LEVELS_PER_VERSION = 3
# Standard errors beyond which a rise of E - P t counts.
_CLEAR_RISE = 2.0
# By less than this factor a time has hardly grown.
_GROWN = 1.03


class Arm(NamedTuple):
    """A point to be probed."""

    class_index: int
    clock_index: int


def coarse_levels(num_clocks: int, num_classes: int) -> tuple[int, ...]:
    """Indices of the clocks of the first walk below the highest, the lowest one included."""
    num_levels = max(_FEWEST_LEVELS, min(_MOST_LEVELS, _ALL_LEVELS // num_classes))
    spaced = np.linspace(0, num_clocks - 1, min(num_levels, num_clocks - 1) + 1)
    return tuple(dict.fromkeys(int(index) for index in np.round(spaced[1:])))


@dataclass(frozen=True, kw_only=True)
class ClassWalk:
    """Progress of the walk of one class.

    Attributes:
        floor: index of the slowest clock that its profile needs; so far.
        next_levels: coarse levels to probe next; empty where the walk is over.
    """

    floor: int
    next_levels: tuple[int, ...]


def walk_of(findings: StageFindings, class_index: int) -> ClassWalk:
    """Return where the walk of a class stands."""
    points = findings.points
    first = points.number(class_index, 0)
    num_clocks = len(points.clocks_mhz)
    probed = findings.times.num_probes[first : first + num_clocks] > 0
    levels = coarse_levels(num_clocks, len(points.classes))
    reached = [level for level in levels if probed[level]]
    missing = tuple(level for level in levels if not probed[level])
    floor = max(reached, default=0)
    if not missing or _has_risen(findings, first, reached):
        return ClassWalk(floor=floor, next_levels=())
    return ClassWalk(floor=floor, next_levels=missing[:LEVELS_PER_VERSION])


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
    to_costs = np.zeros((len(of_class), len(energies.covariance)))
    to_costs[np.arange(len(of_class)), of_class] = 1.0
    to_costs[:, -1] = -energies.num_ranks * times_s
    costs = to_costs @ np.append(energies.mean_j, energies.blocking_power_w)
    least = int(np.argmin(costs))

    def is_above(level: int) -> bool:
        difference = to_costs[level] - to_costs[least]
        variance = float(difference @ energies.covariance @ difference)
        is_clear = costs[level] - costs[least] > _CLEAR_RISE * np.sqrt(max(variance, 0.0))
        return bool(is_clear and times_s[level] > _GROWN * times_s[least])

    return least < reached[-2] and all(is_above(level) for level in reached[-2:])


def needed_points(findings: StageFindings) -> NDArray[np.int64]:
    """Numbers of the points that the profile needs: down to each class's floor."""
    points = findings.points
    return np.concatenate(
        [
            points.number(index, 0) + np.arange(walk_of(findings, index).floor + 1)
            for index in range(len(points.classes))
        ]
    )


def walking_arms(findings: StageFindings) -> list[Arm]:
    """Return the coarse levels to probe next, from the highest down, the classes in turn."""
    walks = [walk_of(findings, index) for index in range(len(findings.points.classes))]
    return [
        Arm(index, walk.next_levels[place])
        for place in range(LEVELS_PER_VERSION)
        for index, walk in enumerate(walks)
        if place < len(walk.next_levels)
    ]
