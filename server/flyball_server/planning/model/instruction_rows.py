"""A pipeline's instructions level by level, to run iterations of many plans at once in numpy.

All instructions of a level are on different stages and wait for none of each other. A row is an
instruction's place in the order of levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flyball_server.planning.model.array_dag import BoolArray, FloatArray, IndexArray
from flyball_server.planning.model.clocked_instructions import ClockedInstructions
from flyball_server.planning.model.pipeline_model import PipelineModel


@dataclass(frozen=True, kw_only=True)
class Level:
    """Instructions that wait for none of each other."""

    #: Rows of the instructions.
    rows: slice
    #: Stage of each instruction.
    stage: IndexArray
    #: Row of the instruction before on the stage, or the row after the last.
    before: IndexArray
    #: Row of the instruction that makes the input, or the row after the last.
    source: IndexArray
    #: Time from that instruction's end until the input is there, s; shape (num, 1).
    transfer_s: FloatArray


class InstructionRows:
    """Instructions in the order of levels, with their times and energies.

    Args:
        model: the pipeline.

    Attributes:
        clocked: the instructions.
        levels: in order of time.
        row_of: per instruction, its row.
        instruction: per row, its instruction.
        stage: per row, its stage.
        first, last: per stage, the rows of its first and last instruction.
        previous: per row, the row before it on its stage; of a stage's first row its last.
        table: per row, index of its time and energy at its stage's highest clock; shape
            (num_rows, 1).
        times_s, energies_j: time in s and energy in J, by that index and clock.
        power_w: per row, waiting power of its stage, W; shape (num_rows, 1).
        power_of_place_w: the same by the index of `times_s`.
        waiting_power_w: waiting power of all stages together, W.
        tail_s: part of an iteration outside its instructions, s.
    """

    def __init__(self, model: PipelineModel) -> None:
        self.clocked = clocked = model.clocked
        levels = clocked.dag.levels
        self.instruction = np.concatenate([instructions for instructions, _, _ in levels])
        self.row_of: IndexArray = np.argsort(self.instruction)
        self.first = self.row_of[list(clocked.first)]
        self.last = self.row_of[list(clocked.last)]
        self.stage = np.array(clocked.dag.stage)[self.instruction]
        self.previous = self.row_of[clocked.before][self.instruction]
        self._node = np.array(clocked.node)[self.instruction]
        group = np.array(clocked.group)[self.instruction]
        self.times_s: FloatArray = np.concatenate([np.array(values) for values in clocked.times_s])
        self.energies_j: FloatArray = np.concatenate(
            [np.array(values) for values in clocked.energies_j]
        )
        self._clock_of_choice = np.concatenate(
            [np.array(values) for values in clocked.clock_of_choice]
        )
        self._first_choice = _begins(clocked.clock_of_choice)[group, None]
        self.table = _begins(clocked.times_s)[group, None]
        ends = np.cumsum([len(instructions) for instructions, _, _ in levels])
        row_or_none = np.append(self.row_of, len(self.row_of))  # the last value stands for NONE
        self.levels = [
            Level(
                rows=slice(int(end) - len(instructions), int(end)),
                stage=self.stage[end - len(instructions) : end],
                before=row_or_none[before],
                source=row_or_none[source],
                transfer_s=clocked.dag.input_delay_array_s[instructions],
            )
            for (instructions, before, source), end in zip(levels, ends, strict=True)
        ]
        power_w = np.array(model.stage_blocking_power_w)
        self.power_w = power_w[self.stage, None]
        of_group_w = np.zeros(len(clocked.times_s))
        of_group_w[group] = power_w[self.stage]
        self.power_of_place_w = np.repeat(of_group_w, [*map(len, clocked.times_s)])
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

    def before(self, num: int) -> IndexArray:
        """Return the rows of the `num` instructions before each one, the farthest first.

        Before a stage's first instruction is its last; shape (num, num_rows).
        """
        rows = [self.previous]
        while len(rows) < num:
            rows.append(self.previous[rows[-1]])
        return np.array(rows[::-1])

    def most_within(self, time_s: float) -> int:
        """Return the most instructions, one after the other on a stage, that may end in a time."""
        if time_s not in self._num_within:
            self._num_within[time_s] = _most_within(self.clocked, time_s)
        return self._num_within[time_s]


class ClockSequences:
    """Clocks that each instruction may run at, one after the other, in each plan.

    They are the clocks of the instructions before it, as far as those changes may be on their way,
    its own clock, and the clock that is requested ahead of an instruction after it.

    Args:
        rows: the instructions.
        clocks: clock of each instruction in each plan; shape (num_rows, num_plans).
        max_delay_s: longest time of a clock change, s.
        following: per row, the row whose clock may be requested while it runs, or the row itself;
            None: no clock is requested ahead.

    Attributes:
        num_earlier: most changes of earlier instructions that may be on their way.
        own: index of the instruction's own clock.
        clocks: shape (num_clocks, num_rows, num_plans).
        times_s: time of the instruction at each of them, s; same shape.
        is_changed, is_up: true where the own clock is another, or a higher one, than the one
            before; shape (num_rows, num_plans).
    """

    def __init__(
        self,
        rows: InstructionRows,
        clocks: IndexArray,
        max_delay_s: float,
        following: IndexArray | None = None,
    ) -> None:
        self.num_earlier = rows.most_within(max_delay_s)
        self.own = self.num_earlier + 1
        places = [*rows.before(self.own), np.arange(len(clocks))]
        if following is not None:
            places.append(following)
        self.clocks: IndexArray = clocks[np.array(places)]
        self._rows, self._places = rows, rows.table + self.clocks
        self.times_s: FloatArray = rows.times_s[self._places]
        previous = self.clocks[self.own - 1]
        self.is_changed: BoolArray = clocks != previous
        self.is_up: BoolArray = clocks < previous

    @cached_property
    def longer(self) -> FloatArray:
        """Time by which a second at a clock before the last one makes an instruction longer, s.

        Shape (num_clocks - 1, num_rows, num_plans).
        """
        longer: FloatArray = 1 - self.times_s[-1] / self.times_s[:-1]
        return longer

    def energy_j(self, past_s: FloatArray) -> FloatArray:
        """Return the energy of each instruction without waiting, J; shape (num_rows, num_plans).

        Args:
            past_s: its time at each clock before the last one, s; shape as of `longer`.
        """
        of_places_j = self._rows.energies_j
        last_j: FloatArray = of_places_j[self._places[-1]]
        energy_j = last_j.copy()
        for places, time_s, here_s in zip(self._places, self.times_s, past_s, strict=False):
            energy_j += (of_places_j[places] - last_j) * (here_s / time_s)
        return energy_j


def _begins(of_groups: tuple[tuple[float, ...], ...] | tuple[tuple[int, ...], ...]) -> IndexArray:
    """Return the index of each group's first entry where all entries stand in one row."""
    begins: IndexArray = np.cumsum([0, *map(len, of_groups)])
    return begins


def _most_within(clocked: ClockedInstructions, time_s: float) -> int:
    """Return the most instructions, one after the other on a stage, that may end within a time."""
    shortest_s = np.array([min(clocked.times_s[group]) for group in clocked.group])
    most = 0
    for first, last in zip(clocked.first, clocked.last, strict=True):
        of_stage_s = shortest_s[first : last + 1]
        num = len(of_stage_s)
        ends_s = np.cumsum(np.tile(of_stage_s, 2 + math.ceil(time_s / of_stage_s.sum())))
        begins_s = ends_s[:num] - of_stage_s
        within = np.searchsorted(ends_s, begins_s + time_s, side="left") - np.arange(num)
        most = max(most, int(within.max()))
    return most
