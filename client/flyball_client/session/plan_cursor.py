"""Following a rank's plan: which clock the next instruction gets, by its position in the step."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CompiledPlan:
    """A rank's plan as flat tuples, one entry per instruction in the order of execution.

    Attributes:
        version: of the plan.
        kinds: instruction names.
        microbatches: counted from 0.
        chunks: model chunks; 0 where there are none.
        sm_clocks_mhz: the clock of each, MHz; each is supported by the GPU.
        highest_sm_clock_mhz: of the GPU, MHz; for whatever the plan does not expect.
        num_raised: clocks that the GPU does not support and that were raised to one it does.
        cycle_mhz: instead of `sm_clocks_mhz`, such clocks for each step of a cycle that begins at
            the plan's first step and repeats; None: the same in every step.
        report: what is told of each measured step, see `step_details`.
        counter_reads: after how many of a step's instructions the energy counter is read,
            rising.
    """

    version: int
    kinds: tuple[str, ...]
    microbatches: tuple[int, ...]
    chunks: tuple[int, ...]
    sm_clocks_mhz: tuple[int, ...]
    highest_sm_clock_mhz: int
    num_raised: int
    cycle_mhz: tuple[tuple[int, ...], ...] | None = None
    report: str = "totals"
    counter_reads: tuple[int, ...] = ()

    @property
    def num_clocks(self) -> int:
        """Clocks that it sets, those of a whole cycle where it has one."""
        return len(self.kinds) * (1 if self.cycle_mhz is None else len(self.cycle_mhz))


PlannedRow = tuple[str, int, int, int, bool]
"""Kind, microbatch, chunk and SM clock, MHz, of one planned instruction, and whether that is
another clock than the one before it in the step has; of the first: yes."""

# Matches no instruction: a kind has a name.
_NOTHING: PlannedRow = ("", -1, -1, 0, True)
_NO_ROWS = (_NOTHING,)


class PlanCursor:
    """A position in a plan; each step starts afresh.

    Once an instruction comes that the plan does not expect, nothing is known of the rest of
    the step: from there to its end every instruction gets the highest clock and is counted in
    `num_unplanned`. Between steps every instruction gets the highest clock, uncounted.

    Args:
        plan: to follow.
        first_step: from which all ranks run it: where a cycle of clocks begins.

    Attributes:
        plan: that is followed.
        rows: what is expected, from the step's begin, and a row that matches nothing at the
            end; nothing but that row where no instruction is expected.
        position: in `rows`, of the instruction that comes next. Whoever sees that one come,
            microbatch and all, may take its clock from there and move on by one; whatever else
            comes is for `next_sm_clock_mhz`.
        num_unplanned: instructions of the step that the plan did not expect.
        surprise: how the step left the plan; None: it has not.
    """

    __slots__ = (
        "_first_step",
        "_instructions",
        "_is_in_step",
        "_rows",
        "_rows_mhz",
        "num_unplanned",
        "plan",
        "position",
        "rows",
        "surprise",
    )

    def __init__(self, plan: CompiledPlan, *, first_step: int = 0) -> None:
        self.plan = plan
        self._first_step = first_step
        # Interned, they are the same objects as a caller's literals and compared at a glance.
        kinds = (sys.intern(kind) for kind in plan.kinds)
        self._instructions = tuple(zip(kinds, plan.microbatches, plan.chunks, strict=True))
        self._rows_mhz = plan.sm_clocks_mhz
        self._rows = self._rows_at(plan.sm_clocks_mhz)
        self.num_unplanned = 0
        self.surprise: str | None = None
        self._is_in_step = False
        self.rows: tuple[PlannedRow, ...] = _NO_ROWS
        self.position = 0

    def begin_step(self, step: int) -> None:
        """The next instruction is the plan's first; its clocks are those of this step."""
        cycle_mhz = self.plan.cycle_mhz
        if cycle_mhz is not None:
            # By the numbers of the steps, so that all ranks run the same row of it, also where
            # one took the plan up later or left a step out.
            row_mhz = cycle_mhz[(step - self._first_step) % len(cycle_mhz)]
            if row_mhz is not self._rows_mhz:
                self._rows_mhz, self._rows = row_mhz, self._rows_at(row_mhz)
        self.num_unplanned = 0
        self.surprise = None
        self.rows, self.position = self._rows, 0
        self._is_in_step = True

    def end_step(self) -> None:
        """No instruction is expected until the next step; one that is missing is a surprise."""
        num_planned = len(self.plan.kinds)
        if self.rows is self._rows and self.position < num_planned:
            self.surprise = (
                f"the step ended after {self.position} of {num_planned} planned instructions"
            )
        self._leave_plan()
        self._is_in_step = False

    def next_sm_clock_mhz(self, kind: str, microbatch: int | None, chunk: int) -> int:
        """The clock for the instruction that begins now, MHz; microbatch None: by order."""
        planned_kind, planned_microbatch, planned_chunk, sm_clock_mhz, _ = self.rows[self.position]
        if (
            planned_kind == kind
            and planned_chunk == chunk
            and (microbatch is None or planned_microbatch == microbatch)
        ):
            self.position += 1
            return sm_clock_mhz
        if self.rows is self._rows:
            self.surprise = self._describe_surprise(kind, microbatch, chunk)
            self._leave_plan()
        if self._is_in_step:
            self.num_unplanned += 1
        return self.plan.highest_sm_clock_mhz

    def _rows_at(self, clocks_mhz: tuple[int, ...]) -> tuple[PlannedRow, ...]:
        before_mhz = (0, *clocks_mhz[:-1]) if clocks_mhz else ()
        rows = (
            (*instruction, clock_mhz, clock_mhz != before)
            for instruction, clock_mhz, before in zip(
                self._instructions, clocks_mhz, before_mhz, strict=True
            )
        )
        return (*rows, _NOTHING)

    def _leave_plan(self) -> None:
        self.rows, self.position = _NO_ROWS, 0

    def _describe_surprise(self, kind: str, microbatch: int | None, chunk: int) -> str:
        plan, position = self.plan, self.position
        came = _instruction_name(kind, microbatch, chunk)
        if position == len(plan.kinds):
            return f"{came} after all {position} planned instructions"
        planned = _instruction_name(
            plan.kinds[position], plan.microbatches[position], plan.chunks[position]
        )
        return f"{came} at position {position}, where the plan has {planned}"


def _instruction_name(kind: str, microbatch: int | None, chunk: int) -> str:
    of_microbatch = "" if microbatch is None else f" of microbatch {microbatch}"
    return f"{kind}{of_microbatch}" + (f" in chunk {chunk}" if chunk else "")
