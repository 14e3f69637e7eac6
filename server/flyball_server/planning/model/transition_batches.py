"""Iterations of many plans at once whose clocks change late, in numpy.

As `transitions.py` runs one plan, instruction by instruction, this runs many, level by level of
the DAG: all instructions of a level are on different stages and wait for none of each other. With
exact delays both give the same times.

A plan must also hold where each delay is anything between a least and a longest one. Its latest
end is bounded in one pass over intervals. Of each stage there is the interval in which the
instruction before ends, p, and for each change on its way the interval of its effect after p. An
instruction that begins at s ends later the later it begins and the slower its clocks are. So

- where it begins at p itself, it ends by the latest p plus its duration with each change as it
  is slowest: up at its latest, down at its earliest after p;
- where it waits for its input until S, by the latest S plus its duration with each change as it
  is slowest while p is anything up to S.

Where several clocks may be in force at a moment, the slowest of them counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.model.dag import IndexArray
from flyball_server.planning.model.finish_times import FloatArray
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.short_transitions import ShortTransitions, run_short
from flyball_server.planning.model.transition_rows import (
    BatchRun,
    Level,
    PlanBatch,
    Ran,
    replaced,
)
from flyball_server.planning.model.transitions import NUM_ITERATIONS

# Share of an instruction that is a rounding error.
_NOTHING_LEFT = 1e-12


@dataclass(frozen=True, kw_only=True)
class _Clocks:
    """Clocks of some stages, and the changes on their way, in the order of their requests.

    There is room for as many changes as can be on their way at once. One that took effect long
    ago, or none, is one that took effect before everything else.

    Attributes:
        base: clock before all these changes; shape (num_stages, num_plans).
        clocks: clock of each change; the last one's was requested last; shape
            (num_changes, num_stages, num_plans).
        effects_s: its time of effect, or the bounds of that; shape
            (num_bounds, num_changes, num_stages, num_plans).
    """

    base: IndexArray
    clocks: IndexArray
    effects_s: FloatArray

    @classmethod
    def settled(cls, clock: IndexArray, num_changes: int, num_bounds: int) -> _Clocks:
        """Return stages at these clocks, with no change on its way."""
        clocks = np.repeat(clock[None], num_changes, axis=0)
        effects_s = np.full((num_bounds, *clocks.shape), -np.inf)
        return cls(base=clock.copy(), clocks=clocks, effects_s=effects_s)

    def of(self, stage: IndexArray) -> _Clocks:
        """Return a copy of these stages' part."""
        return _Clocks(
            base=self.base[stage],
            clocks=self.clocks[:, stage],
            effects_s=self.effects_s[:, :, stage],
        )

    def put(self, stage: IndexArray, clocks: _Clocks) -> None:
        """Replace these stages' part."""
        self.base[stage] = clocks.base
        self.clocks[:, stage] = clocks.clocks
        self.effects_s[:, :, stage] = clocks.effects_s

    def request(self, clock: IndexArray, effect_s: FloatArray) -> None:
        """Add a change where another clock was requested last.

        Args:
            clock: shape (num_stages, num_plans).
            effect_s: shape (num_bounds, num_stages, num_plans).
        """
        is_new = clock != self.clocks[-1]
        np.copyto(self.base, self.clocks[0], where=is_new)
        for one, later in pairwise(self.clocks):
            np.copyto(one, later, where=is_new)
        self.clocks[-1] = clock
        for effects_s, newest_s in zip(self.effects_s, effect_s, strict=True):
            for one_s, later_s in pairwise(effects_s):
                np.copyto(one_s, later_s, where=is_new)
            np.copyto(effects_s[-1], newest_s, where=is_new)


