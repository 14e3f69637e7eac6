"""Clock requests ahead of an instruction's end, so that the clocks of busy stages change in time.

By default a clock is requested as the previous instruction ends, and takes effect later. Where the
stage does not wait in between, the instruction begins at the clock before. So a clock can be
requested ahead of the planned end of the previous instruction:

- a higher clock its longest delay ahead, from the begin of an instruction after which the stage
  computes at one clock for as long;
- a lower clock its shortest delay ahead, but no sooner than the previous instruction begins.

No iteration then takes longer than if clocks changed at once, whatever each delay is between the
5th and the 95th percentile, if each higher clock has enough computation at one clock before it
(`EarlyRequestBatch.num_unbounded` counts those that have not), and a lower clock of its stage makes
an instruction longer, by no more than MAX_TIME_RATIO; docs/derivations.md has the proof. In a
measured profile some lower clocks seem faster, by noise or a power limit. There
`EarlyRequestBatch.latest_s` bounds the iteration, which may become longer by no more than
MAX_LONGER.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.model.array_dag import BoolArray, FloatArray, IndexArray
from flyball_server.planning.model.clocked_instructions import ClockedInstructions, ClockRequest
from flyball_server.planning.model.late_clocks import LateClockSimulator, LateRun
from flyball_server.planning.model.pipeline_model import PipelineModel

MAX_TIME_RATIO, MAX_LONGER = 2.0, 0.0005
# Of sums of times, which rounding changes.
_TOLERANCE = 1e-9


def early_requests(
    clocked: ClockedInstructions, clocks: Sequence[int], transitions: ClockTransitions
) -> dict[int, ClockRequest]:
    """Return the requests of a plan that are made ahead, by instruction.

    Args:
        clocked: the instructions.
        clocks: per instruction, its clock.
        transitions: times of clock changes.
    """
    times_s = [
        clocked.times_s[group][clock] for group, clock in zip(clocked.group, clocks, strict=True)
    ]
    requests: dict[int, ClockRequest] = {}
    for first, last in zip(clocked.first, clocked.last, strict=True):
        for instruction in range(first + transitions.starts_settled, last + 1):
            after = instruction - 1 if instruction > first else last
            if clocks[instruction] == clocks[after]:
                continue
            total_s = times_s[after]
            if clocks[instruction] < clocks[after]:  # a higher clock
                lead_s = transitions.up_p95_s
                while total_s < lead_s and after > first and clocks[after - 1] == clocks[after]:
                    after -= 1
                    total_s += times_s[after]
            else:
                lead_s = transitions.down_p5_s
            if lead_s:
                requests[instruction] = ClockRequest(
                    after=after, offset_s=max(0.0, total_s - lead_s)
                )
    return requests


class EarlyRequestBatch(LateClockSimulator):
    """Iterations of many plans of one pipeline whose clocks are requested ahead.

    Times are those of clocks that change at once, which no
    iteration exceeds; energies are at the median delays, where a higher clock takes effect somewhat
    before an instruction ends, and a lower clock somewhat after the next begins.

    Args:
        model: the pipeline, with the times of its clock changes.
    """

    def __init__(self, model: PipelineModel) -> None:
        super().__init__(model)
        assert model.transitions is not None  # noqa: S101 - the caller has seen to it
        self._firsts = np.array(model.clocked.first)
        times_s = model.clocked.times_s
        self._has_large_ratios = any(
            max(of_group) > MAX_TIME_RATIO * (1 + _TOLERANCE) * min(of_group)
            for of_group in times_s
        )
        self._is_rising = all(list(of_group) == sorted(of_group) for of_group in times_s)
        # By instruction, the one after it of its stage; by row, its instruction.
        self._following = np.argsort(self._rows.clocked.before)
        self._settled = np.zeros(len(self._rows.previous), dtype=np.bool_)
        self._settled[self._rows.first] = model.transitions.starts_settled

    @cached_property
    def _ranges(self) -> _TimeRanges:
        """Return the ranges; they are large, and few profiles need them."""
        clocked = self._rows.clocked
        return _TimeRanges(clocked.times_s, np.array(clocked.group))

    @property
    def judging_effort(self) -> int:
        """Approximate cost of `judged`, relative to one change on its way at a time."""
        return 1

    def judged(self, choices: IndexArray) -> tuple[LateRun, FloatArray]:
        """Return iterations at the median delays, and their times, which bound them, s."""
        run = self.estimated(choices)
        return run, run.iteration_time_s

    def estimated(self, choices: IndexArray) -> LateRun:
        """Return an iteration of each plan."""
        rows, clocks = self._rows, self._rows.clocks(choices)
        own = rows.table + clocks
        duration_s: FloatArray = rows.times_s[own]
        energy_j: FloatArray = rows.energies_j[own]
        start_s, finish_s = self._windows_s(duration_s)
        more_j = self._more_j(clocks, start_s, finish_s)
        return self._run_of(start_s, duration_s, energy_j, more_j)

    def _windows_s(self, duration_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return begin and end of each instruction, by rows, s."""
        start_s = np.empty_like(duration_s)
        finish_s = np.zeros((len(duration_s) + 1, duration_s.shape[1]))  # the last value: NONE
        for level in self._rows.levels:
            cancellation_point()
            input_s = finish_s[level.source] + level.transfer_s
            np.maximum(finish_s[level.before], input_s, out=start_s[level.rows])
            np.add(start_s[level.rows], duration_s[level.rows], out=finish_s[level.rows])
        return start_s, finish_s[:-1]

    def latest_s(self, choices: IndexArray) -> FloatArray:
        """Return a bound of each iteration without its tail where nothing is unbounded, s.

        It is the iteration's end at the planned times, each made longer by the time for which a
        higher clock that is slower may be in force within the instruction.
        """
        rows, clocks = self._rows, self._rows.clocks(choices)
        duration_s: FloatArray = rows.times_s[rows.table + clocks]
        more_s = self._more_s(clocks)
        latest_s: FloatArray = self._windows_s(duration_s + more_s)[1].max(axis=0)
        return latest_s

    def _more_s(self, clocks: IndexArray) -> FloatArray | float:
        """Return by how much slower higher clocks may make each instruction longer, by rows, s.

        A higher clock is in force after the begin of an instruction at a lower one, and before the
        end of one that a higher one follows. What is left of the instruction then may run at the
        next clock, if that is lower. Where a higher clock is requested some instructions ahead,
        waiting between these may make it early by any time: all but the first of them may run at
        it as a whole.
        """
        if self._is_rising:
            return 0.0
        times, rows = self._transitions, self._rows
        own_s = rows.times_s[rows.table + clocks]
        down_s = times.down_p95_s - np.minimum(times.down_p5_s, own_s[rows.previous])
        up_s = times.up_p95_s - times.up_p5_s
        is_down = (clocks > clocks[rows.previous]) & ~self._settled[:, None]
        has_request, is_after_request, next_clocks = self._around_requests(clocks)
        higher_s = np.where(is_down, down_s, 0.0) + np.where(has_request, up_s, 0.0)
        # Delays that vary by more than an instruction's time reach beyond its neighbours.
        most_s = down_s.max(axis=0) + up_s
        higher_s = np.where(own_s.min(axis=0) <= most_s, most_s, higher_s)
        higher_s[is_after_request] = np.inf
        highest = np.minimum.reduceat(clocks[rows.row_of], self._firsts)[rows.stage]
        _, slowest_s = self._ranges.of(rows.row_of, highest, clocks)
        more_s: FloatArray = np.minimum(higher_s, slowest_s) * (1 - own_s / slowest_s)
        next_s = rows.times_s[rows.table + next_clocks]
        more_s *= np.maximum(next_s / own_s, 1.0)
        return more_s

    def _around_requests(self, clocks: IndexArray) -> tuple[BoolArray, BoolArray, IndexArray]:
        """Return what `early_requests` does around each instruction, by rows.

        Returns:
            True where a higher clock is requested from the instruction's begin; True where it was
            requested from an earlier one's; and the clock at which what is left of it may run.
        """
        rows, row_of = self._rows, self._rows.row_of
        in_order, time_s, ended_s = self._in_order(clocks)
        number = np.arange(len(in_order))[:, None]
        is_end = np.ones(in_order.shape, dtype=np.bool_)
        is_end[:-1] = in_order[1:] != in_order[:-1]
        is_end[list(rows.clocked.last)] = True
        # Of the instructions at one clock, one after the other, the last one.
        end = np.where(is_end, number, len(in_order))
        end = np.minimum.accumulate(end[::-1], axis=0)[::-1]
        is_before_up = np.take_along_axis(self._is_up(clocks)[row_of][self._following], end, axis=0)
        left_s = np.take_along_axis(ended_s, end, axis=0) - ended_s  # after the instruction
        lead_s = self._transitions.up_p95_s * (1 + _TOLERANCE)
        is_after_request = is_before_up & (left_s + time_s < lead_s)
        has_request = is_before_up & (left_s < lead_s) & ~is_after_request
        next_in_order = in_order[self._following]
        after_run = np.take_along_axis(next_in_order, end, axis=0)
        next_in_order = np.where(has_request, after_run, next_in_order)
        next_in_order[is_after_request] = in_order[is_after_request]
        in_rows = self._rows.instruction
        return has_request[in_rows], is_after_request[in_rows], next_in_order[in_rows]

    def num_unbounded(self, choices: IndexArray) -> IndexArray:
        """Return the number of reasons why a plan may exceed its time; shape (num_plans,).

        These are higher clocks with less computation at one clock before them, within the
        iteration, than their longest delay takes, instructions that take more than MAX_TIME_RATIO
        times as long at one of the stage's clocks as at another, and an iteration that becomes
        longer by more than MAX_LONGER since higher clocks are slower.
        """
        rows, clocks = self._rows, self._rows.clocks(choices)
        in_order, time_s, ended_s = self._in_order(clocks)
        # Computation at one clock up to each instruction's end, of sums over all before it.
        is_same = np.zeros(in_order.shape, dtype=np.bool_)
        is_same[1:] = in_order[1:] == in_order[:-1]
        is_same[self._firsts] = False
        begun_s = np.maximum.accumulate(np.where(is_same, 0.0, ended_s - time_s), axis=0)
        run_s = (ended_s - begun_s)[rows.clocked.before]
        needed_s = self._transitions.up_p95_s * (1 - _TOLERANCE)
        is_up = self._is_up(clocks)[rows.row_of]
        num: IndexArray = (is_up & (run_s < needed_s)).sum(axis=0)
        if not self._is_rising:
            at_once_s = self._windows_s(rows.times_s[rows.table + clocks])[1].max(axis=0)
            num += self.latest_s(choices) > at_once_s * (1 + MAX_LONGER)
        if self._has_large_ratios:
            lowest = np.maximum.reduceat(in_order, self._firsts)[rows.stage]
            highest = np.minimum.reduceat(in_order, self._firsts)[rows.stage]
            shortest_s, longest_s = self._ranges.of(rows.row_of, highest, lowest)
            num += (longest_s > MAX_TIME_RATIO * (1 + _TOLERANCE) * shortest_s).sum(axis=0)
        return num

    def _in_order(self, clocks: IndexArray) -> tuple[IndexArray, FloatArray, FloatArray]:
        """Return by instruction its clock, its time, and all times up to its end, s."""
        rows = self._rows
        in_order = clocks[rows.row_of]
        time_s: FloatArray = rows.times_s[rows.table[rows.row_of] + in_order]
        return in_order, time_s, np.cumsum(time_s, axis=0)

    def _lead_s(self, choices: IndexArray) -> FloatArray:
        """Return how long before the end of the instruction before each request is made, s."""
        rows, clocks = self._rows, self._rows.clocks(choices)
        before_s: FloatArray = rows.times_s[rows.table + clocks][rows.previous]
        down_s = np.minimum(self._transitions.down_p5_s, before_s)
        lead_s = np.where(self._is_up(clocks), self._transitions.up_p95_s, down_s)
        lead_s[self._settled] = 0.0
        return lead_s[rows.row_of].T

    def _is_up(self, clocks: IndexArray) -> BoolArray:
        is_up: BoolArray = clocks < clocks[self._rows.previous]
        is_up[self._settled] = False
        return is_up

    def _more_j(
        self,
        clocks: IndexArray,
        start_s: FloatArray,
        finish_s: FloatArray,
    ) -> FloatArray | float:
        """Return the energy of the time at higher clocks than planned, J."""
        times, rows = self._transitions, self._rows
        early_s, late_s = times.up_p95_s - times.up_p50_s, times.down_p50_s - times.down_p5_s
        if not (early_s or late_s or times.down_p5_s):
            return 0.0
        previous = rows.previous
        before, is_up = clocks[previous], self._is_up(clocks)
        before_s = rows.times_s[rows.table[previous] + before]
        after_s = times.down_p50_s - np.minimum(times.down_p5_s, before_s)
        is_down = clocks > before
        is_down[self._settled] = False
        busy_j = rows.energies_j - rows.times_s * rows.power_of_place_w
        # A higher clock: the end of the instruction before is computed at it.
        there = rows.table[previous] + before
        share = np.minimum(early_s / before_s, 1.0)
        more_j = busy_j[rows.table[previous] + clocks] - busy_j[there]
        total_j: FloatArray = np.where(is_up, share * more_j, 0.0).sum(axis=0)
        # A lower one: the begin of the instruction is computed at that before it.
        here = rows.table + before
        ended_s = finish_s[previous]
        ended_s[rows.first] -= finish_s.max(axis=0) + rows.tail_s
        waited_s = start_s - ended_s
        share = np.clip((after_s - waited_s) / rows.times_s[here], 0.0, 1.0)
        more_j = busy_j[here] - busy_j[rows.table + clocks]
        total_j += np.where(is_down, share * more_j, 0.0).sum(axis=0)
        return total_j


