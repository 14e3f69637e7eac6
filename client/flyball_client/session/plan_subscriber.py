"""The background thread that registers a rank and brings its plans, with their first steps."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from flyball_client.api.errors import PlannerBusyError, PlannerRefusedError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.session.planner_reachability import Backoff, PlannerReachability
from flyball_wire.errors import CodecError, FlyballError
from flyball_wire.messages import Acknowledgement, RankPlan, RankRegistration

_logger = logging.getLogger(__name__)

# A planner may grant a shorter wait than was asked for, or none: it is not asked more often.
_SHORTEST_POLL_S = 1.0


class PlanSubscriber:
    """Registers the rank, then follows its plans until stopped, whatever the planner does.

    A plan is acknowledged when it has come, and given to `activate` once the planner has named
    the step from which all ranks run it. While one is waiting for its step, a newer one
    replaces it. When the planner has forgotten the rank (404), the rank registers again.

    Args:
        planner: used from this thread; not closed here.
        job_id: the job.
        rank: within the job.
        registration: of the rank.
        current_step: the step that training is in now.
        compile_plan: checks a plan; CodecError refuses it, and it is not acknowledged.
        activate: told a plan and its first step, on this thread.
        reachability: where changes of the planner's presence are told.
        backoff: pauses after failures.
        poll_wait_s: how long one call lets the planner wait for news, s, at most 60.
    """

    def __init__(
        self,
        *,
        planner: PlannerClient,
        job_id: str,
        rank: int,
        registration: RankRegistration,
        current_step: Callable[[], int],
        compile_plan: Callable[[RankPlan], CompiledPlan],
        activate: Callable[[CompiledPlan, int], None],
        reachability: PlannerReachability,
        backoff: Backoff,
        poll_wait_s: float = 60.0,
    ) -> None:
        self.is_registered = threading.Event()
        self._planner = planner
        self._job_id = job_id
        self._rank = rank
        self._registration = registration
        self._current_step = current_step
        self._compile_plan = compile_plan
        self._activate = activate
        self._reachability = reachability
        self._backoff = backoff
        self._poll_wait_s = poll_wait_s
        self._run_id: str | None = None
        self._newest_version = 0
        self._awaited: CompiledPlan | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"flyball-plans-{rank}", daemon=True)

    @property
    def run_id(self) -> str | None:
        """Return which run of the job the planner knows the rank in; None: it has not told."""
        return self._run_id

    def start(self) -> None:
        """Begin; once."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End soon; a call that is being waited for may outlive this, and changes nothing."""
        self._stopping.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._take_turn()
            except FlyballError as error:
                self._on_failure(error)
            except Exception:
                # The planner's connections may be closed under us at the end.
                if not self._stopping.is_set():
                    _logger.exception("rank %d gets no further plans", self._rank)
                return

    def _take_turn(self) -> None:
        began_s = time.monotonic()
        has_news = True
        if not self.is_registered.is_set():
            known = self._planner.put_rank(self._job_id, self._rank, self._registration)
            self._run_id = known.run_id
            self.is_registered.set()
        elif self._awaited is None:
            has_news = self._look_for_plan(self._poll_wait_s)
        else:
            has_news = self._acknowledge(self._awaited)
        self._reachability.back("plans")
        self._backoff.reset()
        if not has_news:
            lasted_s = time.monotonic() - began_s
            self._stopping.wait(min(self._poll_wait_s, _SHORTEST_POLL_S) - lasted_s)

    def _look_for_plan(self, wait_s: float) -> bool:
        """Return whether there was one."""
        plan = self._planner.get_rank_plan(
            self._job_id, self._rank, after_version=self._newest_version, wait_s=wait_s
        )
        if plan is None or self._stopping.is_set():
            return False
        try:
            compiled = self._compile_plan(plan)
        except CodecError as error:
            _logger.warning("rank %d refuses plan version %d: %s", self._rank, plan.version, error)
            self._newest_version = plan.version
            return True
        self._newest_version = plan.version
        self._awaited = compiled
        return True

    def _acknowledge(self, awaited: CompiledPlan) -> bool:
        """Acknowledge a plan and wait for its first step; whether there is one, or a newer plan."""
        acknowledgement = Acknowledgement(
            version=awaited.version, current_step=self._current_step(), run_id=self._run_id
        )
        activation = self._planner.acknowledge(
            self._job_id, self._rank, acknowledgement, wait_s=self._poll_wait_s
        )
        if activation.first_step is None:
            return self._look_for_plan(wait_s=0.0)
        if not self._stopping.is_set():
            self._awaited = None
            self._activate(awaited, activation.first_step)
        return True

    def _on_failure(self, error: FlyballError) -> None:
        if self._stopping.is_set():
            return
        self._reachability.lost("plans", error)
        if isinstance(error, PlannerRefusedError) and error.status == 404:
            # A planner that knows neither job nor rank counts its versions from 1 again.
            self.is_registered.clear()
            self._newest_version = 0
            self._awaited = None
        pause_s = self._backoff.next_pause_s()
        if isinstance(error, PlannerBusyError):
            pause_s = max(pause_s, error.retry_after_s * random.uniform(1.0, 2.0))
        self._stopping.wait(pause_s)