class TransitionBatch(PlanBatch):
    """Iterations of many plans of one pipeline under late clock changes.

    Args:
        model: the pipeline.
        transitions: times of clock changes; None: the model's own.
    """

    def __init__(self, model: PipelineModel, transitions: ClockTransitions | None = None) -> None:
        super().__init__(model)
        self._transitions = transitions or model.transitions or ClockTransitions.exact(0.0)

    def run(
        self,
        choices: IndexArray,
        *,
        up_s: FloatArray | float | None = None,
        down_s: FloatArray | float | None = None,
        is_first: bool = False,
    ) -> BatchRun:
        """Return an iteration of each plan with exact delays, as `TransitionSimulator.run` does.

        Args:
            choices: per plan and node, an index into its operating points; shape
                (num_plans, num_nodes).
            up_s: delay of changes to a higher clock in s, one for all or one per plan; None: the
                median.
            down_s: likewise of changes to a lower clock.
            is_first: one iteration alone, whose first clocks are requested as it begins, unless
                they are settled anyway.
        """
        times, clocks = self._transitions, self._rows.clocks(choices)
        delays_s = (
            np.asarray(times.up_p50_s if up_s is None else up_s),
            np.asarray(times.down_p50_s if down_s is None else down_s),
        )
        num_changes = 1 + self._rows.most_within(float(np.maximum(*delays_s).max()))
        rows, starts_settled = self._rows, times.starts_settled
        if num_changes == 1:
            ran = run_short(
                rows, clocks, delays_s, starts_settled=starts_settled, is_first=is_first
            )
        else:
            ran = self._long_run(clocks, delays_s, is_first=is_first)
        return rows.run_of(ran)

    def judged(self, choices: IndexArray) -> tuple[BatchRun, FloatArray]:
        """Return iterations at the median delays, alone, and bounds of their times, s."""
        run = self.run(choices, is_first=True)
        is_exact = self._transitions.exact_s is not None
        return run, run.iteration_time_s if is_exact else self.latest_time_s(choices)

    def estimated(self, choices: IndexArray) -> BatchRun:
        """Return iterations, alone, with changes up at their latest and down at their earliest."""
        times = self._transitions
        return self.run(choices, up_s=times.up_p95_s, down_s=times.down_p5_s, is_first=True)

    @property
    def judging_effort(self) -> int:
        """Approximate cost of `judged`, relative to one change on its way at a time."""
        times = self._transitions
        if times.exact_s is not None:
            return 1
        return (1 + self._rows.most_within(max(times.up_p95_s, times.down_p95_s))) ** 2

    def latest_time_s(self, choices: IndexArray) -> FloatArray:
        """Return what no iteration of a plan exceeds, s; shape (num_plans,).

        Each delay is between the 5th and the 95th percentile of its direction, independently, and
        the next iteration begins any time after the tail, unless first clocks are settled anyway.

        Args:
            choices: shape (num_plans, num_nodes).
        """
        times, clocks, rows = self._transitions, self._rows.clocks(choices), self._rows
        longest_s = max(times.up_p95_s, times.down_p95_s)
        num_changes = 1 + rows.most_within(longest_s)
        if num_changes == 1:
            short = ShortTransitions(rows, clocks, starts_settled=times.starts_settled)
            up_s, down_s = (times.up_p5_s, times.up_p95_s), (times.down_p5_s, times.down_p95_s)
            return short.latest_s(up_s, down_s) + rows.tail_s
        at = _Clocks.settled(clocks[rows.first], num_changes, num_bounds=2)
        latest_s = self._latest_s(clocks, at)
        if times.starts_settled:
            return latest_s + rows.tail_s
        # The next iteration begins no earlier than the tail after a stage's last instruction.
        begin_s = np.maximum(at.effects_s[1] - rows.tail_s, 0.0)
        at.effects_s[0], at.effects_s[1] = -np.inf, begin_s
        latest_s = self._latest_s(clocks, at)
        goes_on = (at.effects_s[1] - rows.tail_s <= begin_s).all(axis=(0, 1))
        if goes_on.all():
            return latest_s + rows.tail_s
        # Where changes take longer than iterations, they may be on their way for any time.
        at.effects_s[0], at.effects_s[1] = -np.inf, longest_s
        return np.where(goes_on, latest_s, self._latest_s(clocks, at)) + rows.tail_s

    def _long_run(
        self, clocks: IndexArray, delays_s: tuple[FloatArray, FloatArray], *, is_first: bool
    ) -> Ran:
        """Return iterations where changes may be on their way for longer than an instruction."""
        rows, max_delay_s = self._rows, np.maximum(*delays_s)
        num_changes = 1 + rows.most_within(float(max_delay_s.max()))
        run = _Windows(num_changes, clocks.shape)
        starts_settled = self._transitions.starts_settled
        begins_at = clocks[rows.last if is_first and not starts_settled else rows.first]
        at = _Clocks.settled(begins_at, num_changes, num_bounds=1)
        self._run(clocks, delays_s, at, np.full(at.base.shape, -rows.tail_s), run)
        ran = run.start_s, run.duration_s, self._energies_of(clocks, run)
        if starts_settled or is_first:
            return ran
        ran = run.start_s.copy(), run.duration_s.copy(), ran[2]
        first_delay_s, is_late = rows.first_delay_s(clocks, delays_s), np.bool_(True)
        for _ in range(NUM_ITERATIONS - 1):
            period_s = run.finish_s.max(axis=0) + rows.tail_s
            at.effects_s[...] -= period_s
            requested_s = run.finish_s[rows.last] - period_s
            # No change is on its way for longer than the newest one, which overtakes others.
            latest_s = np.maximum(at.effects_s[0, -1], requested_s + first_delay_s)
            is_late = is_late & (latest_s > run.start_s[rows.first]).any(axis=0)
            if not is_late.any():
                break
            self._run(clocks, delays_s, at, requested_s, run)
            now = run.start_s, run.duration_s, self._energies_of(clocks, run)
            ran = replaced(ran, now, is_late)
        return ran

    def _run(
        self,
        clocks: IndexArray,
        delays_s: tuple[FloatArray, FloatArray],
        at: _Clocks,
        requested_s: FloatArray,
        run: _Windows,
    ) -> None:
        """Run an iteration; `at` is of its begin, and then of its end.

        Args:
            clocks: shape (num_rows, num_plans).
            delays_s: up and down.
            at: the stages.
            requested_s: when each stage's first clock was requested, s; shape
                (num_stages, num_plans).
            run: filled.
        """
        finish_s = run.finish_s
        own_s: FloatArray = self._rows.times_s[self._rows.table + clocks]
        for level in self._rows.levels:
            cancellation_point()
            clock, here = clocks[level.rows], at.of(level.stage)
            free_s = finish_s[level.before]
            start_s = np.maximum(free_s, finish_s[level.source] + level.transfer_s)
            effect_s = np.where(clock < here.clocks[-1], *delays_s)
            effect_s += np.where(level.is_first, requested_s[level.stage], free_s)
            here.request(clock, effect_s[None])
            if len(here.clocks) > 1:
                # One that a later request overtakes has no part in anything.
                earlier_s, last_s = here.effects_s[0, :-1], here.effects_s[0, -1]
                np.minimum(earlier_s, last_s, out=earlier_s)
            duration_s = self._compute(level, start_s, here, own_s[level.rows], run)
            run.start_s[level.rows], run.duration_s[level.rows] = start_s, duration_s
            np.add(start_s, duration_s, out=finish_s[level.rows])
            at.put(level.stage, here)

    def _compute(
        self, level: Level, start_s: FloatArray, at: _Clocks, own_s: FloatArray, run: _Windows
    ) -> FloatArray:
        """Return durations in s, and fill in the shares at clocks before.

        Args:
            level: the instructions.
            start_s: their begins, s; shape (num, num_plans).
            at: their stages.
            own_s: their times at their own clocks, s.
            run: shares and places of these are filled.
        """
        now_s, left, clock = start_s, np.float64(1.0), at.base
        for change, next_clock in enumerate(at.clocks):
            place = level.table + clock
            time_s = self._rows.times_s[place]
            past_s = np.maximum(at.effects_s[0, change] - now_s, 0.0)
            past_s = np.minimum(past_s, left * time_s, out=past_s)
            share = past_s / time_s
            run.shares[change, level.rows], run.places[change, level.rows] = share, place
            left = left - share
            now_s = now_s + past_s
            clock = next_clock
        duration_s: FloatArray = (now_s - start_s) + left * own_s
        return duration_s

    def _energies_of(self, clocks: IndexArray, run: _Windows) -> FloatArray:
        """Return each instruction's energy, J; shape (num_rows, num_plans)."""
        left = 1 - run.shares.sum(axis=0)
        energy_j: FloatArray = left * self._rows.energies_j[self._rows.table + clocks]
        energy_j += (run.shares * self._rows.energies_j[run.places]).sum(axis=0)
        return energy_j

    def _latest_s(self, clocks: IndexArray, at: _Clocks) -> FloatArray:
        """Return the bound of an iteration's time; `at` is of its begin, and then of its end.

        Effects are relative to the end of the instruction before; bounds are lowest and highest.
        """
        times = self._transitions
        up_s, down_s = (times.up_p5_s, times.up_p95_s), (times.down_p5_s, times.down_p95_s)
        earliest_s = np.zeros((clocks.shape[0] + 1, clocks.shape[1]))
        latest_s = np.zeros_like(earliest_s)
        for level in self._rows.levels:
            cancellation_point()
            clock, here = clocks[level.rows], at.of(level.stage)
            is_up = clock < here.clocks[-1]
            delays_s = np.array([np.where(is_up, *both) for both in zip(up_s, down_s, strict=True)])
            # Of an iteration's first clock nothing is known but that it was requested before the
            # tail.
            np.copyto(delays_s[0], -np.inf, where=level.is_first)
            np.subtract(delays_s[1], self._rows.tail_s, out=delays_s[1], where=level.is_first)
            here.request(clock, delays_s)
            before = earliest_s[level.before], latest_s[level.before]
            source = (
                earliest_s[level.source] + level.transfer_s,
                latest_s[level.source] + level.transfer_s,
            )
            low_s, high_s = self._interval(level, here, before, source)
            earliest_s[level.rows], latest_s[level.rows] = low_s, high_s
            at.put(level.stage, here)
        end_s: FloatArray = latest_s.max(axis=0)
        return end_s

    def _interval(
        self,
        level: Level,
        at: _Clocks,
        before: tuple[FloatArray, FloatArray],
        source: tuple[FloatArray, FloatArray],
    ) -> tuple[FloatArray, FloatArray]:
        """Return bounds of the instructions' ends, s, and make effects relative to these.

        Args:
            level: the instructions.
            at: their stages.
            before: bounds of the end of the instruction before, s.
            source: bounds of the end of the one that makes the input, s.
        """
        (first_s, last_s), (ready_s, late_s) = before, source
        effects_s = at.effects_s
        # Waiting for the input, the instruction before ends at any time up to its being there.
        waiting = [
            np.array(
                [
                    effects_s[0] + (first_s - input_s),
                    effects_s[1] + (np.minimum(last_s, input_s) - input_s),
                ]
            )
            for input_s in (ready_s, late_s)
        ]
        base_s: FloatArray = self._rows.times_s[level.table + at.base]
        times_s: FloatArray = self._rows.times_s[level.table + at.clocks]
        # Both at once, side by side.
        base_s, times_s = np.tile(base_s, 2), np.tile(times_s, 2)
        (fast_s, fast_after_wait_s), (slow_s, slow_after_wait_s) = (
            np.split(
                _extreme_s(
                    base_s, times_s, np.concatenate([effects_s, after], axis=-1), is_slow=is_slow
                ),
                2,
                axis=-1,
            )
            for after, is_slow in zip(waiting, (False, True), strict=True)
        )
        no_wait_s = np.where(last_s >= ready_s, np.maximum(first_s, ready_s) + fast_s, np.inf)
        low_s = np.minimum(
            no_wait_s, np.where(first_s < ready_s, ready_s + fast_after_wait_s, np.inf)
        )
        may_wait = first_s < late_s
        high_s = np.maximum(
            last_s + slow_s, np.where(may_wait, late_s + slow_after_wait_s, -np.inf)
        )
        shortest_s = np.maximum(
            fast_s, np.where(ready_s > last_s, ready_s - last_s + fast_after_wait_s, 0.0)
        )
        longest_s = np.maximum(
            slow_s, np.where(may_wait, late_s - first_s + slow_after_wait_s, 0.0)
        )
        effects_s[0] -= longest_s
        effects_s[1] -= shortest_s
        return low_s, high_s


