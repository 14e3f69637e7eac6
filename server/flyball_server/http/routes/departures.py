"""The ends of things: a rank that leaves, a job that is forgotten."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from flyball_server.http.call_router import call_router
from flyball_server.http.dependencies import JobId, Rank, State
from flyball_server.http.openapi.documentation import READ_ERRORS, problems
from flyball_server.jobs.lifecycle.deletion import delete_job
from flyball_server.jobs.registry.registration import leave_rank
from flyball_wire import routes

ROUTER = call_router("jobs")


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
    """What the rank measured stays. When all ranks of a job have left, it is `ended`.

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
