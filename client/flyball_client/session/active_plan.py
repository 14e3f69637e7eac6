"""The plan that a rank follows from step to step, with its log lines."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from itertools import pairwise

from flyball_client.session.plan_cursor import CompiledPlan, PlanCursor
from flyball_wire.errors import CodecError
from flyball_wire.messages import RankPlan


def compile_plan(plan: RankPlan, *, stage: int, supported_mhz: tuple[int, ...]) -> CompiledPlan:
    """The plan, checked and ready to follow.

    A clock that the GPU does not support becomes the next one above, so that no instruction
    takes longer than planned.

    Args:
        plan: as it came from the planner.
        stage: that this rank runs.
        supported_mhz: SM clocks that can be locked, MHz, falling, at least one.

    Raises:
        CodecError: it is for another stage, an instruction is not
            `[kind, microbatch, MHz]` or `[kind, microbatch, MHz, chunk]`, or a row of its cycle
            has not one clock above 0 for each of them, or the counter is to be read elsewhere
            than after instructions, in their order.
    """
    if plan.stage != stage:
        raise CodecError(
            f"plan version {plan.version} is for stage {plan.stage}, and this is stage {stage}"
        )
    rows = [_row(item, position) for position, item in enumerate(plan.instructions)]
    _check_cycle(plan)
    _check_counter_reads(plan)
    wanted_mhz = tuple(clock_mhz for _, _, clock_mhz, _ in rows)
    cycle_mhz = plan.cycle_mhz
    given_mhz = {
        clock_mhz: _at_or_above(clock_mhz, supported_mhz)
        for row in (wanted_mhz, *(cycle_mhz or ()))
        for clock_mhz in row
    }
    # Rows that are alike become one, so that the cursor sees at a glance that nothing changes.
    given_rows = {row: _given(row, given_mhz) for row in cycle_mhz or ()}
    set_mhz = (wanted_mhz,) if cycle_mhz is None else cycle_mhz
    return CompiledPlan(
        version=plan.version,
        kinds=tuple(kind for kind, _, _, _ in rows),
        microbatches=tuple(microbatch for _, microbatch, _, _ in rows),
        chunks=tuple(chunk for _, _, _, chunk in rows),
        sm_clocks_mhz=_given(wanted_mhz, given_mhz),
        highest_sm_clock_mhz=supported_mhz[0],
        num_raised=sum(clock_mhz != given_mhz[clock_mhz] for row in set_mhz for clock_mhz in row),
        cycle_mhz=None if cycle_mhz is None else tuple(given_rows[row] for row in cycle_mhz),
        report=plan.report,
        counter_reads=plan.counter_reads or (),
    )


def _given(wanted_mhz: tuple[int, ...], given_mhz: dict[int, int]) -> tuple[int, ...]:
    return tuple(given_mhz[clock_mhz] for clock_mhz in wanted_mhz)


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


def _check_cycle(plan: RankPlan) -> None:
    if plan.cycle_mhz is None:
        return
    if not plan.cycle_mhz:
        raise CodecError("cycle_mhz must have at least one row, or be null")
    for number, row in enumerate(plan.cycle_mhz):
        if len(row) != len(plan.instructions):
            raise CodecError(
                f"cycle_mhz[{number}] must have a clock for each of the {len(plan.instructions)}"
                f" instructions, not {len(row)}"
            )
        if any(clock_mhz <= 0 for clock_mhz in row):
            raise CodecError(f"cycle_mhz[{number}] must have clocks above 0 MHz only")


def _check_counter_reads(plan: RankPlan) -> None:
    reads, num_instructions = plan.counter_reads or (), len(plan.instructions)
    is_rising = all(before < after for before, after in pairwise(reads))
    if not is_rising or any(not 1 <= position <= num_instructions for position in reads):
        raise CodecError(
            f"counter_reads must rise and be from 1 to the {num_instructions} instructions"
        )


def _at_or_above(wanted_mhz: int, supported_mhz: tuple[int, ...]) -> int:
    return min((mhz for mhz in supported_mhz if mhz >= wanted_mhz), default=supported_mhz[0])


# A plan that is not chosen is offered again in every step, perhaps for ever.
_MAX_OFFERED = 16

PlanChoice = Callable[[tuple[CompiledPlan, ...]], CompiledPlan | None]


def newest_plan(due: tuple[CompiledPlan, ...]) -> CompiledPlan:
    """The plan that has come last."""
    return due[-1]


class PendingPlans:
    """Plans that have come, with their first steps.

    `put` may be called from another thread than the rest: a deque's append and popleft are
    atomic.

    Args:
        choose: of the plans whose first step has come, in the order in which they came, at
            least one, which is to be run from now on; None: the one as before. What is not
            chosen is offered again at the next step, unless a later one was chosen; of those the 16
            that came last.
    """

    def __init__(self, choose: PlanChoice = newest_plan) -> None:
        self._choose = choose
        self._arrived: deque[tuple[int, CompiledPlan]] = deque()
        self._awaiting_step: list[tuple[int, CompiledPlan]] = []

    def put(self, plan: CompiledPlan, first_step: int) -> None:
        """A plan has come that all ranks run from this step on."""
        self._arrived.append((first_step, plan))

    def take_due(self, step: int) -> tuple[CompiledPlan, int] | None:
        """The plan to run from this step on, with its first step; None: no other than before."""
        while self._arrived:
            self._awaiting_step.append(self._arrived.popleft())
        due = [entry for entry in self._awaiting_step if entry[0] <= step]
        for entry in due[:-_MAX_OFFERED]:
            self._awaiting_step.remove(entry)
        offered = tuple(plan for _, plan in due[-_MAX_OFFERED:])
        chosen = self._choose(offered) if offered else None
        if chosen is None:
            return None
        # What came before it is superseded, even where its step is still to come.
        index = next(i for i, (_, plan) in enumerate(self._awaiting_step) if plan is chosen)
        first_step, _ = self._awaiting_step[index]
        del self._awaiting_step[: index + 1]
        return chosen, first_step


_logger = logging.getLogger(__name__)


class ActivePlan:
    """Checks plans for a rank, and has a cursor in the one that is in force.

    `compile` may be called from another thread than the rest.

    Args:
        plans: that have come, with their first steps.
        stage: that the rank runs.
        supported_mhz: SM clocks that can be locked, MHz, falling; empty: none can.
        keeps_plan: whether the plan stays in force while the planner does not answer.
        rank_name: for the log.

    Attributes:
        cursor: in the plan in force; None: none is.
    """

    def __init__(
        self,
        plans: PendingPlans,
        *,
        stage: int,
        supported_mhz: tuple[int, ...],
        keeps_plan: bool,
        rank_name: str,
    ) -> None:
        self.cursor: PlanCursor | None = None
        self._plans = plans
        self._stage = stage
        self._supported_mhz = supported_mhz
        self._keeps_plan = keeps_plan
        self._rank_name = rank_name
        # The plan to run and its first step; the cursor follows it, unless the planner is lost
        # and that matters.
        self._plan: tuple[CompiledPlan, int] | None = None
        self._last_version_with_surprise: int | None = None

    def compile(self, plan: RankPlan) -> CompiledPlan:
        """The plan, checked and with clocks that the GPU supports.

        Raises:
            CodecError: this rank cannot run it.
        """
        if not self._supported_mhz:
            raise CodecError("this rank's GPU has no clocks to set")
        compiled = compile_plan(plan, stage=self._stage, supported_mhz=self._supported_mhz)
        if compiled.num_raised:
            _logger.warning(
                "%s: the GPU lacks %d of the %d clocks of plan version %d; the next above are set",
                self._rank_name,
                compiled.num_raised,
                compiled.num_clocks,
                compiled.version,
            )
        return compiled

    def begin_step(self, step: int, *, sets_clocks: bool, is_planner_lost: bool) -> None:
        """A plan whose first step has come takes effect; the cursor is at the step's begin.

        Args:
            step: that begins.
            sets_clocks: whether this rank still does; else no plan takes effect any more.
            is_planner_lost: whether the planner does not answer.
        """
        # Also where clocks are no longer set: an order changes on all ranks or on none.
        due = self._plans.take_due(step)
        if sets_clocks:
            self._take_up(due, step, is_planner_lost=is_planner_lost)
        if self.cursor is not None:
            self.cursor.begin_step(step)

    def end_step(self, step: int) -> None:
        """The step is over; the first that does not fit a plan is logged."""
        cursor = self.cursor
        if cursor is None:
            return
        cursor.end_step()
        version = cursor.plan.version
        if cursor.surprise is not None and version != self._last_version_with_surprise:
            self._last_version_with_surprise = version
            _logger.warning(
                "%s: plan version %d does not fit step %d: %s; what a plan does not expect"
                " runs at the highest clock",
                self._rank_name,
                version,
                step,
                cursor.surprise,
            )

    def break_off_step(self) -> None:
        """The step has failed: what is missing of it is no surprise."""
        if self.cursor is not None:
            self.cursor.end_step()

    def _take_up(
        self, due: tuple[CompiledPlan, int] | None, step: int, *, is_planner_lost: bool
    ) -> None:
        if due is not None:
            self._plan = due
            _logger.info(
                "%s: plan version %d in force from step %d", self._rank_name, due[0].version, step
            )
        if is_planner_lost and not self._keeps_plan:
            self.cursor = None
        elif self._plan is not None and (self.cursor is None or due is not None):
            plan, first_step = self._plan
            self.cursor = PlanCursor(plan, first_step=first_step)
