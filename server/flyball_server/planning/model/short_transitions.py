"""Iterations of many plans at once under delays shorter than every instruction.

At most one change is then on its way, and only into the instruction that requested it: the clock
before an instruction is that of the one before it, and all that does not depend on begins and ends
is worked out for all instructions at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.model.dag import IndexArray
from flyball_server.planning.model.finish_times import FloatArray
from flyball_server.planning.model.transition_rows import InstructionRows, Ran, replaced
from flyball_server.planning.model.transitions import NUM_ITERATIONS


class ShortTransitions:
    """Iterations of many plans whose clocks change before the instruction ends.

    Args:
        rows: the instructions.
        clocks: clock of each instruction in each plan; shape (num_rows, num_plans).
        starts_settled: whether each stage's first clock is in force as an iteration begins.
    """

    def __init__(self, rows: InstructionRows, clocks: IndexArray, *, starts_settled: bool) -> None:
        self._rows, self._clocks = rows, clocks
        before = clocks[rows.previous]
        if starts_settled:
            before[rows.first] = clocks[rows.first]
        self._is_up = clocks < before
        own, old = rows.table + clocks, rows.table + before
        self._own_s: FloatArray = rows.times_s[own]
        self._old_s: FloatArray = rows.times_s[old]
        # A second at the clock before makes the instruction so much longer.
        self._longer: FloatArray = 1 - self._own_s / self._old_s
        self._own_j: FloatArray = rows.energies_j[own]
        self._more_w: FloatArray = (rows.energies_j[old] - self._own_j) / self._old_s

    def run(self, up_s: FloatArray, down_s: FloatArray, requested_s: FloatArray | float) -> Ran:
        """Return begins in s, durations in s and energies in J; shape (num_rows, num_plans).

        Args:
            up_s: delay of changes to a higher clock in s, one for all or one per plan.
            down_s: likewise to a lower clock.
            requested_s: when each stage's first clock was requested, s; one for all, or shape
                (num_stages, num_plans).
        """
        delay_s = np.where(self._is_up, up_s, down_s)
        delay_s[self._rows.first] += requested_s
        shape = self._clocks.shape
        finish_s = np.zeros((shape[0] + 1, shape[1]))  # the last row stands for NONE
        start_s, past_s = np.empty(shape), np.empty(shape)
        for level in self._rows.levels:
            cancellation_point()
            at = level.rows
            free_s = finish_s[level.before]
            input_s = finish_s[level.source] + level.transfer_s
            begin_s = np.maximum(free_s, input_s, out=start_s[at])
            free_s += delay_s[at]
            old_s = self._cut(at, np.subtract(free_s, begin_s, out=past_s[at]))
            np.multiply(old_s, self._longer[at], out=free_s)
            free_s += begin_s
            np.add(free_s, self._own_s[at], out=finish_s[at])
        return (
            start_s,
            self._own_s + past_s * self._longer,
            self._own_j + past_s * self._more_w,
        )

    def latest_s(self, up_s: tuple[float, float], down_s: tuple[float, float]) -> FloatArray:
        """Return the bound of an iteration's time, s; shape (num_plans,).

        Args:
            up_s: least and longest delay of changes to a higher clock, s.
            down_s: likewise to a lower clock.
        """
        least_s, most_s = (np.where(self._is_up, *both) for both in zip(up_s, down_s, strict=True))
        # Of an iteration's first clock nothing is known but that it was requested before the tail.
        least_s[self._rows.first] = -np.inf
        most_s[self._rows.first] -= self._rows.tail_s
        is_slower = self._longer < 0  # at its own clock than at the one before
        slow_delay_s = np.where(is_slower, least_s, most_s)
        fast_delay_s = np.where(is_slower, most_s, least_s)
        slow_s, fast_s = (
            self._duration_s(slice(None), delay_s.copy())
            for delay_s in (slow_delay_s, fast_delay_s)
        )
        ends = np.zeros((2, self._clocks.shape[0] + 1, self._clocks.shape[1]))
        for level in self._rows.levels:
            cancellation_point()
            at = level.rows
            first_s, last_s = before = ends[0, level.before], ends[1, level.before]
            ready_s, late_s = ends[:, level.source] + level.transfer_s
            # Where it does not wait for its input, and where it does.
            straight_s = np.maximum(first_s, ready_s) + fast_s[at]
            straight_s[last_s < ready_s] = np.inf
            waited_s = self._waited_s(at, ~is_slower[at], before, ready_s, fast_delay_s[at])
            waited_s[first_s >= ready_s] = np.inf
            np.minimum(straight_s, waited_s, out=ends[0, at])
            waited_s = self._waited_s(at, is_slower[at], before, late_s, slow_delay_s[at])
            waited_s[first_s >= late_s] = -np.inf
            np.maximum(last_s + slow_s[at], waited_s, out=ends[1, at])
        end_s: FloatArray = ends[1].max(axis=0)
        return end_s

    def _cut(self, at: slice, past_s: FloatArray) -> FloatArray:
        """Cut times at the clock before to what they can be, in place."""
        np.maximum(past_s, 0.0, out=past_s)
        return np.minimum(past_s, self._old_s[at], out=past_s)

    def _duration_s(self, at: slice, past_s: FloatArray) -> FloatArray:
        """Return durations in s whose change takes effect so long after the begin, s."""
        duration_s: FloatArray = self._cut(at, past_s)
        duration_s *= self._longer[at]
        duration_s += self._own_s[at]
        return duration_s

    def _waited_s(
        self,
        at: slice,
        is_requested_first: NDArray[np.bool_],
        before: tuple[FloatArray, FloatArray],
        input_s: FloatArray,
        delay_s: FloatArray,
    ) -> FloatArray:
        """Return ends of instructions that wait for their input, s.

        Args:
            at: rows of the instructions.
            is_requested_first: true: the instruction before ends at its earliest; else its latest.
            before: bounds of that end, s.
            input_s: begin of the instructions, s.
            delay_s: delay of their changes, s.
        """
        first_s, last_s = before
        requested_s = np.where(is_requested_first, first_s, np.minimum(last_s, input_s))
        waited_s = self._duration_s(at, requested_s - input_s + delay_s)
        waited_s += input_s
        return waited_s


def run_short(
    rows: InstructionRows,
    clocks: IndexArray,
    delays_s: tuple[FloatArray, FloatArray],
    *,
    starts_settled: bool,
    is_first: bool,
) -> Ran:
    """Return an iteration of each plan, after others of the same plan.

    Args:
        rows: the instructions.
        clocks: clock of each instruction in each plan; shape (num_rows, num_plans).
        delays_s: delay of changes to a higher and to a lower clock in s, one for all or one per
            plan.
        starts_settled: whether each stage's first clock is in force as an iteration begins.
        is_first: one iteration alone, whose first clocks are requested as it begins, unless they
            are settled anyway.
    """
    if is_first and not starts_settled:
        return ShortTransitions(rows, clocks, starts_settled=False).run(*delays_s, -rows.tail_s)
    ran = ShortTransitions(rows, clocks, starts_settled=True).run(*delays_s, 0.0)
    if starts_settled:
        return ran
    short = ShortTransitions(rows, clocks, starts_settled=False)
    first_delay_s, is_late = rows.first_delay_s(clocks, delays_s), np.bool_(True)
    for _ in range(NUM_ITERATIONS - 1):
        start_s, duration_s, _ = ran
        finish_s = start_s + duration_s
        requested_s = finish_s[rows.last] - finish_s.max(axis=0) - rows.tail_s
        is_late = is_late & (requested_s + first_delay_s > start_s[rows.first]).any(axis=0)
        if not is_late.any():
            break
        ran = replaced(ran, short.run(*delays_s, requested_s), is_late)
    return ran
