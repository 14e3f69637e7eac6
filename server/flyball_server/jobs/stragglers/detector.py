"""Detection of stragglers from measurements, against their profile; pure.

A ratio is the time that instructions took over their profiled time at the requested clock, so that
a clock that was planned to be low does not make a rank slow; where clocks change late, over their
predicted time. Ratios are pooled over the
instructions of a step, and judged over a window of steps: a single slow step has no effect, and
neither has noise within the window's standard error.

Ranks of one stage and pipeline wait for each other within an instruction, so their measurements are
not independent and one of them stands for all. If a stage runs in several pipelines, their common
ratio is a drift of the stage, and a straggler is the excess of one over it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flyball_pipeline.errors import PipelineError
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.loop_state import RankSlowdown, StageSlowdown
from flyball_server.jobs.records import RankRecord, StepDetail, StepRecord
from flyball_server.planning.documents.recorded_plan import models_of_plan
from flyball_server.planning.model.simulator import simulate
from flyball_wire.closed_loop import StragglerReason
from flyball_wire.plan import MAX_SLOWDOWN, MIN_SLOWDOWN, Plan

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
    """Measured over profiled time: in each step of a window, and over all with standard error."""

    of_steps: tuple[float, ...]
    mean: float
    error: float

    def over(self, factor: float) -> Ratio:
        """Return the ratio to a profile with all times multiplied by `factor`."""
        return Ratio(
            of_steps=tuple(of_step / factor for of_step in self.of_steps),
            mean=self.mean / factor,
            error=self.error / factor,
        )

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


def rank_step(record: StepRecord, detail: StepDetail, times_s: ClockTimes) -> RankStep | None:
    """Return the ratio of a rank's step to its profile; None: the step deviated from the plan.

    None also if an emulated GPU could not reproduce its profile in the step.
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
    return Ratio(
        of_steps=of_steps,
        mean=all_measured_s / all_profiled_s,
        # Steps scatter more than their instructions do if something slows whole steps.
        error=max(_error_of_mean(of_steps), math.sqrt(all_variance_s2) / all_profiled_s),
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


@dataclass(frozen=True, kw_only=True)
class SlowdownRules:
    """Thresholds for slow ranks and drifted stages.

    Attributes:
        slow_above: ratio above which a rank is a straggler, in each of `num_steps` steps; a known
            one's slowdown changes by as large a factor, or not at all.
        slow_until: ratio below which a straggler has recovered, for as many steps.
        drift: share beyond which the ratios of all a stage's ranks are a drift, on average over
            `num_drift_steps` steps, and over either half of them.
        num_errors: number of standard errors that each of these has to exceed in addition.
    """

    slow_above: float = 1.05
    slow_until: float = 1.025
    drift: float = 0.02
    num_steps: int = 5
    num_drift_steps: int = 40
    num_errors: float = 3.0


@dataclass(frozen=True, kw_only=True)
class Slowdowns:
    """Stragglers by rank, one per stage and pipeline, and drifted stages.

    A straggler's slowdown is relative to its stage's drift.
    """

    stragglers: tuple[RankSlowdown, ...] = ()
    drifts: tuple[StageSlowdown, ...] = ()


def find_slowdowns(
    observed: Iterable[RankStep],
    ranks: Sequence[RankRecord],
    known: Slowdowns,
    *,
    now_unix_s: float,
    announced: Collection[int] = (),
    rules: SlowdownRules | None = None,
) -> Slowdowns:
    """Return the still valid part of `known` and new findings.

    Args:
        observed: steps, at least the newest ones of each rank.
        ranks: all ranks of the job.
        known: earlier findings.
        now_unix_s: current time for new findings, Unix time in s.
        announced: ranks with a current announcement: they do not count for drift.
        rules: thresholds; None: default rules.
    """
    rules = rules or SlowdownRules()
    steps: dict[int, list[RankStep]] = defaultdict(list)
    for step in sorted(observed, key=lambda step: step.step):
        steps[step.rank].append(step)
    by_stage: dict[int, dict[int, list[int]]] = defaultdict(dict)
    for rank in ranks:
        by_stage[rank.stage].setdefault(rank.dp_rank, []).append(rank.rank)
    stragglers: list[RankSlowdown] = []
    drifts: list[StageSlowdown] = []
    for stage, pipelines in sorted(by_stage.items()):
        observation = _StageObservation(
            pipelines=list(pipelines.values()),
            steps=steps,
            known={slowed.rank: slowed for slowed in known.stragglers},
            drifts={slowed.kind: slowed for slowed in known.drifts if slowed.stage == stage},
            rules=rules,
        )
        found = observation.stragglers(now_unix_s)
        stragglers += found
        # After a straggler has recovered the window still has slow steps.
        apart = {slowed.rank for slowed in (*known.stragglers, *found)}
        drifts += observation.drifted(stage, apart | set(announced))
    return Slowdowns(
        stragglers=tuple(sorted(stragglers, key=lambda slowed: slowed.rank)), drifts=tuple(drifts)
    )


@dataclass(frozen=True, kw_only=True)
class _StageObservation:
    """One stage: by pipeline its ranks, their measurements, and the known slowdowns."""

    pipelines: Sequence[Sequence[int]]
    steps: Mapping[int, Sequence[RankStep]]
    known: Mapping[int, RankSlowdown]
    drifts: dict[str, StageSlowdown]
    rules: SlowdownRules

    def stragglers(self, now_unix_s: float) -> list[RankSlowdown]:
        """Return the stragglers of the stage, beyond its drift and the pipelines' common ratio."""
        ratios = {
            rank: self._ratio(rank, self.rules.num_steps)
            for pipeline in self.pipelines
            for rank in pipeline
        }
        means: list[float] = []
        for pipeline in self.pipelines:
            of_pipeline = [ratio.mean for rank in pipeline if (ratio := ratios[rank]) is not None]
            if len(of_pipeline) < len(pipeline):  # a rank has not measured enough yet
                return [self.known[rank] for rank in ratios if rank in self.known]
            means.append(max(of_pipeline))
        found: list[RankSlowdown] = []
        for index, pipeline in enumerate(self.pipelines):
            others = [*means[:index], *means[index + 1 :]]
            common = max(1.0, min(others, default=1.0))
            beyond = {rank: ratio.over(common) for rank in pipeline if (ratio := ratios[rank])}
            found += self._of_pipeline(beyond, now_unix_s)
        return found

    def _of_pipeline(self, beyond: Mapping[int, Ratio], now_unix_s: float) -> list[RankSlowdown]:
        """Return the slowest rank of a pipeline's stage as a straggler, if it is slow."""
        slowest = max(beyond, key=lambda rank: beyond[rank].mean)
        known = next((self.known[rank] for rank in beyond if rank in self.known), None)
        ratio = beyond[slowest]
        if known is None:
            if not self._is_above(ratio, self.rules.slow_above, at_least=self.rules.slow_until):
                return []
            return [self._slowdown(slowest, ratio, now_unix_s)]
        own = beyond[known.rank]
        if self._is_below(own, self.rules.slow_until, at_most=self.rules.slow_above):
            return []
        against_known = ratio.over(known.slowdown)
        factor = self.rules.slow_above
        has_changed = self._is_above(against_known, factor, at_least=1.0) or self._is_below(
            against_known, 1 / factor, at_most=1.0
        )
        found = self._slowdown(slowest, ratio, now_unix_s)
        is_other = (found.rank, found.slowdown) != (known.rank, known.slowdown)
        return [found] if has_changed and is_other else [known]

    def _slowdown(self, rank: int, ratio: Ratio, now_unix_s: float) -> RankSlowdown:
        return RankSlowdown(
            rank=rank,
            slowdown=min(max(1.0, ratio.mean), MAX_SLOWDOWN),
            reason=reason_of(self.steps[rank][-self.rules.num_steps :]),
            since_unix_s=now_unix_s,
        )

    def drifted(self, stage: int, apart: Collection[int]) -> list[StageSlowdown]:
        """Return the stage's drift by kind; pipelines with a rank in `apart` do not count."""
        ranks = [
            rank
            for pipeline in self.pipelines
            if not any(rank in apart for rank in pipeline)
            for rank in pipeline
        ]
        kinds = {
            kind for rank in ranks for step in self.steps.get(rank, ()) for kind in step.by_kind
        }
        ratios = {
            kind: [self._ratio(rank, self.rules.num_drift_steps, kind) for rank in ranks]
            for kind in sorted(kinds)
        }
        measured = {
            kind: [ratio for ratio in of_kind if ratio is not None]
            for kind, of_kind in ratios.items()
            if None not in of_kind
        }
        if not any(self._have_moved(of_kind) for of_kind in measured.values()):
            return list(self.drifts.values())
        # The stage is planned again in any case: each kind with its current drift.
        found = self.drifts | {
            kind: StageSlowdown(stage=stage, kind=kind, slowdown=self._drift(kind, of_kind))
            for kind, of_kind in measured.items()
        }
        # A ratio within a quarter of the drift limit counts as profiled.
        least = self.rules.drift / 4
        return [found[kind] for kind in sorted(found) if abs(found[kind].slowdown - 1) > least]

    def _drift(self, kind: str, ratios: Sequence[Ratio]) -> float:
        """Return the current ratio from the slowest rank, as in profiles."""
        before = self.drifts[kind].slowdown if kind in self.drifts else 1.0
        slowest = max(ratios, key=lambda ratio: ratio.mean)
        earlier, later = slowest.halves
        # If they differ, the earlier half has steps from before the change.
        has_changed = abs(later / earlier - 1) > self.rules.drift / 2
        slowdown = before * (later if has_changed else slowest.mean)
        return min(max(slowdown, MIN_SLOWDOWN), MAX_SLOWDOWN)

    def _have_moved(self, ratios: Sequence[Ratio]) -> bool:
        """Return whether all went the same way, far enough, surely, and not just for a moment."""
        return any(
            all(sign * (mean - 1) > self.rules.drift for ratio in ratios for mean in ratio.halves)
            and all(
                sign * (ratio.mean - 1) > self.rules.num_errors * ratio.error for ratio in ratios
            )
            for sign in (1, -1)
        )

    def _ratio(self, rank: int, num_steps: int, kind: str | None = None) -> Ratio | None:
        drifts = {name: slowed.slowdown for name, slowed in self.drifts.items()}
        return window_ratio(self.steps.get(rank, ()), num_steps, drifts=drifts, kind=kind)

    def _is_above(self, ratio: Ratio, limit: float, *, at_least: float) -> bool:
        """Return whether the ratio is above the limit in each step, and surely above `at_least`."""
        sure = ratio.mean - self.rules.num_errors * ratio.error > at_least
        return sure and min(ratio.of_steps) > limit

    def _is_below(self, ratio: Ratio, limit: float, *, at_most: float) -> bool:
        sure = ratio.mean + self.rules.num_errors * ratio.error < at_most
        return sure and max(ratio.of_steps) < limit
