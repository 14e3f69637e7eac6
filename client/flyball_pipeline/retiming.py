"""Clocks for one step from its work: durations in proportion to the longest path.

A plan repeats one iteration. Where steps differ, each has other bubbles, and other pipelines are
its slowest. `retime` chooses the clocks of one step of one pipeline from a factor of each
instruction's time in this step and a deadline for each meeting:

1. `t[i]` is at first the time `b[i]` at the highest clock, or that of the plan in force.
2. `L[i]` is the longest path through i: one pass forward, one backward.
3. `t[i] <- min(max(t[i] T / L[i], b[i]), c[i])`, where `c[i]` is the time at the clock of least
   energy net of waiting. 2 and 3 are repeated.
   All rounds but the last two stretch by `(T / L[i])^2`, which comes as far in a third of them.
4. In topological order each instruction takes the slowest clock at which it ends no later than the
   longest path after it allows.

From the highest clocks no path becomes longer than T: on a path P the sum of `t[i] T / L[i]` is at
most `T / len(P)` times the sum of `t[i]`, since `L[i] >= len(P)` for each i on P; clipping at
`c[i]` shortens; and where `len(P) > T` every `L[i] > T`, so nothing on P is stretched
(docs/derivations.md, "A plan for each step"). Squares, the start from the plan in force and late
clock changes are not proven: every result is checked by its latest end, and where the first start
fails, the rounds are those of the proof.

Everything is a list in a fixed order, and no function is used whose rounding differs by platform or
by Python, so that equal inputs give equal clocks on every rank.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from flyball_pipeline.clock_rounding import ChangeDelays, StepStart
from flyball_pipeline.dag import DependencyDag
from flyball_pipeline.errors import PipelineError
from flyball_pipeline.retimed_clocks import MAX_OF_MANY_TRIES, RetimedClocks
from flyball_pipeline.step_curves import ClockPoint, step_curves
from flyball_pipeline.step_paths import StepPaths

MAX_INSTRUCTIONS = 33_000
_MANY_ROUNDS, _FEW_ROUNDS, _LAST_ROUNDS, _ROUNDS_OF_GROUPS = 16, 8, 2, 6
# Of one grouping, each aimed at segments as much shorter as the one before was late, and half as
# much again: fewer changes are in time then.
_MAX_TRIES = 4
# Where late changes cost more than this share of the saving, groups are tried too.
_MOST_LOST = 0.03
# Share of a step by which late first clocks may lengthen it, where last instructions at higher
# clocks avoid more, and the most of their stage's time that such instructions may take.
_MOST_FIRST_LATE, _MOST_OF_STAGE = 0.001, 0.15
# Of factors, and of sums of times in another order.
_TOLERANCE = 1e-9


class RetimingError(PipelineError):
    """A pipeline or a step that gets no plan of its own."""


class StepReserve(NamedTuple):
    """Room for errors of a step's predicted times, a share of them, not negative."""

    #: Share by which each segment is planned shorter, as far as the highest clocks allow.
    of_step: float = 0.0
    #: Share by which instructions below the highest clock may take longer.
    of_instruction: float = 0.0


NO_RESERVE = StepReserve()


