"""A pipeline's instructions level by level, for running iterations of many plans at once in numpy.

All instructions of a level are on different stages and wait for none of each other.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_server.planning.model.clocked_instructions import ClockedInstructions
from flyball_server.planning.model.dag import NONE, IndexArray
from flyball_server.planning.model.finish_times import FloatArray
from flyball_server.planning.model.pipeline_model import PipelineModel

# Of a dwell: sums in another order differ by rounding alone.
_DWELL_TOLERANCE = 1e-9

Ran = tuple[FloatArray, FloatArray, FloatArray]
"""Begins in s, durations in s and energies in J of iterations; shape (num_rows, num_plans)."""


@dataclass(frozen=True, kw_only=True)
class BatchRun:
    """One iteration of each plan, per instruction of `ClockedInstructions`.

    Attributes:
        start_s, duration_s: s; shape (num_plans, num_instructions).
        energy_j: energy without waiting in J; shape (num_plans, num_instructions).
        iteration_time_s: end of the last instruction, and the tail, in s; shape (num_plans,).
        total_energy_j: energy of an iteration in J; shape (num_plans,).
    """

    start_s: FloatArray
    duration_s: FloatArray
    energy_j: FloatArray
    iteration_time_s: FloatArray
    total_energy_j: FloatArray


@dataclass(frozen=True, kw_only=True)
class Level:
    """Instructions that wait for none of each other.

    Attributes:
        rows: their places in the order of levels.
        stage: per instruction, its stage.
        before, source: rows of its predecessors, or the row after the last.
        transfer_s: time until the input of the second is there, s; shape (num, 1).
        table: index of its time and energy at its stage's highest clock; shape (num, 1).
        is_first: whether it is the first of its stage; shape (num, 1).
    """

    rows: slice
    stage: IndexArray
    before: IndexArray
    source: IndexArray
    transfer_s: FloatArray
    table: IndexArray
    is_first: NDArray[np.bool_]


class InstructionRows:
    """Instructions in the order of levels: a row each.

    Args:
        model: the pipeline.

    Attributes:
        clocked: the instructions.
        levels: in order of time.
        row_of: per instruction, its row.
        first, last: per stage, the rows of its first and last instruction.
        previous: per row, the row before it on its stage; of a stage's first row its last.
        table: per row, index of its time and energy at its stage's highest clock; shape
            (num_rows, 1).
        times_s, energies_j: time in s and energy in J, by that index and clock.
        stage: per row, its stage.
        power_w: per row, waiting power of its stage, W; shape (num_rows, 1).
        power_of_place_w: the same by the index of `times_s`.
        waiting_power_w: that of all stages together, W.
        tail_s: part of an iteration after its last instruction, s.
    """

    def __init__(self, model: PipelineModel) -> None:
        self.clocked = clocked = model.clocked
        in_levels = np.concatenate([instructions for instructions, _, _ in clocked.dag.levels])
        self.row_of: IndexArray = np.empty_like(in_levels)
        self.row_of[in_levels] = np.arange(len(in_levels))
        self.first = self.row_of[list(clocked.first)]
        self.last = self.row_of[list(clocked.last)]
        self.stage = stage = np.array(clocked.dag.stage)[in_levels]
        self.previous = self.row_of[clocked.before][in_levels]
        self._node = np.array(clocked.node)[in_levels]
        self.times_s: FloatArray = np.concatenate([np.array(one) for one in clocked.times_s])
        self.energies_j: FloatArray = np.concatenate([np.array(one) for one in clocked.energies_j])
        self._clock_of_choice = np.concatenate([np.array(one) for one in clocked.clock_of_choice])
        first_choice = np.cumsum([0, *map(len, clocked.clock_of_choice)])
        self._first_choice = first_choice[np.array(clocked.group)[in_levels], None]
        first_time = np.cumsum([0, *map(len, clocked.times_s)])
        self.table = first_time[np.array(clocked.group)[in_levels], None]
        self.levels = _levels(clocked, self.row_of, self.table)
        power_w = np.array(model.stage_blocking_power_w)
        self.power_w = power_w[stage, None]
        self.power_of_place_w = np.empty_like(self.times_s)
        for row, begin in zip(self.power_w[:, 0], self.table[:, 0], strict=True):
            self.power_of_place_w[begin:] = row
        self.waiting_power_w = float(power_w.sum())
        self.tail_s = clocked.dag.tail_s
        self._num_within: dict[float, int] = {}

    def clocks(self, choices: IndexArray) -> IndexArray:
        """Return each instruction's clock in each plan; shape (num_rows, num_plans).

        Args:
            choices: per plan and node, an index into its operating points; shape
                (num_plans, num_nodes).
        """
        clocks: IndexArray = self._clock_of_choice[self._first_choice + choices.T[self._node]]
        return clocks

    def run_of(self, ran: Ran, more_j: FloatArray | float = 0.0) -> BatchRun:
        """Return iterations as instructions in their order.

        Args:
            ran: the iterations by rows.
            more_j: more energy of each plan than that of its instructions, J.
        """
        start_s, duration_s, energy_j = ran
        iteration_time_s = (start_s + duration_s).max(axis=0) + self.tail_s
        busy_j = (energy_j - self.power_w * duration_s).sum(axis=0) + more_j
        return BatchRun(
            start_s=start_s[self.row_of].T,
            duration_s=duration_s[self.row_of].T,
            energy_j=energy_j[self.row_of].T,
            iteration_time_s=iteration_time_s,
            total_energy_j=busy_j + iteration_time_s * self.waiting_power_w,
        )

    def most_within(self, time_s: float) -> int:
        """Return the most instructions, one after the other on a stage, that may end in a time."""
        if time_s not in self._num_within:
            self._num_within[time_s] = _most_within(self.clocked, time_s)
        return self._num_within[time_s]

    def first_delay_s(
        self, clocks: IndexArray, delays_s: tuple[FloatArray, FloatArray]
    ) -> FloatArray:
        """Return the delay of each stage's first clock, s; -inf where it does not change.

        Args:
            clocks: as `clocks` returns them.
            delays_s: delay of changes to a higher and to a lower clock in s, one for all or one
                per plan.
        """
        first, last = clocks[self.first], clocks[self.last]
        delay_s: FloatArray = np.where(first < last, *delays_s)
        delay_s[first == last] = -np.inf
        return delay_s


class PlanBatch(ABC):
    """Iterations of many plans of one pipeline whose clock changes take time.

    Plans are given as `choices`: per plan and node, an index into its operating points; shape
    (num_plans, num_nodes).

    Args:
        model: the pipeline.
    """

    def __init__(self, model: PipelineModel) -> None:
        self._rows = InstructionRows(model)

    @abstractmethod
    def judged(self, choices: IndexArray) -> tuple[BatchRun, FloatArray]:
        """Return an iteration of each plan at the median delays, and a time never exceeded, s."""

    @abstractmethod
    def estimated(self, choices: IndexArray) -> BatchRun:
        """Return an iteration of each plan with the delays that are likely its worst."""

    @property
    def judging_effort(self) -> int:
        """Approximate cost of `judged`, relative to one change on its way at a time."""
        return 1

    def num_unbounded(self, choices: IndexArray) -> IndexArray:
        """Return the number of reasons why a plan may exceed its time; shape (num_plans,)."""
        return np.zeros(len(choices), dtype=np.int64)

    def _lead_s(self, choices: IndexArray) -> FloatArray:
        """Return how long before the end of the instruction before each request is made, s.

        Returns:
            Shape (num_plans, num_instructions).
        """
        return np.zeros((len(choices), len(self._rows.row_of)))

    def num_switches(self, choices: IndexArray) -> IndexArray:
        """Return the clock changes of an iteration of each plan; shape (num_plans,).

        Args:
            choices: shape (num_plans, num_nodes).
        """
        num: IndexArray = self._is_changed(choices).sum(axis=1)
        return num

    def num_short_dwells(
        self,
        choices: IndexArray,
        run: BatchRun,
        dwell_s: float,
    ) -> IndexArray:
        """Return how many requests of each plan follow the stage's last one too soon.

        Args:
            choices: shape (num_plans, num_nodes).
            run: an iteration of each plan.
            dwell_s: least time between them, s.
        """
        num_short: IndexArray = np.zeros(len(choices), dtype=np.int64)
        is_changed, finish_s = self._is_changed(choices), run.start_s + run.duration_s
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

    def _is_changed(self, choices: IndexArray) -> NDArray[np.bool_]:
        """Return True where a clock differs from the one before; shape (num_plans, num)."""
        rows, clocks = self._rows, self._rows.clocks(choices)
        is_changed: NDArray[np.bool_] = clocks != clocks[rows.previous]
        return is_changed[rows.row_of].T


def replaced(before: Ran, now: Ran, is_late: NDArray[np.bool_] | np.bool_) -> Ran:
    """Return the new iteration of each plan that was late, and the old one of the others."""
    start_s, duration_s, energy_j = (
        np.where(is_late, new, old) for new, old in zip(now, before, strict=True)
    )
    return start_s, duration_s, energy_j


def _levels(clocked: ClockedInstructions, row_of: IndexArray, table: IndexArray) -> list[Level]:
    """Return the levels; `table` is by row."""
    dag, stage = clocked.dag, np.array(clocked.dag.stage)
    row_of = np.append(row_of, len(row_of))  # the last one stands for NONE
    levels: list[Level] = []
    begin = 0
    for instructions, before, source in dag.levels:
        rows = slice(begin, begin := begin + len(instructions))
        levels.append(
            Level(
                rows=rows,
                stage=stage[instructions],
                before=row_of[before],
                source=row_of[source],
                transfer_s=dag.input_delay_array_s[instructions],
                table=table[rows],
                is_first=(before == NONE)[:, None],
            )
        )
    return levels


def _most_within(clocked: ClockedInstructions, time_s: float) -> int:
    """Return the most instructions, one after the other on a stage, that may end within a time."""
    shortest_s = np.array([min(clocked.times_s[group]) for group in clocked.group])
    stage = np.array(clocked.dag.stage)
    most = 0
    for one in range(len(clocked.first)):
        of_stage_s = shortest_s[stage == one]
        num = len(of_stage_s)
        ends_s = np.cumsum(np.tile(of_stage_s, 2 + math.ceil(time_s / of_stage_s.sum())))
        begins_s = ends_s[:num] - of_stage_s
        within = np.searchsorted(ends_s, begins_s + time_s, side="left") - np.arange(num)
        most = max(most, int(within.max()))
    return most
