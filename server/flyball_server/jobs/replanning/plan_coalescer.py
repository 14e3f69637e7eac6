"""Plannings that calls wait for: in the event loop, not in threads that other calls need."""

from __future__ import annotations

from functools import partial

from anyio import CapacityLimiter, to_thread

from flyball_server.jobs.job_state import JobInput
from flyball_server.jobs.registry.inspection import JobSummary
from flyball_server.jobs.replanning.plan_job import is_planned, plan_if_needed
from flyball_server.jobs.services import JobServices
from flyball_server.kit.single_flight import SingleFlight

# Jobs that calls have planned at once; a thread each, which waits for its solve.
_MAX_JOBS = 64


class PlanCoalescer:
    """Plans jobs for whoever has changed their inputs; for the event loop's own thread.

    Of the calls that wait for the same planning only one has a thread.
    """

    def __init__(self, services: JobServices) -> None:
        self._services = services
        self._limiter = CapacityLimiter(_MAX_JOBS)
        self._planning = SingleFlight[tuple[str, JobInput], JobSummary]()

    async def planned(self, stored: JobSummary, asked_by: JobInput) -> JobSummary:
        """The job, planned from what the caller has stored or from what came later.

        Args:
            stored: the job after the change.
            asked_by: the input that was changed.

        Raises:
            PlanningFailedError, UnknownJobError, PlanningStoppedError: as for `plan_if_needed`.
        """
        if is_planned(stored):
            return stored
        key = (stored.job.job_id, asked_by)
        # One in flight may have read the job before the change; one that begins after it has not.
        await self._planning.wait_for_earlier(key)
        plan = partial(plan_if_needed, self._services, *key)
        return await self._planning.run(
            key, lambda: to_thread.run_sync(plan, limiter=self._limiter)
        )
