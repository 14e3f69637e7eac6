"""Readings of the planner for `flyball top`; of a job's steps only those that are new."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile

from flyball_client.api.errors import PlannerBusyError, PlannerError
from flyball_client.api.planner_client import PlannerClient
from flyball_wire.closed_loop import Straggler
from flyball_wire.read_models import JobOverview, Overview, PlanSummary, StagesOfStep

# The widest sparkline, and more than a planner's window of newest steps.
KEPT_STEPS = 120
# A whole reading finds steps that were posted again, and other silent changes.
_WHOLE_EVERY = 10


@dataclass(frozen=True, kw_only=True)
class JobReading:
    """One job, with its newest steps, of which the last may lack ranks, and its plan versions."""

    overview: JobOverview
    steps: tuple[StagesOfStep, ...]
    history: tuple[PlanSummary, ...]
    stragglers: tuple[Straggler, ...]


Read = Callable[[], Overview | JobReading]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Newest reading."""

    reading: Overview | JobReading
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


class JobReader:
    """Reads one job repeatedly; a job of the same name that is made later counts as the same."""

    def __init__(self, planner: PlannerClient, job_id: str) -> None:
        self._planner = planner
        self._job_id = job_id
        self._known: JobReading | None = None
        self._num_reads = 0

    def read(self) -> JobReading:
        """Read the job; raises PlannerError, with status 404 where there is no such job."""
        overview = self._planner.get_job_overview(self._job_id)
        known = self._known
        if self._num_reads % _WHOLE_EVERY == 0 or (
            known is not None and known.overview.created_at != overview.created_at
        ):
            known = None
        self._num_reads += 1
        # Steps from the first that lacks ranks on are read again.
        whole = tuple(
            takewhile(
                lambda step: step.num_ranks >= overview.num_ranks, known.steps if known else ()
            )
        )
        newer = self._planner.list_stages_of_steps(
            self._job_id, limit=KEPT_STEPS, after_step=whole[-1].step if whole else -1
        )
        is_same_plan = known is not None and _versions(known.overview) == _versions(overview)
        history = known.history if known is not None and is_same_plan else None
        self._known = JobReading(
            overview=overview,
            steps=(*whole, *newer)[-KEPT_STEPS:],
            history=self._planner.get_history(self._job_id) if history is None else history,
            stragglers=self._planner.list_stragglers(self._job_id),
        )
        return self._known


def _versions(overview: JobOverview) -> tuple[int | None, int | None]:
    return overview.newest_version, overview.active_version
