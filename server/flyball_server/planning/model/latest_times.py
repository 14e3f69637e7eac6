"""Latest end of iterations whose clocks change within a range of delays.

Each delay is between a least and a longest one, independently. An iteration's latest end is bounded
in one pass over intervals. Of each stage there is the interval in which the instruction before
ends, p, and for each change on its way the interval of its effect after p. An instruction that
begins at s ends later the later it begins and the slower its clocks are. So

- where it begins at p itself, it ends by the latest p plus its duration with each change as it
  is slowest: up at its latest, down at its earliest after p;
- where it waits for its input until S, by the latest S plus its duration with each change as it
  is slowest while p is anything up to S.

Where several clocks may be in force at a moment, the slowest of them counts.
"""

from __future__ import annotations

import numpy as np

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.model.array_dag import BoolArray, FloatArray, IndexArray
from flyball_server.planning.model.instruction_rows import ClockSequences, InstructionRows

# Share of an instruction that is a rounding error.
_NOTHING_LEFT = 1e-12


def latest_end_s(
    rows: InstructionRows, clocks: IndexArray, transitions: ClockTransitions
) -> FloatArray:
    """Return what the end of no iteration of a plan exceeds, s; shape (num_plans,).

    Delays are between the 5th and the 95th percentile of their direction, and the next iteration
    begins any time after the tail, unless first clocks are settled anyway.

    Args:
        rows: the instructions.
        clocks: clock of each instruction in each plan; shape (num_rows, num_plans).
        transitions: times of clock changes.
    """
    longest_s = max(transitions.up_p95_s, transitions.down_p95_s)
    intervals = _Intervals(rows, ClockSequences(rows, clocks, longest_s), transitions)
    if transitions.starts_settled:
        return intervals.end_s(is_settled=True)
    if not len(intervals.recent_s[0]):
        return intervals.end_s()
    intervals.end_s(is_settled=True)
    # The next iteration begins no earlier than the tail after a stage's last instruction.
    begin_s = np.maximum(intervals.recent_s[1] - rows.tail_s, 0.0)
    intervals.recent_s[0], intervals.recent_s[1] = -np.inf, begin_s
    end_s = intervals.end_s()
    goes_on = (intervals.recent_s[1] - rows.tail_s <= begin_s).all(axis=(0, 1))
    if goes_on.all():
        return end_s
    # Where changes take longer than iterations, they may be on their way for any time.
    intervals.recent_s[0], intervals.recent_s[1] = -np.inf, longest_s
    return np.where(goes_on, end_s, intervals.end_s())


