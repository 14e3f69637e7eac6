"""What is read of the planner for one frame; of a job's steps only what is new."""

from __future__ import annotations

from dataclasses import dataclass

from flyball_client.api.planner_client import PlannerClient
from flyball_wire.closed_loop import StragglerView
from flyball_wire.read_models import JobOverview, PlanSummary, StagesOfStep

# The widest sparkline, and more than a planner's window of newest steps.
KEPT_STEPS = 120
# Steps that were posted anew, and whatever else changed without a sign, are seen so.
_WHOLE_EVERY = 10


@dataclass(frozen=True, kw_only=True)
class JobReading:
    """One job as it was read.

    Attributes:
        steps: the newest, rising; the last may lack ranks.
        history: its plan versions, rising.
    """

    overview: JobOverview
    steps: tuple[StagesOfStep, ...]
    history: tuple[PlanSummary, ...]
    stragglers: tuple[StragglerView, ...]


class JobReader:
    """Reads one job again and again.

    Args:
        planner: whom to ask.
        job_id: the job; one of the same name that is made later is the same to people.
    """

    def __init__(self, planner: PlannerClient, job_id: str) -> None:
        self._planner = planner
        self._job_id = job_id
        self._known: JobReading | None = None
        self._num_reads = 0

    def read(self) -> JobReading:
        """The job as it is now.

        Raises:
            PlannerError: the planner is away or refuses; 404: there is no such job.
        """
        overview = self._planner.get_job_overview(self._job_id)
        known = self._known
        is_whole = (
            known is None
            or known.overview.created_at != overview.created_at
            or self._num_reads % _WHOLE_EVERY == 0
        )
        self._num_reads += 1
        before = None if is_whole else known
        reading = JobReading(
            overview=overview,
            steps=self._steps(overview, before),
            history=self._history(overview, before),
            stragglers=self._planner.list_stragglers(self._job_id),
        )
        self._known = reading
        return reading

    def _steps(self, overview: JobOverview, known: JobReading | None) -> tuple[StagesOfStep, ...]:
        whole = () if known is None else _whole_steps(known.steps, overview.num_ranks)
        newer = self._planner.list_stages_of_steps(
            self._job_id, limit=KEPT_STEPS, after_step=whole[-1].step if whole else -1
        )
        return (*whole, *newer)[-KEPT_STEPS:]

    def _history(self, overview: JobOverview, known: JobReading | None) -> tuple[PlanSummary, ...]:
        if known is not None and _versions(known.overview) == _versions(overview):
            return known.history
        return self._planner.get_history(self._job_id)


def _whole_steps(steps: tuple[StagesOfStep, ...], num_ranks: int) -> tuple[StagesOfStep, ...]:
    """Those before the first that lacks ranks."""
    for i, step in enumerate(steps):
        if step.num_ranks < num_ranks:
            return steps[:i]
    return steps


def _versions(overview: JobOverview) -> tuple[int | None, int | None]:
    return overview.newest_version, overview.active_version
