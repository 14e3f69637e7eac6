"""Position of a rank in its plan, which determines the clock of the next instruction."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from operator import ne

from flyball_wire.measurements import MeasurementDetail

_FORWARD = "forward"


@dataclass(frozen=True, kw_only=True)
class CompiledPlan:
    """A rank's plan as flat tuples, one entry per instruction in the order of execution.

    Attributes:
        microbatches: Microbatches, from 0.
        chunks: Model chunks; 0 where there are none.
        sm_clocks_mhz: SM clocks in MHz; all are supported by the GPU.
        highest_sm_clock_mhz: Highest clock of the GPU in MHz, for unplanned instructions.
        num_raised: Number of clocks that were raised to one that the GPU supports.
        cycle_mhz: Such clocks for each step of a cycle, which begins at the plan's first step and
            repeats; None: `sm_clocks_mhz` holds in every step.
        requests: Position of each clock that is requested at another moment than the end of the
            instruction before, position of an earlier instruction, and time from the begin of that
            one to the request, s; as in `RankPlan`.
        measurement_detail: Detail of the measurements that are posted.
        num_timed_steps: Number of steps, from the second one on, whose instructions are posted
            whatever the detail.
        plan_id: Identity of the plan beside its version; None: not given.
        has_step_plans: True: steps have clocks of their own, or the highest.
        baseline_cycle: By step of the cycle, True where a comparison's baseline runs, and no step
            has clocks of its own; empty: no comparison.
    """

    version: int
    kinds: tuple[str, ...]
    microbatches: tuple[int, ...]
    chunks: tuple[int, ...]
    sm_clocks_mhz: tuple[int, ...]
    highest_sm_clock_mhz: int
    num_raised: int
    cycle_mhz: tuple[tuple[int, ...], ...] | None = None
    requests: tuple[tuple[int, int, float], ...] = ()
    measurement_detail: MeasurementDetail = MeasurementDetail.TOTALS
    num_timed_steps: int = 0
    plan_id: str | None = None
    has_step_plans: bool = False
    baseline_cycle: tuple[bool, ...] = ()

    @cached_property
    def highest_mhz(self) -> tuple[int, ...]:
        """The highest clock for each instruction, MHz."""
        return (self.highest_sm_clock_mhz,) * len(self.kinds)

    @cached_property
    def num_microbatches(self) -> int | None:
        """Number of microbatches of a step; None: it has no forwards, as of whole steps."""
        return number_of_microbatches(zip(self.kinds, self.microbatches, strict=True))

    @property
    def num_clocks(self) -> int:
        """Number of clocks, those of a whole cycle where it has one."""
        return len(self.kinds) * (1 if self.cycle_mhz is None else len(self.cycle_mhz))

    def clocks_in_step_mhz(self, num_steps: int) -> tuple[int, ...]:
        """Return the clocks of a step, counted from the plan's first step, MHz."""
        if self.cycle_mhz is None:
            return self.sm_clocks_mhz
        return self.cycle_mhz[num_steps % len(self.cycle_mhz)]

    def own_clocks_mhz(
        self, step: int, first_step: int, own_clocks: OwnClocks | None
    ) -> tuple[int, ...] | None:
        """Return a step's own clocks, MHz; None: the plan's, as in a comparison's baseline."""
        if own_clocks is None or (self.cycle_mhz and not self.has_step_plans):
            return None
        cycle = self.baseline_cycle
        if cycle and cycle[(step - first_step) % len(cycle)]:
            return None
        return own_clocks(self, step)


OwnClocks = Callable[[CompiledPlan, int], tuple[int, ...] | None]
"""Returns the clocks of a step by its number, one for each instruction, MHz; None: the plan's."""


def number_of_microbatches(instructions: Iterable[tuple[str, int | None]]) -> int | None:
    """Return how many microbatches the forwards of a step are of; None: not known.

    Args:
        instructions: Kind and microbatch of each instruction; microbatch None: not known.
    """
    numbers = {microbatch for kind, microbatch in instructions if kind == _FORWARD}
    return None if None in numbers else len(numbers) or None


