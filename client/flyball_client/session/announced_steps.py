"""Steps of a session whose work is announced, and of one that announces nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from flyball_client.session.active_plan import ActivePlan
from flyball_client.session.plan_cursor import CompiledPlan, PlanCursor
from flyball_client.session.planner_link import PlannerLink
from flyball_client.session.step_shape import StepShape
from flyball_client.steps.agreement import AloneAgreement, Coupling, StepAgreement
from flyball_client.steps.step_exchange import StepExchange
from flyball_client.steps.step_plans import PlanKey
from flyball_pipeline.work import StepWork
from flyball_wire.measurements import StepPlanReport

_logger = logging.getLogger(__name__)


class AnnouncedSteps:
    """A session's steps, of which none has a plan of its own until `plan` is called.

    Args:
        stage: Stage of the rank.
        rank_name: Job and rank, for the log.
        link: Link to the planner; None: there is none.
        clock_s: Clock of the times of its instructions, s.

    Attributes:
        shape: Number of microbatches of the last steps.
    """

    def __init__(
        self,
        stage: int,
        rank_name: str,
        link: PlannerLink | None,
        clock_s: Callable[[], float],
    ) -> None:
        self._stage, self._rank_name, self._link = stage, rank_name, link
        self._clock_s = clock_s
        self.shape = StepShape()
        self._exchange: StepExchange | None = None
        self._has_logged = False

    def plan(self, agreement: StepAgreement | None, coupling: Coupling, *, first_step: int) -> None:
        """Take part in one exchange for each step from `first_step` on, once `start` is called.

        Raises:
            RuntimeError: It was called before.
        """
        if self._exchange is not None:
            raise RuntimeError("plan_steps was called before")
        link = self._link
        self._exchange = StepExchange(
            agreement or AloneAgreement(),
            ask=(lambda question: False) if link is None else link.ask,
            take=(lambda: False) if link is None else link.take_step_plan,
            first_step=first_step,
            stage=self._stage,
            rank_name=self._rank_name,
            clock_s=self._clock_s,
        )
        if link is not None:
            link.plan_steps(self._exchange, coupling)

    def start(self) -> None:
        """Start the exchanges."""
        if self._exchange is not None:
            self._exchange.start()

    def close(self) -> None:
        """End the exchanges."""
        if self._exchange is not None:
            self._exchange.close()

    def announce(
        self,
        step: int,
        work: Sequence[float | Sequence[float]],
        slowest_s: float | None,
        coupling: Coupling | None,
    ) -> None:
        """Announce a step's work; what cannot be used is logged once."""
        if self._exchange is not None:
            self._exchange.announce(step, work, slowest_s, coupling)
        elif not self._has_logged:
            self._has_logged = True
            _logger.warning("%s: announced work is not used without plan_steps", self._rank_name)

    def void(self, step: int) -> None:
        """Let a step run at the highest clocks, since another step was announced."""
        if self._exchange is not None:
            self._exchange.void(step)

    def num_microbatches(self, step: int, plans: ActivePlan) -> int | None:
        """Return the number of a step to come; None: not known.

        It is that of the last steps where none is announced, or there is no plan for that.
        """
        of_steps = self.shape.num_microbatches
        announced = None if self._exchange is None else self._exchange.num_microbatches(step)
        if announced in (None, of_steps):
            return of_steps
        has_plan = any(plan.num_microbatches == announced for plan in plans.plans_at(step))
        return announced if has_plan else of_steps

    def clocks(self, plan: CompiledPlan, step: int) -> tuple[int, ...] | None:
        """Return the step's own clocks, or the highest, MHz; None: those of the plan."""
        if self._exchange is not None:
            return self._exchange.clocks(plan, step)
        return plan.highest_mhz if plan.has_step_plans else None

    def begin(self, step: int, plans: ActivePlan) -> None:
        """Note that a step has begun."""
        if self._exchange is None:
            return
        of_steps = self.shape.num_microbatches
        following, _ = plans.in_force_at(step + 1, of_steps) or (None, None)
        others = {
            number: key_of(plan)
            for plan in plans.plans_at(step + 1)
            if (number := plan.num_microbatches) is not None
            and plan.has_step_plans
            and plan is not following
        }
        cursor = plans.cursor
        num = 0 if cursor is None else len(cursor.plan.kinds)
        self._exchange.begin(
            step,
            next_plan=key_of(following) if following and following.has_step_plans else None,
            other_plans=others,
            last_mhz=cursor.clocks_mhz[num - 1] if cursor is not None and num else 0,
        )

    def end(
        self, step: int, plan: CompiledPlan | None
    ) -> tuple[StepWork | None, StepPlanReport | None]:
        """Return the work of a step that has run, and its own plan; `plan` None: not as planned."""
        if self._exchange is None:
            return None, None
        return self._exchange.end(step, None if plan is None else key_of(plan))

    def learn(self, times_s: Callable[[], Sequence[float]], cursor: PlanCursor | None) -> None:
        """Learn from the step that has ended, once the next step's clock is requested."""
        if self._exchange is not None and cursor is not None:
            self._exchange.learn(times_s, cursor.plan.highest_sm_clock_mhz)


def key_of(plan: CompiledPlan) -> PlanKey:
    """Return what tells a plan from others."""
    return PlanKey(plan.version, plan.plan_id)
