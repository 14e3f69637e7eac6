"""Jobs: register, inspect, change the target, delete; the overview of all jobs."""

from __future__ import annotations

from fastapi import Response
from starlette.concurrency import run_in_threadpool

from flyball_server.http.dependencies import JobId, NewJobId, State, check_size, planned_view
from flyball_server.http.mapping import job_spec, job_view, launch
from flyball_server.http.middleware.token_access import CallerAccess
from flyball_server.http.openapi.documentation import JSON, call_router, problems
from flyball_server.jobs.job_state import JobInput
from flyball_server.jobs.registry import inspection, registration
from flyball_server.jobs.registry.inputs import change_target
from flyball_wire import messages, routes
from flyball_wire.plan_options import TargetChange
from flyball_wire.read_models import JobOverview, Overview

ROUTER = call_router("jobs")
OVERVIEW_ROUTER = call_router("overview")
_NEW_JOB = {"model": messages.JobView, "description": "The job is new."}


@ROUTER.put(
    routes.JOB,
    summary="Register a job",
    response_description="The job was registered before.",
    responses={201: _NEW_JOB, **problems(409)},
)
async def put_job(
    state: State, job_id: NewJobId, job: messages.JobRegistration, response: Response
) -> messages.JobView:
    """Register a job; any rank may do so, and repeating the call changes nothing.

    Another start (`start_id`) begins when no rank of the start before is present, or at once if its
    launcher has restarted it (`restart_count`); until then it is a 409 that names the nodes. Other
    values replace the registration until the job's first plan, and then begin a new run of it if
    its ranks have left; earlier runs are kept as `NAME@1`, `NAME@2`, ... While ranks are present
    other values are a 409: change the target, or register a new job. Other microbatches of the same
    start, with their order, are taken at any time, and planned for.
    """
    spec = job_spec(job)
    check_size(state, spec)
    stored, is_new = await run_in_threadpool(
        registration.register_job, state.services, job_id, spec, launch(job)
    )
    response.status_code = 201 if is_new else 200
    return await planned_view(state, stored, JobInput.REGISTRATION)


@ROUTER.get(
    routes.JOBS,
    summary="List all jobs",
    response_description="Jobs in the order of their creation.",
)
def get_jobs(state: State, access: CallerAccess) -> list[messages.JobView]:
    """Return all jobs with their ranks.

    With a job's token the list has that job and its earlier runs only.
    """
    return [
        job_view(state.services, summary)
        for summary in inspection.list_jobs(state.services)
        if access.opens(summary.job.job_id)
    ]


@ROUTER.get(routes.JOB, summary="Get a job", response_description="The job.")
def get_job(state: State, job_id: JobId) -> messages.JobView:
    """Return the job's current registration, its ranks, and the state of its plans."""
    return job_view(state.services, inspection.get_job(state.services, job_id))


@ROUTER.put(
    routes.TARGET,
    summary="Change a job's planning options",
    response_description="The job, planned again.",
)
async def put_target(state: State, job_id: JobId, change: TargetChange) -> messages.JobView:
    """Change policy, reconfiguration, target and effort; null leaves one unchanged.

    A job with a profile is planned at once and gets a new plan version, unless no value changes.
    If no plan meets the target, the answer is a 422, the job's state is `planning-failed`, and the
    current plan stays active.
    """
    stored = await run_in_threadpool(change_target, state.services, job_id, change)
    return await planned_view(state, stored, JobInput.TARGET)


@ROUTER.delete(
    routes.JOB,
    summary="Delete a job",
    status_code=204,
    response_description="The job is deleted.",
    responses=problems(409),
)
def delete_job(state: State, job_id: JobId) -> None:
    """Delete the job with its ranks, profile, plans and measurements.

    A job with present ranks is a 409: end its training first.
    """
    registration.delete_job(state.services, job_id)


@OVERVIEW_ROUTER.get(
    routes.OVERVIEW,
    summary="Get an overview of all jobs",
    response_model=Overview,
    response_description="Jobs with the newest activity first.",
)
async def get_overview(state: State, access: CallerAccess) -> Response:
    """Return each job in a row: state, ranks, plan, measured and predicted figures.

    Figures are at most half a second old. Of jobs that are neither among the 20 most recently
    active nor labelled in `/metrics`, ranks, versions and steps may be up to a minute old. With a
    job's token the overview has that job and its earlier runs only.
    """
    overview = await state.overviews.ask()
    return Response(overview.permitted(access), media_type=JSON)


@OVERVIEW_ROUTER.get(
    routes.JOB_OVERVIEW,
    summary="Get the overview of a job",
    response_description="The job's row.",
)
def get_job_overview(state: State, job_id: JobId) -> JobOverview:
    """Return the job's row of the overview, with current figures."""
    return state.reading.overview_of(job_id)
