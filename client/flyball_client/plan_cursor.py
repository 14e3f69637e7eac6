"""Following a rank's plan: which clock the next instruction gets, by its position in the step."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from flyball_client.errors import CodecError
from flyball_client.wire import RankPlan


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
    """

    version: int
    kinds: tuple[str, ...]
    microbatches: tuple[int, ...]
    chunks: tuple[int, ...]
    sm_clocks_mhz: tuple[int, ...]
    highest_sm_clock_mhz: int
    num_raised: int


def compile_plan(plan: RankPlan, *, stage: int, supported_mhz: tuple[int, ...]) -> CompiledPlan:
    """The plan, checked and ready to follow.

    A clock that the GPU does not support becomes the next one above, so that no instruction
    takes longer than planned.

    Args:
        plan: as it came from the planner.
        stage: that this rank runs.
        supported_mhz: SM clocks that can be locked, MHz, falling, at least one.

    Raises:
        CodecError: it is for another stage, or an instruction is not
            `[kind, microbatch, MHz]` or `[kind, microbatch, MHz, chunk]`.
    """
    if plan.stage != stage:
        raise CodecError(
            f"plan version {plan.version} is for stage {plan.stage}, and this is stage {stage}"
        )
    rows = [_row(item, position) for position, item in enumerate(plan.instructions)]
    wanted_mhz = [clock_mhz for _, _, clock_mhz, _ in rows]
    clocks_mhz = tuple(_at_or_above(clock_mhz, supported_mhz) for clock_mhz in wanted_mhz)
    pairs = zip(wanted_mhz, clocks_mhz, strict=True)
    return CompiledPlan(
        version=plan.version,
        kinds=tuple(kind for kind, _, _, _ in rows),
        microbatches=tuple(microbatch for _, microbatch, _, _ in rows),
        chunks=tuple(chunk for _, _, _, chunk in rows),
        sm_clocks_mhz=clocks_mhz,
        highest_sm_clock_mhz=supported_mhz[0],
        num_raised=sum(wanted != given for wanted, given in pairs),
    )


PlannedRow = tuple[str, int, int, int]
"""Kind, microbatch, chunk and SM clock, MHz, of one planned instruction."""

# Matches no instruction: a kind has a name.
_NOTHING: PlannedRow = ("", -1, -1, 0)
_NO_ROWS = (_NOTHING,)


class PlanCursor:
    """A position in a plan; each step starts afresh.

    Once an instruction comes that the plan does not expect, nothing is known of the rest of
    the step: from there to its end every instruction gets the highest clock and is counted in
    `num_unplanned`. Between steps every instruction gets the highest clock, uncounted.

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
        "_is_in_step",
        "_rows",
        "num_unplanned",
        "plan",
        "position",
        "rows",
        "surprise",
    )

    def __init__(self, plan: CompiledPlan) -> None:
        self.plan = plan
        # Interned, they are the same objects as a caller's literals and compared at a glance.
        kinds = (sys.intern(kind) for kind in plan.kinds)
        columns = zip(kinds, plan.microbatches, plan.chunks, plan.sm_clocks_mhz, strict=True)
        self._rows: tuple[PlannedRow, ...] = (*columns, _NOTHING)
        self.num_unplanned = 0
        self.surprise: str | None = None
        self._is_in_step = False
        self.rows: tuple[PlannedRow, ...] = _NO_ROWS
        self.position = 0

    def begin_step(self) -> None:
        """The next instruction is the plan's first."""
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
        planned_kind, planned_microbatch, planned_chunk, sm_clock_mhz = self.rows[self.position]
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


def _row(item: tuple[str | int, ...], position: int) -> tuple[str, int, int, int]:
    match item:
        case (str(kind), int(microbatch), int(clock_mhz)) if clock_mhz > 0:
            return kind, microbatch, clock_mhz, 0
        case (str(kind), int(microbatch), int(clock_mhz), int(chunk)) if clock_mhz > 0:
            return kind, microbatch, clock_mhz, chunk
        case _:
            raise CodecError(
                f"instructions[{position}] must be [kind, microbatch, MHz] or"
                " [kind, microbatch, MHz, chunk]"
            )


def _at_or_above(wanted_mhz: int, supported_mhz: tuple[int, ...]) -> int:
    return min((mhz for mhz in supported_mhz if mhz >= wanted_mhz), default=supported_mhz[0])


def _instruction_name(kind: str, microbatch: int | None, chunk: int) -> str:
    of_microbatch = "" if microbatch is None else f" of microbatch {microbatch}"
    return f"{kind}{of_microbatch}" + (f" in chunk {chunk}" if chunk else "")
