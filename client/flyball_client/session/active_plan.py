"""Plans of a rank: received, pending until their first step, and in force."""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from operator import ne

from flyball_client.session.plan_cursor import CompiledPlan, OwnClocks, PlanCursor, clock_changes
from flyball_wire.errors import CodecError
from flyball_wire.plans.rank_plan import MAX_INSTRUCTIONS, RankPlan

MAX_KINDS = 64
_MAX_KIND_CHARS = 64
# Of all rows of a cycle that differ, together.
MAX_PLAN_CLOCKS = 524_288
MAX_CYCLE_LENGTH = 65_536
MAX_TIMED_STEPS = 64
_MAX_NUMBER = 2**31 - 1


def compile_plan(plan: RankPlan, *, stage: int, supported_mhz: tuple[int, ...]) -> CompiledPlan:
    """Check a plan and prepare it for execution.

    A clock that the GPU does not support is raised to the next clock that it supports, so that no
    instruction takes longer than planned.

    Args:
        plan: Plan from the planner.
        stage: Stage that this rank runs.
        supported_mhz: SM clocks that can be locked, MHz, falling; empty: none can, and the plan
            keeps its own: it has no effect on this rank, but other ranks wait for it.

    Raises:
        CodecError: The plan is for another stage or too large, it has a clock that is not above 0,
            an instruction or a row of its cycle that does not fit its kinds and clocks, or a row of
            its requests that does not fit its instructions and clocks.
    """
    if plan.stage != stage:
        raise CodecError(
            f"plan version {plan.version} is for stage {plan.stage}, this rank runs stage {stage}"
        )
    _check_size(plan)
    _check_items(plan)
    wanted_mhz = plan.sm_clocks_mhz
    rows = tuple(plan.cycle_row(number) for number in range(len(plan.cycle_rows)))
    columns = tuple(zip(*plan.instructions, strict=True)) or ((), (), (), ())
    kinds, microbatches, chunks, clocks = columns
    _check_requests(plan, tuple(map(wanted_mhz.__getitem__, clocks)))
    supported_mhz = supported_mhz or tuple(sorted(wanted_mhz, reverse=True)) or (1,)
    set_mhz = given_mhz(wanted_mhz, supported_mhz)
    is_raised = tuple(map(ne, wanted_mhz, set_mhz))
    set_rows = [rows[number] for number in plan.cycle] or [clocks]
    # Equal rows are one object.
    given_rows = tuple(tuple(map(set_mhz.__getitem__, row)) for row in rows)
    return CompiledPlan(
        version=plan.version,
        kinds=tuple(map(plan.kinds.__getitem__, kinds)),
        microbatches=microbatches,
        chunks=chunks,
        sm_clocks_mhz=tuple(map(set_mhz.__getitem__, clocks)),
        highest_sm_clock_mhz=supported_mhz[0],
        num_raised=sum(sum(map(is_raised.__getitem__, row)) for row in set_rows),
        cycle_mhz=tuple(given_rows[number] for number in plan.cycle) or None,
        requests=plan.requests,
        measurement_detail=plan.measurement_detail,
        num_timed_steps=min(max(plan.num_timed_steps, 0), MAX_TIMED_STEPS),
        plan_id=plan.plan_id,
        has_step_plans=plan.pipeline is not None,
        baseline_cycle=tuple(map(bool, plan.baseline_cycle)),
    )


def _check_items(plan: RankPlan) -> None:
    if not all(0 < clock_mhz <= _MAX_NUMBER for clock_mhz in plan.sm_clocks_mhz):
        raise CodecError("sm_clocks_mhz must have clocks above 0 MHz only")
    num_kinds, num_clocks = len(plan.kinds), len(plan.sm_clocks_mhz)
    for position, (kind, microbatch, chunk, clock) in enumerate(plan.instructions):
        if not (
            0 <= kind < num_kinds
            and 0 <= clock < num_clocks
            and 0 <= microbatch <= _MAX_NUMBER
            and 0 <= chunk <= _MAX_NUMBER
        ):
            raise CodecError(
                f"instructions[{position}] must be [kind, microbatch, chunk, clock], with indices"
                " into kinds and sm_clocks_mhz"
            )
    if not all(0 <= number < len(plan.cycle_rows) for number in plan.cycle):
        raise CodecError("cycle must have indices into cycle_rows")


