"""Which plan a rank follows, from step to step, and what the log tells of it."""

from __future__ import annotations

import logging

from flyball_client.session.pending_plans import PlanSwitch
from flyball_client.session.plan_compiler import compile_plan
from flyball_client.session.plan_cursor import CompiledPlan, PlanCursor
from flyball_wire.errors import CodecError
from flyball_wire.messages import RankPlan

_logger = logging.getLogger(__name__)


class PlanFollower:
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
        plans: PlanSwitch,
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
