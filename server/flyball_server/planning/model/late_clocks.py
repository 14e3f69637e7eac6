"""Iterations where clock changes take time: when each instruction runs, and at which clocks.

The clock f1 of an instruction that occupies [s, e] was requested at r, while f0 was in force, and
takes effect at r + L. With T(f) and E(f) its time and energy at a clock,

    x = clamp(r + L - s, 0, T(f0))          seconds at the old clock
    e - s = x + T(f1) (1 - x / T(f0))
    E = E(f0) x / T(f0) + E(f1) (1 - x / T(f0)).

Where L is longer than an instruction several changes are on their way, and each has its share of
the instructions that it falls into; one that would take effect after a later request's is dropped.

A clock is requested when the instruction before ends, ahead of the receive, unless `ClockRequest`
says otherwise; no request is made for the clock that was requested last. An iteration follows one
of the same plan: its first clock was requested when the last instruction before it ended, and what
of the delay the rest of that iteration does not cover is charged here.

One pass over the levels of the DAG runs all plans at once. The clocks that an instruction may run
at do not depend on when it runs: those of as many instructions before it as may end within a
change's delay, and its own. So their times and energies are looked up before the pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.model.clocked_instructions import ClockRequest
from flyball_server.planning.model.dag import NONE, IndexArray
from flyball_server.planning.model.finish_times import FloatArray
from flyball_server.planning.model.instruction_rows import ClockSequences, InstructionRows, Level
from flyball_server.planning.model.latest_times import latest_end_s
from flyball_server.planning.model.pipeline_model import PipelineModel

# Of iterations one after the other, from one whose first clocks are in force.
NUM_ITERATIONS = 3
# Of a dwell: sums in another order differ by rounding alone.
_DWELL_TOLERANCE = 1e-9

InForce = list[list[tuple[float, int]]]
"""Per stage, from when on in s which clock is in force, in order of time."""


@dataclass(frozen=True, kw_only=True)
class LateRun:
    """One iteration of each plan, per instruction of `ClockedInstructions`."""

    #: Begin of each instruction, s; shape (num_plans, num_instructions).
    start_s: FloatArray
    #: Duration of each instruction, s; shape (num_plans, num_instructions).
    duration_s: FloatArray
    #: Energy of each instruction, without waiting, J; shape (num_plans, num_instructions).
    energy_j: FloatArray
    #: End of the last instruction, and the tail, s; shape (num_plans,).
    iteration_time_s: FloatArray
    #: Energy of an iteration, J; shape (num_plans,).
    total_energy_j: FloatArray

    @property
    def finish_s(self) -> FloatArray:
        """End of each instruction, s; shape (num_plans, num_instructions)."""
        return self.start_s + self.duration_s


@dataclass(frozen=True, kw_only=True)
class _Windows:
    """Instructions of an iteration by rows; times in s."""

    #: Begins and durations; shape (num_rows, num_plans).
    start_s: FloatArray
    duration_s: FloatArray
    #: Time at each clock of `ClockSequences` but the last, one more axis before these.
    past_s: FloatArray
    #: Effect of each instruction's own clock; shape (num_rows, num_plans).
    effect_s: FloatArray
    #: Effects of changes from before the iteration; shape (num_earlier, num_stages, num_plans).
    earlier_s: FloatArray
    #: Effects of the next iteration's first clocks where these are requested ahead, else infinite;
    #: shape (num_stages, num_plans).
    next_s: FloatArray

    def replaced(self, now: _Windows, is_late: NDArray[np.bool_]) -> _Windows:
        """Return the other iteration of the plans that are late, and this one of the others."""
        both: dict[str, FloatArray] = {
            each.name: np.where(is_late, getattr(now, each.name), getattr(self, each.name))
            for each in fields(self)
        }
        return _Windows(**both)


@dataclass(frozen=True, kw_only=True)
class LateTrace:
    """One iteration of one plan, per instruction; shape of the arrays (num_instructions,)."""

    #: Begin of each instruction, s.
    start_s: FloatArray
    #: Duration of each instruction, s.
    duration_s: FloatArray
    #: Energy of each instruction, without waiting, J.
    energy_j: FloatArray
    #: Part of each duration at other clocks than the instruction's own, s.
    late_s: FloatArray
    #: Per stage, from when on which clock is in force: the first one is so as the iteration begins,
    #: the last ones may come after its end.
    in_force: InForce

    @property
    def finish_s(self) -> FloatArray:
        """End of each instruction, s."""
        return self.start_s + self.duration_s

    @property
    def end_s(self) -> float:
        """End of the last instruction, s."""
        return float(self.finish_s.max())


class LateClockSimulator:
    """Iterations of plans of one pipeline whose clock changes take time.

    Plans are given as `choices`: per plan and node, an index into its operating points; shape
    (num_plans, num_nodes).

    Args:
        model: the pipeline; its requests are made in all plans.
        transitions: times of clock changes; None: the model's own.
    """

    def __init__(self, model: PipelineModel, transitions: ClockTransitions | None = None) -> None:
        self._rows = InstructionRows(model)
        self._transitions = transitions or model.transitions or ClockTransitions.exact(0.0)
        self._requests = model.requests

    def run(
        self,
        choices: IndexArray,
        delays_s: ArrayLike | None = None,
        *,
        is_first: bool = False,
    ) -> LateRun:
        """Return an iteration of each plan, after others of the same plan.

        Args:
            choices: the plans.
            delays_s: delay of each request in s, not negative; shape (num_plans, num_instructions)
                or one that broadcasts to it; None: the median, up and down.
            is_first: one iteration alone, whose first clocks are requested as it begins, unless
                they are settled anyway.

        Raises:
            ValueError: the clock changes between a request and its instruction.
        """
        passes = self._passes(choices, delays_s)
        windows = self._first(passes) if is_first else self._steady(passes, 0.0)
        return self._run_of(
            windows.start_s, windows.duration_s, passes.sequences.energy_j(windows.past_s)
        )

    def trace(
        self,
        assignment: Sequence[int],
        delays_s: ArrayLike | None = None,
        *,
        least_period_s: float = 0.0,
    ) -> LateTrace:
        """Return an iteration of one plan in detail, after others of the same plan.

        Args:
            assignment: per node, an index into its operating points.
            delays_s: as `run` takes them.
            least_period_s: time from one iteration's begin to the next one's, where that is
                longer than this pipeline's own, s.

        Raises:
            ValueError: the clock changes between a request and its instruction.
        """
        passes, row_of = self._passes(np.array([assignment]), delays_s), self._rows.row_of
        windows, sequences = self._steady(passes, least_period_s), passes.sequences
        is_other = sequences.clocks != sequences.clocks[sequences.own]
        last_s = windows.duration_s - windows.past_s.sum(axis=0)
        late_s = np.where(is_other, np.concatenate([windows.past_s, last_s[None]]), 0.0).sum(axis=0)
        energy_j = sequences.energy_j(windows.past_s)
        return LateTrace(
            start_s=windows.start_s[row_of, 0],
            duration_s=windows.duration_s[row_of, 0],
            energy_j=energy_j[row_of, 0],
            late_s=late_s[row_of, 0],
            in_force=self._in_force(sequences, windows),
        )

    def judged(self, choices: IndexArray) -> tuple[LateRun, FloatArray]:
        """Return iterations at the median delays, alone, and times that none exceeds, s."""
        run = self.run(choices, is_first=True)
        is_exact = self._transitions.exact_s is not None
        return run, run.iteration_time_s if is_exact else self.latest_time_s(choices)

    def estimated(self, choices: IndexArray) -> LateRun:
        """Return iterations, alone, with the delays that are likely their worst.

        Changes up are at their latest, and down at their earliest.
        """
        times, clocks = self._transitions, self._rows.clocks(choices)
        is_up = (clocks < clocks[self._rows.previous])[self._rows.row_of].T
        return self.run(choices, np.where(is_up, times.up_p95_s, times.down_p5_s), is_first=True)

    @property
    def judging_effort(self) -> int:
        """Approximate cost of `judged`, relative to one change on its way at a time."""
        times = self._transitions
        if times.exact_s is not None:
            return 1
        return (1 + self._rows.most_within(max(times.up_p95_s, times.down_p95_s))) ** 2

    def latest_time_s(self, choices: IndexArray) -> FloatArray:
        """Return times in s that no iteration of a plan exceeds; shape (num_plans,).

        Each delay is between the 5th and the 95th percentile of its direction, independently, and
        the next iteration begins any time after the tail, unless first clocks are settled anyway.
        All clocks are requested as the instruction before ends.
        """
        rows = self._rows
        return latest_end_s(rows, rows.clocks(choices), self._transitions) + rows.tail_s

    def num_unbounded(self, choices: IndexArray) -> IndexArray:
        """Return the number of reasons why a plan may exceed its time; shape (num_plans,)."""
        return np.zeros(len(choices), dtype=np.int64)

    def num_switches(self, choices: IndexArray) -> IndexArray:
        """Return the clock changes of an iteration of each plan; shape (num_plans,)."""
        num: IndexArray = self._is_changed(choices).sum(axis=1)
        return num

    def num_short_dwells(self, choices: IndexArray, run: LateRun, dwell_s: float) -> IndexArray:
        """Return how many requests of each plan follow the stage's last one too soon.

        Args:
            choices: the plans.
            run: an iteration of each.
            dwell_s: least time between them, s.
        """
        num_short: IndexArray = np.zeros(len(choices), dtype=np.int64)
        is_changed, finish_s = self._is_changed(choices), run.finish_s
        lead_s = self._lead_s(choices)
        period_s = run.iteration_time_s[:, None]
        clocked = self._rows.clocked
        for first, last in zip(clocked.first, clocked.last, strict=True):
            of_stage = slice(first, last + 1)
            before_s = np.roll(finish_s[:, of_stage], 1, axis=1)
            before_s[:, 0] -= period_s[:, 0]
            before_s -= lead_s[:, of_stage]
            requested_s = np.where(is_changed[:, of_stage], before_s, -np.inf)
            newest_s = np.maximum.accumulate(requested_s, axis=1)
            of_before_s = newest_s[:, -1:] - period_s
            previous_s = np.concatenate(
                [of_before_s, np.maximum(newest_s[:, :-1], of_before_s)], axis=1
            )
            least_s = dwell_s * (1 - _DWELL_TOLERANCE)
            is_short = is_changed[:, of_stage] & (before_s - previous_s < least_s)
            num_short += is_short.sum(axis=1)
        return num_short

    def _lead_s(self, choices: IndexArray) -> FloatArray:
        """Return how long before the end of the instruction before each request is made, s.

        Returns:
            Shape (num_plans, num_instructions).
        """
        return np.zeros((len(choices), len(self._rows.row_of)))

    def _is_changed(self, choices: IndexArray) -> NDArray[np.bool_]:
        """Return True where a clock differs from the one before; shape (num_plans, num)."""
        rows, clocks = self._rows, self._rows.clocks(choices)
        is_changed: NDArray[np.bool_] = clocks != clocks[rows.previous]
        return is_changed[rows.row_of].T

    def _run_of(
        self,
        start_s: FloatArray,
        duration_s: FloatArray,
        energy_j: FloatArray,
        more_j: FloatArray | float = 0.0,
    ) -> LateRun:
        """Return iterations as instructions in their order.

        Args:
            start_s: begins by rows; shape (num_rows, num_plans).
            duration_s: durations by rows, s.
            energy_j: energies by rows, J.
            more_j: more energy of each plan than that of its instructions, J.
        """
        rows = self._rows
        iteration_time_s = (start_s + duration_s).max(axis=0) + rows.tail_s
        busy_j = (energy_j - rows.power_w * duration_s).sum(axis=0) + more_j
        return LateRun(
            start_s=start_s[rows.row_of].T,
            duration_s=duration_s[rows.row_of].T,
            energy_j=energy_j[rows.row_of].T,
            iteration_time_s=iteration_time_s,
            total_energy_j=busy_j + iteration_time_s * rows.waiting_power_w,
        )

    def _passes(self, choices: IndexArray, delays_s: ArrayLike | None) -> _Passes:
        rows, times = self._rows, self._transitions
        clocks = rows.clocks(choices)
        if delays_s is None:
            is_up = clocks < clocks[rows.previous]
            by_row_s = np.where(is_up, times.up_p50_s, times.down_p50_s)
        else:
            by_row_s = np.broadcast_to(delays_s, clocks.shape[::-1]).T[rows.instruction]
        ahead = None
        if self._requests:
            ahead = _Ahead(rows, clocks, self._requests, starts_settled=times.starts_settled)
        return _Passes(rows, clocks, by_row_s, ahead)

    def _first(self, passes: _Passes) -> _Windows:
        """Return an iteration alone."""
        is_settled = self._transitions.starts_settled
        return passes.iterate(-np.inf if is_settled else -self._rows.tail_s)

    def _steady(self, passes: _Passes, least_period_s: float) -> _Windows:
        """Return an iteration after others, as far as these make a difference."""
        windows = now = passes.iterate(-np.inf)
        is_late = np.full(now.start_s.shape[1], not self._transitions.starts_settled)
        for _ in range(NUM_ITERATIONS - 1):
            requested_s, effect_s = passes.follow(now, least_period_s)
            is_late &= (effect_s > now.start_s[self._rows.first]).any(axis=0)
            if not is_late.any():
                break
            now = passes.iterate(requested_s)
            windows = windows.replaced(now, is_late)
        return windows

    def _in_force(self, sequences: ClockSequences, windows: _Windows) -> InForce:
        """Return the clocks that are in force over time, of the only plan."""
        rows, clocked = self._rows, self._rows.clocked
        own, is_changed = sequences.clocks[sequences.own, :, 0], sequences.is_changed[:, 0]
        in_force: InForce = []
        for stage, (first, last) in enumerate(zip(clocked.first, clocked.last, strict=True)):
            of_stage = rows.row_of[first : last + 1]
            changed = of_stage[is_changed[of_stage] | (of_stage == of_stage[0])]
            earlier = sequences.clocks[: sequences.own, of_stage[0], 0]
            clocks = [*earlier, *own[changed], own[of_stage[0]]]
            effects_s = [-np.inf, *windows.earlier_s[:, stage, 0], *windows.effect_s[changed, 0]]
            effects_s.append(windows.next_s[stage, 0])
            changes: list[tuple[float, int]] = []
            for effect_s, clock in zip(map(float, effects_s), map(int, clocks), strict=True):
                while changes and changes[-1][0] >= effect_s:  # overtaken
                    changes.pop()
                changes.append((effect_s, clock))
            num_begun = max(1, sum(effect_s <= 0 for effect_s, _ in changes))
            begun = [(0.0, changes[num_begun - 1][1]), *changes[num_begun:]]
            in_force.append([change for change in begun if change[0] < np.inf])
        return in_force


class _Ahead:
    """Clocks that are requested before the instruction before ends.

    Attributes:
        is_early: per row, true where its clock is requested so.
        following: per row, the row whose clock may be requested while it runs, or itself.
        is_followed: per row, true where it is another one; shape (num_rows, 1).
        asked: per row, the row whose clock is requested after its begin; NONE: none is.
        offset_s: per row, time of that request after its begin, s; shape (num_rows, 1).
    """

    def __init__(
        self,
        rows: InstructionRows,
        clocks: IndexArray,
        requests: Mapping[int, ClockRequest],
        *,
        starts_settled: bool,
    ) -> None:
        num, clocked = len(clocks), rows.clocked
        is_changed = (clocks != clocks[rows.previous])[rows.row_of]
        is_changed[list(clocked.first)] = False
        num_changed = np.cumsum(is_changed, axis=0)
        following: IndexArray = np.arange(num)
        asked, offset_s = np.full(num, NONE), np.zeros((num, 1))
        stage_of = clocked.dag.stage
        ends = {
            instruction: clocked.last[stage_of[instruction]] + 1
            if instruction in clocked.first
            else instruction
            for instruction in requests
        }
        for instruction, end in sorted(ends.items(), key=lambda each: each[1]):
            after = requests[instruction].after
            is_before = clocked.first[stage_of[instruction]] <= after < end
            if not is_before or (num_changed[end - 1] != num_changed[after]).any():
                raise ValueError(
                    f"instruction {instruction} cannot be requested after {after}: it is"
                    " not before it on its stage, or the clock changes between them"
                )
            if starts_settled and instruction in clocked.first:
                continue
            following[after:end] = instruction
            asked[after], offset_s[after] = instruction, requests[instruction].offset_s
        self.following = rows.row_of[following][rows.instruction]
        self.is_followed = (self.following != np.arange(num))[:, None]
        asked_row = np.where(asked == NONE, NONE, rows.row_of[asked])
        self.asked, self.offset_s = asked_row[rows.instruction], offset_s[rows.instruction]
        self.is_early = np.zeros(num, dtype=np.bool_)
        self.is_early[self.asked[self.asked != NONE]] = True


class _Passes:
    """Iterations one after the other.

    Args:
        rows: the instructions.
        clocks: clock of each instruction in each plan; shape (num_rows, num_plans).
        delays_s: delay of each instruction's request, s; same shape.
        ahead: clocks that are requested ahead; None: there are none.
    """

    def __init__(
        self, rows: InstructionRows, clocks: IndexArray, delays_s: FloatArray, ahead: _Ahead | None
    ) -> None:
        self._rows, self._ahead = rows, ahead
        following = None if ahead is None else ahead.following
        self.sequences = ClockSequences(rows, clocks, float(delays_s.max()), following)
        self._is_changed = self.sequences.is_changed
        # A change that is not made took effect before all others.
        self._delays_s = np.where(self._is_changed, delays_s, -np.inf)
        num_stages, num_plans = len(rows.first), clocks.shape[1]
        # Effects of each stage's last changes, and of clocks that are requested ahead.
        self._recent_s = np.full((self.sequences.num_earlier, num_stages, num_plans), -np.inf)
        self._early_s = np.full(clocks.shape if ahead else (0, num_plans), -np.inf)

    def iterate(self, requested_s: FloatArray | float) -> _Windows:
        """Return the next iteration.

        Args:
            requested_s: when each stage's first clock was requested, s; one for all, or shape
                (num_stages, num_plans).
        """
        rows, sequences = self._rows, self.sequences
        num_rows, num_plans = self._delays_s.shape
        delays_s = self._delays_s.copy()
        delays_s[rows.first] += requested_s
        earlier_s = self._recent_s.copy()
        finish_s = np.zeros((num_rows + 1, num_plans))  # the last row stands for NONE
        start_s, effect_s = np.empty_like(delays_s), np.empty_like(delays_s)
        past_s, duration_s = np.empty_like(sequences.longer), sequences.times_s[-1].copy()
        for level in rows.levels:
            cancellation_point()
            at = level.rows
            free_s = finish_s[level.before]
            input_s = finish_s[level.source]
            input_s += level.transfer_s
            begin_s = np.maximum(free_s, input_s, out=start_s[at])
            own_s = np.add(free_s, delays_s[at], out=effect_s[at])
            effects_s = self._effects_s(level, begin_s, own_s)
            self._compute(at, begin_s, effects_s, past_s[:, at], duration_s[at])
            np.add(begin_s, duration_s[at], out=finish_s[at])
        return _Windows(
            start_s=start_s,
            duration_s=duration_s,
            past_s=past_s,
            effect_s=effect_s,
            earlier_s=earlier_s,
            next_s=self._next_s(),
        )

    def follow(self, now: _Windows, least_period_s: float) -> tuple[FloatArray, FloatArray]:
        """Go on to the next iteration's time.

        Args:
            now: the iteration.
            least_period_s: time from its begin to the next one's, where that is longer than the
                pipeline's own, s.

        Returns:
            When each stage's next first clock was requested, and the last effect of that and all
            changes before it, s after the next iteration's begin; shape (num_stages, num_plans).
        """
        rows, ahead = self._rows, self._ahead
        finish_s = now.start_s + now.duration_s
        period_s = np.maximum(finish_s.max(axis=0) + rows.tail_s, least_period_s)
        requested_s: FloatArray = finish_s[rows.last] - period_s
        effect_s: FloatArray = requested_s + self._delays_s[rows.first]
        if ahead is not None:
            self._early_s[rows.first] -= period_s
            is_early = ahead.is_early[rows.first][:, None] & self._is_changed[rows.first]
            effect_s = np.where(is_early, self._early_s[rows.first], effect_s)
        if self.sequences.num_earlier:
            self._recent_s -= period_s
            np.maximum(effect_s, self._recent_s[-1], out=effect_s)
        return requested_s, effect_s

    def _effects_s(self, level: Level, begin_s: FloatArray, own_s: FloatArray) -> FloatArray:
        """Return effects of some instructions' changes, s; shape (num_changes, num, num_plans).

        Args:
            level: the instructions.
            begin_s: their begins, s.
            own_s: effects of their own clocks if requested as the instruction before ends, s;
                becomes what they are.
        """
        at, num_earlier, ahead = level.rows, self.sequences.num_earlier, self._ahead
        if ahead is not None and (is_early := ahead.is_early[at]).any():
            # At the latest as the instruction begins.
            latest_s = begin_s[is_early] + self._delays_s[at][is_early]
            own_s[is_early] = np.minimum(self._early_s[at][is_early], latest_s)
        if not num_earlier and ahead is None:
            return own_s[None]
        earlier_s = self._recent_s[:, level.stage]
        if num_earlier:
            np.copyto(own_s, earlier_s[-1], where=~self._is_changed[at])
        next_s = [] if ahead is None else [self._asked_s(ahead, at, begin_s)]
        effects_s = np.array([*earlier_s, own_s, *next_s])
        # One that a later request overtakes has no part in anything.
        np.minimum.accumulate(effects_s[::-1], axis=0, out=effects_s[::-1])
        self._recent_s[:, level.stage] = effects_s[1 : num_earlier + 1]
        return effects_s

    def _asked_s(self, ahead: _Ahead, at: slice, begin_s: FloatArray) -> FloatArray:
        """Return effects of clocks that are requested ahead after instructions' begins, s."""
        asking = np.flatnonzero(ahead.asked[at] != NONE)
        asked = ahead.asked[at][asking]
        effect_s = begin_s[asking] + ahead.offset_s[at][asking] + self._delays_s[asked]
        self._early_s[asked] = np.where(self._is_changed[asked], effect_s, np.inf)
        early_s: FloatArray = self._early_s[ahead.following[at]]
        return np.where(ahead.is_followed[at], early_s, np.inf)

    def _compute(
        self,
        at: slice,
        begin_s: FloatArray,
        effects_s: FloatArray,
        past_s: FloatArray,
        duration_s: FloatArray,
    ) -> None:
        """Run some instructions.

        Args:
            at: their rows.
            begin_s: their begins, s.
            effects_s: effects of their changes, s; shape (num_changes, num, num_plans).
            past_s: times at the clocks before, s; are set.
            duration_s: times at the last clock, s; become the durations.
        """
        times_s, longer = self.sequences.times_s[:, at], self.sequences.longer[:, at]
        left_s = times_s[0]
        for number, here_s in enumerate(past_s):
            np.subtract(effects_s[number], begin_s, out=here_s)
            np.maximum(here_s, 0.0, out=here_s)
            np.minimum(here_s, left_s, out=here_s)
            duration_s += here_s * longer[number]
            if number + 1 < len(past_s):
                begin_s = begin_s + here_s
                # What is left of the instruction, at the next clock.
                left_s = (left_s - here_s) * (times_s[number + 1] / times_s[number])

    def _next_s(self) -> FloatArray:
        """Return effects of first clocks that are requested ahead, s; infinite where none is."""
        rows, ahead = self._rows, self._ahead
        if ahead is None:
            return np.full((len(rows.first), self._delays_s.shape[1]), np.inf)
        is_early = ahead.is_early[rows.first][:, None]
        return np.where(is_early, self._early_s[rows.first], np.inf)