def _check_requests(plan: RankPlan, clocks_mhz: tuple[int, ...]) -> None:
    """Check rows of requests; clocks of a cycle that a row does not fit have no effect instead."""
    num = len(clocks_mhz)
    changes = clock_changes((*clocks_mhz, *clocks_mhz[:1]))
    positions, afters = set[int](), set[int]()
    for number, (position, after, offset_s) in enumerate(plan.requests):
        if not (0 <= after < position <= num and 0 <= offset_s < math.inf):
            raise CodecError(
                f"requests[{number}] must be [position, after_position, offset_s], with positions"
                f" that rise within 0 to {num} and a finite offset that is not negative"
            )
        if position in positions or after in afters:
            raise CodecError(
                f"requests[{number}] must have a position and an after_position that no other row"
                " has"
            )
        positions.add(position)
        afters.add(after)
        if not plan.cycle and changes.get(position, math.inf) > after:
            raise CodecError(
                f"requests[{number}] must have equal clocks from position {after} to"
                f" {position - 1} and another one at {position}"
            )


def _check_size(plan: RankPlan) -> None:
    num, num_rows = len(plan.instructions), len(plan.cycle_rows)
    if num > MAX_INSTRUCTIONS:
        raise CodecError(f"it has {num} instructions, of which a rank takes {MAX_INSTRUCTIONS}")
    if (
        max(len(plan.cycle), len(plan.baseline_cycle)) > MAX_CYCLE_LENGTH
        or num_rows * num > MAX_PLAN_CLOCKS
    ):
        raise CodecError(
            f"its cycle has {len(plan.cycle)} steps and {num_rows} rows of {num} clocks, of which a"
            f" rank takes {MAX_CYCLE_LENGTH} steps and {MAX_PLAN_CLOCKS} clocks of rows"
        )
    if len(plan.requests) > num:
        raise CodecError(f"it has {len(plan.requests)} requests for {num} instructions")
    if len(plan.kinds) > MAX_KINDS or any(len(kind) > _MAX_KIND_CHARS for kind in plan.kinds):
        raise CodecError(
            f"its instructions have more than {MAX_KINDS} kinds, or names of more than"
            f" {_MAX_KIND_CHARS} characters"
        )


def given_mhz(wanted_mhz: Iterable[int], supported_mhz: tuple[int, ...]) -> tuple[int, ...]:
    """Return for each wanted clock the next supported one at or above it, or the highest."""
    rising_mhz = sorted(supported_mhz)
    last = len(rising_mhz) - 1
    return tuple(rising_mhz[min(bisect_left(rising_mhz, mhz), last)] for mhz in wanted_mhz)


# Bounds the plans whose first step never comes.
_MAX_AWAITING = 64


class PendingPlans:
    """Received plans with their first steps.

    `put` may be called from another thread than the rest: a deque's append and popleft are
    atomic.
    """

    def __init__(self) -> None:
        self._arrived: deque[tuple[int, CompiledPlan]] = deque(maxlen=_MAX_AWAITING)
        self._awaiting_step: list[tuple[int, CompiledPlan]] = []

    def __len__(self) -> int:
        return len(self._arrived) + len(self._awaiting_step)

    def put(self, plan: CompiledPlan, first_step: int) -> None:
        """Add a plan that all ranks run from this step on."""
        self._arrived.append((first_step, plan))

    def newest_due(self, step: int) -> tuple[CompiledPlan, int] | None:
        """Return what `take_due` would return, and keep it."""
        while self._arrived:
            self._awaiting_step.append(self._arrived.popleft())
        del self._awaiting_step[:-_MAX_AWAITING]
        due = [(plan, first) for first, plan in self._awaiting_step if first <= step]
        return due[-1] if due else None

    def take_due(self, step: int) -> tuple[CompiledPlan, int] | None:
        """Return the newest plan whose step has come, with its first step; None: no change."""
        newest = self.newest_due(step)
        if newest is None:
            return None
        # Supersedes the plans before it, also those whose step is still to come.
        index = next(i for i, (_, plan) in enumerate(self._awaiting_step) if plan is newest[0])
        del self._awaiting_step[: index + 1]
        return newest


_logger = logging.getLogger(__name__)


# Plans of other numbers of microbatches that are kept for when those return, and the newest.
_MAX_KEPT = 4


