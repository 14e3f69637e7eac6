"""A rank's two threads to the planner: plans come in by one, measurements go out by the other."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from flyball_client.api.errors import PlannerBusyError, PlannerRefusedError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.session.measurement_outbox import MeasurementOutbox
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.session.planner_reachability import Backoff, PlannerReachability
from flyball_wire.errors import CodecError, FlyballError
from flyball_wire.messages import Acknowledgement, RankPlan, RankRegistration, StepMeasurement

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


_logger = logging.getLogger(__name__)

_FEED_STOP_TIMEOUT_S = 0.2


@dataclass(frozen=True, kw_only=True)
class LinkTimes:
    """Timeouts and intervals of a rank's calls to its planner, all in s.

    Attributes:
        poll_wait_s: how long one call lets the planner wait for a new plan, at most 60.
        gather_s: time between two posts of measured steps; None: the planner's choice.
        first_retry_s: pause after the first failed call; doubles.
        longest_retry_s: longest such pause.
        flush_timeout_s: how long the last measurements may take to post at the end.
    """

    poll_wait_s: float = 60.0
    gather_s: float | None = None
    first_retry_s: float = 0.5
    longest_retry_s: float = 15.0
    flush_timeout_s: float = 2.0


class PlannerLink:
    """Both threads, from `start` to `stop`.

    Args:
        planner: not closed here.
        job_id: the job.
        rank: within the job.
        rank_name: for the log.
        registration: of the rank.
        times: how patient it is.
        current_step: the step that training is in now.
        compile_plan: checks a plan; CodecError refuses it.
        activate: told a plan and its first step, on the plans' thread.
    """

    def __init__(
        self,
        planner: PlannerClient,
        *,
        job_id: str,
        rank: int,
        rank_name: str,
        registration: RankRegistration,
        times: LinkTimes,
        current_step: Callable[[], int],
        compile_plan: Callable[[RankPlan], CompiledPlan],
        activate: Callable[[CompiledPlan, int], None],
    ) -> None:
        self._flush_timeout_s = times.flush_timeout_s
        self._reachability = PlannerReachability(rank_name)
        self._subscriber = PlanSubscriber(
            planner=planner,
            job_id=job_id,
            rank=rank,
            registration=registration,
            current_step=current_step,
            compile_plan=compile_plan,
            activate=activate,
            reachability=self._reachability,
            backoff=Backoff(first_s=times.first_retry_s, longest_s=times.longest_retry_s),
            poll_wait_s=times.poll_wait_s,
        )
        self._outbox = MeasurementOutbox(
            planner=planner,
            job_id=job_id,
            rank=rank,
            may_post=self._subscriber.is_registered,
            run_id=lambda: self._subscriber.run_id,
            reachability=self._reachability,
            backoff=Backoff(first_s=times.first_retry_s, longest_s=times.longest_retry_s),
            period_s=times.gather_s,
            at_end=lambda: self._leave(planner, job_id, rank),
        )

    @property
    def is_lost(self) -> bool:
        """Return whether the planner did not answer the last call."""
        return self._reachability.is_lost

    @property
    def num_dropped(self) -> int:
        """Measurements that the planner will never see."""
        return self._outbox.num_dropped

    def put(self, measurement: StepMeasurement) -> None:
        """Keep a measurement for posting; never waits for the planner."""
        self._outbox.put(measurement)

    def start(self) -> None:
        """Begin; once."""
        self._subscriber.start()
        self._outbox.start()

    def stop(self) -> None:
        """Post what is left, tell that the rank leaves, and end.

        All within `flush_timeout_s` or a little more.
        """
        self._outbox.stop(self._flush_timeout_s)
        self._subscriber.stop(_FEED_STOP_TIMEOUT_S)

    def _leave(self, planner: PlannerClient, job_id: str, rank: int) -> None:
        """Tell the planner that this rank's training is over; it may be gone, or an older one."""
        if self._reachability.is_lost:
            return
        try:
            planner.leave(job_id, rank, run_id=self._subscriber.run_id)
        except FlyballError as error:
            _logger.debug("rank %d left without the planner knowing: %s", rank, error)
