"""Typed calls to the planner, one method per route."""

from __future__ import annotations

from flyball_client.api.connection import MAX_WAIT_S, PlannerConnection, Retries
from flyball_wire import routes
from flyball_wire.closed_loop import (
    ComparisonRequest,
    ComparisonStatus,
    RecordedRuns,
    Straggler,
    StragglerAnnouncement,
    Timetable,
    TimetableStatus,
)
from flyball_wire.measurements import Accepted, JobStep, MeasurementBatch
from flyball_wire.messages import (
    Acknowledgement,
    Departure,
    Health,
    JobRegistration,
    JobView,
    PlanVersion,
    PlanView,
    RankRegistration,
    RegisteredRank,
)
from flyball_wire.online_profiling import ProfilingStatus
from flyball_wire.plan_options import TargetChange
from flyball_wire.plans.rank_plan import RankPlan
from flyball_wire.read_models import (
    JobFrontier,
    JobOverview,
    Overview,
    PlanSummary,
    PlanTimeline,
    StagesOfStep,
)
from flyball_wire.savings import JobReport

__all__ = ["MAX_WAIT_S", "PlannerClient", "Retries"]

# For calls that make a plan, or read all plans or steps of a job.
_LONG_WORK_S = MAX_WAIT_S


class PlannerClient(PlannerConnection):
    """Calls to one planner; see PlannerConnection for timeouts, retries and errors."""

    def health(self) -> Health:
        """Return the planner's state and version."""
        return self.one(Health, "GET", routes.HEALTH)

    def put_job(self, job_id: str, registration: JobRegistration) -> JobView:
        """Register a job, or change its registration."""
        return self.one(
            JobView, "PUT", routes.JOB, job_id=job_id, body=registration, wait_s=_LONG_WORK_S
        )

    def get_job(self, job_id: str) -> JobView:
        """Return one job."""
        return self.one(JobView, "GET", routes.JOB, job_id=job_id)

    def list_jobs(self) -> tuple[JobView, ...]:
        """Return all jobs."""
        return self.many(JobView, "GET", routes.JOBS)

    def delete_job(self, job_id: str) -> None:
        """Delete a job without ranks, with all that it measured."""
        self.send("DELETE", routes.JOB, job_id=job_id)

    def put_profile_csv(self, job_id: str, text: str) -> JobView:
        """Store a job's stage profile, as CSV text."""
        return self.one(
            JobView,
            "PUT",
            routes.PROFILE,
            job_id=job_id,
            content=text.encode(),
            headers={"Content-Type": "text/csv; charset=utf-8"},
            wait_s=_LONG_WORK_S,
        )

    def put_target(self, job_id: str, change: TargetChange) -> JobView:
        """Change a job's planning options from now on."""
        return self.one(
            JobView, "PUT", routes.TARGET, job_id=job_id, body=change, wait_s=_LONG_WORK_S
        )

    def put_rank(self, job_id: str, rank: int, registration: RankRegistration) -> RegisteredRank:
        """Register a rank of a job."""
        return self.one(
            RegisteredRank, "PUT", routes.RANK, job_id=job_id, rank=rank, body=registration
        )

    def get_rank_plan(
        self,
        job_id: str,
        rank: int,
        *,
        after_version: int = 0,
        plan_id: str | None = None,
        start_id: str | None = None,
        wait_s: float = 0.0,
    ) -> RankPlan | None:
        """Return the newest plan of a rank if it is newer than `after_version`.

        Args:
            job_id: Name of the job.
            rank: Rank within the job.
            after_version: Newest version already received; 0: none.
            plan_id: Its `plan_id`, after which any other plan is newer; None: not given.
            start_id: Start that the rank is registered in; None: not given.
            wait_s: Time in s that the planner holds the call open, at most 60.

        Returns:
            The plan; None: there was no newer one within `wait_s`.
        """
        response = self.send(
            "GET",
            routes.RANK_PLAN,
            job_id=job_id,
            rank=rank,
            query={
                "after_version": after_version,
                "plan_id": plan_id,
                "start_id": start_id,
                "wait_s": wait_s,
            },
            wait_s=wait_s,
        )
        return None if response.status_code == 204 else self.decoded(RankPlan, response)

    def acknowledge(
        self, job_id: str, rank: int, acknowledgement: Acknowledgement, *, wait_s: float = 0.0
    ) -> PlanVersion:
        """Acknowledge a plan version; wait up to `wait_s` (at most 60) for its first step."""
        return self.one(
            PlanVersion,
            "POST",
            routes.RANK_ACKNOWLEDGEMENT,
            job_id=job_id,
            rank=rank,
            body=acknowledgement,
            query={"wait_s": wait_s},
            wait_s=wait_s,
        )

    def get_first_step(self, job_id: str, version: int, *, wait_s: float = 0.0) -> PlanVersion:
        """Return a version's first step; wait up to `wait_s` (at most 60) for it."""
        return self.one(
            PlanVersion,
            "GET",
            routes.FIRST_STEP,
            job_id=job_id,
            version=version,
            query={"wait_s": wait_s},
            wait_s=wait_s,
        )

    def post_measurements(self, job_id: str, rank: int, batch: MeasurementBatch) -> Accepted:
        """Store a rank's measured steps."""
        return self.one(
            Accepted, "POST", routes.RANK_MEASUREMENTS, job_id=job_id, rank=rank, body=batch
        )

    def leave(self, job_id: str, rank: int, *, start_id: str | None = None) -> None:
        """Report the end of a rank's training; its measurements stay."""
        body = Departure(start_id=start_id)
        self.send("POST", routes.RANK_DEPARTURE, job_id=job_id, rank=rank, body=body)

    def list_plans(self, job_id: str) -> tuple[PlanView, ...]:
        """Return all plan versions of a job."""
        return self.many(PlanView, "GET", routes.PLANS, job_id=job_id)

    def get_plan(self, job_id: str, version: int) -> PlanView:
        """Return one plan version of a job."""
        return self.one(PlanView, "GET", routes.PLAN, job_id=job_id, version=version)

    def get_frontier(
        self, job_id: str, *, points: int | None = None, wait_s: float = 60.0
    ) -> JobFrontier:
        """Return a job's time-energy frontier.

        Args:
            job_id: Name of the job.
            points: Number of points; None: the planner's default.
            wait_s: Time in s that the planner may take, at most 60.
        """
        query = {"points": points}
        return self.one(
            JobFrontier, "GET", routes.FRONTIER, job_id=job_id, query=query, wait_s=wait_s
        )

    def list_steps(self, job_id: str, *, limit: int | None = None) -> tuple[JobStep, ...]:
        """Return measured steps of a job in rising order; limit None: the planner's default."""
        return self.many(JobStep, "GET", routes.STEPS, job_id=job_id, query={"limit": limit})

    # ------------------------------------------------------------------ the closed loop

    def get_profile_csv(self, job_id: str) -> str:
        """Return the profile that a job is planned from, given or measured, as CSV."""
        return self.send("GET", routes.PROFILE, job_id=job_id).text

    def get_profiling(self, job_id: str) -> ProfilingStatus:
        """Return the progress of a job's online profiling."""
        return self.one(ProfilingStatus, "GET", routes.PROFILING, job_id=job_id)

    def post_straggler(self, job_id: str, report: StragglerAnnouncement) -> Straggler:
        """Announce a straggler, from now or from a later time."""
        return self.one(Straggler, "POST", routes.STRAGGLERS, job_id=job_id, body=report)

    def list_stragglers(self, job_id: str) -> tuple[Straggler, ...]:
        """Return a job's stragglers, announced and detected."""
        return self.many(Straggler, "GET", routes.STRAGGLERS, job_id=job_id)

    def delete_straggler(self, job_id: str, rank: int) -> None:
        """Withdraw the announcements about a rank, if there are any."""
        self.send("DELETE", routes.STRAGGLER, job_id=job_id, rank=rank)

    def put_timetable(self, job_id: str, timetable: Timetable) -> TimetableStatus:
        """Replace a job's targets by time of day."""
        return self.one(TimetableStatus, "PUT", routes.TIMETABLE, job_id=job_id, body=timetable)

    def get_timetable(self, job_id: str) -> TimetableStatus:
        """Return a job's targets by time of day, and the target in force."""
        return self.one(TimetableStatus, "GET", routes.TIMETABLE, job_id=job_id)

    def delete_timetable(self, job_id: str) -> None:
        """Delete a job's timetable; its own target holds at all times."""
        self.send("DELETE", routes.TIMETABLE, job_id=job_id)

    def put_comparison(self, job_id: str, request: ComparisonRequest) -> ComparisonStatus:
        """Start a comparison: steps at the highest clocks in turn with steps on the plan."""
        return self.one(ComparisonStatus, "PUT", routes.COMPARISON, job_id=job_id, body=request)

    def get_comparison(self, job_id: str) -> ComparisonStatus:
        """Return the progress of a job's comparison."""
        return self.one(ComparisonStatus, "GET", routes.COMPARISON, job_id=job_id)

    def delete_comparison(self, job_id: str) -> None:
        """End a job's comparison; the plan is run alone again."""
        self.send("DELETE", routes.COMPARISON, job_id=job_id)

    def get_report(self, job_id: str) -> JobReport:
        """Return a job's measured times, energies and savings."""
        return self.one(JobReport, "GET", routes.REPORT, job_id=job_id)

    def get_recorded_runs(self, job_id: str) -> RecordedRuns:
        """Return a job's measurements of each plan version as recorded runs."""
        return self.one(
            RecordedRuns, "GET", routes.RECORDED_RUNS, job_id=job_id, wait_s=_LONG_WORK_S
        )

    # ------------------------------------------------------------------ overviews

    def get_overview(self) -> Overview:
        """Return a row for each job that the caller may read."""
        return self.one(Overview, "GET", routes.OVERVIEW)

    def get_job_overview(self, job_id: str) -> JobOverview:
        """Return one job's row."""
        return self.one(JobOverview, "GET", routes.JOB_OVERVIEW, job_id=job_id)

    def get_history(self, job_id: str) -> tuple[PlanSummary, ...]:
        """Return all plan versions of a job without their instructions, rising."""
        return self.many(PlanSummary, "GET", routes.HISTORY, job_id=job_id, wait_s=_LONG_WORK_S)

    def get_timeline(self, job_id: str) -> PlanTimeline:
        """Return the predicted timeline of a job's active plan version, or the newest."""
        return self.one(PlanTimeline, "GET", routes.TIMELINE, job_id=job_id, wait_s=_LONG_WORK_S)

    def list_stages_of_steps(
        self, job_id: str, *, limit: int | None = None, after_step: int = -1
    ) -> tuple[StagesOfStep, ...]:
        """Return the newest measured steps after `after_step`, by stages, in rising order.

        Args:
            job_id: Name of the job.
            limit: Number of steps; None: the planner's default.
            after_step: Last step that is not returned.
        """
        query = {"after_step": after_step, "limit": limit}
        return self.many(StagesOfStep, "GET", routes.STAGES_OF_STEPS, job_id=job_id, query=query)