class ActivePlan:
    """Plan in force of a rank, with the cursor in it.

    The newest plan for the number of microbatches that the steps have is in force; while there is
    none, no plan is.

    Args:
        plans: Received plans.
        keeps_plan: True: the plan stays in force while the planner is lost.
        rank_name: Job and rank, for the log.
        is_planner_lost: Returns whether the planner cannot be reached.
        num_microbatches: Returns the number that a step to come has; None: not known.
        own_clocks: Returns a step's own clocks; None: those of the plan.

    Attributes:
        cursor: Cursor in the plan in force; None: no plan is in force.
    """

    def __init__(
        self,
        plans: PendingPlans,
        *,
        keeps_plan: bool,
        rank_name: str,
        is_planner_lost: Callable[[], bool],
        num_microbatches: Callable[[int], int | None],
        own_clocks: OwnClocks,
    ) -> None:
        self.cursor: PlanCursor | None = None
        self._plans = plans
        self._keeps_plan = keeps_plan
        self._rank_name = rank_name
        self._is_planner_lost = is_planner_lost
        self._num_microbatches = num_microbatches
        self._own_clocks = own_clocks
        # Plan for the steps as they are, and its first step; not in force while the planner is
        # lost, unless plans are kept.
        self._plan: tuple[CompiledPlan, int] | None = None
        # The newest plan for each number of microbatches, the newest last.
        self._kept: dict[int | None, tuple[CompiledPlan, int]] = {}
        self._last_version_with_surprise: int | None = None

    def begin_step(self, step: int, *, sets_clocks: bool) -> None:
        """Put a due plan into force if clocks are set; move the cursor to the first instruction."""
        if sets_clocks:
            self._keep(self._plans.take_due(step))
            self._choose(step, self._num_microbatches(step))
            if not self._keeps_plan and self._is_planner_lost():
                self.cursor = None
            elif self._plan is not None and self.cursor is None:
                plan, first_step = self._plan
                self.cursor = PlanCursor(plan, first_step=first_step)
        if self.cursor is not None:
            self.cursor.begin_step(step, self._own_clocks)

    def end_step(self, step: int) -> None:
        """End the step; log the first step that does not fit a plan."""
        cursor = self.cursor
        if cursor is None:
            return
        cursor.end_step()
        version = cursor.plan.version
        if cursor.surprise is not None and version != self._last_version_with_surprise:
            self._last_version_with_surprise = version
            _logger.warning(
                "%s: plan version %d does not fit step %d: %s; unplanned instructions run at the"
                " highest clock",
                self._rank_name,
                version,
                step,
                cursor.surprise,
            )

    def first_clock_mhz(self, step: int) -> int | None:
        """Return the clock in MHz to request for the first instruction of a step to come.

        None: no plan is in force then, it has no instruction, or the step before has a timed
        request for this clock, which stays.
        """
        plan_and_first_step = self.in_force_at(step, self._num_microbatches(step))
        if plan_and_first_step is None or (not self._keeps_plan and self._is_planner_lost()):
            return None
        plan, first_step = plan_and_first_step
        own_mhz = plan.own_clocks_mhz(step, first_step, self._own_clocks)
        clocks_mhz = plan.clocks_in_step_mhz(step - first_step) if own_mhz is None else own_mhz
        first_mhz = next(iter(clocks_mhz), None)
        timed_mhz = None if self.cursor is None else self.cursor.timed_first_mhz
        return None if first_mhz == timed_mhz else first_mhz

    def in_force_at(
        self, step: int, num_microbatches: int | None
    ) -> tuple[CompiledPlan, int] | None:
        """Return the plan of a step to come, and its first step; None: none, as far as known."""
        due = self._plans.newest_due(step)
        is_due = due is not None and _fits(due[0], num_microbatches)
        return due if is_due else self._fitting(num_microbatches)

    def plans_at(self, step: int) -> tuple[CompiledPlan, ...]:
        """Return the plans of a step to come by number of microbatches, as far as known."""
        due = self._plans.newest_due(step)
        of_numbers = (
            dict(self._kept) if due is None else {**self._kept, due[0].num_microbatches: due}
        )
        return tuple(plan for plan, _ in of_numbers.values())

    def break_off_step(self) -> None:
        """End a failed step without logging missing instructions."""
        if self.cursor is not None:
            self.cursor.end_step()

    def _keep(self, due: tuple[CompiledPlan, int] | None) -> None:
        """Keep a due plan in place of that for the same number of microbatches."""
        if due is None:
            return
        num_microbatches = due[0].num_microbatches
        self._kept.pop(num_microbatches, None)
        self._kept[num_microbatches] = due
        for oldest in tuple(self._kept)[: -_MAX_KEPT - 1]:
            del self._kept[oldest]

    def _choose(self, step: int, num_microbatches: int | None) -> None:
        """Choose the plan for steps of this number of microbatches."""
        chosen = self._fitting(num_microbatches)
        if chosen is self._plan:
            return
        self._plan, self.cursor = chosen, None
        if chosen is None:
            _logger.warning(
                "%s: steps have %d microbatches, for which there is no plan yet: no clock is set"
                " from step %d on",
                self._rank_name,
                num_microbatches,
                step,
            )
        else:
            _logger.info(
                "%s: plan version %d in force from step %d",
                self._rank_name,
                chosen[0].version,
                step,
            )

    def _fitting(self, num_microbatches: int | None) -> tuple[CompiledPlan, int] | None:
        kept = reversed(self._kept.values())
        return next(
            (kept_plan for kept_plan in kept if _fits(kept_plan[0], num_microbatches)), None
        )


def _fits(plan: CompiledPlan, num_microbatches: int | None) -> bool:
    return num_microbatches is None or plan.num_microbatches in (None, num_microbatches)