class _TimeRanges:
    """Shortest and longest time of each instruction at any clock from a higher to a lower clock.

    Args:
        times_s: per group and clock, time in s.
        group: per instruction, its group.
    """

    def __init__(self, times_s: Sequence[Sequence[float]], group: IndexArray) -> None:
        self._num_clocks = np.array([len(of_group) for of_group in times_s])[group]
        firsts = np.cumsum([0, *(len(of_group) ** 2 for of_group in times_s[:-1])])
        self._first = firsts[group]
        self._shortest_s, self._longest_s = (
            np.concatenate([_extremes_s(of_group, extreme).ravel() for of_group in times_s])
            for extreme in (np.minimum, np.maximum)
        )

    def of(
        self, row_of: IndexArray, highest: IndexArray, lowest: IndexArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return shortest and longest times by rows; shape (num_rows, num_plans).

        Args:
            row_of: per instruction, its row.
            highest: per row and plan, the highest clock, a lower index being a higher clock.
            lowest: per row and plan, the lowest clock.
        """
        first, num = np.empty_like(self._first), np.empty_like(self._num_clocks)
        first[row_of], num[row_of] = self._first, self._num_clocks
        places = first[:, None] + highest * num[:, None] + lowest
        return self._shortest_s[places], self._longest_s[places]


def _extremes_s(times_s: Sequence[float], extreme: np.ufunc) -> FloatArray:
    """Return the extreme of the times from a clock to a lower clock; above the diagonal only."""
    extremes_s = np.tile(np.array(times_s), (len(times_s), 1))
    for clock in range(len(times_s)):
        extremes_s[clock, clock:] = extreme.accumulate(extremes_s[clock, clock:])
    return extremes_s
