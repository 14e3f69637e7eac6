"""Instructions that share a clock, where changes are too late for a clock of each.

A group's durations stretch by the least `T / L` of its members (`retiming`), from the highest
clocks by one ratio, so no path becomes longer than its segment. The clock of a group is the slowest
one that all its curves have and at which none of them takes longer than that ratio.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from flyball_pipeline.step_curves import StepCurve
from flyball_pipeline.step_paths import StepPaths

_ROUNDING = 1 + 1e-12


class ClockGroups:
    """A division of a pipeline's instructions into groups that share a clock.

    Args:
        paths: the instructions.
        curves: per place, its curve.
        group: per place, its group, numbered from 0 without gaps.
    """

    def __init__(self, paths: StepPaths, curves: Sequence[StepCurve], group: Sequence[int]) -> None:
        self._paths, self._curves, self._group = paths, curves, group
        of_group: list[dict[int, StepCurve]] = [{} for _ in range(1 + max(group))]
        for number, curve in zip(group, curves, strict=True):
            of_group[number][id(curve)] = curve
        tables: dict[tuple[int, ...], _SharedClocks] = {}
        self._clocks = [
            tables.setdefault(tuple(sorted(each)), _SharedClocks(tuple(each.values())))
            for each in of_group
        ]
        self._most = [clocks.ratios[-1] for clocks in self._clocks]

    @classmethod
    def of_runs(cls, paths: StepPaths, curves: Sequence[StepCurve], length: int) -> ClockGroups:
        """Return groups of as many instructions of a stage one after the other."""
        num_of_stage = [0] * (1 + max(paths.stage))
        numbers: dict[tuple[int, int], int] = {}
        group: list[int] = []
        for stage in paths.stage:
            run = (stage, num_of_stage[stage] // length)
            num_of_stage[stage] += 1
            group.append(numbers.setdefault(run, len(numbers)))
        return cls(paths, curves, group)

    def choices(
        self, highest_s: Sequence[float], segments_s: Sequence[float], rounds: int
    ) -> list[int]:
        """Return per place an index into its curve's kept clocks, 0 the highest.

        Args:
            highest_s: per place, its time at the highest clock in this step, s.
            segments_s: time of each segment, s.
            rounds: number of times that durations are stretched.
        """
        group, curves = self._group, self._curves
        ratios = self._paths.stretched_ratios(highest_s, segments_s, group, self._most, rounds)
        number_of = [
            clocks.slowest_within(ratio) for clocks, ratio in zip(self._clocks, ratios, strict=True)
        ]
        return [
            curve.choice_of_number[number_of[number]]
            for curve, number in zip(curves, group, strict=True)
        ]


class _SharedClocks:
    """Clocks that some curves share, and the longest time at each over that at the highest."""

    def __init__(self, curves: Sequence[StepCurve]) -> None:
        self._numbers = [
            number
            for number in curves[0].numbers
            if all(number in curve.choice_of_number for curve in curves)
        ]
        self.ratios = [
            max(curve.ratios[curve.choice_of_number[number]] for curve in curves)
            for number in self._numbers
        ]

    def slowest_within(self, ratio: float) -> int:
        """Return the number of the slowest clock at which none takes longer than this ratio."""
        return self._numbers[max(0, bisect_right(self.ratios, ratio * _ROUNDING) - 1)]
