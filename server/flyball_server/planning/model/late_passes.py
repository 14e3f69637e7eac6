"""Passes over the levels of a DAG, each an iteration of many plans with late clock changes.

The clocks that an instruction may run at do not depend on when it runs: those of as many
instructions before it as may end within a change's delay, and its own. So their times and energies
are looked up before the pass. `late_clocks` has the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from flyball_pipeline.dag import NONE
from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.model.array_dag import BoolArray, FloatArray, IndexArray
from flyball_server.planning.model.clocked_instructions import ClockRequest
from flyball_server.planning.model.instruction_rows import ClockSequences, InstructionRows, Level


@dataclass(frozen=True, kw_only=True)
class LateWindows:
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

    def replaced(self, now: LateWindows, is_late: BoolArray) -> LateWindows:
        """Return the other iteration of the plans that are late, and this of the others."""
        both: dict[str, FloatArray] = {
            field.name: np.where(is_late, getattr(now, field.name), getattr(self, field.name))
            for field in fields(self)
        }
        return LateWindows(**both)


class ClocksAhead:
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


class LatePasses:
    """Iterations one after the other.

    Args:
        rows: the instructions.
        clocks: clock of each instruction in each plan; shape (num_rows, num_plans).
        delays_s: delay of each instruction's request, s; same shape.
        ahead: clocks that are requested ahead; None: there are none.
    """

    def __init__(
        self,
        rows: InstructionRows,
        clocks: IndexArray,
        delays_s: FloatArray,
        ahead: ClocksAhead | None,
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

    def iterate(self, requested_s: FloatArray | float) -> LateWindows:
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
        return LateWindows(
            start_s=start_s,
            duration_s=duration_s,
            past_s=past_s,
            effect_s=effect_s,
            earlier_s=earlier_s,
            next_s=self._next_s(),
        )

    def follow(self, now: LateWindows, least_period_s: float) -> tuple[FloatArray, FloatArray]:
        """Go on to the next iteration's time.

        Args:
            now: the iteration.
            least_period_s: time from its begin to the next iteration's, where that is longer than
                the pipeline's own, s.

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

    def _asked_s(self, ahead: ClocksAhead, at: slice, begin_s: FloatArray) -> FloatArray:
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
