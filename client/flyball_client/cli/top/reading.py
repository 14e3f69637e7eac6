"""Readings of the planner for `flyball top`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from flyball_client.api.errors import PlannerBusyError, PlannerError
from flyball_client.api.planner_client import PlannerClient
from flyball_wire.closed_loop import Straggler
from flyball_wire.read_models import JobOverview, Overview, PlanSummary, StagesOfStep

# The widest sparkline, and more than a planner's window of newest steps.
KEPT_STEPS = 120


@dataclass(frozen=True, kw_only=True)
class FollowedJob:
    """One job, with its newest steps, of which the last may lack ranks, and its plan versions."""

    overview: JobOverview
    steps: tuple[StagesOfStep, ...]
    history: tuple[PlanSummary, ...]
    stragglers: tuple[Straggler, ...]


Read = Callable[[], Overview | FollowedJob]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Newest reading."""

    reading: Overview | FollowedJob
    read_at: datetime
    #: Error of the calls since then; None: the reading is up to date.
    trouble: PlannerError | None = None
    #: Time of the first such error.
    trouble_since: datetime | None = None

    @property
    def retry_after_s(self) -> float:
        """Time for which the planner asks not to be called."""
        return self.trouble.retry_after_s if isinstance(self.trouble, PlannerBusyError) else 0.0


def local_time() -> datetime:
    """Return the time of day in the machine's zone."""
    return datetime.now().astimezone()


def read_again(seen: Seen, read: Read, now: Callable[[], datetime]) -> Seen:
    """Read once more; an error of the planner is kept beside the last reading."""
    try:
        return Seen(reading=read(), read_at=now())
    except PlannerError as error:
        return replace(seen, trouble=error, trouble_since=seen.trouble_since or now())


def read_job(planner: PlannerClient, job_id: str) -> FollowedJob:
    """Read one job; raises PlannerError, with status 404 where there is no such job."""
    return FollowedJob(
        overview=planner.get_job_overview(job_id),
        steps=planner.list_stages_of_steps(job_id, limit=KEPT_STEPS),
        history=planner.get_history(job_id),
        stragglers=planner.list_stragglers(job_id),
    )
