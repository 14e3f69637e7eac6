"""Ratios of measured to profiled times of instructions, pooled over steps; pure.

A ratio is the time that instructions took over their profiled time at the requested clock, so that
a clock that was planned to be low does not make a rank slow; where clocks change late, over their
predicted time. Of a step whose work was announced it is over the time that this work takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.work import StepWork, WorkCoefficients
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.planning_inputs import WorkModel
from flyball_server.jobs.step_records import StepDetail, StepRecord
from flyball_server.planning.documents.recorded_plan import models_of_plan
from flyball_server.planning.model.simulator import simulate
from flyball_wire.closed_loop import StragglerReason
from flyball_wire.plans.plan import Plan

ClockTimes = Mapping[tuple[str, int, int], float]
"""Profiled times of one stage in s, by (kind, chunk, MHz)."""


@dataclass(frozen=True, kw_only=True)
class KindTimes:
    """Times of all instructions of one kind in one step of one rank.

    Attributes:
        measured_s: sum of their measured times, s.
        profiled_s: sum of their profiled times, s; positive.
        variance_s2: variance of `measured_s`, from the scatter within the step, s2.
    """

    measured_s: float
    profiled_s: float
    variance_s2: float


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """Measurement of one step of one rank for its slowdown factor."""

    rank: int
    step: int
    by_kind: Mapping[str, KindTimes]
    is_power_capped: bool = False
    is_thermally_capped: bool = False


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Measured over profiled time: in each step of a window, and over all with standard errors.

    `step_error` is from the scatter within the steps alone.
    """

    of_steps: tuple[float, ...]
    mean: float
    error: float
    step_error: float

    @property
    def halves(self) -> tuple[float, float]:
        """Means of the earlier and of the later half of the window."""
        middle = len(self.of_steps) // 2
        earlier, later = self.of_steps[:middle], self.of_steps[middle:]
        return sum(earlier) / len(earlier), sum(later) / len(later)


def clock_times(profile: StageProfile, stage: int) -> ClockTimes:
    """Return the profiled times of one stage's instructions."""
    return {
        (str(kind), chunk, point.frequency_mhz): point.time_s
        for chunk, of_chunk in enumerate(profile.chunks or (profile,))
        for (of_stage, kind), points in of_chunk.points.items()
        if of_stage == stage
        for point in points
    }


def planned_clock_times(profile: StageProfile, plan: Plan) -> list[ClockTimes]:
    """Return the times that a plan's instructions are predicted to take, by stage.

    Where clocks change late, this is the mean over the plan's instructions of a kind, chunk and
    clock, so that no change looks like a slow GPU. Others, and all of a plan that does not fit the
    profile, have their profiled times.
    """
    of_stages = [dict(clock_times(profile, stage)) for stage in range(profile.num_stages)]
    if plan.transitions is None:
        return list(of_stages)
    try:
        pipelines = models_of_plan(profile, plan)
    except PipelineError:
        return list(of_stages)
    sums: dict[tuple[int, tuple[str, int, int]], tuple[float, int]] = {}
    for model, assignment in pipelines:
        simulated = simulate(model, assignment)
        repeats = model.schedule.num_microbatches if model.schedule.is_periodic else 1
        for node, (stage, instruction) in enumerate(
            zip(model.dag.stage, model.dag.instruction, strict=True)
        ):
            clock_mhz = model.points[node][assignment[node]].frequency_mhz
            key = stage, (str(instruction.kind), instruction.chunk, clock_mhz)
            sum_s, count = sums.get(key, (0.0, 0))
            sums[key] = sum_s + simulated.busy_s[node], count + repeats
    for (stage, alike), (sum_s, count) in sums.items():
        of_stages[stage][alike] = sum_s / count
    return list(of_stages)


@dataclass(frozen=True, kw_only=True)
class StageWork:
    """Factors by which announced work makes a stage's instructions longer."""

    #: By kind and chunk; empty: only work that is given as factors is known.
    coefficients: Mapping[tuple[str, int], WorkCoefficients] = field(
        default_factory=dict[tuple[str, int], WorkCoefficients]
    )
    #: Standard deviation of a microbatch's times from these, as a share.
    error: float = 0.0

    def factors(self, kind: str, chunk: int, work: StepWork) -> list[float] | None:
        """Return an instruction's factor by microbatch; None: not known."""
        of_place = self.coefficients.get((kind, chunk))
        if of_place is None:
            only_factors = all(len(of_microbatch) == 1 for of_microbatch in work)
            return [of_microbatch[0] for of_microbatch in work] if only_factors else None
        return [of_place.factor(of_microbatch) for of_microbatch in work]


UNKNOWN_WORK = StageWork()


def stage_work(model: WorkModel | None, stage: int) -> StageWork:
    """Return the factors of one stage; None: the job was planned without announced work."""
    if model is None:
        return UNKNOWN_WORK
    both = zip(model.places, model.coefficients, strict=True)
    return StageWork(
        coefficients={
            (kind, chunk): WorkCoefficients(*coefficients)
            for (of_stage, kind, chunk), coefficients in both
            if of_stage == stage
        },
        error=model.error,
    )


