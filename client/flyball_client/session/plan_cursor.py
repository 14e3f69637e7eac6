"""Position of a rank in its plan, which determines the clock of the next instruction."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from flyball_wire.messages import MeasurementDetail


@dataclass(frozen=True, kw_only=True)
class CompiledPlan:
    """A rank's plan as flat tuples, one entry per instruction in the order of execution.

    Attributes:
        version: Version of the plan.
        kinds: Names of the instructions.
        microbatches: Microbatches, from 0.
        chunks: Model chunks; 0 where there are none.
        sm_clocks_mhz: SM clocks in MHz; all are supported by the GPU.
        highest_sm_clock_mhz: Highest clock of the GPU in MHz, for unplanned instructions.
        num_raised: Number of clocks that were raised to one that the GPU supports.
        cycle_mhz: Such clocks for each step of a cycle, which begins at the plan's first step and
            repeats; None: `sm_clocks_mhz` holds in every step.
        measurement_detail: Detail of the measurements that are posted.
        plan_id: Identity of the plan beside its version; None: not given.
    """

    version: int
    kinds: tuple[str, ...]
    microbatches: tuple[int, ...]
    chunks: tuple[int, ...]
    sm_clocks_mhz: tuple[int, ...]
    highest_sm_clock_mhz: int
    num_raised: int
    cycle_mhz: tuple[tuple[int, ...], ...] | None = None
    measurement_detail: MeasurementDetail = MeasurementDetail.TOTALS
    plan_id: str | None = None

    @property
    def num_clocks(self) -> int:
        """Number of clocks, those of a whole cycle where it has one."""
        return len(self.kinds) * (1 if self.cycle_mhz is None else len(self.cycle_mhz))


PlannedRow = tuple[str, int, int, int, bool]
"""Kind, microbatch, chunk and SM clock in MHz of one planned instruction; True: its clock differs
from that of the instruction before it in the step, or it is the first."""

# Matches no instruction, since names of kinds are not empty.
_NOTHING: PlannedRow = ("", -1, -1, 0, True)
_NO_ROWS = (_NOTHING,)


class PlanCursor:
    """Position in a plan, which starts anew with each step.

    From an instruction that does not match the plan to the end of the step, every instruction
    gets the highest clock and is counted in `num_unplanned`. Between steps every instruction gets
    the highest clock, uncounted.

    Args:
        plan: Plan to follow.
        first_step: Step from which all ranks run it, where a cycle of clocks begins.

    Attributes:
        plan: Plan that is followed.
        rows: Planned instructions of the step, and a row that matches nothing at the end; only
            that row while no instruction is expected.
        position: Index in `rows` of the next instruction. A caller whose instruction matches that
            row may use its clock and increment `position`; else `next_sm_clock_mhz` must be
            called.
        num_unplanned: Number of the step's instructions that did not match the plan.
        surprise: First deviation from the plan in the step; None: there was none.
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
        # Interned strings are compared with a caller's literals by identity.
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
        """Move to the plan's first instruction, with the clocks of this step."""
        cycle_mhz = self.plan.cycle_mhz
        if cycle_mhz is not None:
            # By the step's number, so that all ranks run the same row, also after a late start or
            # a failed step.
            row_mhz = cycle_mhz[(step - self._first_step) % len(cycle_mhz)]
            if row_mhz is not self._rows_mhz:
                self._rows_mhz, self._rows = row_mhz, self._rows_at(row_mhz)
        self.num_unplanned = 0
        self.surprise = None
        self.rows, self.position = self._rows, 0
        self._is_in_step = True

    def end_step(self) -> None:
        """End the step; a missing instruction is a surprise."""
        num_planned = len(self.plan.kinds)
        if self.rows is self._rows and self.position < num_planned:
            self.surprise = (
                f"the step ended after {self.position} of {num_planned} planned instructions"
            )
        self._leave_plan()
        self._is_in_step = False

    def next_sm_clock_mhz(self, kind: str, microbatch: int | None, chunk: int) -> int:
        """Return the clock in MHz of the instruction that begins; microbatch None: any."""
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