class RetimedPipeline:
    """All of a pipeline that its steps share; made once for each version of its plan.

    Nodes are the instructions of a step, as in a dependency DAG. A meeting is a moment at which
    all pipelines wait for each other; it ends a segment of the step, and each node belongs to one.

    Args:
        dag: what waits for what, with its tail and transfers.
        points: per node, its time and energy by clock at factor 1, in any order. Nodes that are
            alike should share one object.
        waiting_power_w: per stage, power of all its GPUs while they wait, W.
        meeting: per node, the meeting that ends its segment, from 0 on; empty: one at the end.
        plan_mhz: per node, its clock in the plan in force; empty: there is no plan.
        delays: delays of clock changes; None: clocks change at once.

    Raises:
        RetimingError: the pipeline has more than `MAX_INSTRUCTIONS` instructions, or none; an
            argument has another length; or a meeting has no node.
    """

    def __init__(
        self,
        *,
        dag: DependencyDag,
        points: Sequence[Sequence[ClockPoint]],
        waiting_power_w: Sequence[float],
        meeting: Sequence[int] = (),
        plan_mhz: Sequence[int] = (),
        delays: ChangeDelays | None = None,
    ) -> None:
        if not 0 < dag.num_nodes <= MAX_INSTRUCTIONS:
            raise RetimingError(
                f"no step plans for {dag.num_nodes}; they are made for 1 to {MAX_INSTRUCTIONS}",
                field="instructions",
            )
        self.num_stages = 1 + max(dag.stage)
        for name, entries, num in (
            ("points", points, dag.num_nodes),
            ("meeting", meeting or points, dag.num_nodes),
            ("plan_mhz", plan_mhz or points, dag.num_nodes),
            ("waiting_power_w", waiting_power_w, self.num_stages),
        ):
            if len(entries) != num:
                raise RetimingError(f"{len(entries)} entries, not {num}", field=name)
        if meeting and set(meeting) != set(range(1 + max(meeting))):
            raise RetimingError("meetings count from 0 without gaps", field="meeting")
        self.paths = StepPaths(dag, meeting)
        of_nodes = [points[node] for node in self.paths.nodes]
        powers_w = [waiting_power_w[stage] for stage in self.paths.stage]
        #: Clocks of the pipeline, MHz, the highest first; a clock's number is its place here.
        self.clocks_mhz, self.curves = step_curves(of_nodes, powers_w)
        self.tail_s, self.delays = dag.tail_s, delays
        self.clocks = RetimedClocks(self.paths, self.curves, delays)
        self._reserved = (0.0, self.clocks)
        self.plan_mhz = tuple(plan_mhz)
        self._highest_s = [curve.highest_s for curve in self.curves]

    @cached_property
    def plan_ratios(self) -> list[float]:
        """Time of each place in the plan in force over that at the highest clock."""
        numbers = self.numbers_of(self.plan_mhz)
        both = zip(self.curves, self.paths.nodes, strict=True)
        return [curve.ratio_of_number[numbers[node]] for curve, node in both]

    @cached_property
    def first_begins_s(self) -> list[float]:
        """Least time of each stage from a step's begin to its own, at factors of 1, s."""
        ends_s = self.paths.ends_s(self._highest_s)
        return [ends_s[place] - self._highest_s[place] for place, *_ in self.paths.places_of_stage]

    @cached_property
    def plan_times(self) -> tuple[float, ...]:
        """Time of each segment in the plan in force at factors of 1, s; the last with the tail."""
        both = zip(self._highest_s, self.plan_ratios, strict=True)
        return self.times_of([time_s * ratio for time_s, ratio in both])

    @property
    def has_time(self) -> bool:
        """Return whether the pipeline is small enough for many rounds, groupings and tries."""
        return self.paths.num_places <= MAX_OF_MANY_TRIES

    def with_reserve(self, reserve: float) -> RetimedClocks:
        """Return the clocks with a reserve, a share of time; the last result is kept."""
        if not reserve:
            return self.clocks
        if self._reserved[0] != reserve:
            self._reserved = (reserve, self.clocks.with_reserve(reserve))
        return self._reserved[1]

    def times_of(self, durations_s: Sequence[float]) -> tuple[float, ...]:
        """Return the time of each segment, s, the last with the tail."""
        *before_s, last_s = self.paths.segment_times_s(self.paths.ends_s(durations_s))
        return (*before_s, last_s + self.tail_s)

    def highest_s(self, factors: Sequence[float]) -> list[float]:
        """Return per place its time at the highest clock in a step, s.

        Args:
            factors: per node, its time in this step over that of its points.

        Raises:
            RetimingError: a factor is missing, or not a positive number.
        """
        if len(factors) != self.paths.num_places:
            raise RetimingError(
                f"{len(factors)} for {self.paths.num_places} instructions", field="factors"
            )
        if not all(0 < factor < math.inf for factor in factors):
            raise RetimingError("must be positive numbers", field="factors")
        both = zip(self._highest_s, self.paths.nodes, strict=True)
        return [time_s * factors[node] for time_s, node in both]

    def numbers_of(self, clocks_mhz: Sequence[int]) -> list[int]:
        """Return the number of each clock; one that is not among them counts as the next lower."""
        last = len(self.clocks_mhz) - 1
        number_of = {
            clock_mhz: next((n for n, mhz in enumerate(self.clocks_mhz) if mhz <= clock_mhz), last)
            for clock_mhz in set(clocks_mhz)
        }
        return [number_of[clock_mhz] for clock_mhz in clocks_mhz]

    def clocks_of(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Return per node its clock in MHz; `choices` are by place, indices of kept clocks."""
        clocks = [0] * self.paths.num_places
        for node, curve, choice in zip(self.paths.nodes, self.curves, choices, strict=True):
            clocks[node] = self.clocks_mhz[curve.numbers[choice]]
        return tuple(clocks)


def own_times(pipeline: RetimedPipeline, factors: Sequence[float]) -> tuple[float, ...]:
    """Return the time of each segment of a step at the highest clocks, s, the last with the tail.

    Args:
        pipeline: the pipeline.
        factors: per node, its time in this step over that of its points.

    Raises:
        RetimingError: a factor is missing, or not a positive number.
    """
    return pipeline.times_of(pipeline.highest_s(factors))


def retime(
    pipeline: RetimedPipeline,
    factors: Sequence[float],
    deadlines_s: Sequence[float],
    *,
    in_force_mhz: Sequence[int] = (),
    gap_s: float = 0.0,
    reserve: StepReserve = NO_RESERVE,
) -> tuple[int, ...]:
    """Return per node its clock in a step, MHz.

    No segment takes longer than its deadline, or where that is longer than its own time at the
    highest clocks, requested with the same clocks in force.

    Args:
        pipeline: the pipeline.
        factors: per node, its time in this step over that of its points.
        deadlines_s: time of each segment, s, the last with the tail.
        in_force_mhz: per stage, the clock in force as the step before ended; empty: the highest.
        gap_s: least time from the end of the step before, where first clocks are requested, to the
            begin of this one, s.
        reserve: room for errors of the factors.

    Raises:
        RetimingError: a factor, a deadline or a clock is missing, or a number is out of range.
    """
    highest_s = pipeline.highest_s(factors)
    if len(deadlines_s) != pipeline.paths.num_meetings:
        raise RetimingError(
            f"{len(deadlines_s)} for {pipeline.paths.num_meetings} meetings", field="deadlines_s"
        )
    if not all(0 < deadline_s < math.inf for deadline_s in deadlines_s):
        raise RetimingError("must be positive numbers", field="deadlines_s")
    num_stages = pipeline.num_stages
    if in_force_mhz and len(in_force_mhz) != num_stages:
        raise RetimingError(f"{len(in_force_mhz)} for {num_stages} stages", field="in_force_mhz")
    if not 0 <= gap_s < math.inf:
        raise RetimingError("must be a time of 0 s or more", field="gap_s")
    if _is_plan_in_force(pipeline, factors, deadlines_s):
        return pipeline.plan_mhz
    step = _Step(pipeline, pipeline.with_reserve(reserve.of_instruction), highest_s, factors)
    in_force = pipeline.numbers_of(in_force_mhz) or (0,) * num_stages
    step.aim_at(deadlines_s, StepStart(in_force, gap_s), reserve.of_step)
    return pipeline.clocks_of(step.choices())


def _is_plan_in_force(
    pipeline: RetimedPipeline, factors: Sequence[float], deadlines_s: Sequence[float]
) -> bool:
    """Return whether the plan in force was made for this step."""
    if not pipeline.plan_mhz or max(factors) - 1 > _TOLERANCE or 1 - min(factors) > _TOLERANCE:
        return False
    both = zip(deadlines_s, pipeline.plan_times, strict=True)
    return all(abs(deadline_s - time_s) <= _TOLERANCE * time_s for deadline_s, time_s in both)


class _Step:
    """One step of a pipeline."""

    def __init__(
        self,
        pipeline: RetimedPipeline,
        clocks: RetimedClocks,
        highest_s: list[float],
        factors: Sequence[float],
    ) -> None:
        self._pipeline, self._clocks, self._highest_s = pipeline, clocks, highest_s
        self._factors = [factors[node] for node in pipeline.paths.nodes]

    def aim_at(self, deadlines_s: Sequence[float], start: StepStart, reserve: float) -> None:
        """Take the rest of what `retime` takes."""
        pipeline, highest_s = self._pipeline, self._highest_s
        self._start = start
        *before_s, last_s = deadlines_s
        segments_s = (*before_s, last_s - pipeline.tail_s)
        paths, rounding = pipeline.paths, self._clocks.rounding
        own_s = paths.segment_times_s(paths.ends_s(highest_s))
        segments_s = tuple(map(max, segments_s, own_s))
        #: Segments' times that are aimed at, and that may not be exceeded, s.
        self._aimed_s = [segment_s / (1 + reserve) for segment_s in segments_s]
        latest_s = own_s
        if pipeline.delays is not None:
            highest = [0] * len(highest_s)
            ends_s = rounding.latest_ends_s(highest, highest_s, self._start)
            latest_s = paths.segment_times_s(ends_s)
        self._allowed_s = [
            max(both) * (1 + _TOLERANCE) for both in zip(segments_s, latest_s, strict=True)
        ]
        self._slowest = self._slowest_at_end()

    def _slowest_at_end(self) -> dict[int, int]:
        """Return of stages' last places the slowest choice from which a first clock is in time.

        The next step's first clock is late by up to `up_s` less a gap like this step's and the time
        before its instruction begins, and for so long the instruction runs at the clock of this
        step's last one; where that is shorter than the rest of the delay, at the clocks of those
        before it. Instructions that are much of their stage's work keep their clocks: higher ones
        would cost more than the delay.
        """
        pipeline = self._pipeline
        if pipeline.delays is None:
            return {}
        most_late_s = _MOST_FIRST_LATE * math.fsum(self._allowed_s)
        slowest: dict[int, int] = {}
        for places, begin_s in zip(
            pipeline.paths.places_of_stage, pipeline.first_begins_s, strict=True
        ):
            left_s = _MOST_OF_STAGE * math.fsum(self._highest_s[place] for place in places)
            late_s = pipeline.delays.up_s - self._start.gap_s - begin_s
            for place in reversed(places):
                left_s -= self._highest_s[place]
                if late_s <= most_late_s or left_s < 0:
                    break
                ratio = 1 / (1 - most_late_s / late_s)
                slowest[place] = bisect_right(self._clocks.curves[place].ratios, ratio) - 1
                late_s -= self._highest_s[place]
        return slowest

    def choices(self) -> list[int]:
        """Return the plan of least energy net of waiting among those that are in time."""
        pipeline, highest_s = self._pipeline, self._highest_s
        most_s = [
            ratio * time_s
            for ratio, time_s in zip(self._clocks.most_ratios, highest_s, strict=True)
        ]
        for place, choice in self._slowest.items():
            most_s[place] = self._clocks.curves[place].ratios[choice] * highest_s[place]
        best = [0] * len(highest_s)
        highest_j = best_j = self._cost_j(best)
        starts = [(list(highest_s), True), (list(highest_s), False)]
        if pipeline.plan_mhz:
            of_plan = zip(highest_s, pipeline.plan_ratios, most_s, strict=True)
            times_s = [min(time_s * ratio, most) for time_s, ratio, most in of_plan]
            starts.insert(1, (times_s, True))
        shares: list[float] = []
        for times_s, is_squared in starts:
            if not is_squared and shares[0] <= 1:
                break
            self._stretch(times_s, most_s, is_squared=is_squared)
            choices, ends_s = self._clocks.rounding.rounded(
                times_s, highest_s, self._aimed_s, self._start, self._slowest
            )
            cost_j = self._cost_j(choices)
            shares.append(self._share_of_allowed(ends_s))
            if cost_j < best_j and shares[-1] <= 1:
                best, best_j = choices, cost_j
        if pipeline.delays is None:
            return best
        at_once, _ = self._clocks.rounding.rounded_at_once(starts[0][0], highest_s, self._aimed_s)
        least_j = self._cost_j(at_once)
        if highest_j - best_j >= (1 - _MOST_LOST) * (highest_j - least_j):
            return best
        return self._best_of_groups(best, best_j)

    def _stretch(self, times_s: list[float], most_s: list[float], *, is_squared: bool) -> None:
        """Stretch durations in s; the last rounds as the proof does."""
        pipeline = self._pipeline
        rounds = _MANY_ROUNDS if pipeline.has_time else _FEW_ROUNDS
        limits = (self._highest_s, most_s, self._aimed_s)
        if is_squared:
            pipeline.paths.stretch(times_s, *limits, rounds - _LAST_ROUNDS, is_squared=True)
        pipeline.paths.stretch(times_s, *limits, _LAST_ROUNDS if is_squared else rounds)

    def _best_of_groups(self, best: list[int], best_j: float) -> list[int]:
        """Return this plan, or one in time with fewer changes that takes less energy."""
        rounding = self._clocks.rounding
        for groups in self._clocks.groupings:
            aimed_s = self._aimed_s
            for _ in range(_MAX_TRIES if self._pipeline.has_time else 1):
                choices = groups.choices(self._highest_s, aimed_s, _ROUNDS_OF_GROUPS)
                for place, slowest in self._slowest.items():
                    choices[place] = min(choices[place], slowest)
                cost_j = self._cost_j(choices)
                if cost_j >= best_j:
                    break
                share = self._share_of_allowed(
                    rounding.latest_ends_s(choices, self._highest_s, self._start)
                )
                if share <= 1:
                    best, best_j = choices, cost_j
                    break
                shorter = 1 / (share * math.sqrt(share))
                aimed_s = [shorter * time_s for time_s in aimed_s]
        return best

    def _share_of_allowed(self, ends_s: Sequence[float]) -> float:
        """Return the longest segment as a share of what is allowed; above 1: it is late."""
        times_s = self._pipeline.paths.segment_times_s(ends_s)
        both = zip(times_s, self._allowed_s, strict=True)
        return max(time_s / allowed_s for time_s, allowed_s in both)

    def _cost_j(self, choices: Sequence[int]) -> float:
        """Return energy net of waiting, J."""
        places = zip(self._clocks.curves, choices, self._factors, strict=True)
        return math.fsum(curve.costs_j[choice] * factor for curve, choice, factor in places)
