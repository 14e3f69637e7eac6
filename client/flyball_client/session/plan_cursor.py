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

    def clocks_in_step_mhz(self, num_steps: int) -> tuple[int, ...]:
        """Return the clocks of a step, counted from the plan's first step, MHz."""
        if self.cycle_mhz is None:
            return self.sm_clocks_mhz
        return self.cycle_mhz[num_steps % len(self.cycle_mhz)]


PlannedInstruction = tuple[str, int, int]
"""Kind, microbatch and chunk."""

# Matches no instruction, since names of kinds are not empty.
_NOTHING: PlannedInstruction = ("", -1, -1)
_NO_INSTRUCTIONS = (_NOTHING,)


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
        instructions: Planned instructions of the step, and one that matches nothing at the end;
            only that one while no instruction is expected.
        clocks_mhz: SM clocks in MHz of the planned instructions in this step, and at the end that
            of the next step's first one.
        position: Index of the next instruction. A caller whose instruction is that one may use
            its clock and increment `position`; else `next_sm_clock_mhz` must be called.
        num_unplanned: Number of the step's instructions that did not match the plan.
        surprise: First deviation from the plan in the step; None: there was none.
    """

    __slots__ = (
        "_first_step",
        "_instructions",
        "_is_in_step",
        "clocks_mhz",
        "instructions",
        "num_unplanned",
        "plan",
        "position",
        "surprise",
    )

    def __init__(self, plan: CompiledPlan, *, first_step: int = 0) -> None:
        self.plan = plan
        self._first_step = first_step
        # Interned strings are compared with a caller's literals by identity.
        kinds = map(sys.intern, plan.kinds)
        # In C, since it is done as a step begins: a millisecond for the largest plan.
        planned = zip(kinds, plan.microbatches, plan.chunks, strict=True)
        self._instructions: tuple[PlannedInstruction, ...] = (*planned, _NOTHING)
        self.clocks_mhz: tuple[int, ...] = ()
        self.num_unplanned = 0
        self.surprise: str | None = None
        self._is_in_step = False
        self.instructions: tuple[PlannedInstruction, ...] = _NO_INSTRUCTIONS
        self.position = 0

    def begin_step(self, step: int) -> None:
        """Move to the plan's first instruction, with the clocks of this step."""
        # By the step's number, so that all ranks run the same row, also after a late start or a
        # failed step.
        num_steps = step - self._first_step
        next_mhz = self.plan.clocks_in_step_mhz(num_steps + 1)
        self.clocks_mhz = (*self.plan.clocks_in_step_mhz(num_steps), *next_mhz[:1])
        self.num_unplanned = 0
        self.surprise = None
        self.instructions, self.position = self._instructions, 0
        self._is_in_step = True

    def end_step(self) -> None:
        """End the step; a missing instruction is a surprise."""
        num_planned = len(self.plan.kinds)
        if self.instructions is self._instructions and self.position < num_planned:
            self.surprise = (
                f"the step ended after {self.position} of {num_planned} planned instructions"
            )
        self._leave_plan()
        self._is_in_step = False

    def upcoming_mhz(self) -> int | None:
        """Return the clock in MHz that follows the planned instruction that began last.

        None: it is the same, or the step does not follow the plan.
        """
        position, clocks_mhz = self.position, self.clocks_mhz
        if not position or clocks_mhz[position] == clocks_mhz[position - 1]:
            return None
        return clocks_mhz[position]

    def next_sm_clock_mhz(self, kind: str, microbatch: int | None, chunk: int) -> int:
        """Return the clock in MHz of the instruction that begins; microbatch None: any."""
        planned_kind, planned_microbatch, planned_chunk = self.instructions[self.position]
        if (
            planned_kind == kind
            and planned_chunk == chunk
            and (microbatch is None or planned_microbatch == microbatch)
        ):
            self.position += 1
            return self.clocks_mhz[self.position - 1]
        if self.instructions is self._instructions:
            self.surprise = self._describe_surprise(kind, microbatch, chunk)
            self._leave_plan()
        if self._is_in_step:
            self.num_unplanned += 1
        return self.plan.highest_sm_clock_mhz

    def _leave_plan(self) -> None:
        self.instructions, self.position = _NO_INSTRUCTIONS, 0

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
