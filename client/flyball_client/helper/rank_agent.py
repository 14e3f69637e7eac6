"""Agent that calls the planner for a rank: it follows plans and posts measured steps."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass, field

from flyball_client.api.errors import PlannerBusyError, PlannerRefusedError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.helper.measurement_poster import MeasurementPoster
from flyball_client.helper.planner_calls import (
    NO_PLAN,
    Backoff,
    KnownPlan,
    PlannerReachability,
    PlannerThread,
    Rank,
    RankClient,
    UnusablePlanError,
)
from flyball_client.helper.step_planner import StepPlanner
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.steps.agreement import Coupling
from flyball_client.steps.step_plans import StepDeadlines, StepLoad
from flyball_wire.errors import FlyballError
from flyball_wire.messages import RankRegistration
from flyball_wire.plans.rank_plan import RankPlan

_logger = logging.getLogger(__name__)

# Least time between two polls, where a planner grants a shorter wait than was requested, and
# between two plans.
_SHORTEST_POLL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class LinkTimes:
    """Timeouts and intervals of a rank's calls to its planner, all in s.

    Attributes:
        poll_wait_s: Time that one call waits at the planner for a new plan, at most 60.
        gather_s: Time between two posts of measured steps; None: the planner's choice.
        first_retry_s: Pause after the first failed call; doubles.
        longest_retry_s: Longest such pause.
        flush_timeout_s: Time for posting the last measurements at the end.

    Raises:
        ValueError: The pauses are not above 0, or the first is the longer.
    """

    poll_wait_s: float = 60.0
    gather_s: float | None = None
    first_retry_s: float = 0.5
    longest_retry_s: float = 15.0
    flush_timeout_s: float = 2.0

    def __post_init__(self) -> None:
        self.backoff()

    def backoff(self) -> Backoff:
        """Return the pauses of one thread."""
        return Backoff(first_s=self.first_retry_s, longest_s=self.longest_retry_s)


@dataclass(frozen=True, kw_only=True)
class RankSpec:
    """State of a rank from which an agent of it starts.

    Attributes:
        start_id: Start that it is registered in; None: it is not registered.
        known: Newest plan that it has.
        is_lost: True: the planner could not be reached last.
        coupling: Where its data-parallel ranks wait for each other; None: no step is planned.
    """

    job_id: str
    rank: int
    registration: RankRegistration
    times: LinkTimes = field(default_factory=LinkTimes)
    start_id: str | None = None
    known: KnownPlan = NO_PLAN
    is_lost: bool = False
    coupling: Coupling | None = None


class RankAgent:
    """Threads of a rank's agent: one receives plans, one posts measurements, one plans steps."""

    def __init__(self, spec: RankSpec, planner: PlannerClient, rank: Rank) -> None:
        self._calls = calls = RankClient(
            planner,
            spec.job_id,
            spec.rank,
            spec.registration,
            start_id=spec.start_id,
            received=self._received,
        )
        self._steps: StepPlanner | None = None
        if spec.coupling is not None:
            supported_mhz = spec.registration.sm_clocks_mhz or ()
            self._steps = StepPlanner(rank, calls.name, spec.coupling, supported_mhz)
        reachability = PlannerReachability(
            calls.name,
            is_lost=spec.is_lost,
            was_known=spec.start_id is not None,
            report=rank.set_lost,
        )
        self._subscriber = PlanSubscriber(
            calls, rank, reachability=reachability, times=spec.times, known=spec.known
        )
        self._poster = MeasurementPoster(
            calls,
            rank,
            reachability=reachability,
            backoff=spec.times.backoff(),
            period_s=spec.times.gather_s,
        )

    def start(self) -> None:
        """Start the threads; may be called once."""
        self._subscriber.start()
        self._poster.start()
        if self._steps is not None:
            self._steps.start()

    def ask(self, question: StepLoad | StepDeadlines) -> None:
        """Answer about a step through the rank's `step_timed` or `step_planned`."""
        if self._steps is not None:
            self._steps.ask(question)

    def stop(self) -> None:
        """Begin to post the rest and to report the rank's end; `left` follows."""
        self._subscriber.stop()
        self._poster.stop()

    def leave(self) -> None:
        """Report the end of the rank, which can be asked for nothing any more."""
        self._subscriber.stop()
        if self._calls.is_registered_at_last():
            self._calls.leave()

    def close(self, timeout_s: float = 0.0) -> None:
        """Stop the threads, and wait at most `timeout_s` for a call in progress."""
        self._poster.stop()
        if self._steps is not None:
            self._steps.stop()
        self._subscriber.stop(timeout_s)

    def _received(self, plan: RankPlan) -> None:
        if self._steps is not None and plan.pipeline is not None:
            self._steps.keep(plan)