def clock_changes(clocks_mhz: Sequence[int]) -> dict[int, int]:
    """Return the positions at which the clock changes, each with the position before; first: 0."""
    # In C, since it is done as a step begins.
    differ = map(ne, clocks_mhz[1:], clocks_mhz)
    positions = tuple(compress(range(1, len(clocks_mhz)), differ))
    return dict(zip(positions, (0, *positions), strict=False))


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
        instructions: Planned instructions of the step, and one that matches nothing at the end;
            only that one while no instruction is expected.
        clocks_mhz: SM clocks in MHz of the planned instructions in this step, and at the end that
            of the next step's first one.
        timed: By position, clock in MHz to request some time in s after that instruction begins,
            in place of the end of the instruction before the clock's own.
        position: Index of the next instruction. A caller whose instruction is that one may use
            its clock and increment `position`; else `next_sm_clock_mhz` must be called.
        timed_first_mhz: Clock in MHz of the next step's first instruction, where a step that has
            ended as planned has `timed` it; else None.
        num_unplanned: Number of the step's instructions that did not match the plan.
        surprise: First deviation from the plan in the step; None: there was none.
    """

    __slots__ = (
        "_first_step",
        "_instructions",
        "_is_in_step",
        "_is_own",
        "_timed_positions",
        "clocks_mhz",
        "instructions",
        "num_unplanned",
        "plan",
        "position",
        "surprise",
        "timed",
        "timed_first_mhz",
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
        self.timed: dict[int, tuple[int, float]] = {}
        self.timed_first_mhz: int | None = None
        self._timed_positions: frozenset[int] = frozenset()
        self.num_unplanned = 0
        self.surprise: str | None = None
        self._is_in_step = self._is_own = False
        self.instructions: tuple[PlannedInstruction, ...] = _NO_INSTRUCTIONS
        self.position = 0

    @property
    def fitting_plan(self) -> CompiledPlan | None:
        """Plan of the step; None: the step has deviated from it."""
        return self.plan if self.surprise is None else None

    def begin_step(self, step: int, own_clocks: OwnClocks | None = None) -> None:
        """Move to the plan's first instruction, with the clocks of this step."""
        # By the step's number, so that all ranks run the same row, also after a late start or a
        # failed step.
        num_steps = step - self._first_step
        own_mhz = self.plan.own_clocks_mhz(step, self._first_step, own_clocks)
        if own_mhz is not None:
            # Nothing is timed: what is planned early is planned for the plan's own times.
            self.clocks_mhz = (*own_mhz, *own_mhz[-1:])
            self.timed, self._timed_positions, self._is_own = {}, frozenset(), True
        else:
            clocks_mhz = self.plan.clocks_in_step_mhz(num_steps)
            if self.plan.has_step_plans:
                # The next step's first clock is its own, and requested once it is known.
                clocks_mhz += clocks_mhz[-1:]
            else:
                clocks_mhz += self.plan.clocks_in_step_mhz(num_steps + 1)[:1]
            if self._is_own or clocks_mhz != self.clocks_mhz:
                self.clocks_mhz, self._is_own = clocks_mhz, False
                self._find_timed()
        self.timed_first_mhz = None
        self.num_unplanned = 0
        self.surprise = None
        self.instructions, self.position = self._instructions, 0
        self._is_in_step = True

    def end_step(self) -> None:
        """End the step; a missing instruction is a surprise."""
        num_planned = len(self.plan.kinds)
        if self.instructions is self._instructions:
            if self.position < num_planned:
                self.surprise = (
                    f"the step ended after {self.position} of {num_planned} planned instructions"
                )
            elif num_planned in self._timed_positions:
                self.timed_first_mhz = self.clocks_mhz[num_planned]
        self._leave_plan()
        self._is_in_step = False

    def upcoming_mhz(self) -> int | None:
        """Return the clock in MHz to request after the planned instruction that began last.

        None: it is the same, `timed` has it, or the step does not follow the plan.
        """
        position, clocks_mhz = self.position, self.clocks_mhz
        if not position or clocks_mhz[position] == clocks_mhz[position - 1]:
            return None
        return None if position in self._timed_positions else clocks_mhz[position]

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

    def _find_timed(self) -> None:
        clocks_mhz = self.clocks_mhz
        changes = clock_changes(clocks_mhz)
        # Without a change at the position, or with another one on the way, there is no row.
        rows = [row for row in self.plan.requests if changes.get(row[0], math.inf) <= row[1]]
        self.timed = {after: (clocks_mhz[position], time_s) for position, after, time_s in rows}
        self._timed_positions = frozenset(position for position, _, _ in rows)

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