def rank_step(
    record: StepRecord,
    detail: StepDetail,
    times_s: ClockTimes,
    work: StageWork = UNKNOWN_WORK,
) -> RankStep | None:
    """Return the ratio of a rank's step to its profile; None: the step deviated from the plan.

    None also if an emulated GPU could not reproduce its profile in the step, where the step's work
    was announced in lengths whose times are not known yet, and if the clock was below the one that
    was set and neither power nor heat explains it: that says nothing of the GPU.
    """
    if record.plan_version is None or record.num_unplanned or record.num_overruns:
        return None
    if record.num_lost_clocks:
        return None
    if detail.work is None:
        by_kind = _times_of_kinds(detail, times_s)
    else:
        by_kind = _times_of_work(detail, detail.work, times_s, work)
    if not by_kind:
        return None
    return RankStep(
        rank=record.rank,
        step=record.step,
        by_kind=by_kind,
        is_power_capped=record.num_power_capped > 0,
        is_thermally_capped=record.num_thermally_capped > 0,
    )


def _times_of_kinds(detail: StepDetail, times_s: ClockTimes) -> dict[str, KindTimes]:
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
    return _kind_times(sums)


def _times_of_work(
    detail: StepDetail, step: StepWork, times_s: ClockTimes, work: StageWork
) -> dict[str, KindTimes]:
    """Return the times of a step with work, at the highest clock; empty: they cannot be compared.

    Which microbatch ran at which clock is not known, but what all of them would have taken at the
    highest clock is: each measured time over the profiled one at its clock. The scatter within the
    step is that of the work, so the error of its fit stands in for it.
    """
    at_highest: dict[tuple[str, int], tuple[int, float]] = {}
    for kind, chunk, clock_mhz, count, mean_s, _ in detail.by_clock or ():
        profiled_s = times_s.get((kind, chunk, clock_mhz or 0))
        if profiled_s is not None:
            num, ratios = at_highest.get((kind, chunk), (0, 0.0))
            at_highest[kind, chunk] = num + count, ratios + count * mean_s / profiled_s
    sums: dict[str, tuple[float, float, float]] = {}
    for (kind, chunk), (num, ratios) in at_highest.items():
        factors = work.factors(kind, chunk, step)
        if factors is None:
            return {}
        if num != len(factors):
            continue
        highest_s = min(
            time_s
            for (of, of_chunk, _), time_s in times_s.items()
            if (of, of_chunk) == (kind, chunk)
        )
        measured, profiled, variance = sums.get(kind, (0.0, 0.0, 0.0))
        squares = math.fsum(factor * factor for factor in factors)
        sums[kind] = (
            measured + highest_s * ratios,
            profiled + highest_s * math.fsum(factors),
            variance + (work.error * highest_s) ** 2 * squares,
        )
    return _kind_times(sums)


def _kind_times(sums: Mapping[str, tuple[float, float, float]]) -> dict[str, KindTimes]:
    return {
        kind: KindTimes(measured_s=measured, profiled_s=profiled, variance_s2=variance)
        for kind, (measured, profiled, variance) in sums.items()
    }


def window_ratio(
    steps: Sequence[RankStep],
    num_steps: int,
    *,
    drifts: Mapping[str, float],
    kind: str | None = None,
) -> Ratio | None:
    """Return a rank's ratio over its newest steps; None: too few steps.

    Args:
        steps: steps of one rank, in their order.
        num_steps: number of steps in the window, at least 2.
        drifts: factors on the profile's times by kind; 1 for kinds without an entry.
        kind: kind of instruction; None: all kinds together.
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
    step_error = math.sqrt(all_variance_s2) / all_profiled_s
    return Ratio(
        of_steps=of_steps,
        mean=all_measured_s / all_profiled_s,
        # Steps scatter more than their instructions do if something slows whole steps.
        error=max(_error_of_mean(of_steps), step_error),
        step_error=step_error,
    )


def _error_of_mean(values: Sequence[float]) -> float:
    mean, num_values = sum(values) / len(values), len(values)
    squares = sum((value - mean) ** 2 for value in values)
    return math.sqrt(squares / (num_values - 1) / num_values)


def reason_of(steps: Sequence[RankStep]) -> StragglerReason:
    """Return the clock limit of at least half of the steps; `slow`: no reason was reported."""
    num_thermal = sum(step.is_thermally_capped for step in steps)
    num_power = sum(step.is_power_capped for step in steps)
    if 2 * max(num_thermal, num_power) < len(steps):
        return StragglerReason.SLOW
    return StragglerReason.THERMAL if num_thermal >= num_power else StragglerReason.POWER


def _chosen_times(
    step: RankStep, drifts: Mapping[str, float], kind: str | None
) -> tuple[float, float, float] | None:
    """Return measured s, drifted profile's s and variance s2; None: nothing of this kind."""
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
