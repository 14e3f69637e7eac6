"""Use case behind the others: plan a job whose profile or specification has changed."""

from __future__ import annotations

import logging
import time

from flyball_server.jobs.activation.plan_versions import add_version
from flyball_server.jobs.control import InForce
from flyball_server.jobs.errors import InvalidFieldError, PlanningFailedError
from flyball_server.jobs.job_state import JobInput, JobState
from flyball_server.jobs.records import (
    ADAPT_FRONTIER,
    JobRecord,
    JobSpec,
    PlanRecord,
    StepReport,
)
from flyball_server.jobs.registry.inspection import JobSummary, require_job, summarise
from flyball_server.jobs.replanning.plan_request import is_raised_by_waits, plan_request
from flyball_server.jobs.replanning.refining import kept_plan, with_planned
from flyball_server.jobs.replanning.slowed_plan import PacedPlan, paced_plan
from flyball_server.jobs.replanning.solve import SupersededError, is_same_work
from flyball_server.jobs.replanning.solve_observation import observed_solve
from flyball_server.jobs.services import JobServices, planning_turn
from flyball_server.planning.errors import PlanningError

_LOG = logging.getLogger(__name__)


def plan_if_needed(services: JobServices, job_id: str, asked_by: JobInput) -> JobSummary:
    """Plan the job as it now stands, unless its newest plan is of just that.

    Inputs that change while the planner works stop it and are planned next, so that what returns
    is never older than what the caller has stored. Services that do not plan at once return the
    job as it stands.

    Args:
        services: the seams.
        job_id: a known job.
        asked_by: the input that the caller has put. A failure is told to whoever put the input
            that was changed last; a rank that repeats an older one is not to blame for it.

    Raises:
        PlanningFailedError: the planner refused; the job says so too.
        UnknownJobError: it is gone.
        PlanningStoppedError: the planner shuts down.
    """
    found = _summary(services, job_id)
    if is_planned(found) or not services.plans_at_once:
        # A rank that registers again does not wait for another's planning.
        return found
    with services.store.turn(planning_turn(job_id)):
        while True:
            summary = _plan_once(services, job_id, asked_by)
            if summary is not None:
                return summary


def is_planned(summary: JobSummary) -> bool:
    """Whether the job's newest plan is of its inputs as they stand (or both are none)."""
    return summary.job.planned_revision == summary.job.inputs_revision


def _summary(services: JobServices, job_id: str) -> JobSummary:
    with services.store.reading() as reader:
        return summarise(reader, require_job(reader, job_id))


def _plan_once(services: JobServices, job_id: str, asked_by: JobInput) -> JobSummary | None:
    """One attempt; None where the inputs have changed meanwhile."""
    with services.store.reading() as reader:
        job = require_job(reader, job_id)
        profile = reader.find_profile(job_id)
        control = reader.find_control(job_id)
        ranks = reader.list_ranks(job_id)
        is_current = job.planned_revision == job.inputs_revision
        is_others = job.state is JobState.PLANNING_FAILED and job.changed_input is not asked_by
        if profile is None or is_current or is_others:
            return summarise(reader, job)
    started_s = time.perf_counter()
    try:
        request = plan_request(job.in_force, profile, services.gpu_window, control)
        with observed_solve(services, request.policy):
            planned = paced_plan(services, job, request, control.in_force, ranks)
    except SupersededError:
        _LOG.info("job %s: its inputs have changed; it is planned from those", job_id)
        return None
    except (PlanningError, InvalidFieldError) as error:
        problem = error.message if isinstance(error, PlanningError) else error.problem
        failure = PlanningFailedError(error.field, problem)
        if _store_failure(services, job, failure):
            raise failure from error
        return None
    solve_s = time.perf_counter() - started_s
    return _store_plan(services, job, planned, planned_for=control.in_force, solve_s=solve_s)


def _store_plan(
    services: JobServices,
    job: JobRecord,
    planned: PacedPlan,
    *,
    planned_for: InForce,
    solve_s: float,
) -> JobSummary | None:
    with services.store.writing(job.job_id) as writer:
        now = require_job(writer, job.job_id)
        if not is_same_work(job, now):
            return None
        if now.planned_revision == now.inputs_revision:
            # The turn was lost, and another planner has had it meanwhile.
            return summarise(writer, now)
        control = writer.find_control(job.job_id)
        record = kept_plan(writer, now, control, planned, planned_for)
        is_kept = record is not None
        if record is None:
            report = _report(job.in_force, planned_for)
            record = add_version(
                services, writer, job.job_id, planned.plan, solve_s=solve_s, report=report
            )
            now = now.moved(JobState.PLANNED)
        now = now.evolve(planned_revision=job.inputs_revision)
        writer.save_job(now)
        after = with_planned(control, planned, planned_for, record.version)
        if after != control:
            writer.save_control(after)
        summary = summarise(writer, now)
    services.wake(job.job_id)
    services.notice(job.job_id)
    if is_kept:
        _LOG.info("job %s: plan %d stays; none is better by enough", job.job_id, record.version)
    else:
        _log_version(record, planned)
    return summary


def _log_version(record: PlanRecord, planned: PacedPlan) -> None:
    about_version = {"version": record.version}
    if planned.made_as is not None:
        _LOG.info(
            "job %s: plan %d is plan %d again",
            record.job_id,
            record.version,
            planned.made_as,
            extra=about_version,
        )
        return
    how = "" if planned.has_own_effort else ", at once; a better one may follow"
    _LOG.info(
        "job %s: plan %d made in %.3f s%s",
        record.job_id,
        record.version,
        record.solve_s,
        how,
        extra=about_version,
    )


def _report(spec: JobSpec, planned_for: InForce) -> StepReport:
    """What the job's adaptation has to be told of each step."""
    if spec.adaptation == ADAPT_FRONTIER:
        return StepReport.CLOCKS
    is_looked_at = is_raised_by_waits(spec, planned_for)
    return StepReport.INSTRUCTIONS if is_looked_at else StepReport.TOTALS


def _store_failure(services: JobServices, job: JobRecord, failure: PlanningFailedError) -> bool:
    """Whether the failure is still about inputs that nobody has planned, and is stored."""
    with services.store.writing(job.job_id) as writer:
        now = require_job(writer, job.job_id)
        if not is_same_work(job, now) or now.planned_revision == now.inputs_revision:
            return False
        writer.save_job(now.moved(JobState.PLANNING_FAILED, problem=failure.message))
    _LOG.warning("job %s: planning failed: %s", job.job_id, failure.message)
    return True