class _Windows:
    """Windows of an iteration, by row; `finish_s` has one more row, of zeros.

    `shares` are those that run at the clocks before, and `places` where these clocks' times and
    energies are; shape of both (num_changes, num_rows, num_plans).
    """

    def __init__(self, num_changes: int, shape: tuple[int, ...]) -> None:
        self.start_s, self.duration_s = np.zeros(shape), np.zeros(shape)
        self.finish_s = np.zeros((shape[0] + 1, shape[1]))
        self.shares = np.zeros((num_changes, *shape))
        self.places = np.zeros((num_changes, *shape), dtype=np.int64)


def _extreme_s(
    base_s: FloatArray, times_s: FloatArray, effects_s: FloatArray, *, is_slow: bool
) -> FloatArray:
    """Return the shortest or the longest durations of instructions, s.

    Args:
        base_s: times at the clocks before all changes, s.
        times_s: times at each change's clock, s; shape (num_changes, num, num_plans).
        effects_s: bounds of each change's effect after the instruction's begin, s.
        is_slow: the longest ones.
    """
    # A moment's clock is that of the newest change that is in force for certain, or of a
    # newer one that may be.
    number = np.arange(len(times_s))[:, None, None]
    worst_s = np.maximum if is_slow else np.minimum
    none_s = -np.inf if is_slow else np.inf
    ends_s = np.sort(np.maximum(effects_s, 0.0).reshape(-1, *base_s.shape), axis=0)
    begin_s, duration_s = np.zeros(base_s.shape), np.zeros(base_s.shape)
    left = np.ones(base_s.shape)
    for end_s in (*ends_s, np.full(base_s.shape, np.inf)):
        if (end_s == begin_s).all():
            continue
        is_certain = effects_s[1] <= begin_s
        newest = np.where(is_certain, number, -1).max(axis=0)
        may_be = (number == newest) | (number > newest) & (effects_s[0] <= begin_s)
        time_s = worst_s.reduce(np.where(may_be, times_s, none_s), axis=0)
        time_s = worst_s(time_s, np.where(newest < 0, base_s, none_s))
        past_s = np.minimum(end_s - begin_s, left * time_s)
        duration_s += past_s
        left -= past_s / time_s
        if (left <= _NOTHING_LEFT).all():
            break
        begin_s = end_s
    return duration_s