class PlanSubscriber(PlannerThread):
    """Thread that registers the rank and follows its plans.

    A plan is acknowledged on arrival, and handed to the rank once the planner has named its
    first step. A newer plan replaces one that waits for its first step. When the planner no
    longer has the rank (404), the rank registers again. A planner whose database was restored to
    an older state may send a plan of a lower version, which is followed like any other.
    """

    def __init__(
        self,
        calls: RankClient,
        rank: Rank,
        *,
        reachability: PlannerReachability,
        times: LinkTimes,
        known: KnownPlan,
    ) -> None:
        super().__init__(f"flyball-plans-{calls.rank}", f"{calls.name}: no further plans")
        self._calls = calls
        self._rank = rank
        self._reachability = reachability
        self._backoff = times.backoff()
        self._poll_wait_s = times.poll_wait_s
        self._newest = known
        self._awaited: CompiledPlan | None = None
        self._next_plan_s = 0.0

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._poll()
            except FlyballError as error:
                self._on_failure(error)

    def _poll(self) -> None:
        began_s = time.monotonic()
        has_news = True
        if not self._calls.is_registered.is_set():
            self._rank.registered(self._calls.register())
        elif self._awaited is None:
            has_news = self._get_plan(self._poll_wait_s)
        else:
            has_news = self._acknowledge(self._awaited)
        self._reachability.back("plans")
        self._backoff.reset()
        if not has_news:
            elapsed_s = time.monotonic() - began_s
            self._stopping.wait(min(self._poll_wait_s, _SHORTEST_POLL_S) - elapsed_s)

    def _get_plan(self, wait_s: float) -> bool:
        """Return whether there was a new plan."""
        # A planner that has a new version for every call must not keep this process busy.
        if self._stopping.wait(self._next_plan_s - time.monotonic()):
            return False
        try:
            plan = self._calls.newest_plan(self._newest, wait_s)
        except UnusablePlanError as error:
            self._newest = error.plan
            self._awaited = None
            _logger.warning(
                "%s: plan version %d refused: %s", self._calls.name, error.plan.version, error
            )
        else:
            if plan is None or self._stopping.is_set():
                return False
            self._newest = KnownPlan(plan.version, plan.plan_id)
            self._awaited = plan
            self._log_raised(plan)
        self._next_plan_s = time.monotonic() + min(self._poll_wait_s, _SHORTEST_POLL_S)
        return True

    def _log_raised(self, plan: CompiledPlan) -> None:
        if plan.num_raised:
            _logger.warning(
                "%s: the GPU lacks %d of the %d clocks of plan version %d; the next higher ones"
                " are set",
                self._calls.name,
                plan.num_raised,
                plan.num_clocks,
                plan.version,
            )

    def _acknowledge(self, awaited: CompiledPlan) -> bool:
        """Acknowledge a plan; return whether it has a first step or is replaced."""
        activation = self._calls.acknowledge(
            awaited.version, self._rank.current_step(), self._poll_wait_s
        )
        if activation.first_step is None:
            return self._get_plan(wait_s=0.0)
        if not self._stopping.is_set():
            self._awaited = None
            self._rank.activate(awaited, activation.first_step)
        return True

    def _on_failure(self, error: FlyballError) -> None:
        if self._stopping.is_set():
            return
        self._reachability.lost("plans", error)
        if isinstance(error, PlannerRefusedError) and error.status == 404:
            # A planner that lost the job counts its versions from 1 again.
            self._calls.is_registered.clear()
            self._newest = NO_PLAN
            self._awaited = None
        pause_s = self._backoff.next_pause_s()
        if isinstance(error, PlannerBusyError):
            pause_s = max(pause_s, error.retry_after_s * random.uniform(1.0, 2.0))
        self._stopping.wait(pause_s)
