"""Typed calls to the planner, one method per route."""

from __future__ import annotations

from flyball_client.api.connection import MAX_WAIT_S, PlannerConnection, Retries
from flyball_wire import routes
from flyball_wire.closed_loop import (
    ComparisonRequest,
    ComparisonView,
    ProfilingView,
    ReportView,
    StragglerReport,
    StragglerView,
    Timetable,
    TimetableView,
)
from flyball_wire.codec import encode
from flyball_wire.messages import (
    Accepted,
    Acknowledgement,
    Activation,
    Health,
    JobRegistration,
    JobView,
    JsonProfile,
    MeasurementBatch,
    PlanView,
    ProfileRow,
    RankPlan,
    RankRegistration,
    RegisteredRank,
    StepView,
    TargetChange,
)
from flyball_wire.read_models import FrontierView, JobOverview, Overview, PlanSummary, StagesOfStep

__all__ = ["MAX_WAIT_S", "PlannerClient", "Retries"]

# Calls that make a plan are answered when it is made, those that read all of a job's plans or steps
# when they are read: on a large pipeline, or of a long job, that takes a while.
_LONG_WORK_S = MAX_WAIT_S


class PlannerClient(PlannerConnection):
    """Calls to one planner, see PlannerConnection for how they are made."""

    def health(self) -> Health:
        """The planner's state and version."""
        return self.one(Health, "GET", routes.HEALTH)

    def put_job(self, job_id: str, registration: JobRegistration) -> JobView:
        """Make a job known, or change it."""
        path = routes.fill(routes.JOB, job_id=job_id)
        return self.one(JobView, "PUT", path, body=registration, wait_s=_LONG_WORK_S)

    def get_job(self, job_id: str) -> JobView:
        """One job."""
        return self.one(JobView, "GET", routes.fill(routes.JOB, job_id=job_id))

    def list_jobs(self) -> tuple[JobView, ...]:
        """All jobs."""
        return self.many(JobView, "GET", routes.JOBS)

    def put_profile_csv(self, job_id: str, text: str) -> JobView:
        """Give a job its stage profile, as the CSV that it is."""
        path = routes.fill(routes.PROFILE, job_id=job_id)
        response = self.send(
            "PUT",
            path,
            content=text.encode(),
            headers={"Content-Type": "text/csv; charset=utf-8"},
            wait_s=_LONG_WORK_S,
        )
        return self.decoded(JobView, response)

    def put_profile_rows(self, job_id: str, rows: tuple[ProfileRow, ...]) -> JobView:
        """Give a job its stage profile, row by row."""
        path = routes.fill(routes.PROFILE, job_id=job_id)
        return self.one(JobView, "PUT", path, body=JsonProfile(rows=rows), wait_s=_LONG_WORK_S)

    def put_target(self, job_id: str, change: TargetChange) -> JobView:
        """Change how a job is planned from now on."""
        path = routes.fill(routes.TARGET, job_id=job_id)
        return self.one(JobView, "PUT", path, body=change, wait_s=_LONG_WORK_S)

    def put_rank(self, job_id: str, rank: int, registration: RankRegistration) -> RegisteredRank:
        """Make a rank of a job known, or known again."""
        path = routes.fill(routes.RANK, job_id=job_id, rank=rank)
        return self.one(RegisteredRank, "PUT", path, body=registration)

    def get_rank_plan(
        self, job_id: str, rank: int, *, after_version: int = 0, wait_s: float = 0.0
    ) -> RankPlan | None:
        """The newest plan of a rank, if newer than `after_version`; None: none in `wait_s`.

        Args:
            job_id: the job.
            rank: the rank within it.
            after_version: the newest version already known; 0: none.
            wait_s: how long the planner holds the call open, s, at most 60.
        """
        path = routes.fill(routes.RANK_PLAN, job_id=job_id, rank=rank)
        query = {"after_version": str(after_version), "wait_s": _wait_text(wait_s)}
        response = self.send("GET", path, query=query, wait_s=wait_s)
        return None if response.status_code == 204 else self.decoded(RankPlan, response)

    def acknowledge(
        self, job_id: str, rank: int, acknowledgement: Acknowledgement, *, wait_s: float = 0.0
    ) -> Activation:
        """Acknowledge a plan version; wait up to `wait_s` (at most 60) for its first step."""
        path = routes.fill(routes.RANK_ACKNOWLEDGEMENT, job_id=job_id, rank=rank)
        query = {"wait_s": _wait_text(wait_s)}
        response = self.send("POST", path, json=encode(acknowledgement), query=query, wait_s=wait_s)
        return self.decoded(Activation, response)

    def get_activation(self, job_id: str, version: int, *, wait_s: float = 0.0) -> Activation:
        """From which step a version holds; waits up to `wait_s` (at most 60) for it."""
        path = routes.fill(routes.ACTIVATION, job_id=job_id, version=version)
        response = self.send("GET", path, query={"wait_s": _wait_text(wait_s)}, wait_s=wait_s)
        return self.decoded(Activation, response)

    def post_measurements(self, job_id: str, rank: int, batch: MeasurementBatch) -> Accepted:
        """Store what a rank measured."""
        path = routes.fill(routes.RANK_MEASUREMENTS, job_id=job_id, rank=rank)
        return self.one(Accepted, "POST", path, body=batch)

    def leave(self, job_id: str, rank: int, *, run_id: str | None = None) -> None:
        """Tell that a rank's training is over; what it measured stays."""
        path = routes.fill(routes.RANK_DEPARTURE, job_id=job_id, rank=rank)
        self.send("POST", path, query={} if run_id is None else {"run_id": run_id})

    def delete_job(self, job_id: str) -> None:
        """Forget a job whose ranks are gone, with all that it measured."""
        self.send("DELETE", routes.fill(routes.JOB, job_id=job_id))

    def list_plans(self, job_id: str) -> tuple[PlanView, ...]:
        """All plan versions of a job."""
        return self.many(PlanView, "GET", routes.fill(routes.PLANS, job_id=job_id))

    def get_plan(self, job_id: str, version: int) -> PlanView:
        """One plan version of a job."""
        path = routes.fill(routes.PLAN, job_id=job_id, version=version)
        return self.one(PlanView, "GET", path)

    def get_frontier(
        self, job_id: str, *, points: int | None = None, wait_s: float = 60.0
    ) -> FrontierView:
        """A job's time-energy frontier, which the planner may take `wait_s` to find.

        None points: as many as the planner gives.
        """
        query = {} if points is None else {"points": str(points)}
        path = routes.fill(routes.FRONTIER, job_id=job_id)
        return self.decoded(FrontierView, self.send("GET", path, query=query, wait_s=wait_s))

    def list_steps(self, job_id: str, *, limit: int | None = None) -> tuple[StepView, ...]:
        """Measured steps of a job in rising order; None: as many as the planner gives."""
        query = {} if limit is None else {"limit": str(limit)}
        path = routes.fill(routes.STEPS, job_id=job_id)
        return self.many(StepView, "GET", path, query=query)

    # ------------------------------------------------------------------ the closed loop

    def get_profile_csv(self, job_id: str) -> str:
        """The profile that a job is planned from, put or measured, as CSV."""
        return self.send("GET", routes.fill(routes.PROFILE, job_id=job_id)).text

    def get_profiling(self, job_id: str) -> ProfilingView:
        """Return how far the online profiling of a job is."""
        return self.one(ProfilingView, "GET", routes.fill(routes.PROFILING, job_id=job_id))

    def post_straggler(self, job_id: str, report: StragglerReport) -> StragglerView:
        """Announce that a GPU is slower than its profile, or will be."""
        path = routes.fill(routes.STRAGGLERS, job_id=job_id)
        return self.one(StragglerView, "POST", path, body=report)

    def list_stragglers(self, job_id: str) -> tuple[StragglerView, ...]:
        """A job's stragglers, announced and detected."""
        return self.many(StragglerView, "GET", routes.fill(routes.STRAGGLERS, job_id=job_id))

    def delete_straggler(self, job_id: str, rank: int) -> None:
        """Withdraw what was announced of a rank; nothing where nothing was."""
        self.send("DELETE", routes.fill(routes.STRAGGLER, job_id=job_id, rank=rank))

    def put_timetable(self, job_id: str, timetable: Timetable) -> TimetableView:
        """Give a job targets by the time of day, in the place of those before."""
        path = routes.fill(routes.TIMETABLE, job_id=job_id)
        return self.one(TimetableView, "PUT", path, body=timetable)

    def get_timetable(self, job_id: str) -> TimetableView:
        """A job's targets by the time of day, and the one in force."""
        return self.one(TimetableView, "GET", routes.fill(routes.TIMETABLE, job_id=job_id))

    def delete_timetable(self, job_id: str) -> None:
        """Let the job's own target hold at all times."""
        self.send("DELETE", routes.fill(routes.TIMETABLE, job_id=job_id))

    def put_comparison(self, job_id: str, request: ComparisonRequest) -> ComparisonView:
        """Ask for steps at the highest clocks among those on the plan."""
        path = routes.fill(routes.COMPARISON, job_id=job_id)
        return self.one(ComparisonView, "PUT", path, body=request)

    def get_comparison(self, job_id: str) -> ComparisonView:
        """Return how far a job's comparison is."""
        return self.one(ComparisonView, "GET", routes.fill(routes.COMPARISON, job_id=job_id))

    def delete_comparison(self, job_id: str) -> None:
        """End a job's comparison; where one runs the plain plan comes back."""
        self.send("DELETE", routes.fill(routes.COMPARISON, job_id=job_id))

    def get_report(self, job_id: str) -> ReportView:
        """Return what a job has measured so far."""
        path = routes.fill(routes.REPORT, job_id=job_id)
        return self.one(ReportView, "GET", path, wait_s=_LONG_WORK_S)

    # ------------------------------------------------------------------ to look at

    def get_overview(self) -> Overview:
        """All jobs that are open to the caller, a row each."""
        return self.one(Overview, "GET", routes.OVERVIEW)

    def get_job_overview(self, job_id: str) -> JobOverview:
        """One job in a row."""
        return self.one(JobOverview, "GET", routes.fill(routes.JOB_OVERVIEW, job_id=job_id))

    def get_history(self, job_id: str) -> tuple[PlanSummary, ...]:
        """All plan versions of a job without their instructions, rising."""
        path = routes.fill(routes.HISTORY, job_id=job_id)
        return self.many(PlanSummary, "GET", path, wait_s=_LONG_WORK_S)

    def list_stages_of_steps(
        self, job_id: str, *, limit: int | None = None, after_step: int = -1
    ) -> tuple[StagesOfStep, ...]:
        """The newest measured steps after `after_step`, by stages, in rising order.

        None as the limit: as many as the planner gives.
        """
        query = {"after_step": str(after_step)}
        if limit is not None:
            query["limit"] = str(limit)
        path = routes.fill(routes.STAGES_OF_STEPS, job_id=job_id)
        return self.many(StagesOfStep, "GET", path, query=query)


def _wait_text(wait_s: float) -> str:
    return f"{wait_s:g}"
