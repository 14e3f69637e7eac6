"""Jobs: register, inspect, change the target."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response

from flyball_client import routes, wire
from flyball_server.jobs.inputs import change_target
from flyball_server.jobs.inspection import get_job, list_jobs
from flyball_server.jobs.registration import register_job
from flyball_server.rest import examples
from flyball_server.rest.dependencies import JobId, JsonBody, State
from flyball_server.rest.documentation import JSON_BODY_ERRORS, READ_ERRORS, answers, json_body
from flyball_server.rest.mapping import job_spec, job_view, target_update

ROUTER = APIRouter(tags=["jobs"])


@ROUTER.put(
    routes.JOB,
    summary="Register a job",
    dependencies=[JsonBody],
    responses={
        **answers(examples.JOB, 409, *JSON_BODY_ERRORS, meaning="It was registered already."),
        **answers(examples.JOB, status=201, meaning="It is new.", model=wire.JobView),
    },
)
def put_job(
    state: State,
    job_id: JobId,
    registration: Annotated[wire.JobRegistration, json_body(examples.REGISTRATION)],
    response: Response,
) -> wire.JobView:
    """Any rank may register the job, any number of times; the same again changes nothing.

    Other values are taken as long as nothing has been planned for the job; later they are a
    409: change the target, or register a new job.
    """
    summary, is_new = register_job(state.services, job_id, job_spec(registration))
    response.status_code = 201 if is_new else 200
    return job_view(summary)


@ROUTER.get(
    routes.JOBS,
    summary="List all jobs",
    responses=answers([examples.JOB], *READ_ERRORS, meaning="In the order of their creation."),
)
def get_jobs(state: State) -> list[wire.JobView]:
    """Every job that this planner knows, with its ranks."""
    return [job_view(summary) for summary in list_jobs(state.services)]


@ROUTER.get(
    routes.JOB,
    summary="Inspect a job",
    name="get_job",
    responses=answers(examples.JOB, 404, *READ_ERRORS, meaning="The job as it stands."),
)
def get_one_job(state: State, job_id: JobId) -> wire.JobView:
    """The job's registration as it is in force, its ranks, and how far its plans are."""
    return job_view(get_job(state.services, job_id))


@ROUTER.put(
    routes.TARGET,
    summary="Change how a job is planned",
    dependencies=[JsonBody],
    responses=answers(examples.JOB, 404, *JSON_BODY_ERRORS, meaning="The job, planned anew."),
)
def put_target(
    state: State,
    job_id: JobId,
    change: Annotated[wire.TargetChange, json_body(examples.TARGET_CHANGE)],
) -> wire.JobView:
    """Policy, reconfiguration, target and effort from now on; null leaves one as it is.

    A job that has a profile is planned at once and gets a new plan version; values that are in
    force already make none. Where no plan meets the target this is a 422, the job's state says
    `planning-failed`, and the older plan holds.
    """
    return job_view(change_target(state.services, job_id, target_update(change)))
