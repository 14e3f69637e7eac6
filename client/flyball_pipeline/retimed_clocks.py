"""Clocks of a pipeline that is retimed: curves, rounding, groups; with a reserve or without."""

from __future__ import annotations

from functools import cached_property

from flyball_pipeline.clock_groups import ClockGroups
from flyball_pipeline.clock_rounding import ChangeDelays, ClockRounding
from flyball_pipeline.step_curves import StepCurve
from flyball_pipeline.step_paths import StepPaths

# Numbers of instructions of a stage that share a clock, where one each is too late.
RUN_LENGTHS = (2, 4, 8)
# Pipelines up to this size have time for many rounds, and for all groupings and tries.
MAX_OF_MANY_TRIES = 2_500


class RetimedClocks:
    """Curves of a pipeline's instructions, and what rounds their durations to clocks.

    Arguments are those of `ClockRounding`.
    """

    def __init__(
        self,
        paths: StepPaths,
        curves: list[StepCurve],
        delays: ChangeDelays | None,
    ) -> None:
        self._paths, self._delays = paths, delays
        self.curves = curves
        self.rounding = ClockRounding(paths, curves, delays)
        #: Per place, its longest time over that at the highest clock.
        self.most_ratios = [curve.ratios[-1] for curve in curves]

    @cached_property
    def groupings(self) -> tuple[ClockGroups, ...]:
        """Groups of instructions that may share clocks, the smallest first."""
        paths, curves = self._paths, self.curves
        lengths = RUN_LENGTHS if paths.num_places <= MAX_OF_MANY_TRIES else ()
        return (
            *(ClockGroups.of_runs(paths, curves, length) for length in lengths),
            ClockGroups(paths, curves, paths.stage),
            ClockGroups(paths, curves, [0] * paths.num_places),
        )

    def with_reserve(self, reserve: float) -> RetimedClocks:
        """Return the clocks with curves that are longer by a share, but for the highest clocks."""
        distinct = {id(curve): curve for curve in self.curves}
        longer = {key: curve.with_reserve(reserve) for key, curve in distinct.items()}
        curves = [longer[id(curve)] for curve in self.curves]
        return RetimedClocks(self._paths, curves, self._delays)
