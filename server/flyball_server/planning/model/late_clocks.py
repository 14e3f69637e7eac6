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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_server.planning.model.array_dag import BoolArray, FloatArray, IndexArray
from flyball_server.planning.model.instruction_rows import ClockSequences, InstructionRows
from flyball_server.planning.model.late_passes import ClocksAhead, LatePasses, LateWindows
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
            least_period_s: time from an iteration's begin to the next one's, where that is
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
        """Return how many requests of each plan follow the stage's last request too soon.

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

    def _is_changed(self, choices: IndexArray) -> BoolArray:
        """Return True where a clock differs from the clock before; shape (num_plans, num)."""
        rows, clocks = self._rows, self._rows.clocks(choices)
        is_changed: BoolArray = clocks != clocks[rows.previous]
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

    def _passes(self, choices: IndexArray, delays_s: ArrayLike | None) -> LatePasses:
        rows, times = self._rows, self._transitions
        clocks = rows.clocks(choices)
        if delays_s is None:
            is_up = clocks < clocks[rows.previous]
            by_row_s = np.where(is_up, times.up_p50_s, times.down_p50_s)
        else:
            by_row_s = np.broadcast_to(delays_s, clocks.shape[::-1]).T[rows.instruction]
        ahead = None
        if self._requests:
            ahead = ClocksAhead(rows, clocks, self._requests, starts_settled=times.starts_settled)
        return LatePasses(rows, clocks, by_row_s, ahead)

    def _first(self, passes: LatePasses) -> LateWindows:
        """Return an iteration alone."""
        is_settled = self._transitions.starts_settled
        return passes.iterate(-np.inf if is_settled else -self._rows.tail_s)

    def _steady(self, passes: LatePasses, least_period_s: float) -> LateWindows:
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

    def _in_force(self, sequences: ClockSequences, windows: LateWindows) -> InForce:
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
