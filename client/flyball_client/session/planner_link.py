"""A rank's two threads to the planner: plans come in by one, measurements go out by the other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from flyball_client.api.planner_client import PlannerClient
from flyball_client.session.measurement_outbox import MeasurementOutbox
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.session.plan_subscriber import PlanSubscriber
from flyball_client.session.planner_reachability import Backoff, PlannerReachability
from flyball_wire.errors import FlyballError
from flyball_wire.messages import RankPlan, RankRegistration, StepMeasurement

_logger = logging.getLogger(__name__)

_FEED_STOP_TIMEOUT_S = 0.2


@dataclass(frozen=True, kw_only=True)
class LinkTimes:
    """How patient a rank is with its planner, all in s.

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
