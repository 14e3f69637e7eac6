"""A rank's link to its planner: the state that its agent starts from, and what that reports."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from flyball_client.api.planner_client import PlannerClient
from flyball_client.helper.link import OpenAgent, open_agent
from flyball_client.helper.planner_calls import NO_PLAN, KnownPlan
from flyball_client.helper.rank_agent import RankAgent, RankSpec
from flyball_client.session.measurement_outbox import MeasurementOutbox
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.steps.agreement import Coupling
from flyball_client.steps.step_plans import AsksForSteps, StepDeadlines, StepLoad, StepPlan

_logger = logging.getLogger(__name__)


class PlannerLink:
    """Link from `start` to `stop`; its agent runs in the helper process, see `helper.link`.

    Args:
        planner: Client of the planner; not closed here.
        spec: State of the rank, without its start.
        start_id: Start that the rank belongs to, known now or later; None: none is named. Nothing
            is called before it is known. Where it fails, nothing ever is, and its error is logged.
        current_step: Function that returns the current training step.
        activate: Function that receives a plan and its first step, on another thread.

    Attributes:
        outbox: Measured steps that are not posted yet.
        current_step, take_steps, posted, left: As the agent's Rank.
        is_lost: True: the last call could not reach the planner.
    """

    def __init__(
        self,
        planner: PlannerClient,
        spec: RankSpec,
        start_id: Future[str | None],
        *,
        current_step: Callable[[], int],
        activate: Callable[[CompiledPlan, int], None],
    ) -> None:
        self.outbox = MeasurementOutbox()
        self.is_lost = spec.is_lost
        self._planner = planner
        self._spec = spec
        self._named_start = start_id
        self._opening = threading.Lock()
        self._is_stopped = False
        self._start_id = spec.start_id
        self._known = spec.known
        self._name = f"job {spec.job_id} rank {spec.rank}"
        self.current_step = current_step
        self.take_steps = self.outbox.take
        self.posted = self.outbox.posted
        self._activate = activate
        self._has_left = threading.Event()
        self.left = self._has_left.set
        self._agent: OpenAgent | None = None
        self._steps: AsksForSteps | None = None

    def plan_steps(self, steps: AsksForSteps, coupling: Coupling) -> None:
        """Plan single steps too; must be called before `start`."""
        self._steps = steps
        self._spec = replace(self._spec, coupling=coupling)

    def ask(self, question: StepLoad | StepDeadlines) -> bool:
        """Ask the agent about a step; return whether there is one that may answer."""
        return self._agent is not None and self._agent.ask(question)

    def take_step_plan(self) -> bool:
        """Take the next plan of a step that has come; return whether there was one."""
        return self._agent is not None and self._agent.take_step_plan()

    def start(self) -> None:
        """Start the agent, as soon as the start is known; may be called once.

        Raises:
            RuntimeError: No thread can be started, or the start is known to have no name.
        """
        named = self._named_start
        if not named.done():
            named.add_done_callback(self._open)
            return
        if not named.cancelled() and (error := named.exception()) is not None:
            raise RuntimeError(str(error)) from error
        self._open(named)

    def _open(self, named: Future[str | None]) -> None:
        with self._opening:
            if self._is_stopped or named.cancelled():
                return
            if (error := named.exception()) is not None:
                _logger.warning("%s: trains without a plan: %s", self._name, error)
                return
            registration = replace(self._spec.registration, start_id=named.result())
            self._spec = replace(self._spec, registration=registration)
            self._agent = open_agent(self._planner, self)

    def stop(self) -> None:
        """Post the rest, report the rank's end, and stop, within about `flush_timeout_s`."""
        with self._opening:
            self._is_stopped = True
        if self._agent is not None:
            self._agent.stop()
            self._has_left.wait(self._spec.times.flush_timeout_s)
            self._agent.close()
        num_left = self.outbox.clear()
        if num_left and self._agent is not None:
            _logger.log(
                # A lost planner has been logged.
                logging.DEBUG if self.is_lost else logging.WARNING,
                "%s: %d measurements dropped: the planner did not accept them in time",
                self._name,
                num_left,
            )

    # ------------------------------------------------------------------ the agent's rank

    def agent_maker(self) -> partial[RankAgent]:
        """Return what makes an agent that goes on where the last agent has ended."""
        # Another helper does not have the pipeline of the known version.
        known = self._known if self._steps is None else NO_PLAN
        state = replace(self._spec, start_id=self._start_id, known=known, is_lost=self.is_lost)
        return partial(RankAgent, state)

    def registered(self, start_id: str) -> None:
        """Keep the start, in which another agent goes on."""
        self._start_id = start_id

    def activate(self, plan: CompiledPlan, first_step: int) -> None:
        """Pass the plan on."""
        self._known = KnownPlan(plan.version, plan.plan_id)
        self._activate(plan, first_step)

    def step_timed(self, step: int, times_s: tuple[float, ...]) -> None:
        """Pass the answer on."""
        if self._steps is not None:
            self._steps.step_timed(step, times_s)

    def step_planned(self, plan: StepPlan) -> None:
        """Pass the answer on."""
        if self._steps is not None:
            self._steps.step_planned(plan)

    def set_lost(self, is_lost: bool) -> None:
        """Note that the planner is lost, or back; the agent logs it."""
        self.is_lost = is_lost

    def helper_ended(self, why: str) -> None:
        """Count the planner as lost until another agent reaches it."""
        if not self.is_lost:
            _logger.warning(
                "%s: planner lost, training continues and calls are retried: the process that"
                " calls it %s",
                self._name,
                why,
            )
        self.is_lost = True