class _Intervals:
    """Intervals of ends and effects of many plans.

    Attributes:
        recent_s: lowest and highest effect of each stage's last changes, after the end of its last
            instruction, s; shape (2, num_earlier, num_stages, num_plans).
    """

    def __init__(
        self, rows: InstructionRows, sequences: ClockSequences, times: ClockTransitions
    ) -> None:
        self._rows, self._sequences = rows, sequences
        ranges_s = ((times.up_p5_s, times.down_p5_s), (times.up_p95_s, times.down_p95_s))
        self._delays_s = np.array([np.where(sequences.is_up, *both) for both in ranges_s])
        # Of an iteration's first clock nothing is known but that it was requested before the tail.
        self._delays_s[0, rows.first] = -np.inf
        self._delays_s[1, rows.first] -= rows.tail_s
        shape = (2, sequences.num_earlier, len(rows.first), sequences.times_s.shape[-1])
        self.recent_s = np.full(shape, -np.inf)

    def end_s(self, *, is_settled: bool = False) -> FloatArray:
        """Return the latest end of an iteration after these changes, s; they become its last ones.

        Args:
            is_settled: true: each stage's first clock is in force as the iteration begins.
        """
        rows, delays_s, recent_s = self._rows, self._delays_s, self.recent_s
        if is_settled:
            delays_s = delays_s.copy()
            delays_s[:, rows.first] = -np.inf
        is_kept = ~self._sequences.is_changed
        ends_s = np.zeros((2, len(is_kept) + 1, is_kept.shape[1]))
        for level in rows.levels:
            cancellation_point()
            at, own_s = level.rows, delays_s[:, None, level.rows]
            effects_s = own_s
            if self._sequences.num_earlier:
                earlier_s = recent_s[:, :, level.stage]
                own_s = np.where(is_kept[at], earlier_s[:, -1:], own_s)
                effects_s = np.concatenate([earlier_s, own_s], axis=1)
            before_s, source_s = ends_s[:, level.before], ends_s[:, level.source]
            took_s = self._run(at, effects_s, before_s, source_s + level.transfer_s, ends_s)
            if self._sequences.num_earlier:
                recent_s[:, :, level.stage] = effects_s[:, 1:] - took_s[:, None]
        end_s: FloatArray = ends_s[1].max(axis=0)
        return end_s

    def _run(
        self,
        at: slice,
        effects_s: FloatArray,
        before_s: FloatArray,
        source_s: FloatArray,
        ends_s: FloatArray,
    ) -> FloatArray:
        """Set bounds of instructions' ends, s.

        Args:
            at: rows of the instructions.
            effects_s: bounds of their changes' effects after the end of the instruction before, s;
                shape (2, num_changes, num, num_plans).
            before_s: bounds of that end, s; shape (2, num, num_plans).
            source_s: bounds of the time at which the input is there, s.
            ends_s: bounds of ends; those of these instructions are set.

        Returns:
            Longest and shortest time from the end of the instruction before to its end, s.
        """
        (first_s, last_s), (ready_s, late_s) = before_s, source_s
        times_s = self._sequences.times_s[:, at]

        def extremes_s(input_s: FloatArray, *, is_slow: bool) -> FloatArray:
            """Extreme durations of instructions that wait for no input, and for one, s."""
            # The instruction before ends at any time up to the input's being there.
            after_s = (first_s - input_s, np.minimum(last_s, input_s) - input_s)
            waiting_s = effects_s + np.array(after_s)[:, None]
            return _extreme_s(times_s, np.stack([effects_s, waiting_s], 2), is_slow=is_slow)

        fast_s, fast_after_wait_s = extremes_s(ready_s, is_slow=False)
        slow_s, slow_after_wait_s = extremes_s(late_s, is_slow=True)
        no_wait_s = np.where(last_s >= ready_s, np.maximum(first_s, ready_s) + fast_s, np.inf)
        waited_s = np.where(first_s < ready_s, ready_s + fast_after_wait_s, np.inf)
        np.minimum(no_wait_s, waited_s, out=ends_s[0, at])
        may_wait = first_s < late_s
        waited_s = np.where(may_wait, late_s + slow_after_wait_s, -np.inf)
        np.maximum(last_s + slow_s, waited_s, out=ends_s[1, at])
        waited_s = np.where(ready_s > last_s, ready_s - last_s + fast_after_wait_s, 0.0)
        shortest_s = np.maximum(fast_s, waited_s)
        waited_s = np.where(may_wait, late_s - first_s + slow_after_wait_s, 0.0)
        return np.array([np.maximum(slow_s, waited_s), shortest_s])


def _extreme_s(times_s: FloatArray, effects_s: FloatArray, *, is_slow: bool) -> FloatArray:
    """Return the shortest or the longest durations of instructions, s; shape (num, num_plans).

    Args:
        times_s: times at the clock before all changes and at each change's, s; shape
            (1 + num_changes, num, num_plans).
        effects_s: bounds of each change's effect after the instruction's begin, s; shape
            (2, num_changes, any, num, num_plans).
        is_slow: the longest ones.
    """
    if len(times_s) == 2:
        old_s: FloatArray = times_s[0]
        own_s: FloatArray = times_s[1]
        is_least: BoolArray = own_s > old_s if is_slow else own_s <= old_s
        least_s: FloatArray = effects_s[0, 0]
        most_s: FloatArray = effects_s[1, 0]
        effect_s: FloatArray = np.where(is_least, least_s, most_s)
        past_s: FloatArray = np.minimum(np.maximum(effect_s, 0.0), old_s)
        extreme_s: FloatArray = own_s + past_s * (1 - own_s / old_s)
        return extreme_s
    # A moment's clock is that of the newest change that is in force for certain, or of a
    # newer one that may be.
    number = np.arange(len(times_s))[:, None, None, None]
    worst_s = np.maximum if is_slow else np.minimum
    shape = effects_s.shape[2:]
    ends_s = np.sort(np.maximum(effects_s, 0.0).reshape(-1, *shape), axis=0)
    # The clock before all changes is in force from the outset.
    base_s = np.full((2, 1, *shape), -np.inf)
    effects_s = np.concatenate([base_s, effects_s], axis=1)
    begin_s, duration_s, left = np.zeros(shape), np.zeros(shape), np.ones(shape)
    for end_s in (*ends_s, np.full(shape, np.inf)):
        if (end_s == begin_s).all():
            continue
        newest = np.where(effects_s[1] <= begin_s, number, 0).max(axis=0)
        may_be = (number == newest) | (number > newest) & (effects_s[0] <= begin_s)
        of_clocks_s = np.where(may_be, times_s[:, None], -np.inf if is_slow else np.inf)
        time_s = worst_s.reduce(of_clocks_s, axis=0)
        past_s = np.minimum(end_s - begin_s, left * time_s)
        duration_s += past_s
        left -= past_s / time_s
        if (left <= _NOTHING_LEFT).all():
            break
        begin_s = end_s
    return duration_s
