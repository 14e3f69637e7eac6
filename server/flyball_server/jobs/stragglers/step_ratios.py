"""Ratios of measured to profiled times, of a step and over a window; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.records import StepDetail, StepRecord

ClockTimes = Mapping[tuple[str, int, int], float]
"""Of one stage: (kind, chunk, MHz) -> profiled time, s."""


@dataclass(frozen=True, kw_only=True)
class KindTimes:
    """All instructions of one kind in one step of one rank.

    Attributes:
        measured_s: their sum, s.
        profiled_s: what the profile has for them, s; positive.
        variance_s2: of `measured_s`, as their scatter within the step tells, s2.
    """

    measured_s: float
    profiled_s: float
    variance_s2: float


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """Evidence of one step of one rank about its slowdown factor."""

    rank: int
    step: int
    by_kind: Mapping[str, KindTimes]
    is_power_capped: bool = False
    is_thermally_capped: bool = False


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Measured over profiled time: in each step of a window; over all, with its standard error."""

    of_steps: tuple[float, ...]
    mean: float
    error: float

    def over(self, factor: float) -> Ratio:
        """To a profile whose times are so many times as long."""
        return Ratio(
            of_steps=tuple(of_step / factor for of_step in self.of_steps),
            mean=self.mean / factor,
            error=self.error / factor,
        )

    @property
    def halves(self) -> tuple[float, float]:
        """The means of the earlier half of the window and of the later one."""
        middle = len(self.of_steps) // 2
        earlier, later = self.of_steps[:middle], self.of_steps[middle:]
        return sum(earlier) / len(earlier), sum(later) / len(later)


def clock_times(profile: StageProfile, stage: int) -> ClockTimes:
    """The profiled times of one stage's instructions."""
    return {
        (str(kind), chunk, point.frequency_mhz): point.time_s
        for chunk, of_chunk in enumerate(profile.chunks or (profile,))
        for (of_stage, kind), points in of_chunk.points.items()
        if of_stage == stage
        for point in points
    }


def rank_step(record: StepRecord, detail: StepDetail, times_s: ClockTimes) -> RankStep | None:
    """Ratio of a rank's step to its profile; None where it did not run as planned.

    Neither does a step tell in which an emulated GPU could not keep to its profile.
    """
    sums: dict[str, tuple[float, float, float]] = {}
    for kind, chunk, clock_mhz, count, mean_s, variance_s2 in detail.by_clock or ():
        profiled_s = times_s.get((kind, chunk, clock_mhz or 0))
        if profiled_s is not None:
            measured, profiled, variance = sums.get(kind, (0.0, 0.0, 0.0))
            sums[kind] = (
                measured + count * mean_s,
                profiled + count * profiled_s,
                variance + count * variance_s2,
            )
    if not sums or record.plan_version is None or record.num_unplanned or record.num_overruns:
        return None
    return RankStep(
        rank=record.rank,
        step=record.step,
        by_kind={
            kind: KindTimes(measured_s=measured, profiled_s=profiled, variance_s2=variance)
            for kind, (measured, profiled, variance) in sums.items()
        },
        is_power_capped=record.num_power_capped > 0,
        is_thermally_capped=record.num_thermally_capped > 0,
    )


def window_ratio(
    steps: Sequence[RankStep],
    num_steps: int,
    *,
    drifts: Mapping[str, float],
    kind: str | None = None,
) -> Ratio | None:
    """A rank's ratio over its newest steps; None: it has fewer.

    Args:
        steps: of one rank, in their order.
        num_steps: of the window, at least 2.
        drifts: by kind, what the profile's times are multiplied by; 1 where it has no entry.
        kind: of instruction; None: all of them together.
    """
    window: list[tuple[float, float, float]] = []
    for step in reversed(steps):
        times = _chosen_times(step, drifts, kind)
        if times is not None:
            window.append(times)
        if len(window) == num_steps:
            break
    else:
        return None
    of_steps = tuple(measured_s / profiled_s for measured_s, profiled_s, _ in reversed(window))
    all_measured_s, all_profiled_s, all_variance_s2 = map(sum, zip(*window, strict=True))
    return Ratio(
        of_steps=of_steps,
        mean=all_measured_s / all_profiled_s,
        # Steps scatter more than their instructions do where something slows whole steps.
        error=max(_error_of_mean(of_steps), math.sqrt(all_variance_s2) / all_profiled_s),
    )


def _error_of_mean(values: Sequence[float]) -> float:
    mean, num_values = sum(values) / len(values), len(values)
    squares = sum((value - mean) ** 2 for value in values)
    return math.sqrt(squares / (num_values - 1) / num_values)


def reason_of(steps: Sequence[RankStep]) -> Literal["slow", "power", "thermal"]:
    """Return the clock limit of at least half of the steps; `slow`: no reason was reported."""
    num_thermal = sum(step.is_thermally_capped for step in steps)
    num_power = sum(step.is_power_capped for step in steps)
    if 2 * max(num_thermal, num_power) < len(steps):
        return "slow"
    return "thermal" if num_thermal >= num_power else "power"


def _chosen_times(
    step: RankStep, drifts: Mapping[str, float], kind: str | None
) -> tuple[float, float, float] | None:
    """Measured time, s, drifted profile's, s, and variance, s2; None: nothing of this kind."""
    if kind is not None:
        times = step.by_kind.get(kind)
        if times is None:
            return None
        return times.measured_s, drifts.get(kind, 1.0) * times.profiled_s, times.variance_s2
    measured_s = profiled_s = variance_s2 = 0.0
    for name, times in step.by_kind.items():
        measured_s += times.measured_s
        profiled_s += drifts.get(name, 1.0) * times.profiled_s
        variance_s2 += times.variance_s2
    return measured_s, profiled_s, variance_s2
