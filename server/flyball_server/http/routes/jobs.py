"""Jobs: register, inspect, change the target."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from starlette.concurrency import run_in_threadpool

from flyball_server.http.dependencies import (
    JSON,
    JobId,
    JsonBody,
    NewJobId,
    PlannerState,
    Rank,
    State,
    call_router,
    check_size,
)
from flyball_server.http.mapping.jobs import job_spec, job_view, launch, target_update
from flyball_server.http.middleware.token_access import CallerAccess
from flyball_server.http.openapi import examples, view_examples
from flyball_server.http.openapi.documentation import (
    JSON_BODY_ERRORS,
    READ_ERRORS,
    answers,
    json_body,
    problems,
)
from flyball_server.jobs.job_state import JobInput
from flyball_server.jobs.registry.inputs import change_target
from flyball_server.jobs.registry.inspection import JobSummary, get_job, list_jobs, notes
from flyball_server.jobs.registry.registration import delete_job, leave_rank, register_job
from flyball_wire import messages, routes
from flyball_wire.read_models import JobOverview, Overview

ROUTER = call_router("jobs")


@ROUTER.put(
    routes.JOB,
    summary="Register a job",
    dependencies=[JsonBody],
    responses={
        **answers(examples.JOB, 409, *JSON_BODY_ERRORS, meaning="It was registered already."),
        **answers(examples.JOB, status=201, meaning="It is new.", model=messages.JobView),
    },
)
async def put_job(
    state: State,
    job_id: NewJobId,
    registration: Annotated[messages.JobRegistration, json_body(examples.REGISTRATION)],
    response: Response,
) -> messages.JobView:
    """Any rank may register the job, any number of times; the same again changes nothing.

    Other values are taken as long as nothing has been planned for the job. Later they begin a
    new run of it once its ranks are gone, or at once where its launcher has started it again
    (`restart_count`); what was known is then kept as `NAME@1`, `NAME@2`, ... While ranks are
    there it is a 409: change the target, or register a new job.
    """
    spec = job_spec(registration)
    check_size(state, spec)
    stored, is_new = await run_in_threadpool(
        register_job, state.services, job_id, spec, launch(registration)
    )
    summary = await state.plan_coalescer.planned(stored, JobInput.REGISTRATION)
    response.status_code = 201 if is_new else 200
    return await run_in_threadpool(_view, state, summary)


@ROUTER.get(
    routes.JOBS,
    summary="List all jobs",
    responses=answers([examples.JOB], *READ_ERRORS, meaning="In the order of their creation."),
)
def get_jobs(state: State, access: CallerAccess) -> list[messages.JobView]:
    """Every job that this planner knows, with its ranks.

    By a job's token that job and its earlier runs alone.
    """
    services = state.services
    return [
        job_view(summary, notes(services, summary))
        for summary in list_jobs(services)
        if access.opens(summary.job.job_id)
    ]


@ROUTER.get(
    routes.JOB,
    summary="Inspect a job",
    name="get_job",
    responses=answers(examples.JOB, 404, *READ_ERRORS, meaning="The job as it stands."),
)
def get_one_job(state: State, job_id: JobId) -> messages.JobView:
    """The job's registration as it is in force, its ranks, and how far its plans are."""
    summary = get_job(state.services, job_id)
    return job_view(summary, notes(state.services, summary))


@ROUTER.put(
    routes.TARGET,
    summary="Change how a job is planned",
    dependencies=[JsonBody],
    responses=answers(examples.JOB, 404, *JSON_BODY_ERRORS, meaning="The job, planned anew."),
)
async def put_target(
    state: State,
    job_id: JobId,
    change: Annotated[messages.TargetChange, json_body(examples.TARGET_CHANGE)],
) -> messages.JobView:
    """Policy, reconfiguration, target and effort from now on; null leaves one as it is.

    A job that has a profile is planned at once and gets a new plan version; values that are in
    force already make none. Where no plan meets the target this is a 422, the job's state says
    `planning-failed`, and the older plan holds.
    """
    stored = await run_in_threadpool(change_target, state.services, job_id, target_update(change))
    summary = await state.plan_coalescer.planned(stored, JobInput.TARGET)
    return await run_in_threadpool(_view, state, summary)


def _view(state: PlannerState, summary: JobSummary) -> messages.JobView:
    return job_view(summary, notes(state.services, summary))


OVERVIEW_ROUTER = call_router("overview")


@OVERVIEW_ROUTER.get(
    routes.OVERVIEW,
    name="get_overview",
    summary="All jobs at a glance",
    response_model=Overview,
    responses=answers(
        view_examples.OVERVIEW, *READ_ERRORS, meaning="Those heard of last come first."
    ),
)
async def get_all_jobs_overview(state: State, access: CallerAccess) -> Response:
    """Each job in a row: its state, ranks and plan, measured and predicted figures, apart.

    At most half a second old; ranks, versions and steps of jobs that are not among the 20 heard
    of last, nor have a label in `/metrics`, up to a minute. By a job's token that job and its
    earlier runs alone.
    """
    overview = await state.overviews.all_jobs()
    return Response(overview.seen_by(access), media_type=JSON)


@OVERVIEW_ROUTER.get(
    routes.JOB_OVERVIEW,
    summary="A job at a glance",
    responses=answers(
        view_examples.JOB_OVERVIEW, 404, *READ_ERRORS, meaning="The job as it stands."
    ),
)
async def get_job_overview(state: State, job_id: JobId) -> JobOverview:
    """The job's row of the overview, read for this answer."""
    return await state.overviews.of_job.submit(job_id, None)


@ROUTER.post(
    routes.RANK_DEPARTURE,
    summary="Tell that a rank's training is over",
    status_code=204,
    responses={
        204: {"description": "The planner knows that it has left."},
        **problems(404, 409, *READ_ERRORS),
    },
)
def post_departure(
    state: State,
    job_id: JobId,
    rank: Rank,
    run_id: Annotated[
        str | None, Query(max_length=64, description="As the rank's registration was answered.")
    ] = None,
) -> None:
    """Keep what the rank measured. When all ranks of a job have left, it is `ended`.

    A rank that is not known has nothing to leave, and that is no error.
    """
    leave_rank(state.services, job_id, rank, run_id)


@ROUTER.delete(
    routes.JOB,
    name="delete_job",
    summary="Forget a job",
    status_code=204,
    responses={
        204: {"description": "It is forgotten."},
        **problems(404, 409, *READ_ERRORS),
    },
)
def delete_one_job(state: State, job_id: JobId) -> None:
    """Its ranks, profile, plans and measurements go with it, for good.

    A job with ranks that were heard of lately is a 409: end its training first.
    """
    delete_job(state.services, job_id)
